"""Tensors of GPUs in process sets that overlap and go, in groups, and without joined ranks."""

import torch
from common import all_values, close, same, values
from gpu import check_device, device  # noqa: F401  the first check

import horon.torch as hvd


def sum_of(members, step):
    return sum(float(r + step) for r in members)


def check_overlapping_sets():
    """Each pair of neighbors is a set: ranks of two of them use both, in any order."""
    if hvd.size() < 3:
        return
    pairs = [(r, r + 1) for r in range(hvd.size() - 1)]
    sets = {pair: hvd.add_process_set(list(pair)) for pair in pairs}
    mine = [pair for pair in pairs if hvd.rank() in pair]
    for step in range(20):
        handles = {}
        for pair in mine if (step + hvd.rank()) % 2 else mine[::-1]:
            tensor = torch.full((1000 + step,), float(hvd.rank() + step), device=device())
            handles[pair] = hvd.allreduce_async(tensor, op=hvd.Sum, name=f"pair {pair}",
                                                process_set=sets[pair])
        everyone = hvd.allreduce(torch.full((77,), float(hvd.rank() + step), device=device()),
                                 op=hvd.Sum, name="everyone")
        same(everyone.cpu(), torch.full((77,), sum_of(range(hvd.size()), step)))
        for pair, handle in handles.items():
            same(hvd.synchronize(handle).cpu(), torch.full((1000 + step,), sum_of(pair, step)))
    for pair in pairs:
        assert hvd.remove_process_set(sets[pair]) is True


def check_sets_that_come_and_go():
    """The device's part of a set is made and given back while other tensors are under way."""
    for life in range(4):
        some = hvd.add_process_set([0, hvd.size() - 1]) if hvd.size() > 2 else None
        going = hvd.allreduce_async(torch.full((1 << 16,), 1.0, device=device()), op=hvd.Sum,
                                    name="going")
        if some is not None and some.included():
            tensor = torch.full((500,), float(hvd.rank() + life), device=device())
            result = hvd.allreduce(tensor, op=hvd.Sum, name="in it", process_set=some)
            same(result.cpu(), torch.full((500,), sum_of((0, hvd.size() - 1), life)))
        same(hvd.synchronize(going).cpu(), torch.full((1 << 16,), float(hvd.size())))
        if some is not None:
            assert hvd.remove_process_set(some) is True


def check_groups():
    """What is one call is reduced together, whatever its types."""
    shapes = [(3,), (), (0,), (70, 9), (1 << 15,)]
    for dtype in (torch.float16, torch.float32, torch.int64):
        for op in (hvd.Sum, hvd.Max):
            stacked = [all_values(hvd.size(), shape, dtype, 3) for shape in shapes]
            mine = [each[hvd.rank()].to(device()) for each in stacked]
            results = hvd.grouped_allreduce(mine, op=op, name=f"group {dtype} {op}")
            for result, each in zip(results, stacked):
                wanted = each.sum(0) if op is hvd.Sum else each.amax(0)
                same(result.cpu(), wanted.to(dtype))
    parts = [values(hvd.rank(), (4, 3), torch.float32).to(device()) for _ in range(2)]
    everyone = torch.cat([values(r, (4, 3), torch.float32) for r in range(hvd.size())])
    for gathered in hvd.grouped_allgather(parts, name="parts"):
        same(gathered.cpu(), everyone)


def check_ranks_that_have_joined():
    """They give zeros to sums, and the average is over all."""
    for gone in range(hvd.size()):
        for step in range(3):
            if hvd.rank() == gone:
                continue
            there = [r for r in range(hvd.size()) if r != gone]
            tensor = torch.full((300,), float(hvd.rank() + step), device=device())
            close(hvd.allreduce(tensor, op=hvd.Sum, name="joined").cpu(),
                  torch.full((300,), sum_of(there, step)))
        hvd.join()
