"""One rank: what is started for it, and the process that runs it."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .options import Options, Refusal, cores

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass
class Launch:
    """Command and environment of one rank; `added` is what horonrun put into the environment."""

    rank: int
    command: list[str]
    environment: dict[str, str]
    added: dict[str, str]

    def shell_line(self) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.added.items())]
        return " ".join(["env", *words, shlex.join(self.command)])


def shared_variables(options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that all ranks get, however they are started."""
    added = dict(options.variables)
    added["HORON_PYTHON_PREFIX"] = sys.prefix
    if "OMP_NUM_THREADS" not in environment:
        # Every rank would otherwise start a thread for each core, and they would fight.
        added["OMP_NUM_THREADS"] = str(max(1, cores() // options.np))
        if options.verbose:
            print(f"horonrun: OMP_NUM_THREADS={added['OMP_NUM_THREADS']} for each rank "
                  f"({cores()} cores, {options.np} ranks); set it to choose", file=sys.stderr)
    if "PYTHONUNBUFFERED" not in environment:
        added["PYTHONUNBUFFERED"] = "1"  # lines appear when they are printed, also before a crash
    return added


def check_command(command: list[str]) -> None:
    """Refuses a program that is not there, before any rank is started."""
    if shutil.which(command[0]) is None:
        raise Refusal(f"cannot run '{command[0]}': no such program", exit_code=127)


def plan(options: Options, environment: Mapping[str, str]) -> list[Launch]:
    """One Launch a rank, for a job on this machine."""
    check_command(options.command)
    shared = shared_variables(options, environment)
    if "COLUMNS" not in environment and sys.stderr.isatty():
        # Ranks write to pipes; progress bars take the width from here. Room for "[12] ".
        room = len(f"[{options.np - 1}] ") if options.prefix else 0
        shared["COLUMNS"] = str(max(20, shutil.get_terminal_size().columns - room - 1))
    launches = []
    for rank in range(options.np):
        added = {**shared, "HORON_RANK": str(rank), "HORON_SIZE": str(options.np), "HORON_LOCAL_RANK": str(rank)}
        launches.append(Launch(rank, options.command, {**environment, **added}, added))
    return launches


class Rank:
    """A started rank. The job's loop reads its pipes and its socket, and asks whether it has ended."""

    def __init__(self, launch: Launch) -> None:
        self.rank = launch.rank
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**launch.environment, "HORON_LAUNCHER_FD": str(theirs.fileno())}
        try:
            self.process = subprocess.Popen(
                launch.command,
                env=environment,
                stdin=_standard_input(launch.rank),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno()],
                preexec_fn=_in_the_child(os.getpid()),
            )
        finally:
            theirs.close()
        self.socket.setblocking(False)
        self.offered = False  # it was sent the node's shared memory
        self.joined = False  # it took or made it: the other ranks count on this one
        self.left = False  # it said bye since
        self.closed_at: float | None = None  # its socket ended
        self.ended_at: float | None = None
        self.left_at: float | None = None  # bye, or the end
        self.announced = False  # the others were told that it is dead

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self, now: float) -> bool:
        """True once, when the process has just ended."""
        if self.ended_at is not None or self.process.poll() is None:
            return False
        self.ended_at = now
        if self.left_at is None:
            self.left_at = now
        return True

    @property
    def exit_code(self) -> int:
        """As a shell says it: 128 + signal when killed. Of an ended rank."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    @property
    def failed(self) -> bool:
        """Whether the job has failed because of it."""
        return self.ended_at is not None and (self.process.returncode != 0 or (self.joined and not self.left))

    def cause(self) -> str:
        """How it ended, as a sentence without a full stop."""
        code = self.process.returncode
        if code is None:
            return f"rank {self.rank} closed its connection to horonrun without leaving the job"
        if code < 0:
            return f"rank {self.rank} was killed by signal {-code} ({_signal_name(-code)})"
        if code > 0:
            return f"rank {self.rank} exited with code {code}"
        how = "leaving" if self.joined else "joining"
        return f"rank {self.rank} exited with code 0" + ("" if self.left else f" without {how} the job")

    def kill(self, number: int) -> None:
        """Sends a signal to everything that this rank started."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # all of it has ended


def _standard_input(rank: int) -> int | None:
    # Ranks are background jobs of the terminal, which would stop them when they read from it.
    return None if rank == 0 and not sys.stdin.isatty() else subprocess.DEVNULL


def _in_the_child(launcher: int):
    def prepare() -> None:
        os.setpgid(0, 0)  # a group of its own, so that everything it starts can be ended with it
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before prctl took hold
            os.kill(os.getpid(), signal.SIGKILL)
        # The launcher ignores or masks some of these; its children start afresh.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return prepare


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
