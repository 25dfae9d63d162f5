"""Buckets that take longer than a rank waits before it asks why (half a second)."""

import time

import torch
from costs import metadata

import horon.torch as hvd


def check_a_schedule_stays_locked():
    """Bytes that arrive now and then are no reason to ask, and so to negotiate."""
    gradient = torch.empty(3 << 20)

    def step():
        begun = time.monotonic()
        gradient.fill_(hvd.rank() + 1)
        hvd.allreduce_(gradient, op=hvd.Sum, name="slow gradient")
        assert gradient[0] == gradient[-1] == hvd.size() * (hvd.size() + 1) / 2, gradient
        return time.monotonic() - begun

    for _ in range(4):  # three to see that they are alike
        step()
    locked, spoken = hvd.counters()["schedule.tensors"], metadata()
    times = [step() for _ in range(5)]
    assert min(times) > 0.6, times
    assert hvd.counters()["schedule.tensors"] == locked + len(times), hvd.counters()
    leads = hvd.local_rank() == 0  # whose word goes ahead of a bucket
    assert metadata() - spoken <= (len(times) if leads else 0), hvd.counters()
