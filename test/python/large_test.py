"""Tensors of more than 2^31 elements, on 2 ranks over shared memory. The checks are in bodies/."""

import os

import pytest
from conftest import only_in_full_tier

NEEDED_GIB = 12  # of 2 ranks: a tensor and what is gathered, and the segment


def test_more_than_two_to_the_31(launch):
    only_in_full_tier()
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    if free < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of free memory; there are {free}")
    launch(2, "large", timeout=1800)
