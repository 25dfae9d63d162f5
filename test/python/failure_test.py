"""What the other ranks hear when one fails or does not come, on one host. bodies/failures.py is the
program. The first two tests are the table of verdicts in docs/debugging.md."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import _command, in_full_tier, run_job

BODY = Path(__file__).resolve().parent / "bodies" / "failures.py"
NP = 3
LIMIT_S = 90


def start(failure, np=NP, way="shm", **variables):
    # Who raises ends by itself, on a busy machine too.
    grace_s = 5 if failure in ("busy", "busy_before_init") else 20
    command = [sys.executable, "-m", "horon.launcher", "-np", str(np), "--grace-period",
               str(grace_s), *(["--mpi"] if way == "mpi" else []), "python", str(BODY)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HORON_TEST_FAILURE": failure, **variables}
    return subprocess.Popen(command, env=environment, text=True, cwd="/", stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            start_new_session=True)


def run(failure, np=NP, way="shm", **variables):
    process = start(failure, np, way, **variables)
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
def watched(failure, np=NP, way="shm", **variables):
    """A job that the test reads from while it runs; ended when that takes too long."""
    process = start(failure, np, way, **variables)
    hang = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    hang.start()
    try:
        yield process
    finally:
        hang.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(params=[
    pytest.param((2, "shm"), id="2-shm"),
    pytest.param((4, "mpi"), id="4-mpi"),
    pytest.param((2, "mpi"), id="2-mpi", marks=in_full_tier),
    pytest.param((4, "shm"), id="4-shm", marks=in_full_tier),
])
def np_and_way(request):
    """Number of ranks, and how they negotiate. The first two are all a difference shows in."""
    if request.param[1] == "mpi":
        request.getfixturevalue("needs_mpi")
    return request.param


GONE, MISMATCH = "HoronUnavailable: ", "HoronMismatch: "
# What a rank does: exit code of the job, who it is (None: all go on), what the others hear.
VERDICTS = {
    "diverging": (3, None, MISMATCH + "tensor 'allreduce.[ab]' was submitted by .*, but rank "
                  r"\d waits for 'allreduce.[ab]'.*took different ways"),
    "missing": (3, None, MISMATCH + "tensor 'allreduce.(extra|step)' was submitted by .*, but "
                r"rank \d waits for 'allreduce.(extra|step)'"),
    "reshaped": (3, None, MISMATCH + r"Mismatched ALLREDUCE tensor shapes for tensor "
                 r"'allreduce.x': ranks? \[[0, 23]+\] ha(s|ve) shape \[5\], "
                 r"rank \[1\] has shape \[7\]\.$"),
    # Rank 0 may have heard it and left before others come.
    "finished": (3, 1, r"HoronAborted: (tensor .allreduce.x. needs rank 1, which has left the job: "
                 r"it called shutdown or its program ended \(.*join|rank 1 has left the job, and "
                 r"rank 0 after it \(.*join)"),
    "raising": (1, -1, GONE + r"rank \d raised ValueError: bad batch$"),
    "killed": (137, 1, GONE + r"rank 1 was killed by signal 9 \(SIGKILL\)$"),
    # horonrun sees it at once, the other ranks ask: whoever is first
    "stopped": (None, 1, GONE + "rank 1 has (been stopped|not answered).* for 2 s"),
}


# What a rank says of a death that it sees itself and has not been told of 0.3 s later: a machine
# that lets horonrun stand still for so long gets another try.
UNTOLD = "rank 1 ended without leaving the job ("

# Over MPI, that is, in the quick tier: one that MPI is told of, one that it is not, and none.
QUICK_OVER_MPI = ("killed", "stopped", "diverging")


@pytest.mark.parametrize("failure", VERDICTS)
def test_every_other_rank_gets_the_right_verdict(failure, np_and_way, tmp_path):
    np, way = np_and_way
    if way == "mpi" and failure not in QUICK_OVER_MPI and in_full_tier.args[0]:
        pytest.skip(in_full_tier.kwargs["reason"])
    code, who, sentence = VERDICTS[failure]
    culprit = None if who is None else range(np)[who]
    # Over MPI the recorders come only when somebody wants to see them.
    wants = {"HORON_POSTMORTEM_DIR": str(tmp_path)} if way == "mpi" else {}
    for _ in range(3):
        returned, output = run(failure, np, way, HORON_STALL_SILENCE_SECONDS="2", **wants)
        heard = errors(output)
        if not any(UNTOLD in text for text in heard.values()):
            break
    assert set(heard) == set(range(np)) - {culprit}, output
    assert all(re.match(sentence, text) for text in heard.values()), output
    if failure == "stopped":  # it is not waited for
        assert "still running" not in output, output
    if failure == "raising":
        assert all(f"rank {culprit} raised" in text for text in heard.values()), output
    assert returned == code or (code is None and returned != 0), output
    going_on = {int(rank) for rank in re.findall(r"rank (\d) went on", output)}
    assert going_on == (set(range(np)) if culprit is None else set()), output
    if culprit is not None:
        named = f"horonrun: rank {culprit} " if failure != "finished" else (
            f"horonrun: culprit: rank {culprit} had not submitted 'allreduce.x'")
        assert named in output and output.count("culprit: ") == (failure == "finished"), output


def test_what_a_rank_raises_before_init_is_heard_by_those_in_init():
    returned, output = run("raising_before_init")
    heard = errors(output)
    assert set(heard) == {0, 2}, output
    assert all(text.startswith(GONE) and text.endswith("rank 1 raised ValueError: no data")
               for text in heard.values()), heard
    assert returned == 1 and "horonrun: rank 1 raised ValueError: no data" in output, output


def test_what_a_rank_raises_is_heard_whoever_has_taken_the_hook():
    _, output = run("raising_with_a_hook_of_others", 2)
    assert errors(output)[0] == GONE + "rank 1 raised ValueError: bad batch", output


@pytest.mark.parametrize("offset", [0, 1])
def test_what_a_rank_raised_is_cut_between_characters_and_shows_it(offset):
    _, output = run("accents", HORON_TEST_OFFSET=str(offset))
    heard = errors(output)
    assert set(heard) == {0, 2}, output
    said = GONE + "rank 1 raised ValueError: " + "x" * offset + r"é{200,}\.\.\."
    assert all(re.fullmatch(said, text) for text in heard.values()), heard


def test_a_busy_rank_is_reported_with_its_stack(tmp_path, np_and_way):
    """Again and again, until rank 1 comes; then the job goes on as if nothing had been."""
    np, way = np_and_way
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("busy", np, way, HORON_TEST_FIFO=str(fifo),
                 HORON_STALL_CHECK_TIME_SECONDS="1") as process:
        others = "rank 0" if np == 2 else "ranks 0, 2, 3"  # the first report may come before some
        watch_for(process, rf"allreduce\.late': submitted by {others}\b.*"
                           r"missing: rank 1 is busy; it last submitted 'allreduce\.first'"
                           r".*failures\.py:\d+ in busy, called from")
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, rest


def given_up(failure, tmp_path, **variables):
    """What a job says in which rank 1 never comes, and what the others heard when they gave up."""
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    with watched(failure, HORON_TEST_FIFO=str(fifo), **variables) as job:
        output = job.stdout.read()
        assert job.wait(LIMIT_S) == 3, output
    heard = errors(output)
    assert set(heard) == {0, 2}, output
    return output, heard


def test_a_busy_rank_is_given_up_after_the_limit(tmp_path):
    """It never comes; the error says how long all that has been."""
    output, heard = given_up("busy", tmp_path, HORON_STALL_SHUTDOWN_TIME_SECONDS="3")
    for text in heard.values():
        said = re.fullmatch(
            r"HoronAborted: tensor 'allreduce.late': submitted by ranks 0, 2 ([\d.]+) s ago; "
            r"missing: rank 1 is busy; it last submitted 'allreduce.first' ([\d.]+) s ago; its "
            r"main thread is at failures\.py:\d+ in busy, .* It was given up "
            r"\(HORON_STALL_SHUTDOWN_TIME_SECONDS\)", text)
        assert said and 3 <= float(said[1]) <= float(said[2]) + 0.1, text
    assert ("horonrun: culprit: rank 1 had not submitted 'allreduce.late', for which rank 0, "
            "rank 2 waited at the end; it last submitted 'allreduce.first'\n") in output, output


def test_a_rank_that_never_calls_init_is_named(tmp_path):
    output, heard = given_up("busy_before_init", tmp_path, HORON_START_TIMEOUT="15")
    assert any("rank 1 did not call init in time" in text for text in heard.values()), output
    assert "horonrun: rank 1 had not joined by then: has it called init?\n" in output, output


@in_full_tier
def test_a_busy_rank_is_not_taken_for_a_stuck_one(tmp_path):
    """Its runtime sleeps, and moves when the watch threads ring, as the others' do."""
    output, _ = given_up("busy", tmp_path, HORON_STALL_SILENCE_SECONDS="6",
                         HORON_STALL_SHUTDOWN_TIME_SECONDS="12")
    assert "watchdog" not in output, output


