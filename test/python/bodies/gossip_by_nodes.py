"""Gossip in which nodes take part as one: on one node, on several, also where they differ in their
ranks. Nodes are blocks of HORON_LOCAL_SIZE ranks."""

import os
import warnings

import torch
from common import close, raises

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch.gossip_grad import GossipGraDState
from horon.torch.participants import count_nodes


def nodes():
    """The ranks of each node."""
    each = int(os.environ.get("HORON_LOCAL_SIZE", hvd.size()))
    return [list(range(hvd.size()))[first:first + each] for first in range(0, hvd.size(), each)]


def me():
    return next(number for number, ranks in enumerate(nodes()) if hvd.rank() in ranks)


def means():
    """Of every node's ranks' numbers."""
    return torch.tensor([sum(ranks) / len(ranks) for ranks in nodes()], dtype=torch.float64)


def mixed(graph, rounds=1):
    """What this rank's number becomes."""
    values = means()
    for t in range(rounds):
        values = torch.tensor(graph.matrix(t), dtype=torch.float64) @ values
    return values[me()].expand(3)


def mine():
    return torch.full((3,), float(hvd.rank()), dtype=torch.float64)


def check_all_ranks_count_alike():
    assert count_nodes(hvd.global_process_set) == len(nodes())
    if hvd.size() > 2:
        for ranks in ([0, 1], [0, hvd.size() - 1]):
            some = hvd.add_process_set(ranks)
            if hvd.rank() in ranks:
                assert count_nodes(some) == sum(any(r in node for r in ranks) for node in nodes())
            hvd.remove_process_set(some)


def check_optimizers():
    auto = topology.Topology(len(nodes()))
    for op, graph in ((hvd.Gossip("dpsgd", hierarchical=True), auto),
                      (hvd.Gossip("dpsgd", "ring", hierarchical=True), topology.Ring(len(nodes()))),
                      (hvd.Gossip("dpsgd", style="atc", hierarchical=True), auto),
                      (hvd.Gossip("osgp", hierarchical=True), auto),
                      (hvd.Gossip("gt", hierarchical=True), auto),
                      (hvd.Gossip("push_diging", hierarchical=True), auto)):
        x = torch.nn.Parameter(mine())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=0.0), [("x", x)], op=op)
        for _ in range(3):
            x.sum().backward()
            optimizer.step()
        optimizer.finish_gossip()
        close(x.detach(), mixed(graph, 3), 1e-12)


def check_exact_diffusion():
    x = torch.nn.Parameter(mine())
    op = hvd.Gossip("exact_diffusion", hierarchical=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=0.0), [("x", x)], op=op)
    count = len(nodes())
    matrix = torch.tensor(op.graph(count).matrix(0) if count > 1 else [[1.0]],
                          dtype=torch.float64)
    before = here = means()
    for step in range(25):
        x.sum().backward()
        optimizer.step()
        moved = here if step == 0 else 2 * here - before
        before, here = here, matrix @ moved
        close(x.detach(), here[me()].expand(3), 1e-12)
    close(here, means().mean().expand(count), 1e-3)


def check_gossip_average_is_the_ranks_mean():
    """However many ranks a node has."""
    mean = (hvd.size() - 1) / 2
    star = {"topology": "star", "mixing": mixing.Push(), "rounds": 80}
    for options in ({}, {"topology": "base"}, {"topology": "random_matching", "rounds": 80},
                    {"tol": 1e-6}, star):
        for _ in range(2):  # a name comes again
            got = hvd.gossip_average(mine(), hierarchical=True, name="mean", **options)
            close(got, torch.full((3,), mean, dtype=torch.float64), 1e-6)


def check_gossip_average_is_the_mean_of_a_process_set():
    if hvd.size() == 1:
        return  # there is none but that of all ranks
    members = list(range(hvd.size() - 1))
    some = hvd.add_process_set(members)
    if some.included():
        for options in ({}, {"topology": "star", "mixing": mixing.Push(), "rounds": 80}):
            got = hvd.gossip_average(mine(), hierarchical=True, name="of a set", process_set=some,
                                     **options)
            mean = torch.full((3,), (len(members) - 1) / 2, dtype=torch.float64)
            close(got, mean, 1e-6)
    hvd.remove_process_set(some)


def check_one_round():
    ring = topology.Ring(len(nodes()))
    close(hvd.neighbor_allreduce(mine(), topology=ring, hierarchical=True), mixed(ring), 1e-12)


def check_gossip_grad():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = GossipGraDState(random_seed=None)
    got = mine()
    state.average_unit(got)
    if 1 < len(nodes()) < hvd.size():
        close(got, mixed(topology.OnePeerExponential(len(nodes()))), 1e-12)
    else:
        matrix = torch.tensor(topology.OnePeerExponential(hvd.size()).matrix(),
                              dtype=torch.float64)
        want = matrix @ torch.arange(hvd.size(), dtype=torch.float64)
        close(got, want[hvd.rank()].expand(3), 1e-12)
    if not hvd.is_homogeneous():
        with raises(hvd.HoronUnsupported, words=["use None"]):
            GossipGraDState(proc_per_node=2)


def check_bytes_between_nodes_are_counted():
    """On a ring of nodes: the whole tensor to each neighbor, by the node's ranks together."""
    prefix = "gossip.bytes.to."

    def sent():
        return sum(value for name, value in hvd.counters().items() if name.startswith(prefix))

    before, count = sent(), len(nodes())
    hvd.allreduce_(torch.ones(1200), name="counted",
                   op=hvd.Gossip(topology="ring", hierarchical=True))
    total = hvd.allreduce(torch.tensor(float(sent() - before)), op=hvd.Sum).item()
    assert total == 4800 * count * min(2, count - 1), total
