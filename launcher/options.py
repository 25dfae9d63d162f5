"""The command line of horonrun, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn


class Refusal(Exception):
    """A mistake of the user, said in one line."""

    def __init__(self, sentence: str, exit_code: int = 2) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass
class Options:
    """What the user asked for."""

    np: int
    command: list[str]
    use_mpi: bool = False
    prefix: bool = True
    grace_s: float = 10.0
    dry_run: bool = False
    verbose: bool = False
    check_build: bool = False
    variables: dict[str, str] = field(default_factory=dict)  # HORON_* set by options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message} (horonrun --help shows the options)")


class _Version(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        from importlib import metadata

        try:
            print(f"horonrun {metadata.version('horon')}")
        except metadata.PackageNotFoundError:
            print("horonrun (horon is not installed)")
        sys.exit(0)


# Horovod's options that stand for a variable: option, variable, what it is, factor to the variable's unit.
_TUNING = (
    ("--fusion-threshold-mb", "HORON_FUSION_THRESHOLD", "MiB fused into one bucket; 0: none", 1 << 20),
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
        usage="horonrun -np N [options] command [arguments]",
        description="Starts N ranks of a command on this machine.",
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", dest="np", type=_ranks, metavar="N", help="number of ranks")
    add("--mpi", action="store_true", help="start through mpirun (as HORON_CONTROLLER=mpi does)")
    add("--no-prefix", action="store_true", help="do not put [rank] before the lines of output")
    add("--grace-period", type=_number, default=10.0, metavar="S",
        help="s that the other ranks have to end by themselves after one failed (default 10)")
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")
    add("-v", "--verbose", action="store_true", help="say on stderr what is done")
    add("--check-build", "-cb", action="store_true", help="show what is built and found, and stop")
    add("--version", action=_Version, nargs=0, help="show the version, and stop")
    tuning = parser.add_argument_group("tuning (each sets the variable named; docs/configuration.md)")
    for option, variable, meaning, _ in _TUNING:
        tuning.add_argument(option, type=_number, metavar="X", help=f"{variable}: {meaning}")
    tuning.add_argument("--log-level", type=str.upper, choices=_LOG_LEVELS, metavar="LEVEL", help="HORON_LOG")
    add("-H", "--hosts", "--hostfile", "-hostfile", dest="hosts", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _use_mpi(asked: bool, np: int, environment: Mapping[str, str]) -> bool:
    controller = environment.get("HORON_CONTROLLER", environment.get("HOROVOD_CONTROLLER", "")).lower()
    local_size = environment.get("HORON_LOCAL_SIZE", "")
    # Blocks of ranks that pretend to be nodes talk to each other over MPI.
    several_nodes = local_size.isdigit() and 0 < int(local_size) < np
    if several_nodes and controller == "shm":
        raise Refusal(f"HORON_LOCAL_SIZE={local_size} with {np} ranks means several nodes, which negotiate "
                      "over MPI: unset HORON_CONTROLLER=shm")
    return asked or controller == "mpi" or several_nodes


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def parse(argv: list[str], environment: Mapping[str, str]) -> Options:
    """Options of a command line, or a Refusal."""
    parsed = _parser().parse_args(argv)
    if parsed.check_build:
        return Options(np=1, command=[], check_build=True)
    if parsed.hosts is not None:
        raise Refusal("several hosts are not supported yet: horonrun starts ranks on this machine; "
                      "across machines, start the program with mpirun or srun")
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if parsed.np is None:
        raise Refusal("-np is missing: say how many ranks to start, as in horonrun -np 4 python train.py")
    if not command:
        raise Refusal("the command is missing, as in horonrun -np 4 python train.py")
    if command[0] in ("python", "python3"):
        # The Python that horonrun runs in, whatever PATH says: it is the one that has horon.
        command = [sys.executable, *command[1:]]
    variables = {}
    for option, variable, _, factor in _TUNING:
        value = getattr(parsed, option[2:].replace("-", "_"))
        if value is not None:
            variables[variable] = _plain(value * factor)
    if parsed.log_level:
        variables["HORON_LOG"] = parsed.log_level.lower()
    return Options(
        np=parsed.np,
        command=command,
        use_mpi=_use_mpi(parsed.mpi, parsed.np, environment),
        prefix=not parsed.no_prefix,
        grace_s=parsed.grace_period,
        dry_run=parsed.dry_run,
        verbose=parsed.verbose,
        variables=variables,
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
