"""horonrun top: what the ranks of this user's jobs do now, also when they hang.

    horonrun top [--once] [--interval SECONDS] [PID]

Reads the flight recorders of running ranks (recorder.py), read-only, out of /proc: the kernel lets
a user look at processes of their own only. The ranks notice nothing. Of a job on several hosts its
horonrun is asked (lookout.py), so all ranks are shown where that runs, elsewhere those of this
machine. PID: of a rank, or of its horonrun.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from . import lookout, recorder
from .arguments import Parser, number
from .recorder import Event, Recording
from .row import Row

WINDOW_S = 10.0
# In memory, or in a file of HORON_POSTMORTEM_DIR under a foreign launcher.
_RECORDER = re.compile(r"/memfd:horon-recorder\b|/.*/rank-\d+\.rec$")


@dataclass(frozen=True)
class Process:
    """A running rank. `launcher`: the process that the ranks of a job on this machine come from."""

    launcher: int
    recording: Recording


def processes(proc: str = "/proc") -> Iterator[Process]:
    """This user's ranks on this machine."""
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            recording = _recording_of(f"{proc}/{entry}", int(entry))
            if recording is not None:
                yield Process(_launcher_of(proc, entry), recording)
        except OSError:
            continue  # another user's, or it has just ended


def _recording_of(process: str, pid: int) -> Recording | None:
    for name in os.listdir(f"{process}/fd"):
        path = f"{process}/fd/{name}"
        if not _RECORDER.match(os.readlink(path)):
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = recorder.read(descriptor)
        finally:
            os.close(descriptor)
        # horonrun holds the recorders of all its ranks.
        if found is not None and found.pid == pid:
            return found
    return None


def _launcher_of(proc: str, entry: str) -> int:
    """Its parent; or the parent of that one, where each rank has a keeper of its own."""
    parent = _parent(f"{proc}/{entry}")
    with open(f"{proc}/{parent}/cmdline", "rb") as file:
        kept = file.read().rstrip(b"\0").endswith(b".launcher.keeper")
    return _parent(f"{proc}/{parent}") if kept else parent


