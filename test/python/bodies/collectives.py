"""Every collective with every element type against what one process computes from all data."""

import ctypes
import os
from pathlib import Path

import torch
from common import NUMBERS, SHAPES, all_values, close, raises, same, values

import horon.torch as hvd

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def reference(op, stacked):
    dtype = stacked.dtype
    wide = stacked.to(torch.float64)
    if op is hvd.Sum:
        return wide.sum(0).to(dtype)
    if op is hvd.Average:
        mean = wide.sum(0) / len(stacked)
        return (mean if dtype.is_floating_point else mean.trunc()).to(dtype)
    if op is hvd.Min:
        return wide.amin(0).to(dtype)
    if op is hvd.Max:
        return wide.amax(0).to(dtype)
    return wide.prod(0).to(dtype)


def check_allreduce():
    me, size = hvd.rank(), hvd.size()
    for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
        for dtype in NUMBERS:
            for shape in SHAPES:
                seed = 7 if op is hvd.Product else 3
                stacked = all_values(size, shape, dtype, seed)
                got = hvd.allreduce(stacked[me], op=op, name=f"{op.spec}.{dtype}.{shape}")
                # Third parts round differently in a sum times 1/3 and a sum divided by 3.
                loose = op is hvd.Average and dtype.is_floating_point
                compare = (lambda a, b: close(a, b, 1e-2)) if loose else same
                compare(got, reference(op, stacked))


def check_average_truncates_toward_zero():
    size = hvd.size()
    for start in (-7, 7):
        tensor = torch.tensor([start + (hvd.rank() == 0)], dtype=torch.int32)
        mean = int((start * size + 1) / size)
        same(hvd.allreduce(tensor), torch.tensor([mean], dtype=torch.int32))


def check_bool():
    me, size = hvd.rank(), hvd.size()
    stacked = all_values(size, (33,), torch.bool)
    same(hvd.allreduce(stacked[me], op=hvd.Max), stacked.any(0))
    same(hvd.allreduce(stacked[me], op=hvd.Min), stacked.all(0))
    same(hvd.allreduce(stacked[me], op=hvd.Sum), stacked.any(0))


def check_scale_factors():
    me, size = hvd.rank(), hvd.size()
    for dtype in (torch.float16, torch.float32, torch.float64):
        stacked = all_values(size, (9,), dtype)
        got = hvd.allreduce(stacked[me], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        same(got, 2 * reference(hvd.Sum, stacked))
        got = hvd.allreduce(stacked[me], op=hvd.Average, prescale_factor=2.0)
        close(got, 2 * reference(hvd.Average, stacked), 1e-2)


def check_large_and_odd_counts():
    me, size = hvd.rank(), hvd.size()
    for count in (1, 1023, 65537, 1_000_003):
        stacked = all_values(size, (count,), torch.float32)
        same(hvd.allreduce(stacked[me], op=hvd.Sum, name=f"large.{count}"), stacked.sum(0))


def check_in_place_and_async():
    me, size = hvd.rank(), hvd.size()
    stacked = all_values(size, (50,), torch.float32)
    tensor = stacked[me].clone()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, stacked.sum(0))
    tensor = stacked[me].clone()
    handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="async")
    same(hvd.synchronize(handle), stacked.sum(0))
    same(tensor, stacked[me])
    assert hvd.poll(handle)
    tensors = [stacked[me].clone() for _ in range(100)]
    handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"many.{i}") for i, t in enumerate(tensors)]
    for handle, tensor in zip(handles, tensors):
        assert hvd.synchronize(handle) is tensor
        same(tensor, stacked.sum(0))


def check_order_does_not_matter():
    me, size = hvd.rank(), hvd.size()
    order = list(range(20))[:: 1 if me % 2 else -1]
    handles = {
        i: hvd.allreduce_async(torch.full((i + 1,), float(me)), op=hvd.Sum, name=f"order.{i}")
        for i in order
    }
    for i in order[::-1]:
        same(hvd.synchronize(handles[i]), torch.full((i + 1,), float(sum(range(size)))))


def check_dropped_handles_keep_their_tensors():
    for i in range(20):
        hvd.allreduce_async_(torch.ones(1000), name=f"dropped.{i}")
    same(hvd.allreduce(torch.ones(3), op=hvd.Min), torch.ones(3))


