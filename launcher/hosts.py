"""Which hosts a job runs on: from -H, from a hostfile, or from a Slurm allocation."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .interfaces import addresses_by_name
from .refusal import Refusal

# No leading dash: a name is an argument of the remote shell.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ENTRY = re.compile(rf"({_NAME})(?::(\d{{1,6}}))?")
_LINE = re.compile(rf"({_NAME})(?::(\d{{1,6}})|\s+slots\s*=\s*(\d{{1,6}}))?"
                   r"(?:\s+max[-_]slots\s*=\s*(\d{1,6}))?")  # Open MPI's
_SCONTROL_S = 10
MOST_RANKS = 4096


@dataclass(frozen=True)
class Host:
    """A host as the user named it, and how many ranks it takes."""

    name: str
    slots: int


def _host(name: str, slots: str | None, where: str) -> Host:
    number = int(slots) if slots is not None else 1
    if number < 1:
        raise Refusal(f"{where}: host {name} has no slot; give it at least 1")
    return Host(name, number)


def _merged(hosts: Iterable[Host]) -> list[Host]:
    """A host that is named twice has the slots of both."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, number) for name, number in slots.items()]


def from_list(text: str) -> list[Host]:
    """Of `-H h1:2,h2:2`; a host without a number has one slot."""
    hosts = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise Refusal(f"-H: '{entry}' is not HOST or HOST:SLOTS, as in -H h1:2,h2:2")
        hosts.append(_host(match[1], match[2], "-H"))
    return _merged(hosts)


def from_file(path: str) -> list[Host]:
    """Of a hostfile: one host a line, `h1 slots=2`, `h1:2` or `h1`; # begins a comment."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise Refusal(f"cannot read the hostfile {path}: {error.strerror}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        match = _LINE.fullmatch(text)
        if match is not None:
            slots = match[2] or match[3] or match[4]
            hosts.append(_host(match[1], slots, f"{path}, line {number}"))
        elif text:
            raise Refusal(
                f"{path}, line {number}: '{line.strip()}' is not a host; write "
                "'h1 slots=2' or 'h1:2'"
            )
    if not hosts:
        raise Refusal(f"the hostfile {path} names no host")
    return _merged(hosts)


def tasks_per_node(text: str) -> list[int]:
    """Slurm's way to write a list: "2(x3),1" is 2, 2, 2, 1. Empty when it is something else."""
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _allocated(environment: Mapping[str, str]) -> str:
    """The nodes of the allocation that this process is in, as Slurm abbreviates them."""
    return environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""


@functools.cache
def _names_of(nodes: str) -> list[str]:
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True,
            text=True,
            timeout=_SCONTROL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Refusal(
            f"SLURM_JOB_NODELIST={nodes} is set, but 'scontrol show hostnames' does not "
            f"say which hosts these are ({error}); name them with -H"
        ) from None
    return done.stdout.split()


def from_slurm(environment: Mapping[str, str]) -> list[Host]:
    """Of the allocation that this process is in; empty without one."""
    nodes = _allocated(environment)
    if not nodes:
        return []
    names = _names_of(nodes)
    text = environment.get("SLURM_TASKS_PER_NODE", "1" if len(names) == 1 else f"1(x{len(names)})")
    tasks = tasks_per_node(text)
    if len(tasks) != len(names):
        whose = " (a step of srun's has its own)" if "SLURM_STEP_ID" in environment else ""
        raise Refusal(
            f"SLURM_TASKS_PER_NODE={text}{whose} does not fit the {len(names)} hosts of the "
            f"allocation; name hosts and slots with -H, as in -H {names[0]}:2,{names[-1]}:2"
        )
    return [Host(name, number) for name, number in zip(names, tasks, strict=True)]


def slurm_slots(hosts: list[Host], environment: Mapping[str, str]) -> dict[str, str]:
    """What Open MPI must find in place of Slurm's own: in an allocation it gives no node more ranks
    than that, whatever --host says. Empty outside, and where Slurm knows the hosts by other names.
    """
    nodes = _allocated(environment)
    if not nodes or not hosts:
        return {}
    try:
        names = _names_of(nodes)
    except Refusal:
        return {}
    slots = {host.name: host.slots for host in hosts}
    if not slots.keys() <= set(names):
        return {}
    return {"SLURM_TASKS_PER_NODE": ",".join(str(slots.get(name, 1)) for name in names)}


def listed(hosts: Iterable[Host]) -> str:
    """As h1:2, h2:2."""
    return ", ".join(f"{host.name}:{host.slots}" for host in hosts)


def place(hosts: list[Host], np: int | None, source: str) -> list[Host]:
    """The hosts with as many slots as they get ranks: filled in order; all slots without np."""
    total = sum(host.slots for host in hosts)
    if np is not None and np > total:
        raise Refusal(
            f"-np {np} asks for more ranks than the {total} slots that {source} "
            f"({listed(hosts)})"
        )
    if np is None and total > MOST_RANKS:
        raise Refusal(f"{source} {total} slots, and a job has at most {MOST_RANKS} ranks: give -np")
    left, placed = np or total, []
    for host in hosts:
        if left > 0:
            placed.append(Host(host.name, min(left, host.slots)))
            left -= host.slots
    return placed


def is_this_machine(name: str) -> bool:
    """Whether a host's name means the machine that horonrun runs on."""
    own = socket.gethostname()
    if name in ("localhost", own, own.split(".")[0]) or name.startswith("127."):
        return True
    mine = {address for found in addresses_by_name().values() for address in found}
    return bool(mine & set(resolved(name)))


def resolved(name: str) -> list[str]:
    """The addresses of a host; empty when its name is unknown. May take as long as DNS takes."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def check_names(hosts: list[Host], seconds: float) -> None:
    """Refuses hosts whose names nobody knows. Takes no longer than told, whatever DNS does."""
    found: dict[str, bool] = {}

    def look(name: str) -> None:
        found[name] = bool(resolved(name))

    threads = [threading.Thread(target=look, args=[host.name], daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    for host in hosts:
        if not found.get(host.name):
            raise Refusal(
                f"host {host.name} cannot be resolved: neither DNS nor /etc/hosts knows it"
            )
