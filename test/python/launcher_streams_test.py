"""horonrun where its own files and streams are full, closed or missing: one line, no traceback."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from launching import LIMIT_S, command_line, environment, horonrun


@pytest.mark.parametrize("command, code", [
    (["-np", "2", "yes"], 128 + signal.SIGPIPE), (["--check-build"], 2),
])
def test_a_full_disk_is_one_line(command: list[str], code: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command_line(*command), env=environment(), stdout=full, text=True,
                              stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "No space left on device" in done.stderr


@pytest.mark.parametrize("closed, out, says_why", [
    ("<&-", "[0] a\n", True), (">&-", "", True), ("2>&-", "[0] text\n[0] a\n", False),
    ("<&- >&- 2>&-", "", False),
])
def test_closed_standard_streams(closed: str, out: str, says_why: bool) -> None:
    """Nothing else of horonrun's may get their numbers; the others work."""
    rank = ["sh", "-c", "cat; echo a; echo b >&2; exit 3"]
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *command_line("-np", "1", *rank)]
    done = subprocess.run(shell, env=environment(), input="text\n", capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (3, out), done
    assert ("horonrun: rank 0 exited with code 3" in done.stderr) == says_why, done


def test_a_recorder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank-0.rec").mkdir()
    done = horonrun("--postmortem", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"horonrun: cannot read {tmp_path}/rank-0.rec: Is a directory\n"


def test_a_folder_for_reports_that_cannot_be(tmp_path: Path) -> None:
    done = horonrun("-np", "1", "sh", "-c", "exit 3", HORON_POSTMORTEM_DIR="/proc/nothing")
    assert done.returncode == 3
    assert "no report in HORON_POSTMORTEM_DIR=/proc/nothing: No such file" in done.stderr
