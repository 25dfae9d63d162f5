"""How `horonrun top` learns of ranks on other hosts: it asks horonrun, which asks the keepers.

horonrun listens on an abstract unix socket with its number in the name, for this user and root
only. Who connects gets a file of this machine's memory with one row a rank, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict

from .remote import RemoteRank
from .row import Row

_ANSWER_S = 1.0  # that the keepers have
_ASK_S = 3.0  # that a horonrun has
_NAME = "horon-top-"
_MOST_BYTES = 64 << 20
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Lookout:
    """horonrun's side. The job's loop calls everything."""

    def __init__(self, selector: selectors.BaseSelector, ranks: Sequence[RemoteRank]) -> None:
        """Raises OSError where there are no abstract sockets, or the name is taken."""
        self._selector = selector
        self._ranks = ranks
        self._asking: list[_Asking] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(f"\0{_NAME}{os.getpid()}")
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        selector.register(self._socket, selectors.EVENT_READ, self._on_connection)

    def turn(self, now: float) -> None:
        """Answers those who have waited for long enough."""
        for asking in self._asking:
            if now >= asking.due:
                asking.answer()
        self._asking = [asking for asking in self._asking if not asking.over]

    def close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()
        for asking in self._asking:
            asking.answer()

    def _on_connection(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it did not wait, or there is no descriptor left
            return
        if not _may_look(connection, os.geteuid()):
            connection.close()
            return
        asking = _Asking(connection, self._ranks)
        for rank in self._ranks:
            rank.look(asking.on_seen)
        self._asking.append(asking)


class _Asking:
    """Somebody who waits for the rows of all ranks."""

    def __init__(self, connection: socket.socket, ranks: Sequence[RemoteRank]) -> None:
        self._connection = connection
        self._rows = {rank.rank: _unseen(rank) for rank in ranks}
        self._awaited = {rank.rank for rank in ranks if rank.ended_at is None and rank.talking}
        self.due = time.monotonic() + _ANSWER_S
        self.over = False

    def on_seen(self, row: Row) -> None:
        self._rows[row.rank] = row
        self._awaited.discard(row.rank)
        if not self._awaited:
            self.answer()

    def answer(self) -> None:
        """Never blocks: the rows lie in memory of which only the descriptor is sent."""
        if self.over:
            return
        self.over = True
        memory = os.memfd_create("horon-top")
        try:
            os.write(memory, json.dumps([asdict(row) for row in self._rows.values()]).encode())
            self._connection.setblocking(False)
            socket.send_fds(self._connection, [b"rows"], [memory])
        except OSError:
            pass  # who asked has ended
        finally:
            os.close(memory)
            self._connection.close()


def _unseen(rank: RemoteRank) -> Row:
    """Without a process: nobody knows it."""
    ended = rank.ended_at is not None
    return Row(rank.rank, 0, rank.host, 0.0, 0.0, "has ended" if ended else "does not answer")


def _may_look(connection: socket.socket, owner: int) -> bool:
    """Whether the other end is `owner`, or root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] in (owner, 0)


# --- who asks -------------------------------------------------------------------------------------


def jobs() -> dict[int, list[Row]]:
    """This user's jobs on several hosts that were started here: the rows of their ranks, by the
    process of horonrun."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        found = re.findall(rf" @{_NAME}(\d+)$", file.read(), re.MULTILINE)
    return {launcher: made for launcher in sorted(set(map(int, found)))
            if (made := _ask(launcher)) is not None}


def _ask(launcher: int) -> list[Row] | None:
    """None if it has ended, is another user's, or is stopped."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ASK_S)
        try:
            connection.connect(f"\0{_NAME}{launcher}")
            if os.geteuid() != 0 and not _may_look(connection, os.geteuid()):
                return None
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        except OSError:
            return None
    for descriptor in descriptors:
        with open(descriptor, "rb") as file:
            file.seek(0)
            return [Row(**row) for row in json.loads(file.read(_MOST_BYTES))]
    return None
