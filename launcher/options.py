"""The command line of horonrun, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from . import version
from .hosts import Host, check_names, from_file, from_list, from_slurm, is_this_machine, place
from .interfaces import addresses_by_name, described
from .refusal import Refusal


@dataclass
class Options:
    """What the user asked for."""

    np: int
    command: list[str]
    use_mpi: bool = False
    hosts: list[Host] = field(
        default_factory=list
    )  # with as many slots as ranks; empty: this machine
    interfaces: list[str] = field(default_factory=list)
    rsh_agent: str = ""
    start_s: float = 60.0
    silence_s: float = 4.0  # after which a host counts as lost
    prefix: bool = True
    grace_s: float = 10.0
    dry_run: bool = False
    verbose: bool = False
    check_build: bool = False
    postmortem: str = ""  # folder whose recorders are to be read
    variables: dict[str, str] = field(default_factory=dict)  # HORON_* set by options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message} (horonrun --help shows the options)")


class _Version(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        print(f"horonrun {version()}")
        sys.exit(0)


# Horovod's options that stand for a variable: option, variable, what it is, factor to its unit.
_TUNING = (
    (
        "--fusion-threshold-mb",
        "HORON_FUSION_THRESHOLD",
        "MiB fused into one bucket; 0: none",
        1 << 20,
    ),
    ("--cycle-time-ms", "HORON_CYCLE_TIME", "ms to wait for more tensors before negotiating", 1),
    ("--cache-capacity", "HORON_CACHE_CAPACITY", "tensors whose agreement is remembered", 1),
    ("--start-timeout", "HORON_START_TIMEOUT", "s that ranks wait for each other at start", 1),
)
_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "WARN", "ERROR", "FATAL", "OFF")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"'{text}' is not a non-negative number")
    return value


def _ranks(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of ranks (1 to 4096)")
    return int(text)


def _parser() -> _Parser:
    parser = _Parser(
        prog="horonrun",
        allow_abbrev=False,
        usage="horonrun [-np N] [-H h1:2,h2:2] [options] command [arguments]",
        description="Starts N ranks of a command, on this machine or on the hosts named.",
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", dest="np", type=_ranks, metavar="N", help="number of ranks")
    add("-H", "--hosts", metavar="LIST", help="hosts and how many ranks each takes: h1:2,h2:2")
    add("--hostfile", "-hostfile", metavar="FILE", help="the same, a line a host: h1 slots=2")
    add(
        "--rsh-agent", default="", metavar="CMD", help="what runs a command on a host (default ssh)"
    )
    add(
        "--network-interfaces",
        default="",
        metavar="A,B",
        help="the only ones to use; of each host those that it has",
    )
    add(
        "--host-timeout",
        type=_number,
        default=4.0,
        metavar="S",
        help="s without a sign of life after which a host counts as lost (default 4)",
    )
    add("--mpi", action="store_true", help="start through mpirun (as HORON_CONTROLLER=mpi does)")
    add("--no-prefix", action="store_true", help="do not put [rank] before the lines of output")
    add(
        "--grace-period",
        type=_number,
        default=10.0,
        metavar="S",
        help="s that the other ranks have to end by themselves after one failed (default 10)",
    )
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")
    add("-v", "--verbose", action="store_true", help="say on stderr what is done")
    add("--check-build", "-cb", action="store_true", help="show what is built and found, and stop")
    add(
        "--postmortem",
        metavar="DIR",
        default="",
        help="show what the flight recorders in DIR (HORON_POSTMORTEM_DIR) hold, and stop",
    )
    add("--version", action=_Version, nargs=0, help="show the version, and stop")
    tuning = parser.add_argument_group(
        "tuning (each sets the variable named; docs/configuration.md)"
    )
    for option, variable, meaning, _ in _TUNING:
        tuning.add_argument(option, type=_number, metavar="X", help=f"{variable}: {meaning}")
    tuning.add_argument(
        "--log-level", type=str.upper, choices=_LOG_LEVELS, metavar="LEVEL", help="HORON_LOG"
    )
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _use_mpi(asked: bool, np: int, hosts: list[Host], environment: Mapping[str, str]) -> bool:
    controller = environment.get(
        "HORON_CONTROLLER", environment.get("HOROVOD_CONTROLLER", "")
    ).lower()
    local_size = environment.get("HORON_LOCAL_SIZE", "")
    # Blocks of ranks that pretend to be nodes talk to each other over MPI.
    blocks = local_size.isdigit() and 0 < int(local_size) < np
    if (blocks or hosts) and controller in ("shm", "gloo"):
        what = f"{len(hosts)} hosts" if hosts else f"HORON_LOCAL_SIZE={local_size} with {np} ranks"
        raise Refusal(
            f"{what} means several nodes, which negotiate over MPI: "
            f"unset HORON_CONTROLLER={controller}"
        )
    return asked or controller == "mpi" or blocks or bool(hosts)


def _hosts(
    parsed: argparse.Namespace, environment: Mapping[str, str], start_s: float
) -> tuple[list[Host], int]:
    """Hosts with a slot for each rank, none if all is on this machine; and the number of ranks."""
    if parsed.hosts is not None and parsed.hostfile is not None:
        raise Refusal("-H and --hostfile both say which hosts to use: give one of them")
    if parsed.hosts is not None:
        hosts, source = from_list(parsed.hosts), "-H offers"
    elif parsed.hostfile is not None:
        hosts, source = from_file(parsed.hostfile), f"{parsed.hostfile} offers"
    else:
        hosts, source = from_slurm(environment), "the Slurm allocation offers"
        if not hosts and parsed.np is None:
            raise Refusal(
                "-np is missing: say how many ranks to start, as in horonrun -np 4 python train.py"
            )
        if len(hosts) == 1 and parsed.np is not None and is_this_machine(hosts[0].name):
            return [], parsed.np  # an allocation often counts its cores as one task
    if not hosts:
        return [], parsed.np
    hosts = place(hosts, parsed.np, source)
    np = sum(host.slots for host in hosts)
    check_names(hosts, start_s)
    return ([] if all(is_this_machine(host.name) for host in hosts) else hosts), np


def _interfaces(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = addresses_by_name()
    if names and not any(found.get(name) for name in names):
        raise Refusal(
            f"--network-interfaces {text}: host {socket.gethostname()} has no such interface "
            f"with an address; it has {described(found)}"
        )
    return names


def _start_seconds(variables: Mapping[str, str], environment: Mapping[str, str]) -> float:
    """The library checks the variable, too; here a wrong one must not stop horonrun."""
    for text in (
        variables.get("HORON_START_TIMEOUT"),
        environment.get("HORON_START_TIMEOUT"),
        environment.get("HOROVOD_START_TIMEOUT"),
    ):
        if text:
            try:
                return min(max(float(text), 1.0), 1e6)
            except ValueError:
                raise Refusal(f"HORON_START_TIMEOUT: '{text}' is not a number of seconds") from None
    return 60.0


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _command(words: list[str]) -> list[str]:
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise Refusal("the command is missing, as in horonrun -np 4 python train.py")
    if command[0] in ("python", "python3"):
        # The Python that horonrun runs in, whatever PATH says: it is the one that has horon.
        command = [sys.executable, *command[1:]]
    return command


def _variables(parsed: argparse.Namespace) -> dict[str, str]:
    variables = {}
    for option, variable, _, factor in _TUNING:
        value = getattr(parsed, option[2:].replace("-", "_"))
        if value is not None:
            variables[variable] = _plain(value * factor)
    if parsed.log_level:
        variables["HORON_LOG"] = parsed.log_level.lower()
    return variables


def parse(argv: list[str], environment: Mapping[str, str]) -> Options:
    """Options of a command line, or a Refusal."""
    parsed = _parser().parse_args(argv)
    if parsed.check_build:
        return Options(np=1, command=[], check_build=True)
    if parsed.postmortem:
        return Options(np=1, command=[], postmortem=parsed.postmortem)
    variables = _variables(parsed)
    start_s = _start_seconds(variables, environment)
    hosts, np = _hosts(parsed, environment, start_s)
    return Options(
        np=np,
        command=_command(parsed.command),
        use_mpi=_use_mpi(parsed.mpi, np, hosts, environment),
        hosts=hosts,
        interfaces=_interfaces(parsed.network_interfaces),
        rsh_agent=parsed.rsh_agent,
        start_s=start_s,
        silence_s=max(1.5, parsed.host_timeout),  # a beat may be a second old
        prefix=not parsed.no_prefix,
        grace_s=parsed.grace_period,
        dry_run=parsed.dry_run,
        verbose=parsed.verbose,
        variables=variables,
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
