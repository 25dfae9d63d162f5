"""Algorithms that reach the optimum of all ranks' data: on quadratics with different minima."""

import copy

import torch
from common import close, raises, same

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology


def problem():
    """A and b of every rank, and the minimum of the sum of |A x - b|^2 / 2."""
    generator = torch.Generator().manual_seed(3)
    a = torch.eye(6) + 0.1 * torch.randn(hvd.size(), 6, 6, generator=generator)
    a, b = a.double(), torch.randn(hvd.size(), 6, generator=generator).double()
    inner = torch.einsum("nij,nik->jk", a, a)
    return a, b, torch.linalg.solve(inner, torch.einsum("nij,ni->j", a, b))


def begin(op):
    x = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    return x, hvd.DistributedOptimizer(torch.optim.SGD([x], lr=0.1), op=op)


def train(x, optimizer, steps):
    a, b, _ = problem()
    for _ in range(steps):
        optimizer.zero_grad()
        residual = a[hvd.rank()] @ x - b[hvd.rank()]
        (residual @ residual / 2).backward()
        optimizer.step()


def farthest(x):
    error = (x.detach() - problem()[2]).abs().max()
    return hvd.allreduce(error, op=hvd.Max, name="farthest").item()


def check_the_optimum_is_reached_where_plain_gossip_stops_short():
    size = hvd.size()
    ring = topology.Ring(size)
    if size > 3:  # fewer are all neighbors: each exchange is exact
        x, optimizer = begin(hvd.Gossip("dpsgd", topology=ring))
        train(x, optimizer, 300)
        assert farthest(x) > 1e-3, farthest(x)
    star = topology.Star(size, mixing=mixing.Push())
    for op in (hvd.Gossip("gt", topology=ring), hvd.Gossip("gt"), hvd.Gossip("exact_diffusion"),
               hvd.Gossip("push_diging", topology=star)):
        x, optimizer = begin(op)
        train(x, optimizer, 300)
        assert farthest(x) < 1e-7, (op, farthest(x))


def check_the_mean_of_what_is_tracked_is_the_gradients():
    for algorithm in ("gt", "push_diging"):
        x, optimizer = begin(hvd.Gossip(algorithm))
        train(x, optimizer, 5)
        kept = optimizer.state_dict()["horon_gossip"]["kept"]
        if hvd.size() > 1:
            close(hvd.allreduce(kept["y"][0]), hvd.allreduce(kept["gradient"][0]), 1e-12)


def check_checkpoints_go_on_bit_by_bit():
    for algorithm in ("gt", "exact_diffusion", "push_diging"):
        x, optimizer = begin(hvd.Gossip(algorithm))
        train(x, optimizer, 7)
        saved = copy.deepcopy((optimizer.state_dict(), x.detach()))
        train(x, optimizer, 5)
        other, resumed = begin(hvd.Gossip(algorithm))
        with torch.no_grad():
            other.copy_(saved[1])
        resumed.load_state_dict(saved[0])
        train(other, resumed, 5)
        same(other.detach(), x.detach())


def check_refusals():
    with raises(ValueError, words=["order of its own"]):
        begin(hvd.Gossip("gt", overlap=True))
    if hvd.size() > 2:
        with raises(ValueError, words=["algorithm='gt'"]):
            begin(hvd.Gossip("exact_diffusion", topology="base"))
    x, optimizer = begin(hvd.Gossip("gt"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(x.sum()).backward()
    with raises(hvd.HoronUnsupported, words=["GradScaler"]):
        scaler.step(optimizer)
    optimizer.finish_gossip()
