"""Whether all ranks gossip alike: with the same op over the same parameters. If not, all of them
get an error that shows the views.

A layout is a list: the op in words, then each parameter. Each rank gets all of them, once.
"""

import itertools
import zlib
from collections import Counter

import torch

from horon.errors import HoronLate, HoronMismatch
from horon.gossip import fail_when_late
from horon.process_sets import global_process_set
from horon.runtime import when_left
from horon.torch.calls import rows_call

_TRIES = 3  # after which ranks that do not come, or compare something else, are left to themselves

_made = Counter()  # optimizers, by process set
when_left(_made.clear)


def layout_of(op, names, parameters) -> list:
    """names: {parameter: name}."""
    return [op, *(f"'{names[p]}' ({p.dtype}, {tuple(p.shape)})" for p in parameters)]


def check_alike(layout):
    """For all ranks. Blocking; HoronLate where one does not come."""
    _compare(_gathered("gossip.layout", layout, global_process_set).run(), global_process_set,
             "number {}")


class Comparison:
    """The same beside a step, which exchanges with the ranks of the set anyway. Where one is late,
    or has joined, the next step tries again. Parameters go by their names. All ranks of the set
    make their optimizers in the same order, which numbers these."""

    def __init__(self, process_set):
        self._set, set_id = process_set, process_set.process_set_id
        _made[set_id] += 1
        self._name = f"gossip.alike.{set_id}.{_made[set_id]}"
        self._handle = None
        self._steps = self._late = 0
        self.over = process_set.size() == 1

    def begin(self, layout):
        """With a step; layout() gives this rank's."""
        if not self.over and self._handle is None:
            op, *parameters = layout()
            self._handle = _gathered(self._name, [op, *sorted(parameters)], self._set).start()
            self._steps = 0

    def end(self, after):
        """With the same step, or the one that is its `after`-th. Blocking; HoronMismatch where they
        are not alike."""
        self._steps += 1
        if self._handle is None or self._steps < after:
            return
        try:
            found = self._handle.wait()
        except HoronLate:
            self._handle, self._late = None, self._late + 1
            self.over = self._late >= _TRIES
            return
        except Exception:
            self._handle = None
            raise
        self._handle, self._late, self.over = None, 0, True
        _compare(found, self._set, "in the order of names number {}")
        self.over = all(found[1])  # who has joined takes its first step later


def _gathered(name, layout, process_set):
    """A call for (all ranks' layouts, how long each is)."""
    packed = torch.frombuffer(bytearray(zlib.compress("\n".join(layout).encode())),
                              dtype=torch.uint8)
    return rows_call(name, fail_when_late("allgather"), packed, process_set,
                     finish=lambda *both: both)


def _compare(found, process_set, numbered):
    packed, lengths = found
    parts = [bytes(part.tolist()) for part in packed.split(list(lengths))]
    here = {rank: part for rank, part in zip(process_set.ranks, parts) if part}  # has not joined
    if len(set(here.values())) <= 1:
        return
    layouts = [zlib.decompress(part).decode().split("\n") for part in here.values()]
    for number, views in enumerate(itertools.zip_longest(*layouts, fillvalue="missing")):
        if len(set(views)) == 1:
            continue
        told = ", ".join(f"{view} on {_ranks_with(view, views, here)}"
                         for view in sorted(set(views)))
        if number == 0:
            raise HoronMismatch(f"Mismatched gossip: the op is {told}. Give the optimizer the same "
                                "hvd.Gossip(...) on all ranks.")
        raise HoronMismatch(f"Mismatched parameters: {numbered.format(number - 1)} is {told}. Give "
                            "the optimizer the same parameters, in the same order and under the "
                            "same names, on all ranks.")


def _ranks_with(view, views, ranks) -> str:
    having = [rank for rank, other in zip(ranks, views) if other == view]
    return f"rank{'s' * (len(having) > 1)} {having}"
