"""DistributedOptimizer: N ranks train exactly like one process that sees all the data."""

import time
import warnings

import torch
from common import close, raises, same

import horon.torch as hvd

STEPS = 4


def make_model(seed=5):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    )


def batches(size):
    """STEPS batches for each of `size` ranks."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(STEPS, size, 6, 1, 4, 4, generator=generator)


def loss_of(model, batch):
    return model(batch).pow(2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_alone(loss_divisor=1, make_optimizer=sgd):
    """What all ranks together must arrive at: the mean of the ranks' losses, in one process."""
    model = make_model()
    optimizer = make_optimizer(model)
    for step in batches(hvd.size()):
        optimizer.zero_grad()
        for batch in step:
            (loss_of(model, batch) / loss_divisor).backward()
        optimizer.step()
    return model


def train(make_optimizer=sgd, memory_format=None, **arguments):
    model = make_model()
    if memory_format is not None:
        model = model.to(memory_format=memory_format)
    arguments.setdefault("named_parameters", model.named_parameters())
    optimizer = hvd.DistributedOptimizer(make_optimizer(model), **arguments)
    for step in batches(hvd.size()):
        optimizer.zero_grad()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
    return model


def same_models(one, other, tolerance=1e-5):
    for (name, a), b in zip(one.named_parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance,
                                   msg=lambda m, name=name: f"{name}: {m}")


def check_equals_single_process():
    size = hvd.size()
    same_models(train(), train_alone(size))
    same_models(train(named_parameters=None), train_alone(size))
    same_models(train(op=hvd.Sum), train_alone(1))
    same_models(train(memory_format=torch.channels_last), train_alone(size))

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    same_models(train(adam), train_alone(size, adam), 1e-4)


def check_ranks_hold_the_same_bits():
    for parameter in train().parameters():
        gathered = hvd.allgather(parameter.detach().reshape(1, -1))
        for row in gathered:
            same(row, gathered[0])


def check_compression_predivide_and_groups():
    size = hvd.size()
    alone = train_alone(size)
    same_models(train(compression=hvd.Compression.fp16), alone, 1e-2)
    same_models(train(gradient_predivide_factor=2.0), alone)
    same_models(train(groups=2), alone)
    same_models(train(groups=2, gradient_predivide_factor=2.0), alone)
    model = make_model()
    parameters = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(model), groups=[parameters[:2], [parameters[3]]])
    for step in batches(size):
        optimizer.zero_grad()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
    same_models(model, alone)


def check_groups_of_an_optimizer_that_has_a_part_of_the_model():
    batch = batches(hvd.size())[0][hvd.rank()]
    alone = make_model()
    loss_of(alone, batch).backward()
    own = [p.grad for p in alone.parameters()]
    for groups in (1, 2):
        model = make_model()
        head = list(model.parameters())[-2:]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(head, lr=0.1),
                                             model.named_parameters(), groups=groups)
        loss_of(model, batch).backward()
        optimizer.step()
        for p, gradient in list(zip(model.parameters(), own))[:-2]:
            same(p.grad, gradient)
        for p, gradient in zip(head, own[-2:]):
            close(p.grad, hvd.allreduce(gradient, name="own"), 1e-6)


def check_decentralised_and_sparse_ops_train():
    for op in (hvd.Dissemination(), hvd.TopK(ratio=0.5), "topk:ratio=1"):
        model = train(op=op)
        assert all(torch.isfinite(p).all() for p in model.parameters())
    same_models(train(op=hvd.TopK(ratio=1.0)), train_alone(hvd.size()), 1e-4)


