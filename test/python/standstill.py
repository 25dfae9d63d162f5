"""Standstill: whether the machine itself kept processes from running, for tests with deadlines.

Seen on a virtual machine with Linux 6.18: while a process of the lowest priority (nice 19, in a
group of its own) is busy, processes of normal priority wait up to 14 s for a processor, on both at
once; ones of real-time priority wait for nothing. No deadline of a job can be told from that, so a
test measures it on the side: a thread on each processor that sleeps for a moment, again and again.
"""

from __future__ import annotations

import os
import threading
import time

BEAT_S = 0.05


class Standstill:
    def __init__(self) -> None:
        self._over = threading.Event()
        cpus = sorted(os.sched_getaffinity(0))
        self._longest = dict.fromkeys(cpus, 0.0)
        self._last = dict.fromkeys(cpus, time.monotonic())
        self._threads = [threading.Thread(target=self._beat, args=(cpu,)) for cpu in cpus]

    def __enter__(self) -> Standstill:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def begin(self) -> None:
        """From now on counts."""
        self._longest = dict.fromkeys(self._longest, 0.0)

    def longest_s(self) -> float:
        """For how long at worst a thread could not run since begin(), or cannot yet."""
        now = time.monotonic()
        waiting = [now - last - BEAT_S for last in self._last.values()]
        return max(*self._longest.values(), *waiting)

    def _beat(self, cpu: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        while not self._over.wait(BEAT_S):
            now = time.monotonic()
            self._longest[cpu] = max(self._longest[cpu], now - self._last[cpu] - BEAT_S)
            self._last[cpu] = now
