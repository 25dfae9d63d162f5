"""Marks: what gossip finds out about itself, kept where users look: counters and the timeline.

On the training thread.
"""

import time
from contextlib import contextmanager
from math import isfinite

from horon import _core
from horon.timeline import note

_LARGEST = 2**63 - 1
_BILLION = 10**9


def took_in(age: int, begun: int) -> None:
    """What an exchange that was started at `begun` (time.monotonic_ns()), so many steps ago, has
    brought is taken in now."""
    _core.count(f"gossip.staleness.{age}", 1)
    note("gossip", f"taken in {age} steps after its start", begun, time.monotonic_ns())


@contextmanager
def marked(row: str):
    """A span in the timeline; the block appends to what it gets, a list, what is written there."""
    words, begun = [], time.monotonic_ns()
    yield words
    note(row, " ".join(words), begun, time.monotonic_ns())


def show(counter: str, value: float) -> None:
    """The counter becomes the value, in billionths; unless it is no number."""
    if isfinite(value):
        nano = min(round(value * _BILLION), _LARGEST)
        _core.count(counter, nano - _core.counter(counter))
