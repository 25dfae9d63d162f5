"""The torch.distributed backend and DDP's communication hook, on 2 and 4 ranks, over shared memory
and over MPI. The checks are in bodies/."""

import pytest
from conftest import in_full_tier

ALL = ["torch_distributed", "ddp_hooks", "gossip_grad"]


@pytest.mark.parametrize("np", [pytest.param(2, marks=in_full_tier), 4])
def test_horonrun(launch, np):
    launch(np, *ALL)


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_mpirun(launch, needs_mpi, np):
    launch(np, *ALL, launcher="mpirun")


def test_gossip_grad_of_one_rank(launch):
    launch(1, "gossip_grad")


@pytest.mark.parametrize("np", [6, 8])
def test_gossip_grad_of_more_ranks(launch, np):
    """Three and four groups of two, cubes with and without missing corners, and orders that
    rotate."""
    launch(np, "gossip_grad::cube", "gossip_grad::groups_of_two", "gossip_grad::rotates",
           "gossip_grad::checkpoint")


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_ranks_that_diverge(launch, np):
    launch(np, "diverging")
