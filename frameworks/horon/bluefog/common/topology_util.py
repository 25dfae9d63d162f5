"""BlueFog's topologies by name, as networkx.DiGraph with weights on edges and self-loops."""

import networkx

from horon import topology as topologies


def ExponentialTwoGraph(size):
    return topologies.StaticExponential(size).to_networkx()


def ExponentialGraph(size, base=2):
    """Sends to those 1, base, base^2, ... further on, in equal parts."""
    offsets, far = [], 1
    while far < size:
        offsets.append(far)
        far *= base
    edges = [(i, (i + offset) % size) for i in range(size) for offset in offsets]
    return topologies.Custom(size, edges).to_networkx() if edges else _alone()


def SymmetricExponentialGraph(size, base=4):
    return topologies.SymmetricExponential(size, b=base).to_networkx()


def MeshGrid2DGraph(size, shape=None):
    """shape: (rows, columns); None: as square as the size allows."""
    if shape is None or size == 1:
        return topologies.Grid2D(size).to_networkx()
    grid = networkx.grid_2d_graph(*shape)
    grid = networkx.convert_node_labels_to_integers(grid, ordering="sorted")
    return topologies.from_networkx(grid).to_networkx()


def StarGraph(size, center_rank=0):
    return topologies.Star(size, centre=center_rank).to_networkx()


def RingGraph(size, connect_style=0):
    """connect_style: 0 both neighbors, 1 sends to the left one only, 2 to the right one only."""
    if connect_style == 0 or size == 1:
        return topologies.Ring(size).to_networkx()
    step = -1 if connect_style == 1 else 1
    return topologies.Custom(size, [(i, (i + step) % size) for i in range(size)]).to_networkx()


def FullyConnectedGraph(size):
    return topologies.FullyConnected(size).to_networkx()


def _alone():
    return topologies.Ring(1).to_networkx()


def IsTopologyEquivalent(one, other) -> bool:
    """The same edges between the same ranks; weights do not count."""
    if one is None or other is None:
        return False
    return set(one.nodes) == set(other.nodes) and set(one.edges) == set(other.edges)


def IsRegularGraph(graph) -> bool:
    return len({degree for _, degree in graph.degree()}) <= 1


def GetRecvWeights(graph, rank):
    """(own weight, {source: weight})."""
    weights = {s: data["weight"] for s, _, data in graph.in_edges(rank, data=True)}
    return weights.pop(rank, 0.0), weights


def GetSendWeights(graph, rank):
    """(own weight, {destination: weight})."""
    weights = {d: data["weight"] for _, d, data in graph.out_edges(rank, data=True)}
    return weights.pop(rank, 0.0), weights


def _turns(graph, rank):
    """Whom `rank` sends to, one after the other: by distance."""
    size = graph.number_of_nodes()
    return sorted((d for d in graph.successors(rank) if d != rank),
                  key=lambda other: (other - rank) % size)


def GetDynamicOnePeerSendRecvRanks(graph, self_rank):
    """Yields ([whom to send to], [whom to hear]) forever: one out-neighbor of the graph a turn."""
    turns = {rank: _turns(graph, rank) for rank in graph.nodes}
    turn = 0
    while True:
        sends = {rank: others[turn % len(others)] for rank, others in turns.items() if others}
        mine = [sends[self_rank]] if self_rank in sends else []
        yield mine, sorted(rank for rank, to in sends.items() if to == self_rank)
        turn += 1
