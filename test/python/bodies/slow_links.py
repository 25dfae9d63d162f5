"""Buckets that take longer than a rank waits before it asks why (half a second)."""

import time

import torch
from costs import metadata

import horon.torch as hvd

STEPS = 5


def check_a_schedule_stays_locked():
    """Bytes that arrive now and then are no reason to ask, and so to negotiate. On a machine that
    stands still for half a second they do not: then all try again."""
    gradient = torch.empty(10 << 20)

    def step():
        begun = time.monotonic()
        gradient.fill_(hvd.rank() + 1)
        hvd.allreduce_(gradient, op=hvd.Sum, name="slow gradient")
        assert gradient[0] == gradient[-1] == hvd.size() * (hvd.size() + 1) / 2, gradient
        return time.monotonic() - begun

    seen = []
    for _ in range(4):
        for _ in range(4):  # three to see that they are alike
            step()
        locked, spoken = hvd.counters().get("schedule.tensors", 0), metadata()
        times = [step() for _ in range(STEPS)]
        assert min(times) > 0.6, times
        seen.append((hvd.counters()["schedule.tensors"] - locked, metadata() - spoken))
        step()  # until all have looked, nobody asks for what is not in the schedule
        stayed = seen[-1] == (STEPS, 0)  # the word of a bucket goes with its first bytes
        if hvd.allreduce(torch.tensor(float(stayed)), op=hvd.Min, name="stayed locked").item():
            return
    raise AssertionError(f"tensors that ran locked, and messages, of {STEPS} steps: {seen}")
