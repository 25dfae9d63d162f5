"""The keeper of one rank: mpirun starts it on the rank's host, and it starts the rank.

It reports to horonrun over TCP, passes on what the rank writes and says, and what horonrun has to
say to it; says how the rank ended; and ends it, and the MPI daemon of its host, when horonrun is
lost. To mpirun it always seems well: the death of a rank is horonrun's business.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
import time

from . import marks, siblings, version
from .frames import PROCESS_PATIENCE, Channel, Garbled, Kind, Listener, number, pack
from .greeting import Hello, Order, Summons
from .guard import Guard
from .interfaces import addresses_by_name
from .kept import KeptRank
from .meeting import call
from .relay import dead_packet
from .spawn import signal_when_parent_dies

_BEAT_S = 1.0
_SOON_S = 0.05
_TERM_S = 0.8  # between SIGTERM and SIGKILL, when mpirun's daemon wants us to end
_KILL_S = 2.0  # the same after the grace period, as horonrun does it
_VERDICT_S = 1.0  # that horonrun has to say which host was lost, before the rank hears less
_DRAIN_S = 0.5  # for output that is still in the pipes when all is over
_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class Keeper:
    """One loop over horonrun's frames, the rank's pipes and socket, its end, and the clock."""

    def __init__(
        self, channel: Channel, summons: Summons, rank: int, environment: dict[str, str]
    ) -> None:
        self._number = rank
        self._channel = channel
        self._summons = summons
        self._environment = environment
        self._daemon = os.getppid()  # mpirun, or its prted on this host
        self._selector = selectors.DefaultSelector()
        self._rank: KeptRank | None = None
        self._task: int | None = None  # descriptor of the function that the rank shall call
        self._grace_s = 0.0
        self._next_beat = 0.0
        self._listener = Listener(_BEAT_S, time.monotonic())
        self._kills: list[tuple[float, int]] = []
        self._reported = False  # horonrun knows how the rank ended
        self._ending = ""  # why we end the rank ourselves
        self._daemon_lost_at: float | None = None  # while the rank has not been told
        self._lost = False  # horonrun does not answer
        self._finished = False
        self._recorder_wanted = False
        self._wakeups, wake = socket.socketpair()
        self._wakeups.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        self._guard = Guard()

    def run(self) -> None:
        """Returns when nothing is left to do or to keep."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal_when_parent_dies(signal.SIGCHLD)
        self._selector.register(
            self._wakeups, selectors.EVENT_READ, lambda: self._wakeups.recv(4096)
        )
        self._selector.register(self._channel, selectors.EVENT_READ, self._on_channel)
        while not self._finished:
            self._turn()
        self._leave()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            key.data()
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + min(_BEAT_S, self._look_around(now))
        if os.getppid() != self._daemon and not self._ending:
            self._lose_daemon(now)
        if self._daemon_lost_at is not None and now >= self._daemon_lost_at + _VERDICT_S:
            self._tell_of_daemon()
        if self._rank is not None:
            self._watch_rank(now)
        elif self._ending:
            self._finished = True  # there is nothing to end
        if not self._lost and not self._channel.closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.pending else 0)
            self._selector.modify(self._channel, events, self._on_channel)

    def _patience(self) -> float:
        times = [self._next_beat, *(when for when, _ in self._kills)]
        if self._daemon_lost_at is not None:
            times.append(self._daemon_lost_at + _VERDICT_S)
        if self._rank is not None and self._rank.due is not None:
            times.append(self._rank.due)
        return max(0.0, min(times) - time.monotonic())

    def _watch_rank(self, now: float) -> None:
        self._rank.pace(self._channel.pending)
        while self._kills and self._kills[0][0] <= now:
            self._rank.kill(self._kills.pop(0)[1])
        code = self._rank.ended()
        if code is None and not self._lost:
            self._rank.judge_stop(self._number, now)
        if code is not None and not self._reported:
            self._reported = True
            self._channel.send(Kind.ENDED, pack(code, self._ending))
        if code is not None and self._lost:
            self._finished = True

    # --- horonrun ---------------------------------------------------------------------------------

    def _look_around(self, now: float) -> float:
        """Once a second, or when horonrun's machine has been silent for too long, if sooner:
        says that we live, and looks whether the others do. When to look again at the latest."""
        if self._lost:
            return _BEAT_S
        self._channel.beat()
        if late := self._listener.late(now):  # what came meanwhile lies unread
            self._channel.excuse(now, late)
        process, machine = self._channel.silence(now)
        limit = self._summons.silence_s
        if machine > limit:
            self._lose(f"nothing heard for {limit:g} s")
        elif process > PROCESS_PATIENCE * limit:
            self._lose(f"stopped or starved for {PROCESS_PATIENCE * limit:g} s")
        return max(_SOON_S, limit - machine)

    def _on_channel(self) -> None:
        self._channel.flush()
        try:
            for kind, payload in self._channel.receive():
                self._obey(kind, payload)
        except Garbled as error:
            self._channel.closed = str(error)
        if self._channel.closed and not self._lost and not self._finished:
            self._lose(self._channel.closed)

    def _obey(self, kind: Kind, payload: bytes) -> None:
        if kind == Kind.GO and self._rank is None:
            self._start(Order.parse(payload))
        elif kind == Kind.TASK and self._rank is None:
            if self._task is None:
                self._task = os.memfd_create("task")
            os.write(self._task, payload)
        elif kind == Kind.FINISH:
            self._finished = True
            self._recorder_wanted = bool(number(payload, 0, 1))
        elif kind not in (Kind.PACKET, Kind.SIGNAL, Kind.INPUT, Kind.LOOK, Kind.BEAT):
            raise Garbled(f"a frame of kind {kind.name}")
        elif self._rank is None:
            pass  # it could not be started: there is nobody to tell
        elif kind == Kind.PACKET:
            self._rank.tell(payload)
        elif kind == Kind.SIGNAL:
            self._rank.kill(number(payload, 1, 64))
        elif kind == Kind.INPUT:
            self._rank.feed(payload)
        elif kind == Kind.LOOK:
            self._rank.send_row()

    def _start(self, order: Order) -> None:
        self._grace_s = order.grace_s
        self._guard.add_marked(order.environment[marks.VARIABLE])
        try:
            self._rank = KeptRank(
                order, self._environment, self._selector, self._channel, self._task
            )
        except OSError as error:
            self._reported = True
            sentence = (
                f"could not be started on host {socket.gethostname()}: "
                f"'{order.command[0]}': {error.strerror}"
            )
            self._channel.send(Kind.ENDED, pack(126, sentence))
            return
        self._guard.add(self._rank.pid)

    def _lose(self, why: str) -> None:
        """The rank is told, and gets the grace period; then nothing of the job stays here."""
        self._lost = True
        self._selector.unregister(self._channel)
        self._channel.close()
        sentence = f"lost contact with horonrun on {self._summons.launcher} ({why})"
        if self._rank is not None:
            self._rank.tell(dead_packet(-1, sentence))
        self._end_rank(sentence, self._grace_s, _KILL_S)

    def _lose_daemon(self, now: float) -> None:
        """mpirun ends itself when a host is cut off, maybe before horonrun is sure of that."""
        self._daemon_lost_at = now
        if self._lost:
            self._tell_of_daemon()
        self._end_rank(
            "was ended because the MPI daemon of its host is gone", self._grace_s, _TERM_S
        )

    def _tell_of_daemon(self) -> None:
        """All that can be said of it here."""
        self._daemon_lost_at = None
        if self._rank is not None:
            self._rank.tell(dead_packet(-1, "lost contact with the MPI daemon of this host"))

    # --- ending -----------------------------------------------------------------------------------

    def _on_term(self, signal_number: int, frame: object) -> None:
        """mpirun's daemon ends all that it started, soon with SIGKILL."""
        self._end_rank("was ended by the MPI daemon of its host", 0.0, _TERM_S)

    def _end_rank(self, why: str, grace_s: float, kill_s: float) -> None:
        self._ending = self._ending or why
        end = time.monotonic() + grace_s
        planned = [(end, signal.SIGTERM), (end + kill_s, signal.SIGKILL)]
        if not self._kills or planned[0][0] < self._kills[0][0]:
            self._kills = planned

    def _leave(self) -> None:
        if self._rank is not None:
            self._rank.kill(signal.SIGKILL)  # whatever it left behind
            self._rank.end_marked()
            self._rank.drain(time.monotonic() + _DRAIN_S)
            if self._recorder_wanted:
                self._rank.send_recorder()
        end = time.monotonic() + _DRAIN_S
        while self._channel.pending and time.monotonic() < end:
            select.select([], [self._channel], [], max(0.0, end - time.monotonic()))
            self._channel.flush()
        self._channel.close()
        # Cut off from mpirun the daemon would stay for ever. It waits for us, so the guard sees to
        # it. It ends all keepers at once, so the last one tells it.
        alone = self._lost and os.getppid() == self._daemon and self._daemon > 1
        patience_s = self._grace_s + _KILL_S + _DRAIN_S
        if alone and siblings.wait_as_the_last(self._daemon, patience_s):
            folder = siblings.session_folder(self._daemon)
            self._guard.add_process(self._daemon, _KILL_S, folder)
            os.kill(self._daemon, signal.SIGTERM)
        else:
            self._guard.dismiss()


def _first(environment: dict[str, str], names: tuple[str, ...]) -> int:
    found = next((environment[name] for name in names if name in environment), None)
    if found is None:
        raise KeyError(" or ".join(names))
    return int(found)


def main() -> int:
    """Exit code 0 whatever became of the rank; 1 when it could not even report."""
    environment = dict(os.environ)
    try:
        summons = Summons.take(environment)
        rank = _first(environment, _RANK_NAMES)
        local_rank = _first(environment, ("OMPI_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        print(
            f"horonrun's keeper is started by horonrun through mpirun only: {error}",
            file=sys.stderr,
        )
        return 1
    try:
        channel = call(summons.addresses, summons.secret, summons.start_s)
    except OSError as error:
        print(
            f"host {socket.gethostname()} cannot reach horonrun on {summons.launcher}: {error}",
            file=sys.stderr,
        )
        return 1
    hello = Hello(
        version(), socket.gethostname(), rank, local_rank, os.getpid(), addresses_by_name()
    )
    channel.send(Kind.HELLO, hello.packed())
    Keeper(channel, summons, rank, environment).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
