"""horon.topology's matrices, each element, against the papers' formulas. No ranks needed."""

import pytest

from horon import HoronInvalidArgument, mixing, topology

np = pytest.importorskip("numpy")
import topology_oracle as oracle  # noqa: E402

SIZES = [*range(1, 34), 64, 100, 130]
FAMILIES = {
    topology.FullyConnected: oracle.fully_connected, topology.Ring: oracle.ring,
    topology.RingOneWay: oracle.ring_one_way, topology.RingAlternating: oracle.ring_alternating,
    topology.Star: oracle.star, topology.Grid2D: oracle.grid, topology.Torus2D: oracle.torus,
    topology.StaticExponential: oracle.static_exponential, topology.Hypercube: oracle.hypercube,
    topology.SymmetricExponential: oracle.symmetric_exponential, topology.Base: oracle.base,
    topology.OnePeerExponential: oracle.one_peer_exponential,
    topology.OnePeerHypercube: oracle.one_peer_hypercube,
    topology.MPeerExponential: oracle.m_peer_exponential,
    topology.DynamicDirectedExponential: oracle.directed_exponential,
    topology.DynamicBipartiteExponential: oracle.directed_bipartite_exponential,
    topology.DynamicDirectedLinear: oracle.directed_linear,
    topology.DynamicBipartiteLinear: oracle.directed_bipartite_linear,
    topology.BipartiteExponential: oracle.bipartite_exponential,
    topology.ShiftOne: oracle.shift_one, topology.InnerOuterRing: oracle.inner_outer,
    topology.InnerOuterExponential: oracle.inner_outer_exponential,
}
PARAMETERS = {
    topology.Star: [{}, {"centre": 1}, {"centre": 5}],
    topology.SymmetricExponential: [{}, {"b": 3}, {"b": 5}],
    topology.MPeerExponential: [{}, {"k": 1}, {"k": 3}, {"k": 4}, {"k": 9}],
    topology.Base: [{}, {"k": 2}, {"k": 3}, {"k": 4}, {"k": 5}, {"k": 9}],
    topology.InnerOuterRing: [{"local": local} for local in (1, 2, 3, 4, 5, 6, 10)],
    topology.InnerOuterExponential: [{"local": local} for local in (1, 2, 3, 4, 5, 6, 10)],
}
each_family = pytest.mark.parametrize("make, given", [
    pytest.param(make, given, id=f"{make.__name__}{given or ''}")
    for make in FAMILIES for given in PARAMETERS.get(make, [{}])])


def equal(got, want):
    return np.abs(np.array(got) - want).max() < 1e-12


@each_family
def test_matrices(make, given):
    """Up to 40 rounds of a period and two of later ones; refused is what has no matrix."""
    wrong, want = [], FAMILIES[make]
    for n in SIZES:
        if want(n, 0, **given) is None:
            with pytest.raises(HoronInvalidArgument):
                make(n, **given)
            continue
        graph = make(n, **given)
        rounds = [*range(min(graph.period, 40)), graph.period, 2 * graph.period + 1]
        wrong += [(n, t) for t in rounds if not equal(graph.matrix(t), want(n, t, **given))]
    assert not wrong, f"(n, t): {wrong}"


def check_weights(graph, wants):
    """Every kind of weights on the links of `wants`, a matrix a round."""
    kinds = [(mixing.Natural(), wants)]
    for kind, weigh in ((mixing.Uniform(), oracle.uniform), (mixing.Push(), oracle.push),
                        (mixing.MetropolisHastings(), oracle.metropolis)):
        kinds.append((kind, [weigh(graph.n, oracle.links_of(want)) for want in wants]))
    for kind, matrices in kinds:
        if any(matrix is None for matrix in matrices):
            with pytest.raises(HoronInvalidArgument):
                graph.with_mixing(kind)
            continue
        weighed, lazy = graph.with_mixing(kind), graph.with_mixing(mixing.Lazy(kind))
        for t, matrix in enumerate(matrices):
            assert equal(weighed.matrix(t), matrix), (kind, graph.n, t)
            assert equal(lazy.matrix(t), oracle.lazy(matrix)), (kind, graph.n, t)


@each_family
def test_weights(make, given):
    for n in (1, 2, 3, 5, 6, 8, 12, 20):
        if FAMILIES[make](n, 0, **given) is not None:
            graph = make(n, **given)
            check_weights(graph, [FAMILIES[make](n, t, **given) for t in range(graph.period)])


def test_weights_of_ones_own_graph():
    random = np.random.default_rng(5)
    for n in range(2, 20):
        one_way = oracle.shifts(n, 1) | oracle.links_of(random.random((n, n)) < 0.2)
        for links, natural in ((one_way, oracle.uniform),
                               (oracle.both_ways(one_way), oracle.metropolis)):
            check_weights(topology.Custom(n, sorted(links)), [natural(n, links)])


@pytest.mark.parametrize("n", SIZES)
def test_random_matching(n):
    """No formula says which: n // 2 pairs, by the seed alone, all pairs equally often."""
    graph, same, other = (topology.RandomMatching(n, seed=seed) for seed in (1, 1, 2))
    rounds = [np.array(graph.matrix(t)) for t in range(20)]
    for t, matrix in enumerate(rounds):
        pairs = oracle.links_of(matrix)
        assert len(pairs) == n // 2 * 2 and pairs == oracle.both_ways(pairs)
        assert len(dict(pairs)) == len(pairs) and equal(matrix, oracle.shared(n, pairs, 1 / 2))
        assert equal(same.matrix(t), matrix)
    assert n < 4 or not equal(sum(rounds), sum(np.array(other.matrix(t)) for t in range(20)))
    if n in (5, 6, 9):
        met = 2 * sum(np.array(graph.matrix(t)) for t in range(2000))
        chance = n // 2 / (n * (n - 1) / 2)
        off = np.abs(met - 2000 * chance) / np.sqrt(2000 * chance * (1 - chance))
        assert off[~np.eye(n, dtype=bool)].max() < 5


def is_renamed(rounds, want):
    """Whether in some order of the participants the matrices are the oracle's."""
    n, sends = len(rounds[0]), [dict(oracle.links_of(matrix)) for matrix in rounds]
    for first in range(n):
        order = [first]
        for v in range(1, n):  # 2^k after who is 2^k before
            k = v.bit_length() - 1
            order.append(sends[k].get(order[v - 2**k]))
        if set(order) == set(range(n)) and all(
                equal(matrix[np.ix_(order, order)], want(n, t)) for t, matrix in enumerate(rounds)):
            return True
    return False


@pytest.mark.parametrize("make", [topology.OnePeerExponential, topology.OnePeerHypercube])
def test_rotation(make):
    """No formula says in which order: the same graph each period, by the seed alone."""
    for n in SIZES:
        period = make(n).period
        graph, same, other = (make(n, rotate=1, seed=seed) for seed in (1, 1, 2))
        rounds = [np.array(graph.matrix(t)) for t in range(4 * period)]
        for e in range(4):
            assert is_renamed(rounds[e * period:][:period], FAMILIES[make]), (n, e)
        assert all(equal(same.matrix(t), matrix) for t, matrix in enumerate(rounds))
        if n > 7:
            assert not any(equal(rounds[e * period], rounds[0]) for e in (1, 2, 3)), n
            assert not equal(other.matrix(0), rounds[0]), n
