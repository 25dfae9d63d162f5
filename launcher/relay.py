"""What horonrun and the ranks say to each other, one packet of UTF-8 a message.

rank -> horonrun: `segment <generation> <bytes>` with one memfd, or `joined` when it met the others
    over MPI; `unjoined` when that failed; `raised <what>` or `failed: <what>` when it is about to
    end; `lost <rank> <sentence>` when it has given another one up; `recorder <bytes>` with the
    memfd of its flight recorder;
    `result <bytes>` with a memfd of what the function of horon.run returned;
    `explain <counter>=<value> ...`, where its time went (explain.py); `bye`.
horonrun -> rank: `task` with the memfd of the function of horon.run, before all else; the same
    `segment` packet and memfd, `dead <rank> <sentence>`; rank -1 stands for the way to all others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from . import explain
from .frames import text
from .standing import Standing
from .stops import STOPPED

LONGEST_PACKET = 500  # bytes; a rank reads 512


def short_packet(words: str) -> bytes:
    """As long as may be, of whole characters; what was cut ends with three dots."""
    packet = words.encode(errors="replace")
    if len(packet) <= LONGEST_PACKET:
        return packet
    return packet[: LONGEST_PACKET - 3].decode(errors="ignore").encode() + b"..."


def dead_packet(rank: int, sentence: str) -> bytes:
    return short_packet(f"dead {rank} {sentence}")


class Relay:
    """Passes the node's memory from the rank that made it to the others, and bad news to all."""

    def __init__(self, ranks: list[Standing], say: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._say = say  # verbose output
        self._segment: int | None = None  # newest memfd: what the ranks wrote outlives them here

    def take(self, rank: Standing, packet: bytes, files: list[int], now: float) -> None:
        """A rank's packet, with the descriptors that came with it."""
        words = packet.split()
        if words[:1] == [b"bye"]:
            rank.joined = rank.left = True
            rank.left_at = now
        elif words[:1] in ([b"raised"], [b"failed:"]):
            # Also when its process has ended meanwhile: then this is why.
            self._take_trouble(rank, text(packet), now)
        elif words[:1] == [b"lost"]:
            self._take_accusation(packet, now)
        elif words[:1] == [b"recorder"] and len(files) == 1:
            rank.recorder = files.pop()
        elif words[:1] == [b"result"] and len(files) == 1:
            rank.result = files.pop()
        elif words[:1] == [b"explain"]:
            explain.take(rank.time_use, text(packet))
        elif words == [b"joined"]:
            self._take_joining(rank)
        elif words == [b"unjoined"]:
            rank.joined = rank.offered = False
        elif words[:1] == [b"segment"] and len(words) == 3 and len(files) == 1:
            self._take_joining(rank)
            self._pass_on(rank, packet, files.pop())
        for descriptor in files:
            os.close(descriptor)

    def _take_joining(self, rank: Standing) -> None:
        rank.joined, rank.left, rank.left_at = True, False, None
        rank.raised, rank.raised_at, rank.announced, rank.stopped = "", None, False, False

    def _take_trouble(self, rank: Standing, what: str, now: float) -> None:
        """It is ending because of something of its own; nobody should wait for it."""
        if not rank.raised:
            rank.raised, rank.raised_at = what, now
            self.announce_death(rank)

    def _take_accusation(self, packet: bytes, now: float) -> None:
        match = re.fullmatch(rb"lost (\d{1,5}) rank \1 (.+)", packet, re.DOTALL)
        if match is None or int(match[1]) >= len(self._ranks):
            return
        accused = self._ranks[int(match[1])]
        if accused.ended_at is None:  # else how it ended says more
            accused.stopped = STOPPED in text(match[2])
            self._take_trouble(accused, text(match[2]), now)

    def _pass_on(self, source: Standing, packet: bytes, descriptor: int) -> None:
        if self._segment is not None:
            os.close(self._segment)
        self._segment = descriptor
        self._say(f"passing '{text(packet)}' of rank {source.rank} on")
        for rank in self._others(source):
            if self._send(rank, packet, descriptor):
                rank.offered, rank.joined, rank.left = True, False, False  # of this one
        for gone in self._ranks:  # who has ended will not join this one
            if gone.ended_at is not None:
                self._announce(gone)

    def announce_death(self, dead: Standing) -> None:
        """Tells the other ranks once."""
        if not dead.announced:
            dead.announced = True
            self._announce(dead)

    def _announce(self, dead: Standing) -> None:
        self._say(f"telling the others: {dead.cause()}")
        for rank in self._others(dead):
            self._send(rank, dead_packet(dead.rank, dead.cause()), None)

    def _others(self, one: Standing) -> Iterable[Standing]:
        return (
            rank
            for rank in self._ranks
            if rank is not one and rank.ended_at is None and rank.closed_at is None
        )

    def _send(self, rank: Standing, packet: bytes, descriptor: int | None) -> bool:
        try:
            rank.send(packet, descriptor)
            return True
        except OSError as error:  # it is ending, or never reads: its end is reported by the loop
            self._say(f"rank {rank.rank} did not take '{text(packet)}': {error}")
            return False
