"""A process that outlives horonrun by a moment: when horonrun is killed, it ends what the ranks started.

PR_SET_PDEATHSIG ends the ranks themselves, but not their children (a shell's command, data loaders).
"""

from __future__ import annotations

import os
import signal

_DONE = b"done"


class Guard:
    """Forked before the first rank, so that it holds none of their pipes and sockets."""

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

    def add(self, group: int) -> None:
        """Takes a process group into care."""
        os.write(self._writing, b"%d\n" % group)

    def dismiss(self) -> None:
        """The ranks are gone; nothing is left to guard."""
        os.write(self._writing, _DONE)
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _watch(reading: int) -> None:
    os.setsid()  # the terminal's Ctrl-C is not for it
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    text = b""
    while part := os.read(reading, 4096):  # ends with horonrun
        text += part
    if text.endswith(_DONE):
        return
    for group in text.split():
        try:
            os.killpg(int(group), signal.SIGKILL)
        except ProcessLookupError:
            pass
