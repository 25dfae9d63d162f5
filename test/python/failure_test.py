"""What the other ranks hear when one fails, on one host. bodies/failures.py is the program."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import _command, run_job

BODY = Path(__file__).resolve().parent / "bodies" / "failures.py"
NP = 3
LIMIT_S = 90


def start(failure, **variables):
    command = [sys.executable, "-m", "horon.launcher", "-np", str(NP), "--grace-period", "5",
               "python", str(BODY)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HORON_TEST_FAILURE": failure, **variables}
    return subprocess.Popen(command, env=environment, text=True, cwd="/", stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            start_new_session=True)


def run(failure, **variables):
    process = start(failure, **variables)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"{failure} hung:\n{process.communicate()[0]}")
    return process.returncode, output


def errors(output):
    """What each rank raised: rank -> "Type: sentence"."""
    found = re.findall(r"^\[\d+\] rank (\d+): (\w+: .*)$", output, re.M)
    return {int(rank): text for rank, text in found}


@contextmanager
def watched(failure, **variables):
    """A job that the test reads from while it runs; ended when that takes too long."""
    process = start(failure, **variables)
    hang = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    hang.start()
    try:
        yield process
    finally:
        hang.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


GONE, MISMATCH = "HoronUnavailable: ", "HoronMismatch: "
# What a rank does: exit code of the job, ranks that hear of it, what they hear, who goes on.
VERDICTS = {
    "diverging": (3, {0, 1, 2}, MISMATCH + "tensor 'allreduce.[ab]' was submitted by .*, but rank "
                  "[01] waits for 'allreduce.[ab]'.*took different ways", {0, 1, 2}),
    "missing": (3, {0, 1, 2}, MISMATCH + "tensor 'allreduce.(extra|step)' was submitted by .*, but "
                "rank [01] waits for 'allreduce.(extra|step)'", {0, 1, 2}),
    "reshaped": (3, {0, 1, 2}, MISMATCH + r".*\[5\].*\[7\]|" + MISMATCH + r".*\[7\].*\[5\]",
                 {0, 1, 2}),
    # Rank 0 may have heard it and left before rank 2 comes; horonrun names rank 1 all the same.
    "finished": (3, {0, 2}, "HoronAborted: (tensor .allreduce.x. needs rank 1, which|rank 0) has "
                 "left the job", set()),
    "raising": (1, {0, 1}, GONE + "rank 2 raised ValueError: bad batch$", set()),
    "killed": (137, {0, 2}, GONE + r"rank 1 was killed by signal 9 \(SIGKILL\)$", set()),
    # horonrun sees it at once, the other ranks ask: whoever is first
    "stopped": (None, {0, 2}, GONE + "rank 1 has (been stopped|not answered).* for 2 s", set()),
}


@pytest.mark.parametrize("failure", VERDICTS)
def test_every_other_rank_gets_the_right_verdict(failure):
    code, ranks, sentence, going_on = VERDICTS[failure]
    returned, output = run(failure, HORON_STALL_SILENCE_SECONDS="2")
    heard = errors(output)
    assert set(heard) == ranks, output
    assert all(re.match(sentence, text) for text in heard.values()), output
    assert returned == code or (code is None and returned != 0), output
    assert {int(rank) for rank in re.findall(r"rank (\d) went on", output)} == going_on, output
    if not going_on:
        culprit = ({0, 1, 2} - ranks).pop()
        named = f"horonrun: rank {culprit} " if failure != "finished" else (
            f"horonrun: culprit: rank {culprit} had not submitted 'allreduce.x'")
        assert named in output and output.count("culprit: ") == (failure == "finished"), output


def test_the_flight_recorders_tell_what_each_rank_did_last(tmp_path):
    _, output = run("killed", HORON_POSTMORTEM_DIR=str(tmp_path))
    made = re.search(rf"what each rank did last: ({tmp_path}\S*/report.txt)", output)
    assert made, output
    report = Path(made[1]).read_text(encoding="utf-8")
    assert "culprit: rank 1 was killed by signal 9 (SIGKILL) (recorded by " in report
    for rank in range(NP):
        own = report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0]
        assert re.search(r"submitted +allreduce.first \(4000 bytes\)", own), report
        assert re.search(r"finished +0/allreduce.first \(1 tensors\)", own), report
        timeline = (Path(made[1]).parent / f"rank-{rank}.txt").read_text(encoding="utf-8")
        assert "joined     shm, negotiating over shm (3 ranks)" in timeline
    assert "submitted  allreduce.x" not in report.split("\nrank 1 on ")[1].split("\nrank ")[0]
    for folder in (tmp_path, Path(made[1]).parent):
        assert shown(folder).stdout.strip() == report.strip()
    nothing = shown(Path(made[1]).parent.parent / "none")
    assert nothing.returncode == 2 and "neither flight recorders" in nothing.stderr


def shown(folder):
    return subprocess.run(
        [sys.executable, "-m", "horon.launcher", "--postmortem", str(folder)], cwd="/",
        capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_recorders_outlive_a_plain_mpirun(tmp_path, needs_mpi):
    """MPI itself ends the job then; the recorders lie in files, and say who was missing."""
    command = [*_command("mpirun", NP), sys.executable, str(BODY)]
    variables = {"HORON_TEST_FAILURE": "killed", "HORON_POSTMORTEM_DIR": str(tmp_path)}
    output = run_job(command, NP, variables, LIMIT_S, expect_done=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rank-{rank}.rec" for rank in range(NP)
    ], output
    report = shown(tmp_path).stdout
    of = {rank: report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0] for rank in range(NP)}
    assert all("submitted  allreduce.first (4000 bytes)" in own for own in of.values()), report
    # The others may have been ended before they got there.
    assert "allreduce.x" not in of[1], report


def watch_for(process, pattern) -> str:
    """Reads what the job says until a line has the pattern; all of it."""
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    pytest.fail(f"no line with {pattern!r}:\n{seen}")


def test_a_busy_rank_is_reported_with_its_stack(tmp_path):
    """Again and again, until rank 1 comes; then the job goes on as if nothing had been."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("busy", HORON_TEST_FIFO=str(fifo), HORON_STALL_CHECK_TIME_SECONDS="1") as process:
        seen = watch_for(process, r"rank 1 is busy.*failures\.py:\d+ in busy, called from")
        assert "missing: rank 1 is busy; it last submitted 'allreduce.first'" in seen, seen
        assert "allreduce.late': submitted by ranks 0, 2" in seen, seen
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, seen + rest


