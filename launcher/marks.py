"""The mark of a job: a variable that all that a rank starts inherits, in whatever session it is.

By it those are found that have left the rank's process group. Its value names the job and the rank,
after those of the jobs around it: the mark of a horonrun that a rank starts begins with the rank's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from .pidfd import descriptor_of, wait_for_one

VARIABLE = "HORON_JOB"
_LIMIT_S = 0.5  # until all have ended; longer only if the kernel cannot end one
_SOON_S = 0.001
_VSIZE, _ENV_END = 20, 48  # in /proc/PID/stat, counted from the state


def of_job(environment: Mapping[str, str]) -> str:
    """A new one, with which those of its ranks begin."""
    return f"{environment.get(VARIABLE, '')}{os.urandom(16).hex()}."


def of_rank(job: str, rank: int) -> str:
    return f"{job}{rank}/"


def end_all(mark: str) -> None:
    """Kills whoever bears it, or one that begins with it, until nobody is left or the time is up.

    Only this user's processes on this host; horonrun, its keepers and their guards never bear it.
    """
    entry = os.fsencode(f"{VARIABLE}={mark}")
    end = time.monotonic() + _LIMIT_S
    strangers: set[int] = set()  # who does not bear it, and need not be looked at again
    looks = 2  # in which nobody is found: one may have been started during the first, and missed
    while looks and time.monotonic() < end:
        found, killed = _kill_all(entry, strangers)
        looks = 2 if found else looks - 1
        if found and not killed:
            time.sleep(_SOON_S)
        for process in killed:
            wait_for_one([process], end - time.monotonic())
            os.close(process)


def _kill_all(entry: bytes, strangers: set[int]) -> tuple[bool, list[int]]:
    """Whether there was somebody, and descriptors of those that were killed."""
    found, killed = False, []
    for pid in _processes() - strangers:
        environment = _read(pid, "environ") if _is_ours(pid) else None
        if environment is not None and _bears(environment, entry):
            found = True
            process = _kill(pid, entry)
            if process is not None:
                killed.append(process)
        elif environment == b"" and _starts(pid):
            found = True
        else:
            strangers.add(pid)
    return found, killed


def _processes() -> set[int]:
    try:
        return set(map(int, filter(str.isdigit, os.listdir("/proc"))))
    except OSError:
        return set()  # nobody can be found


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False  # it has just ended


def _read(pid: int, name: str) -> bytes | None:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None  # it has ended, or does not show it


def _starts(pid: int) -> bool:
    """Whether it is becoming another program, and its environment is not there yet."""
    fields = (_read(pid, "stat") or b"").rpartition(b")")[2].split()
    return len(fields) > _ENV_END and fields[_VSIZE] != b"0" and fields[_ENV_END] == b"0"


def _bears(environment: bytes, entry: bytes) -> bool:
    """But for another job of Slurm's, which a rank has submitted with its own environment."""
    if entry not in environment:
        return False
    ours = os.fsencode(f"SLURM_JOB_ID={os.environ.get('SLURM_JOB_ID', '')}\0")
    return b"SLURM_JOB_ID=" not in environment or ours in environment


def _kill(pid: int, entry: bytes) -> int | None:
    """A descriptor of the process, if there is one. The number may be another's by now, so the mark
    is looked at again once the descriptor holds on to the process."""
    process = descriptor_of(pid)
    if _bears(_read(pid, "environ") or b"", entry):
        try:
            if process is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or may not be killed
    return process
