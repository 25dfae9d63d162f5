"""What horonrun's command line may hold. options.py judges what it did hold."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from . import version
from .hosts import MOST_RANKS
from .refusal import Refusal
from .settings import IDLE, REFUSED, SETTINGS, SWITCHES, Idle, Switch

_LEAST_SILENCE_S = 1.5  # a beat may be a second old
SHELLS = ("bash", "zsh")


class Parser(argparse.ArgumentParser):
    """Its errors are Refusals."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message} ({self.prog} --help shows the options)")


class _Suggested(tuple):
    """Completions of what may be given. The option's type judges it."""

    def __contains__(self, value: object) -> bool:
        return True


class _Version(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        print(f"horonrun {version()}")
        sys.exit(0)


class _Refuse(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        raise Refusal(f"{option_string} {self.const}")


class _SetVariable(argparse.Action):
    """`const` is a variable with its value, or with the factor of the option's number, or with
    None if the variable's value is the option's."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        variable, value = self.const
        given = values if value is None else value
        text = given if isinstance(given, str) else _plain(_in_unit(values, given))
        namespace.variables = {**namespace.variables, variable: text}


class _Files(argparse.Action):
    """OUT and at least one FILE."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        if len(values) < 2:
            raise Refusal(f"{option_string} needs the file to write, and those to read")
        setattr(namespace, self.dest, values)


class _NoteIdle(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        namespace.idle = [*namespace.idle, f"{option_string} has no effect: {self.const}"]


_LOG_LEVELS = _Suggested(
    ("TRACE", "DEBUG", "INFO", "WARNING", "WARN", "ERROR", "FATAL", "OFF")
)


def _in_unit(number_given: float, factor: int) -> float:
    """Bytes come in whole ones, whatever part of a MiB was given."""
    return number_given if factor == 1 else round(number_given * factor)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"'{text}' is not a non-negative number")
    return value


def _silence(text: str) -> float:
    value = number(text)
    if value < _LEAST_SILENCE_S:
        raise argparse.ArgumentTypeError(f"'{text}' is too short: at least {_LEAST_SILENCE_S:g} s")
    return value


def _ranks(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of ranks (1 to {MOST_RANKS})")
    return int(text)


def _levels(text: str) -> str:
    """What HORON_LOG takes. Which parts there are is known to the library alone."""
    parts = [part.rpartition("=") for part in text.removesuffix(",").split(",")]
    for _, _, level in parts:
        if level.upper() not in tuple(_LOG_LEVELS):
            raise argparse.ArgumentTypeError(
                f"'{level}' is not a level; use one of {', '.join(_LOG_LEVELS).lower()}, as in "
                "info,negotiator=trace"
            )
    return ",".join(f"{part}{equals}{level.lower()}" for part, equals, level in parts)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port (1 to 65535)")
    return int(text)


def _model(text: str) -> tuple[str, str]:
    size, comma, seconds = text.partition(",")
    try:
        if comma and float(size) >= 1 and float(seconds) >= 0:
            return size, seconds
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is not BYTES,SECONDS, as in 100e6,0.05")


def parser() -> argparse.ArgumentParser:
    """Of the whole command line. Its errors are Refusals."""
    made = Parser(
        prog="horonrun",
        allow_abbrev=False,
        usage="horonrun [-np N] [-H h1:2,h2:2] [options] command [arguments]\n"
        "       horonrun top [PID]",
        description="Starts N ranks of a command, on this machine or on the hosts named. "
        "horonrun top shows what the ranks of running jobs do.",
    )
    _add_job(made)
    _add_hosts(made.add_argument_group("hosts (docs/launcher.md)"))
    _add_questions(made.add_argument_group("questions: no job is started"))
    _add_settings(
        made.add_argument_group("tuning (each sets the variable named; docs/configuration.md)")
    )
    for one in IDLE:
        _add_idle(made, one)
    for names, words, why in REFUSED:
        made.add_argument(
            *names, action=_Refuse, nargs=words, const=why, help=argparse.SUPPRESS
        )
    made.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def _add_job(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("-np", "-n", "--num-proc", dest="np", type=_ranks, metavar="N", help="number of ranks")
    controller = made.add_mutually_exclusive_group()
    controller.add_argument(
        "--mpi", dest="controller", action="store_const", const="mpi",
        help="start through mpirun (as HORON_CONTROLLER=mpi does)",
    )
    controller.add_argument(
        "--gloo", dest="controller", action="store_const", const="shm",
        help="without MPI, on one host (as HORON_CONTROLLER=shm does)",
    )
    add("--no-prefix", action="store_true", help="do not put [rank] before the lines of output")
    add(
        "-prefix-timestamp", "--prefix-output-with-timestamp", dest="timestamps",
        action="store_true", help="put the time before the lines of output",
    )
    add(
        "--output-filename", default="", metavar="DIR",
        help="write each rank's output to DIR/rank.N/stdout and stderr, too",
    )
    add(
        "--grace-period", type=number, default=10.0, metavar="S",
        help="s that the other ranks have to end by themselves after one failed (default 10)",
    )
    add("--explain", action="store_true", help="say at the end where the time of a step went")
    add("--config-file", default="", metavar="YAML", help="options; those given here win")
    add("--mpi-args", default="", metavar="ARGS", help="further arguments of mpirun")
    add(
        "--binding-args", default="", metavar="ARGS",
        help="mpirun's binding of ranks to cores, in place of --bind-to none",
    )
    add("--task-socket", type=int, help=argparse.SUPPRESS)  # horon.run's
    add("--tcp", action="store_true", help="NCCL uses no InfiniBand; MPI takes TCP anyway")
    add("--verbose", action="store_true", help="say on stderr what is done")
    add(
        "--advise", type=_model, metavar="BYTES,SECONDS",
        help="in place of a command: measure the links, and say which algorithm and topology fit "
        "so many bytes of parameters and a step that computes so long (docs/gossip.md)",
    )


def _add_hosts(made: argparse._ArgumentGroup) -> None:
    add = made.add_argument
    add("-H", "--hosts", metavar="LIST", help="hosts and how many ranks each takes: h1:2,h2:2")
    add("--hostfile", "-hostfile", metavar="FILE", help="the same, a line a host: h1 slots=2")
    add("--rsh-agent", default="", metavar="CMD",
        help="what runs a command on a host (default ssh)")
    add("-p", "--ssh-port", type=_port, metavar="PORT", help="ssh's port")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh's key")
    add(
        "--network-interfaces", default="", metavar="A,B",
        help="the only ones to use; of each host those that it has",
    )
    add("--network-interface", action="append", default=[], metavar="A", help="one of them")
    add(
        "--host-timeout", type=_silence, default=4.0, metavar="S",
        help="s without a sign of life after which a host counts as lost (default 4, at least "
        f"{_LEAST_SILENCE_S:g})",
    )


def _add_questions(made: argparse._ArgumentGroup) -> None:
    add = made.add_argument
    add("--dry-run", action="store_true", help="print what would be started")
    add("--check-build", "-cb", action="store_true", help="show what is built and found")
    add(
        "--postmortem", metavar="DIR", default="",
        help="show what the flight recorders in DIR (HORON_POSTMORTEM_DIR) hold",
    )
    add(
        "--merge-timelines", metavar=("OUT", "FILE"), nargs="+", action=_Files, default=(),
        help="make one timeline of those of hosts that share no file system",
    )
    add(
        "--plot-autotune", metavar="LOG", default="",
        help="draw how autotuning went, beside its log (HORON_AUTOTUNE_LOG), as LOG's name.png",
    )
    add(
        "--print-completion", metavar="SHELL", choices=SHELLS,
        help='print completions: eval "$(horonrun --print-completion bash)"; or zsh',
    )
    add("-v", "--version", action=_Version, nargs=0, help="show the version")


def _add_settings(made: argparse._ArgumentGroup) -> None:
    collect = {"action": _SetVariable, "dest": "variables", "default": {}}
    for one in SETTINGS:
        made.add_argument(
            one.option, type=str if one.factor is None else number, metavar="X",
            const=(one.variable, one.factor),
            help=f"{one.variable}: {one.meaning}", **collect,
        )
    for switch in SWITCHES:
        _add_switch(made, switch, collect)
    made.add_argument(
        "--log-level", type=_levels, choices=_LOG_LEVELS, metavar="LEVEL",
        help="HORON_LOG: what is logged, such as info, or warn,negotiator=trace",
    )


def _add_switch(made: argparse._ArgumentGroup, switch: Switch, collect: dict) -> None:
    for names, value in zip((switch.yes, switch.no), switch.values, strict=True):
        made.add_argument(
            *names, nargs=0, const=(switch.variable, value),
            help=f"{switch.variable}={value}: {switch.meaning}", **collect,
        )


def _add_idle(made: argparse.ArgumentParser, one: Idle) -> None:
    """Not in --help, which would be half of them; docs/configuration.md has them."""
    collect = {
        "action": _NoteIdle, "dest": "idle", "default": [], "const": one.why,
        "help": argparse.SUPPRESS,
    }
    if one.takes is None:
        made.add_argument(one.option, nargs=0, **collect)
        made.add_argument(f"--no-{one.option[2:]}", action="store_true", help=argparse.SUPPRESS)
    else:
        kind = number if one.takes is float else str
        made.add_argument(one.option, type=kind, **collect)
