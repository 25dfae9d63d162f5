"""Collectives among some of the ranks."""

import threading

import torch
from common import close, raises, same

import horon.torch as hvd


def check_global_set():
    everyone = hvd.global_process_set
    assert everyone.size() == hvd.size() and everyone.rank() == hvd.rank() and everyone.included()
    assert everyone.ranks == list(range(hvd.size()))
    assert hvd.remove_process_set(everyone) is False
    assert str(everyone) == f"ProcessSet(process_set_id=0, ranks={everyone.ranks}, mpi_comm=None)"


def check_collectives_in_a_set():
    if hvd.size() < 2:
        return
    members = [r for r in range(hvd.size()) if r != 1] if hvd.size() > 2 else [1]
    some = hvd.add_process_set(hvd.ProcessSet(members[::-1]))
    assert some.ranks == members and some.size() == len(members)
    ids = hvd.allgather(torch.tensor([some.process_set_id]))
    assert (ids == some.process_set_id).all() and some.process_set_id > 0
    assert some.included() == (hvd.rank() in members)
    if some.included():
        in_set(some, members)
    hvd.barrier()
    assert hvd.remove_process_set(some) is True
    assert some.process_set_id is None
    with raises(ValueError, words=["not registered"]):
        hvd.allreduce(torch.ones(1), process_set=some)


def in_set(some, members):
    me, total = members.index(hvd.rank()), float(sum(members))
    mine = torch.full((2,), float(hvd.rank()))
    assert some.rank() == me
    same(hvd.allreduce(mine, op=hvd.Sum, process_set=some), torch.full((2,), total))
    same(hvd.allgather(mine[:1], process_set=some), torch.tensor([float(r) for r in members]))
    root = members[-1]
    same(hvd.broadcast(mine, root, process_set=some), torch.full((2,), float(root)))
    rows = torch.full((len(members),), float(me))
    same(hvd.alltoall(rows, process_set=some), torch.arange(float(len(members))))
    got = hvd.reducescatter(torch.ones(len(members)), op=hvd.Sum, process_set=some)
    same(got, torch.tensor([float(len(members))]))
    assert hvd.broadcast_object(hvd.rank(), root, process_set=some) == root
    assert hvd.allgather_object(hvd.rank(), process_set=some) == members
    grouped = hvd.grouped_allreduce([mine, mine], op=hvd.Sum, process_set=some)
    same(grouped[1], torch.full((2,), total))
    hvd.barrier(some)
    outsider = next((r for r in range(hvd.size()) if r not in members), None)
    if outsider is not None:
        with raises(hvd.HoronError, words=["root"]):
            hvd.broadcast(mine, outsider, process_set=some)


def check_outsiders_are_refused():
    if hvd.size() < 2:
        return
    first = hvd.add_process_set([0])
    if hvd.rank() == 0:
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=first), torch.ones(2))
    else:
        with raises(hvd.HoronError, ValueError):
            hvd.allreduce(torch.ones(2), process_set=first)
    hvd.remove_process_set(first)


def check_gradients_in_a_set():
    if hvd.size() < 3:
        return
    members = [0, 2]
    some = hvd.add_process_set(members)
    if some.included():
        tensor = torch.ones(2, requires_grad=True)
        hvd.broadcast(tensor, 2, process_set=some).backward(torch.full((2,), float(hvd.rank())))
        close(tensor.grad, torch.full((2,), 1.0 if hvd.rank() == 2 else 0.0))
    hvd.remove_process_set(some)


def check_optimizer_on_a_set():
    if hvd.size() < 3:
        return
    some = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=some
    )
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.step()
    gradient = 0.5 if hvd.rank() < 2 else float(hvd.rank())
    close(model.weight.detach(), torch.full((1, 2), 1.0 - gradient))
    hvd.remove_process_set(some)


def check_same_start_on_a_set():
    """Outsiders keep what they have."""
    if hvd.size() < 3:
        return
    some = hvd.add_process_set([1, 2])
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(hvd.rank() + 1), momentum=0.9)
    model(torch.ones(1, 2) * hvd.rank()).sum().backward()
    optimizer.step()
    expected = 2 if some.included() else hvd.rank()
    before = model.weight.detach().clone()
    weights = hvd.allgather(before)
    if some.included():
        hvd.broadcast_parameters(model.state_dict(), 2, process_set=some)
        hvd.broadcast_optimizer_state(optimizer, 2, process_set=some)
    close(model.weight.detach(), weights[expected:expected + 1])
    assert optimizer.param_groups[0]["lr"] == expected + 1.0
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    close(momentum, torch.full((1, 2), float(expected)))
    hvd.remove_process_set(some)


