"""torch.distributed over Horon: collectives, DDP, ZeRO, FSDP2, meshes, functional collectives."""

import math
import os
import time

import torch
import torch.distributed as dist
from common import all_values, close, raises, same

import horon.torch as hvd
import horon.torch.distributed  # noqa: F401  makes the backend known
from horon.torch.distributed.rendezvous import OwnStore


def group_of_all():
    if not dist.is_initialized():
        dist.init_process_group("horon", init_method="horon://")


def check_who_it_is():
    group_of_all()
    assert dist.get_backend() == "horon"
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())


def check_reductions():
    me, size = hvd.rank(), hvd.size()
    stacked = all_values(size, (5, 3), torch.float32)
    for op, want in ((dist.ReduceOp.SUM, stacked.sum(0)), (dist.ReduceOp.AVG, stacked.mean(0)),
                     (dist.ReduceOp.MIN, stacked.amin(0)), (dist.ReduceOp.MAX, stacked.amax(0)),
                     (dist.ReduceOp.PRODUCT, stacked.prod(0))):
        mine = stacked[me].clone()
        dist.all_reduce(mine, op)
        close(mine, want)
        mine = stacked[me].clone()
        dist.reduce(mine, size - 1, op)
        close(mine, want if me == size - 1 else stacked[me])
        long = torch.cat([stacked[me]] * size)
        part = torch.empty(5, 3)
        dist.reduce_scatter_tensor(part, long, op)
        close(part, want)
        dist.reduce_scatter(part, [stacked[me] * (r + 1) for r in range(size)], op)
        factor = (me + 1.0) ** size if op == dist.ReduceOp.PRODUCT else me + 1.0
        close(part, want * factor)
    for dtype in (torch.int64, torch.bfloat16, torch.float64):
        mine = torch.full((3,), me + 1).to(dtype)
        dist.all_reduce(mine)
        same(mine, torch.full((3,), size * (size + 1) // 2).to(dtype))
    with raises(hvd.HoronUnsupported, words=["BXOR"]):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BXOR)


def check_async_and_futures():
    me, size = hvd.rank(), hvd.size()
    tensors = [torch.full((4,), float(me + i)) for i in range(300)]  # more than slots for a name
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    chained = works[0].get_future().then(lambda future: future.value()[0] * 2)
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
    total = sum(range(size))
    for i, tensor in enumerate(tensors):
        same(tensor, torch.full((4,), float(total + size * i)))
    same(chained.wait(), tensors[0] * 2)
    strip = torch.ones(4, 4)
    dist.all_reduce(strip[:, 1])
    same(strip[:, 1], torch.full((4,), float(size)))
    same(strip[:, 0], torch.ones(4))


def check_moving():
    me, size = hvd.rank(), hvd.size()
    tensor = torch.full((2, 3), float(me))
    dist.broadcast(tensor, size - 1)
    same(tensor, torch.full((2, 3), float(size - 1)))
    outputs = [torch.empty(2) for _ in range(size)]
    dist.all_gather(outputs, torch.full((2,), float(me)))
    for r, output in enumerate(outputs):
        same(output, torch.full((2,), float(r)))
    whole = torch.empty(size * 2)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(me)))
    same(whole, torch.cat(outputs))
    root = size - 1
    dist.gather(torch.full((2,), float(me + 1)), outputs if me == root else None, dst=root)
    if me == root:
        same(outputs[0], torch.ones(2))
    mine = torch.empty(2)
    dist.scatter(mine, [torch.full((2,), r + 5.0) for r in range(size)] if me == 0 else None, src=0)
    same(mine, torch.full((2,), me + 5.0))
    got = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(got, [torch.full((2,), float(10 * me + to)) for to in range(size)])
    for r, output in enumerate(got):
        same(output, torch.full((2,), float(10 * r + me)))
    rows = torch.empty(size)
    dist.all_to_all_single(rows, torch.arange(float(size)) + 10 * me)
    same(rows, torch.arange(float(size)) * 10 + me)
    counts = [r + 1 for r in range(size)]
    rows = torch.empty(size * (me + 1))
    dist.all_to_all_single(rows, torch.ones(sum(counts)), [me + 1] * size, counts)
    same(rows, torch.ones(size * (me + 1)))
    dist.barrier()
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": me})
    assert [entry["rank"] for entry in everyone] == list(range(size))
    words = [f"from {me}"]
    dist.broadcast_object_list(words, src=0)
    assert words == ["from 0"]


