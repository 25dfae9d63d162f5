"""The edges: forks, exceptions, signals, many lives, and machines that have too little."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import _command

BODIES = Path(__file__).resolve().parent / "bodies"
RANKS = 8  # more than there are cores
LIMIT_S = 90
# A tensor that takes more shared memory than the job's /dev/shm has, over MPI and without.
REDUCE = """
import horon.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.ones(10_000_000), op=hvd.Sum)
assert (total == hvd.size()).all()
print("done", hvd.rank(), flush=True)
"""
SMALL = "mount -t tmpfs -o size=64m small /dev/shm"
# A /dev without shm.
NONE = """
mount -t tmpfs bare /mnt
for name in null zero full random urandom tty; do
  touch /mnt/$name
  mount --bind /dev/$name /mnt/$name
done
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
test ! -e /dev/shm
"""


@pytest.mark.alone
def test_interrupt_in_a_collective_ends_within_two_seconds():
    source = ("import horon.torch as hvd, torch\n"
              "hvd.init()\n"
              "tensor = torch.zeros(1 << 20)\n"
              "hvd.allreduce(tensor, name='first')\n"
              "print('up', flush=True)\n"
              "while True: hvd.allreduce(tensor, name='x')\n")
    command = [*_command("horonrun", 3), sys.executable, "-c", source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for _ in range(3):
            assert process.stdout.readline() == b"up\n"
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert time.monotonic() - start < 2


@pytest.mark.alone
@pytest.mark.parametrize("launcher", ["horonrun", "mpirun"])
def test_around_the_calls_with_more_ranks_than_cores(launch, launcher, request):
    if launcher == "mpirun":
        request.getfixturevalue("needs_mpi")
    output = launch(RANKS if launcher == "horonrun" else 2, "edges", launcher=launcher)
    assert "edges: ok" in output


def horonrun(*arguments, before="", unshared=False, **variables):
    """Exit code and output of a horonrun that a shell starts after it has done something."""
    command = [sys.executable, "-m", "horon.launcher", *arguments]
    shell = ["bash", "-euc", f'{before}\nexec "$@"', "bash", *command]
    if unshared:
        shell = [*_unshare(), *shell]
    done = subprocess.run(
        shell,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        cwd="/",
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def _unshare():
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--mount"]


@functools.cache
def why_no_mounts():
    command = [*_unshare(), "mount", "-t", "tmpfs", "try", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip()


# --- many lives -----------------------------------------------------------------------------------

# Rank 0 joins again, twice; rank 1 does not, but lives on until then.
ALONE = """
import os, time, horon
horon.init()
rank = horon.rank()
horon.shutdown()
if rank == 0:
    for attempt in range(2):
        begun = time.monotonic()
        try:
            horon.init()
        except horon.HoronUnavailable as error:
            print(f"after {time.monotonic() - begun:.1f} s: {error}", flush=True)
open(os.environ["TEST_FIFO"], "w" if rank == 0 else "r").close()
print("done", rank, flush=True)
"""


@pytest.mark.parametrize("way", [[], ["--mpi"]], ids=["shm", "mpi"])
def test_a_second_init_that_not_all_join_gives_up(way, request, tmp_path):
    if way:
        request.getfixturevalue("needs_mpi")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code, output = horonrun(*["-np", "2", "--no-prefix"], *way, "python", "-c", ALONE,
                            TEST_FIFO=str(fifo), HORON_START_TIMEOUT="2")
    heard = re.findall(r"^after ([\d.]+) s: .*HORON_START_TIMEOUT", output, re.M)
    assert len(heard) == 2 and all(float(seconds) < 10 for seconds in heard), output
    assert sorted(re.findall(r"^done (\d)$", output, re.M)) == ["0", "1"], output
    assert code == 0, output  # both ended in peace


# Rank 0 is stopped until rank 1 has left without it. The handler's own shutdown has no effect.
INTERRUPTED = """
import os, signal, time, horon.torch as hvd
hvd.init()
first = hvd.broadcast_object(os.getpid(), root_rank=0)
if hvd.rank() == 0:
    os.kill(first, signal.SIGSTOP)
    os._exit(0)