def check_buckets_of_several_kinds_in_flight():
    """Fused, alone and of other ops at once: transports whose collectives match by order must not
    mix them."""
    size = hvd.size()
    for step in range(30):
        handles = [hvd.allreduce_async(torch.full((1000,), float(i)), name=f"kinds.{i}.{step}",
                                       op=hvd.Sum)
                   for i in range(20)]
        mine = float(hvd.rank())
        low = hvd.allreduce_async(torch.full((3,), mine), name=f"low.{step}", op=hvd.Min)
        same(hvd.allreduce(torch.full((7,), mine), op=hvd.Max), torch.full((7,), size - 1.0))
        for i, handle in enumerate(handles):
            same(hvd.synchronize(handle), torch.full((1000,), float(i * size)))
        same(hvd.synchronize(low), torch.zeros(3))


def check_layouts():
    me, size = hvd.rank(), hvd.size()
    total = float(sum(r + 1 for r in range(size)))
    base = torch.arange(120.0).view(2, 3, 4, 5)
    cubic = torch.arange(54.0).view(2, 3, 3, 3)
    for tensor in (
        base.to(memory_format=torch.channels_last),
        cubic.to(memory_format=torch.channels_last),
        base.permute(3, 1, 0, 2),
        base[:, 1:, ::2],
    ):
        mine = (tensor * (me + 1)).clone(memory_format=torch.preserve_format)
        mine = mine if mine.stride() == tensor.stride() else torch.empty_like(tensor).copy_(mine)
        same(hvd.allreduce(mine, op=hvd.Sum), tensor * total)
        same(hvd.broadcast(mine, size - 1), tensor * size)
        same(hvd.allgather(mine), torch.cat([tensor * (r + 1) for r in range(size)]))
        strides = mine.stride()
        same(hvd.allreduce_(mine, op=hvd.Sum), tensor * total)
        assert mine.stride() == strides
    strip = torch.zeros(6, 4)
    hvd.broadcast_(strip[:, 1].fill_(me), size - 1)
    same(strip[:, 1], torch.full((6,), float(size - 1)))
    same(strip[:, 0], torch.zeros(6))


def not_contiguous(dense):
    """Its values in three other ways to lie."""
    wide = torch.zeros(2 * dense.shape[0], *dense.shape[1:], dtype=dense.dtype)
    wide[::2] = dense
    yield dense.t().contiguous().t()
    yield wide[::2]
    yield torch.cat([torch.zeros_like(dense), dense], 1)[:, dense.shape[1]:]


def check_negative_views():
    """Tensors whose memory has the other sign: the imaginary part of a conjugate."""
    size = hvd.size()

    def negative():
        return torch.complex(torch.ones(4), torch.full((4,), 2.0)).conj().imag

    assert negative().is_neg()
    want = torch.full((4,), -2.0)
    for _ in range(3):
        same(hvd.allreduce(negative(), op=hvd.Sum), size * want)
        same(hvd.broadcast(negative(), 0), want)
        same(hvd.allgather(negative()), want.repeat(size))
        tensor = negative()
        hvd.allreduce_(tensor, op=hvd.Sum, name="negative")
        same(tensor, size * want)
        tensor = negative()
        hvd.broadcast_(tensor, 0, name="negative")
        same(tensor, want)


def check_layouts_of_rows():
    """What is cut along its rows, by alltoall and reducescatter: uneven, in groups, backward."""
    me, size = hvd.rank(), hvd.size()
    sent = all_values(size, (3 * size + 1, 4), torch.float32)
    rows = [3 + (to == 0) for to in range(size)]  # the first rank gets one more, of every rank
    exchanged = torch.cat([part.split(rows)[me] for part in sent])
    summed = sent.sum(0).split(rows)[me]
    for mine in not_contiguous(sent[me]):
        assert not mine.is_contiguous()
        before = mine.clone()
        got, received = hvd.alltoall(mine, splits=rows)
        same(got, exchanged)
        same(received, torch.full((size,), rows[me], dtype=torch.int32))
        same(hvd.synchronize(hvd.alltoall_async(mine, splits=rows))[0], exchanged)
        same(hvd.alltoall(mine[:size]), sent[:, me])
        same(hvd.reducescatter(mine, op=hvd.Sum), summed)
        same(hvd.synchronize(hvd.reducescatter_async(mine, op=hvd.Sum)), summed)
        for part in hvd.grouped_reducescatter([mine, mine], op=hvd.Sum):
            same(part, summed)
        leaf = mine.detach().requires_grad_()
        hvd.reducescatter(leaf, op=hvd.Sum).mul(2).sum().backward()
        same(leaf.grad, torch.full_like(before, 2.0 * size))
        same(mine, before)


