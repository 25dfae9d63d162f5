"""A process that outlives its parent by a moment: when that is killed, it ends what it started.

PR_SET_PDEATHSIG ends the ranks themselves, but not their children (a shell's command, data
loaders), which may have sessions of their own. Both horonrun and a keeper have one.
"""

from __future__ import annotations

import os
import shutil
import signal
import time

from . import marks
from .pidfd import descriptor_of, wait_for_one
from .spawn import name_this_process

_DONE = b"done"
_MARKED = 0  # in place of a process: those that bear a mark; sorted after groups
_KILLED_S = 1.0  # that the kernel takes at most to end a process that was killed


class Guard:
    """Forked before the first child, so that it holds none of their pipes and sockets."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._writing)
                _watch(reading)
            finally:
                os._exit(0)
        os.close(reading)

    def add(self, group: int, patience_s: float = 0.0, folder: str = "") -> None:
        """Takes a process group into care; it gets so long to end by itself.

        A folder that stays when it does not is removed after it.
        """
        self._add(-group, patience_s, folder)

    def add_process(self, pid: int, patience_s: float, folder: str) -> None:
        """The same of a process."""
        self._add(pid, patience_s, folder)

    def add_marked(self, mark: str) -> None:
        """Takes all that bear a mark into care, and ends them after the groups with no patience."""
        self._add(_MARKED, 0.0, mark)

    def _add(self, target: int, patience_s: float, text: str) -> None:
        line = f"{target} {int(patience_s * 1000)} {text}\0"
        os.write(self._writing, line.encode(errors="surrogateescape"))

    def dismiss(self) -> None:
        """The children are gone; nothing is left to guard."""
        os.write(self._writing, _DONE)
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _watch(reading: int) -> None:
    os.setsid()  # the terminal's Ctrl-C is not for it
    name_this_process("horon-guard")  # nor is pkill horonrun
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, reading)  # standard streams, and what the parent had open
    os.closerange(reading + 1, 1 << 16)
    text = b""
    while part := os.read(reading, 4096):  # ends with the parent
        text += part
    if text.endswith(_DONE):
        return
    lines = text.decode(errors="surrogateescape").split("\0")[:-1]
    targets = [(int(ms) / 1000, int(pid), at) for pid, ms, at in (x.split(" ", 2) for x in lines)]
    waited = 0.0
    for patience, target, text in sorted(targets):
        time.sleep(patience - waited)
        waited = patience
        if target == _MARKED:
            marks.end_all(text)
            continue
        _kill(target)
        if text:
            shutil.rmtree(text, ignore_errors=True)


def _kill(target: int) -> None:
    """A process, or for a negative number a group; waits until it, or its leader, has ended."""
    ended = descriptor_of(abs(target))
    try:
        os.kill(target, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of it has ended
    if ended is not None:
        wait_for_one([ended], _KILLED_S)
