"""Waiting for a handle for a limited time: the wait ends, and nothing else does."""

import math

import torch
from common import raises, same

import horon.torch as hvd

VALUES = torch.ones(2, 2)


def kinds():
    """By what their handles are; each a call that can be made again and again."""
    kept = torch.ones(8)
    pair = [torch.ones(3), torch.ones(4)]
    size = hvd.size()
    return {
        "allreduce": (lambda: hvd.allreduce_async(VALUES, op=hvd.Sum, name="t.new"), VALUES * size),
        "in place, again": (lambda: hvd.allreduce_async_(kept.fill_(1), op=hvd.Sum, name="t.kept"),
                            torch.full((8,), float(size))),
        "grouped": (lambda: hvd.grouped_allreduce_async(pair, op=hvd.Sum, name="t.group"),
                    [one * size for one in pair]),
        "grouped in place": (
            lambda: hvd.grouped_allreduce_async_([one.fill_(1) for one in pair], op=hvd.Sum,
                                                 name="t.group_"),
            [torch.full((3,), float(size)), torch.full((4,), float(size))]),
        "allgather": (lambda: hvd.allgather_async(VALUES, name="t.gather"),
                      torch.ones(2 * size, 2)),
        "broadcast": (lambda: hvd.broadcast_async(VALUES, 0, name="t.root"), VALUES),
        "alltoall": (lambda: hvd.alltoall_async(torch.ones(size), name="t.all"),
                     (torch.ones(size), torch.ones(size, dtype=torch.int32))),
        "reducescatter": (lambda: hvd.reducescatter_async(torch.ones(size, 2), op=hvd.Sum,
                                                          name="t.rows"),
                          torch.full((1, 2), float(size))),
    }


def check_a_wait_that_ends_before_the_others_come():
    """The last rank submits when all others have waited in vain; then the handles end well."""
    late = hvd.rank() == hvd.size() - 1
    if hvd.size() == 1:
        return
    for what, (begin, want) in kinds().items():
        for _ in range(3):  # the third goes the short way
            if late:
                hvd.barrier()
            handle = begin()
            if not late:
                for seconds in (0, 0.02):
                    with raises(hvd.HoronTimeout, TimeoutError, hvd.HoronError,
                                words=[f"within {seconds} s", "goes on"], of=what):
                        hvd.synchronize(handle, timeout=seconds)
                assert not hvd.poll(handle), what
                with raises(hvd.HoronInvalidArgument, words=["pending"], of=what):
                    begin()  # its name and its tensors are still lent
                hvd.barrier()
            result = hvd.synchronize(handle, timeout=60)
            wanted = want if isinstance(want, (list, tuple)) else [want]
            for got, one in zip(result if isinstance(result, (list, tuple)) else [result], wanted):
                same(got, one)


def check_what_goes_wrong_is_raised_before_the_time_is_over():
    if hvd.size() == 1:
        return
    handle = hvd.allreduce_async(torch.ones(2 + (hvd.rank() == 1)), name="t.shape")
    with raises(hvd.HoronMismatch, words=["shapes"]):
        hvd.synchronize(handle, timeout=60)


def check_times_that_are_none():
    handle = hvd.allreduce_async(VALUES, op=hvd.Sum, name="t.wrong")
    for wrong in (-1, "soon", math.nan, [1]):
        with raises(hvd.HoronInvalidArgument, words=["timeout="]):
            hvd.synchronize(handle, timeout=wrong)
    same(hvd.synchronize(handle, timeout=math.inf), VALUES * hvd.size())
    same(hvd.synchronize(handle, timeout=0), VALUES * hvd.size())  # it is done
