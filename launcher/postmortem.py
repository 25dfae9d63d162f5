"""Who is to blame for a job's end, out of the flight recorders of all its ranks.

Three kinds of evidence, the strongest first: what the ranks themselves recorded as the cause; whose
recording ends without a word, as a killed process's does; and who had not submitted a tensor that
others waited for at the end. Pure: works on recordings (recorder.py), for the end of a job and for
`horonrun --postmortem`.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .recorder import Event, Recording

_END_KINDS = ("left", "lost")


def verdict(recordings: Sequence[Recording], ended: Collection[int] = ()) -> list[str]:
    """Lines that name the culprit, the strongest evidence first; empty if all left in peace.
    ended: ranks that horonrun has ended, which is why they recorded no end."""
    found = [*_said(recordings), *_gone(recordings, ended), *_absent(recordings),
             *_missing(recordings, _awaited(recordings))]
    return [f"culprit: {found[0]}", *(f"also: {line}" for line in found[1:])] if found else []


def held_up(recordings: Sequence[Recording], at: float, least_s: float) -> list[str]:
    """The same of a job that hung until somebody ended it at that time (since 1970): who had not
    submitted what others waited for, and had submitted at least so long before."""
    before = [replace(r, events=[event for event in r.events if event.time <= at])
              for r in recordings]
    awaited = {
        tensor: ranks for tensor, ranks in _awaited(before).items()
        if any(at - _submits(r, tensor)[-1].time >= least_s for r in ranks if _submits(r, tensor))
    }
    return [f"culprit: {line}" for line in _missing(before, awaited)]


def _said(recordings: Sequence[Recording]) -> list[str]:
    said = Counter(
        event.text for r in recordings for event in r.events if event.kind == "lost"
    )
    return [f"{text} (recorded by {_ranks(count)})" for text, count in said.most_common(3)]


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _gone(recordings: Sequence[Recording], ended: Collection[int]) -> list[str]:
    """A rank that left or heard of a loss says so; a killed one stops in the middle."""
    end = max((r.events[-1].time for r in recordings if r.events), default=0.0)
    silent = [r for r in recordings if r.events and r.events[-1].kind not in _END_KINDS]
    silent = [r for r in silent if not any(event.kind in _END_KINDS for event in r.events[-20:])]
    # All were ended from outside: who was the first says little.
    if len(silent) == len(recordings) > 1:
        first = min(silent, key=lambda r: r.events[-1].time)
        others = min(r.events[-1].time for r in silent if r is not first)
        silent = [first] if others - first.events[-1].time > 1.0 else []
    return [
        f"rank {r.rank} on {r.host} recorded no end: its last event came "
        f"{end - r.events[-1].time:.3f} s "
        f"before the job's last one ({_words(r.events[-1])})"
        for r in silent
        if r.rank not in ended
    ]


def _words(event: Event) -> str:
    return f"{event.kind} {event.text}".strip()


def _absent(recordings: Sequence[Recording]) -> list[str]:
    """Ranks of the job of which nothing is there."""
    sizes = [
        int(match[1]) for r in recordings for event in r.events
        if event.kind == "joined" and (match := re.match(r"(\d+) ranks", event.value))
    ]
    missing = sorted(set(range(max(sizes, default=0))) - {r.rank for r in recordings})
    return [f"of rank {', '.join(map(str, missing))} there is no recording"] if missing else []


def _missing(
    recordings: Sequence[Recording], awaited: Mapping[str, list[Recording]]
) -> list[str]:
    lines = []
    for tensor, waiting in sorted(awaited.items()):
        absent = [r for r in recordings if r not in waiting and _lacks(r, waiting[0], tensor)]
        for r in absent:
            lines.append(
                f"rank {r.rank} had not submitted '{tensor}', for which "
                f"{', '.join(f'rank {w.rank}' for w in waiting)} waited at the end; "
                f"it {_did(r, waiting[0], tensor)}"
            )
    return lines


def _did(recording: Recording, waiting: Recording, tensor: str) -> str:
    """What it did instead of submitting what the other waits for."""
    last = next((e for e in reversed(recording.events) if e.kind == "submitted"), None)
    if last is None:
        return "submitted nothing"
    if last.text != tensor:
        return f"last submitted '{last.text}'"
    theirs = _submits(waiting, tensor)
    if not _whole(recording, waiting):
        return f"last submitted it {theirs[-1].time - last.time:.3f} s before rank {waiting.rank}"
    times = f"{len(_submits(recording, tensor))} and {len(theirs)} times"
    return f"submitted it less often than rank {waiting.rank}: {times}"


def _whole(*recordings: Recording) -> bool:
    """Whether all go back to the beginning."""
    return all(r.events and r.events[0].number == 1 for r in recordings)


def _awaited(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """By tensor, the ranks that waited for it when their recording ended."""
    awaited: dict[str, list[Recording]] = {}
    for r in recordings:
        waits = {event.thread: event for event in r.events if event.kind == "waits for"}
        for thread, last in waits.items():
            later = [event for event in r.events if event.number > last.number]
            done = any(event.kind == "finished" and event.text == last.text for event in later)
            went_on = any(event.kind == "submitted" and event.thread == thread for event in later)
            if done or went_on:
                continue
            ranks = awaited.setdefault(last.text.split("/", 1)[-1], [])
            if r not in ranks:
                ranks.append(r)
    return awaited


def _submits(recording: Recording, tensor: str) -> list[Event]:
    return [e for e in recording.events if e.kind == "submitted" and e.text == tensor]


def _lacks(recording: Recording, waiting: Recording, tensor: str) -> bool:
    """Whether it has not submitted what the other waits for. By counting, while both recordings go
    back to the beginning; else by time: the last one is older than half a step."""
    mine, theirs = _submits(recording, tensor), _submits(waiting, tensor)
    if _whole(recording, waiting) or not theirs or not mine:
        return len(mine) < len(theirs)
    times = [event.time for event in theirs]
    steps = [after - before for before, after in zip(times, times[1:])]
    return mine[-1].time < times[-1] - 0.5 * statistics.median(steps) if steps else False
