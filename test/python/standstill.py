"""Standstill: whether the machine itself kept processes from running, for tests with deadlines.

Seen on a virtual machine with Linux 6.18, whose scheduler has a group for each session: all
processes of some sessions wait up to 14 s for a processor while those of others run, now and then
under load, and at once where something of the lowest priority (nice 19) is busy. No deadline of a
job can be told from that, so a test looks on the side: whether a thread could run, and did not.
"""

from __future__ import annotations

import glob
import threading
import time

LOOK_S = 0.2


class Standstill:
    """Looks at all processes that are seen here: those of a world, in one."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._seen: dict[str, tuple[str, float]] = {}  # task: how much it ran, and since when
        self._longest = (0.0, "")

    def __enter__(self) -> Standstill:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """From now on counts."""
        self._longest = (0.0, "")

    def longest(self) -> tuple[float, str]:
        """Since begin(): for how many seconds at worst a thread could run and did not; which."""
        return self._longest

    def _look(self) -> None:
        last = time.monotonic()
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            self._longest = max(self._longest, (now - last - LOOK_S, "this test"))
            seen, self._seen = self._seen, {}
            for task in glob.glob("/proc/[0-9]*/task/*"):
                self._see(task, seen.get(task), now)
            last = time.monotonic()

    def _see(self, task: str, before: tuple[str, float] | None, now: float) -> None:
        try:
            with open(f"{task}/schedstat") as file:
                ran = file.read()
            since = now
            if before is not None and before[0] == ran:
                with open(f"{task}/stat") as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
                if rest.split()[0] == "R":
                    since = before[1]
                    self._longest = max(self._longest, (now - since, f"a thread of {name}"))
            self._seen[task] = (ran, since)
        except OSError:  # it has ended, or this kernel does not count
            pass
