"""The cells of the fault matrix: which there are, and what each is held to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

NP = 4
FAULTS = ("kill", "stop", "segv", "exit0", "exit7", "raise", "cut", "launcher")
WHO = {"rank 0": (0,), "last": (NP - 1,), "two": (0, NP - 1)}
SILENCE_S = 2  # HORON_STALL_SILENCE_SECONDS of the jobs: a stopped rank is given up after this
HOST_TIMEOUT_S = 2  # --host-timeout of the jobs: the same of a host that cannot be reached
_STEPS_S = 3.0  # a stopped rank is asked after half a second, and the answer waited for in steps
_APART_S = 2.0  # by which ranks on several hosts may hear of it later than each other
_GRACE_S = 2.0
_NEAR_S = 1.0
_FAR_S = 5.0
_LEAVE_S = 5.0  # HORON_SHUTDOWN_TIMEOUT_SECONDS: that a rank waits for the others before it leaves
_KILL_S = 2.0  # from SIGTERM to SIGKILL, after the grace period
_CLEAR_S = 3.0  # that horonrun takes at most when all ranks have ended
_MACHINE_S = 3.0  # of a loaded machine, for all of that together
# HORON_FAULT in each phase, on one host and on two, {} being the action; None: no such phase there.
# It strikes in the second collective, well inside its chunks; in a locked schedule in the ninth of
# one name.
_PLANS = {
    "init": ("init:{}:1", "init:{}:1"),
    "negotiate": ("negotiate:{}:2", "negotiate:{}:2"),
    # On hosts each has 16 slices, and in each slice 4 chunks inside the node and 2 between nodes.
    "copy_in": ("copy_in:{}:70", "copy_in:{}:22"),
    "reduce": ("reduce:{}:70", "reduce:{}:140"),
    "copy_out": ("copy_out:{}:70", "copy_out:{}:22"),
    "lent": ("lent:{}:20", "lent:{}:8"),
    # Four chunks each, and two more between nodes, so that none takes half a second on a loaded
    # machine. Who waits so long asks why, which is negotiated.
    "locked": ("reduce:{}:34", "reduce:{}:51"),
    "lent_locked": ("lent:{}:34", "lent:{}:51"),
    # The ninth step is not of the schedule: whoever comes with it first asks to leave, and all say
    # how far they have come.
    "leaving": ("leave:{}:1", "leave:{}:1"),
    # A small tensor that travels with the gate's word, once each way; a node's first rank adds it.
    "cargo_in": (None, "copy_in:{}:9"),
    "cargo_add": (None, "reduce:{}:9"),
    "cargo_out": (None, "copy_out:{}:9"),
    # Where the tensors lie: eight pieces of each rank's part, or one.
    "in_place": ("reduce:{}:12", None),
    "in_place_locked": ("reduce:{}:9", None),
    # Up the tree of Adasum, on one host through a lane, 96 chunks in its passes; and by large
    # messages, as between hosts, its combination in pieces of a message.
    "adasum": ("reduce:{}:131", "reduce:{}:6"),
    "messages": ("reduce:{}:6", None),
    "mpi_adds": (None, "copy_in:{}:2"),
    # Through a lane 64 chunks of a broadcast, and 48 of an alltoall. On hosts 64 messages that the
    # root sends, or pieces that the last rank reads; an alltoall's 3 messages and 16 pieces.
    "broadcast": ("reduce:{}:84", "message:{}:84"),
    "alltoall": ("reduce:{}:72", "message:{}:28"),
    # A sixteenth of that, in a locked schedule: 4 chunks, messages or pieces, or an alltoall's 3
    # messages and a piece from each rank of the host.
    "broadcast_locked": ("reduce:{}:34", "message:{}:34"),
    "alltoall_locked": ("message:{}:51", "message:{}:34"),
    # The other ops of a locked schedule: 8 passes of a lane's chunks; an alltoall of the first
    # size, 48 chunks; 15 messages and pieces; a rank's 2 pieces of a reduce-scatter; and 15 again.
    # On hosts, behind the gate's words, 11 messages and pieces of Adasum; 19; 7; 2 pieces; 7.
    "adasum_locked": ("reduce:{}:68", "message:{}:93"),
    "swap_locked": ("reduce:{}:408", "message:{}:162"),
    "allgather_locked": ("message:{}:128", "message:{}:59"),
    "reduce_scatter_locked": ("reduce:{}:17", "reduce:{}:17"),
    "topk_locked": ("message:{}:128", "message:{}:59"),
    # 3 messages, and 192 pieces read where they lie, or 768 that come through rings.
    "allgather": ("message:{}:275", None),
    "rings": ("message:{}:1071", None),
    "reduce_scatter": ("reduce:{}:48", None),  # of 32 chunks
    # Again, where all that is packed goes past the caches.
    "far_adasum": ("reduce:{}:131", None),
    "far_broadcast": ("reduce:{}:84", None),
    "shutdown": ("shutdown:{}:1", "shutdown:{}:1"),
}
PHASES = tuple(_PLANS)
_LENT = ("lent", "lent_locked")
_CARGO = ("cargo_in", "cargo_add", "cargo_out")
_OPS_LOCKED = ("broadcast_locked", "alltoall_locked", "adasum_locked", "swap_locked",
               "allgather_locked", "reduce_scatter_locked", "topk_locked")
_STEADY = ("locked", "lent_locked", "leaving", "in_place_locked", *_OPS_LOCKED, *_CARGO)
_OTHER_WAYS = ("lent", "in_place", "adasum", "messages", "broadcast", "alltoall", "far_adasum",
               "far_broadcast")
# Where it matters that a rank is gone, and not what ended it.
_FEW = ("lent_locked", "leaving", "in_place_locked", *_OPS_LOCKED, *_CARGO, "mpi_adds",
        "allgather", "rings", "reduce_scatter")
_FEW_ON_HOSTS = (*_FEW, "broadcast", "alltoall")
_LIKE_KILL = ("segv", "exit0", "exit7", "launcher")
LOCKED_STEP = 8  # the first that is not negotiated
_IN_CALLS = ("init", "shutdown")  # the program's thread is in the runtime's code there


@dataclass(frozen=True)
class Cell:
    """One way to fail, at one place, in a job on so many hosts."""

    fault: str
    phase: str
    who: str
    hosts: int

    def __str__(self) -> str:
        return f"{self.fault} in {self.phase}, {self.who}, {self.hosts} host(s)"

    @property
    def victims(self) -> tuple[int, ...]:
        """Ranks that fail, whose hosts are cut off, or that stand still while horonrun dies."""
        return WHO[self.who]

    @property
    def survivors(self) -> list[int]:
        """Who must say how it ended. When horonrun dies, its ranks do."""
        if self.fault == "launcher":
            return []
        return [rank for rank in range(NP) if self.fault == "cut" or rank not in self.victims]

    def host_of(self, rank: int) -> int:
        return rank * self.hosts // NP + 1

    def near(self, rank: int) -> bool:
        """Whether a victim is on the rank's own host."""
        return any(self.host_of(victim) == self.host_of(rank) for victim in self.victims)

    @property
    def strikes_itself(self) -> bool:
        """Whether the rank does it (HORON_FAULT), not somebody outside while it stands still."""
        return self.fault not in ("cut", "launcher")

    @property
    def at_once(self) -> bool:
        """Whether two ranks do it themselves, and wait for each other before they do."""
        return self.strikes_itself and self.fault != "raise" and len(self.victims) == 2

    @property
    def raised_at(self) -> int | None:
        """The step whose tensor is under way when the program raises; None: it does so before a
        call, or something else happens."""
        if self.fault != "raise" or self.phase in _IN_CALLS:
            return None
        return LOCKED_STEP if self.steady else 1

    @property
    def lends(self) -> bool:
        """Whether a waiting call may do the work on its own thread."""
        return self.phase not in ("negotiate", "copy_in", "reduce", "copy_out")

    @property
    def steady(self) -> bool:
        """Whether the job runs the same tensor again and again, so that its schedule is locked."""
        return self.phase in _STEADY

    @property
    def plan(self) -> str:
        """The beginning and the end of HORON_FAULT, with the action to be put in between."""
        return _PLANS[self.phase][self.hosts - 1]

    @property
    def grace_s(self) -> float:
        """--grace-period: longer than a rank may take to say what it heard."""
        return _GRACE_S + (_APART_S if self.hosts > 1 else 0.0)

    def bound_s(self, rank: int) -> float:
        """From the fault to the error on a survivor."""
        if self.fault == "stop":
            return SILENCE_S + _STEPS_S
        if self.fault == "cut":
            return HOST_TIMEOUT_S + _STEPS_S
        return _NEAR_S if self.near(rank) else _FAR_S

    @property
    def ends_s(self) -> float:
        """From the fault until horonrun has ended. What comes before it takes what it takes."""
        heard = max(map(self.bound_s, self.survivors), default=0.0)
        leaving = _LEAVE_S if self.phase == "shutdown" else 0.0
        return heard + leaving + self.grace_s + _KILL_S + _CLEAR_S + _MACHINE_S

    @property
    def gone_s(self) -> float:
        """From the end of horonrun until nothing of the job may be left anywhere."""
        if self.hosts == 1:
            return 1.0  # the kernel needs this to take processes down
        # A host that is cut off finds out by itself, and gives its ranks the grace period.
        return HOST_TIMEOUT_S + 10.0 if self.fault == "cut" else 5.0


