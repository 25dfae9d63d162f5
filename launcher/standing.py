"""How a rank stands: what it said, whether and how it ended. Common to all ranks.

The job's loop and the relay know a rank by this interface; rank.py runs one beside horonrun,
remote.py stands for one that a keeper runs.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable
from dataclasses import dataclass

_HEARD_LATE_S = 0.5  # that the news of a death may take longer than that of its consequences


@dataclass
class Wiring:
    """What a rank is connected to when it starts. Callbacks are called by the job's loop."""

    selector: selectors.BaseSelector  # a key's data is called when it is ready
    on_output: Callable[[int, bool, bytes], None]  # rank, whether stderr, text; b"" at its end
    on_packet: Callable[[Standing, bytes, list[int]], None]  # with descriptors, now the receiver's
    say: Callable[[str], None]  # verbose output


class Standing:
    """A rank as the others see it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.offered = False  # it was sent the node's shared memory
        self.joined = False  # it took or made it, or said so: the others count on this one
        self.left = False  # it said bye since
        self.raised = ""  # what went wrong in it, in its own words
        self.raised_at: float | None = None
        self.stopped = False  # and so given up: it does not end by itself
        self.lost = ""  # why nobody can tell how it ended
        self.closed_at: float | None = None  # its socket ended
        self.ended_at: float | None = None
        self.left_at: float | None = None  # bye, or the end
        self.returncode: int | None = None  # as subprocess says it
        self.signalled = False  # by us
        self.announced = False  # the others were told that it is dead
        self.recorder: int | None = None  # descriptor of its flight recorder, or of a copy
        self.time_use: dict[str, int] = {}  # what it said of where its time went (explain.py)
        self.result: int | None = None  # descriptor of what its function returned (errand.py)

    # --- what the loop asks of it -----------------------------------------------------------------

    def poll(self, now: float) -> bool:
        """True once, when it has just ended."""
        raise NotImplementedError

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        """A packet to its socket. Raises OSError when it cannot take it."""
        raise NotImplementedError

    def read_packets(self, now: float) -> None:
        """Hands over packets that wait."""
        raise NotImplementedError

    def kill(self, number: int) -> None:
        """Sends a signal to everything that this rank started."""
        raise NotImplementedError

    @property
    def talking(self) -> bool:
        """Whether output may still come."""
        raise NotImplementedError

    # --- what became of it ------------------------------------------------------------------------

    def end(self, now: float) -> None:
        self.ended_at = now
        if self.left_at is None:
            self.left_at = now

    @property
    def exit_code(self) -> int:
        """As a shell says it: 128 + signal when killed. Of an ended rank."""
        if self.returncode is None:
            return 1
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    @property
    def failed(self) -> bool:
        """Whether the job has failed because of it."""
        if self.ended_at is None:
            return False
        return bool(self.lost) or self.returncode != 0 or (self.joined and not self.left)

    @property
    def missed(self) -> bool:
        """Whether it ended well, but without ever joining, while others may have waited for it."""
        return self.ended_at is not None and self.announced and not (self.joined or self.failed)

    @property
    def trouble_at(self) -> float:
        """The first sign of trouble. A bye is one only of a rank that failed by itself after it."""
        by_itself = (self.returncode or 0) > 0 and not self.raised
        since = self.left_at if by_itself else self.ended_at
        return min((when for when in (self.raised_at, since) if when is not None), default=0.0)

    @property
    def blame(self) -> tuple[float, bool, int]:
        """Orders failed ranks by that. News of an end may be late: a rank that said what was wrong
        or vanished is before one that left shortly before, which may have failed because of it; a
        killed one, of which nothing else tells, is before both."""
        killed = (self.returncode is None or self.returncode < 0) and not self.signalled
        vanished = not self.left and not self.signalled
        ahead = _HEARD_LATE_S * (killed + (vanished or bool(self.raised)))
        return self.trouble_at - ahead, not killed, self.rank

    def cause(self) -> str:
        """How it ended, as a sentence without a full stop."""
        if self.lost:
            return self.lost
        if self.raised:
            return f"rank {self.rank} {self.raised}"
        code = self.returncode
        if code is None:
            return f"rank {self.rank} closed its connection to horonrun without leaving the job"
        if code < 0:
            return f"rank {self.rank} was killed by signal {-code} ({_signal_name(-code)})"
        if code > 0:
            return f"rank {self.rank} exited with code {code}"
        how = "leaving" if self.joined else "joining"
        return f"rank {self.rank} exited with code 0" + (
            "" if self.left else f" without {how} the job"
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