while open(f"/proc/{first}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
def interrupt(number, frame):
    hvd.shutdown()
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.3)
begun = time.monotonic()
try:
    hvd.shutdown()
except KeyboardInterrupt:
    print(f"left after {time.monotonic() - begun:.1f} s: {not hvd.is_initialized()}", flush=True)
os.kill(first, signal.SIGCONT)
"""


def test_an_interrupted_shutdown_leaves_at_once():
    _, output = horonrun("-np", "2", "--no-prefix", "python", "-c", INTERRUPTED)
    left = re.search(r"^left after ([\d.]+) s: True$", output, re.M)
    assert left and float(left[1]) < 5, output


# As a program in C ends that returns from main: nothing of Python's shuts Horon down.
NO_SHUTDOWN = """
import ctypes, horon, os
library = ctypes.CDLL(os.path.join(os.path.dirname(horon.__file__), "libhoron.so"))
assert library.horon_init() == 0
print("done", library.horon_rank(), flush=True)
"""


@pytest.mark.parametrize("way", [[], ["--mpi"]], ids=["shm", "mpi"])
def test_the_end_of_a_program_shuts_down(way, request):
    if way:
        request.getfixturevalue("needs_mpi")
    command = ["-np", "2", "--verbose", "--no-prefix", *way, "python", "-c", NO_SHUTDOWN]
    code, output = horonrun(*command)
    assert code == 0 and sorted(re.findall(r"^done (\d)$", output, re.M)) == ["0", "1"], output
    assert output.count("exited with code 0 (left)") == 2, output


# Rank 1 never finalises MPI, but hears of rank 0's end: then nobody holds the other end of the
# FIFO.
UNFINALISED = """
import os, time, horon
horon.init()
rank = horon.rank()
horon.shutdown()
if rank == 0:
    os.write(os.open(os.environ["TEST_FIFO"], os.O_WRONLY), str(time.monotonic()).encode())
else:
    with open(os.environ["TEST_FIFO"]) as fifo:
        left = float(fifo.read())
    print(f"ended after {time.monotonic() - left:.2f} s", flush=True)
    os._exit(0)
"""


def test_a_peer_that_never_finalises_mpi_is_not_waited_for(needs_mpi, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = ["-np", "2", "--no-prefix", "--mpi", "python", "-c", UNFINALISED]
    code, output = horonrun(*command, TEST_FIFO=str(fifo), HORON_SHUTDOWN_TIMEOUT_SECONDS="1")
    said = "horon: mpi: MPI_Finalize did not return within 1000 ms; leaving without it\n"
    assert output.count(said) == 1, output
    heard = re.findall(r"^ended after ([\d.]+) s$", output, re.M)
    assert len(heard) == 1 and 1 <= float(heard[0]) < 5, output
    assert code == 0, output


# --- settings -------------------------------------------------------------------------------------

WRONG = """
import horon
try:
    horon.init()
except horon.HoronInvalidArgument as error:
    print(ascii(str(error)))
