"""Ranks that take different ways over torch.distributed. A job of their own: what one rank has not
submitted fails there later, too, when it uses the name."""

import time

import torch
import torch.distributed as dist
from common import raises

import horon.torch as hvd
import horon.torch.distributed  # noqa: F401  makes the backend known

dist.init_process_group("horon")


def check_ranks_that_diverge_in_a_backward():
    """torch's code waits for a future there, and not in Horon; still nobody is taken for busy."""
    if hvd.size() == 1:
        return
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):  # DDP forms its buckets anew in the second
        model(torch.ones(2, 4)).sum().backward()
    begun = time.monotonic()
    if hvd.rank() == 0:
        with raises(RuntimeError, words=["different ways"]):
            model(torch.ones(2, 4)).sum().backward()
    else:
        with raises(hvd.HoronMismatch, words=["different ways"]):
            hvd.allreduce(torch.ones(2), name="elsewhere")
    assert time.monotonic() - begun < 30
    hvd.barrier()


def check_a_message_that_is_never_sent():
    """The two meet for the first time, so the receiver waits for a set to be formed."""
    if hvd.size() != 4:
        return
    if hvd.rank() == 0:
        with raises(hvd.HoronMismatch, words=["different ways"]):
            dist.recv(torch.ones(2), 2)
    else:
        with raises(hvd.HoronMismatch, words=["different ways"]):
            hvd.allreduce(torch.ones(2), name="elsewhere")
    hvd.barrier()


def check_what_one_rank_refuses():
    """The others hear of it as of any rank that goes another way (docs/decisions, 9)."""
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        with raises(hvd.HoronUnsupported, words=["complex64"]):
            hvd.allreduce(torch.ones(2, dtype=torch.complex64), name="refused")
        with raises(hvd.HoronMismatch, words=["different ways"]):
            hvd.allreduce(torch.ones(2), name="another")
    else:
        with raises(hvd.HoronMismatch, words=["different ways", "refused", "rank 0"]):
            hvd.allreduce(torch.ones(2), name="refused")
    hvd.barrier()


def check_all_sends_before_the_first_receive():
    """More of one kind than collectives may have in flight."""
    if hvd.size() % 2 != 0:
        return
    other = hvd.rank() ^ 1
    got = [torch.zeros(1) for _ in range(100)]
    sent = [dist.isend(torch.tensor([float(i)]), other) for i in range(len(got))]
    for work in sent + [dist.irecv(one, other) for one in got]:
        work.wait()
    assert [int(one) for one in got] == list(range(len(got)))
    hvd.barrier()  # the others may not be through
