"""The topologies that BlueFog's functions go by: one of ranks, one of machines (nodes)."""

import networkx

from horon import topology as topologies
from horon.bluefog.common import topology_util
from horon.errors import HoronInvalidArgument
from horon.runtime import cross_rank, cross_size, rank, size


class _Topology:
    """Set and read on the thread that trains."""

    def __init__(self):
        self.graph = None
        self.op = None  # the runtime's form of it
        self.weighted = False

    def set(self, graph, weighted, n, keep=False):
        graph = topology_util.ExponentialGraph(n) if graph is None else graph
        if not isinstance(graph, networkx.DiGraph) or set(graph.nodes) != set(range(n)):
            raise HoronInvalidArgument(
                f"the topology must be a networkx.DiGraph of nodes 0 to {n - 1}, such as "
                f"RingGraph({n})")
        if keep:
            return (topology_util.IsTopologyEquivalent(graph, self.graph)
                    and bool(weighted) == bool(self.weighted))
        plain = networkx.DiGraph(graph)
        if not weighted:  # equal parts of what is heard and one's own
            for to in plain.nodes:
                sources = [s for s in plain.predecessors(to) if s != to]
                for source in [to, *sources]:
                    plain.add_edge(source, to, weight=1 / (len(sources) + 1))
        self.op = topologies.from_networkx(plain)
        self.graph, self.weighted = graph, weighted
        return True


_ranks, _machines = _Topology(), _Topology()
skips_negotiation = False  # as told: it changes nothing
windows = {}  # by name: they keep the neighbors that they were made with


def set_topology(topology=None, is_weighted=False) -> bool:
    """None: the exponential graph. The same on all ranks. While there are windows nothing changes:
    False, or True where it is the one that is set."""
    return _ranks.set(topology, is_weighted, size(), keep=bool(windows))


def set_machine_topology(topology, is_weighted=False) -> bool:
    return _machines.set(topology, is_weighted, cross_size())


def load_topology():
    return _ranks.graph


def load_machine_topology():
    return _machines.graph


def is_topo_weighted() -> bool:
    return _ranks.weighted


def is_machine_topo_weighted() -> bool:
    return _machines.weighted


def in_neighbor_ranks() -> list:
    return _ranks.op.peers(rank())[1]


def out_neighbor_ranks() -> list:
    return _ranks.op.peers(rank())[0]


def in_neighbor_machine_ranks() -> list:
    """Empty where there is no topology of machines."""
    return _machine_peers()[1]


def out_neighbor_machine_ranks() -> list:
    """Empty where there is no topology of machines."""
    return _machine_peers()[0]


def _machine_peers() -> tuple:
    return ([], []) if _machines.op is None else _machines.op.peers(cross_rank())


def rank_topology():
    return _ranks.op


def machine_topology():
    if _machines.op is None:
        raise HoronInvalidArgument("call set_machine_topology() first")
    return _machines.op
