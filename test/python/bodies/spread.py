"""Ranks that share cores spread themselves over them: docs/decisions/0021."""

import os
import time
from pathlib import Path

import torch

import horon.torch as hvd

OWN_LIFE = True
LIMIT_S = 20.0


def wants_to_run() -> int:
    """Tasks of the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])


def check_ranks_leave_a_full_core():
    """All begin on the first of two cores, until one of them has gone to the other by itself."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return print("spread: not checked, this process may use one core only")
    os.sched_setaffinity(0, cores)
    hvd.init()
    assert hvd.size() >= len(cores)
    end, moves, turns, quiet, late = time.monotonic() + LIMIT_S, 0.0, 0, 0, 0.0
    while not moves and not late:
        os.sched_setaffinity(0, cores[:1])
        hvd.barrier()
        os.sched_setaffinity(0, cores)
        for _ in range(300):
            hvd.allreduce(torch.ones(1), name="small")
        seen = [hvd.counters()["cores.moves"], wants_to_run() <= hvd.size(), time.monotonic() > end]
        seen = hvd.allreduce(torch.tensor(seen, dtype=torch.float64), op=hvd.Sum, name="seen")
        moves, late = moves + seen[0].item(), seen[2].item()
        turns, quiet = turns + 1, quiet + (seen[1].item() == hvd.size())
    if not moves and quiet <= turns / 2:
        print(f"spread: not checked, others have wanted to run for most of {LIMIT_S} s")
    else:
        assert moves, "nobody has gone to the other core"
    for thread in Path("/proc/self/task").iterdir():
        if thread.name == str(os.getpid()) or (thread / "comm").read_text().startswith("horon"):
            assert sorted(os.sched_getaffinity(int(thread.name))) == cores, thread
    hvd.shutdown()
