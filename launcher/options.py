"""The command line of horonrun, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import arguments
from .hosts import (
    Host,
    check_names,
    from_file,
    from_list,
    from_slurm,
    is_this_machine,
    listed,
    place,
)
from .interfaces import addresses_by_name, described
from .refusal import Refusal
from .surroundings import refuse_nested


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
    timelines: Sequence[str] = ()  # the one to write, those that it is made of
    tuning_log: str = ""  # of autotuning, that is to be drawn
    completion: str = ""  # the shell that completions are printed for
    variables: dict[str, str] = field(default_factory=dict)  # HORON_* set by options
    mpi_args: list[str] = field(default_factory=list)
    binding_args: list[str] = field(default_factory=list)
    timestamps: bool = False
    output_folder: str = ""
    remarks: list[str] = field(default_factory=list)  # for the user, before the job
    task_socket: int | None = None  # to the program that called horon.run
    task: int | None = None  # descriptor of the function that came through it


def _use_mpi(
    asked: str | None, np: int, hosts: list[Host], environment: Mapping[str, str]
) -> bool:
    set_to = environment.get("HORON_CONTROLLER", environment.get("HOROVOD_CONTROLLER", ""))
    controller = asked or set_to.lower()
    local_size = environment.get("HORON_LOCAL_SIZE", "")
    # Blocks of ranks that pretend to be nodes talk to each other over MPI.
    blocks = local_size.isdigit() and 0 < int(local_size) < np
    if (blocks or hosts) and controller in ("shm", "gloo"):
        what = f"{len(hosts)} hosts" if hosts else f"HORON_LOCAL_SIZE={local_size} with {np} ranks"
        raise Refusal(
            f"{what} means several nodes, which negotiate over MPI: "
            + ("leave out --gloo" if asked else f"unset HORON_CONTROLLER={controller}")
        )
    return controller == "mpi" or blocks or bool(hosts)


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


def _interfaces(text: str, several_hosts: bool) -> list[str]:
    """Of several hosts each takes those that it has; crew.py looks whether each name is one's."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = addresses_by_name()
    missing = [name for name in names if not found.get(name)]
    if missing and (len(missing) == len(names) or not several_hosts):
        raise Refusal(
            f"--network-interfaces {','.join(missing)}: host {socket.gethostname()} has no such "
            f"interface with an address; it has {described(found)}"
        )
    return names


def _start_seconds(variables: Mapping[str, str], environment: Mapping[str, str]) -> float:
    """A wrong one is refused by the library (library.py), which knows its name."""
    for text in (
        variables.get("HORON_START_TIMEOUT"),
        environment.get("HORON_START_TIMEOUT"),
        environment.get("HOROVOD_START_TIMEOUT"),
    ):
        if text:
            try:
                return min(max(float(text), 1.0), 1e6)
            except ValueError:
                break
    return 60.0


def _command(words: list[str], advise: tuple[str, str] | None) -> list[str]:
    command = words[1:] if words[:1] == ["--"] else words
    if advise:
        if command:
            raise Refusal("--advise is in place of a command: leave the command out")
        return [sys.executable, "-m", "horon.advised", *advise]
    if not command:
        raise Refusal("the command is missing, as in horonrun -np 4 python train.py")
    if command[0] in ("python", "python3"):
        # The Python that horonrun runs in, whatever PATH says: it is the one that has horon.
        command = [sys.executable, *command[1:]]
    return command


def _variables(parsed: argparse.Namespace) -> dict[str, str]:
    variables = dict(parsed.variables)
    if parsed.log_level:
        variables["HORON_LOG"] = parsed.log_level
    if parsed.controller is not None:
        variables["HORON_CONTROLLER"] = parsed.controller
    if parsed.explain:
        variables["HORON_EXPLAIN"] = "1"
    if parsed.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    return variables


def _remarks(
    parsed: argparse.Namespace,
    variables: Mapping[str, str],
    environment: Mapping[str, str],
    hosts: list[Host],
    use_mpi: bool,
) -> list[str]:
    """On what was given and does nothing, and on what was found and decides."""
    found = list(parsed.idle)
    if hosts and parsed.hosts is None and parsed.hostfile is None:
        found.append(f"Slurm job {environment.get('SLURM_JOB_ID', '?')}: "
                     f"{sum(host.slots for host in hosts)} ranks on {listed(hosts)}")
    samples = [x for x in variables if x.startswith("HORON_AUTOTUNE_") and not x.endswith("_FILE")]
    if samples and not {"HORON_AUTOTUNE", "HOROVOD_AUTOTUNE"} & {*variables, *environment}:
        found.append(f"{', '.join(samples)} set without --autotune: nothing is tuned")
    if (parsed.mpi_args or parsed.binding_args) and not use_mpi:
        found.append("--mpi-args and --binding-args have no effect: this job needs no mpirun")
    return found


def _rsh_agent(parsed: argparse.Namespace) -> str:
    agent = ["ssh"]
    if parsed.ssh_port is not None:
        agent += ["-p", str(parsed.ssh_port)]
    if parsed.ssh_identity_file is not None:
        agent += ["-i", parsed.ssh_identity_file]
    if len(agent) == 1:
        return parsed.rsh_agent
    if parsed.rsh_agent:
        raise Refusal("--rsh-agent is not ssh: put --ssh-port, --ssh-identity-file into its words")
    return shlex.join(agent)


def words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refusal(f"{option} '{text}': {error}") from None


def _read(argv: list[str]) -> argparse.Namespace:
    """The command line over the config file that it names."""
    parser = arguments.parser()
    parsed = parser.parse_args(argv)
    if not parsed.config_file:
        return parsed
    from . import config_file

    return parser.parse_args(argv, config_file.read(parsed.config_file, parser))


def parse(argv: list[str], environment: Mapping[str, str]) -> Options:
    """Options of a command line, or a Refusal."""
    parsed = _read(argv)
    asked = (parsed.check_build, parsed.postmortem, parsed.plot_autotune, parsed.print_completion,
             parsed.merge_timelines)
    if any(asked):
        return Options(
            np=1,
            command=[],
            check_build=parsed.check_build,
            postmortem=parsed.postmortem,
            timelines=parsed.merge_timelines,
            tuning_log=parsed.plot_autotune,
            completion=parsed.print_completion or "",
        )
    refuse_nested(environment)
    variables = _variables(parsed)
    start_s = _start_seconds(variables, environment)
    hosts, np = _hosts(parsed, environment, start_s)
    use_mpi = _use_mpi(parsed.controller, np, hosts, environment)
    return Options(
        np=np,
        command=_command(parsed.command, parsed.advise),
        use_mpi=use_mpi,
        hosts=hosts,
        interfaces=_interfaces(
            ",".join([parsed.network_interfaces, *parsed.network_interface]), bool(hosts)
        ),
        rsh_agent=_rsh_agent(parsed),
        start_s=start_s,
        silence_s=parsed.host_timeout,
        prefix=not (parsed.no_prefix or parsed.advise),
        grace_s=min(parsed.grace_period, 1e6),
        dry_run=parsed.dry_run,
        verbose=parsed.verbose,
        variables=variables,
        mpi_args=words("--mpi-args", parsed.mpi_args),
        binding_args=words("--binding-args", parsed.binding_args),
        timestamps=parsed.timestamps,
        output_folder=parsed.output_filename,
        remarks=_remarks(parsed, variables, environment, hosts, use_mpi),
        task_socket=parsed.task_socket,
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
