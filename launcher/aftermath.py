"""What horonrun still says when a job has ended badly, most of it out of its flight recorders.

The recorders lie in memory that horonrun holds too, so they are there after a SIGKILL. Called by
the job (job.py) when all ranks have ended.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from . import postmortem, recorder
from .recorder import Recording
from .standing import Standing

_HELD_UP_S = 2.0  # that a tensor has been awaited, for the rank that lacks it to be named


def recordings_of(ranks: Sequence[Standing]) -> list[Recording]:
    """Those that are here, by rank."""
    held = (rank.recorder for rank in ranks if rank.recorder is not None)
    return [found for one in held if (found := recorder.read(one)) is not None]


def print_lines(title: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"horonrun: {title}:", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)


def name_who_held_up(ranks: Sequence[Standing], at: float) -> None:
    """Of a job that hung until it was interrupted, at that time since 1970."""
    for line in postmortem.held_up(recordings_of(ranks), at, _HELD_UP_S):
        print(f"horonrun: {line}", file=sys.stderr)


def name_culprit_that_did_not_fail(
    ranks: Sequence[Standing], recordings: Sequence[Recording], named: Standing
) -> None:
    """If the recorders blame a rank that left too early, or that others waited for and that we had
    to end: the others failed. named: whom we have named already, and who is not blamed, too."""
    ended = _ended_by_us(ranks)
    absent = [str(rank.rank) for rank in ranks
              if rank.rank in ended and not rank.joined and rank.recorder is None]
    if absent and named.recorder is not None:
        print(f"horonrun: rank {', '.join(absent)} had not joined by then: has it called init?",
              file=sys.stderr)
    lines = postmortem.verdict(recordings, ended) if len(recordings) == len(ranks) else []
    blamed = [int(rank[1]) for line in lines if (rank := re.search(r"\brank (\d+)\b", line))]
    if not blamed or named.rank in blamed:
        return
    if blamed[0] in ended or not ranks[blamed[0]].failed:
        print(f"horonrun: {lines[0]}", file=sys.stderr)


def _ended_by_us(ranks: Sequence[Standing]) -> set[int]:
    return {rank.rank for rank in ranks if rank.signalled}


def write_postmortem(
    ranks: Sequence[Standing], recordings: Sequence[Recording], folder: str
) -> None:
    """Why the job failed and what each rank did last, into a new folder in this one."""
    failed = sorted((rank for rank in ranks if rank.failed), key=lambda rank: rank.blame)
    found = postmortem.verdict(recordings, _ended_by_us(ranks))
    causes = [*(rank.cause() for rank in failed), *found]
    try:
        made = recorder.write(folder, recordings, causes)
        print(f"horonrun: what each rank did last: {made}/report.txt", file=sys.stderr)
    except OSError as error:
        print(
            f"horonrun: no report in HORON_POSTMORTEM_DIR={folder}: {error.strerror}",
            file=sys.stderr,
        )
