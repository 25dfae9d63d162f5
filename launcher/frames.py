"""What horonrun and its keepers say to each other over TCP: frames of a fixed schema.

A frame is length (4 bytes), kind (1), proof (16), payload. The proof is an HMAC over direction,
number of the frame, kind and payload, with a key that both sides derived when they met: a frame
that was changed, repeated, left out or put in by somebody else ends the connection. Nothing is
encrypted. A payload is fields, each with its length before it; what does not fit is refused.
"""

from __future__ import annotations

import enum
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

MAGIC = b"HORON\x001\n"  # with the number of the protocol
NONCE_BYTES = 32
PROOF_BYTES = 32
ANSWER_BYTES = len(MAGIC) + NONCE_BYTES + PROOF_BYTES
LARGEST_PAYLOAD = 4 << 20
_HEADER = struct.Struct("!IB16s")
_NUMBER = struct.Struct("!QB")
_LENGTH = struct.Struct("!I")
_READ_BYTES = 256 << 10
_TCP_INFO_BYTES = 104  # struct tcp_info of Linux, as far as it is needed
_LAST_ACK_AT = 56  # tcpi_last_ack_recv, ms
# A process may be starved for so many times longer than a machine may be unreachable.
PROCESS_PATIENCE = 4


class Kind(enum.IntEnum):
    """Kinds of frames; the fields of each payload stand behind it."""

    HELLO = 1  # keeper: version, host, rank, local rank, pid, interfaces
    GO = 2  # horonrun: settings, command, environment (packed fields, each)
    OUTPUT = 3  # keeper: raw bytes of stdout
    ERRORS = 4  # keeper: raw bytes of stderr
    PACKET = 5  # both: one packet of the rank's socket, raw
    CLOSED = 6  # keeper: the rank closed its socket
    ENDED = 7  # keeper: exit status as Python says it, what to say about it or nothing
    SIGNAL = 8  # horonrun: number of the signal for the rank's process group
    FINISH = 9  # horonrun: kill what is left, and end; 1 if it wants the flight recorder, else 0
    BEAT = 10  # both: still there
    WANT = 11  # keeper: the rank reads its standard input, and has read what came so far
    INPUT = 12  # horonrun: raw bytes for it, empty at the end
    RECORDER = 13  # keeper: the next raw bytes of the rank's flight recorder
    TASK = 14  # horonrun, before GO: the next raw bytes of the function that the rank shall call
    RESULT = 15  # keeper: the next raw bytes of what it returned
    LOOK = 16  # horonrun: somebody wants to know what the rank does
    SEEN = 17  # keeper: its process, host, steps a 1,000 s, waits in 1/1,000, what it does


class Garbled(Exception):
    """The other side does not keep to the protocol, or is somebody else."""


def pack(*fields: bytes | str | int) -> bytes:
    parts = []
    for field in fields:
        part = field if isinstance(field, bytes) else str(field).encode(errors="surrogateescape")
        parts += [_LENGTH.pack(len(part)), part]
    return b"".join(parts)


def unpack(payload: bytes, count: int | None = None) -> list[bytes]:
    """The fields of a payload, which must be `count` if that is given."""
    fields, at = [], 0
    while at < len(payload):
        if at + _LENGTH.size > len(payload):
            raise Garbled("a field's length is cut off")
        (length,) = _LENGTH.unpack_from(payload, at)
        at += _LENGTH.size
        if at + length > len(payload):
            raise Garbled("a field is cut off")
        fields.append(payload[at : at + length])
        at += length
    if count is not None and len(fields) != count:
        raise Garbled(f"{len(fields)} fields instead of {count}")
    return fields


def number(field: bytes, least: int = 0, most: int = 1 << 31) -> int:
    """A field that is a decimal number."""
    digits = field[1:] if field.startswith(b"-") else field
    if not digits.isdigit() or len(digits) > 10 or not least <= int(field) <= most:
        raise Garbled(f"{field[:20]!r} is not a number from {least} to {most}")
    return int(field)


def text(field: bytes, longest: int = 4096) -> str:
    """A field that people read: nothing in it that a terminal obeys."""
    shown = field[:longest].decode(errors="replace")
    return "".join(c if c.isprintable() else " " for c in shown)


