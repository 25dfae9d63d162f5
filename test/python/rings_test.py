"""Rings in matrices of distances, and in what nvidia-smi prints."""

import itertools
import random
from pathlib import Path

import pytest

from horon import rings
from horon.errors import HoronInvalidArgument

FOLDER = Path(__file__).resolve().parent / "topologies"  # what nvidia-smi prints
# A machine of two boards with four GPUs each, wired as NVIDIA describes its first DGX: one or two
# links between neighbours of a board, and one from each GPU to its twin on the other board.
DGX = (FOLDER / "dgx.txt").read_text()
# Four GPUs behind two PCIe bridges of two sockets.
PCIE = (FOLDER / "pcie.txt").read_text()
ALONE = (FOLDER / "one_gpu.txt").read_text()


def ways(ring):
    return list(zip(ring, ring[1:] + ring[:1]))


def test_a_ring_stays_on_links():
    distances = rings.parse_topology(DGX)
    assert distances[0][3] == 0.5 and distances[0][1] == 1.0 and distances[0][5] == 12.0
    for ring in rings.rings_of(distances, 2):
        assert sorted(ring) == list(range(8))
        assert all(distances[a][b] <= 1.0 for a, b in ways(ring)), ring


def test_one_gpu():
    assert rings.rings_of(rings.parse_topology(ALONE)) == [[0]]


def test_two_rings_share_little():
    first, second = rings.rings_of(rings.parse_topology(DGX), 2)
    assert len(set(ways(first)) & set(ways(second))) <= 2, (first, second)


def test_a_ring_crosses_between_sockets_no_more_than_it_must():
    distances = rings.parse_topology(PCIE)
    [ring] = rings.rings_of(distances)
    assert sum(distances[a][b] == 12.0 for a, b in ways(ring)) == 2


@pytest.mark.parametrize("size", range(1, 8))
def test_no_ring_is_shorter(size):
    draw = random.Random(size)
    distances = [[draw.uniform(1, 9) for _ in range(size)] for _ in range(size)]
    [ring] = rings.rings_of(distances)
    best = min(rings.length_of([0, *rest], distances)
               for rest in itertools.permutations(range(1, size)))
    assert sorted(ring) == list(range(size))
    assert rings.length_of(ring, distances) == pytest.approx(best)


def test_many_ranks():
    """Points on a circle: going round is the shortest, and is found from any numbering."""
    size = 24
    order = random.Random(1).sample(range(size), size)
    around = [[min((order[a] - order[b]) % size, (order[b] - order[a]) % size)
               for b in range(size)] for a in range(size)]
    [ring] = rings.rings_of(around)
    assert sorted(ring) == list(range(size))
    assert rings.length_of(ring, around) == size


def test_numa_nodes(tmp_path):
    for node, line in enumerate(["10 21 31", "21 10 21", "31 21 10"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "distance").write_text(line + "\n")
    assert rings.numa_distances(str(tmp_path)) == [[10, 21, 31], [21, 10, 21], [31, 21, 10]]


@pytest.mark.parametrize("text, words", [
    ("", "nvidia-smi"),
    ("GPU0\tX\tNV1\nGPU1\tNV1\n", "nvidia-smi"),
    ("GPU0\tX\tFAR\nGPU1\tFAR\tX\n", "FAR"),
    ("GPU0\tX\tNV0\nGPU1\tNV0\tX\n", "NV0"),
])
def test_tables_that_are_none(text, words):
    with pytest.raises(HoronInvalidArgument, match=words):
        rings.parse_topology(text)


@pytest.mark.parametrize("distances, count", [([], 1), ([[0, 1]], 1), ([[0, 1], [1, 0]], 0)])
def test_matrices_that_are_none(distances, count):
    with pytest.raises(HoronInvalidArgument):
        rings.rings_of(distances, count)
