"""What ranks and horonrun say to each other; the ranks are small Python programs that speak it."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from horon.launcher.spawn import Child
from launching import horonrun

# Opens the socket to horonrun. `make_segment` is what local rank 0 does, `take` waits for a packet.
PROLOGUE = """
import array, os, signal, socket, sys
rank = int(os.environ["HORON_RANK"]); size = int(os.environ["HORON_SIZE"])
launcher = socket.socket(fileno=int(os.environ["HORON_LAUNCHER_FD"]))
launcher.settimeout(30)
def make_segment(text, generation=1):
    memory = os.memfd_create("test"); os.write(memory, text)
    socket.send_fds(launcher, [b"segment %d %d" % (generation, len(text))], [memory])
def take():
    packet, files, _, _ = socket.recv_fds(launcher, 4096, 1)
    return packet.decode(), files
def bye():
    launcher.send(b"bye")
"""


@pytest.fixture
def script(tmp_path: Path):
    """Writes a rank's program and returns its path."""

    def write(body: str) -> str:
        path = tmp_path / "rank.py"
        path.write_text(PROLOGUE + textwrap.dedent(body))
        return str(path)

    return write


def test_segment_is_passed_on_to_every_other_rank(script) -> None:
    program = script("""
        if rank == 0:
            make_segment(b"shared by rank 0", generation=3)
            text = "made"
        else:
            packet, files = take()
            text = packet + ": " + os.pread(files[0], 100, 0).decode()
        print(text)
        bye()
    """)
    done = horonrun("-np", "4", "python", program)
    assert done.returncode == 0, done.stderr
    want = ["[0] made"] + [f"[{r}] segment 3 16: shared by rank 0" for r in (1, 2, 3)]
    assert sorted(done.stdout.splitlines()) == want


@pytest.mark.parametrize("end, sentence, code", [
    ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by signal 9 (SIGKILL)", 137),
    ("sys.exit(7)", "rank 1 exited with code 7", 7),
    ("sys.exit(0)", "rank 1 exited with code 0 without leaving the job", 1),
    # On a busy machine the kernel takes that long from closing a process's files to its status.
    pytest.param(
        "launcher.close(); import time; time.sleep(0.25); os.kill(os.getpid(), signal.SIGSEGV)",
        "rank 1 was killed by signal 11 (SIGSEGV)", 139, marks=pytest.mark.alone),
])
def test_death_is_told_to_the_others(script, end: str, sentence: str, code: int) -> None:
    program = script(f"""
        if rank == 0: make_segment(b"x")
        else: take()
        if rank == 1: {end}
        print(take()[0])
        bye()
    """)
    done = horonrun("-np", "3", "python", program)
    assert sorted(done.stdout.splitlines()) == [f"[{r}] dead 1 {sentence}" for r in (0, 2)]
    assert done.returncode == code
    assert f"horonrun: {sentence}\n" in done.stderr


@pytest.mark.parametrize("packet, sentence", [
    ("raised ValueError: bad batch", "rank 1 raised ValueError: bad batch"),
    ("failed: out of memory", "rank 1 failed: out of memory"),
])
def test_what_a_rank_says_before_it_ends_is_its_cause(script, packet: str, sentence: str) -> None:
    """The others hear it at once, and may end before it: it is still the first."""
    program = script(f"""
        if rank == 0: make_segment(b"x")
        else: take()
        if rank == 1:
            launcher.send(b"{packet}")
            try: launcher.recv(100)  # nothing comes but the others' deaths
            finally: sys.exit(4)
        print(take()[0])
        sys.exit(5)
    """)
    done = horonrun("-np", "3", "python", program)
    assert sorted(done.stdout.splitlines()) == [f"[{r}] dead 1 {sentence}" for r in (0, 2)]
    assert done.returncode == 4
    assert f"horonrun: {sentence} (2 more failed after it)\n" in done.stderr


def test_a_rank_that_another_gives_up_is_the_culprit(script) -> None:
    program = script("""
        if rank == 0: make_segment(b"x")
        else: take()
        if rank == 0:
            launcher.send(b"lost 9 rank 9 is no rank of this job")
            launcher.send(b"lost 1 rank 1 has not answered for 30 s")
        if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
        print(take()[0])
        sys.exit(5)
    """)
    done = horonrun("-np", "3", "--grace-period", "3", "python", program)  # all have come by then
    told = [f"[{r}] dead 1 rank 1 has not answered for 30 s" for r in (0, 2)]
    assert sorted(done.stdout.splitlines()) == told
    assert done.returncode == 137
    assert "horonrun: rank 1 has not answered for 30 s (2 more failed after it)\n" in done.stderr


