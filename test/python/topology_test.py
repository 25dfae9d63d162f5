"""horon.topology and horon.mixing: the runtime's graphs as Python sees them. No ranks needed."""

import pytest

import horon
from horon import mixing, topology
from horon.pairing import met_by, pairs_graph, turns_of

DYNAMIC = (topology.OnePeerExponential, topology.OnePeerHypercube, topology.Base)


def product(graph, rounds):
    numpy = pytest.importorskip("numpy")
    result = numpy.eye(graph.n)
    for t in range(rounds):
        result = numpy.array(graph.matrix(t)) @ result
    return result


@pytest.mark.parametrize("make", DYNAMIC)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_peers_and_matrices_say_the_same(make, n):
    graph = make(n)
    for t in range(graph.period):
        matrix = graph.matrix(t)
        for i in range(n):
            out, heard = graph.peers(i, t)
            assert heard == [j for j in range(n) if j != i and matrix[i][j]]
            assert out == [j for j in range(n) if j != i and matrix[j][i]]
        assert graph.matrix(t + graph.period) == matrix
    assert graph.rows_sum_to_one and graph.columns_sum_to_one


def test_contraction_is_that_of_the_matrices():
    numpy = pytest.importorskip("numpy")
    for graph in (topology.Ring(8), topology.Star(5), topology.OnePeerHypercube(6),
                  topology.Torus2D(12), topology.StaticExponential(11)):
        left = product(graph, graph.period) - numpy.full((graph.n, graph.n), 1 / graph.n)
        assert graph.contraction() == pytest.approx(numpy.linalg.norm(left, 2))
    assert topology.Ring(8).contraction(rounds=32) < 1e-3 <= topology.Ring(8).contraction(rounds=31)
    assert topology.Ring(8).rounds_for(1e-3) == 32
    assert topology.Base(100, k=2).contraction() < 1e-12 and topology.Base(100, k=2).period == 8
    with pytest.raises(ValueError, match="never repeats"):
        topology.RandomMatching(6).contraction()
    with pytest.raises(ValueError, match="within 10 rounds"):
        topology.Ring(30).rounds_for(1e-6, most=10)


def test_properties():
    ring, star = topology.Ring(6), topology.Star(6)
    assert ring.is_regular and ring.is_symmetric and ring.is_bipartite
    assert star.is_symmetric and star.is_bipartite and not star.is_regular
    assert not topology.Ring(5).is_bipartite
    assert not topology.RingOneWay(4).is_symmetric and topology.RingOneWay(4).is_regular
    assert topology.BipartiteExponential(8).is_bipartite
    assert topology.RandomMatching(7).is_symmetric


