"""The protocol between horonrun and its keepers, over sockets of this process."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher import crew, frames, meeting, remote  # noqa: E402
from launcher.greeting import Hello, Order, Summons  # noqa: E402

SECRET = b"s" * 32


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def channels() -> tuple[frames.Channel, frames.Channel]:
    """horonrun's and the keeper's."""
    ours, theirs = connected()
    nonces = os.urandom(64)
    return frames.Channel(ours, SECRET, True, nonces), frames.Channel(theirs, SECRET, False, nonces)


def received(channel: frames.Channel, count: int) -> list:
    found: list = []
    end = time.monotonic() + 10
    while len(found) < count and not channel.closed and time.monotonic() < end:
        channel.connection.settimeout(10)
        found += channel.receive()
    return found


def test_frames_go_both_ways() -> None:
    one, other = channels()
    large = os.urandom(100_000)
    one.send(frames.Kind.PACKET, b"dead 1 x")
    one.beat()
    one.send(frames.Kind.GO, large)
    other.send(frames.Kind.OUTPUT, b"")
    assert received(other, 3) == [
        (frames.Kind.PACKET, b"dead 1 x"),
        (frames.Kind.BEAT, b""),
        (frames.Kind.GO, large),
    ]
    assert received(one, 1) == [(frames.Kind.OUTPUT, b"")]
    one.close()
    assert received(other, 1) == [] and other.closed == "the connection was closed"


@pytest.mark.parametrize("change", ["flip", "repeat", "skip", "reflect", "length"])
def test_frames_that_were_touched_are_refused(change: str) -> None:
    writer, wire = connected()
    nonces = os.urandom(64)
    ours = frames.Channel(writer, SECRET, True, nonces)
    ours.send(frames.Kind.SIGNAL, b"9")
    first = wire.recv(1000)
    ours.send(frames.Kind.SIGNAL, b"15")
    second = wire.recv(1000)
    tampered = {
        "flip": first[:-1] + b"8",
        "repeat": first + first,
        "skip": second,
        "reflect": first,
        "length": b"\xff" + first[1:],
    }[change]
    into, out = connected()
    reader = frames.Channel(out, SECRET, change == "reflect", nonces)
    into.sendall(tampered)
    taken = received(reader, 3)
    assert taken == ([(frames.Kind.SIGNAL, b"9")] if change == "repeat" else [])
    assert reader.closed.startswith("the connection was garbled: ")


def meet(launcher_secret: bytes, keeper_secret: bytes):
    """What horonrun's side and the keeper's side get out of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: list = []

        def keeper() -> None:
            try:
                found.append(meeting.call([server.getsockname()], keeper_secret, 0))
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=keeper)
        thread.start()
        connection = server.accept()[0]
        caller = meeting.Caller(connection, launcher_secret)
        connection.settimeout(10)
        channel = None
        try:
            while channel is None:
                channel = caller.read()
        except frames.Garbled as error:
            channel = error
            connection.close()
        thread.join(10)
        return channel, found[0]


def test_who_knows_the_secret_gets_a_channel() -> None:
    ours, theirs = meet(SECRET, SECRET)
    theirs.send(frames.Kind.BEAT)
    assert received(ours, 1) == [(frames.Kind.BEAT, b"")]


def test_who_does_not_know_the_secret_gets_none() -> None:
    ours, theirs = meet(SECRET, b"t" * 32)
    assert isinstance(ours, frames.Garbled) and "does not know the secret" in str(ours)
    assert isinstance(theirs, OSError)


