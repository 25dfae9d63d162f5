"""Collectives of torch.cuda tensors against what one process computes from all data.

All ranks of a node may share one GPU: this is about results, not about speed.
"""

import copy
import os
import sys
from pathlib import Path

import torch
from adasum import adasum_of
from common import FLOATS, NUMBERS, all_values, close, raises, same, values
from optimizers import batches, loss_of, make_model, sgd

import horon.torch as hvd
from horon import _core, topology
from horon.errors import HoronInvalidArgument

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from one_gpu import be_a_host  # noqa: E402

TYPES = [*NUMBERS, torch.bool]
BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}
COUNTS = [0, 1, 17, 5000]


def device():
    return torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())


def check_device():
    be_a_host(hvd.rank())
    torch.cuda.set_device(device())
    if hvd.rank() == 0:
        print(torch.cuda.get_device_name(), torch.__version__, _core.gpu_parts(), flush=True)


def expected(op, stacked):
    wide = stacked.to(torch.float64)
    if op is hvd.Average:
        mean = wide.sum(0) / len(stacked)
        return (mean if stacked.dtype.is_floating_point else mean.trunc()).to(stacked.dtype)
    made = {hvd.Sum: wide.sum(0), hvd.Min: wide.amin(0), hvd.Max: wide.amax(0),
            hvd.Product: wide.prod(0)}
    return made[op].to(stacked.dtype)


def check_reductions():
    for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
        for dtype in TYPES if op is not hvd.Average else NUMBERS:
            for count in COUNTS:
                stacked = all_values(hvd.size(), (count,), dtype, 7)
                mine = stacked[hvd.rank()].to(device())
                result = hvd.allreduce(mine, op=op, name=f"{op}.{dtype}.{count}")
                assert result.is_cuda
                close(result.cpu().double(), expected(op, stacked).double(), BOUNDS.get(dtype, 0))
                if op in (hvd.Min, hvd.Max) and count:
                    same(result.cpu(), expected(op, stacked))


def check_moving():
    size, me = hvd.size(), hvd.rank()
    for dtype in TYPES:
        mine = values(me, (me + 1, 3), dtype).to(device())
        rows = torch.cat([values(r, (r + 1, 3), dtype) for r in range(size)])
        same(hvd.allgather(mine).cpu(), rows)
        for root in range(size):
            told = hvd.broadcast(values(me, (5,), dtype).to(device()), root)
            same(told.cpu(), values(root, (5,), dtype))
        # Rank r sends (r + to) % 3 rows to rank `to`.
        splits = [[(r + to) % 3 for to in range(size)] for r in range(size)]
        sent = [values(r, (sum(splits[r]), 2), dtype) for r in range(size)]
        received, counts = hvd.alltoall(sent[me].to(device()), splits[me])
        same(received.cpu(), torch.cat([sent[r].split(splits[r])[me] for r in range(size)]))
        assert counts.tolist() == [splits[r][me] for r in range(size)]


def check_parts_of_sums():
    size, me = hvd.size(), hvd.rank()
    rows = [2 + (r == 0) for r in range(size)]
    for op in (hvd.Sum, hvd.Average):
        for dtype in TYPES if op is hvd.Sum else NUMBERS:
            whole = all_values(size, (2 * size + 1, 3), dtype)
            part = hvd.reducescatter(whole[me].to(device()), op=op, name=f"part.{op}.{dtype}")
            assert part.is_cuda and part.dtype == dtype
            close(part.cpu().double(), expected(op, whole).split(rows)[me].double(),
                  BOUNDS.get(dtype, 0))


def check_ops_of_the_host():
    """Ops that have no way of their own on a GPU give what they give on the CPU."""
    torch.manual_seed(hvd.rank())
    for op in (hvd.Dissemination(), hvd.TopK(1.0)):
        for dtype in FLOATS:
            tensor = torch.randn(1000).to(dtype)
            name = f"host.{op}.{dtype}"
            close(hvd.allreduce(tensor.to(device()), op=op, name=name + ".gpu").cpu(),
                  hvd.allreduce(tensor, op=op, name=name + ".cpu"), BOUNDS[dtype])