@pytest.mark.parametrize("np, way", [(NP, "shm"), *(
    pytest.param(np, way, marks=in_full_tier) for np in (2, 4) for way in ("shm", "mpi")
)])
def test_the_flight_recorders_tell_what_each_rank_did_last(tmp_path, needs_mpi, np, way):
    _, output = run("killed", np, way, HORON_POSTMORTEM_DIR=str(tmp_path))
    made = re.search(rf"what each rank did last: ({tmp_path}\S*/report.txt)", output)
    assert made, output
    report = Path(made[1]).read_text(encoding="utf-8")
    assert "culprit: rank 1 was killed by signal 9 (SIGKILL) (recorded by " in report
    for rank in range(np):
        own = report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0]
        assert re.search(r"submitted +allreduce.first \(4000 bytes\)", own), report
        assert re.search(r"finished +0/allreduce.first \(1 tensors\)", own), report
        timeline = (Path(made[1]).parent / f"rank-{rank}.txt").read_text(encoding="utf-8")
        assert f"joined     shm, negotiating over {way} ({np} ranks)" in timeline
    assert "submitted  allreduce.x" not in report.split("\nrank 1 on ")[1].split("\nrank ")[0]
    for folder in (tmp_path, Path(made[1]).parent):
        assert shown(folder).stdout.strip() == report.strip()
    nothing = shown(Path(made[1]).parent.parent / "none")
    assert nothing.returncode == 2 and "neither flight recorders" in nothing.stderr