def test_a_keeper_does_not_talk_to_anybody_else() -> None:
    """Something listens on horonrun's port and echoes: it gets no frames, and no proof to reuse."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            connection = server.accept()[0]
            connection.sendall(frames.MAGIC + b"n" * frames.NONCE_BYTES)
            answer = connection.recv(1000)
            connection.sendall(answer[-frames.PROOF_BYTES :])
            connection.recv(1)

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(OSError, match="does not know the job's secret"):
            meeting.call([server.getsockname()], SECRET, 0)
        thread.join(10)


HELLO = Hello("0.1", "h2", 3, 1, 77, {"eth0": ["10.0.0.2", "fe80::1"], "lo": []})
ORDER = Order(1.5, 2, True, ["eth0"], ["sh", "-c", "\udcff"], {"A": "x=y\n", "B": ""})


def test_messages_arrive_as_they_were() -> None:
    assert Hello.parse(HELLO.packed()) == HELLO
    assert Order.parse(ORDER.packed()) == ORDER
    summons = Summons(SECRET, "a host", [("10.0.0.1", 5), ("fe80::1", 6)], 60.0, 4.0)
    environment = {"KEPT": "1", **summons.variables()}
    assert Summons.take(environment) == summons and environment == {"KEPT": "1"}


@pytest.mark.parametrize("kind, message", [(Hello, HELLO), (Order, ORDER)])
def test_decoders_refuse_what_they_cannot_read(kind, message) -> None:
    """Cut off, changed and random bytes: a message or Garbled, nothing else."""
    seed = int(os.environ.get("HORON_TEST_SEED", "1"))
    chance = random.Random(seed)
    whole = message.packed()
    refused = 0
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        broken = bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
        try:
            kind.parse(broken)
        except frames.Garbled:
            refused += 1
    assert refused > 1000


def test_text_of_others_does_not_reach_the_terminal_as_it_is() -> None:
    assert frames.text(b"rank\x1b[2J \xff\n") == "rank [2J \ufffd "


class HostsHeard:
    """What a crew asks of ranks: each was heard of so long before time 100."""

    def __init__(self, *silences: float) -> None:
        self.channels = [channels()[0] for _ in silences]
        for channel, silence in zip(self.channels, silences, strict=True):
            channel.heard_at = 100.0 - silence

    def excuse(self, now: float, seconds: float) -> None:
        for channel in self.channels:
            channel.excuse(now, seconds)

    def judge_silence(self, now: float, limit: float) -> bool:
        self.silences = [now - channel.heard_at for channel in self.channels]
        return False


@pytest.mark.parametrize(
    "late, counted", [(0.0, [1.5, 0.1]), (0.25, [1.75, 0.35]), (0.85, [1.75, 0.35]),
                      (60.0, [1.75, 0.35])])  # fmt: skip
def test_a_loop_that_was_late_forgets_no_silence(late: float, counted: list[float]) -> None:
    """It does not count what passed while it did not listen, and nothing else. At most as much as
    between two looks."""
    job = crew.RemoteCrew.__new__(crew.RemoteCrew)
    hosts = HostsHeard(1.5, 0.1)
    job._ranks, job.started, job._next_look = [hosts], True, 0.0
    job._listener = frames.Listener(crew._LOOK_S, 100.0)
    job._lookout = None
    job._options = type("Options", (), {"silence_s": 2.0})
    job.turn(100.0 + late)
    assert hosts.silences == pytest.approx(counted)


def test_hosts_that_call_themselves_alike_are_several() -> None:
    """Each leaves out the bridge that all have."""
    job = crew.RemoteCrew.__new__(crew.RemoteCrew)
    job._ranks = [remote.RemoteRank(rank, host, 0) for rank, host in enumerate(("h1", "h2"))]
    for rank in job._ranks:
        interfaces = {"eth0": [f"10.0.0.{rank.rank}"], "docker0": ["172.17.0.1"]}
        rank.hello = Hello("1", "localhost", rank.rank, 0, 1, interfaces)
    job._options = type("Options", (), {"interfaces": []})
    job._environment = {}
    job._wiring = type("Wiring", (), {"say": print})
    excluded = {"OMPI_MCA_btl_tcp_if_exclude": "127.0.0.1/8,sppp,docker0"}
    assert job._left_out() == {"h1": excluded, "h2": excluded}


def test_nobody_is_heard_of_in_the_future() -> None:
    one, _ = channels()
    one.heard_at = 10.0
    one.excuse(11.0, 60.0)
    assert one.heard_at == 11.0 and one.silence(11.0) == (0.0, 0.0)
