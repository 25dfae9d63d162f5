"""What the other ranks hear when one fails, on one host. bodies/failures.py is the program."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
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
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


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
    return {int(rank): text for rank, text in re.findall(r"^\[\d+\] rank (\d+): (\w+: .*)$", output, re.M)}


@pytest.mark.parametrize(
    ("failure", "code", "culprit", "sentence"),
    [
        ("raising", 1, 2, "rank 2 raised ValueError: bad batch"),
        ("killed", 137, 1, "rank 1 was killed by signal 9 (SIGKILL)"),
    ],
)
def test_the_others_hear_what_became_of_a_rank(failure, code, culprit, sentence):
    returned, output = run(failure)
    heard = errors(output)
    assert set(heard) == {0, 1, 2} - {culprit}, output
    assert all(text == f"HoronUnavailable: {sentence}" for text in heard.values()), output
    assert returned == code, output
    assert f"horonrun: rank {culprit} " in output


def test_a_stopped_rank_is_given_up_and_the_job_ends():
    begun = time.monotonic()
    returned, output = run("stopped", HORON_STALL_SILENCE_SECONDS="2")
    heard = errors(output)
    assert set(heard) == {0, 2}, output
    # horonrun sees it at once, the other ranks ask: whoever is first
    assert all(re.search("rank 1 has (been stopped|not answered)", text) for text in heard.values()), output
    assert returned not in (0, None), output
    assert "horonrun: rank 1 has " in output, output
    assert time.monotonic() - begun < 60


def test_the_flight_recorders_tell_what_each_rank_did_last(tmp_path):
    _, output = run("killed", HORON_POSTMORTEM_DIR=str(tmp_path))
    made = re.search(rf"what each rank did last: ({tmp_path}\S*/report.txt)", output)
    assert made, output
    report = Path(made[1]).read_text(encoding="utf-8")
    assert "rank 1 was killed by signal 9 (SIGKILL)" in report
    for rank in range(NP):
        own = report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0]
        assert re.search(r"submitted +allreduce.first \(4000 bytes\)", own), report
        assert re.search(r"finished +0/allreduce.first \(1 tensors\)", own), report
        timeline = (Path(made[1]).parent / f"rank-{rank}.txt").read_text(encoding="utf-8")
        assert "joined     shm, negotiating over shm (3 ranks)" in timeline
    assert "submitted  allreduce.x" not in report.split("\nrank 1 on ")[1].split("\nrank ")[0]


def test_recorders_outlive_a_plain_mpirun(tmp_path, needs_mpi):
    """MPI itself ends the job then; the recorders lie in files, and say who was missing."""
    command = [*_command("mpirun", NP), sys.executable, str(BODY)]
    variables = {"HORON_TEST_FAILURE": "killed", "HORON_POSTMORTEM_DIR": str(tmp_path)}
    output = run_job(command, NP, variables, LIMIT_S, expect_done=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rank-{rank}.rec" for rank in range(NP)
    ], output
    horonrun = [sys.executable, "-m", "horon.launcher", "--postmortem", str(tmp_path)]
    report = subprocess.run(horonrun, cwd="/", capture_output=True, text=True, check=True,
                            timeout=LIMIT_S).stdout
    of = {rank: report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0] for rank in range(NP)}
    assert all("submitted  allreduce.first (4000 bytes)" in own for own in of.values()), report
    assert "allreduce.x" not in of[1], report  # the others may have been ended before they got there


def test_ranks_that_took_different_ways_are_told_and_go_on():
    returned, output = run("diverging")
    heard = errors(output)
    assert set(heard) == {0, 1, 2}, output
    assert "tensor 'allreduce.a' was submitted by rank 1, but rank 0 waits for 'allreduce.b'" in heard[1]
    assert "but rank 1 waits for 'allreduce.a'" in heard[0]
    assert all(text.startswith("HoronMismatch") for text in heard.values())
    assert {f"rank {rank} went on" for rank in range(NP)} <= set(re.findall(r"rank \d went on", output))
    assert returned == 3


def test_sigusr1_tells_what_is_pending_and_what_the_missing_rank_does(tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    process = start("described", HORON_TEST_FIFO=str(fifo))
    hang = threading.Timer(LIMIT_S, process.terminate)  # ends the loop below
    hang.start()
    try:
        seen = ""
        for line in process.stdout:
            seen += line
            if "missing: rank 1" in line:
                break
        assert "tensor 'allreduce.late': submitted by rank" in seen, seen
        assert "missing: rank 1 is busy; it last submitted 'allreduce.first'" in seen, seen
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, seen + rest
    finally:
        hang.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