def check_backward_passes_per_step():
    """Gradients of several passes are summed, not averaged."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), backward_passes_per_step=2
    )
    alone = make_model()
    optimizer_alone = sgd(alone)
    data = batches(hvd.size())
    for first, second in ((data[0], data[1]), (data[2], data[3])):
        optimizer.zero_grad()
        optimizer_alone.zero_grad()
        for step in (first, second):
            loss_of(model, step[hvd.rank()]).backward()
            for batch in step:
                (loss_of(alone, batch) / hvd.size()).backward()
        optimizer.step()
        optimizer_alone.step()
    same_models(model, alone)
    with raises(ValueError):
        optimizer.set_backward_passes_per_step(0)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    loss_of(model, data[0][hvd.rank()]).backward()
    optimizer.step()


def check_reductions_begin_within_backward():
    """The last layer's gradients are reduced while backward is at the first."""
    if hvd.size() == 1:
        return
    first, last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    parameters = [*last.named_parameters("last"), *first.named_parameters("first")]
    optimizer = hvd.DistributedOptimizer(sgd(torch.nn.Sequential(first, last)), parameters)
    reduced = []

    def count():
        return hvd.counters().get("executor.tensors", 0)

    def look(_):
        until = time.monotonic() + 20
        while count() < before + 2 and time.monotonic() < until:
            time.sleep(0.001)  # backward goes on only when this returns
        reduced.append(count() - before)

    before = count()
    hidden = first(torch.ones(2, 3))
    hidden.register_hook(look)
    last(hidden).sum().backward()
    optimizer.step()
    assert reduced == [2] and count() >= before + 4, (reduced, before, count())


def check_too_many_backward_passes():
    if hvd.size() == 1:
        return
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    batch = batches(hvd.size())[0][hvd.rank()]
    loss_of(model, batch).backward()
    with raises(AssertionError, words=["backward_passes_per_step"]):
        loss_of(model, batch).backward()
    with raises(AssertionError, words=["zero_grad"]):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleList([torch.nn.Linear(3, 1) for _ in range(2)])

    def forward(self, batch, head):
        return self.heads[head](batch).sum()


def check_parameters_without_gradient():
    """Each rank uses another head; the others' gradients count as zeros."""
    for arguments in ({}, {"groups": 2}, {"groups": 1}):
        torch.manual_seed(3)
        model = TwoHeads()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **arguments
        )
        model(torch.ones(1, 3), hvd.rank() % 2).backward()
        optimizer.synchronize()
        used = [sum(r % 2 == head for r in range(hvd.size())) for head in (0, 1)]
        for head, count in zip(model.heads, used):
            if hvd.size() == 1 and count == 0:
                assert head.weight.grad is None
                continue
            close(head.weight.grad, torch.full((1, 3), count / hvd.size()))
        with optimizer.skip_synchronize():
            optimizer.step()


def check_parameters_without_elements():
    for views in (False, True):
        empty = torch.nn.Parameter(torch.zeros(3, 0))
        bias = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([empty, bias], lr=1.0), [("empty", empty), ("bias", bias)],
            gradient_as_bucket_view=views)
        for step in range(4):
            optimizer.zero_grad()
            torch.nn.functional.linear(torch.ones(2, 0), empty, bias).sum().backward()
            optimizer.step()
            assert empty.grad.shape == (3, 0)
            close(bias.detach(), torch.full((3,), -2.0 * (step + 1)))


def check_late_requires_grad():
    model = make_model()
    frozen = list(model.parameters())[:2]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    data = batches(hvd.size())
    for step, batch in enumerate(data):
        optimizer.zero_grad()
        for parameter in frozen:
            parameter.requires_grad_(step > 0)
        loss_of(model, batch[hvd.rank()]).backward()
        optimizer.step()
    for parameter in model.parameters():
        gathered = hvd.allgather(parameter.detach().reshape(1, -1))
        same(gathered, gathered[:1].expand_as(gathered))


def check_clipping():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    data = batches(hvd.size())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_of(model, data[0][hvd.rank()]).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert not caught, [str(w.message) for w in caught]
        optimizer.zero_grad()
        loss_of(model, data[1][hvd.rank()]).backward()
        optimizer.synchronize()
        optimizer.step()
    assert len(caught) == 1 and "skip_synchronize" in str(caught[0].message)