def _parent(process: str) -> int:
    with open(f"{process}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def rows(recordings: Sequence[Recording], now: float) -> list[Row]:
    """A row for each rank of a job, by rank."""
    return compared([row_of(recording, now) for recording in recordings])


def compared(made: Sequence[Row]) -> list[Row]:
    """The rows of a job, by rank, with their straggler scores."""
    most = max((row.waits for row in made), default=0.0)
    return [
        replace(row, straggler=most - row.waits if row.pid else 0.0)
        for row in sorted(made, key=lambda row: row.rank)
    ]


def row_of(recording: Recording, now: float) -> Row:
    """Without its straggler score. `now` by the clock of the rank's machine."""
    events = [event for event in recording.events if event.time > now - WINDOW_S]
    waits, open_wait = _waits(recording.events, now)
    begun = max(now - WINDOW_S, recording.events[0].time) if recording.events else now
    share = waits / (now - begun) if now > begun else 0.0
    # A clock that was set back meanwhile makes times negative.
    return Row(recording.rank, recording.pid, recording.host, _rate(events),
               max(0.0, min(1.0, share)), _doing(recording, open_wait, now))


def _rate(events: Sequence[Event]) -> float:
    """How often the tensor that comes most often was submitted, by the median of the pauses."""
    submits = [event for event in events if event.kind == "submitted"]
    if not submits:
        return 0.0
    name = Counter(event.text for event in submits).most_common(1)[0][0]
    times = [event.time for event in submits if event.text == name]
    pauses = [after - before for before, after in zip(times, times[1:])]
    return 1.0 / statistics.median(pauses) if pauses and statistics.median(pauses) > 0 else 0.0


def _waits(events: Sequence[Event], now: float) -> tuple[float, Event | None]:
    """Seconds of the window in which the program slept for the others, and the wait that lasts.
    A wait ends with the next other thing that its thread does: from Python a long one is recorded
    again and again, because signals are looked at in between."""
    total, waiting = 0.0, {}
    for event in events:
        begun = waiting.get(event.thread)
        if begun is not None and (begun.kind, begun.text) == (event.kind, event.text):
            continue
        waiting.pop(event.thread, None)
        if begun is not None:
            total += max(0.0, event.time - max(begun.time, now - WINDOW_S))
        if event.kind == "waits for":
            waiting[event.thread] = event
        for thread in [t for t, wait in waiting.items() if _ends(event, wait)]:
            total += max(0.0, event.time - max(waiting.pop(thread).time, now - WINDOW_S))
    lasting = min(waiting.values(), key=lambda event: event.time, default=None)
    return total + (now - max(lasting.time, now - WINDOW_S) if lasting else 0.0), lasting


def _ends(event: Event, wait: Event) -> bool:
    """Of a bucket only the first tensor is recorded as finished; but one that is submitted, by
    whichever thread, is not pending any more."""
    if event.kind == "finished":
        return wait.text == event.text
    return event.kind == "submitted" and wait.text.split("/", 1)[-1] == event.text


def _doing(recording: Recording, open_wait: Event | None, now: float) -> str:
    if not recording.events:
        return "has not joined yet"
    if open_wait is not None:
        return f"waits for '{open_wait.text.split('/', 1)[-1]}' since {_ago(open_wait, now)}"
    last = recording.events[-1]
    return f"{last.kind} {last.text.split('/', 1)[-1]} {_ago(last, now)} ago"


def _ago(event: Event, now: float) -> str:
    return f"{max(0.0, now - event.time):.1f} s"  # a clock may differ, or have been set back


def table(made: Sequence[Row]) -> str:
    """The hosts' names only where there are several."""
    hosts = {row.host for row in made}
    wide = max(map(len, hosts), default=0) if len(hosts) > 1 else 0
    place = f" {'host':{wide}}" if wide else ""
    lines = [f"{'rank':>4}{place} {'pid':>8} {'steps/s':>8} {'waits':>6} {'straggler':>9}  last"]
    for row in made:
        place = f" {row.host:{wide}}" if wide else ""
        lines.append(f"{row.rank:4d}{place} {row.pid:8d} {row.steps_per_s:8.2f} {row.waits:6.0%} "
                     f"{row.straggler:9.2f}  {row.doing}")
    return "\n".join(lines)


def _screen(pid: int | None) -> str:
    jobs: dict[int, list[Row]] = {}
    asked = set()  # ranks of this machine that a horonrun has answered for
    for launcher, found in lookout.jobs().items():
        asked.update((row.host, row.pid) for row in found)
        jobs[launcher] = [row for row in found if pid in (None, launcher, row.pid)]
    now = time.time()
    for process in processes():
        own = process.recording
        if (own.host, own.pid) not in asked and pid in (None, process.launcher, own.pid):
            jobs.setdefault(process.launcher, []).append(row_of(own, now))
    parts = [f"job of process {launcher}\n{table(compared(found))}"
             for launcher, found in sorted(jobs.items()) if found]
    return "\n\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """0 if there was a rank to show, else 1."""
    parser = Parser(prog="horonrun top", description=__doc__.splitlines()[0])
    parser.add_argument("pid", nargs="?", type=int, help="of a rank, or of its horonrun")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument("--interval", type=number, default=2.0, help="seconds between two looks")
    options = parser.parse_args(arguments)
    clear = "\033[H\033[2J" if sys.stdout.isatty() and not options.once else ""
    while True:
        screen = _screen(options.pid)
        if not screen:
            where = "is on this machine"
            if options.pid is not None:
                where = f"is process {options.pid}, or was started by it"
            print(f"horonrun top: no running rank of yours with a flight recorder {where} "
                  "(HORON_RECORDER_EVENTS=0 switches it off)", file=sys.stderr)
            return 1
        print(f"{clear}{screen}", flush=True)
        if options.once:
            return 0
        try:
            time.sleep(min(options.interval, 86400.0))
        except KeyboardInterrupt:
            return 0
