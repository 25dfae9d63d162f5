"""Mixing matrices of gossip graphs by their papers' formulas: what horon.topology is compared with.

A family is a function of n participants and the round t (and parameters) that gives the matrix of
the round, or None where it has no graph of n. Row i is what i's new value is made of: a link from j
to i has its weight in row i, column j. Links are pairs (from, to), never from and to the same.
"""

from collections import Counter
from functools import lru_cache

import numpy as np


def log2_up(n):
    """The least K with 2^K >= n."""
    return (n - 1).bit_length()


def odd(n):
    """Whether somebody is left over in pairs; nobody is missed where there is only one."""
    return n > 1 and n % 2 == 1


def shifts(n, *distances):
    """Links from each i to i + d, around."""
    return {(i, (i + d) % n) for i in range(n) for d in distances if d % n != 0}


def both_ways(pairs):
    """Links in both directions between the two of each pair."""
    return {link for a, b in pairs if a != b for link in ((a, b), (b, a))}


def links_of(matrix):
    """The links of a mixing matrix."""
    return {(int(j), int(i)) for i, j in zip(*np.nonzero(matrix)) if i != j}


def weighed(n, links, weight):
    """Links weigh weight(from, to), the own value what is missing to 1."""
    matrix = np.zeros((n, n))
    for sender, to in links:
        matrix[to, sender] = weight(sender, to)
    return matrix + np.diag(1 - matrix.sum(axis=1))


def shared(n, links, weight):
    """All links weigh the same."""
    return weighed(n, links, lambda sender, to: weight)


def uniform(n, links):
    """1 / (in-degree + 1), of what is heard and of the own value: rows sum to 1."""
    heard = Counter(to for _, to in links)
    return weighed(n, links, lambda sender, to: 1 / (heard[to] + 1))


def push(n, links):
    """1 / (out-degree + 1), of what is sent and of what is kept: columns sum to 1."""
    return uniform(n, {(to, sender) for sender, to in links}).T


def metropolis(n, links):
    """Metropolis-Hastings: 1 / (1 + the larger degree of both ends); None for one-way links."""
    if links != both_ways(links):
        return None
    degree = Counter(to for _, to in links)
    return weighed(n, links, lambda sender, to: 1 / (1 + max(degree[sender], degree[to])))


def lazy(matrix):
    """(I + W) / 2"""
    return (np.eye(len(matrix)) + matrix) / 2


def fully_connected(n, t):
    """Fully connected: W = J, an allreduce."""
    return np.full((n, n), 1 / n)


def ring(n, t):
    """Ring: a third each of i - 1, i and i + 1; of two half each."""
    return shared(n, shifts(n, 1, -1), 1 / 2 if n == 2 else 1 / 3)


def ring_one_way(n, t):
    """One-way ring: (I + P) / 2."""
    return shared(n, shifts(n, 1), 1 / 2)


def star(n, t, centre=0):
    """Star with Metropolis-Hastings weights: 1/n between the centre and each other one."""
    return shared(n, both_ways((centre, i) for i in range(n)), 1 / n) if centre < n else None


def grid(n, t):
    """Two-dimensional grid r x s, r the largest divisor up to n's root: Metropolis-Hastings."""
    s = n // max(r for r in range(1, n + 1) if n % r == 0 and r * r <= n)
    right = [(i, i + 1) for i in range(n) if (i + 1) % s != 0]
    return metropolis(n, both_ways(right + [(i, i + s) for i in range(n - s)]))


def torus(n, t):
    """The grid closed around its edges: a fifth each, Metropolis-Hastings where r or s <= 2."""
    r = max(r for r in range(1, n + 1) if n % r == 0 and r * r <= n)
    s = n // r
    right = [(i, i - i % s + (i + 1) % s) for i in range(n)]
    links = both_ways(right + [(i, (i + s) % n) for i in range(n)])
    return shared(n, links, 1 / 5) if r > 2 else metropolis(n, links)


