"""DistributedOptimizer(op=Adasum): against trajectories computed by hand, and clipping."""

import copy
import warnings

import torch
from adasum import adasum_of
from common import close, raises, same
from optimizers import batches, loss_of, make_model, sgd

import horon.torch as hvd


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)


def two_groups(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights}, {"params": biases, "lr": 0.01, "momentum": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=False)


def by_hand(make_optimizer, data, passes=1, clip=None, ranks=None, mean=False, dtype=None):
    """Every rank in this process: each has its model and optimizer; the deltas are combined. mean:
    of the passes' gradients, in place of their sum."""
    size = ranks or hvd.size()
    models = [make_model().to(dtype) for _ in range(size)]
    optimizers = [make_optimizer(model) for model in models]
    for first in range(0, len(data), passes):
        starts = [p.detach().clone() for p in models[0].parameters()]
        for rank in range(size):
            optimizers[rank].zero_grad()
            for batch in data[first:first + passes]:
                loss_of(models[rank], batch[rank]).backward()
            for parameter in models[rank].parameters() if mean else ():
                parameter.grad.div_(passes)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(models[rank].parameters(), clip)
            optimizers[rank].step()
        for i, start in enumerate(starts):
            ends = [list(model.parameters())[i] for model in models]
            combined = adasum_of([end.detach() - start for end in ends])
            for end in ends:
                end.data.copy_(start + combined.to(start.dtype))
    return models[0]


def train(make_optimizer, data, passes=1, **arguments):
    model = make_model()
    optimizer = make_optimizer(model)
    arguments.setdefault("named_parameters", model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        optimizer, backward_passes_per_step=passes, op=hvd.Adasum, **arguments
    )
    for first in range(0, len(data), passes):
        optimizer.zero_grad()
        for batch in data[first:first + passes]:
            loss_of(model, batch[hvd.rank()]).backward()
        optimizer.step()
    return model


def same_models(one, other, tolerance=1e-5):
    for a, b in zip(one.parameters(), other.parameters()):
        close(a.detach(), b.detach(), tolerance)


def check_narrow_parameters():
    """Parameters, deltas and momenta of 16 bits: as by hand, but for what is rounded."""
    for dtype, tolerance in ((torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        data = batches(hvd.size()).to(dtype)
        model = make_model().to(dtype)
        start = [p.detach().clone() for p in model.parameters()]
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
        for step in data:
            optimizer.zero_grad()
            loss_of(model, step[hvd.rank()]).backward()
            optimizer.step()
        same_models(model, by_hand(sgd, data, dtype=dtype), tolerance)
        assert all(p.dtype == dtype for p in model.parameters())
        assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), start))


def check_trajectories():
    data = batches(hvd.size())
    for make_optimizer in (sgd, adam, two_groups):
        by_hand_model = by_hand(make_optimizer, data)
        same_models(train(make_optimizer, data), by_hand_model)
        same_models(train(make_optimizer, data, named_parameters=None), by_hand_model)
        same_models(train(make_optimizer, data, groups=2), by_hand_model)
        same_models(train(make_optimizer, data, passes=2), by_hand(make_optimizer, data, 2))
    half = train(sgd, data, compression=hvd.Compression.fp16)
    same_models(half, by_hand(sgd, data), 5e-3)


def gap_of(model, expected):
    """How far apart they ended, relative to how far they went."""
    start, one, other = (torch.cat([p.detach().flatten() for p in m.parameters()])
                         for m in (make_model(), model, expected))
    assert (other - start).norm() > 1e-2
    return ((one - other).norm() / (other - start).norm()).item()