def check_a_barrier_holds_its_set_until_the_last_has_come():
    """Rank 0 comes last. The others of the set wait in a thread, and meanwhile tell by allreduces
    that they do; barriers of the other set are not held."""
    if hvd.size() < 2:
        return
    sets = [hvd.global_process_set]
    others = None
    if hvd.size() > 2:
        sets.append(hvd.add_process_set([0, 1]))
        others = hvd.add_process_set(list(range(2, hvd.size())))
    for held in sets:
        early = held.included() and hvd.rank() > 0
        passed = threading.Event()
        waiting = threading.Thread(target=lambda: (hvd.barrier(held), passed.set()), daemon=True)
        if early:
            waiting.start()
        for _ in range(20):
            if others is not None and others.included():
                hvd.barrier(others)
            assert hvd.allreduce(torch.tensor([int(passed.is_set())]), op=hvd.Max).item() == 0
        if early:
            waiting.join(60)
            assert passed.is_set()
        elif held.included():
            hvd.barrier(held)
    for process_set in filter(None, (*sets[1:], others)):
        hvd.remove_process_set(process_set)


def check_disjoint_sets_at_the_same_time():
    if hvd.size() < 4:
        return
    sets = [hvd.add_process_set([first, first + 1]) for first in range(0, hvd.size() - 1, 2)]
    mine = next((pair for pair in sets if hvd.rank() in pair.ranks), None)
    for count in range(1, 30) if mine else ():
        got = hvd.allreduce(torch.full((count,), float(hvd.rank())), op=hvd.Sum, process_set=mine)
        same(got, torch.full((count,), float(sum(mine.ranks))))
    for process_set in sets:
        hvd.remove_process_set(process_set)


def use_and_remove(members):
    """A set is removed while its tensors travel, and one waits for a rank that never submits it."""
    some = hvd.add_process_set(list(members))
    travelling, never = {}, None
    if some.included():
        mine = torch.full((20_000,), float(hvd.rank()))
        travelling["sum"] = hvd.allreduce_async(mine, op=hvd.Sum, name="sum", process_set=some)
        rows = torch.full((hvd.rank() + 1,), float(hvd.rank()))
        travelling["rows"] = hvd.allgather_async(rows, name="rows", process_set=some)
        if hvd.rank() == members[0]:
            never = hvd.allreduce_async(torch.ones(2), name="never", process_set=some)
    assert hvd.remove_process_set(some) is True
    wanted = {
        "sum": torch.full((20_000,), float(sum(members))),
        "rows": torch.cat([torch.full((rank + 1,), float(rank)) for rank in members]),
    }
    for name, handle in travelling.items():
        try:
            same(hvd.synchronize(handle), wanted[name])
        except hvd.HoronMismatch as error:  # the removal came first
            assert "was removed while it was pending" in str(error), error
    if never is not None:
        with raises(hvd.HoronMismatch, words=["'allreduce.never'", "was removed"]):
            hvd.synchronize(never)


def check_sets_removed_under_work_in_flight():
    if hvd.size() < 3:
        return
    last = hvd.size() - 1
    for _ in range(4):
        for members in ((0, 1), (1, last), (0, last)):
            use_and_remove(members)
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def check_wrong_sets():
    for wrong in (["a"], [1.5], [True]):
        with raises(ValueError):
            hvd.ProcessSet(wrong)
    with raises(ValueError, words=["exists"]):
        hvd.add_process_set(list(range(hvd.size())))
    with raises(hvd.HoronError, ValueError):
        hvd.add_process_set([hvd.size()])
    if hvd.size() > 1:
        with raises(hvd.HoronError, words=["0", "1"]):
            hvd.add_process_set([0] if hvd.rank() == 0 else [1])
        some = hvd.add_process_set([0])
        with raises(ValueError, words=["exists"]):
            hvd.add_process_set([0])
        hvd.remove_process_set(some)
        assert hvd.remove_process_set(some) is False
    same(hvd.allreduce(torch.ones(1)), torch.ones(1))
