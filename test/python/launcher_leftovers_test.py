"""What a rank has started in a session of its own: no process group holds it, and it ends with the
job all the same."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import (
    LIMIT_S,
    ROOT,
    alive,
    command_line,
    environment,
    horonrun,
    wait_until,
)

sys.path.insert(0, str(ROOT))

from launcher import marks  # noqa: E402

pytestmark = pytest.mark.alone

# Starts a sleeper that notes its pid. $0 is the note, $1 where the sleeper's output goes, $2 what
# the rank does then.
RANK = """
setsid sh -c 'echo $$ > "$0.part"; mv "$0.part" "$0"; exec sleep 100' "$0" $1 &
while [ ! -e "$0" ]; do sleep 0.01; done
$2
"""


def rank(note: Path, then: str, output: str = "held") -> list[str]:
    """The command of a rank whose sleeper holds its output, or does not."""
    redirected = RANK.replace("$1", "" if output == "held" else "> /dev/null 2>&1")
    return ["sh", "-c", redirected.replace("$2", then), str(note)]


@contextmanager
def running(note: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job whose sleeper is there."""
    with subprocess.Popen(command_line(*command), env=environment()) as process:
        try:
            assert wait_until(note.exists, LIMIT_S) and alive(int(note.read_text()))
            yield process
        finally:
            process.kill()


