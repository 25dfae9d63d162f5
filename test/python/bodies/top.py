"""What `horonrun top` shows of this job, by whichever launcher it was started."""

import os
import subprocess
import sys

import torch

import horon.torch as hvd


def check_all_ranks_are_shown():
    hvd.allreduce(torch.ones(10), name="seen")
    pids = hvd.allgather_object(os.getpid())
    if hvd.rank() == 0:
        top = [sys.executable, "-m", "horon.launcher", "top", "--once"]
        done = subprocess.run(top, cwd="/", capture_output=True, text=True, check=False, timeout=60)
        rows = [line.split() for line in done.stdout.splitlines()]
        for rank, pid in enumerate(pids):
            assert [str(rank), str(pid)] in [row[:2] for row in rows], (pids, done)
    hvd.barrier()
