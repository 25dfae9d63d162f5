"""A job on this machine: one loop over the ranks' output, their sockets, their ends, and signals."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

from .guard import Guard
from .options import Options, Refusal
from .output import Stream, screens
from .rank import Launch, Rank
from .relay import Relay

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEPT_LINES = 12  # of the first failing rank's stderr, shown again at the end
_STATUS_S = 0.1  # after a socket's end, the time that the exit status has to explain it
_TERM_S = 0.8  # between the first signal and SIGTERM, and between SIGTERM and SIGKILL
_DRAIN_S = 1.0  # for output that is still in the pipes when all ranks have ended


class Job:
    """Starts all ranks and watches them. `run` returns horonrun's exit code."""

    def __init__(self, options: Options, launches: list[Launch]) -> None:
        self._options = options
        self._launches = launches
        self._selector = selectors.DefaultSelector()
        self._ranks: list[Rank] = []
        self._relay = Relay(self._ranks, self._say)
        self._errors: dict[int, Stream] = {}  # stderr by rank
        self._open_pipes = 0
        self._interrupt = 0  # number of the signal that asks us to stop
        self._again = False  # it came twice: no more patience
        self._stopping = False  # signals because of it are planned
        self._kills: list[tuple[float, int]] = []  # when to send which signal to all
        self._wakeups, self._wake = socket.socketpair()

    def run(self) -> int:
        self._catch_signals()
        guard = Guard()
        try:
            self._start(guard)
            while any(rank.ended_at is None for rank in self._ranks):
                self._turn()
        finally:
            self._signal_all(signal.SIGKILL)  # whatever the ranks left behind, or all when starting failed
            self._drain()
            guard.dismiss()
        return self._verdict()

    # --- starting ---------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        self._wakeups.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the wakeup is all we need
        for number in _INTERRUPTS:
            signal.signal(number, self._on_interrupt)
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._on_wakeup)

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._again = self._interrupt != 0
        self._interrupt = self._interrupt or number

    def _start(self, guard: Guard) -> None:
        out_screen, error_screen = screens()
        for launch in self._launches:
            self._say(f"rank {launch.rank}: {launch.shell_line()}")
            try:
                rank = Rank(launch)
            except OSError as error:
                raise Refusal(f"cannot start '{launch.command[0]}': {error.strerror}", exit_code=126) from None
            self._ranks.append(rank)
            guard.add(rank.pid)
            prefix = self._options.prefix
            self._errors[rank.rank] = Stream(error_screen, rank.rank, prefix, _KEPT_LINES)
            self._watch_pipe(rank.process.stdout, Stream(out_screen, rank.rank, prefix))
            self._watch_pipe(rank.process.stderr, self._errors[rank.rank])
            self._selector.register(rank.socket, selectors.EVENT_READ, lambda rank=rank: self._on_socket(rank))

    def _watch_pipe(self, pipe, stream: Stream) -> None:
        self._open_pipes += 1
        self._selector.register(pipe, selectors.EVENT_READ, lambda: self._on_output(pipe, stream))

    # --- the loop ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            key.data()
        now = time.monotonic()
        for rank in self._ranks:
            if rank.poll(now):
                self._on_end(rank, now)
            elif rank.closed_at is not None and rank.ended_at is None and now >= rank.closed_at + _STATUS_S:
                if rank.joined and not rank.left:
                    self._relay.announce_death(rank)
        self._plan_kills(now)
        while self._kills and self._kills[0][0] <= now:
            self._signal_all(self._kills.pop(0)[1])

    def _patience(self) -> float | None:
        """Seconds until something has to be done without being woken."""
        times = [when for when, _ in self._kills]
        times += [rank.closed_at + _STATUS_S for rank in self._ranks
                  if rank.closed_at is not None and rank.ended_at is None and not rank.announced
                  and rank.joined and not rank.left]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_wakeup(self) -> None:
        self._wakeups.recv(4096)

    def _on_output(self, pipe, stream: Stream) -> None:
        text = os.read(pipe.fileno(), 1 << 16)
        try:
            stream.feed(text) if text else stream.end()
        except BrokenPipeError:  # nobody reads us any more (horonrun ... | head)
            self._interrupt = self._interrupt or signal.SIGPIPE
        if not text:
            self._selector.unregister(pipe)
            self._open_pipes -= 1

    def _on_socket(self, rank: Rank) -> None:
        self._relay.read(rank, time.monotonic())
        if rank.closed_at is not None:
            self._selector.unregister(rank.socket)

    def _on_end(self, rank: Rank, now: float) -> None:
        self._relay.read(rank, now)  # its bye may still lie there
        self._say(f"{rank.cause()} ({'left' if rank.left else 'joined' if rank.joined else 'never joined'})")
        if not rank.left:
            self._relay.announce_death(rank)

    # --- ending -----------------------------------------------------------------------------------

    def _plan_kills(self, now: float) -> None:
        if self._again:
            self._kills = [(now, signal.SIGKILL)]
        elif self._interrupt and not self._stopping:
            self._stopping = True
            first = signal.SIGINT if self._interrupt == signal.SIGINT else signal.SIGTERM
            self._kills = [(now, first), (now + _TERM_S, signal.SIGTERM), (now + 2 * _TERM_S, signal.SIGKILL)]
        elif not self._kills and not self._interrupt and any(rank.failed for rank in self._ranks):
            end = now + self._options.grace_s
            self._kills = [(end, signal.SIGTERM), (end + 2.0, signal.SIGKILL)]

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            rank.kill(number)

    def _drain(self) -> None:
        """What the ranks wrote last is still in the pipes."""
        end = time.monotonic() + _DRAIN_S
        while self._open_pipes and time.monotonic() < end:
            for key, _ in self._selector.select(end - time.monotonic()):
                key.data()
        for rank in self._ranks:
            rank.process.poll()

    def _verdict(self) -> int:
        if self._interrupt:
            return 128 + self._interrupt
        failed = [rank for rank in self._ranks if rank.failed]
        if not failed:
            return 0
        # Killed ranks first when two ended at once: the others may have failed because of them.
        first = min(failed, key=lambda rank: (rank.left_at, rank.process.returncode >= 0, rank.rank))
        others = f" ({len(failed) - 1} more failed after it)" if len(failed) > 1 else ""
        print(f"horonrun: {first.cause()}{others}", file=sys.stderr)
        lines = self._errors[first.rank].last_lines
        if lines:
            print(f"horonrun: the last lines of rank {first.rank} on stderr:", file=sys.stderr)
            for line in lines:
                print(f"    {line}", file=sys.stderr)
        return first.exit_code or 1

    def _say(self, sentence: str) -> None:
        if self._options.verbose:
            print(f"horonrun: {sentence}", file=sys.stderr, flush=True)