def test_weights():
    push = topology.Star(5, mixing=mixing.Push())
    assert push.columns_sum_to_one and not push.rows_sum_to_one
    uniform = push.with_mixing(mixing.Uniform())
    assert uniform.rows_sum_to_one and not uniform.columns_sum_to_one
    assert push.with_mixing(mixing.MetropolisHastings()).matrix() == topology.Star(5).matrix()
    lazy = topology.Ring(4, mixing=mixing.Lazy(mixing.Uniform()))
    assert lazy.matrix()[0] == pytest.approx([2 / 3, 1 / 6, 0, 1 / 6])
    own = [[0.75, 0.25, 0], [0.25, 0.5, 0.25], [0, 0.25, 0.75]]
    chain = topology.Custom(3, [(0, 1), (1, 0), (1, 2), (2, 1)])
    assert chain.with_mixing(mixing.Custom(own)).matrix() == own
    assert topology.from_matrix(own).matrix() == own
    with pytest.raises(ValueError, match="participant 2 does not send to 0"):
        chain.with_mixing(mixing.Custom([[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]))
    with pytest.raises(ValueError, match="1 rounds of 3 .* 2 matrices for 3"):
        chain.with_mixing(mixing.Custom(own, own))
    with pytest.raises(ValueError, match="sum to 0.9"):
        topology.from_matrix([[0.5, 0.4], [0.5, 0.5]])


def test_weights_of_ones_own_are_not_lost():
    own = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    half = [[0.75, 0.125, 0.125], [0.125, 0.75, 0.125], [0.125, 0.125, 0.75]]
    custom = mixing.Custom(own)
    assert topology.Ring(3, mixing=mixing.Lazy(custom)).matrix() == half
    for given in ("ring", topology.Ring(3)):
        for weights, want in ((custom, own), (mixing.Lazy(custom), half)):
            op = horon.Gossip("dpsgd", given, weights)
            assert op.graph(3).matrix() == want
            assert op.spec == f"gossip:{topology.from_matrix(want).parameters}"
            with pytest.raises(ValueError, match="for 3 participants; there are 4"):
                op.graph(4)
        assert horon.Gossip("exact_diffusion", given, custom).graph(3).matrix() == half
    weighed = topology.Ring(3, mixing=custom)
    assert horon.Gossip("exact_diffusion", weighed).graph(3).matrix() == half
    with pytest.raises(ValueError, match="weighs the links of a topology.*from_matrix"):
        horon.Gossip("dpsgd", mixing=mixing.Custom([[1]]))
    with pytest.raises(ValueError, match="1 rounds of 4 participants.*for 3"):
        horon.Gossip("dpsgd", topology.Ring(4), custom)
    for wrong in ((), ([],), ([[1, 0]],), ([[1]], [[1, 0], [0, 1]])):
        with pytest.raises(ValueError, match="a matrix for each round"):
            mixing.Custom(*wrong)


class Turns(topology.Topology):
    """In turn to the next one and to the one before."""

    period = 2

    def edges(self, t=0):
        return [(i, (i + (-1) ** t) % self.n) for i in range(self.n)]


class Halves(topology.Topology):
    def matrix(self, t=0):
        return [[0.5 * (j in (i, (i + 1) % self.n)) for j in range(self.n)] for i in range(self.n)]


def test_graphs_of_subclasses_are_what_runs():
    next_one = [(i, (i + 1) % 4) for i in range(4)]
    plain = topology.Custom(4, next_one, [(to, sender) for sender, to in next_one])
    op = horon.Gossip("sgp", topology=Turns(4))
    assert "graph=custom" in op.spec and op.graph(4).period == 2
    for t in range(3):
        assert op.graph(4).matrix(t) == plain.matrix(t)
    assert Turns(4).contraction() == plain.contraction()
    assert Turns(4).rounds_for(0.1) == plain.rounds_for(0.1)
    pushed = Turns(4, mixing=mixing.Push())
    assert horon.Gossip("sgp", pushed).graph(4).matrix(1) == plain.matrix(1)
    lazy = plain.with_mixing(mixing.Lazy()).matrix()
    assert horon.Gossip("sgp", Turns(4), mixing.Lazy()).graph(4).matrix() == lazy
    numpy = pytest.importorskip("numpy")
    assert horon.Gossip(topology=Halves(3, "graph=ring")).graph(3).matrix() == Halves(3).matrix()
    Halves.matrix = lambda self, t=0: numpy.full((self.n, self.n), 1 / self.n)
    assert horon.Gossip(topology=Halves(4, "graph=ring")).graph(4).contraction() < 1e-12


def test_graphs_of_subclasses_that_cannot_run():
    def overriding(parameters="graph=ring", **own):
        return type("Mine", (topology.Topology,), own)(4, parameters)

    edges, matrix = Turns.edges, Halves.matrix
    for given, words in (
        (overriding(edges=edges), "edges of its own that do not repeat after its `period`, 1"),
        (overriding("graph=random_matching", edges=edges),
         "repeat after its `period`, 0.*neighbor_allreduce"),
        (overriding(edges=edges, matrix=matrix, period=2), "edges and matrix of its own: override"),
        (overriding(peers=lambda self, i, t=0: ([], [])), "peers of its own.*Custom"),
    ):
        for use in (lambda: horon.Gossip("sgp", topology=given),
                    lambda: given.contraction(rounds=2), lambda: given.rounds_for(0.5),
                    lambda: given.with_mixing(mixing.Push())):
            with pytest.raises(horon.HoronInvalidArgument, match=words):
                use()


def test_refusals_are_horons():
    with pytest.raises(horon.HoronInvalidArgument, match="2\\^k participants, not 6"):
        topology.Hypercube(6)
    with pytest.raises(horon.HoronInvalidArgument, match="not everybody's value"):
        topology.Custom(3, [(0, 1), (1, 0)])
    with pytest.raises(TypeError, match="no parameter k"):
        topology.Ring(4, k=2)
    with pytest.raises(ValueError, match="algorithm is 'sgd'"):
        horon.Gossip("sgd")
    with pytest.raises(ValueError, match="is for 4 participants; there are 8"):
        horon.Gossip(topology=topology.Ring(4)).graph(8)


def test_refusals_say_what_to_do():
    own = [[1.5, -0.5], [-0.5, 1.5]]
    for call, words in (
        (lambda: topology.Ring(5).peers(7), "participant is 7: use one of 0 to 4"),
        (lambda: topology.Ring(5).peers(-1), "participant is -1: use one of 0 to 4"),
        (lambda: topology.Ring(5).contraction(rounds=-1), "rounds is -1"),
        (lambda: topology.Base(5).contraction(first=-1), "first is -1"),
        (lambda: topology.Base(5).rounds_for(0.1, first=-1), "first is -1"),
        (lambda: topology.graph_by_id(9, 4), "number is 9: use one of 0 to 5"),
        (lambda: topology.graph_by_id(-1, 4), "number is -1: use one of 0 to 5"),
        (lambda: topology.graph_by_id(0, 4, peers=2), "peers is for number 5"),
        (lambda: topology.Custom(3, []), "needs edges"),
        (lambda: topology.Custom(3), "needs edges"),
        (lambda: topology.from_matrix(), "at least one"),
        (lambda: topology.from_networkx(), "at least one"),
        (lambda: topology.Ring(2, mixing=mixing.Custom(own)), "must not be negative"),
        (lambda: topology.from_matrix(own), "must not be negative"),
        (lambda: topology.Custom(2, [(0, 1, -0.5)]), "must not be negative"),
        (lambda: horon.Gossip("dpsgd", sync_freq=2), "give overlap=True"),
        (lambda: horon.Gossip("dpsgd", local_op="sum"), "give hierarchical=True"),
        (lambda: horon.Gossip("dpsgd", local_op="mean"), "use one of average, sum"),
        (lambda: horon.Gossip(topology="rign"),
         r"no graph 'rign' \(did you mean 'ring'\?\); there are: auto, .*ring"),
        (lambda: horon.Gossip(topology="ring,k=2"), "unknown parameter 'k'; it has: .*mixing"),
        (lambda: horon.Gossip(topology="base,k=0"), "k must be from 1"),
    ):
        with pytest.raises(horon.HoronInvalidArgument, match=words):
            call()


def test_a_name_is_taken_where_the_number_of_ranks_will_decide():
    for name in ("hypercube", "torus", "custom,n=3,edges=0>1;1>2;2>0"):
        assert horon.Gossip(topology=name).spec == f"gossip:graph={name}"
    with pytest.raises(ValueError, match="2\\^k participants, not 6"):
        horon.Gossip(topology="hypercube").graph(6)


def test_graphs_of_one():
    for graph in (topology.Custom(1), topology.Custom(1, []), topology.Custom(1, [], []),
                  topology.from_matrix([[1]]), topology.Ring(1)):
        assert graph.edges() == [(0, 0, 1.0)] and graph.contraction() == 0
    assert topology.Custom(1, [], []).period == 2


def test_specs():
    assert horon.Gossip().spec == "gossip"
    assert horon.Gossip("sgp", topology="ring").spec == "gossip:graph=ring"
    op = horon.Gossip(topology=topology.Base(6, k=2), hierarchical=True, local_op="sum")
    assert op.spec == "gossip:graph=base,k=2,n=6,hierarchical=1,inside=sum"
    assert op.graph(6).period == 2
    assert horon.Gossip(hierarchical=True).graph(6).period == topology.Base(6).period
    assert horon.Gossip(mixing=mixing.Push()).spec == "gossip:mixing=push"
    pushed = horon.Gossip("sgp", topology=topology.Star(5), mixing=mixing.Push())
    assert pushed.graph(5).matrix() == topology.Star(5, mixing=mixing.Push()).matrix()
    assert pushed.graph(5).columns_sum_to_one and not pushed.graph(5).rows_sum_to_one


def test_the_six_numbered_graphs():
    assert [topology.graph_by_id(i, 8).period for i in range(6)] == [5, 4, 4, 4, 1, 3]
    kinds = (topology.DynamicDirectedExponential, topology.DynamicBipartiteExponential,
             topology.DynamicDirectedLinear, topology.DynamicBipartiteLinear, topology.Ring,
             topology.MPeerExponential)
    graphs = [kind(16, **({"k": 1} if i == 5 else {})) for i, kind in enumerate(kinds)]
    rounds = [[graph.edges(t) for t in range(9)] for graph in graphs]
    by_id = [topology.graph_by_id(i, 16) for i in range(6)]
    assert [[graph.edges(t) for t in range(9)] for graph in by_id] == rounds
    assert all(rounds.count(one) == 1 for one in rounds)


def test_networkx_there_and_back():
    networkx = pytest.importorskip("networkx")
    graph = topology.from_networkx(networkx.petersen_graph())
    assert graph.n == 10 and graph.is_regular and graph.contraction() == pytest.approx(0.5)
    weighted = topology.Star(5).to_networkx()
    assert weighted[0][3]["weight"] == pytest.approx(0.2)
    assert topology.from_networkx(weighted).matrix() == topology.Star(5).matrix()
    directed = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    assert topology.from_networkx(directed, mixing=mixing.Push()).columns_sum_to_one


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    for graph, rounds in ((topology.Base(6), 4), (topology.Ring(8), 1)):
        figure = graph.plot()
        assert len(figure.axes) == 2 * rounds + 1  # the last one is the bar of weights
        figure.savefig(tmp_path / "graph.png")
        assert (tmp_path / "graph.png").stat().st_size > 5000


def test_turns_of_pairs():
    """Every edge has one end that begins; in graphs of two sides a rank begins or answers."""
    for n in range(2, 17):
        for graph in (pairs_graph(n), topology.Ring(n), topology.OnePeerExponential(n)):
            turns = [turns_of(graph, i) for i in range(n)]
            met = [met_by(graph, i) for i in range(n)]
            assert all(i in met[j] for i in range(n) for j in met[i])
            assert all(peer in met[i] for i in range(n) for peer, _ in turns[i])
            begun = {frozenset((i, peer)) for i in range(n) for peer, _ in turns[i]}
            assert begun == {frozenset((i, j)) for i in range(n) for j in met[i]}
        if n % 2 == 0:
            assert all(bool(turns_of(pairs_graph(n), i)) == bool(i % 2) for i in range(n))
