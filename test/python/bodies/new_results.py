"""Results that are not in place: whose memory they are."""

import resource

import torch

import horon.torch as hvd

BIG = 10 << 20  # elements: more than malloc keeps


def faults(call):
    """Pages of this process that were touched for the first time during some calls."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def check_dropped_results_are_used_again():
    tensor = torch.ones(BIG)
    for call in (lambda: hvd.allreduce(tensor, name="n.sum", op=hvd.Sum),
                 lambda: hvd.neighbor_allreduce(tensor, name="n.neighbors"),
                 lambda: hvd.broadcast(tensor, 0, name="n.broadcast")):
        for _ in range(3):
            call()
        assert faults(call) < BIG * 4 // resource.getpagesize()


def check_kept_results_stay():
    ours = torch.arange(BIG, dtype=torch.float32)
    results = [hvd.allreduce(ours + k, name="n.kept", op=hvd.Max) for k in range(4)]
    grouped = hvd.grouped_allreduce([ours, ours + 1], name="n.grouped", op=hvd.Max)
    for k, result in enumerate(results):
        assert torch.equal(result, ours + k), k
    for k, result in enumerate(grouped):
        assert torch.equal(result, ours + k), k
    results[0].add_(1)  # the program's, to write
    assert torch.equal(results[1], results[0])


def check_kinds():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8):
        tensor = torch.ones(2, BIG // 8, dtype=dtype)
        result = hvd.allreduce(tensor, name=f"n.{dtype}", op=hvd.Max)
        assert result.dtype == dtype and torch.equal(result, tensor)
    flags = torch.ones(BIG, dtype=torch.bool)
    assert hvd.broadcast(flags, 0, name="n.bool").all()
    weight = torch.ones(BIG, requires_grad=True)
    result = hvd.allreduce(weight, name="n.grad", op=hvd.Sum)
    result.sum().backward()
    assert torch.equal(weight.grad, torch.full((BIG,), float(hvd.size())))
