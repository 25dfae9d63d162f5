"""The three longer messages between horonrun and a keeper, and how they are written.

Summons: how a keeper finds horonrun; travels in mpirun's environment. Hello: who the keeper is.
Order: what it shall start.
"""

from __future__ import annotations

from dataclasses import dataclass

from .frames import Garbled, number, pack, text, unpack

_SECRET = "HORON_KEEPER_SECRET"
_ADDRESSES = "HORON_KEEPER_ADDRESSES"
_LIMITS = "HORON_KEEPER_LIMITS"
SUMMONS_NAMES = (_SECRET, _ADDRESSES, _LIMITS)


@dataclass(frozen=True)
class Summons:
    """What a keeper must know to report."""

    secret: bytes
    launcher: str  # name of horonrun's host
    addresses: list[tuple[str, int]]
    start_s: float  # how long to try
    silence_s: float  # without a word, after which the other side counts as lost

    def variables(self) -> dict[str, str]:
        addresses = " ".join(f"{address}|{port}" for address, port in self.addresses)
        limits = f"{self.start_s} {self.silence_s} {self.launcher}"
        return {_SECRET: self.secret.hex(), _ADDRESSES: addresses, _LIMITS: limits}

    @staticmethod
    def take(environment: dict[str, str]) -> Summons:
        """Out of the environment, which keeps nothing of it. Raises KeyError or ValueError."""
        secret, addresses, limits = (environment.pop(name) for name in SUMMONS_NAMES)
        start_s, silence_s, launcher = limits.split(" ", 2)
        pairs = [entry.rsplit("|", 1) for entry in addresses.split()]
        return Summons(
            bytes.fromhex(secret),
            launcher,
            [(a, int(port)) for a, port in pairs],
            float(start_s),
            float(silence_s),
        )


@dataclass(frozen=True)
class Hello:
    """Who a keeper is."""

    version: str  # of Horon on its host
    host: str
    rank: int
    local_rank: int
    pid: int
    interfaces: dict[str, list[str]]  # addresses by name

    def packed(self) -> bytes:
        rows = [pack(name, *addresses) for name, addresses in self.interfaces.items()]
        return pack(self.version, self.host, self.rank, self.local_rank, self.pid, pack(*rows))

    @staticmethod
    def parse(payload: bytes) -> Hello:
        version, host, rank, local_rank, pid, interfaces = unpack(payload, 6)
        found = {}
        for row in unpack(interfaces):
            names = [text(field) for field in unpack(row)]
            if not names:
                raise Garbled("an interface without a name")
            found[names[0]] = names[1:]
        return Hello(
            text(version), text(host), number(rank), number(local_rank), number(pid), found
        )


@dataclass(frozen=True)
class Order:
    """What a keeper shall start, and how."""

    grace_s: float  # for the rank, when horonrun is lost
    local_size: int
    takes_input: bool  # what is piped into horonrun
    interfaces: list[str]  # for MPI's bytes: those of them that exist there; empty: MPI chooses
    command: list[str]
    environment: dict[str, str]  # put over the keeper's own

    def packed(self) -> bytes:
        variables = [part for pair in self.environment.items() for part in pair]
        return pack(
            round(self.grace_s * 1000),
            self.local_size,
            int(self.takes_input),
            pack(*self.interfaces),
            pack(*self.command),
            pack(*variables),
        )

    @staticmethod
    def parse(payload: bytes) -> Order:
        grace, local_size, takes_input, interfaces, command, variables = unpack(payload, 6)
        words = [word.decode(errors="surrogateescape") for word in unpack(command)]
        parts = [part.decode(errors="surrogateescape") for part in unpack(variables)]
        if not words or len(parts) % 2:
            raise Garbled("an order without a command, or a variable without a value")
        return Order(
            number(grace) / 1000,
            number(local_size, 1),
            bool(number(takes_input, 0, 1)),
            [text(name) for name in unpack(interfaces)],
            words,
            dict(zip(parts[::2], parts[1::2], strict=True)),
        )
