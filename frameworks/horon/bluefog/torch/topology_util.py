"""Neighbor lists from the other side's. For all ranks together; blocking, HoronLate on all of them
where one does not come within HORON_GOSSIP_TIMEOUT."""

from horon.errors import HoronInvalidArgument
from horon.runtime import rank, size
from horon.torch import allgather_object
from horon.torch.meeting import meet


def _all_lists(ranks):
    ranks = [int(one) for one in ranks]
    others = set(range(size())) - {rank()}
    if len(set(ranks)) != len(ranks) or not others.issuperset(ranks):
        raise HoronInvalidArgument(f"{ranks} of rank {rank()}: ranks are 0 to {size() - 1}, each "
                                   "once, without one's own")
    meet()
    return allgather_object(ranks)


def _matrix(edges):
    """Entry (i, j): what of i's value goes into j's, in equal parts with j's own."""
    import numpy

    matrix = numpy.eye(size())
    for sender, to in edges:
        matrix[sender, to] = 1
    return matrix / matrix.sum(axis=0)


def InferSourceFromDestinationRanks(dst_ranks, construct_adjacency_matrix=False):
    """The ranks that send to this one; with construct_adjacency_matrix (these, the matrix of n by
    n, whose columns sum to 1)."""
    edges = [(i, to) for i, lists in enumerate(_all_lists(dst_ranks)) for to in lists]
    sources = [sender for sender, to in edges if to == rank()]
    return (sources, _matrix(edges)) if construct_adjacency_matrix else sources


def InferDestinationFromSourceRanks(src_ranks, construct_adjacency_matrix=False):
    """The same from the other side: the ranks that this one sends to."""
    edges = [(sender, i) for i, lists in enumerate(_all_lists(src_ranks)) for sender in lists]
    destinations = [to for sender, to in edges if sender == rank()]
    return (destinations, _matrix(edges)) if construct_adjacency_matrix else destinations
