"""horon.torch with tensors of a GPU: as many ranks as wanted share the GPUs that there are."""

import ctypes
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from one_gpu import SHARED  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_gpu():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no NVIDIA driver (libcuda.so.1) on this machine")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")


@pytest.fixture
def launch(launch):
    """A job that hangs leaves time for the others: a GPU is often lent for minutes."""
    return partial(launch, timeout=int(os.environ.get("HORON_GPU_JOB_SECONDS", "100")))


@pytest.mark.parametrize("np", [1, 2, 4])
def test_horonrun(launch, np):
    launch(np, "gpu", env=SHARED if np > torch.cuda.device_count() else {})


@pytest.mark.parametrize("np", [1, 2, 4])
def test_sets_groups_and_graphs(launch, np):
    launch(np, "gpu_sets", "gpu_graphs", env=SHARED if np > torch.cuda.device_count() else {})


@pytest.mark.parametrize("np", [2, 4])
def test_without_nccl(launch, np):
    """The way through the host."""
    launch(np, "gpu", env={"HORON_NCCL": "0"})


@pytest.mark.parametrize("inter", ["mpi", "nccl"])
def test_pretended_nodes(launch, needs_mpi, inter):
    env = SHARED if torch.cuda.device_count() < 4 else {}
    launch(4, "gpu", launcher="mpirun", env={**env, "HORON_LOCAL_SIZE": "2", "HORON_INTER": inter})


@pytest.mark.parametrize("local_size", ["0", "2"])
def test_adasum_by_cublas(launch, needs_mpi, local_size):
    env = SHARED if torch.cuda.device_count() < 4 else {}
    launch(4, "gpu::device", "gpu::adasum", launcher="mpirun",
           env={**env, "HORON_LOCAL_SIZE": local_size, "HORON_ADASUM_KERNEL": "cublas"})


@pytest.mark.parametrize("local_size", ["0", "2"])
@pytest.mark.parametrize("how", ["1", "symmetric"])
def test_memory_registered_with_nccl(launch, needs_mpi, how, local_size):
    env = SHARED if torch.cuda.device_count() < 4 else {}
    launch(4, "gpu::device", "gpu::reductions", "gpu::moving", "gpu::parts_of_sums", "gpu::adasum",
           "gpu::mixing", launcher="mpirun",
           env={**env, "HORON_LOCAL_SIZE": local_size, "HORON_NCCL_REGISTER": how})


def test_few_blocks_of_the_gpu(launch):
    env = SHARED if torch.cuda.device_count() < 2 else {}
    launch(2, "gpu::device", "gpu::reductions", env={**env, "HORON_NCCL_MAX_CTAS": "1"})


def test_communicators_that_do_not_block(launch):
    """By NCCL's own variable: what docs/gpu.md says of it."""
    env = SHARED if torch.cuda.device_count() < 2 else {}
    launch(2, "gpu", env={**env, "NCCL_COMM_BLOCKING": "0"})


@pytest.mark.parametrize("blocking", ["1", "0"])
def test_a_rank_killed_in_a_collective(launch_script, blocking):
    """NCCL's kernel on the other rank's GPU waits for it: the communicator is aborted."""
    env = SHARED if torch.cuda.device_count() < 2 else {}
    output = launch_script(2, Path(__file__).parent / "bodies" / "gpu_death.py", timeout=60,
                           env={**env, "NCCL_COMM_BLOCKING": blocking}, may_fail=True)
    assert "rank 0 heard: rank 1 was killed by signal 9 (SIGKILL)" in output, output
    assert "rank 0 is at rest after" in output, output


def test_one_rank_a_node(launch, needs_mpi):
    """All between nodes; three of them, so that one folds into another."""
    launch(3, "gpu::device", "gpu::adasum", "gpu::mixing", "gpu::reductions", launcher="mpirun",
           env={"HORON_LOCAL_SIZE": "1"})


def test_a_model_on_several_gpus(launch):
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU; other_gpus has such tests with made-up ones")
    launch(2, "gpu_models")
