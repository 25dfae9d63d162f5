"""Whether all ranks gossip alike: with the same op over the same parameters. If not, all of them
get an error that shows the views.

A layout is a list: the op in words, then each parameter. Only digests travel where they are equal.
"""

import hashlib
import itertools
from collections import Counter

import torch

from horon.errors import HoronMismatch
from horon.gossip import fail_when_late
from horon.process_sets import global_process_set
from horon.runtime import when_left
from horon.torch.calls import reduce_call, rows_call
from horon.torch.functions import allgather_object

AVERAGE = "average:late=keep"
_ROUNDING = 1e-8  # of a variance; of bytes of which one differs it is 1e-6 with a million ranks


def check_alike(layout):
    """For all ranks. Blocking; HoronLate where one does not come."""
    digests = rows_call("gossip.digest", fail_when_late("allgather"),
                        torch.tensor([_digest(layout)], dtype=torch.uint8),
                        global_process_set).run()
    if not (digests == digests[0]).all():
        _tell(layout, global_process_set)


_begun = Counter()  # of the optimizers that have taken a step, by process set
when_left(_begun.clear)


def number_of_its_own(process_set) -> int:
    """The same on all ranks: they step with the same optimizers, for the first time in the same
    order."""
    _begun[process_set.process_set_id] += 1
    return _begun[process_set.process_set_id]


class Comparison:
    """The same beside a step, which exchanges with the ranks of the set anyway. Where one is late
    nothing is found, and another one may be tried."""

    def __init__(self, number, layout, process_set):
        self._layout, self._set = layout, process_set
        numbers = torch.tensor([process_set.rank(), *_digest(layout)], dtype=torch.float64)
        self._sent = torch.cat([numbers, numbers.square()])
        name = f"gossip.alike.{process_set.process_set_id}.{number}"
        self._handle = reduce_call(name, AVERAGE, self._sent, process_set).start()

    def found(self) -> bool:
        """Whether they are alike, HoronMismatch where they are not; False: left out. Blocking."""
        means = self._handle.wait()
        if torch.equal(means, self._sent):  # of the ranks' numbers, too, which are not alike
            return False
        mean, of_squares = (part[1:] for part in means.chunk(2))
        if (of_squares - mean.square()).max() > _ROUNDING:
            _tell(self._layout, self._set)
        return True


def _digest(layout) -> list:
    """32 numbers of a byte."""
    return list(hashlib.sha256("\n".join(layout).encode()).digest())


def _tell(layout, process_set):
    """The lists travel now, and the first difference is the error."""
    layouts = allgather_object(layout, "gossip.layout", process_set)
    for number, views in enumerate(itertools.zip_longest(*layouts, fillvalue="missing")):
        if len(set(views)) == 1:
            continue
        told = ", ".join(f"{view} on {_ranks_with(view, views, process_set.ranks)}"
                         for view in sorted(set(views)))
        if number == 0:
            raise HoronMismatch(f"Mismatched gossip: the op is {told}. Give the optimizer the same "
                                "hvd.Gossip(...) on all ranks.")
        raise HoronMismatch(f"Mismatched parameters: number {number - 1} is {told}. Give the "
                            "optimizer the same parameters in the same order on all ranks.")


def _ranks_with(view, views, ranks) -> str:
    having = [rank for rank, other in zip(ranks, views) if other == view]
    return f"rank{'s' * (len(having) > 1)} {having}"
