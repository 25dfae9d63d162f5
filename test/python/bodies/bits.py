"""Sums have the bits of one order of additions: local ranks ascending, then nodes ascending. So
they are the same on all ranks and in all runs, whatever is fused, sliced, negotiated or locked, and
whenever each rank comes."""

import random
import time

import torch

import horon.torch as hvd

COUNTS = (1, 17, 1000, 700_001)  # the last one is several slices
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
STEPS = 6  # locked from the fourth on in a new job, which conformance/bits_test.cc makes sure of


def of_rank(rank, count, dtype):
    """Values for which the order of additions shows in the last bits."""
    generator = torch.Generator().manual_seed(7919 * rank + count)
    return torch.randn(count, generator=generator).to(dtype)


def added(terms):
    """In at least single precision from left to right, rounded once."""
    precision = torch.promote_types(terms[0].dtype, torch.float32)
    total = terms[0].to(precision)
    for term in terms[1:]:
        total = total + term.to(precision)
    return total.to(terms[0].dtype)


def expected(nodes, count, dtype):
    """`nodes`: the node of each rank. A flat sum is one where each is a node of its own."""
    ranks = range(len(nodes))
    return added([added([of_rank(rank, count, dtype) for rank in ranks if nodes[rank] == node])
                  for node in sorted(set(nodes))])


def same_bits(actual, wanted):
    return torch.equal(actual.view(torch.uint8), wanted.view(torch.uint8))


def check_the_order_of_additions():
    nodes = hvd.allgather(torch.tensor([hvd.cross_rank()]), name="bits.nodes").tolist()
    kinds = [(count, dtype) for count in COUNTS for dtype in DTYPES]
    wanted = {kind: expected(nodes, *kind) for kind in kinds}
    own_order = random.Random(hvd.rank())
    for step in range(STEPS):
        own_order.shuffle(kinds)  # each rank submits in an order of its own
        tensors = {kind: of_rank(hvd.rank(), *kind) for kind in kinds}
        handles = []
        for kind in kinds:
            time.sleep(random.choice((0, 0, 0.002)))  # what comes first differs by rank and run
            handles.append(hvd.allreduce_async_(tensors[kind], op=hvd.Sum, name=f"bits.{kind}"))
        for handle in handles:
            hvd.synchronize(handle)
        for kind, tensor in tensors.items():
            assert same_bits(tensor, wanted[kind]), (step, kind)


def check_in_shared_memory():
    """Where nothing is packed: negotiated, then locked."""
    nodes = hvd.allgather(torch.tensor([hvd.cross_rank()]), name="bits.nodes").tolist()
    kinds = [(count, dtype) for count in COUNTS for dtype in DTYPES]
    shared = {(count, dtype): hvd.shared_zeros(count, dtype=dtype) for count, dtype in kinds}
    wanted = {kind: expected(nodes, *kind) for kind in kinds}
    before = hvd.counter("lane.in_place")
    for step in range(STEPS):
        for kind, tensor in shared.items():
            tensor.copy_(of_rank(hvd.rank(), *kind))
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"bits.shared.{kind}")
                   for kind, tensor in shared.items()]
        for handle in handles:
            hvd.synchronize(handle)
        for kind, tensor in shared.items():
            assert same_bits(tensor, wanted[kind]), (step, kind)
    on_one_node = hvd.local_size() == hvd.size() > 1
    assert (hvd.counter("lane.in_place") > before) == on_one_node


def check_parts_of_a_sum():
    """reducescatter adds by ascending rank, whatever nodes there are."""
    size, rank = hvd.size(), hvd.rank()
    kinds = [(count * size, dtype) for count in COUNTS for dtype in DTYPES]
    wanted = {kind: expected(range(size), *kind).chunk(size)[rank] for kind in kinds}
    own_order = random.Random(rank)
    for step in range(STEPS):
        own_order.shuffle(kinds)
        handles = {kind: hvd.reducescatter_async(of_rank(rank, *kind), op=hvd.Sum,
                                                 name=f"bits.parts.{kind}") for kind in kinds}
        for kind, handle in handles.items():
            assert same_bits(hvd.synchronize(handle), wanted[kind]), (step, kind)


def check_alone_and_grouped():
    nodes = hvd.allgather(torch.tensor([hvd.cross_rank()]), name="bits.nodes").tolist()
    for count in COUNTS:
        wanted = expected(nodes, count, torch.float32)
        mine = of_rank(hvd.rank(), count, torch.float32)
        alone = hvd.allreduce(mine, op=hvd.Sum, name=f"bits.alone.{count}")
        grouped = hvd.grouped_allreduce([mine] * 3, op=hvd.Sum, name=f"bits.grouped.{count}")
        for result in (alone, *grouped):
            assert same_bits(result, wanted), count
