"""horonrun top: by recordings as ranks leave them, and by a process that holds some."""

import os
import subprocess
import sys

import pytest
from conftest import in_full_tier
from horon.launcher.recorder import Event, Recording
from horon.launcher.top import rows


def recording(rank, *events):
    made = [Event(i + 1, time, kind, text, "", 7) for i, (time, kind, text) in enumerate(events)]
    return Recording(rank, "h", 100 + rank, made)


def test_rates_waits_and_who_holds_the_others_up():
    """Four steps a second; rank 0 waits for rank 1 in half of each, and then for ever."""
    quick, slow = [], []
    for step in range(40):
        begun = 90.0 + step / 4
        quick += [(begun, "submitted", "g"), (begun + 0.01, "waits for", "0/g"),
                  (begun + 0.135, "finished", "0/g")]
        slow += [(begun + 0.13, "submitted", "g"), (begun + 0.135, "finished", "0/g")]
    first, second = rows([recording(1, *slow),
                          recording(0, *quick, (99.9, "submitted", "h"),
                                     (99.9, "waits for", "0/h"))],
                         now=100.0)
    assert (first.rank, second.rank) == (0, 1)
    assert first.steps_per_s == pytest.approx(4.0) and second.steps_per_s == pytest.approx(4.0)
    assert first.waits == pytest.approx(0.51, abs=0.02) and second.waits == 0.0
    assert first.straggler == 0.0 and second.straggler == first.waits
    assert first.doing == "waits for 'h' since 0.1 s"
    assert second.doing == "finished g 0.1 s ago"


def test_a_wait_in_slices_is_one():
    """As Python's are, because of signals."""
    slices = [(90.0 + i / 10, "waits for", "0/g") for i in range(50)]
    (row,) = rows([recording(0, (80.0, "submitted", "g"), *slices)], now=95.0)
    assert row.doing == "waits for 'g' since 5.0 s"
    assert row.waits == pytest.approx(0.5)
    (row,) = rows([recording(0, (80.0, "submitted", "g"), *slices, (95.0, "finished", "0/g"),
                             (95.1, "waits for", "0/g"))], now=96.0)
    assert row.doing == "waits for 'g' since 0.9 s"


def test_a_wait_ends_when_another_thread_submits_the_tensor_again():
    """As autograd's do on a GPU; it was finished in the bucket of another one."""
    events = []
    for step in range(10):
        events += [(step, "submitted", "g", 8), (step + 0.2, "waits for", "0/g", 7),
                   (step + 0.3, "finished", "0/first", 9)]
    made = [Event(i + 1, 90.0 + time, kind, text, "", thread)
            for i, (time, kind, text, thread) in enumerate(events)]
    (row,) = rows([Recording(0, "h", 100, made)], now=99.3)
    assert row.doing == "waits for 'g' since 0.1 s"


def test_a_clock_that_was_set_back_makes_no_negative_share():
    events = [(90.0, "submitted", "g"), (95.0, "waits for", "0/g")]
    (row,) = rows([recording(0, *events)], now=93.0)
    assert row.waits == 0.0


def test_nothing_is_to_come():
    """The clock of another host may be ahead."""
    for kind, said in (("submitted", "submitted g 0.0 s ago"),
                       ("waits for", "waits for 'g' since 0.0 s")):
        assert rows([recording(0, (90.0, kind, "0/g"))], now=89.99)[0].doing == said


def test_a_rank_without_events_has_not_joined():
    assert rows([recording(0)], now=5.0)[0].doing == "has not joined yet"


# A process that has recorders: its own, and one of another process, as horonrun has.
HOLDER = """
import os, struct, sys, time
def make(pid, rank):
    whole = bytearray(struct.pack("<8sIIQii64s", b"HORONREC", 1, 128, 8, pid, rank, b"h"))
    whole = whole.ljust(4096, b"\\0") + bytearray(8 * 128)
    key = b"0/grad"
    what = 3 | len(key) << 16 | 7 << 32
    whole[4096:4224] = struct.pack("<QQQq96s", 1, time.time_ns(), what, 0, key)
    fd = os.memfd_create("horon-recorder")
    os.write(fd, whole)
    return fd
kept = [make(os.getpid(), 5), make(1, 6)]
print("ready", flush=True)
sys.stdin.read()
"""


def top(*arguments):
    command = [sys.executable, "-m", "horon.launcher", "top", "--once", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")


def test_running_ranks_are_found_and_only_read():
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline() == "ready\n"
        found = [top(str(pid)) for pid in (rank.pid, os.getpid())]  # of the rank, of its launcher
        rank.stdin.close()
    for shown in found:
        assert shown.returncode == 0, shown
        lines = shown.stdout.splitlines()
        assert lines[0] == f"job of process {os.getpid()}" and len(lines) == 3, shown.stdout
        assert lines[2].split()[:2] == ["5", str(rank.pid)], shown.stdout
        assert "waits for 'grad' since" in lines[2], shown.stdout
    gone = top(str(rank.pid))
    words = f"no running rank of yours with a flight recorder is process {rank.pid}, or was"
    assert gone.returncode == 1 and words in gone.stderr, gone


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
@pytest.mark.parametrize("launcher, in_file", [("horonrun", False), ("mpirun", False),
                                               ("mpirun", True)])
def test_ranks_are_found_whoever_has_started_them(launch, needs_mpi, tmp_path, launcher, in_file,
                                                  np):
    """In memory, or in a file of HORON_POSTMORTEM_DIR, as only a foreign launcher's ranks do."""
    launch(np, "top", launcher=launcher,
           env={"HORON_POSTMORTEM_DIR": str(tmp_path / "kept")} if in_file else {})
    assert (tmp_path / "kept").exists() == in_file
