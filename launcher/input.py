"""What is piped into horonrun, on its way to rank 0 through its keeper.

mpirun could pass it on, but Open MPI's never tells of its end. The keeper asks for each piece when
the last one has been read, so that nothing piles up: a frame WANT, answered by a frame INPUT, which
is empty at the end.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import BinaryIO

from .frames import Channel, Kind

_PIECE_BYTES = 1 << 16
_STDIN = 0


class InputSource:
    """horonrun's end: reads its standard input when it is asked to."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[bytes], None]) -> None:
        self._selector = selector
        self._send = send
        self._waiting = False

    def on_want(self) -> None:
        if self._waiting:
            return
        try:
            self._selector.register(_STDIN, selectors.EVENT_READ, self._read)
            self._waiting = True
        except (PermissionError, ValueError):  # a file, which can always be read; or closed
            self._read()

    def _read(self) -> None:
        if self._waiting:
            self._selector.unregister(_STDIN)
            self._waiting = False
        try:
            self._send(os.read(_STDIN, _PIECE_BYTES))
        except OSError:
            self._send(b"")


class InputSink:
    """The keeper's end: writes into the rank's standard input what it is ready to read."""

    def __init__(self, pipe: BinaryIO, selector: selectors.BaseSelector, channel: Channel) -> None:
        self._pipe = pipe
        self._selector = selector
        self._channel = channel
        self._rest = b""
        self._open = True
        os.set_blocking(pipe.fileno(), False)
        channel.send(Kind.WANT)

    def take(self, piece: bytes) -> None:
        if self._open and piece and not self._rest:
            self._rest = piece
            self._selector.register(self._pipe, selectors.EVENT_WRITE, self._write)
        elif self._open:
            self._close()

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:  # the rank has closed it
            self._rest = b""
            self._selector.unregister(self._pipe)
            self._close()
            return
        if not self._rest:
            self._selector.unregister(self._pipe)
            self._channel.send(Kind.WANT)

    def _close(self) -> None:
        self._open = False
        self._pipe.close()
