"""Ranks beside horonrun: what is started for each, and the process that runs it."""

from __future__ import annotations

import errno
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from . import marks
from .guard import Guard
from .options import Options, cores
from .refusal import EXHAUSTED, Refusal
from .spawn import Child
from .standing import Standing, Wiring
from .stops import Stops
from .variables import shared_variables, thread_variables

@dataclass
class Launch:
    """Command and environment of one rank; `added` is what horonrun put into the environment."""

    rank: int
    command: list[str]
    environment: dict[str, str]
    added: dict[str, str]
    task: int | None = None  # descriptor of the function that it shall call

    def shell_line(self) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.added.items())]
        return " ".join(["env", *words, shlex.join(self.command)])


def check_command(command: list[str]) -> None:
    """Refuses a program that is not there, before any rank is started."""
    if shutil.which(command[0]) is not None:
        return
    why = "no such program"
    if os.path.exists(command[0]):
        why = ("it is no program; a script needs its interpreter, "
               "as in horonrun -np 4 python train.py")
    raise Refusal(f"cannot run '{command[0]}': {why}", exit_code=127)


def plan(options: Options, environment: Mapping[str, str]) -> list[Launch]:
    """One Launch a rank, for a job on this machine."""
    check_command(options.command)
    threads = thread_variables(options.np, environment)
    if options.verbose and threads:
        print(
            f"horonrun: OMP_NUM_THREADS={threads['OMP_NUM_THREADS']} for each rank "
            f"({cores()} cores, {options.np} ranks); set it to choose",
            file=sys.stderr,
        )
    shared = {**shared_variables(options, environment), **threads}
    launches = []
    for rank in range(options.np):
        added = {
            **shared,
            "HORON_RANK": str(rank),
            "HORON_SIZE": str(options.np),
            "HORON_LOCAL_RANK": str(rank),
        }
        launch = Launch(rank, options.command, {**environment, **added}, added, options.task)
        launches.append(launch)
    return launches


def standard_input(rank: int) -> int | None:
    """What is piped into horonrun goes to rank 0. Ranks are background jobs of the terminal, which
    would stop them when they read from it."""
    return None if rank == 0 and not sys.stdin.isatty() else subprocess.DEVNULL


class Rank(Standing):
    """A rank that runs beside horonrun. It is started when it is made."""

    def __init__(self, launch: Launch, mark: str, wiring: Wiring) -> None:
        super().__init__(launch.rank)
        stdin = standard_input(launch.rank)
        environment = {**launch.environment, marks.VARIABLE: mark}
        self.child = Child(launch.command, environment, stdin, launch.task)
        self._wiring = wiring
        self._open_pipes = 0
        self.stops = Stops(launch.environment)
        self._watch_pipe(self.child.process.stdout, False)
        self._watch_pipe(self.child.process.stderr, True)
        wiring.selector.register(self.child.socket, selectors.EVENT_READ, self._on_socket)

    def _watch_pipe(self, pipe, errors: bool) -> None:
        def on_output() -> None:
            text = os.read(pipe.fileno(), 1 << 16)
            if not text:
                self._wiring.selector.unregister(pipe)
                self._open_pipes -= 1
            self._wiring.on_output(self.rank, errors, text)

        self._open_pipes += 1
        self._wiring.selector.register(pipe, selectors.EVENT_READ, on_output)

    def _on_socket(self) -> None:
        self.read_packets(time.monotonic())

    def read_packets(self, now: float) -> None:
        while self.closed_at is None and (received := self.child.receive()) is not None:
            packet, files = received
            if self.child.short:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if packet:
                self._wiring.on_packet(self, packet, files)
                continue
            self.closed_at = now
            self._wiring.selector.unregister(self.child.socket)
            # It had read the offer of the node's shared memory.
            self.joined = self.joined or (self.offered and self.child.read_all)

    def poll(self, now: float) -> bool:
        if self.ended_at is not None or (code := self.child.poll()) is None:
            return False
        self.returncode = code
        self.end(now)
        return True

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        self.child.send(packet, descriptor)

    def kill(self, number: int) -> None:
        self.signalled = self.signalled or self.ended_at is None
        self.child.kill(number)

    @property
    def talking(self) -> bool:
        return self._open_pipes > 0


class LocalCrew:
    """All ranks of a job on this machine."""

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches
        self._mark = marks.of_job(os.environ)
        self.ranks: list[Standing] = []
        self.started = True  # nothing has to be waited for
        self.mpi_errors: list[str] = []  # there is no mpirun

    def start(self, guard: Guard, wiring: Wiring) -> None:
        self._wiring = wiring
        guard.add_marked(self._mark)
        for launch in self._launches:
            wiring.say(f"rank {launch.rank}: {launch.shell_line()}")
            try:
                rank = Rank(launch, marks.of_rank(self._mark, launch.rank), wiring)
            except OSError as error:
                if error.errno in EXHAUSTED:
                    raise
                raise Refusal(
                    f"cannot start '{launch.command[0]}': {error.strerror}", exit_code=126
                ) from None
            self.ranks.append(rank)
            guard.add(rank.child.pid)

    def turn(self, now: float) -> None:
        """Gives ranks up that were stopped for too long. SIGCHLD told us that something changed."""
        for rank in self.ranks:
            sentence = rank.stops.judge(rank.rank, rank.child.pid, now)
            if sentence and rank.ended_at is None:
                self._wiring.on_packet(rank, sentence, [])

    def overhear(self, now: float) -> tuple[list[int], float | None]:
        for rank in self.ranks:
            rank.read_packets(now)
        self.turn(now)
        sockets = [rank.child.socket.fileno() for rank in self.ranks if rank.closed_at is None]
        return sockets, self.due()

    def due(self) -> float | None:
        return min((rank.stops.due for rank in self.ranks if rank.stops.due), default=None)

    def finish(self, recorders_wanted: bool) -> None:
        """Ends whatever the ranks left behind, or all of them when starting failed."""
        for rank in self.ranks:
            rank.kill(signal.SIGKILL)
        marks.end_all(self._mark)

    def clear(self, until: float) -> None:
        for rank in self.ranks:
            rank.poll(0.0)
