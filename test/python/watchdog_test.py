"""The watchdog: what it says, and that waits end, when a runtime's own thread is stuck."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ON_ONE_HOST, _command, in_full_tier

from launching import command_line, environment, horonrun

BODIES = Path(__file__).parent / "bodies"
BODY = BODIES / "standstill.py"
LIMIT_S = 60


@pytest.fixture
def held(tmp_path):
    """The fifo that a runtime stands at, and a thread that ends once it does."""
    fifo = tmp_path / "held"
    for name in (fifo, f"{fifo}.go"):
        os.mkfifo(name)
    reached = threading.Thread(target=lambda: open(fifo, "rb").close(), daemon=True)
    reached.start()
    return fifo, reached


def test_a_runtime_that_does_not_move(held):
    fifo, reached = held
    done = horonrun(
        "-np", "2", "--no-prefix", "--grace-period", "30", "python", str(BODY),
        HORON_LEND="0", HORON_STALL_SILENCE_SECONDS="5", STANDS=str(fifo),
    )
    assert not reached.is_alive()
    # Rank 1's watchdog, from its own shared words.
    said = re.search(
        r"horon\[1\] error watchdog: the runtime has not moved for [2-9] s: thread \d+ \(horon\) "
        r"sleeps.*; the program waits for 0/allreduce.x, and submitted 0/allreduce.x last, \d+ s",
        done.stderr,
    )
    assert said, done.stderr
    # Rank 0 gives it up; then rank 1's wait ends too, though nobody can finish its work.
    # The look that finds it is 6.1 s after its question, on a busy machine a little later.
    assert "rank 0 raised: rank 1 has not answered for 6" in done.stdout, done.stderr
    ended = r"rank 1 raised: .*rank \d .*\(this rank's runtime is stuck, and its tensors with it\)"
    assert re.search(ended, done.stdout), done.stdout + done.stderr
    assert "rank 1 lent on: True" in done.stdout, done.stdout  # its thread may come back
    left = re.search(r"rank 1 left after ([\d.]+) s", done.stdout)
    assert left and float(left[1]) < 3.0, done.stdout
    after = "rank 1 afterwards: Horon was shut down while its runtime was stuck"
    assert after in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0  # both programs have dealt with their error


def lines_of(command, **variables):
    """What the job says, line by line; ended when it takes too long."""
    job = subprocess.Popen(command, env=environment(**variables), text=True, start_new_session=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    hang = threading.Timer(LIMIT_S, os.killpg, (job.pid, signal.SIGKILL))
    hang.start()
    yield from job.stdout
    hang.cancel()
    assert job.wait() == 0  # all programs have dealt with their error


def followed(job, waiting, loads):
    """All it says. The rank that loads gets its data when those that wait have raised."""
    raised, output = [], ""
    for line in job:
        output += line
        if found := re.match(r"rank (\d) raised", line):
            raised.append(int(found[1]))
            if sorted(raised) == waiting:
                loads.write_text("go", encoding="ascii")
    assert len(raised) == len(waiting) + 1, output
    return output


@pytest.mark.parametrize("np, way", [
    (2, "shm"), (4, "shm"), pytest.param(4, "mpi", marks=in_full_tier),
])
def test_rank_0_stands_and_each_rank_says_who_lacks_the_tensor(held, tmp_path, request, np, way):
    """Rank 0, which would judge, cannot: the watch threads ask each other."""
    if way == "mpi":
        request.getfixturevalue("needs_mpi")
    fifo, reached = held
    os.mkfifo(loads := tmp_path / "loads")
    lacks = max(1, np - 2)
    waiting = [rank for rank in range(np) if rank != lacks]
    job = lines_of(
        command_line("-np", str(np), "--no-prefix", "--grace-period", "30",
                     *(["--mpi"] if way == "mpi" else []), "python",
                     str(BODIES / "rank_0_stands.py")),
        HORON_LEND="0", HORON_STALL_SILENCE_SECONDS="12", STANDS=str(fifo), LOADS=str(loads),
    )
    output = followed(job, waiting, loads)
    assert not reached.is_alive()
    ranks = "rank 0" if np == 2 else "ranks " + ", ".join(map(str, waiting))
    lack = (rf"tensor 'allreduce.late': submitted by {ranks} [\d.]+ s ago; missing: rank {lacks} "
            r"is busy; it last submitted 'allreduce.x' [\d.]+ s ago; its main thread is at "
            r"rank_0_stands.py:\d+ in load")
    where = r"thread \d+ \(horon\) sleeps"
    for rank in waiting:
        stands = (rf"horon\[0\] error watchdog: the runtime has not moved for \d+ s: {where}"
                  if rank == 0 else
                  rf"horon\[{rank}\] warn\w* watchdog: the runtime of rank 0 has not moved for "
                  rf"\d+ s: its {where}")
        assert re.search(f"{stands}.*{lack}", output), output


SILENT = r"rank 0, which is on another host, has not answered for \d+ s"
NOTED = r"; the runtime of rank 0 does not move: its thread \d+ \(horon\) sleeps.*"
MOVED = r"the runtime of rank \d has not moved for \d+ s: its thread \d+ \(horon\) sleeps.*"


@pytest.mark.parametrize("launcher, nodes_of, standing, lacks, ranks, seen, unheard", [
    ("horonrun", 2, "0", 1, "ranks 0, 2, 3", SILENT + NOTED, ""),
    ("mpirun", 1, "0", 2, "ranks 1, 3", SILENT, "; nothing was heard of rank 0"),
    pytest.param("mpirun", 2, "0", 1, "ranks 0, 2, 3", SILENT + NOTED, "", marks=in_full_tier),
    pytest.param("horonrun", 1, "0", 3, "ranks 1, 2", SILENT, "; nothing was heard of rank 0",
                 marks=in_full_tier),
    pytest.param("mpirun", 2, "0", 2, "ranks 0, 1, 3", f"({MOVED}|{SILENT}{NOTED})", "",
                 marks=in_full_tier),
    pytest.param("horonrun", 3, "0", 3, "ranks 0, 1, 2", MOVED, "", marks=in_full_tier),
    # The first that would stand in stands, too.
    pytest.param("horonrun", 2, "0,1", 2, "rank 3", SILENT, "; nothing was heard of ranks 0, 1",
                 marks=in_full_tier),
], ids=["2+2", "1+1+1+1-mpirun", "2+2-mpirun", "1+1+1+1", "2+2-last-mpirun", "3+1", "2+2-two"])
def test_rank_0_stands_and_one_rank_says_who_of_all_nodes_lacks_the_tensor(
        held, tmp_path, needs_mpi, launcher, nodes_of, standing, lacks, ranks, seen, unheard):
    """And the job goes on when it comes back."""
    fifo, _ = held
    os.mkfifo(loads := tmp_path / "loads")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # several may come there
    at = ["-np", "4", "--no-prefix", "--grace-period", "30", "--mpi"]
    command = command_line(*at) if launcher == "horonrun" else _command(launcher, 4)
    said, output = [], ""
    for line in lines_of(
        [*command, sys.executable, str(BODIES / "rank_0_stands.py")],
        HORON_LEND="0", HORON_STALL_SILENCE_SECONDS="18", HORON_LOCAL_SIZE=str(nodes_of),
        STANDS=str(fifo), STANDING=standing, LOADS=str(loads), LACKS=str(lacks), **ON_ONE_HOST,
    ):
        output += line
        found = re.search(r"horon\[(\d)\] warn\w* watchdog: (.*)", line)
        if found and found[1] not in standing:  # theirs say what their own nodes know
            said.append(found[2])
            open(f"{fifo}.go", "wb").close()
            loads.write_text("go", encoding="ascii")
    os.close(reader)
    assert len(said) == 1, output
    assert re.search(
        rf"^{seen}. Told without it: tensor 'allreduce.late': submitted by {ranks} [\d.]+ s ago; "
        rf"missing: rank {lacks} is busy; it last submitted 'allreduce.x' [\d.]+ s ago; its main "
        rf"thread is at rank_0_stands.py:\d+ in load, [^;]*{unheard}$", said[0]), output
    assert sorted(re.findall(r"^rank (\d) goes on$", output, re.MULTILINE)) == list("0123"), output
