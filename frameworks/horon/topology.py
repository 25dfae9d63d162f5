"""Topologies of gossip: who meets whom in which round, and how fast that brings all together.

    ring = horon.topology.Ring(8)
    ring.peers(0, t=0)        # ([1, 7], [1, 7]): whom rank 0 sends to, whom it hears
    ring.contraction()        # 0.805: what a period leaves of the participants' disagreement

The graphs are the runtime's own: what is asked here is what op=hvd.Gossip(topology=ring) does. They
need no init, and n is any number of participants (ranks, or nodes). plot() needs matplotlib,
to_networkx() and from_networkx() need networkx. A graph of one's own is a Custom(), or a subclass
of Topology with its own edges(t) or matrix(t), and `period`.
"""

from collections import defaultdict

from horon import _core, mixing as mixings
from horon.errors import HoronInvalidArgument

_ROUNDS_LOOKED_AT = 64  # of graphs that never repeat
_ROUNDS_ARE_IN = ("edges", "matrix", "peers")


class Topology:
    """A graph of `n` participants by the runtime's parameters, such as "graph=base,k=2"."""

    def __init__(self, n: int, parameters: str = "graph=auto", mixing=None):
        self.n = int(n)
        self.mixing = mixing or mixings.Natural()
        if self.mixing.matrices:
            plain = Topology(n, parameters)
            parameters = _edges_of_matrices(plain, self.mixing.matrices)
        self.links = parameters
        weights = self.mixing.parameters
        self.parameters = ",".join(filter(None, (parameters, f"n={self.n}", weights)))
        self._graph = _core.Graph(f"gossip:{self.parameters}", self.n)

    def __repr__(self) -> str:
        return f"Topology({self.n}, {self.links!r}, {self.mixing!r})"

    def with_mixing(self, mixing) -> "Topology":
        """The same links with other weights."""
        return Topology(self.n, self.as_run().links, mixing)

    def as_run(self) -> "Topology":
        """What the runtime does of it. Itself; of a subclass with edges or a matrix of its own the
        Custom graph of their rounds 0 to `period`. HoronInvalidArgument where that is not all."""
        own = [f for f in _ROUNDS_ARE_IN if getattr(type(self), f) is not getattr(Topology, f)]
        if not own:
            return self
        kind, period = type(self).__name__, self.period
        if own not in (["edges"], ["matrix"]):
            raise HoronInvalidArgument(
                f"{kind} has {' and '.join(own)} of its own: override edges(t) or matrix(t), one "
                "of them, and `period`; the others follow. Or give a horon.topology.Custom(...)")
        rounds = [[tuple(row) for row in getattr(self, own[0])(t)] for t in range(2 * period)]
        if period < 1 or rounds[:period] != rounds[period:]:
            raise HoronInvalidArgument(
                f"{kind} has {own[0]} of its own that do not repeat after its `period`, {period}: "
                "the runtime needs all rounds beforehand. Override `period`, too; a graph that "
                "never repeats is neighbor_allreduce with the weights of each call")
        rounds = rounds[:period]
        return (from_matrix(*rounds) if own == ["matrix"]
                else Custom(self.n, *rounds, mixing=self.mixing))

    @property
    def period(self) -> int:
        """Rounds until it repeats; 0: never."""
        return self._graph.period

    def edges(self, t: int = 0) -> list:
        """[(from, to, weight), ...] of round t, own weights included."""
        return [(sender, to, weight) for to, sender, weight in self._graph.round(t)]

    def peers(self, i: int, t: int = 0) -> tuple:
        """(whom i sends to, whom i hears) in round t, ascending."""
        _from_0_to("the participant", i, self.n)
        out, heard = self._all_peers(t)[i]
        return sorted(out), sorted(heard)

    def matrix(self, t: int = 0) -> list:
        """Round t's mixing matrix, a list of rows: row i is what i's new value is made of."""
        rows = [[0.0] * self.n for _ in range(self.n)]
        for sender, to, weight in self.edges(t):
            rows[to][sender] = weight
        return rows

    def contraction(self, rounds=None, first: int = 0) -> float:
        """The most that a period (or `rounds` rounds) leaves of the participants' disagreement: 0
        is the exact mean, 1 nothing gained. Graphs that never repeat need `rounds`."""
        if rounds is None and self.period == 0:
            raise HoronInvalidArgument(f"{self!r} never repeats: say over how many rounds")
        rounds = self.period if rounds is None else rounds
        if first < 0 or rounds < 0:
            raise HoronInvalidArgument(f"first is {first}, rounds is {rounds}: both from 0 up")
        return self.as_run()._graph.contraction(first, rounds)

    def rounds_for(self, tol: float, first: int = 0, most: int = 100000) -> int:
        """The fewest rounds that leave at most `tol` of the disagreement."""
        if first < 0:
            raise HoronInvalidArgument(f"first is {first}: rounds count from 0")
        rounds = self.as_run()._graph.rounds_for(first, float(tol), most)
        if rounds < 0:
            raise HoronInvalidArgument(f"{self!r} does not reach {tol} within {most} rounds")
        return rounds

    def rounds(self) -> range:
        """Those of a period; of a graph that never repeats, the first ones."""
        return range(self.period or _ROUNDS_LOOKED_AT)

    def _sums(self, side: int) -> bool:
        for t in self.rounds():
            sums = defaultdict(float)
            for edge in self.edges(t):
                sums[edge[side]] += edge[2]
            if any(abs(total - 1) > 1e-9 for total in sums.values()):
                return False
        return True

    @property
    def rows_sum_to_one(self) -> bool:
        """Whether receivers take weighted means: all approach one value."""
        return self._sums(1)

    @property
    def columns_sum_to_one(self) -> bool:
        """Whether senders give all of their value away: the sum over all is kept."""
        return self._sums(0)

    @property
    def is_symmetric(self) -> bool:
        """Whether W[i][j] = W[j][i] in every round."""
        return all(
            set(self.edges(t)) == {(r, s, w) for s, r, w in self.edges(t)} for t in self.rounds()
        )

    @property
    def is_regular(self) -> bool:
        """Whether in every round all hear, and send to, equally many."""
        for t in self.rounds():
            degrees = {(len(out), len(heard)) for out, heard in self._all_peers(t)}
            if len(degrees) > 1 or any(out != heard for out, heard in degrees):
                return False
        return True

    def _all_peers(self, t):
        out, heard = defaultdict(list), defaultdict(list)
        for sender, to, _ in self.edges(t):
            if sender != to:
                out[sender].append(to)
                heard[to].append(sender)
        return [(out[i], heard[i]) for i in range(self.n)]

    @property
    def is_bipartite(self) -> bool:
        """Whether two groups exist such that only members of different ones ever meet."""
        return self.sides() is not None

    def sides(self):
        """The group of each participant, 0 or 1, if only members of different ones ever meet (0 is
        in group 0); else None."""
        beside = defaultdict(set)
        for t in self.rounds():
            for i, (out, heard) in enumerate(self._all_peers(t)):
                beside[i].update(out, heard)
        side = {}
        for start in range(self.n):
            side.setdefault(start, 0)
            open_ = [start]
            while open_:
                i = open_.pop()
                for j in beside[i]:
                    if j not in side:
                        side[j] = 1 - side[i]
                        open_.append(j)
                    elif side[j] == side[i]:
                        return None
        return [side[i] for i in range(self.n)]

    def to_networkx(self, t: int = 0):
        """Round t as a networkx.DiGraph from senders to receivers with `weight`."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(range(self.n))
        graph.add_weighted_edges_from(self.edges(t))
        return graph

    def plot(self, rounds=None):
        """A matplotlib figure: the links and the matrix of each round (the first four)."""
        from horon.topology_plot import plot

        return plot(self, range(min(self.period or 4, 4)) if rounds is None else rounds)


def _from_0_to(what, given, count) -> None:
    if given not in range(count):
        raise HoronInvalidArgument(f"{what} is {given!r}: use one of 0 to {count - 1}")


def _edge_text(sender, to, weight=None) -> str:
    if weight is not None and weight < 0:
        raise HoronInvalidArgument(f"the weight from {sender} to {to} is {weight}: weights must "
                                   "not be negative, or values move apart")
    return f"{sender}>{to}" if weight is None else f"{sender}>{to}*{float(weight)!r}"


def _edges_of_matrices(topology: Topology, matrices) -> str:
    """The parameters of a graph with the links of `topology` and the weights of `matrices`."""
    given = (len(matrices), len(matrices[0]))
    if given != (topology.period, topology.n):
        raise HoronInvalidArgument(
            f"{topology!r} has {topology.period} rounds of {topology.n} participants, but given "
            f"are {given[0]} matrices for {given[1]}: horon.topology.from_matrix() makes a graph "
            "of matrices alone"
        )
    for t, matrix in enumerate(matrices):
        links = {(s, r) for s, r, _ in topology.edges(t)}
        for to, row in enumerate(matrix):
            for sender, weight in enumerate(row):
                if weight != 0 and (sender, to) not in links:
                    raise HoronInvalidArgument(
                        f"the weight {weight} in row {to}, column {sender} of round {t}: "
                        f"participant {sender} does not send to {to}"
                    )
    return _parameters_of_matrices(matrices)


def _parameters_of_matrices(matrices) -> str:
    return _parameters_of_edges(
        [(sender, to, weight) for to, row in enumerate(matrix)
         for sender, weight in enumerate(row) if weight != 0]
        for matrix in matrices
    )


def _parameters_of_edges(rounds) -> str:
    text = "/".join(";".join(_edge_text(*edge) for edge in edges) for edges in rounds)
    return f"graph=custom,edges={text}"


def Custom(n: int, *rounds, mixing=None) -> Topology:
    """A graph of one's own: for each round a list of (from, to), or of (from, to, weight) where
    (i, i, weight) is one's own weight. Everybody's value must reach everybody over the rounds."""
    rounds = [list(edges) for edges in rounds]
    if n == 1 and not any(rounds):
        rounds = [[(0, 0, 1.0)]] * max(1, len(rounds))
    if n > 1 and not any(rounds):
        raise HoronInvalidArgument(f"a graph of {n} participants needs edges: give a list of "
                                   "(from, to) for each round")
    return Topology(n, _parameters_of_edges(rounds), mixing)


def from_matrix(*matrices) -> Topology:
    """The graph with these mixing matrices, one a round; rows are receivers."""
    plain = mixings.Custom(*matrices).matrices
    return Topology(len(plain[0]), _parameters_of_matrices(plain))


def from_networkx(*graphs, mixing=None) -> Topology:
    """One round for each graph, with nodes 0 to n-1. Undirected edges go both ways; edges with a
    `weight` bring it along, if all have one."""
    if not graphs:
        raise HoronInvalidArgument("give a graph for each round, at least one")
    rounds = []
    for graph in graphs:
        edges = list(graph.edges(data="weight"))
        if not graph.is_directed():
            edges += [(b, a, weight) for a, b, weight in edges if a != b]
        if any(weight is None for _, _, weight in edges):
            edges = [(a, b) for a, b, _ in edges if a != b]
        rounds.append(edges)
    return Custom(graphs[0].number_of_nodes(), *rounds, mixing=mixing)


def _family(name: str, text: str, **defaults):
    def make(n: int, mixing=None, **parameters) -> Topology:
        unknown = set(parameters) - set(defaults)
        if unknown:
            raise TypeError(f"{make.__name__}() has no parameter {', '.join(sorted(unknown))}")
        given = [f"{key}={int(value)}" for key, value in parameters.items()]
        return Topology(n, ",".join([f"graph={name}", *given]), mixing)

    make.__name__ = "".join(word.capitalize() for word in name.split("_"))
    options = "".join(f", {key}={value}" for key, value in defaults.items())
    make.__doc__ = f"{make.__name__}(n, mixing=None{options}): {text}"
    return make


FullyConnected = _family("complete", "everybody hears everybody.")
Ring = _family("ring", "both neighbors, a third each.")
RingOneWay = _family("ring_one_way", "hears the one before.")
RingAlternating = _family("ring_alternating", "one neighbor, then the other. n even.")
Star = _family("star", "all meet the centre.", centre=0)
Grid2D = _family("grid", "up to four neighbors.")
Torus2D = _family("torus", "four neighbors, around the edges.")
StaticExponential = _family("static_exponential", "hears those 1, 2, 4, ... before.")
SymmetricExponential = _family("symmetric_exponential", "1, b, b*b, ... to both sides.", b=2)
Hypercube = _family("hypercube", "all whose number differs in one bit. n = 2^k.")
OnePeerExponential = _family(
    "one_peer_exponential", "in turn 1, 2, 4, ... further on; exact after log2 n rounds for "
    "n = 2^k. rotate=1: in another order of the participants each time.", rotate=0, seed=2403)
OnePeerHypercube = _family(
    "one_peer_hypercube", "in turn the partner that differs in one bit; a partner that does not "
    "exist is a round off.", rotate=0, seed=2403)
MPeerExponential = _family("m_peer_exponential", "k peers a round; exact for n = (k+1)^q.", k=2)
DynamicDirectedExponential = _family("directed_exponential", "in turn +1, -1, +2, -2, +4, ...")
DynamicBipartiteExponential = _family(
    "directed_bipartite_exponential", "in turn +1, -1, +3, -3, +5, -5, +9, ... n even.")
DynamicDirectedLinear = _family("directed_linear", "in turn +1, -1, +3, -3, +5, ...")
DynamicBipartiteLinear = _family("directed_bipartite_linear", "in turn 1, 3, 5, ... n even.")
BipartiteExponential = _family(
    "bipartite_exponential", "pairs of an even and an odd one; exact for n = 2^k. n even.")
Base = _family("base", "the exact mean after a few rounds for any n, with k peers a round.", k=1)
RandomMatching = _family("random_matching", "random pairs, the same on all ranks.", seed=2403)
InnerOuterRing = _family(
    "inner_outer_ring", "hosts of `local`: one member looks outside, the rest inside.", local="?")
InnerOuterExponential = _family(
    "inner_outer_exponential", "the same, with distances 1, 2, 4, ...", local="?")
ShiftOne = _family("shift_one", "the lower half meets the upper one, shifted by a round. n even.")

# By the numbers of Stochastic Gradient Push's scripts.
GRAPHS = (DynamicDirectedExponential, DynamicBipartiteExponential, DynamicDirectedLinear,
          DynamicBipartiteLinear, Ring, MPeerExponential)


def graph_by_id(number: int, n: int, peers: int = 1, mixing=None) -> Topology:
    """The graph of that number, 0 to 5; `peers` a round for number 5."""
    _from_0_to("the graph's number", number, len(GRAPHS))
    if peers != 1 and GRAPHS[number] is not MPeerExponential:
        raise HoronInvalidArgument(f"peers is for number {GRAPHS.index(MPeerExponential)}: "
                                   f"graph {number} has its own")
    options = {"k": peers} if GRAPHS[number] is MPeerExponential else {}
    return GRAPHS[number](n, mixing, **options)
