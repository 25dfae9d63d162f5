"""Reading the ranks' flight recorders: the last events of each, written down when a job fails.

The layout is that of runtime/base/recorder.h. A recorder is read when its rank has ended, from the
memory that horonrun or a keeper holds, or later from a file that a rank under a plain mpirun left
in HORON_POSTMORTEM_DIR.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE = 4096
_PIECE = 1 << 20
_HEADER = struct.Struct("<8sIIQii64s")
_EVENT = struct.Struct("<QQQq96s")
_KINDS = {
    1: "joined",
    2: "submitted",
    3: "waits for",
    4: "started",
    5: "finished",
    6: "failed",
    7: "lost",
    9: "left",
}
_START_S = 60.0  # that ranks of one job may join apart (HORON_START_TIMEOUT)
_UNITS = {1: "ranks", 2: "bytes", 4: "bytes", 5: "tensors"}


@dataclass(frozen=True)
class Event:
    """One event of a rank. `time` in seconds since 1970."""

    number: int
    time: float
    kind: str
    text: str
    value: str
    thread: int


@dataclass(frozen=True)
class Recording:
    """What one rank recorded, oldest event first."""

    rank: int
    host: str
    pid: int
    events: list[Event]


def decode(memory: bytes) -> Recording | None:
    """A recording out of a recorder's bytes; None if they are none."""
    if len(memory) < _PAGE:
        return None
    magic, version, event_bytes, capacity, pid, rank, host = _HEADER.unpack_from(memory)
    if magic != b"HORONREC" or version != 1 or event_bytes != _EVENT.size:
        return None
    events = []
    for place in range(min(capacity, (len(memory) - _PAGE) // _EVENT.size)):
        event = _event(_EVENT.unpack_from(memory, _PAGE + place * _EVENT.size))
        if event is not None and (event.number - 1) % capacity == place:
            events.append(event)
    events.sort(key=lambda event: event.number)
    return Recording(rank, host.rstrip(b"\0").decode(errors="replace"), pid, events)


def _event(fields: tuple) -> Event | None:
    number, nanoseconds, what, value, text = fields
    kind = what & 0xFFFF
    if number == 0 or kind not in _KINDS:
        return None
    text = text[: (what >> 16) & 0xFFFF].decode(errors="replace")
    unit = _UNITS.get(kind)
    shown = f"{value} {unit}" if unit else ""
    return Event(number, nanoseconds / 1e9, _KINDS[kind], text, shown, what >> 32)


def used(descriptor: int) -> Iterator[bytes]:
    """A recorder's bytes up to its last event, in pieces, as they travel to another host."""
    if os.fstat(descriptor).st_size < _PAGE:
        return
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory:
        events = len(memory[_PAGE:].rstrip(b"\0"))
        end = min(len(memory), _PAGE + -(-events // _EVENT.size) * _EVENT.size)
        for at in range(0, end, _PIECE):
            yield memory[at : min(end, at + _PIECE)]


def read(descriptor: int) -> Recording | None:
    """The recording in a recorder's memory or file."""
    size = os.fstat(descriptor).st_size
    if size < _PAGE:
        return None
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as memory:
        return decode(memory[:])


def read_folder(folder: str) -> list[Recording]:
    """The recordings that ranks of the newest job left in a folder as rank-N.rec."""
    recordings = []
    for path in sorted(Path(folder).glob("rank-*.rec")):
        with open(path, "rb") as file:
            recording = read(file.fileno())
        if recording is not None:
            recordings.append(recording)
    return sorted(_of_newest_job(recordings), key=lambda recording: recording.rank)


def _of_newest_job(recordings: list[Recording]) -> list[Recording]:
    """An earlier job may have had more ranks, or some that recorded nothing in the newest."""
    joins = [event for r in recordings for event in r.events if event.kind == "joined"]
    if not joins:
        return recordings
    newest = max(joins, key=lambda event: event.time)
    size, since = int(newest.value.split()[0]), newest.time - _START_S
    return [r for r in recordings if r.rank < size and (not r.events or end([r]) >= since)]


def end(recordings: Iterable[Recording]) -> float:
    """Of the last event; 0 if there is none. In seconds since 1970."""
    return max((r.events[-1].time for r in recordings if r.events), default=0.0)


def last_report(folder: str) -> tuple[str, float]:
    """What horonrun wrote of the last job that failed, in this folder or one below, and when, in
    seconds since 1970; ("", 0) if nothing."""
    found = [*Path(folder).glob("report.txt"), *Path(folder).glob("horon-*/report.txt")]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return (newest.read_text(encoding="utf-8"), newest.stat().st_mtime) if newest else ("", 0.0)


def _line(event: Event, end: float) -> str:
    value = f" ({event.value})" if event.value else ""
    return f"{event.time - end:+12.6f} s  {event.kind:10s} {event.text}{value}"


def timeline(recording: Recording, end: float, last: int | None = None) -> list[str]:
    """Lines of a rank's last events; times count from `end`."""
    events = recording.events[-last:] if last else recording.events
    return [_line(event, end) for event in events]


def pending(recording: Recording) -> list[str]:
    """Buckets that were started and not finished, as "tensor (since s)" with times before the
    end."""
    started: dict[str, Event] = {}
    for event in recording.events:
        if event.kind == "started":
            started[event.text] = event
        elif event.kind in ("finished", "failed"):
            started.pop(event.text.split(": ", 1)[0], None)
    return list(started)


def report(recordings: Iterable[Recording], causes: list[str], last: int = 20) -> str:
    """The job's end in words: why, and what each rank did last."""
    recordings = list(recordings)
    last_event = end(recordings) or time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_event))
    lines = [f"Horon, last event at {stamp}; times count back from there", ""]
    lines += [*causes, ""] if causes else []
    for recording in recordings:
        lines.append(f"rank {recording.rank} on {recording.host}, process {recording.pid}")
        unfinished = pending(recording)
        if unfinished:
            lines.append(f"  started and not finished: {', '.join(unfinished[:8])}")
        lines += [f"  {line}" for line in timeline(recording, last_event, last)]
        lines.append("")
    return "\n".join(lines)


def write(folder: str, recordings: list[Recording], causes: list[str]) -> Path:
    """Writes report.txt and each rank's full timeline into a new folder under `folder`; that
    folder."""
    made = Path(folder) / time.strftime("horon-%Y%m%d-%H%M%S")
    made = made.with_name(f"{made.name}-{os.getpid()}")
    made.mkdir(parents=True, exist_ok=True)
    (made / "report.txt").write_text(report(recordings, causes), encoding="utf-8")
    for recording in recordings:
        lines = timeline(recording, end([recording]))
        (made / f"rank-{recording.rank}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made
