"""What programs written for horovod.torch use, and what PyTorch has that these never knew; windows
and gossip over them; on 2 and 4 ranks, over shared memory and over MPI. The checks are in bodies/,
all in one launch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import _command, only_in_full_tier, run_job

ALL = ["join", "costs", "programs", "sync_batch_norm", "data", "timeline",
       "windows", "async_gossip", "bluefog_optimizers", "gossip_modules", "tracking"]


@pytest.mark.parametrize("np", [2, 4])
def test_horonrun(launch, np):
    launch(np, *ALL)


@pytest.mark.parametrize("np", [2, 4])
def test_mpirun(launch, needs_mpi, np):
    if np == 4:
        only_in_full_tier()
    launch(np, *ALL, launcher="mpirun")


def test_modern(launch):
    """On 2 ranks only: each of them loads the compiler."""
    launch(2, "modern")


def test_modern_mpirun(launch, needs_mpi):
    launch(2, "modern", launcher="mpirun")


NAMES = """init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
mpi_built mpi_enabled mpi_threads_supported gloo_built gloo_enabled nccl_built ddl_built ccl_built
cuda_built rocm_built start_timeline stop_timeline Average Sum Adasum Min Max Product allreduce
allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async
grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async
grouped_allgather grouped_allgather_async broadcast broadcast_async broadcast_ broadcast_async_
alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async poll synchronize barrier join ProcessSet global_process_set
add_process_set remove_process_set broadcast_parameters broadcast_optimizer_state broadcast_object
allgather_object Compression DistributedOptimizer SyncBatchNorm HorovodInternalError elastic""".split()


def test_every_name_of_horovod_is_there_and_in_the_documentation():
    """docs/migrating_from_horovod.md says of each name what it is; only what it calls missing
    is."""
    text = (Path(__file__).parents[2] / "docs" / "migrating_from_horovod.md").read_text()
    table = text.split("All 67 names")[1].split("Beside `horovod.torch`")[0]
    said = {}
    for row in re.findall(r"^\| (`.*?) \| (\w+) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row[0]):
            assert said.setdefault(name, row[1]) == row[1], name
    assert set(NAMES) <= set(said) and len(NAMES) == 67, set(NAMES) - set(said)
    program = f"import horon.torch as hvd; print(*(n for n in {NAMES} if not hasattr(hvd, n)))"
    done = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True,
                          check=True)
    assert set(done.stdout.split()) == {name for name in NAMES if said[name] == "missing"}


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