def static_exponential(n, t):
    """Static exponential graph: to i + 2^k for all k < K, 1/(K + 1) each."""
    return shared(n, shifts(n, *(2**k for k in range(log2_up(n)))), 1 / (log2_up(n) + 1))


def symmetric_exponential(n, t, b=2):
    """Symmetric exponential graph: i +- b^k up to n/2, uniform."""
    far = [b**k for k in range(n) if 2 * b**k <= n]
    return uniform(n, shifts(n, *far, *(-d for d in far)))


def hypercube(n, t):
    """Hypercube: i XOR 2^k for all k, 1/(K + 1) each."""
    links = {(i, i ^ 2**k) for i in range(n) for k in range(log2_up(n))}
    return shared(n, links, 1 / (log2_up(n) + 1)) if n == 2 ** log2_up(n) else None


def ring_alternating(n, t):
    """Alternating ring: (0, 1)(2, 3)..., then (1, 2)...(n - 1, 0)."""
    links = both_ways((i, (i + 1) % n) for i in range(t % 2, n, 2))
    return None if odd(n) else shared(n, links, 1 / 2)


def one_peer_exponential(n, t):
    """One-peer exponential graph, GossipGraD's dissemination: to i + 2^(t mod K)."""
    return shared(n, shifts(n, 2 ** (t % max(1, log2_up(n)))), 1 / 2)


def one_peer_hypercube(n, t):
    """GossipGraD's cube: i XOR 2^(t mod K); whose partner does not exist sits the round out."""
    far = 2 ** (t % max(1, log2_up(n)))
    return shared(n, {(i, i ^ far) for i in range(n) if i ^ far < n}, 1 / 2)


def m_peer_exponential(n, t, k=2):
    """k-peer exponential graph: to i + j(k + 1)^s, j = 1..k, s = t mod (log_{k+1}(n - 1) + 1)."""
    stages = max(1, sum((k + 1) ** s <= n - 1 for s in range(n)))
    far = {j * (k + 1) ** (t % stages) % n for j in range(1, k + 1)} - {0}
    return shared(n, shifts(n, *far), 1 / (len(far) + 1))


def in_turn(n, t, distances):
    """One distance a round; those that are the same around n are there once."""
    distinct = list(dict.fromkeys(d % n for d in distances)) or [0]
    return shared(n, shifts(n, distinct[t % len(distinct)]), 1 / 2)


def directed_exponential(n, t):
    """Stochastic Gradient Push's graph 0: +1, -1, +2, -2, +4, -4, ..."""
    return in_turn(n, t, [d for k in range(log2_up(n)) for d in (2**k, -(2**k))])


def directed_bipartite_exponential(n, t):
    """Stochastic Gradient Push's graph 1: +1, -1, then +-(1 + 2^k)."""
    far = [1] * (n > 1) + [1 + 2**k for k in range(1, log2_up(n))]
    return None if odd(n) else in_turn(n, t, [d for f in far for d in (f, -f)])


def directed_linear(n, t):
    """Stochastic Gradient Push's graph 2: +1, -1, +3, -3, +5, ..."""
    return in_turn(n, t, [d for f in range(1, n, 2) for d in (f, -f)])


def directed_bipartite_linear(n, t):
    """Stochastic Gradient Push's graph 3: all that cross over. Horon's order is 1, 3, 5, ..."""
    return None if odd(n) else in_turn(n, t, range(1, n, 2))


def bipartite_exponential(n, t):
    """Horon's pairs: 2i + 1 with 2((i + 2^k - 1) mod m), m = n/2, k = t mod (log2 m + 1)."""
    m = n // 2
    far = 2 ** (t % (log2_up(m) + 1)) - 1
    pairs = [(2 * i + 1, 2 * ((i + far) % m)) for i in range(m)]
    return None if odd(n) else shared(n, both_ways(pairs), 1 / 2)


