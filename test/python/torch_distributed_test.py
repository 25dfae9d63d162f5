"""The torch.distributed backend and DDP's communication hook, on 2 and 4 ranks, over shared memory
and over MPI. The checks are in bodies/."""

import pytest

ALL = ["torch_distributed", "ddp_hooks", "gossip_grad"]


@pytest.mark.parametrize("np", [2, 4])
def test_horonrun(launch, np):
    launch(np, *ALL)


@pytest.mark.parametrize("np", [2, 4])
def test_mpirun(launch, needs_mpi, np):
    launch(np, *ALL, launcher="mpirun")


@pytest.mark.parametrize("np", [2, 4])
def test_ranks_that_diverge(launch, np):
    launch(np, "diverging")
