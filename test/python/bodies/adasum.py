"""allreduce(op=Adasum) in all its forms, against the definition in double."""

from pathlib import Path

import torch
from common import FLOATS, INTEGERS, SHAPES, close, raises, same

import horon.torch as hvd
from horon import rings
from horon.adasum import suggest_lr

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-12}


def pair(x, y):
    """Two (tensor, leaves), by the formula."""
    (a, m), (b, k) = x, y
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    of_a = 1 - m / (m + k) * dot / aa if aa > 0 else 1.0
    of_b = 1 - k / (m + k) * dot / bb if bb > 0 else 1.0
    return of_a * a + of_b * b, m + k


def adasum_of(tensors):
    """The reference tree over a list of tensors, in double."""
    row = [(tensor.double(), 1) for tensor in tensors]
    power = 1 << (len(row).bit_length() - 1)
    for i in range(power, len(row)):
        row[i - power] = pair(row[i - power], row[i])
    row = row[:power]
    while len(row) > 1:
        row = [pair(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0][0]


def gradients(shape, dtype, seed=0, size=None):
    """One for each rank, with something in common."""
    size = hvd.size() if size is None else size
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(shape, generator=generator)
    own = torch.randn((size, *shape), generator=generator)
    return (own + 0.5 * common).to(dtype)


def near(result, expected):
    """Relative to the length: where gradients nearly cancel, no element by itself is exact."""
    assert result.shape == expected.shape
    gap = (result.double() - expected).norm()
    assert gap <= TOLERANCE[result.dtype] * max(1.0, expected.norm()), (gap, expected.norm())


def check_all_forms():
    me = hvd.rank()
    for dtype in FLOATS:
        for shape in SHAPES + [(300, 77)]:
            inputs = gradients(shape, dtype)
            expected = adasum_of(inputs)
            mine = inputs[me].clone()
            near(hvd.allreduce(mine, op=hvd.Adasum), expected)
            same(mine, inputs[me])
            near(hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Adasum)), expected)
            same(mine, inputs[me])
            assert hvd.allreduce_(mine, op=hvd.Adasum) is mine
            near(mine, expected)
            again = inputs[me].clone()
            assert hvd.synchronize(hvd.allreduce_async_(again, op=hvd.Adasum)) is again
            same(again, mine)


def check_grouped_equals_single_bit_for_bit():
    inputs = [gradients(shape, torch.float32, seed=i) for i, shape in enumerate(SHAPES)]
    single = [hvd.allreduce(one[hvd.rank()], op=hvd.Adasum) for one in inputs]
    grouped = hvd.grouped_allreduce([one[hvd.rank()] for one in inputs], op=hvd.Adasum)
    for a, b in zip(single, grouped):
        same(a, b)
    in_place = [one[hvd.rank()].clone() for one in inputs]
    hvd.synchronize(hvd.grouped_allreduce_async_(in_place, op=hvd.Adasum))
    for a, b in zip(single, in_place):
        same(a, b)


def check_all_ranks_have_the_same_bits():
    result = hvd.allreduce(gradients((5000,), torch.float32)[hvd.rank()], op=hvd.Adasum)
    for row in hvd.allgather(result.reshape(1, -1)):
        same(row, result)


def check_meaning():
    me, size = hvd.rank(), hvd.size()
    parallel = torch.arange(1.0, 9.0)
    close(hvd.allreduce(parallel * (me + 1), op=hvd.Adasum), parallel * (size + 1) / 2)
    orthogonal = torch.zeros(size)
    orthogonal[me] = me + 1.0
    same(hvd.allreduce(orthogonal, op=hvd.Adasum), torch.arange(1.0, size + 1))
    sparse_use = torch.full((4,), 6.0) if me == 0 else torch.zeros(4)
    same(hvd.allreduce(sparse_use, op=hvd.Adasum), torch.full((4,), 6.0))
    mean = hvd.allreduce(sparse_use, op=hvd.AdasumOp(zero_policy="mean"))
    close(mean, torch.full((4,), 6.0 / size))


