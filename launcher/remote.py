"""A rank that a keeper runs, here or on another host, as horonrun sees it."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

from .frames import PROCESS_PATIENCE, Channel, Garbled, Kind, number, pieces, text, unpack
from .greeting import Hello, Order
from .input import InputSource
from .row import Row
from .standing import Standing, Wiring

_MOST_LOOKERS = 8  # a stopped keeper answers nobody


class RemoteRank(Standing):
    """Silent until its keeper has reported; what comes from there is only frames."""

    def __init__(self, rank: int, host: str, local_rank: int) -> None:
        super().__init__(rank)
        self.host = host
        self.local_rank = local_rank
        self.hello: Hello | None = None
        self._channel: Channel | None = None
        self._wiring: Wiring | None = None
        self._input: InputSource | None = None
        self._writing = False  # the loop waits until more can be sent
        self._over = False  # it has ended, or is lost
        self._lookers: list[Callable[[Row], None]] = []

    def connect(self, channel: Channel, hello: Hello, wiring: Wiring) -> None:
        """Its keeper has come."""
        self.hello, self._channel, self._wiring = hello, channel, wiring
        wiring.selector.register(channel, selectors.EVENT_READ, self._on_ready)

    def order(self, order: Order, task: int | None) -> None:
        for piece in () if task is None else pieces(task):
            self._tell(Kind.TASK, piece)
        if order.takes_input:
            self._input = InputSource(
                self._wiring.selector, lambda piece: self._tell(Kind.INPUT, piece)
            )
        self._tell(Kind.GO, order.packed())

    def beat(self) -> None:
        """From the thread that does this for all."""
        if self.talking:
            self._channel.beat()

    def finish(self, recorder_wanted: bool) -> None:
        self._tell(Kind.FINISH, b"1" if recorder_wanted else b"0")

    def look(self, on_seen: Callable[[Row], None]) -> None:
        """Asks its keeper what it does; `on_seen` is called once with the answer, if one comes."""
        if self.talking and not self._over:
            self._lookers = [*self._lookers[1 - _MOST_LOOKERS:], on_seen]
            self._tell(Kind.LOOK)

    def excuse(self, now: float, seconds: float) -> None:
        """horonrun did not listen for so long, until now."""
        if self.talking:
            self._channel.excuse(now, seconds)

    def judge_silence(self, now: float, limit: float) -> bool:
        """Loses it when nothing was heard for too long: of its host, or of its keeper alone.
        Whether its host is lost."""
        if not self.talking or self._over:
            return False
        process, machine = self._channel.silence(now)
        if machine > limit:
            where = f"host {self.host}, where rank {self.rank} ran"
            self.lose(f"lost contact with {where} (nothing heard for {limit:g} s)")
            return True
        if process > PROCESS_PATIENCE * limit:
            self.lose(
                f"lost contact with the keeper of rank {self.rank} on host {self.host} "
                f"(stopped or starved for {PROCESS_PATIENCE * limit:g} s)"
            )
        return False

    def lose(self, sentence: str) -> None:
        """Nobody will hear of it again."""
        if not self._over:
            self.lost, self._over = sentence, True
        self.disconnect()

    def disconnect(self) -> None:
        if self.talking:
            self._wiring.selector.unregister(self._channel)
            self._channel.close()

    # --- as the job's loop knows it ---------------------------------------------------------------

    def poll(self, now: float) -> bool:
        if self.ended_at is not None or not self._over:
            return False
        self.end(now)
        return True

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        if not self.talking or descriptor is not None:
            raise OSError(f"host {self.host} cannot be told")
        self._tell(Kind.PACKET, packet)

    def read_packets(self, now: float) -> None:
        """They come with the frames."""

    def kill(self, number: int) -> None:
        self.signalled = self.signalled or self.ended_at is None
        self._tell(Kind.SIGNAL, str(int(number)).encode())

    @property
    def talking(self) -> bool:
        return self._channel is not None and not self._channel.closed

    # --- frames -----------------------------------------------------------------------------------

    def _tell(self, kind: Kind, payload: bytes = b"") -> None:
        if self.talking:
            self._channel.send(kind, payload)
            self._watch_writing()

    def _watch_writing(self) -> None:
        """Has the loop woken when the network takes more of what still waits."""
        if self._writing != bool(self._channel.pending):
            self._writing = not self._writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writing else 0)
            self._wiring.selector.modify(self._channel, events, self._on_ready)

    def _on_ready(self) -> None:
        if self._writing:
            self._channel.flush()
            self._watch_writing()
        try:
            for kind, payload in self._channel.receive():
                self._take(kind, payload)
        except Garbled as error:
            self._channel.closed = f"its keeper said something wrong: {error}"
        if self._channel.closed:
            self._on_closed()

    def _on_closed(self) -> None:
        self._wiring.selector.unregister(self._channel)
        self._channel.close()
        if not self._over:
            self.lose(
                f"lost contact with rank {self.rank} on host {self.host} ({self._channel.closed})"
            )

    def _kept(self, memory: int | None, piece: bytes) -> int:
        if memory is None:
            memory = os.memfd_create(f"from rank {self.rank}")
        os.write(memory, piece)
        return memory

    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind in (Kind.OUTPUT, Kind.ERRORS):
            self._wiring.on_output(self.rank, kind == Kind.ERRORS, payload)
        elif kind == Kind.PACKET:
            self._wiring.on_packet(self, payload, [])
        elif kind == Kind.CLOSED:
            self.closed_at = time.monotonic()
        elif kind == Kind.ENDED:
            status, sentence = unpack(payload, 2)
            self.returncode = number(status, -128, 255)
            self.raised = self.raised or text(sentence)
            self._over = True
        elif kind == Kind.RECORDER:
            self.recorder = self._kept(self.recorder, payload)
        elif kind == Kind.RESULT:
            self.result = self._kept(self.result, payload)
        elif kind == Kind.SEEN:
            self._on_seen(unpack(payload, 5))
        elif kind == Kind.WANT and self._input is not None:
            self._input.on_want()
        elif kind != Kind.BEAT:
            raise Garbled(f"a frame of kind {kind.name}")

    def _on_seen(self, fields: list[bytes]) -> None:
        pid, host, rate, waits, doing = fields
        row = Row(self.rank, number(pid), text(host, 64), number(rate) / 1000,
                  number(waits, 0, 1000) / 1000, text(doing))
        lookers, self._lookers = self._lookers, []
        for on_seen in lookers:
            on_seen(row)