def shift_one(n, t):
    """Bagua's shift-one: r < n/2 with ((t + r) mod n/2) + n/2."""
    m = n // 2
    return None if odd(n) else shared(n, both_ways((r, (t + r) % m + m) for r in range(m)), 1 / 2)


def inner_outer(n, t, local, outer=1, inner=1):
    """BlueFog's inner-outer ring: of each host one in turn goes out, the others are a ring."""
    if n % local != 0 or local == 2:
        return None
    links = set()
    for first in range(0, n, local):
        away = first + t % local
        inside = [i for i in range(first, first + local) if i != away]
        links |= {(away, (away + outer * local) % n)} if n > local else set()
        links |= {(i, inside[(at + inner) % len(inside)]) for at, i in enumerate(inside)}
    return shared(n, links, 1 / 2)


def inner_outer_exponential(n, t, local):
    """BlueFog's inner-outer exponential-2, a distance further out only after all have been out."""
    outer = 2 ** (t // local % max(1, log2_up(n // local)))
    return inner_outer(n, t, local, outer, 2 ** (t % max(1, log2_up(local - 1))))


def smooth_part(n, most):
    """The largest divisor of n whose prime factors are at most `most`."""
    rest = n
    for prime in range(2, most + 1):
        while rest % prime == 0:
            rest //= prime
    return n // rest


def hyper(n, k):
    """Hyper-hypercube: for each factor of n a round of cliques, which differ in one digit."""
    rounds, stride = [], 1
    while stride < n:
        f = max(f for f in range(2, k + 2) if n // stride % f == 0)
        cliques = np.kron(np.full((f, f), 1 / f), np.eye(stride))
        rounds.append(np.kron(np.eye(n // stride // f), cliques))
        stride *= f
    return rounds


def simple(n, k):
    """Simple Base-(k+1) graph: a block for each digit of n, which has digit times base^power."""
    if smooth_part(n, k + 1) == n:
        return hyper(n, k)
    powers = [p for p in reversed(range(n)) if n // (k + 1) ** p % (k + 1) != 0]
    digits = [n // (k + 1) ** p % (k + 1) for p in powers]
    begins = np.cumsum([0] + [a * (k + 1) ** p for a, p in zip(digits, powers)])
    alone = len(hyper(digits[0] * (k + 1) ** powers[0], k))
    rounds = [np.eye(n) for _ in range(alone + 1 + powers[0])]
    for e, (a, p, begin, end) in enumerate(zip(digits, powers, begins, begins[1:])):
        block, size = slice(begin, end), (k + 1) ** p
        for t, matrix in zip(range(alone), (hyper(a * size, k) or [np.eye(1)]) * alone):
            rounds[t][block, block] = matrix
        if end < n:  # gives to all later ones, then lets the mean spread in its sub-blocks
            phi = (end - begin) / (n - begin)
            pairs = [(v, begin + part * size + v - end) for v in range(end, n) for part in range(a)]
            gives = shared(n, both_ways(pairs), phi / a)
            rounds[alone + e][begin:, begin:] = gives[begin:, begin:]
            for step, matrix in enumerate(hyper(size, k)):
                rounds[alone + e + 1 + step][block, block] = np.kron(np.eye(a), matrix)
    return rounds


@lru_cache
def base_rounds(n, k):
    """Base-(k+1) graph of Takezawa et al.: in groups, then across them; or the simple one if it is
    shorter. Of two as short the first, as in its authors' program: it has fewer links."""
    groups = smooth_part(n, k + 1)
    inside = [np.kron(np.eye(groups), matrix) for matrix in simple(n // groups, k)]
    across = [np.kron(matrix, np.eye(n // groups)) for matrix in hyper(groups, k)]
    return min(inside + across, simple(n, k), key=len)


def base(n, t, k=1):
    """Base-(k+1) graph: at most k peers a round, the exact mean after a period for every n."""
    rounds = base_rounds(n, k) or [np.eye(n)]
    return rounds[t % len(rounds)]