def check_sparse_gradients():
    for as_dense in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Embedding(10, 4, sparse=True)
        start = model.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
            sparse_as_dense=as_dense,
        )
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([hvd.rank(), 9])).sum().backward()
            optimizer.step()
        counts = torch.zeros(10)
        for rank in range(hvd.size()):
            counts[rank] += 2 / hvd.size()
        counts[9] += 2
        close(model.weight.detach(), start - counts[:, None])


def sparse_optimizer(op, **options):
    """Of a table whose row 9 all ranks use with other gradients: rank + 1; and rows of their
    own."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                         table.named_parameters(), op=op, **options)
    return table, optimizer, lambda: (
        (hvd.rank() + 1.0) * table(torch.tensor([hvd.rank(), 9])).sum()).backward()


def check_sparse_gradients_with_ops_that_do_not_add():
    """They are refused, unless they may be made dense: then rows that nobody has used are 0.
    Adasum's deltas are dense anyway."""
    if hvd.size() == 1:
        return
    for op in (hvd.Max, hvd.Min, hvd.Product, hvd.TopK(ratio=1.0), hvd.Dissemination()):
        _, optimizer, backward = sparse_optimizer(op)
        said = ["'allreduce.weight' is sparse", f"not '{op.spec}'", "sparse_as_dense=True"]
        with raises(hvd.HoronInvalidArgument, ValueError, words=said):
            backward()
            optimizer.step()
    own = torch.arange(1.0, hvd.size() + 1)
    for op, of_nine, of_own in ((hvd.Max, own.max(), own), (hvd.Product, own.prod(), 0 * own),
                                (hvd.Min, own.min(), 0 * own), (hvd.Adasum, None, None)):
        table, optimizer, backward = sparse_optimizer(op, sparse_as_dense=op != hvd.Adasum)
        backward()
        optimizer.step()
        weight = table.weight.detach()
        same(weight[hvd.size():9], torch.zeros(9 - hvd.size(), 4))
        if op == hvd.Adasum:  # a row is more than nothing: all ranks changed their own
            assert (weight[[*range(hvd.size()), 9]] < 0).all(), weight
            continue
        close(weight[9], -of_nine.expand(4))
        close(weight[:hvd.size()], -of_own[:, None].expand(-1, 4))


def check_sparse_parameters_without_gradient():
    """In each step one rank has no gradient, in the first of them rank 0; in step 2 nobody has. The
    other table is used for the first time in step 3, by the last rank alone."""
    size = hvd.size()
    for views in (False, True):
        tables = torch.nn.ModuleDict({name: torch.nn.Embedding(10, 4, sparse=True)
                                      for name in ("early", "late")})
        for table in tables.values():
            torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(tables.parameters(), lr=1.0), tables.named_parameters(),
            gradient_as_bucket_view=views)
        used = 0
        for step in range(size + 3):
            optimizer.zero_grad()
            loss = torch.zeros((), requires_grad=True)
            if step != 2 and hvd.rank() != step % size:
                loss = loss + tables["early"](torch.tensor([1, 9])).sum()
            if step == 3 and hvd.rank() == size - 1:
                loss = loss + tables["late"](torch.tensor([5])).sum()
            loss.backward()
            optimizer.step()
            used += 0 if step == 2 else size - 1
        want = torch.zeros(10, 4)
        want[[1, 9]] = -used / size
        close(tables["early"].weight.detach(), want)
        want = torch.zeros(10, 4)
        want[5] = -1 / size
        close(tables["late"].weight.detach(), want)


def check_nothing_to_finish():
    """So that a program need not know which op it was advised."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    assert optimizer.finish_gossip(average=True) and optimizer.finish_gossip(timeout=1)
    optimizer.close_gossip()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(),
                                         op=hvd.Dissemination())
    assert optimizer.finish_gossip()
    with raises(ValueError, words=["parameters of its own"]):
        optimizer.finish_gossip(average=True)
