"""The other keepers of a host: children of the same MPI daemon, started with the same command; and
what the daemon leaves behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .pidfd import descriptor_of, wait_for_one

_LOOK_S = 0.02


def wait_as_the_last(daemon: int, patience_s: float) -> bool:
    """Waits until the other keepers of this host have ended, if this is the one that has to.

    That is the one with the lowest number. False at once for the others, which may then end; and
    when the daemon has ended meanwhile.
    """
    others = _others(daemon)
    if any(pid < os.getpid() for pid in others):
        return False
    end = time.monotonic() + patience_s
    for pid in others:
        _wait(pid, daemon, max(0.0, end - time.monotonic()))
    return os.getppid() == daemon


def session_folder(daemon: int, program: str = "prted") -> str:
    """Where Open MPI 5's daemon, or mpirun, has its sockets; if it is killed, it leaves it behind.
    Python's own search for such a place tries it out with a file, which stays when this process is
    killed in that moment."""
    names = ("TMPDIR", "TEMP", "TMP")  # as Open MPI looks
    place = next((os.environ[name] for name in names if os.environ.get(name)), "/tmp")
    return os.path.join(place, f"{program}.{daemon}")


def _others(daemon: int) -> list[int]:
    """Those of which some thread of the daemon is the parent."""
    mine = Path("/proc/self/cmdline").read_bytes()
    found = []
    for children in Path(f"/proc/{daemon}/task").glob("*/children"):
        for pid in map(int, _read(children).split()):
            if pid != os.getpid() and _read(Path(f"/proc/{pid}/cmdline")) == mine:
                found.append(pid)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def _wait(pid: int, daemon: int, seconds: float) -> None:
    """Until one of the two has ended."""
    end = time.monotonic() + seconds
    descriptors = [found for one in (pid, daemon) if (found := descriptor_of(one)) is not None]
    if len(descriptors) == 2:
        wait_for_one(descriptors, seconds)
    else:  # one has ended, or there are no descriptors of processes here
        while time.monotonic() < end and all(_read(Path(f"/proc/{one}/cmdline"))
                                             for one in (pid, daemon)):
            time.sleep(_LOOK_S)
    for descriptor in descriptors:
        os.close(descriptor)
