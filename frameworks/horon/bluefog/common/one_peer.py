"""Whom to send to and whom to hear, round by round: ([destinations], [sources]) for ever.

Ranks lie in blocks of local_size a machine. Who has nobody to meet in a round gets empty lists.
"""

import itertools

from horon import topology as topologies
from horon.errors import HoronInvalidArgument


def _rounds(graph, rank):
    return (graph.peers(rank, t) for t in itertools.count())


def _inner_outer(make, world_size, local_size, rank):
    if local_size == 2:
        raise HoronInvalidArgument(
            "on machines of 2 ranks these never meet, for one of them is outside at a time: use "
            "GetDynamicOnePeerSendRecvRanks or hierarchical_neighbor_allreduce")
    return _rounds(make(world_size, local=local_size), rank)


def GetInnerOuterRingDynamicSendRecvRanks(world_size, local_size, self_rank):
    """In turn one rank of each machine sends to its counterpart on the next machine; the others
    send to the next one inside."""
    return _inner_outer(topologies.InnerOuterRing, world_size, local_size, self_rank)


def GetInnerOuterExpo2DynamicSendRecvRanks(world_size, local_size, self_rank):
    """The same with distances 1, 2, 4, ... inside and outside. Unlike BlueFog's, the distance
    outside grows once all ranks of a machine have been there, so that every rank meets its
    counterparts at all of them."""
    return _inner_outer(topologies.InnerOuterExponential, world_size, local_size, self_rank)


def GetExp2DynamicSendRecvMachineRanks(world_size, local_size, self_rank, local_rank):
    """Of machines: the one 1, 2, 4, ... further on, and the one as far before."""
    if world_size % local_size != 0 or self_rank % local_size != local_rank:
        raise HoronInvalidArgument(
            f"rank {self_rank} of {world_size} cannot be number {local_rank} of machines with "
            f"{local_size} ranks each")
    machines = topologies.OnePeerExponential(world_size // local_size)
    return _rounds(machines, self_rank // local_size)


def _turns(graph, rank):
    """Whom `rank` sends to, one after the other: by distance."""
    size = graph.number_of_nodes()
    return sorted((d for d in graph.successors(rank) if d != rank),
                  key=lambda other: (other - rank) % size)


def GetDynamicOnePeerSendRecvRanks(topo, self_rank):
    """One out-neighbor of the graph a turn."""
    turns = {rank: _turns(topo, rank) for rank in topo.nodes}
    turn = 0
    while True:
        sends = {rank: others[turn % len(others)] for rank, others in turns.items() if others}
        mine = [sends[self_rank]] if self_rank in sends else []
        yield mine, sorted(rank for rank, to in sends.items() if to == self_rank)
        turn += 1
