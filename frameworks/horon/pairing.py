"""Who averages with whom when ranks meet in pairs and nobody waits: horon.torch.async_gossip.

Of the two ends of an edge one begins the average; the other end's runtime answers. In a graph of
two sides those of one side begin, so each rank either begins or answers. On other graphs the lower
rank of a pair does: answering waits for nobody, so no ring of waiting ranks can come about.
"""

from horon.topology import BipartiteExponential, RandomMatching, Topology


def pairs_graph(n: int) -> Topology:
    """Pairs of two sides, exact for n = 2^k if all keep the same pace; random ones for odd n."""
    return RandomMatching(n) if n % 2 else BipartiteExponential(n)


def met_by(graph: Topology, i: int) -> list:
    """All participants that i ever has an edge with, ascending."""
    met = set()
    for t in graph.rounds():
        for sender, to, _ in graph.edges(t):
            if i in (sender, to):
                met.update((sender, to))
    return sorted(met - {i})


def turns_of(graph: Topology, i: int) -> list:
    """[(peer, weight), ...]: the averages that i begins, one after the other, again and again."""
    sides, turns = graph.sides(), []
    for t in graph.rounds():
        weights = {(s, to): w for s, to, w in graph.edges(t) if s != to and i in (s, to)}
        for (sender, to), weight in sorted(weights.items()):
            both_ways = (to, sender) in weights
            if sender == i and (not both_ways or _begins(i, to, sides)):
                turns.append((to, weight))
    return turns


def _begins(i, peer, sides) -> bool:
    return i < peer if sides is None else sides[i] == 1