"""


def test_a_setting_that_is_no_text_is_refused_with_its_name():
    environment = {**os.environb, b"HORON_FUSION_THRESHOLD": b"ab\xc3"}
    done = subprocess.run([sys.executable, "-c", WRONG], env=environment, cwd="/", text=True,
                          capture_output=True, timeout=LIMIT_S, check=False)
    assert "HORON_FUSION_THRESHOLD" in done.stdout and r"ab\ufffd" in done.stdout, done


# --- /dev/shm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shm", [SMALL, NONE], ids=["small", "none"])
@pytest.mark.parametrize("way", [[], ["--mpi"]], ids=["shm", "mpi"])
def test_dev_shm_is_not_needed(shm, way, request):
    if why_no_mounts():
        pytest.skip(f"no mounts in a namespace: {why_no_mounts()}")
    if way:
        request.getfixturevalue("needs_mpi")
    np = ["-np", "2", "--no-prefix"]
    code, output = horonrun(*np, *way, "python", "-c", REDUCE, before=shm, unshared=True)
    done = sorted(re.findall(r"^done (\d)$", output, re.M))
    assert code == 0 and done == ["0", "1"], output


# --- limits ---------------------------------------------------------------------------------------


def too_little(np, limit):
    """What ranks said when some had too little: rank -> sentence."""
    arguments = ["-np", str(np), "--no-prefix", "--grace-period", "5"]
    code, output = horonrun(*arguments, "python", str(BODIES / "limits.py"), HORON_TEST_LIMIT=limit)
    heard = dict(re.findall(r"^rank (\d): (Horon\w+: .*)$", output, re.M))
    assert "Traceback" not in output, output
    assert code == 3, output
    return heard, output


@pytest.mark.parametrize("who, culprit", [("all", "0"), ("0", "0"), ("2", "2")])
def test_too_few_descriptors(who, culprit):
    heard, output = too_little(3, f"descriptors 0 {who}")
    assert set(heard) == {"0", "1", "2"}, output
    assert "raise ulimit -n" in heard[culprit], output
    for rank in set(heard) - {culprit}:
        assert f"rank {culprit} " in heard[rank] or "raise ulimit -n" in heard[rank], output
    assert f"horonrun: rank {culprit} exited with code 3" in output


def test_a_program_that_a_rank_starts_is_no_rank():
    inner = "import horon; horon.init(); print('rank', horon.rank(), 'of', horon.size())"
    names = ["HORON_RANK", "HORON_SIZE", "HORON_LOCAL_RANK", "HORON_LAUNCHER_FD"]
    code, output = horonrun("-np", "2", "--no-prefix", "python", "-c", f"""
import os, subprocess, sys, horon
horon.init()
run = [sys.executable, "-c", {inner!r}]
refused = subprocess.run(run, capture_output=True, text=True)
print(refused.returncode, refused.stderr.splitlines()[-1])
alone = {{name: value for name, value in os.environ.items() if name not in {names}}}
print(subprocess.run(run, env=alone, capture_output=True, text=True).stdout)
""")
    assert code == 0, output
    assert len(re.findall(r"^1 .*InvalidArgument: a rank of a job has started this program, .* unset "
                          "HORON_RANK, ", output, re.M)) == 2, output
    assert output.count("rank 0 of 1\n") == 2, output


@pytest.mark.parametrize("spare", range(1, 6))
def test_almost_enough_descriptors(spare):
    """Whatever is the one that is missing: it works, or says what to raise."""
    arguments = ["-np", "2", "--no-prefix", "--grace-period", "5"]
    limit = f"descriptors {spare} 1"
    code, output = horonrun(*arguments, "python", str(BODIES / "limits.py"), HORON_TEST_LIMIT=limit)
    if code == 0:
        assert sorted(re.findall(r"^done (\d)$", output, re.M)) == ["0", "1"], output
    else:
        assert code == 3 and "raise ulimit -n" in output, output


def test_too_little_address_space():
    heard, output = too_little(3, "address_space 4000000 1")
    assert "raise ulimit -v" in heard["1"], output
    assert all("rank 1 exited with code 3" in heard[rank] for rank in "02"), output


def test_no_locked_memory():
    code, output = horonrun(
        *["-np", "2", "--no-prefix", "python", str(BODIES / "limits.py")],
        HORON_TEST_LIMIT="locked_memory 0 all",
    )
    assert code == 0 and sorted(re.findall(r"^done (\d)$", output, re.M)) == ["0", "1"], output


@pytest.mark.parametrize("most", [5, 6, 8, 12, 20])
def test_horonrun_with_too_few_descriptors(most):
    code, output = horonrun("-np", "3", "true", before=f"ulimit -n {most}")
    assert code in (2, 126), output
    assert re.search(r"^horonrun: .*(Too many open files|raise ulimit -n).*\n\Z", output), output
