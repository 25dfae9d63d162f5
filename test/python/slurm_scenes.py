"""What happens to a job under Slurm, seen from h1: run as `slurm_scenes.py SCENE` (slurm_test.py).

Prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from living import processes

LIMIT_S = 100
TMP = Path(os.environ["TMPDIR"])
OUTPUT = TMP / "output"
# Its rank 2, on the second node, comes to the end that is asked for.
TRAINER = """
import os, signal, sys, time, torch, horon.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name="first")
print("up", flush=True)
for step in range(100000):
    hvd.allreduce(torch.ones(10), name="x")
    if step == 5 and hvd.rank() == 2:
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "raise":
            raise ValueError("bad batch")
    time.sleep(0.01)
"""
NODES = ("-N2", "--ntasks-per-node=2")
PYTHON = (sys.executable, "-c", TRAINER)
HORONRUN = (sys.executable, "-m", "horon.launcher", *PYTHON)


class Job:
    """A command of Slurm's that starts ranks; all of them write to one file."""

    def __init__(self, *command: str) -> None:
        self.before = set(processes())
        with OUTPUT.open("a") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT)
        self.end_at = time.monotonic() + LIMIT_S

    def left(self) -> list[str]:
        return [line for pid, line in processes().items() if pid not in self.before]

    def wait_until_up(self, ranks: int) -> None:
        while OUTPUT.read_text().count("up\n") < ranks:
            if self.process.poll() or time.monotonic() > self.end_at:
                raise SystemExit(f"not up: {OUTPUT.read_text()}")
            time.sleep(0.05)  # nothing tells when a file grows
        self.since = time.monotonic()

    def seen(self) -> dict:
        """Once it has ended, and everything that it started anywhere."""
        code = self.process.wait(LIMIT_S)
        seconds = time.monotonic() - self.since
        while (left := self.left()) and time.monotonic() < self.since + LIMIT_S:
            time.sleep(0.05)  # nothing tells when a foreign process ends
        files = [path.name for path in (*TMP.iterdir(), *Path("/dev/shm").iterdir())]
        return {
            "code": code,
            "seconds": seconds,
            "gone_after": time.monotonic() - self.since,
            "left": left,
            "files": [x for x in files if not x.startswith("slurm.") and x != OUTPUT.name],
            "output": OUTPUT.read_text(),
        }


def ends(*command: str) -> dict:
    job = Job(*command)
    job.wait_until_up(4)
    return job.seen()


def killed() -> dict:
    return ends("salloc", *NODES, *HORONRUN, "kill")


def raised() -> dict:
    return ends("salloc", *NODES, *HORONRUN, "raise")


def killed_under_srun() -> dict:
    return ends("srun", *NODES, "--mpi=pmix", *PYTHON, "kill")


def cancelled(*command: str) -> dict:
    job = Job(*command)
    job.wait_until_up(4)
    subprocess.run(["scancel", "-u", "root"], check=True)
    return job.seen()


def cancelled_batch() -> dict:
    script = TMP / "slurm.job"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    return cancelled("sbatch", *NODES, "-o", str(OUTPUT), "--open-mode=append", str(script),
                     *HORONRUN, "no")


def cancelled_allocation() -> dict:
    return cancelled("salloc", *NODES, *HORONRUN, "no")


print(json.dumps(globals()[sys.argv[1]]()))
