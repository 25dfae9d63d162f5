"""What nobody may sleep in, on a machine that does nothing else."""

import os
from pathlib import Path

from costs import of_blocking_calls, sleeps

import horon.torch as hvd


def check_a_blocking_call_does_not_sleep():
    """Where each rank has a core: at most one call in ten."""
    if hvd.size() > len(os.sched_getaffinity(0)):
        return print(f"awake: not checked, {hvd.size()} ranks have not a core each")
    slept = of_blocking_calls(lambda: sleeps(Path("/proc/thread-self")))
    assert slept <= 20, slept