def shown_by_top(pid):
    """The rows of `horonrun top`, by rank."""
    top = [sys.executable, "-m", "horon.launcher", "top", "--once", str(pid)]
    shown = subprocess.run(top, cwd="/", capture_output=True, text=True, check=True,
                           timeout=LIMIT_S).stdout.splitlines()
    assert shown[0] == f"job of process {pid}", shown
    return {int(line.split()[0]): line.split(maxsplit=5) for line in shown[2:]}


def test_top_shows_who_waits_in_a_job_that_hangs_and_its_end_names_the_culprit(tmp_path):
    """Interrupted while ranks 0 and 2 wait for rank 1."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("busy", HORON_TEST_FIFO=str(fifo),
                 HORON_STALL_CHECK_TIME_SECONDS="2.5") as process:
        watch_for(process, "rank 1 is busy")
        rows = shown_by_top(process.pid)
        assert set(rows) == {0, 1, 2}, rows
        for rank in (0, 2):
            assert rows[rank][5].startswith("waits for 'allreduce.late' since"), rows
            assert float(rows[rank][4]) < float(rows[1][4]), rows  # the straggler's score
        assert "allreduce.first" in rows[1][5] and rows[1][3] != rows[0][3], rows
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 130, rest
    assert ("horonrun: culprit: rank 1 had not submitted 'allreduce.late', for which rank 0, "
            "rank 2 waited at the end; it last submitted 'allreduce.first'") in rest, rest


def test_native_code_that_lets_no_python_run_is_called_that():
    with watched("native", HORON_STALL_CHECK_TIME_SECONDS="1") as process:
        watch_for(process, "rank 1 is busy.*its main thread is in native code that holds")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, rest


def test_sigusr1_tells_what_is_pending_and_what_the_missing_rank_does(tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("described", HORON_TEST_FIFO=str(fifo)) as process:
        seen = watch_for(process, "missing: rank 1")
        assert "tensor 'allreduce.late': submitted by rank" in seen, seen
        assert "missing: rank 1 is busy; it last submitted 'allreduce.first'" in seen, seen
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, seen + rest
