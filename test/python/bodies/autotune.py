"""A job of mixed tensors whose setting may change while it runs. autotune_test.py reads its log.

It runs until rank 0's log says what is chosen; for some steps, if the file of an earlier choice is
there.
"""

import os

import torch
from common import same

import horon.torch as hvd

SIZES = [1, 3, 17, 64, 257, 1000, 4096, 30_011] * 5  # elements; 40 tensors, 0.7 MB
SOME_STEPS = 20


def gradient(i, rank, step):
    """Whole numbers, so that every sum is exact."""
    return (torch.arange(SIZES[i]) % 11 + (3 * i + rank) % 7 + step % 5).float()


def sums(step):
    return [sum(gradient(i, rank, step) for rank in range(hvd.size()))
            for i in range(len(SIZES))]


def has_ended():
    with open(os.environ["HORON_AUTOTUNE_LOG"], encoding="utf-8") as file:
        return file.read().endswith(",chosen\n")


def most_steps():
    """Far more than tuning needs: some steps pass after each change of setting."""
    samples = int(os.environ["HORON_AUTOTUNE_MAX_SAMPLES"])
    return 100 + 10 * samples * int(os.environ["HORON_AUTOTUNE_STEPS_PER_SAMPLE"])


def check_every_sum_is_right_while_settings_change():
    tuned = not os.path.exists(os.environ["HORON_AUTOTUNE_FILE"])  # at its end it is
    expected = [sums(step) for step in range(5)]
    for step in range(most_steps() if tuned else SOME_STEPS):
        ended = hvd.rank() == 0 and tuned and has_ended()
        handles = [hvd.allreduce_async_(gradient(i, hvd.rank(), step), name=f"g{i}", op=hvd.Sum)
                   for i in range(len(SIZES))]
        end = hvd.allreduce_async_(torch.tensor([float(ended)]), name="end", op=hvd.Sum)
        for handle, want in zip(handles, expected[step % 5], strict=True):
            same(hvd.synchronize(handle), want)
        if hvd.synchronize(end).item():
            break
    else:
        assert not tuned, f"nothing is chosen after {step + 1} steps"
    for name, value in hvd.counters().items():
        if name.startswith(("autotune.", "executor.")):
            print(f"counter {hvd.rank()} {name} {value}", flush=True)