def check_uneven_all_to_all_single():
    """The example of its docstring, of as many ranks as there are; then with nothing to send."""
    group_of_all()
    me, size = hvd.rank(), hvd.size()
    splits = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]]
    for first in (0, 1):
        splits = [[n * (r >= first) for n in row[:size]] for r, row in enumerate(splits[:size])]
        sent = [(torch.arange(sum(row)) + 10 * r).split(row) for r, row in enumerate(splits)]
        received = [row[me] for row in splits]
        output = torch.empty(sum(received), dtype=torch.int64)
        dist.all_to_all_single(output, torch.cat(sent[me]), received, splits[me])
        same(output, torch.cat([parts[me] for parts in sent]))


def check_uneven_lists():
    group_of_all()
    me, size = hvd.rank(), hvd.size()
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, torch.full((me + 1, 2), float(me)))
    for r, output in enumerate(outputs):
        same(output, torch.full((r + 1, 2), float(r)))
    sizes = [1 + 2 * r for r in range(size)]
    for op, want in ((dist.ReduceOp.SUM, sum(range(1, size + 1))), (dist.ReduceOp.MAX, size)):
        inputs = [torch.arange(1.0, n + 1) * (me + 1) for n in sizes]
        output = torch.empty(sizes[me])
        dist.reduce_scatter(output, inputs, op)
        same(output, torch.arange(1.0, sizes[me] + 1) * want)


# What every rank but 1 calls, and what that calls; what each hears.
def differing(size):
    def lists(n):
        return [torch.ones(n) for _ in range(size)]

    return {
        "all_reduce": (lambda n: dist.all_reduce(torch.ones(2, n)),
                       ["shapes", "[2, 3]", "[2, 4]"]),
        "reduce": (lambda n: dist.reduce(torch.ones(n), 0), ["shapes", "[3]", "[4]"]),
        "broadcast": (lambda n: dist.broadcast(torch.ones(n), 0), ["shapes", "[3]", "[4]"]),
        "all_gather": (lambda n: dist.all_gather(lists(n), torch.ones(n)),
                       ["shapes", "[*, 3]", "[*, 4]"]),
        "all_gather_into_tensor": (
            lambda n: dist.all_gather_into_tensor(torch.empty(size * n), torch.ones(n)),
            ["shapes", "[*, 3]", "[*, 4]"]),
        "reduce_scatter": (lambda n: dist.reduce_scatter(torch.empty(n), lists(n)),
                           ["shapes", "[*, 3]", "[*, 4]"]),
        "reduce_scatter_tensor": (
            lambda n: dist.reduce_scatter_tensor(torch.empty(n), torch.ones(size * n)),
            ["shapes", "[*, 3]", "[*, 4]"]),
        "reduce_scatter_tensor of Max": (
            lambda n: dist.reduce_scatter_tensor(torch.empty(n), torch.ones(size * n),
                                                 dist.ReduceOp.MAX),
            ["shapes", f"[{size * 3}]", f"[{size * 4}]"]),
        "types": (lambda n: dist.all_reduce(
            torch.ones(3, dtype=torch.float32 if n == 3 else torch.float64)),
            ["data types", "float32", "float64"]),
        "reductions": (lambda n: dist.all_reduce(
            torch.ones(3), dist.ReduceOp.SUM if n == 3 else dist.ReduceOp.MAX), ["sum", "max"]),
        "roots": (lambda n: dist.broadcast(torch.ones(3), n - 3), ["root"]),
        # Ranks may send each other as much as they like, if the other takes it.
        "all_to_all_single": (
            lambda n: dist.all_to_all_single(torch.empty(size * n), torch.ones(size * n)),
            ["room for", "have sent"] if size == 2 else []),
        "all_to_all": (lambda n: dist.all_to_all(lists(n), lists(n)), ["room for [", "3, ", "4"]),
    }


def check_what_differs_is_heard_at_once():
    """By all ranks, in the words of Horon's own calls; then the same call goes through."""
    group_of_all()
    me, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    for what, (call, words) in differing(size).items():
        call(3)
        best = math.inf
        for _ in range(3):
            hvd.barrier()
            begun = time.monotonic()
            with raises(hvd.HoronMismatch, words=words, of=what):
                call(4 if me == 1 else 3)
            best = min(best, time.monotonic() - begun)
        best = float(hvd.allreduce(torch.tensor(best), op=hvd.Max))
        assert best < 0.1, (what, best)
        call(3)


def check_calls_of_many_shapes_are_remembered():
    """Names come back with the same tensor: a step of six calls asks nobody anew."""
    group_of_all()
    tensors = [torch.ones(n) for n in range(1, 7)]
    counts = []
    for _ in range(3):
        for _ in range(40):
            for tensor in tensors:
                dist.all_reduce(tensor)
        counts.append(sum(count for name, count in hvd.counters().items()
                          if name.startswith("negotiation.") and name.endswith(".requests")))
    assert counts[2] == counts[1] and counts[1] > 0, counts


