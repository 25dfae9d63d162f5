"""HORON_HIERARCHICAL=0, and Horovod's name of it: sums that know nothing of nodes: OWN_LIFE.
Started on two pretended nodes of two ranks, where the bits of a sum show how it was made."""

import os

import torch
from bits import expected, of_rank

import horon.torch as hvd

OWN_LIFE = True
COUNTS = (17, 1000)
NODES = [0, 0, 1, 1]


def sums():
    return [hvd.allreduce(of_rank(hvd.rank(), count, torch.float32), op=hvd.Sum, name=f"f{count}")
            for count in COUNTS]


def check_which_names_choose():
    hierarchical = [expected(NODES, count, torch.float32) for count in COUNTS]
    flat = [expected(range(4), count, torch.float32) for count in COUNTS]
    assert not any(torch.equal(a, b) for a, b in zip(hierarchical, flat))
    for variables, wanted in (
        ({}, hierarchical),
        ({"HORON_HIERARCHICAL": "0"}, flat),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}, flat),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HORON_HIERARCHICAL": "1"}, hierarchical),
        ({"HORON_HIERARCHICAL_ALLREDUCE": "no"}, flat),
    ):
        os.environ.update(variables)
        hvd.init()
        for got, want in zip(sums(), wanted):
            assert torch.equal(got, want), variables
        hvd.shutdown()
        for name in variables:
            del os.environ[name]
    hvd.init()
