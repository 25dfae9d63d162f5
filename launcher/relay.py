"""What horonrun and the ranks say to each other, one ASCII packet a message.

rank -> horonrun: `segment <generation> <bytes>` with one memfd, `bye`.
horonrun -> rank: the same `segment` packet and memfd, `dead <rank> <sentence>`.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable

from .rank import Rank

_PACKET_BYTES = 4096


class Relay:
    """Passes the node's shared memory from the rank that made it to the others, and bad news to all."""

    def __init__(self, ranks: list[Rank], say) -> None:
        self._ranks = ranks
        self._say = say  # verbose output
        self._segment: int | None = None  # newest memfd: what the ranks wrote outlives them here

    def read(self, rank: Rank, now: float) -> None:
        """Takes all packets that wait at a rank's socket."""
        while rank.closed_at is None:
            try:
                packet, files, _, _ = socket.recv_fds(rank.socket, _PACKET_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:  # reset: it ended, and had not read what we sent
                rank.closed_at = now
                return
            if not packet:
                rank.closed_at = now
                rank.joined = rank.joined or rank.offered  # and it had read the offer
                return
            self._take(rank, packet, files, now)

    def _take(self, rank: Rank, packet: bytes, files: list[int], now: float) -> None:
        words = packet.split()
        if words[:1] == [b"bye"]:
            rank.joined = rank.left = True
            rank.left_at = now
        elif words[:1] == [b"segment"] and len(words) == 3 and len(files) == 1:
            rank.joined, rank.left, rank.left_at = True, False, None
            self._pass_on(rank, packet, files.pop())
        for descriptor in files:
            os.close(descriptor)

    def _pass_on(self, source: Rank, packet: bytes, descriptor: int) -> None:
        if self._segment is not None:
            os.close(self._segment)
        self._segment = descriptor
        self._say(f"passing '{packet.decode(errors='replace')}' of rank {source.rank} on")
        for rank in self._others(source):
            if self._send(rank, packet, descriptor):
                rank.offered, rank.left = True, False
        for gone in self._ranks:  # who has ended will not join this one
            if gone.ended_at is not None:
                self._announce(gone)

    def announce_death(self, dead: Rank) -> None:
        """Tells the other ranks once."""
        if not dead.announced:
            dead.announced = True
            self._announce(dead)

    def _announce(self, dead: Rank) -> None:
        self._say(f"telling the others: {dead.cause()}")
        for rank in self._others(dead):
            self._send(rank, f"dead {dead.rank} {dead.cause()}".encode(), None)

    def _others(self, one: Rank) -> Iterable[Rank]:
        return (rank for rank in self._ranks if rank is not one and rank.ended_at is None and rank.closed_at is None)

    def _send(self, rank: Rank, packet: bytes, descriptor: int | None) -> bool:
        ancillary = []
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            rank.socket.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)
            return True
        except OSError as error:  # it is ending, or never reads: its end is reported by the loop
            self._say(f"rank {rank.rank} did not take '{packet.decode(errors='replace')}': {error}")
            return False
