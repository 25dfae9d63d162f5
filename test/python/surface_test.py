"""What programs written for horovod.torch use, and what PyTorch has that these never knew; on 2 and
4 ranks, over shared memory and over MPI. The checks are in bodies/, all in one launch."""

import pytest

ALL = ["join", "costs", "programs", "sync_batch_norm"]


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