def check_rings():
    """Parallel gradients are averaged, whatever the way; a wrong ring is an error on all ranks."""
    size = hvd.size()
    base = torch.randn(1001, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    orders = [list(range(size)), list(range(size))[::-1]]
    for given in (None, orders[:1], orders):
        got = hvd.allreduce((hvd.rank() + 1) * base, op=hvd.AdasumOp(algorithm="ring", rings=given),
                            name="rings")
        close(got, (size + 1) / 2 * base, TOLERANCE[torch.float64])
    with raises(ValueError, words=["rings"]):
        hvd.allreduce(base, op=hvd.AdasumOp(algorithm="ring", rings=[[0] * (size + 1)]),
                      name="no ring")


def along(rings, tensors):
    """By the definition: chunk k of a ring begins one place behind k and goes round to it."""
    chunks = [tensor.double().tensor_split(len(tensors) * len(rings)) for tensor in tensors]
    parts = []
    for k in range(len(tensors) * len(rings)):
        ring = rings[k // len(tensors)]
        first = (k + 1) % len(tensors)
        way = [chunks[rank][k] for rank in ring[first:] + ring[:first]]
        sum_ = (way[0], 1)
        for part in way[1:]:
            sum_ = pair(sum_, (part, 1))
        parts.append(sum_[0])
    return torch.cat(parts)


def check_rings_of_topologies():
    """Rings from what nvidia-smi prints of machines with at least as many GPUs as ranks."""
    size = hvd.size()
    inputs = gradients((1001,), torch.float64)
    for file in sorted((Path(__file__).resolve().parents[1] / "topologies").glob("*.txt")):
        distances = rings.parse_topology(file.read_text())
        if len(distances) < size:
            continue
        near_ones = [row[:size] for row in distances[:size]]
        for count in (1, 2):
            found = rings.rings_of(near_ones, count)
            got = hvd.allreduce(inputs[hvd.rank()], name=f"{file.stem}.{count}",
                                op=hvd.AdasumOp(algorithm="ring", rings=found))
            near(got, along(found, inputs))
            for row in hvd.allgather(got.reshape(1, -1)):
                same(row, got)


def check_nan_reaches_every_rank():
    if hvd.size() == 1:
        return
    bad = torch.ones(1000)
    if hvd.rank() == 1:
        bad[10] = float("inf")
    good = hvd.allreduce_async(torch.ones(1000), op=hvd.Adasum, name="good")
    assert torch.isnan(hvd.allreduce(bad, op=hvd.Adasum)).all()
    same(hvd.synchronize(good), torch.ones(1000))


def check_scaling_and_compression():
    inputs = gradients((333,), torch.float32)
    expected = adasum_of(inputs)
    mine = inputs[hvd.rank()]
    near(hvd.allreduce(mine, op=hvd.Adasum, prescale_factor=4.0, postscale_factor=0.25), expected)
    for compression, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 1.5e-2)):
        narrow = hvd.allreduce(mine, op=hvd.Adasum, compression=compression)
        assert narrow.dtype == mine.dtype
        assert (narrow.double() - expected).norm() <= tolerance * expected.norm(), compression


def check_process_set():
    if hvd.size() < 3:
        return
    pair_set = hvd.add_process_set([0, hvd.size() - 1])
    inputs = gradients((50,), torch.float32)
    if pair_set.included():
        result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum, process_set=pair_set)
        near(result, adasum_of([inputs[0], inputs[-1]]))
    hvd.remove_process_set(pair_set)


def check_differentiable():
    tensor = torch.ones(3, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Adasum).sum().backward()
    close(tensor.grad, torch.ones(3))  # equal gradients stay as they are


def check_refused_at_once():
    for dtype in INTEGERS:
        with raises(hvd.HoronInvalidArgument, ValueError, words=["floating", "adasum"]):
            hvd.allreduce_async(torch.ones(3, dtype=dtype), op=hvd.Adasum, name="integer")
    with raises(hvd.HoronUnsupported, words=["complex64"]):
        hvd.allreduce_async(torch.ones(3, dtype=torch.complex64), op=hvd.Adasum)
    if hvd.size() > 1:
        op = hvd.AdasumOp(local_op="sum") if hvd.rank() == 0 else hvd.Adasum
        with raises(hvd.HoronMismatch, words=["adasum:local=sum", "have adasum" if hvd.size() > 2
                                              else "has adasum"]):
            hvd.allreduce(torch.ones(3), op=op, name="differs")
    same(hvd.allreduce(torch.ones(3), op=hvd.Adasum), torch.ones(3))


def check_suggested_rates():
    """By the number of ranks that bring one gradient, and by nothing else."""
    averaging = hvd.AdasumOp(local_op="average", zero_policy="mean")
    for op in (hvd.Adasum, "adasum", hvd.AdasumOp(local_op="sum")):
        assert suggest_lr(0.3, op) == suggest_lr(0.3, op, ranks_per_node=8) == 0.3, op
    assert suggest_lr(0.3, averaging, ranks_per_node=8) == 0.3 * 8
    if hvd.is_homogeneous():
        assert suggest_lr(0.3, averaging) == 0.3 * hvd.local_size()
    else:
        with raises(hvd.HoronInvalidArgument, words=["ranks_per_node"]):
            suggest_lr(0.3, averaging)
    with raises(hvd.HoronInvalidArgument, words=["suggest_lr", "average"]):
        suggest_lr(0.3, hvd.Average)
