"""horonrun out of the sources, for tests of the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60  # nothing here takes so long; a hang is a failure


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HORON_", "HOROVOD_", "OMPI_", "OMP_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "launcher", *arguments]


def horonrun(
    *arguments: str, before: str = ":", **changes: str
) -> subprocess.CompletedProcess[str]:
    """`before`: what a shell does first."""
    shell = ["/bin/sh", "-c", f'{before}; exec "$@"', "sh", *command_line(*arguments)]
    return subprocess.run(shell, env=environment(**changes),
                          capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


def alive(pid: int) -> bool:
    """Not a process that has ended, whether or not somebody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to that. For what nothing tells of, such as the end of others' processes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
