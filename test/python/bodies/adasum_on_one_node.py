"""An Adasum between nodes, where there is only one."""

import torch

import horon.torch as hvd


def check_a_forced_local_op_is_all_there_is():
    """That it is, a warning says once in a life, of rank 0: topic_test.py counts it."""
    x = torch.full((3,), float(hvd.rank()))
    total = sum(range(hvd.size()))
    for _ in range(2):
        mean = hvd.allreduce(x, name="mean", op=hvd.AdasumOp(local_op="average"))
        assert torch.equal(mean, torch.full((3,), total / hvd.size())), mean
