"""How horonrun and a keeper find out that both know the job's secret.

    horonrun -> keeper   magic, nonce
    keeper -> horonrun   magic, nonce of its own, proof over both
    horonrun -> keeper   proof over both

The secret itself never travels here; it comes to the keeper through mpirun's environment.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from .frames import ANSWER_BYTES, MAGIC, NONCE_BYTES, PROOF_BYTES, Channel, Garbled, proof

_KEEPER, _LAUNCHER = b"keeper", b"horonrun"
_ANSWER_S = 5.0  # that the other side may take for its part


class Caller:
    """A connection that reached horonrun and has still to prove itself. Never blocks."""

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _ANSWER_S
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._answer = b""
        connection.setblocking(False)
        connection.send(MAGIC + self._nonce, socket.MSG_NOSIGNAL)  # fits an empty buffer

    def read(self) -> Channel | None:
        """The channel, once proven. Raises Garbled or OSError for anybody else."""
        try:
            part = self.connection.recv(ANSWER_BYTES - len(self._answer))
        except BlockingIOError:
            return None
        if not part:
            raise Garbled("it ended")
        self._answer += part
        if len(self._answer) < ANSWER_BYTES:
            return None
        if not self._answer.startswith(MAGIC):
            raise Garbled("no keeper of this version of the protocol")
        theirs = self._answer[len(MAGIC) : -PROOF_BYTES]
        given = self._answer[-PROOF_BYTES:]
        if not hmac.compare_digest(given, proof(self._secret, _KEEPER, self._nonce, theirs)):
            raise Garbled("it does not know the secret")
        self.connection.send(
            proof(self._secret, _LAUNCHER, self._nonce, theirs), socket.MSG_NOSIGNAL
        )
        return Channel(self.connection, self._secret, True, self._nonce + theirs)


def call(addresses: list[tuple[str, int]], secret: bytes, seconds: float) -> Channel:
    """A keeper's way to horonrun: tries the addresses in turn. Raises OSError with the reasons."""
    deadline = time.monotonic() + seconds
    while True:
        reasons = []
        for address in addresses:
            try:
                return _prove(socket.create_connection(address, timeout=2.0), secret)
            except (OSError, Garbled) as error:
                reasons.append(f"{address[0]} port {address[1]}: {error}")
        if time.monotonic() >= deadline:
            raise OSError("; ".join(reasons))
        time.sleep(0.2)  # nothing tells when a route or a firewall lets us through


def _prove(connection: socket.socket, secret: bytes) -> Channel:
    try:
        connection.settimeout(_ANSWER_S)
        challenge = _exactly(connection, len(MAGIC) + NONCE_BYTES)
        if not challenge.startswith(MAGIC):
            raise Garbled("no horonrun of this version of the protocol answers there")
        theirs, ours = challenge[len(MAGIC) :], os.urandom(NONCE_BYTES)
        connection.sendall(MAGIC + ours + proof(secret, _KEEPER, theirs, ours))
        given = _exactly(connection, PROOF_BYTES)
        if not hmac.compare_digest(given, proof(secret, _LAUNCHER, theirs, ours)):
            raise Garbled("what answers there does not know the job's secret")
        return Channel(connection, secret, False, theirs + ours)
    except BaseException:
        connection.close()
        raise


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise Garbled("the connection was closed")
        found += part
    return found
