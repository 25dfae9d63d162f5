"""BlueFog's topologies by name, as networkx.DiGraph with weights on edges and self-loops."""

import networkx

from horon import topology as topologies
from horon.bluefog.common.one_peer import (  # noqa: F401
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
)
from horon.errors import HoronInvalidArgument


def ExponentialTwoGraph(size):
    return topologies.StaticExponential(size).to_networkx()


def isPowerOf(x, base) -> bool:
    """Whether x is 1, base, base^2, ..., of whole numbers from 1 and from 2 on."""
    if not isinstance(base, int) or base < 2 or x < 1:
        raise HoronInvalidArgument(f"isPowerOf({x!r}, {base!r}): x is at least 1, base a whole "
                                   "number of at least 2")
    while x % base == 0:
        x //= base
    return x == 1


def ExponentialGraph(size, base=2):
    """Sends to those 1, base, base^2, ... further on, in equal parts."""
    return _in_equal_parts(size, [(i, (i + offset) % size) for i in range(size)
                                  for offset in _powers(size, base)])


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


def _powers(size, base) -> list:
    """1, base, base^2, ... below size."""
    return [far for far in range(1, size) if isPowerOf(far, base)]


def _inner_outer(world_size, local_size, distances):
    """All to all inside a machine of local_size ranks, and to counterparts `distances` machines
    further on, in equal parts."""
    if world_size % local_size != 0:
        raise HoronInvalidArgument(
            f"machines of {local_size} ranks do not divide {world_size} ranks")
    firsts = range(0, world_size, local_size)
    inside = [(first + i, first + j) for first in firsts for i in range(local_size)
              for j in range(local_size) if i != j]
    outside = [(i, (i + far * local_size) % world_size) for i in range(world_size)
               for far in distances]
    return _in_equal_parts(world_size, inside + outside)


def InnerOuterRingGraph(world_size, local_size):
    """Ranks meet all others of their machine, and send to their counterpart on the next one."""
    machines = world_size // local_size
    return _inner_outer(world_size, local_size, [1] if machines > 1 else [])


def InnerOuterExpo2Graph(world_size, local_size):
    """The same with machines 1, 2, 4, ... further on."""
    return _inner_outer(world_size, local_size, _powers(world_size // local_size, 2))


def _in_equal_parts(size, edges):
    graph = topologies.Custom(size, edges) if edges else topologies.Ring(1)
    return graph.to_networkx()


def IsTopologyEquivalent(topo1, topo2) -> bool:
    """The same edges between the same ranks, of the same weights."""
    if topo1 is None or topo2 is None:
        return False
    return set(topo1.nodes) == set(topo2.nodes) and _weighted(topo1) == _weighted(topo2)


def _weighted(graph) -> dict:
    return {(a, b): weight for a, b, weight in graph.edges(data="weight", default=1)}


def IsRegularGraph(topo) -> bool:
    return len({degree for _, degree in topo.degree()}) <= 1


def GetRecvWeights(topo, rank):
    """(own weight, {source: weight})."""
    weights = {s: data["weight"] for s, _, data in topo.in_edges(rank, data=True)}
    return weights.pop(rank, 0.0), weights


def GetSendWeights(topo, rank):
    """(own weight, {destination: weight})."""
    weights = {d: data["weight"] for _, d, data in topo.out_edges(rank, data=True)}
    return weights.pop(rank, 0.0), weights