@dataclass
class Outcome:
    """What went wrong in a cell, and the longest times from the fault to an error."""

    wrong: list[str] = field(default_factory=list)
    near_s: float | None = None  # on the victim's host
    far_s: float | None = None  # elsewhere
    struck: int = 0  # how many victims came to fail
    again: int = 0  # how often it was run before, on a machine that stood still

    def heard(self, near: bool, seconds: float) -> None:
        if near:
            self.near_s = max(self.near_s or 0.0, seconds)
        else:
            self.far_s = max(self.far_s or 0.0, seconds)


def cells(hosts: int, quick: bool) -> Iterator[Cell]:
    for fault, phase, who in itertools.product(FAULTS, PHASES, WHO):
        if fault == "cut" and hosts == 1:
            continue
        if fault == "launcher" and who != "last":
            continue  # one launcher, and where it is killed from does not matter
        if _PLANS[phase][hosts - 1] is None:
            continue
        if phase in _LENT and fault == "raise":
            continue  # the program's thread is the one that does the work
        if phase in _LENT and hosts > 1 and who != "last":
            continue  # rank 0 watches MPI, which its own thread does
        if phase == "cargo_add" and who != "rank 0":
            continue  # the other victim is not the first of its node
        if phase in _FEW and fault in _LIKE_KILL:
            continue
        if hosts > 1 and phase in _FEW_ON_HOSTS and (fault in _LIKE_KILL or who == "two"):
            continue
        if not quick or _is_quick(fault, phase, who, hosts):
            yield Cell(fault, phase, who, hosts)


def _is_quick(fault: str, phase: str, who: str, hosts: int) -> bool:
    """The cells that differ most."""
    if hosts > 1:  # a job takes seconds there
        if phase == "cargo_in":
            return (fault, who) == ("kill", "last")
        if fault in ("kill", "cut"):
            return phase in ("init", "reduce") and who != "two" or (phase, who) == ("reduce", "two")
        return who == "last" and phase in ("init", "reduce", "locked", "shutdown")
    if phase in _FEW:
        return fault == "kill" and who == "last"
    if phase in _OTHER_WAYS:
        return fault in ("kill", "stop") and who == "last"
    if fault in ("segv", "exit7", "stop") and phase not in ("init", "reduce"):
        return False
    return who != "two" or phase in ("negotiate", "reduce", "locked")
