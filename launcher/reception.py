"""Where keepers report: horonrun's listening sockets, and what becomes of whoever connects."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

from .frames import Channel, Garbled, Kind
from .greeting import Hello
from .hosts import Host, resolved
from .interfaces import addresses_by_name, is_loopback, source_towards
from .meeting import Caller
from .refusal import Refusal

_MOST_CALLERS = 1024  # who have not proven themselves yet


def own_addresses(hosts: list[Host], interfaces: list[str]) -> list[str]:
    """The addresses under which the hosts reach this machine: those of the routes to them.

    `interfaces`, if any, are the only ones that may be used. Without hosts it is the loopback.
    """
    routes = [
        source
        for host in hosts
        for address in resolved(host.name)[:1]
        if (source := source_towards(address)) is not None
    ]
    outside = [address for address in routes if not is_loopback(address)]
    if interfaces and hosts:
        found = addresses_by_name()
        allowed = [address for name in interfaces for address in found.get(name, [])]
        outside = [address for address in outside if address in allowed] or allowed
        if not outside:
            raise Refusal(
                f"--network-interfaces {','.join(interfaces)}: none of them has an address"
            )
    return list(dict.fromkeys(outside)) or ["127.0.0.1"]


class Reception:
    """Accepts connections and listens to them until each has proven itself and said who it is."""

    def __init__(
        self,
        addresses: list[str],
        secret: bytes,
        selector: selectors.BaseSelector,
        on_hello: Callable[[Channel, Hello], None],
        say: Callable[[str], None],
    ) -> None:
        self._secret = secret
        self._selector = selector
        self._on_hello = on_hello
        self._say = say
        self._listeners = [_listener(address) for address in addresses]
        self._callers: dict[socket.socket, float] = {}  # until when each has to prove itself
        for listener in self._listeners:
            selector.register(
                listener, selectors.EVENT_READ, lambda listener=listener: self._accept(listener)
            )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [listener.getsockname()[:2] for listener in self._listeners]

    def close(self) -> None:
        """Takes nobody any more."""
        for connection in list(self._callers):
            self._dismiss(connection, "not needed any more")
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners = []

    def turn(self, now: float) -> None:
        for connection, deadline in list(self._callers.items()):
            if now > deadline:
                self._dismiss(connection, "it took too long to prove itself")

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, peer = listener.accept()
        except OSError:  # it is gone again
            return
        if len(self._callers) >= _MOST_CALLERS:
            connection.close()
            return
        try:
            caller = Caller(connection, self._secret)
        except OSError:
            connection.close()
            return
        self._callers[connection] = caller.deadline
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._hear(caller, peer[0])
        )

    # What the loop was told of a connection may be from before it was dismissed.

    def _hear(self, caller: Caller, peer: str) -> None:
        if caller.connection not in self._callers:
            return
        try:
            channel = caller.read()
        except (OSError, Garbled) as error:
            self._dismiss(caller.connection, f"{peer} connected, but {error}")
            return
        if channel is not None:
            self._selector.modify(
                caller.connection, selectors.EVENT_READ, lambda: self._greet(channel)
            )

    def _greet(self, channel: Channel) -> None:
        if channel.connection not in self._callers:
            return
        frames = channel.receive()
        if not frames and not channel.closed:
            return
        connection = channel.connection
        try:
            if channel.closed or frames[0][0] != Kind.HELLO:
                raise Garbled(channel.closed or "it did not say who it is")
            hello = Hello.parse(frames[0][1])
        except Garbled as error:
            self._dismiss(connection, f"a keeper connected, but {error}")
            return
        self._selector.unregister(connection)
        del self._callers[connection]
        self._on_hello(channel, hello)

    def _dismiss(self, connection: socket.socket, why: str) -> None:
        self._say(f"dismissed a connection: {why}")
        self._selector.unregister(connection)
        del self._callers[connection]
        connection.close()


def _listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise Refusal(f"cannot listen on {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
