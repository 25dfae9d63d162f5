"""horonrun where its own files and streams are full, closed or missing: one line, no traceback; and
where nobody reads what it writes."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_protocol_test import PROLOGUE
from launching import LIMIT_S, command_line, environment, horonrun, wait_until

# Writes for ever; the size of its file is how often. When it is interrupted that file has the time.
FLOOD = """
    import itertools, os, signal, sys, time
    note = os.open(os.path.join(sys.argv[1], os.environ["HORON_RANK"]), os.O_WRONLY | os.O_CREAT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for count in itertools.count(1):
            os.write(1, b"x" * 99 + b"\\n")
            os.truncate(note, count)
    except KeyboardInterrupt:
        os.truncate(note, 0)
        os.write(note, str(time.monotonic()).encode())
"""


@pytest.mark.parametrize("command, code", [
    (["-np", "2", "yes"], 128 + signal.SIGPIPE), (["--check-build"], 2),
])
def test_a_full_disk_is_one_line(command: list[str], code: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command_line(*command), env=environment(), stdout=full, text=True,
                              stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "No space left on device" in done.stderr


def test_ranks_end_in_their_time_where_nothing_can_be_said(tmp_path: Path) -> None:
    note, ready = tmp_path / "note", tmp_path / "ready"
    body = (f"test $HORON_RANK = 0 && {{ until test -e {ready}; do sleep 0.05; done; exit 3; }}; "
            f"trap 'sleep 0.3; echo ended > {note}; exit' TERM; touch {ready}; "
            "while :; do sleep 0.1; done")
    with open("/dev/full", "wb") as full:
        subprocess.run(command_line("-np", "2", "--grace-period", "0.2", "sh", "-c", body),
                       env=environment(), stderr=full, timeout=LIMIT_S, check=False)
    assert note.read_text() == "ended\n"


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


# --- a reader that stands still -------------------------------------------------------------------


@pytest.fixture(params=["pipe", "pipe that does not block", "socket", "terminal"])
def unread(request) -> Iterator[tuple[int, int]]:
    """Descriptors: one to read from, which nobody does, and one to write to."""
    if request.param == "terminal":
        ours, theirs = pty.openpty()
    elif request.param == "socket":
        ours, theirs = (end.detach() for end in socket.socketpair())
    else:
        ours, theirs = os.pipe()
    os.set_blocking(theirs, request.param != "pipe that does not block")
    yield ours, theirs
    for descriptor in (ours, theirs):
        os.close(descriptor)


def stand_still(paths: list[Path], seconds: float = 0.5) -> None:
    """Waits until these files have not changed for so long."""
    sizes, since, end = [], time.monotonic(), time.monotonic() + LIMIT_S
    while time.monotonic() < min(end, since + seconds):
        now = [path.stat().st_size if path.exists() else 0 for path in paths]
        if now != sizes or 0 in now:
            sizes, since = now, time.monotonic()
        time.sleep(0.02)


@pytest.mark.alone
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_while_nobody_reads(tmp_path: Path, unread, number: int, code: int) -> None:
    """Neither the ranks' output nor horonrun's own words keep the ranks from their signals."""
    command = command_line("-np", "2", "--verbose", "python", "-c", textwrap.dedent(FLOOD),
                           str(tmp_path))
    notes = [tmp_path / rank for rank in "01"]
    process = subprocess.Popen(command, env=environment(), stdout=unread[1], stderr=unread[1])
    try:
        stand_still(notes)
        written = [note.stat().st_size for note in notes]
        start = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == code
        assert time.monotonic() - start < 2
    finally:
        process.kill()
        process.wait()
    assert all(100 * count < 1 << 20 for count in written)  # they had to wait
    assert all(float(note.read_text()) - start < 0.6 for note in notes)


def test_a_death_is_told_while_nobody_reads(tmp_path: Path, unread) -> None:
    """Rank 2 writes until it has to wait; then rank 1 dies, and rank 0 hears of it."""
    program, flood, go, told = (tmp_path / name for name in ("rank.py", "flood", "go", "told"))
    os.mkfifo(go)
    program.write_text(PROLOGUE + textwrap.dedent(f"""
        if rank == 0:
            make_segment(b"x")
            said = take()[0]
            with open("{told}.part", "w") as file: file.write(said)
            os.rename("{told}.part", "{told}")
            signal.pause()
        take()
        if rank == 1:
            open("{go}").read()
            os.kill(os.getpid(), signal.SIGKILL)
        with open("{flood}", "wb", buffering=0) as note:
            while True:
                os.write(1, b"x" * 99 + b"\\n")
                note.write(b"x")
        """))
    process = subprocess.Popen(command_line("-np", "3", "--verbose", "python", str(program)),
                               env=environment(), stdout=unread[1], stderr=unread[1])
    try:
        stand_still([flood])
        go.write_text("")
        assert wait_until(told.exists, 2)
        assert told.read_text() == "dead 1 rank 1 was killed by signal 9 (SIGKILL)"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130


def test_nohup_keeps_it_from_hanging_up() -> None:
    with subprocess.Popen(["nohup", *command_line("-np", "1", "sh", "-c", "echo up; read end")],
                          env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "[0] up\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("end\n")
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def test_a_reader_that_comes_late_misses_nothing(unread) -> None:
    """Also where writing does not block: that it cannot be done now is no error."""
    rank = ["python", "-c", "for i in range(20000): print(i, 'x' * 50)"]
    with subprocess.Popen(command_line("-np", "2", *rank), env=environment(), stdout=unread[1],
                          stderr=subprocess.PIPE, text=True) as process:
        time.sleep(1)
        text = b""
        while text.count(b"\n") < 40000 and select.select([unread[0]], [], [], 10)[0]:
            text += os.read(unread[0], 1 << 16)
        assert process.wait(LIMIT_S) == 0, process.stderr.read()
    # On a terminal unfinished lines are overwritten.
    lines = [line.split("\r")[-1] for line in text.decode().replace("\r\n", "\n").split("\n")]
    for number in range(2):
        mine = [line for line in lines if f"[{number}] " in line]
        assert len(mine) == 20000 and all(line.endswith("x" * 50) for line in mine)


def test_what_ranks_say_when_they_are_interrupted_is_whole() -> None:
    body = """
        import signal, time
        try: print("up", flush=True); signal.pause()
        except KeyboardInterrupt: print("\\n".join(str(i) for i in range(20000)))
    """
    command = command_line("-np", "1", "--no-prefix", "python", "-c", textwrap.dedent(body))
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split() == [str(i) for i in range(20000)]
        assert process.wait(LIMIT_S) == 130
