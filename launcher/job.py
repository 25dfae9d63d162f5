"""A job: one loop over the ranks' output, their packets, their ends, and signals.

Where the ranks run is the crew's business: rank.py has the one of this machine, crew.py the one of
several hosts.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import selectors
import signal
import socket
import sys
import time
from typing import Protocol

from . import aftermath
from .guard import Guard
from .options import Options
from .output import Stream, copies, own_words, screens
from .relay import Relay
from .standing import Standing, Wiring

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEPT_LINES = 12  # of the first failing rank's stderr, shown again at the end
# After a socket's end, the time that the exit status has to explain it: more than a tenth of a
# second on a busy machine.
_STATUS_S = 0.5
_AT_ONCE_S = 0.5
_TERM_S = 0.6  # between the first signal and SIGTERM, and between SIGTERM and SIGKILL
_WRITE_S = 0.8  # that output may take after an interrupt: much of it, or a reader that stands still
_DRAIN_S = 1.0  # for output that is still on its way when all ranks have ended
_GONE_S = 0.2  # after SIGKILL, for those to be heard of again who can be
_INTERRUPTED_S = 1.7  # from an interrupt to our end
_MOST_NAMED = 8  # ranks in a sentence
_LONGEST_S = 86400.0  # that the loop sleeps; a system call takes no more than a few weeks


class Crew(Protocol):
    """The ranks of a job, and what it takes to start and end them."""

    ranks: list[Standing]
    started: bool  # the ranks run, or have run
    mpi_errors: list[str]  # what MPI has said of errors that it ended ranks for

    def start(self, guard: Guard, wiring: Wiring) -> None:
        """Begins to start them. Raises Refusal."""

    def turn(self, now: float) -> None:
        """Called after each round of the loop. Raises Refusal while not all have started."""

    def due(self) -> float | None:
        """When `turn` wants to be called although nothing happens."""

    def finish(self, recorders_wanted: bool) -> None:
        """Tells all that is left of the ranks to end. Output may still come, and the recorders."""

    def overhear(self, now: float) -> tuple[list[int], float | None]:
        """While nobody reads the output: takes what the ranks say apart from it, and notices what
        became of them. Descriptors on which more of that may come, and when to look again."""

    def clear(self, until: float) -> None:
        """Leaves nothing behind. Takes bounded time, and little more than until then."""


class Job:
    """Starts all ranks and watches them. `run` returns horonrun's exit code."""

    def __init__(self, options: Options, crew: Crew) -> None:
        self._options = options
        self._crew = crew
        self._selector = selectors.DefaultSelector()
        self._relay = Relay(crew.ranks, self._say)
        self._streams: dict[tuple[int, bool], Stream] = {}  # by rank and whether it is stderr
        self._interrupt = 0  # number of the signal that asks us to stop
        self._interrupted_at = 0.0  # since 1970
        self.culprit: Standing | None = None  # whose failure ended the job, when it has failed
        self._unwritten = ""  # why the ranks' output could not be
        self._again = False  # it came twice: no more patience
        self._stopping = False  # signals because of it are planned
        self._kills: list[tuple[float, int]] = []  # when to send which signal to all
        self._patient_until: float | None = None  # with ranks that go on after the first failure
        self._give_up_at = math.inf  # after an interrupt: ranks that nobody hears of any more
        self._starting = True  # not all ranks are there yet, to be told of each other
        self._waiting = False  # for whoever reads the output
        self._unsaid: list[str] = []  # meanwhile
        self._end_by = math.inf  # after an interrupt
        self._write_until = math.inf  # when to wait no longer for whoever reads the output
        self._written_s = 0.0  # that output has taken since the interrupt
        self._wakeups, self._wake = socket.socketpair()

    def run(self) -> int:
        self._catch_signals()
        self._open_streams()
        guard = Guard()
        try:
            self._crew.start(
                guard, Wiring(self._selector, self._on_output, self._on_packet, self._say)
            )
            self._starting = False
            while self._going_on():
                self._turn()
        finally:
            if self._interrupt:
                self._end_by = min(self._end_by, time.monotonic() + _INTERRUPTED_S)
            self._crew.finish(self._postmortem_due())
            self._drain()
            self._crew.clear(self._end_by)
            guard.dismiss()
            self._say_the_rest()
        return self._verdict()

    def _going_on(self) -> bool:
        if self._interrupt and not self._crew.started or time.monotonic() >= self._give_up_at:
            return False
        return any(rank.ended_at is None for rank in self._crew.ranks)

    # --- starting ---------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        self._wakeups.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the wakeup is all we need
        for number in _INTERRUPTS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_interrupt)
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._on_wakeup)

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._again = self._interrupt != 0
        self._interrupt = self._interrupt or number
        self._interrupted_at = self._interrupted_at or time.time()

    def _open_streams(self) -> None:
        self._screens = out_screen, error_screen = screens(self._takes_more)
        sys.stderr = own_words(error_screen)
        options = self._options
        files = copies(options.output_folder, options.np)
        for rank in range(options.np):
            for errors, screen, kept in ((False, out_screen, 0), (True, error_screen, _KEPT_LINES)):
                copy = files.get((rank, errors))
                stream = Stream(screen, rank, options.prefix, kept, options.timestamps, copy)
                self._streams[rank, errors] = stream

    # --- the loop ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience(self._crew.due())):
            key.data()
        self._say_the_rest()
        now = time.monotonic()
        self._crew.turn(now)
        self._look_at_ranks()
        self._end_ranks(now)

    def _look_at_ranks(self) -> None:
        for rank in self._crew.ranks:
            now = time.monotonic()  # who ends because of another one ends later
            if rank.poll(now):
                self._on_end(rank, now)
            elif self._unexplained(rank) and now >= rank.closed_at + _STATUS_S:
                self._relay.announce_death(rank)

    @staticmethod
    def _unexplained(rank: Standing) -> bool:
        """Whether its socket has ended, and nobody knows yet what that means."""
        return (
            rank.closed_at is not None
            and rank.ended_at is None
            and not rank.announced
            and rank.joined
            and not rank.left
        )

    def _patience(self, due: float | None) -> float:
        """Seconds until something has to be done without being woken."""
        times = [self._give_up_at, *(when for when, _ in self._kills)]
        times += [
            rank.closed_at + _STATUS_S for rank in self._crew.ranks if self._unexplained(rank)
        ]
        if due is not None:
            times.append(due)
        return min(max(0.0, min(times) - time.monotonic()), _LONGEST_S)

    def _on_wakeup(self) -> None:
        try:
            self._wakeups.recv(4096)
        except BlockingIOError:
            pass  # read while the output waited

    def _takes_more(self, descriptor: int) -> bool:
        """Waits until it can be written to, as long as its reader likes; false when the time is up
        that it has after an interrupt. Meanwhile the ranks hear of each other, and get their
        signals."""
        if not self._interrupt and self._ready(descriptor, [], 0.0) == {descriptor}:
            return True
        outermost, self._waiting = not self._waiting, True
        try:
            while not self._may_write(descriptor):
                if time.monotonic() >= self._write_until:
                    return False
            return True
        finally:
            if outermost:
                self._waiting = False

    def _may_write(self, descriptor: int) -> bool:
        """After at most one wait for that, or for something else to do. A terminal may take less
        than it said, and keep who writes until a signal comes: hence what that may be is looked at
        first."""
        now = time.monotonic()
        self._on_wakeup()
        apart, due = [], None
        if not self._starting:
            apart, due = self._crew.overhear(now)
            self._look_at_ranks()
        self._end_ranks(now)
        patience_s = min(self._patience(due), max(0.0, self._write_until - now))
        return descriptor in self._ready(descriptor, apart, patience_s)

    def _ready(self, descriptor: int, others: list[int], seconds: float) -> set[int]:
        """What is ready within this time: to be written to, or, of the others and the wakeups, to
        be read."""
        watch = select.poll()
        watch.register(descriptor, select.POLLOUT)
        for other in (self._wakeups.fileno(), *others):
            watch.register(other, select.POLLIN)
        return {ready for ready, _ in watch.poll(1000 * seconds)}

    def _on_output(self, rank: int, errors: bool, text: bytes) -> None:
        stream = self._streams[rank, errors]
        begun = time.monotonic()
        try:
            stream.feed(text) if text else stream.end()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # of what was heard meanwhile
                raise
            if not isinstance(error, BrokenPipeError):  # nobody reads us: horonrun ... | head
                self._unwritten = error.strerror
            self._interrupt = self._interrupt or signal.SIGPIPE
        self._count_writing(begun)

    def _count_writing(self, begun: float) -> None:
        """After an interrupt there may be more than can be shown in time: the rest is dropped."""
        interrupted = self._write_until - _WRITE_S
        self._written_s += max(0.0, time.monotonic() - max(begun, interrupted))
        if self._written_s > _WRITE_S:
            for screen in self._screens:
                screen.over = True

    def _on_packet(self, rank: Standing, packet: bytes, files: list[int]) -> None:
        self._relay.take(rank, packet, files, time.monotonic())

    def _on_end(self, rank: Standing, now: float) -> None:
        rank.read_packets(now)  # its bye may still lie there
        stood = "left" if rank.left else "joined" if rank.joined else "never joined"
        self._say(f"{rank.cause()} ({stood})")
        if not rank.left:
            self._relay.announce_death(rank)

    # --- ending -----------------------------------------------------------------------------------

    def _end_ranks(self, now: float) -> None:
        """Sends them the signals that are due."""
        self._plan_kills(now)
        while self._kills and self._kills[0][0] <= now:
            _, number = self._kills.pop(0)
            for rank in self._crew.ranks:
                rank.kill(number)
        if self._patient_until and now >= self._patient_until and not self._interrupt:
            self._patient_until = math.inf
            self._name_the_overdue()

    def _plan_kills(self, now: float) -> None:
        if self._again:
            self._kills = [(now, signal.SIGKILL)]
            self._write_until = now
            self._give_up_at = min(self._give_up_at, now + _GONE_S)
            self._end_by = self._give_up_at
        elif self._interrupt and not self._stopping:
            self._stopping = True
            self._write_until = now + _WRITE_S
            self._give_up_at = now + 2 * _TERM_S + _GONE_S
            self._end_by = now + _INTERRUPTED_S
            first = signal.SIGINT if self._interrupt == signal.SIGINT else signal.SIGTERM
            self._kills = [
                (now, first),
                (now + _TERM_S, signal.SIGTERM),
                (now + 2 * _TERM_S, signal.SIGKILL),
            ]
        elif (
            not self._kills
            and not self._interrupt
            and any(rank.failed or rank.raised for rank in self._crew.ranks)
        ):
            end = now + self._options.grace_s
            self._kills = [(end, signal.SIGTERM), (end + 2.0, signal.SIGKILL)]
            self._patient_until = self._patient_until or end
        elif self._patient_until and not self._interrupt and self._waits_for_none(now):
            self._kills = [(now, signal.SIGTERM), (now + 2.0, signal.SIGKILL)]
            self._patient_until = math.inf

    def _waits_for_none(self, now: float) -> bool:
        """Whether there is patience left, and all that have not ended are stopped."""
        left = [rank for rank in self._crew.ranks if rank.ended_at is None]
        patient = now < self._patient_until < math.inf
        return patient and bool(left) and all(rank.stopped for rank in left)

    def _name_the_overdue(self) -> None:
        """Who had not ended by itself since another rank failed, and has been told to now."""
        late = [str(rank.rank) for rank in self._crew.ranks if rank.ended_at is None]
        if late:
            shown = ", ".join(late[:_MOST_NAMED]) + (" ..." if len(late) > _MOST_NAMED else "")
            who = f"rank {shown} is" if len(late) == 1 else f"ranks {shown} are"
            self._say_always(f"{who} still running {self._options.grace_s:g} s after the first "
                             "failure, and ended now (--grace-period)")

    def _drain(self) -> None:
        """What the ranks wrote last is still on its way."""
        end = min(time.monotonic() + _DRAIN_S, self._give_up_at)
        while any(rank.talking for rank in self._crew.ranks) and time.monotonic() < end:
            for key, _ in self._selector.select(max(0.0, end - time.monotonic())):
                key.data()

    def _verdict(self) -> int:
        if self._unwritten:
            print(
                f"horonrun: the ranks' output cannot be written, which ends the job: "
                f"{self._unwritten}",
                file=sys.stderr,
            )
        if self._interrupt:
            if self._interrupted_at:
                aftermath.name_who_held_up(self._crew.ranks, self._interrupted_at)
            return 128 + self._interrupt
        failed = [rank for rank in self._crew.ranks if rank.failed]
        if not failed:
            return 0
        recordings = aftermath.recordings_of(self._crew.ranks)
        if self._postmortem_due():
            folder = os.environ["HORON_POSTMORTEM_DIR"]
            aftermath.write_postmortem(self._crew.ranks, recordings, folder)
        first = min(failed, key=lambda rank: rank.blame)
        # Who ended well without ever joining is to blame when others who waited for it gave up at
        # once.
        missed = [rank for rank in self._crew.ranks
                  if rank.missed and first.returncode is not None and first.returncode > 0
                  and 0 <= first.trouble_at - rank.trouble_at <= _AT_ONCE_S]
        first = min(missed, default=first, key=lambda rank: rank.blame)
        self.culprit = first
        more = sum(rank is not first for rank in failed)
        others = f" ({more} more failed after it)" if more else ""
        print(f"horonrun: {first.cause()}{others}", file=sys.stderr)
        aftermath.name_culprit_that_did_not_fail(self._crew.ranks, recordings, first)
        own = self._streams[first.rank, True].last_lines
        aftermath.print_lines(f"the last lines of rank {first.rank} on stderr", own)
        aftermath.print_lines("what MPI said", self._crew.mpi_errors)
        return first.exit_code or 1

    def _postmortem_due(self) -> bool:
        wanted = bool(os.environ.get("HORON_POSTMORTEM_DIR")) and not self._interrupt
        return wanted and any(rank.failed for rank in self._crew.ranks)

    def _say(self, sentence: str) -> None:
        if self._options.verbose:
            self._say_always(sentence)

    def _say_always(self, sentence: str) -> None:
        self._unsaid.append(sentence)
        self._say_the_rest()

    def _say_the_rest(self) -> None:
        while self._unsaid and not self._waiting:  # not into the middle of what is being written
            with contextlib.suppress(OSError):  # a job does not depend on who reads about it
                print(f"horonrun: {self._unsaid.pop(0)}", file=sys.stderr, flush=True)