def check_groups_and_meshes():
    me, size = hvd.rank(), hvd.size()
    group = dist.new_group([size - 1])
    if me == size - 1:
        alone = torch.ones(2)
        dist.all_reduce(alone, group=group)
        same(alone, torch.ones(2))
    if size != 4:
        return
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3]), dist.new_group([0, 2])]
    for which, group in enumerate(halves):
        if me % 2 != which % 2:
            continue
        mine = torch.full((3,), float(me))
        dist.all_reduce(mine, group=group)
        same(mine, torch.full((3,), 2.0 if me % 2 == 0 else 4.0))
        dist.broadcast(mine, src=which % 2 + 2, group=group)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("nodes", "ranks"))
    mine = torch.full((1,), float(me))
    dist.all_reduce(mine, group=mesh.get_group("ranks"))
    same(mine, torch.full((1,), 1.0 if me < 2 else 5.0))


def check_functional_collectives():
    import torch.distributed._functional_collectives as functional

    size = hvd.size()
    group = dist.group.WORLD
    got = functional.all_reduce(torch.ones(3), "sum", group)
    same(got + 0, torch.full((3,), float(size)))
    got = functional.all_gather_tensor(torch.full((2,), float(hvd.rank())), 0, group)
    same(got + 0, torch.arange(size).repeat_interleave(2).float())
    got = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group)
    same(got + 0, torch.full((2,), float(size)))


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batches():
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(2 * hvd.size(), 4, generator=generator) for _ in range(4)]


def train(model, optimizer, part=None):
    for batch in batches():
        rows = batch if part is None else batch.chunk(hvd.size())[part]
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()


def serial():
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return list(model.parameters())


def check_ddp():
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = torch.nn.parallel.DistributedDataParallel(network(), **options)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), hvd.rank())
        for got, want in zip(model.parameters(), serial()):
            close(got.detach(), want.detach())


def check_ddp_without_sync():
    """Gradients of the first passes stay here; the last pass reduces their sum."""
    model = torch.nn.parallel.DistributedDataParallel(network())
    alone = network()
    for batch in batches():
        with model.no_sync():
            model(batch.chunk(hvd.size())[hvd.rank()]).square().mean().backward()
        alone(batch).square().mean().backward()
    model(torch.zeros(2, 4)).sum().backward()
    alone(torch.zeros(2, 4)).sum().backward()
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.grad, want.grad)


def check_ddp_with_uneven_data():
    """Rank r has 2 + r batches. DDP joins in for those that have no more, and divides by all."""
    from torch.distributed.algorithms.join import Join

    size, steps = hvd.size(), range(2 + hvd.size())
    rows = torch.randn(len(steps), size, 3, 4, generator=torch.Generator().manual_seed(5))
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(2 + hvd.rank()):
            optimizer.zero_grad()
            model(rows[step, hvd.rank()]).square().mean().backward()
            optimizer.step()
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(2 + size - 1):
        optimizer.zero_grad()
        for rank in range(max(0, step - 1), size):
            (alone(rows[step, rank]).square().mean() / size).backward()
        optimizer.step()
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.detach(), want.detach())


def check_zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    train(model, optimizer, hvd.rank())
    for got, want in zip(model.parameters(), serial()):
        close(got.detach(), want.detach())


def check_fully_shard():
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = dist.init_device_mesh("cpu", (hvd.size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), hvd.rank())
    for got, want in zip(model.parameters(), serial()):
        close(got.full_tensor().detach(), want.detach())


def check_wrong_size_is_said():
    from horon.torch.distributed.group import make_group

    class Options:
        group_rank, group_size, group_id, global_ranks_in_group = 0, 99, "9", []

    with raises(hvd.HoronInvalidArgument, words=["horonrun", "horon://"]):
        make_group(Options)


def check_the_programs_own_sets():
    """Of the same ranks as a group of torch's, which stays when they are removed."""
    ranks = list(range(max(1, hvd.size() - 1)))
    group = dist.new_group(ranks)
    own = hvd.add_process_set(ranks) if len(ranks) < hvd.size() else None
    if own is not None:
        if hvd.rank() in ranks:
            same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=own),
                 torch.full((2,), float(len(ranks))))
        assert hvd.remove_process_set(own)
    if hvd.rank() in ranks:
        mine = torch.ones(2)
        dist.all_reduce(mine, group=group)
        same(mine, torch.full((2,), float(len(ranks))))