def check_grouped_allreduce():
    me, size = hvd.rank(), hvd.size()
    for op in (hvd.Sum, hvd.Max):
        stacks = [all_values(size, (i + 1, 3), t, i) for i, t in enumerate(NUMBERS)]
        expected = [reference(op, stacked) for stacked in stacks]
        mine = [stacked[me].clone() for stacked in stacks]
        for got, want in zip(hvd.grouped_allreduce(mine, op=op), expected):
            same(got, want)
        handle = hvd.grouped_allreduce_async(mine, op=op, name=f"group.{op.spec}")
        for got, want in zip(hvd.synchronize(handle), expected):
            same(got, want)
        results = hvd.grouped_allreduce_(mine, op=op)
        for tensor, got, want in zip(mine, results, expected):
            assert got is tensor
            same(tensor, want)
    assert hvd.grouped_allreduce([]) == []


def check_compression():
    me, size = hvd.rank(), hvd.size()
    stacked = all_values(size, (40,), torch.float32)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.allreduce(stacked[me], op=hvd.Sum, compression=compression)
        same(got, stacked.sum(0))
        got = hvd.grouped_allreduce([stacked[me]], op=hvd.Sum, compression=compression)
        same(got[0], stacked.sum(0))


def check_allgather():
    me, size = hvd.rank(), hvd.size()
    for dtype in [*NUMBERS, torch.bool]:
        for rest in ((), (4,), (2, 3)):
            parts = [values(r, (2 * r + 1, *rest), dtype) for r in range(size)]
            same(hvd.allgather(parts[me], name=f"rows.{dtype}.{rest}"), torch.cat(parts))
    parts = [torch.full((r % 2, 3), float(r)) for r in range(size)]
    same(hvd.allgather(parts[me]), torch.cat(parts))
    same(hvd.allgather(torch.empty(0, 3)), torch.empty(0, 3))
    handle = hvd.grouped_allgather_async([parts[me], parts[me].int()])
    floats, integers = hvd.synchronize(handle)
    same(floats, torch.cat(parts))
    same(integers, torch.cat(parts).int())


