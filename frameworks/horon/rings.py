"""Rings for Adasum along neighbours (hvd.AdasumOp(algorithm="ring", rings=...)).

A ring is an order of ranks in which each hands on to the next. Good ones use the short links of a
machine: parse_topology() reads what `nvidia-smi topo -m` prints, numa_distances() what Linux says
of its NUMA nodes, and rings_of() finds rings in any matrix of distances.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from horon.errors import HoronInvalidArgument

# How far two GPUs are apart, by nvidia-smi's words; NV# is one link, and # of them share the way.
DISTANCES = {"PIX": 4.0, "PXB": 5.0, "PHB": 6.0, "NODE": 8.0, "SYS": 12.0, "SOC": 12.0, "X": 0.0}
_EXHAUSTIVE = 8  # ranks up to which all orders are tried
_USED = 4.0  # a way that a ring takes already counts as so many times its length for the next one


def parse_topology(text: str) -> list[list[float]]:
    """Distances between the GPUs in the output of `nvidia-smi topo -m`: n x n, 1 for a link of
    NVLink, 1/2 for two at once, more for what goes through PCIe or between sockets."""
    rows = []
    for line in text.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        header = len(words) < 2 or words[1].startswith(("GPU", "CPU"))
        if not header and re.fullmatch(r"GPU\d+", words[0]):
            rows.append(words[1:])
    distances = [[_distance(word) for word in row[:len(rows)]] for row in rows]
    if not rows or any(len(row) != len(rows) for row in distances):
        raise HoronInvalidArgument("this is no table of GPUs as 'nvidia-smi topo -m' prints it")
    return distances


def _distance(word: str) -> float:
    links = re.fullmatch(r"NV(\d+)", word)
    if links and int(links[1]) > 0:
        return 1.0 / int(links[1])
    if word not in DISTANCES:
        raise HoronInvalidArgument(f"{word!r} is no connection that 'nvidia-smi topo -m' prints")
    return DISTANCES[word]


def numa_distances(folder: str = "/sys/devices/system/node") -> list[list[float]]:
    """Distances between this machine's NUMA nodes, as the firmware gives them (10: the same)."""
    nodes = sorted(Path(folder).glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    return [[float(d) for d in (node / "distance").read_text().split()] for node in nodes]


def rings_of(distances, rings: int = 1) -> list[list[int]]:
    """`rings` orders of 0 .. n-1, each short as a closed way through the n x n matrix, and different
    where that costs little: what one ring uses is longer for the next. With up to 8 ranks the
    shortest, with more a good one (nearest neighbour, then exchanges of two ways)."""
    size = len(distances)
    if any(len(row) != size for row in distances) or size == 0:
        raise HoronInvalidArgument("distances are a square matrix, a row for each rank")
    if rings < 1:
        raise HoronInvalidArgument(f"at least one ring, not {rings}")
    left = [list(map(float, row)) for row in distances]
    found = []
    for _ in range(rings):
        ring = _shortest(left) if size <= _EXHAUSTIVE else _short(left)
        found.append(ring)
        for a, b in _ways(ring):
            left[a][b] *= _USED
    return found


def length_of(ring, distances) -> float:
    """The sum of a ring's ways, each in the ring's direction."""
    return sum(distances[a][b] for a, b in _ways(ring))


def _ways(ring):
    return zip(ring, [*ring[1:], ring[0]])


def _shortest(distances) -> list[int]:
    others = range(1, len(distances))
    return min(([0, *order] for order in itertools.permutations(others)),
               key=lambda ring: length_of(ring, distances))


def _short(distances) -> list[int]:
    ring, left = [0], set(range(1, len(distances)))
    while left:
        ring.append(min(left, key=lambda next_: (distances[ring[-1]][next_], next_)))
        left.remove(ring[-1])
    better = True
    while better:
        better = False
        for i, j in itertools.combinations(range(1, len(ring)), 2):
            other = ring[:i] + ring[i:j + 1][::-1] + ring[j + 1:]
            if length_of(other, distances) < length_of(ring, distances) - 1e-12:
                ring, better = other, True
    return ring
