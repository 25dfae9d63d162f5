"""What programs written for horovod.torch use, and what PyTorch has that these never knew; windows;
on 2 and 4 ranks, over shared memory and over MPI. The checks are in bodies/, all in one launch."""

import re
import sys

import pytest
from conftest import _command, run_job

ALL = ["join", "costs", "programs", "sync_batch_norm", "data", "timeline",
       "windows"]


@pytest.mark.parametrize("np", [2, 4])
def test_horonrun(launch, np):
    launch(np, *ALL)


@pytest.mark.parametrize("np", [2, 4])
def test_mpirun(launch, needs_mpi, np):
    launch(np, *ALL, launcher="mpirun")


def test_modern(launch):
    """On 2 ranks only: each of them loads the compiler."""
    launch(2, "modern")


def test_modern_mpirun(launch, needs_mpi):
    launch(2, "modern", launcher="mpirun")


LATE = """
import time, torch, horon.torch as hvd
hvd.init()
if hvd.rank() == 1:
    time.sleep(2.5)  # late: longer than the report waits
hvd.allreduce(torch.ones(2), name="late")
print("done", hvd.rank(), flush=True)
"""


@pytest.mark.parametrize("launcher", ["horonrun", "mpirun"])
def test_a_late_rank_is_named(tmp_path, needs_mpi, launcher):
    """By the stall report, however the ranks negotiate."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    command = [*_command(launcher, 2), sys.executable, str(script)]
    out = run_job(command, 2, {"HORON_STALL_CHECK_TIME_SECONDS": "0.5"})
    assert re.search(r"warn.*'?late'?.*rank.? \[?1\]?", out), out
