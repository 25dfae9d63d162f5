"""Jobs on several hosts, which are namespaces of this machine (test/support/world.sh)."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BODIES = HERE / "bodies"
WORLD = HERE.parent / "support" / "world.sh"
LIMIT_S = 90


@dataclass(frozen=True)
class Done:
    """How a command in a world ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def all(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


def in_world(hosts: int, *command: str, limit_s: float = LIMIT_S, **changes: str) -> Done:
    """Runs a command on h1 of a world; whatever is left of it dies with the world."""
    start = time.monotonic()
    process = subprocess.Popen(
        [str(WORLD), str(hosts), *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **changes},
        cwd="/",
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"not done after {limit_s} s: {' '.join(command)}\n{out}\n{err}")
    return Done(process.returncode, out, err, time.monotonic() - start)


def horonrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "horon.launcher", *arguments]


def host_list(hosts: int, each: int) -> str:
    return ",".join(f"h{i}:{each}" for i in range(1, hosts + 1))


@functools.cache
def why_no_world() -> str:
    """Why there can be no world here; empty if there can."""
    try:
        done = subprocess.run(
            [str(WORLD), "2", "true"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else said[-1] if said else f"exit code {done.returncode}"


@pytest.fixture
def world(needs_mpi) -> Callable[..., Done]:
    """world(hosts, *command, limit_s=90, **variables): see in_world."""
    if why_no_world():
        pytest.skip(f"no namespaces for a world of several hosts: {why_no_world()}")
    return in_world


def all_done(done: Done, np: int) -> None:
    """An exit code of 0 alone proves nothing: each rank must have printed "done RANK"."""
    ranks = sorted(int(rank) for rank in re.findall(r"^done (\d+)$", done.out, re.MULTILINE))
    assert done.code == 0 and ranks == list(range(np)), done.all