def check_the_proposals_call():
    """As it was written in the proposal, with five passes a step and each compression."""
    def momentum(model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    data = batches(hvd.size()).repeat(3, 1, 1, 1, 1, 1)[:10]
    expected = by_hand(momentum, data, 5)
    for compression, most in ((hvd.Compression.none, 1e-6), (hvd.Compression.fp16, 5e-4),
                              (hvd.Compression.bf16, 4e-3)):
        model = make_model()
        optimizer = momentum(model)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                             compression=compression, backward_passes_per_step=5,
                                             op=hvd.Adasum)
        for i, batch in enumerate(data):
            loss_of(model, batch[hvd.rank()]).backward()
            if i % 5 == 4:
                optimizer.step()
                optimizer.zero_grad()
        gap = gap_of(model, expected)
        narrow = compression is not hvd.Compression.none and hvd.size() > 1
        assert gap <= most and (gap > 1e-5) == narrow, (compression, gap)


def check_the_mean_of_several_passes():
    """Losses divided by their number, also where gradients are clipped."""
    data = batches(hvd.size())
    for clip in (None, 0.05):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.AdaSum,
                                             backward_passes_per_step=2)
        optimizer.defer_local_steps(clip is not None)
        for first in range(0, len(data), 2):
            optimizer.zero_grad()
            for batch in data[first:first + 2]:
                (loss_of(model, batch[hvd.rank()]) / 2).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        same_models(model, by_hand(sgd, data, 2, clip, mean=True))


def check_ranks_hold_the_same_bits():
    for parameter in train(adam, batches(hvd.size())).parameters():
        gathered = hvd.allgather(parameter.detach().reshape(1, -1))
        for row in gathered:
            same(row, gathered[0])


def check_equal_gradients_train_like_one_worker():
    data = batches(hvd.size())[:, :1].expand(-1, hvd.size(), -1, -1, -1, -1)
    model = train(sgd, data)
    alone = make_model()
    optimizer = sgd(alone)
    for step in data:
        optimizer.zero_grad()
        loss_of(alone, step[0]).backward()
        optimizer.step()
    same_models(model, alone)


def check_orthogonal_steps_are_added():
    weight = torch.nn.Parameter(torch.zeros(hvd.size()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), op=hvd.Adasum)
    weight[hvd.rank()].backward()
    optimizer.step()
    same(weight.detach(), torch.full((hvd.size(),), -0.5))


def check_unused_parameters_keep_still():
    used, sometimes = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    inner = torch.optim.SGD([used, sometimes], lr=0.25)
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Adasum)
    loss = used.sum() + (sometimes.sum() if hvd.rank() == 0 else 0)
    loss.backward()
    optimizer.step()
    close(used.detach(), torch.full((4,), 0.75))
    close(sometimes.detach(), torch.full((4,), 0.75))  # one rank's step, as no other had one


def check_state_schedulers_and_checks():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(adam(model), model.named_parameters(), op=hvd.Adasum)
    assert isinstance(optimizer, torch.optim.Adam)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    data = batches(hvd.size())
    for step in data[:2]:
        optimizer.zero_grad()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
        scheduler.step()
    state = copy.deepcopy(optimizer.state_dict())
    assert len(state["state"]) == 4 and optimizer.param_groups[0]["lr"] == 0.0025
    loaded_model = copy.deepcopy(model)
    loaded = hvd.DistributedOptimizer(adam(loaded_model), loaded_model.named_parameters(),
                                      op=hvd.Adasum)
    loaded.load_state_dict(state)
    for m, o in ((model, optimizer), (loaded_model, loaded)):
        o.zero_grad()
        loss_of(m, data[2][hvd.rank()]).backward()
        o.step()
    same_models(model, loaded_model, 0)
    loss_of(model, data[3][hvd.rank()]).backward()
    if hvd.size() > 1:
        with raises(AssertionError, words=["zero_grad"]):
            optimizer.zero_grad()
        with raises(AssertionError, words=["backward_passes_per_step"]):
            loss_of(model, data[3][hvd.rank()]).backward()
    optimizer.step()