def shown(folder):
    return subprocess.run(
        [sys.executable, "-m", "horon.launcher", "--postmortem", str(folder)], cwd="/",
        capture_output=True, text=True, check=False, timeout=LIMIT_S)


# What rank 1 does: what its recorder and those of the others say of it.
RECORDED = {
    # They hear of the death by its sockets, which end before mpirun has noticed.
    "killed": "rank 1 ended without leaving the job",
    "finished": "rank 1 had not submitted 'allreduce.x', for which rank ",
    "leaving_with_7": "rank 1 had not submitted 'allreduce.x', for which rank ",
    "stopped": r"rank 1 has (been stopped|not answered).* for \d",
    "raising": r"rank 2 raised ValueError: bad batch \(recorded by ",
}


@pytest.mark.parametrize("failure", [
    failure if failure == "killed" else pytest.param(failure, marks=in_full_tier)
    for failure in RECORDED
])
def test_recorders_outlive_a_plain_mpirun(failure, tmp_path, needs_mpi):
    """MPI itself ends the job then; the recorders lie in files, and say who was missing."""
    command = [*_command("mpirun", NP), sys.executable, str(BODY)]
    variables = {"HORON_TEST_FAILURE": failure, "HORON_POSTMORTEM_DIR": str(tmp_path),
                 "HORON_STALL_SILENCE_SECONDS": "2"}
    output = run_job(command, NP, variables, LIMIT_S, may_fail=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rank-{rank}.rec" for rank in range(NP)
    ], output
    report = shown(tmp_path).stdout
    of = {rank: report.split(f"\nrank {rank} on ")[1].split("\nrank ")[0] for rank in range(NP)}
    assert all("submitted  allreduce.first (4000 bytes)" in own for own in of.values()), report
    # The others may have been ended before they got there. mpirun wakes a stopped rank to end it.
    if failure != "stopped":
        assert "submitted  allreduce.x" not in of[2 if failure == "raising" else 1], report
    assert re.findall("^culprit: ", report, re.M) == ["culprit: "], report
    assert re.search(f"^culprit: {RECORDED[failure]}", report, re.M), report