def check_mixing():
    """Gossip and neighbor_allreduce, also between nodes, give what they give on the CPU."""
    size, me = hvd.size(), hvd.rank()

    def hear_one(mine, name):
        return hvd.neighbor_allreduce(mine, self_weight=0.5, src_weights={(me - 1) % size: 0.5},
                                      dst_weights={(me + 1) % size: 0.75}, name=name)

    def average(mine, name):
        return hvd.gossip_average(mine, rounds=3, name=name)

    def average_nodes(mine, name):
        return hvd.gossip_average(mine, rounds=2, hierarchical=True, name=name)

    calls = [average] + [hear_one] * (size > 1) + [average_nodes] * (1 < hvd.local_size() < size)
    for call in calls:
        for dtype in FLOATS:
            tensor, name = values(me, (5000,), dtype, 3), f"mixing.{call.__name__}.{dtype}"
            result = call(tensor.to(device()), name + ".gpu")
            assert result.is_cuda and result.dtype == dtype
            close(result.cpu(), call(tensor, name + ".cpu"), BOUNDS[dtype])


def check_windows():
    """Orders to a window on the GPU give what they give on the CPU."""
    me, graph = hvd.rank(), topology.Ring(hvd.size())
    if hvd.size() == 1:
        return
    values = {}
    for where in (torch.device("cpu"), device()):
        x = torch.arange(70_000.0, device=where) + me
        window = hvd.Window(x, f"on {where.type}", graph, zero_init=True)
        x.mul_(2)  # a kernel that the next call has to wait for
        assert window.accumulate(dict.fromkeys(window.destinations, 0.25), 0.5) == ()
        hvd.barrier()
        out = torch.empty_like(x)
        window.update(out=out)
        window.collect()
        hvd.barrier()  # before a neighbor puts again
        x.add_(1)  # and one that has to wait for the call
        hvd.synchronize(window.put_async())
        hvd.barrier()
        assert window.get() == ()
        hvd.barrier()  # before a neighbor publishes anew
        window.update()
        hvd.barrier()
        values[where.type] = x.cpu(), out.cpu()
        window.free()
    for on_gpu, on_cpu in zip(values["cuda"], values["cpu"]):
        same(on_gpu, on_cpu)


def check_rounds_between_peers():
    """Parameters on the GPU are mixed as the negotiated op mixes them."""
    for algorithm in ("dpsgd", "sgp", "osgp"):
        trained = []
        for negotiated in (True, False):
            model = make_model().to(device())
            for p in model.parameters():
                p.data.add_(0.1 * hvd.rank())
            op = hvd.Gossip(algorithm, negotiated=negotiated)
            optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=op)
            for batch in batches(hvd.size()):
                optimizer.zero_grad()
                loss_of(model, batch[hvd.rank()].to(device())).backward()
                optimizer.step()
            optimizer.finish_gossip()
            optimizer.close_gossip()
            trained.append(torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()]))
        close(*trained, 1e-5)


def check_adasum():
    """Against the tree in double, tensors alone, and with the same bits in one bucket."""
    bounds = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 1e-5, torch.float64: 1e-12}
    if os.environ.get("HORON_ADASUM_KERNEL") == "cublas":  # whose dots are summed in fp32
        bounds[torch.float32] = 1e-4
    for dtype, bound in bounds.items():
        handles, expected, inputs, alone = [], [], [], []
        for count in (1, 17, 5000, 100_003):
            torch.manual_seed(count)
            all_of = torch.randn(hvd.size(), count).to(dtype)
            all_of = all_of + 0.5 * all_of.mean(0)
            expected.append((adasum_of(list(all_of)), all_of.double().norm(dim=1).max()))
            mine = all_of[hvd.rank()].to(device())
            inputs.append(mine)
            handles.append(hvd.allreduce_async(mine, op=hvd.Adasum, name=f"adasum.{dtype}.{count}"))
        for handle, (tree, length) in zip(handles, expected):
            result = hvd.synchronize(handle)
            assert result.is_cuda and result.dtype == dtype
            gap = (result.cpu().double() - tree).norm() / max(tree.norm(), length)
            assert gap <= bound, (dtype, float(gap))
            rows = hvd.allgather(result.reshape(1, -1), name=f"same.{dtype}.{result.numel()}")
            assert all(torch.equal(row, rows[0]) for row in rows), dtype
            name = f"alone.{dtype}.{result.numel()}"
            alone.append(hvd.allreduce(inputs[len(alone)], op=hvd.Adasum, name=name))
        together = hvd.grouped_allreduce(inputs, op=hvd.Adasum, name=f"together.{dtype}")
        if os.environ.get("HORON_ADASUM_KERNEL") != "cublas":  # whose sums go by where vectors lie
            assert all(map(torch.equal, together, alone)), dtype


