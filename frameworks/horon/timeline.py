"""Recording where each tensor's time goes, on all ranks, into one file (docs/debugging.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from horon import _core
from horon.errors import HoronInvalidArgument


def start_timeline(
    file_path: str | os.PathLike, mark_cycles: bool = False, steps: Sequence[int] | None = None
) -> None:
    """Records from now on, on all ranks, into `file_path`; an older file is replaced.

    The call of rank 0 counts, the others' do nothing. When it returns rank 0 records; the other
    ranks do before their next negotiated collective, such as a barrier. A timeline that is
    recorded already ends.
    mark_cycles: whether to show when cycles of the runtime begin.
    steps: (first, end): of each tensor only its runs first, ..., end - 1 are recorded, counted from
    0 since init.
    """
    first, end = _window(steps)
    _core.start_timeline(os.fspath(file_path), bool(mark_cycles), first, end)


def stop_timeline() -> None:
    """Ends it. Rank 0's call counts; when it returns, what rank 0 recorded is in the file. The
    other ranks write within moments, at the latest in their shutdown; what they have not finished
    by then is left out (a barrier before makes them). Harmless when nothing is recorded."""
    _core.stop_timeline()


def note(row: str, activity: str, begun: int, ended: int) -> bool:
    """Records that this rank's program did `activity` between two times of time.monotonic_ns(), in
    the row of that name. False when nothing is recorded. Any thread; never waits."""
    return _core.note_in_timeline(row, activity, begun, ended)


def _window(steps: Sequence[int] | None) -> tuple[int, int]:
    if steps is None:
        return 0, 0
    first, end = steps
    if not 0 <= first < end:
        raise HoronInvalidArgument(
            f"steps={tuple(steps)!r}: use (first, end) with 0 <= first < end"
        )
    return first, end