def test_a_soft_limit_of_descriptors_is_raised_for_many_ranks(script) -> None:
    """Only horonrun's own; the segment reaches everybody, and a hard limit is one line."""
    program = script("""
        import resource
        if rank == 0: make_segment(b"x")
        else: assert len(take()[1]) == 1
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        bye()
    """)
    done = horonrun("-np", "12", "python", program, before="ulimit -Sn 30")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()[1::2]) == ["30"] * 12
    done = horonrun("-np", "12", "python", program, before="ulimit -n 30")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == ("horonrun: 12 ranks take 72 descriptors of horonrun: raise ulimit -n "
                           "(its hard limit is 30)\n")


def test_death_is_told_although_a_child_holds_the_socket(script) -> None:
    program = script("""
        if rank == 0: make_segment(b"x")
        else: take()
        if rank == 1:
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "100"])  # inherits every descriptor
            os._exit(5)
        print(take()[0])
        bye()
    """)
    done = horonrun("-np", "2", "python", program)
    assert done.stdout == "[0] dead 1 rank 1 exited with code 5\n"


@pytest.mark.alone
def test_a_rank_that_only_closes_its_socket_is_told_within_a_second(script) -> None:
    program = script("""
        import time
        if rank == 0: make_segment(b"x")
        else: take()
        if rank == 1:
            launcher.close()
            signal.pause()
        begun = time.monotonic()
        print(take()[0], time.monotonic() - begun < 1)
        sys.exit(5)
    """)
    done = horonrun("-np", "2", "--grace-period", "0.2", "python", program)
    sentence = "rank 1 closed its connection to horonrun without leaving the job"
    assert done.stdout == f"[0] dead 1 {sentence} True\n"


def test_leaving_is_no_death(script) -> None:
    program = script("""
        if rank == 0: make_segment(b"x")
        else: take()
        bye()
        if rank == 0:  # the others end first, and nothing is said about it
            launcher.settimeout(1)
            try: print(take()[0])
            except TimeoutError: print("quiet")
    """)
    done = horonrun("-np", "3", "python", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] quiet\n", "")


def test_rank_that_never_joined_may_end(script) -> None:
    assert horonrun("-np", "2", "true").returncode == 0
    # But those who wait for it are told, also when it ended before they came.
    program = script("""
        if rank == 1: sys.exit(0)
        import time; time.sleep(0.5)
        make_segment(b"x")
        print(take()[0])
        bye()
    """)
    done = horonrun("-np", "2", "python", program)
    assert done.stdout == "[0] dead 1 rank 1 exited with code 0 without joining the job\n"


def test_a_rank_whose_init_failed_may_end(script) -> None:
    """Of those that wait for it, each is told; the one that gave up itself is no failure."""
    program = script("""
        if rank == 0: make_segment(b"x")
        else: take()
        if rank < 2:
            launcher.send(b"unjoined")
            sys.exit(0)
        print(sorted([take()[0], take()[0]]))
        bye()
    """)
    done = horonrun("-np", "3", "python", program)
    told = [f"dead {rank} rank {rank} exited with code 0 without joining the job"
            for rank in (0, 1)]
    assert (done.returncode, done.stdout) == (0, f"[2] {told}\n"), done.stderr


def test_nonsense_on_the_socket_is_survived(script) -> None:
    program = script("""
        for packet in (b"", b"segment", b"segment 1 1", b"\\xff" * 100, b"dead 0 no"):
            if packet: launcher.send(packet)
        if rank == 0: make_segment(b"good")
        else: print(take()[0])
        bye()
    """)
    done = horonrun("-np", "2", "python", program)
    assert (done.returncode, done.stdout) == (0, "[1] segment 1 4\n"), done.stderr


def test_last_words_are_read_of_a_rank_that_left_packets_unread() -> None:
    """Which the kernel reports before them."""
    words = "import os, socket; os.read(0, 1); " \
        "socket.socket(fileno=int(os.environ['HORON_LAUNCHER_FD'])).send(b'unjoined')"
    stdin, go = os.pipe()
    child = Child([sys.executable, "-c", words], dict(os.environ), stdin)
    child.send(b"never read")
    os.write(go, b"x")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [child.receive(), child.receive()] == [(b"unjoined", []), (b"", [])]
    assert not child.read_all
    child.kill(signal.SIGKILL)
    for descriptor in (stdin, go):
        os.close(descriptor)