def watch_for(process, pattern) -> str:
    """Reads what the job says until a line has the pattern; all of it."""
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    pytest.fail(f"no line with {pattern!r}:\n{seen}")


def shown_by_top(pid):
    """The rows of `horonrun top`, by rank."""
    top = [sys.executable, "-m", "horon.launcher", "top", "--once", str(pid)]
    shown = subprocess.run(top, cwd="/", capture_output=True, text=True, check=True,
                           timeout=LIMIT_S).stdout.splitlines()
    assert shown[0] == f"job of process {pid}", shown
    return {int(line.split()[0]): line.split(maxsplit=5) for line in shown[2:]}


@pytest.mark.parametrize("events", [pytest.param(4096, marks=in_full_tier), 16])
def test_top_shows_who_waits_in_a_job_that_hangs_and_its_end_names_the_culprit(tmp_path, events):
    """Interrupted while ranks 0 and 2 wait for rank 1, for more than 16 of the pieces in which
    Python waits."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("busy", HORON_TEST_FIFO=str(fifo), HORON_RECORDER_EVENTS=str(events),
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


def test_native_code_that_lets_no_python_run_is_called_that(tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("native", HORON_TEST_FIFO=str(fifo),
                 HORON_STALL_CHECK_TIME_SECONDS="1") as process:
        watch_for(process, "rank 1 is busy.*its main thread is in native code that holds")
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, rest


def test_sigusr1_tells_what_is_pending_and_what_the_missing_rank_does(tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with watched("described", HORON_TEST_FIFO=str(fifo)) as process:
        busy = "missing: rank 1 is busy; it last submitted 'allreduce.first'"
        seen = watch_for(process, busy)
        assert "tensor 'allreduce.late': submitted by rank" in seen, seen
        fifo.write_text("go", encoding="ascii")
        rest = process.stdout.read()
        assert process.wait(LIMIT_S) == 0, seen + rest


def test_sigusr1_asks_a_process_alone_without_launcher():
    """It has a watch thread of its own, in each of its lives; the signal's default would end it."""
    source = ("import os, signal, sys\n"
              "import horon.torch as hvd\n"
              "for _ in range(2):\n"
              "    hvd.init()\n"
              "    os.kill(os.getpid(), signal.SIGUSR1)\n"
              "    assert sys.stdin.readline() == 'on\\n'\n"
              "    hvd.shutdown()\n")
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", source], text=True, **pipes) as process:
        for _ in range(2):
            seen = [process.stderr.readline() for _ in range(2)]
            assert seen == ["horon: rank 0: no tensor waits for other ranks\n",
                            "horon: rank 0: nothing waits for a rank to submit it\n"]
            process.stdin.write("on\n")
            process.stdin.flush()
        assert process.wait(LIMIT_S) == 0
