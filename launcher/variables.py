"""The ranks' environment: what horonrun adds, and what of its own goes to other hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

from .options import Options, cores
from .prefixes import python_prefixes

# Say which rank a process is: those of a job that starts another one are not for its ranks.
OF_A_RANK = frozenset("HORON_RANK HORON_SIZE HORON_LOCAL_RANK HORON_LAUNCHER_FD".split())
# Of a host or a login, not of the job. Keepers have their own, and mpirun sees to some.
_STAY_HERE = OF_A_RANK | frozenset(
    "HOME HOSTNAME LOGNAME MAIL OLDPWD PWD SHELL SHLVL TMPDIR USER DISPLAY XAUTHORITY _ "
    "PATH LD_LIBRARY_PATH PYTHONPATH".split()
)
_STAY_HERE_PREFIXES = tuple(
    "BASH_FUNC_ DBUS_ OMPI_ OPAL_ PMIX_ PRTE_ SLURM_ SSH_ XDG_".split()
)


def shared_variables(options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that all ranks get, however and wherever they are started."""
    added = dict(options.variables)
    added["HORON_PYTHON_PREFIX"] = python_prefixes()
    if "PYTHONUNBUFFERED" not in environment:
        added["PYTHONUNBUFFERED"] = "1"  # lines appear when they are printed, also before a crash
    if "COLUMNS" not in environment and sys.stderr.isatty():
        # Ranks write to pipes; progress bars take the width from here. Room for "[12] ".
        room = len(f"[{options.np - 1}] ") if options.prefix else 0
        added["COLUMNS"] = str(max(20, shutil.get_terminal_size().columns - room - 1))
    return added


def thread_variables(local_size: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Every rank would otherwise start a thread for each core of its host, and they would fight."""
    if "OMP_NUM_THREADS" in environment:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores() // local_size))}


def travels(name: str) -> bool:
    """Whether a variable of horonrun's environment is for the ranks of other hosts, too."""
    return name not in _STAY_HERE and not name.startswith(_STAY_HERE_PREFIXES)
