"""Tensors of more than 2^31 elements on 2 ranks, over shared memory and over MPI. The checks are in
bodies/."""

import os

import pytest
from conftest import in_full_tier

# Of 2 ranks: a tensor and what is gathered, and the segment; over MPI, copies to send from.
NEEDED_GIB = {"horonrun": 12, "mpirun": 18}


def skip_without_memory(launcher):
    needed = NEEDED_GIB[launcher]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    if free < needed:
        pytest.skip(f"needs {needed} GiB of free memory; there are {free}")


@in_full_tier
def test_more_than_two_to_the_31(launch):
    skip_without_memory("horonrun")
    launch(2, "large", timeout=1800)


@in_full_tier
def test_more_than_two_to_the_31_over_mpi(launch, needs_mpi):
    """Each rank is a node: everything travels as MPI's messages, whose counts are an int."""
    skip_without_memory("mpirun")
    launch(2, "large", launcher="mpirun", env={"HORON_LOCAL_SIZE": "1"}, timeout=1800)


@in_full_tier
def test_adasum_of_a_bucket_of_more_than_two_to_the_31(launch):
    skip_without_memory("horonrun")
    fused = 128 * (5 << 30)  # Adasum fuses a 128th of the threshold
    launch(2, "large_adasum", env={"HORON_FUSION_THRESHOLD": str(fused)}, timeout=600)