def check_clipping():
    """Gradients that are clipped between backward() and step() count as they are then."""
    data = batches(hvd.size())
    for announced in (True, False):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
        if announced:
            optimizer.defer_local_steps()
        for step in data:
            optimizer.zero_grad()
            loss_of(model, step[hvd.rank()]).backward()
            if not announced:
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with torch.enable_grad() if announced else optimizer.skip_synchronize():
                optimizer.step()
        same_models(model, by_hand(sgd, data, clip=0.05))


def check_clipping_that_nobody_announced():
    """As with any optimizer: from the first step on it is noticed there; later it is noticed once
    it is too late for that step, which says so."""
    for first in (0, 1):
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
        moves, told = [], []
        for step in range(4):
            before = model.weight.item()
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()  # a gradient of 1, on all ranks
            if step >= first:
                model.weight.grad.mul_(0.125)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            moves.append(before - model.weight.item())
            told.append(any("defer_local_steps" in str(w.message) for w in caught))
        late = first == 1 and hvd.size() > 1
        want = [1.0 if first else 0.125, 1.0 if late else 0.125, 0.125, 0.125]
        close(torch.tensor(moves), torch.tensor(want))
        assert told == [False, late, False, False], told


def check_gradients_that_are_as_backward_left_them():
    """Optimizers that write gradients themselves, and gradients that share memory, are no alarm;
    and where one rank changes its own, all of them wait."""
    if hvd.size() == 1:
        return
    for passes, groups in ((1, 1), (2, None)):
        a, b = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(2, 3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([a, b], lr=0.1, momentum=0.9, nesterov=True, foreach=True),
            [("a", a), ("b", b)], op=hvd.Adasum, backward_passes_per_step=passes, groups=groups)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                optimizer.zero_grad(set_to_none=False)
                for _ in range(passes):
                    torch.cat([a, b]).square().sum().backward()
                optimizer.step()
        assert not optimizer._horon_defers
        for late in (True, False):
            optimizer.zero_grad()
            for _ in range(passes):
                (a.square().sum() + b.square().sum()).backward()
            if hvd.rank() == 1:
                a.grad = a.grad / 2
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            assert len(caught) == (late and hvd.rank() == 1), caught
            assert optimizer._horon_defers


class Uneven(hvd.Compression.none):
    """While it is `bad`, rank 0 sends small tensors in another type than the others."""

    bad = False

    @classmethod
    def compress(cls, tensor):
        half = cls.bad and hvd.rank() == 0 and tensor.dim() == 1
        return (tensor.half(), tensor.dtype) if half else (tensor, None)


def check_a_failed_step_leaves_nothing_behind():
    """Some deltas of it were combined already: they are in no later step."""
    if hvd.size() == 1:
        return
    data = batches(hvd.size())
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum,
                                         compression=Uneven)
    fresh = copy.deepcopy(optimizer.state_dict())
    for step in data[:2]:  # in step() and, from the second on, in backward()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
        optimizer.zero_grad()
    Uneven.bad = True
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, data[2][hvd.rank()]).backward()
    with raises(hvd.HoronInvalidArgument, words=["float16", "float32"]):
        optimizer.step()
    for start, parameter in zip(before, model.parameters()):
        same(parameter.detach(), start)  # also those whose delta was combined
    Uneven.bad = False
    model.load_state_dict(make_model().state_dict())
    optimizer.load_state_dict(fresh)
    for step in data:
        optimizer.zero_grad()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
    same_models(model, by_hand(sgd, data))


def check_process_sets():
    """A set's ranks train by the definition over them alone."""
    if hvd.size() < 3:
        return
    data = batches(hvd.size())
    members = [0, hvd.size() - 1]
    pair_set = hvd.add_process_set(members)
    if pair_set.included():
        model = train(sgd, data, process_set=pair_set)
        same_models(model, by_hand(sgd, data[:, members], ranks=2))
    hvd.remove_process_set(pair_set)


def check_a_closure_that_is_needed_is_refused():
    model = make_model()
    with raises(hvd.HoronInvalidArgument, words=["Adasum", "LBFGS.step()", "op=hvd.Average"]):
        hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), op=hvd.Adasum)