@contextmanager
def sleeping(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that bears it."""
    with subprocess.Popen(["sleep", "100"], env=environment(HORON_JOB=mark)) as process:
        try:
            yield process
        finally:
            process.kill()


def gone(note: Path, seconds: float = 2) -> bool:
    pid = int(note.read_text())
    found = wait_until(lambda: not alive(pid), seconds)
    if not found:
        os.kill(pid, signal.SIGKILL)
    return found


@pytest.mark.parametrize("output", ["held", "not held"])
@pytest.mark.parametrize("code", [0, 3])
def test_it_ends_with_the_ranks(tmp_path: Path, code: int, output: str) -> None:
    note = tmp_path / "pid"
    done = horonrun("-np", "1", *rank(note, f"exit {code}", output))
    assert done.returncode == code and gone(note, 0)


def test_it_ends_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    done = horonrun("-np", "1", *rank(note, "kill -9 $$"))
    assert done.returncode == 128 + signal.SIGKILL and gone(note, 0)


@pytest.mark.parametrize("then", ["wait", "trap '' INT TERM; while :; do sleep 1; done"])
def test_it_ends_with_ctrl_c(tmp_path: Path, then: str) -> None:
    note = tmp_path / "pid"
    with running(note, "-np", "1", *rank(note, then)) as process:
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert time.monotonic() - start < 2
    assert gone(note, 0)


@pytest.mark.parametrize("output", ["held", "not held"])
def test_it_ends_with_a_killed_launcher(tmp_path: Path, output: str) -> None:
    note = tmp_path / "pid"
    with running(note, "-np", "1", *rank(note, "wait", output)) as process:
        process.kill()
        assert gone(note)


def test_popen_with_a_session_of_its_own(tmp_path: Path) -> None:
    """As Python programs do it; the sleeper has just become its program."""
    note = tmp_path / "pid"
    body = ("import os, subprocess, sys; open(sys.argv[1], 'w').write(str(subprocess.Popen("
            "['sleep', '100'], start_new_session=True).pid)); os._exit(0)")
    for _ in range(3):
        assert horonrun("-np", "1", "python", "-c", body, str(note)).returncode == 0
        assert gone(note, 0)


def test_it_serves_other_ranks_to_the_end(tmp_path: Path) -> None:
    note, over = tmp_path / "pid", tmp_path / "over"
    os.mkfifo(over)
    body = (f"if [ $HORON_RANK = 0 ]; then {rank(note, ':')[2]} else cat < {over}; "
            f'kill -0 $(cat "$0"); fi')
    with running(note, "-np", "2", "--verbose", "sh", "-c", body, str(note)) as process:
        # Rank 0 has ended once only its sleeper bears its mark.
        mine = f"HORON_JOB={_mark_of(int(note.read_text()))}".encode()
        assert wait_until(lambda: _bearers(mine) == [int(note.read_text())], LIMIT_S)
        over.write_text("\n")
        assert process.wait(LIMIT_S) == 0  # rank 1 has found it
    assert gone(note, 0)


def test_others_are_left_alone(tmp_path: Path) -> None:
    """A process of another job, and one that gave the mark away."""
    other, own = tmp_path / "other", tmp_path / "own"
    with running(other, "-np", "1", *rank(other, "wait")):
        command = rank(own, ":", "not held")
        command[2] = command[2].replace("setsid", "env -u HORON_JOB setsid")
        assert horonrun("-np", "1", *command).returncode == 0
        assert alive(int(other.read_text())) and not gone(own, 0)


def test_a_job_in_a_rank_ends_with_it(tmp_path: Path) -> None:
    """Its ranks have a mark of their own, which begins with that of the rank around it."""
    note = tmp_path / "pid"
    inner = shlex.join(command_line("-np", "1", "sh", "-c", "sleep 100 & wait"))
    body = f"setsid {inner} & echo $! > {note}.part; mv {note}.part {note}; sleep 100"
    with running(note, "-np", "1", "sh", "-c", body) as process:
        nested = f"HORON_JOB={_mark_of(int(note.read_text()))}".encode()
        inside = re.compile(re.escape(nested) + rb"[0-9a-f]{32}\.0/\0")
        assert wait_until(lambda: any(inside.search(marks._read(pid, "environ") or b"")
                                      for pid in marks._processes()), LIMIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
        assert wait_until(lambda: not _bearers(nested), 1)


def test_a_mark_is_its_jobs_and_ranks_only() -> None:
    job, other = marks.of_job({}), marks.of_job({})
    assert job != other and marks.of_rank(job, 1).startswith(job)
    assert not marks.of_rank(job, 11).startswith(marks.of_rank(job, 1))
    inside = marks.of_job({marks.VARIABLE: marks.of_rank(job, 1)})
    assert inside.startswith(marks.of_rank(job, 1))


def test_who_starts_during_a_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = marks.of_job({})
    with sleeping(mark) as process:
        looks = [set()]
        monkeypatch.setattr(marks, "_processes", lambda: looks.pop() if looks else {process.pid})
        marks.end_all(mark)
        assert process.wait(2) == -signal.SIGKILL


def test_the_mark_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that has become another process's is not signalled."""
    with sleeping("none") as process:
        entry = b"HORON_JOB=x."
        monkeypatch.setattr(marks, "_processes", lambda: {process.pid})
        looks = [entry]
        monkeypatch.setattr(marks, "_read", lambda pid, name: looks.pop() if looks else b"A=b")
        marks.end_all("x.")
        assert looks == [] and process.poll() is None


@pytest.mark.parametrize("python_has_them", [True, False])
def test_without_descriptors_of_processes(
    monkeypatch: pytest.MonkeyPatch, python_has_them: bool
) -> None:
    def refuse(pid: int) -> int:
        raise OSError

    if python_has_them:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    mark = marks.of_job({})
    with sleeping(mark) as process:
        marks.end_all(mark)
        assert process.wait(2) == -signal.SIGKILL


def test_a_job_that_a_rank_has_submitted_is_left_alone() -> None:
    mark = marks.of_job({})
    slurm = environment(HORON_JOB=mark, SLURM_JOB_ID="7")
    with subprocess.Popen(["sleep", "100"], env=slurm) as process:
        entry = f"HORON_JOB={mark}".encode()
        assert wait_until(lambda: process.pid in _bearers(entry), LIMIT_S)
        marks.end_all(mark)
        assert process.poll() is None
        process.kill()


def _mark_of(pid: int) -> str:
    """Not while it is becoming another program: its environment is empty then."""
    found = []

    def look() -> bool:
        variables = (marks._read(pid, "environ") or b"").split(b"\0")
        found.extend(v for v in variables if v.startswith(b"HORON_JOB="))
        return bool(found)

    assert wait_until(look, LIMIT_S)
    return found[0].partition(b"=")[2].decode()


def _bearers(entry: bytes) -> list[int]:
    return [pid for pid in marks._processes() if entry in (marks._read(pid, "environ") or b"")]
