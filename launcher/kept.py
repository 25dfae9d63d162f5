"""The rank of a keeper: its process, and the way of its output and packets to horonrun."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time

from . import marks, recorder
from .frames import Channel, Kind, pack, pieces
from .greeting import Order
from .input import InputSink
from .interfaces import addresses_by_name
from .options import cores
from .spawn import Child
from .stops import Stops
from .variables import OF_A_RANK, thread_variables

_READ_BYTES = 1 << 16
_MOST_PENDING = 1 << 20  # bytes on their way to horonrun, above which the rank has to wait
_FEW_PENDING = 1 << 18


def environment_of(order: Order, own: dict[str, str]) -> dict[str, str]:
    """What the rank finds in its environment. HORON_RANK is not in it: that would mean no MPI."""
    found = {name: value for name, value in own.items() if name not in OF_A_RANK}
    found.update(order.environment)
    found.update(thread_variables(order.local_size, found))
    if order.local_size > cores():
        found.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    existing = addresses_by_name()
    chosen = [name for name in order.interfaces if existing.get(name)]
    if chosen:
        found["OMPI_MCA_btl_tcp_if_include"] = ",".join(chosen)
    return found


class KeptRank:
    """Started when it is made. The keeper's loop calls everything."""

    def __init__(
        self,
        order: Order,
        own: dict[str, str],
        selector: selectors.BaseSelector,
        channel: Channel,
        task: int | None,
    ) -> None:
        stdin = subprocess.PIPE if order.takes_input else subprocess.DEVNULL
        environment = environment_of(order, own)
        self._mark = environment[marks.VARIABLE]
        self._child = Child(order.command, environment, stdin, task)
        self._stops = Stops(environment)
        self._input: InputSink | None = None
        if order.takes_input:
            self._input = InputSink(self._child.process.stdin, selector, channel)
        self._selector = selector
        self._channel = channel
        self._pipes = {
            self._child.process.stdout: Kind.OUTPUT,
            self._child.process.stderr: Kind.ERRORS,
        }
        self._reading = False
        self._recorder: int | None = None  # descriptor of its flight recorder
        self._socket_open = True
        self._read_pipes(True)
        selector.register(self._child.socket, selectors.EVENT_READ, self._on_socket)

    @property
    def pid(self) -> int:
        return self._child.pid

    def end_marked(self) -> None:
        """What it started and its process group does not hold."""
        marks.end_all(self._mark)

    def kill(self, number: int) -> None:
        self._child.kill(number)

    def tell(self, packet: bytes) -> None:
        """A packet of horonrun's; a rank that does not take it is ending, or never reads."""
        try:
            self._child.send(packet)
        except OSError:
            pass

    def feed(self, piece: bytes) -> None:
        """What was piped into horonrun; only on request."""
        if self._input is not None:
            self._input.take(piece)

    def ended(self) -> int | None:
        """Its status as subprocess says it, once it has ended and said its last."""
        code = self._child.poll()
        if code is not None and self._socket_open:
            self._on_socket()  # its bye may still lie there
        return code

    @property
    def due(self) -> float | None:
        """When `judge_stop` wants to be called although nothing happens."""
        return self._stops.due

    def judge_stop(self, rank: int, now: float) -> None:
        """Tells horonrun when it has been stopped for too long. SIGCHLD woke us when it was."""
        sentence = self._stops.judge(rank, self.pid, now)
        if sentence:
            self._channel.send(Kind.PACKET, sentence)

    def pace(self, pending: int) -> None:
        """What horonrun does not take, the rank must not write."""
        if self._reading and pending > _MOST_PENDING:
            self._read_pipes(False)
        elif not self._reading and pending < _FEW_PENDING:
            self._read_pipes(True)

    def send_recorder(self) -> None:
        """Its flight recorder, as it is: the memory outlives the rank."""
        if self._recorder is None:
            return
        for piece in recorder.used(self._recorder):
            self._channel.send(Kind.RECORDER, piece)

    def send_row(self) -> None:
        """What it does now, for `horonrun top`."""
        from . import top  # nobody may ever ask

        found = None if self._recorder is None else recorder.read(self._recorder)
        if found is None:
            sight = (self.pid, socket.gethostname(), 0, 0, "has no flight recorder")
        else:
            row = top.row_of(found, time.time())
            sight = (row.pid, row.host, min(round(1000 * row.steps_per_s), 1 << 31),
                     round(1000 * row.waits), row.doing)
        self._channel.send(Kind.SEEN, pack(*sight))

    def drain(self, until: float) -> None:
        """Passes on what is still in the pipes."""
        self._read_pipes(True)
        while self._pipes and time.monotonic() < until:
            for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
                if key.fileobj in self._pipes:
                    key.data()

    def _read_pipes(self, reading: bool) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        for pipe in self._pipes:
            if reading:
                self._selector.register(
                    pipe, selectors.EVENT_READ, lambda pipe=pipe: self._on_pipe(pipe)
                )
            else:
                self._selector.unregister(pipe)

    def _on_pipe(self, pipe) -> None:
        text = os.read(pipe.fileno(), _READ_BYTES)
        self._channel.send(self._pipes[pipe], text)  # empty at its end
        if not text:
            self._selector.unregister(pipe)
            del self._pipes[pipe]

    def _on_socket(self) -> None:
        while self._socket_open and (received := self._child.receive()) is not None:
            packet, files = received
            for descriptor in files:  # memory does not travel to another host; a copy of it may
                if packet.startswith(b"recorder ") and self._recorder is None:
                    self._recorder = descriptor
                    continue
                for piece in pieces(descriptor) if packet.startswith(b"result ") else ():
                    self._channel.send(Kind.RESULT, piece)
                os.close(descriptor)
            if packet:
                self._channel.send(Kind.PACKET, packet)
            else:
                self._socket_open = False
                self._selector.unregister(self._child.socket)
                self._channel.send(Kind.CLOSED)