def may_read(process, address, value):
    """What process_vm_readv says, asked without Horon."""
    class Piece(ctypes.Structure):
        _fields_ = [("at", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]

    found = ctypes.c_uint64()
    here, there = Piece(ctypes.addressof(found), 8), Piece(address, 8)
    read = ctypes.CDLL(None).process_vm_readv(process, ctypes.byref(here), ctypes.c_ulong(1),
                                              ctypes.byref(there), ctypes.c_ulong(1),
                                              ctypes.c_ulong(0))
    return read == 8 and found.value == value


def check_large_messages_inside_a_node_are_read_where_they_lie():
    mine = ctypes.c_uint64(1000 + hvd.rank())
    known = hvd.allgather_object((hvd.cross_rank(), os.getpid(), ctypes.addressof(mine)))
    near = [rank for rank, (node, *_) in enumerate(known)
            if node == hvd.cross_rank() and rank != hvd.rank()]
    readable = sum(may_read(*known[rank][1:], 1000 + rank) for rank in near)
    before = hvd.counters().get("shm.read_bytes", 0)
    rows = hvd.allgather(torch.full((1 << 18,), float(hvd.rank())))
    for rank, part in enumerate(rows.split(1 << 18)):
        same(part, torch.full((1 << 18,), float(rank)))
    assert hvd.counters().get("shm.read_bytes", 0) - before == readable << 20
    hvd.barrier()  # until all have looked


def check_output_outlives_its_handle():
    outputs = [hvd.allgather(torch.full((1000,), float(i))) for i in range(10)]
    for i, output in enumerate(outputs):
        same(output, torch.full((1000 * hvd.size(),), float(i)))
    outputs[0].add_(1)
    same(outputs[0], torch.ones(1000 * hvd.size()))


def check_broadcast():
    me, size = hvd.rank(), hvd.size()
    for dtype in [*NUMBERS, torch.bool]:
        for root in range(size):
            for shape in SHAPES:
                mine = values(me, shape, dtype)
                want = values(root, shape, dtype)
                name = f"{dtype}.{root}.{shape}"
                same(hvd.broadcast(mine, root, name=name), want)
                same(mine, values(me, shape, dtype))
                assert hvd.broadcast_(mine, root) is mine
                same(mine, want)
    mine = torch.full((3,), float(me))
    assert hvd.synchronize(hvd.broadcast_async_(mine, 0)) is mine
    before = hvd.counter("lane.swapped")
    same(hvd.synchronize(hvd.broadcast_async(mine, 0)), torch.zeros(3))
    assert hvd.counter("lane.swapped") == before  # small ones do not wait for a lane


def check_large_broadcast():
    """Inside a node it goes through the lane."""
    me, size = hvd.rank(), hvd.size()
    before, calls = hvd.counter("lane.swapped"), 0
    for dtype, count in ((torch.uint8, 300_001), (torch.float32, 70_003), (torch.float64, 1 << 18)):
        for root in range(size):
            mine, want = values(me, (count,), dtype), values(root, (count,), dtype)
            same(hvd.broadcast(mine, root, name=f"large.{dtype}.{root}"), want)
            same(mine, values(me, (count,), dtype))
            same(hvd.broadcast_(mine, root), want)
            calls += 2
    in_one_node = hvd.local_size() == size > 1
    assert hvd.counter("lane.swapped") == before + in_one_node * calls


def check_alltoall():
    me, size = hvd.rank(), hvd.size()
    for dtype in [*NUMBERS, torch.bool]:
        sent = [values(r, (2 * size, 3), dtype) for r in range(size)]
        want = torch.cat([sent[r][2 * me : 2 * me + 2] for r in range(size)])
        same(hvd.alltoall(sent[me], name=f"equal.{dtype}"), want)
        # Rank r sends (r + to) % 3 rows to rank `to`.
        splits = [[(r + to) % 3 for to in range(size)] for r in range(size)]
        sent = [values(r, (sum(splits[r]), 2), dtype) for r in range(size)]
        want = torch.cat([sent[r].split(splits[r])[me] for r in range(size)])
        received = torch.tensor([splits[r][me] for r in range(size)], dtype=torch.int32)
        for form in (splits[me], torch.tensor(splits[me], dtype=torch.int32)):
            got, got_splits = hvd.alltoall(sent[me], splits=form)
            same(got, want)
            same(got_splits, received)
    handle = hvd.alltoall_async(torch.arange(size), name="async")
    same(hvd.synchronize(handle), torch.full((size,), me))


def check_reducescatter():
    me, size = hvd.rank(), hvd.size()
    for dtype in NUMBERS:
        for rows in (0, 1, size, 2 * size + 1, 11):
            stacked = all_values(size, (rows, 2), dtype)
            parts = [rows // size + (r < rows % size) for r in range(size)]
            want = reference(hvd.Sum, stacked).split(parts)[me]
            same(hvd.reducescatter(stacked[me], op=hvd.Sum, name=f"{dtype}.{rows}"), want)
            same(hvd.synchronize(hvd.reducescatter_async(stacked[me], op=hvd.Sum)), want)
            close(hvd.reducescatter(stacked[me]),
                  reference(hvd.Average, stacked).split(parts)[me], 1e-2)
    stacked = all_values(size, (7,), torch.float32)
    parts = [7 // size + (r < 7 % size) for r in range(size)]
    pair = [stacked[me], stacked[me].int()]
    want = (2 * stacked.sum(0)).split(parts)[me]
    for got in (hvd.grouped_reducescatter(pair, op=hvd.Sum, prescale_factor=2.0),
                hvd.synchronize(hvd.grouped_reducescatter_async(pair, op=hvd.Sum,
                                                                postscale_factor=2.0))):
        assert len(got) == 2
        same(got[0], want)
        same(got[1], want.int())


def check_groups_of_rows_of_every_type():
    me, size = hvd.rank(), hvd.size()
    types = [*NUMBERS, torch.bool]
    parts = [[values(r, (r + 1 + i % 3, 2), t, i) for i, t in enumerate(types)]
             for r in range(size)]
    for got in (hvd.grouped_allgather(parts[me]),
                hvd.synchronize(hvd.grouped_allgather_async(parts[me], name="rows of types"))):
        for i, one in enumerate(got):
            same(one, torch.cat([parts[r][i] for r in range(size)]))
    stacks = [all_values(size, (2 * size + 1, 3), t, i) for i, t in enumerate(types)]
    rows = [2 + (r == 0) for r in range(size)]
    mine = [stacked[me] for stacked in stacks]
    handle = hvd.grouped_reducescatter_async(mine, op=hvd.Sum, name="parts of types")
    for got in (hvd.grouped_reducescatter(mine, op=hvd.Sum), hvd.synchronize(handle)):
        for one, stacked in zip(got, stacks):
            total = stacked.any(0) if one.dtype == torch.bool else reference(hvd.Sum, stacked)
            same(one, total.split(rows)[me])


def check_rows_of_channels_last():
    """Images, cut along their first dimension, which comes first in memory there, too."""
    me, size = hvd.rank(), hvd.size()
    sent = all_values(size, (2 * size + 1, 3, 4, 5), torch.float32)
    rows = [2 + (to == 0) for to in range(size)]
    mine = sent[me].to(memory_format=torch.channels_last)
    assert not mine.is_contiguous()
    got, received = hvd.alltoall(mine, splits=rows)
    same(got, torch.cat([part.split(rows)[me] for part in sent]))
    assert received.tolist() == [rows[me]] * size
    want = sent.sum(0).split(rows)[me]
    same(hvd.reducescatter(mine, op=hvd.Sum), want)
    same(hvd.synchronize(hvd.reducescatter_async(mine, op=hvd.Sum)), want)
    for one in hvd.grouped_reducescatter([mine, sent[me]], op=hvd.Sum):
        same(one, want)
    same(mine.contiguous(), sent[me])


def check_sparse_allreduce():
    me, size = hvd.rank(), hvd.size()
    dense = [torch.zeros(6, 2) for _ in range(size)]
    for r, tensor in enumerate(dense):
        tensor[r % 6] = r + 1.0
        tensor[5] = 2.0
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / size)):
        finish = hvd.sparse_allreduce_async(dense[me].to_sparse(1), "sparse", op)
        close(finish().to_dense(), sum(dense) * factor)
    for op, spec in ((hvd.Max, "max"), (hvd.Min, "min"), (hvd.Product, "product"),
                     (hvd.Adasum, "adasum"), (hvd.TopK(0.5), "topk:ratio=0.5")):
        said = ["'sparse' is sparse", f"not '{spec}'", "hvd.Sum", "hvd.Average", "sparse_as_dense"]
        with raises(hvd.HoronInvalidArgument, ValueError, words=said):
            hvd.sparse_allreduce_async(dense[me].to_sparse(1), "sparse", op)
    close(hvd.sparse_allreduce_async(dense[me].to_sparse(1), "sparse")().to_dense(),
          sum(dense) / size)


def check_barrier_and_counters():
    hvd.barrier()
    before = hvd.memory_bytes()
    hvd.barrier()
    assert hvd.memory_bytes() - before < 1 << 20
    assert isinstance(hvd.counters(), dict)


def check_memory_is_counted_as_it_is_touched():
    """A node's segment and tensors in shared memory; it does not grow with what streams."""
    size = 32 << 20
    tensor = hvd.shared_zeros(size // 4)
    before = hvd.memory_bytes()
    tensor.fill_(1)
    hvd.barrier()
    setting = HUGE_PAGES.read_text() if HUGE_PAGES.exists() else "[never]"
    if "[never]" in setting or "[deny]" in setting:
        assert hvd.huge_page_bytes() == 0
    elif "[advise]" in setting and hvd.local_size() > 1:
        assert size // 2 < hvd.huge_page_bytes()
    if hvd.local_size() > 1:
        assert size * 0.9 < hvd.memory_bytes() - before < size * 1.2 + (1 << 20)
    private = torch.ones(8 << 20)
    hvd.allreduce_(private, name="streamed")
    streaming = hvd.memory_bytes()
    if hvd.local_size() == hvd.size() > 1:
        assert streaming > 1 << 20  # slots of the lane
    for _ in range(3):
        hvd.allreduce_(private, name="streamed")
    hvd.allreduce_(torch.ones(24 << 20), name="longer")
    if hvd.local_size() == hvd.size():
        assert hvd.memory_bytes() - streaming < 1 << 20
    del tensor


def check_names_may_change_shape_and_type():
    me, size = hvd.rank(), hvd.size()
    forms = ((3, torch.float32), (5, torch.float32), (5, torch.int64), (3, torch.float32))
    for count, dtype in forms:
        for op in (hvd.Sum, hvd.Max):
            stacked = all_values(size, (count,), dtype)
            same(hvd.allreduce(stacked[me], op=op, name="changing"), reference(op, stacked))


def check_spec_strings_and_older_average():
    import warnings

    size = hvd.size()
    same(hvd.allreduce(torch.ones(2), op="sum"), torch.full((2,), float(size)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(hvd.allreduce(torch.ones(2), average=False), torch.full((2,), float(size)))
        same(hvd.allreduce(torch.ones(2), average=True), torch.ones(2))
    assert [w.category for w in caught] == [DeprecationWarning] * 2