def check_messages_around_a_ring():
    """Each sends first, so nobody may wait for whom it sends to; pairs meet for the first time."""
    me, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    after, before = (me + 1) % size, (me - 1) % size
    for step in range(70):  # more than may be in flight under one name
        sent, got = torch.full((2, 3), float(100 * step + me)), torch.empty(2, 3)
        works = [dist.isend(sent, after), dist.irecv(got, before)]
        for work in works:
            work.wait()
        same(got, torch.full((2, 3), float(100 * step + before)))
    got = torch.zeros(3, 4)
    batch = [dist.P2POp(dist.isend, torch.arange(3) + me, after, tag=5),
             dist.P2POp(dist.irecv, other := torch.empty(3, dtype=torch.int64), before, tag=5),
             dist.P2POp(dist.isend, torch.full((3,), float(me)), after, tag=6),
             dist.P2POp(dist.irecv, got[:, 1], before, tag=6)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(other, torch.arange(3) + before)
    same(got[:, 1], torch.full((3,), float(before)))
    same(got[:, 0], torch.zeros(3))


def check_messages_by_tag():
    """In another order than they were sent, and of objects; a collective goes on meanwhile."""
    me, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    first, last = 0, size - 1
    total = torch.ones(3)
    if me == first:
        works = [dist.isend(torch.full((2,), float(tag)), last, tag=tag) for tag in (1, 2, 1)]
        dist.all_reduce(total)
        for work in works:
            work.wait()
        dist.send_object_list([{"from": me}, "words"], last)
    else:
        dist.all_reduce(total)
    if me == last:
        got = [torch.empty(2) for _ in range(3)]
        for tensor, tag in zip(got, (2, 1, 1)):
            assert dist.recv(tensor, first, tag=tag) == first
        assert [float(tensor[0]) for tensor in got] == [2.0, 1.0, 1.0]
        objects = [None, None]
        dist.recv_object_list(objects, first)
        assert objects == [{"from": first}, "words"]
    same(total, torch.full((3,), float(size)))


def check_messages_in_a_group():
    if hvd.size() != 4:
        return
    group = dist.new_group([1, 3])
    mine = torch.tensor([float(hvd.rank())])
    if hvd.rank() == 3:
        dist.send(mine, 1, group=group)
    elif hvd.rank() == 1:
        dist.recv(mine, 3, group=group)
        same(mine, torch.tensor([3.0]))


def check_messages_that_do_not_fit():
    """Both hear it, and the next one arrives."""
    if hvd.rank() in (0, 1) and hvd.size() > 1:
        tensor = torch.ones(3 + hvd.rank())
        with raises(hvd.HoronMismatch, words=["3", "4"]):
            dist.send(tensor, 1) if hvd.rank() == 0 else dist.recv(tensor, 0)
        tensor = torch.full((3,), 5.0 - hvd.rank())
        dist.send(tensor, 1) if hvd.rank() == 0 else dist.recv(tensor, 0)
        same(tensor, torch.full((3,), 5.0))
    dist.barrier()


def check_what_it_has_not():
    if hvd.size() > 1:
        with raises(hvd.HoronUnsupported, words=["sender"]):
            dist.recv(torch.ones(1))


def without(*names):
    return {name: os.environ.pop(name) for name in names if name in os.environ}


def check_no_address_is_needed():
    """Nor an init_method; torch's own way where there is an address, or ranks of another job."""
    dist.destroy_process_group()
    kept = without("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    for given in ({}, {"init_method": "env://"}, {"rank": hvd.rank(), "world_size": hvd.size()}):
        dist.init_process_group("horon", **given)
        assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
        mine = torch.ones(2)
        dist.all_reduce(mine)
        same(mine, torch.full((2,), float(hvd.size())))
        dist.destroy_process_group()
    with raises(ValueError, words=["MASTER_ADDR"]):
        dist.init_process_group("horon", rank=hvd.rank(), world_size=hvd.size() + 1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    with raises(ValueError, words=["RANK"]):
        dist.init_process_group("horon")
    del os.environ["MASTER_ADDR"]
    os.environ.update(kept)


def check_what_needs_a_store_is_told():
    if hvd.size() == 1:
        return
    with raises(hvd.HoronUnsupported, words=["MASTER_ADDR", "init_method"]):
        OwnStore().get("key")
    with raises(RuntimeError, words=["MASTER_ADDR", "init_method"]):
        dist.init_process_group("gloo", init_method="horon://")


def check_end():
    if dist.is_initialized():
        dist.destroy_process_group()
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