def check_adasum_by_halves():
    """Inside a node on the GPUs themselves, and nothing of it through the host."""
    before = _core.counters()
    tensors = [torch.full((count,), 2.0, device=device()) for count in (3, 70_001)]
    for result in hvd.grouped_allreduce(tensors, op=hvd.Adasum, name="halves"):
        close(result.cpu(), torch.full(result.shape, 2.0))
    after = _core.counters()
    ways = {way for way in after if way.startswith("gpu.buckets.") and after[way] > before[way]}
    by_host = hvd.size() > 1 and os.environ.get("HORON_NCCL") == "0"
    assert ("gpu.buckets.host" in ways) == by_host, ways


def check_adasum_of_an_overflow():
    """A NaN on every rank, in the tensor that overflows and in no other one of its bucket."""
    bad = torch.ones(5000, device=device())
    if hvd.rank() == hvd.size() - 1:
        bad[10] = float("inf")
    tensors = [torch.ones(5000, device=device()), bad, torch.ones(17, device=device())]
    results = hvd.grouped_allreduce(tensors, op=hvd.Adasum, name="overflow")
    for result in (results[0], results[2]):
        close(result.cpu(), torch.ones(result.shape))
    if hvd.size() > 1:
        assert torch.isnan(results[1]).all()


def check_adasum_optimizer_under_a_scaler():
    """Steps on the GPU are those of a twin on the CPU; where rank 0 overflows no bit changes."""
    torch.backends.cudnn.allow_tf32 = False  # as exact as the CPU's
    twins = []
    for place in (device(), torch.device("cpu")):
        model = make_model().to(place)
        names = [(f"{place.type}.{name}", p) for name, p in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(sgd(model), names, op=hvd.Adasum)
        twins.append((model, optimizer, torch.amp.GradScaler(place.type, init_scale=1024.0)))
    for i, batch in enumerate(batches(hvd.size())):
        for model, optimizer, scaler in twins:
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            loss = loss_of(model, batch[hvd.rank()].to(before[0].device))
            scaler.scale(loss * (float("inf") if i == 1 and hvd.rank() == 0 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            stands = all(torch.equal(p, old) for p, old in zip(model.parameters(), before))
            assert stands == (i == 1), i
    for ours, theirs in zip(twins[0][0].parameters(), twins[1][0].parameters()):
        close(ours.detach().cpu(), theirs.detach(), 1e-3)


def check_adasum_optimizer_of_parameters_here_and_there():
    """A model whose first part is on the CPU follows its twin that is all there."""
    torch.backends.cuda.matmul.allow_tf32 = False  # as exact as the CPU's
    torch.manual_seed(9)
    parts = [torch.nn.Linear(64, 256), torch.nn.Linear(256, 10)]
    start = torch.cat([p.detach().flatten() for part in parts for p in part.parameters()])
    trained = []
    for which, place in (("mixed", device()), ("twin", torch.device("cpu"))):
        first, last = copy.deepcopy(parts[0]), copy.deepcopy(parts[1]).to(place)
        model = torch.nn.ModuleList([first, last])
        optimizer = hvd.DistributedOptimizer(
            sgd(model), [(f"{which}.{name}", p) for name, p in model.named_parameters()],
            op=hvd.Adasum)
        generator = torch.Generator().manual_seed(hvd.rank())
        for _ in range(10):
            optimizer.zero_grad()
            hidden = first(torch.randn(32, 64, generator=generator)).relu()
            last(hidden.to(place)).square().mean().backward()
            optimizer.step()
        assert {p.device.type for p in model.parameters()} == {"cpu", place.type}
        trained.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    assert (trained[1] - start).norm() > 1e-1
    close(*trained, 1e-4)


def check_memory_of_a_tensor_that_another_stream_waits_for():
    """It is not used again before, though its own stream waits for nothing."""
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(50):
        with torch.cuda.stream(own):
            handle = hvd.allreduce_async(torch.full((1 << 20,), 1.0, device=device()), op=hvd.Sum,
                                         name="lent")
        with torch.cuda.stream(other):
            result = hvd.synchronize(handle)
        del handle
        with torch.cuda.stream(own):
            torch.full((1 << 20,), 1e6, device=device())
        with torch.cuda.stream(other):
            assert result.sum().item() == (1 << 20) * hvd.size(), step


def check_no_context_on_another_gpu():
    """A rank has memory on its own GPU alone, also on threads that nobody told which that is."""
    others = set(range(torch.cuda.device_count())) - {device().index}
    if not others and hvd.rank() == 0:
        print("skipped: there is one GPU only", flush=True)
    for other in others:
        assert not torch._C._cuda_hasPrimaryContext(other), other


def check_streams():
    """Kernels before and after a collective, on changing streams, and nothing waits on the host."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for step in range(200):
        with torch.cuda.stream(streams[step % 3]):
            tensor = torch.full((1 << 16,), float(hvd.rank()), device=device())
            for _ in range(20):
                tensor = tensor * 1.0 + 0.0
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"stream.{step % 5}")
            after = hvd.synchronize(handle) * 2.0
            del tensor
            total = after.sum().item()
        assert total == (1 << 16) * hvd.size() * (hvd.size() - 1), (step, total)


def check_training():
    """The averages of a model's gradients, fused, on GPU and CPU."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    twin = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    twin.load_state_dict(model.state_dict())
    model.to(device())
    optimizers = []
    for prefix, each in (("gpu", model), ("cpu", twin)):
        optimizers.append(hvd.DistributedOptimizer(
            torch.optim.SGD(each.parameters(), lr=0.1),
            named_parameters=[(f"{prefix}.{name}", p) for name, p in each.named_parameters()]))
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(10):
        batch = torch.randn(32, 64, generator=generator)
        for each, optimizer in zip((model, twin), optimizers):
            optimizer.zero_grad()
            place = next(each.parameters()).device
            each(batch.to(place)).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        close(ours.detach().cpu(), theirs.detach(), 1e-4)


def check_memory():
    """Beyond the fusion buffer nothing grows from step to step."""
    tensors = [torch.ones(1 << 18, device=device()) for _ in range(8)]

    def step():
        handles = [hvd.allreduce_async_(t, name=f"memory.{i}") for i, t in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        rows = hvd.allgather(tensors[0], name="memory.rows")
        torch.cuda.synchronize()
        return rows

    for _ in range(20):
        step()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(200):
        step()
    later, _ = torch.cuda.mem_get_info()
    alone = hvd.local_size() == 1 and not os.environ.get("HORON_GPU_AT_ONCE")
    if alone:  # else the others' memory is in it
        assert free - later < 64 << 20, (free, later)


def check_errors():
    if hvd.size() > 1:
        tensor = torch.ones(2) if hvd.rank() == 1 else torch.ones(2, device=device())
        with raises(HoronInvalidArgument, words=["CPU/GPU device selection", "GPU", "CPU"]):
            hvd.allreduce(tensor, name="here and there")


def check_parameters_that_nobody_waits_for():
    """adpsgd and asgp mix them in memory of the CPU, pinned."""
    for algorithm in ("adpsgd", "asgp"):
        weight = torch.nn.Parameter(torch.full((1000,), float(hvd.rank()), device=device()))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0),
                                             op=hvd.Gossip(algorithm))
        assert all(flat.is_pinned() for flat in optimizer._horon_gossip._shown)
        for _ in range(10):
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        optimizer.finish_gossip(average=True)
        close(weight.detach().cpu(), torch.full((1000,), (hvd.size() - 1) / 2), 1e-5)
        optimizer.close_gossip()
