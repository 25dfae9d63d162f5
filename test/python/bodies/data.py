"""Data and callbacks, against values computed by hand."""

import threading

import torch
from common import raises

import horon.torch as hvd
from horon.torch.callbacks import LearningRateWarmup, average_metrics, metric_average
from horon.torch.data import AsyncDataLoader, AsyncDataLoaderMixin, BaseDataLoader
from horon.torch.elastic import ElasticSampler


class Counting(BaseDataLoader):
    """Batches 0 to 9; says which it has made, and in which thread."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.made = []
        self.threads = set()
        self.more = threading.Condition()

    def __len__(self):
        return 10

    def _iterate(self):
        for number in range(10):
            if number == self.fails_at:
                raise KeyError(number)
            with self.more:
                self.made.append(number)
                self.threads.add(threading.current_thread().name)
                self.more.notify_all()
            yield number

    def _process_batch(self, batch):
        return batch * 10

    def wait_for(self, count):
        with self.more:
            assert self.more.wait_for(lambda: len(self.made) >= count, 30), self.made


class CountingAhead(AsyncDataLoaderMixin, Counting):
    pass


def data_threads():
    return [thread for thread in threading.enumerate() if thread.name == "horon-data"]


def check_batches_are_made_ahead():
    loader = CountingAhead(3, fails_at=None)
    for _ in range(2):  # epochs
        loader.made.clear()
        seen = iter(loader)
        assert next(seen) == 0
        loader.wait_for(4)  # three lie ready; a fifth is made and waits for room
        assert len(loader.made) <= 5
        assert [0, *seen] == list(range(0, 100, 10))
    assert loader.threads == {"horon-data"} and not data_threads()
    synchronous = CountingAhead(0)
    assert list(synchronous) == list(range(0, 100, 10)) and synchronous.threads == {"MainThread"}
    with raises(ValueError, words=["async_loader_queue_size is -1"]):
        CountingAhead(-1)
    with raises(TypeError, words=["before the loader's own arguments"]):
        CountingAhead([1, 2, 3])


def check_an_epoch_that_is_left_or_fails_leaves_no_thread():
    loader = CountingAhead(2)
    for batch in loader:
        if batch == 20:
            break
    del batch
    loader.close_async_loader()
    assert not data_threads()
    seen = iter(loader)
    assert next(seen) == 0
    loader.close_async_loader()
    assert len(list(seen)) == 0 and not data_threads()
    failing, got = CountingAhead(8, fails_at=4), []
    with raises(KeyError, words=[4]):
        for batch in failing:
            got.append(batch)
    assert got == [0, 10, 20, 30] and not data_threads()


def check_a_data_loader_of_pytorch():
    data = torch.utils.data.TensorDataset(torch.arange(7.0))
    loader = AsyncDataLoader(2, data, batch_size=3)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(loader) == 3


def dealt(sampler):
    """Every rank's indices, one after the other."""
    return hvd.allgather_object(list(sampler))


def check_a_sampler_deals_every_index():
    sampler = ElasticSampler(range(11), shuffle=False)
    size = hvd.size()
    each = -(-11 // size)
    assert len(sampler) == each
    row = [*range(11), *range(each * size - 11)]
    assert dealt(sampler) == [row[rank::size] for rank in range(size)]
    assert sampler.get_indices(1, 2) == row[hvd.rank()::size][2:4]


def check_a_sampler_goes_on_where_it_was():
    sampler, size = ElasticSampler(range(40), seed=5), hvd.size()
    sampler.set_epoch(3)
    order = [index for group in zip(*dealt(sampler)) for index in group]
    assert sorted(order[:40]) == list(range(40)) and order[:40] != list(range(40))
    assert [i for g in zip(*dealt(ElasticSampler(range(40), seed=8))) for i in g] == order
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    assert sampler.state_dict() == {"epoch": 3, "processed_num": 4 * size}
    again = ElasticSampler(range(40), seed=5)
    again.load_state_dict(sampler.state_dict())
    rest = [index for group in zip(*dealt(again)) for index in group]
    assert rest[:40 - 4 * size] == order[4 * size:40]
    sampler.record_batch(2, 1000)
    sampler.reset()
    assert len(sampler) == 0 and list(sampler) == []
    sampler.set_epoch(4)
    assert len(sampler) == -(-40 // size) and sampler.processed_num == 0
    few = ElasticSampler(range(1), shuffle=False)
    assert dealt(few) == [[0]] * size  # one index for many ranks
    assert hvd.elastic.ElasticSampler is ElasticSampler


def check_the_learning_rate_warms_up():
    """2 epochs of 4 steps: from 0.8 / size to 0.8, then it stays."""
    size = hvd.size()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([{"params": [model.weight], "lr": 0.8}, {"params": [model.bias]}], lr=8.0)
    )
    warmup = LearningRateWarmup(optimizer, warmup_epochs=2, steps_per_epoch=4)
    for step in range(11):
        share = min(1.0, (1 + step / 8 * (size - 1)) / size)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert all(abs(rate - lr * share) < 1e-12 for rate, lr in zip(rates, (0.8, 8.0))), rates
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        warmup.step()
    none = LearningRateWarmup(torch.optim.SGD(model.parameters(), lr=1.0), warmup_epochs=0)
    assert none.get_last_lr() == [1.0]
    with raises(ValueError, words=["0 steps"]):
        LearningRateWarmup(optimizer, 1, 0)


def check_metrics_are_averaged():
    rank, size = hvd.rank(), hvd.size()
    assert metric_average(float(rank), "loss") == (size - 1) / 2
    mine = {"loss": torch.tensor(2.0 * rank), "accuracy": rank}
    if rank % 2:
        mine = dict(reversed(mine.items()))  # ranks may hold them in any order
    assert average_metrics(mine) == {"loss": size - 1.0, "accuracy": (size - 1) / 2}
    # rank r has seen 2 r samples; rank 0 none, and has no mean of them
    value = float("nan") if rank == 0 else 6.0 * rank
    if size > 1:
        want = 6 * sum(r * r for r in range(size)) / sum(range(size))
        assert abs(average_metrics({"x": value}, weight=2 * rank)["x"] - want) < 1e-12
    with raises(ValueError, words=["weights of all ranks are 0"]):
        average_metrics({"x": 1.0}, weight=0)
    with raises(ValueError, words=["takes a dict, not list"]):
        average_metrics([1.0])
