"""Noticing that a rank's process is stopped (SIGSTOP, a debugger) and stays so.

Used by horonrun for ranks beside it, by a keeper for its one rank.
"""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLE = "HORON_STALL_SILENCE_SECONDS"  # as the ranks' runtime reads it
_DEFAULT_S = 30.0
STOPPED = "has been stopped"


class Stops:
    """Of one process. The runtime's own question finds a stopped rank while others wait for it;
    this finds one that nobody waits for, in init or when the others have left."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self._limit_s = float(environment.get(_VARIABLE, _DEFAULT_S))
        except ValueError:
            self._limit_s = _DEFAULT_S  # the rank itself says what is wrong
        self._since: float | None = None
        self._said = False

    @property
    def due(self) -> float | None:
        """When it will have been stopped for too long; None while it runs."""
        return None if self._since is None or self._said else self._since + self._limit_s

    def judge(self, rank: int, pid: int, now: float) -> bytes:
        """The packet that gives the rank up, once; else nothing."""
        if self._limit_s <= 0 or self._said:
            return b""
        if not _stopped(pid):
            self._since = None
            return b""
        if self._since is None:
            self._since = now
        if now < self._since + self._limit_s:
            return b""
        self._said = True
        return (
            f"lost {rank} rank {rank} {STOPPED} (SIGSTOP, or a debugger) for "
            f"{self._limit_s:g} s"
        ).encode()


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
    except OSError:
        return False
