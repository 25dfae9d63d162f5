"""What `horonrun top` shows of a rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Rates and shares are of the last seconds with events (top.WINDOW_S)."""

    rank: int
    pid: int  # 0 for a rank that did not answer
    host: str
    steps_per_s: float
    waits: float  # share of the time in which its program slept for the others
    doing: str
    straggler: float = 0.0  # by how much more the rank that waits most waits than this one