def pieces(descriptor: int) -> Iterator[bytes]:
    """A file's bytes in payloads of frames."""
    at = 0
    while part := os.pread(descriptor, LARGEST_PAYLOAD // 4, at):
        at += len(part)
        yield part


def proof(secret: bytes, who: bytes, theirs: bytes, ours: bytes) -> bytes:
    """That `who` knows the secret; over both nonces, so that it serves one connection only."""
    return hmac.digest(secret, who + theirs + ours, "sha256")


class Listener:
    """A loop that means to listen every `period` seconds, and may be late: stopped, without a core,
    or waiting for whoever reads its output. While it did not listen nobody was silent."""

    def __init__(self, period: float, now: float) -> None:
        self._period = period
        self._last = now

    def late(self, now: float) -> float:
        """It listens again; the seconds for which it did not when it should have, or 0."""
        passed = now - self._last
        self._last = now
        return passed - self._period if passed > 2 * self._period else 0.0


class Channel:
    """One end of a proven connection. Any thread may send; one thread receives.

    `launcher` says which end this is; the nonces are horonrun's and the keeper's.
    """

    def __init__(
        self, connection: socket.socket, secret: bytes, launcher: bool, nonces: bytes
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard_at = time.monotonic()
        self.closed = ""  # why there is nothing more to hear
        self._keys = [hmac.digest(secret, way + nonces, "sha256") for way in (b"out", b"in")]
        if not launcher:
            self._keys.reverse()
        self._lock = threading.Lock()
        self._sent = self._received = 0
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def pending(self) -> int:
        """Bytes that wait for the network."""
        return len(self._outgoing)

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Never blocks: what the network does not take now waits for `flush`."""
        with self._lock:
            seal = self._seal(self._keys[0], self._sent, kind, payload)
            self._sent += 1
            self._outgoing += _HEADER.pack(len(payload), kind, seal) + payload
            self._flush()

    def beat(self) -> None:
        """Says that this side lives, unless there are still bytes on their way that say so."""
        if self.pending:
            self.flush()
        else:
            self.send(Kind.BEAT)

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                sent = self.connection.send(self._outgoing[:_READ_BYTES], socket.MSG_NOSIGNAL)
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:  # it is gone: receiving says so, to the one thread that acts on it
            self._outgoing.clear()

    @staticmethod
    def _seal(key: bytes, sequence: int, kind: int, payload: bytes) -> bytes:
        return hmac.digest(key, _NUMBER.pack(sequence, kind) + payload, "sha256")[:16]

    def excuse(self, now: float, seconds: float) -> None:
        """We did not listen for so long, until now: that is no silence of the other's."""
        self.heard_at = min(now, self.heard_at + seconds)

    def silence(self, now: float) -> tuple[float, float]:
        """Seconds without a word from the other process, and without a sign of its machine.

        The other kernel acknowledges our beats although the process is starved or stopped.
        """
        silence = now - self.heard_at
        row = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (acknowledged_ms,) = struct.unpack_from("I", row, _LAST_ACK_AT)
        return silence, min(silence, acknowledged_ms / 1000)

    def receive(self) -> list[tuple[Kind, bytes]]:
        """Frames that have come. Afterwards `closed` says whether there can be more."""
        try:
            part = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.closed = str(error.strerror or error)
            return []
        if not part:
            self.closed = "the connection was closed"
            return []
        self.heard_at = time.monotonic()
        self._incoming += part
        frames = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except Garbled as error:
            self.closed = f"the connection was garbled: {error}"
        return frames

    def _next(self) -> tuple[Kind, bytes] | None:
        if len(self._incoming) < _HEADER.size:
            return None
        length, kind, seal = _HEADER.unpack_from(self._incoming)
        if length > LARGEST_PAYLOAD:
            raise Garbled(f"a frame of {length} bytes")
        end = _HEADER.size + length
        if len(self._incoming) < end:
            return None
        payload = bytes(self._incoming[_HEADER.size : end])
        if not hmac.compare_digest(seal, self._seal(self._keys[1], self._received, kind, payload)):
            raise Garbled("a frame without proof")
        self._received += 1
        del self._incoming[:end]
        try:
            return Kind(kind), payload
        except ValueError:
            raise Garbled(f"a frame of kind {kind}") from None

    def close(self) -> None:
        self.closed = self.closed or "closed"
        self.connection.close()
