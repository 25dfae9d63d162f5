"""A flight recorder's way from a keeper to horonrun: only what is used of it travels. And which
recordings of a folder `horonrun --postmortem` shows."""

import os
import random
import struct
from pathlib import Path

import pytest
from horon.launcher import main, recorder

CAPACITY = 16384  # more than one piece


def laid_out(rank, events, capacity):
    """A recorder's bytes, as the runtime writes them. Events as (ns, kind, value, text)."""
    header = struct.pack("<8sIIQii64s", b"HORONREC", 1, 128, capacity, 77, rank, b"h2")
    whole = bytearray(header.ljust(4096, b"\0") + bytes(capacity * 128))
    for number, (time, kind, value, text) in enumerate(events, 1):
        event = struct.pack("<QQQq96s", number, time, kind | len(text) << 16, value, text)
        at = 4096 + (number - 1) % capacity * 128
        whole[at : at + 128] = event
    return bytes(whole)


def memory(events):
    """A descriptor of a recorder with so many events."""
    made = [(number, 2, 8, f"tensor.{number}".encode()) for number in range(1, events + 1)]
    descriptor = os.memfd_create("recorder")
    os.write(descriptor, laid_out(3, made, CAPACITY))
    return descriptor


@pytest.mark.parametrize("events", [0, 1, 100, CAPACITY, CAPACITY + 5])
def test_what_arrives_is_what_was_recorded(events):
    sent = memory(events)
    arrived = os.memfd_create("copy")
    for piece in recorder.used(sent):
        os.write(arrived, piece)
    assert os.fstat(arrived).st_size == 4096 + min(events, CAPACITY) * 128
    recording = recorder.read(arrived)
    assert recording == recorder.read(sent)
    assert (recording.rank, recording.host) == (3, "h2")
    assert [event.number for event in recording.events] == list(
        range(max(1, events - CAPACITY + 1), events + 1)
    )
    assert not events or recording.events[-1].text == f"tensor.{events}"


def test_an_empty_file_is_no_recorder():
    empty = os.memfd_create("empty")
    assert list(recorder.used(empty)) == [] and recorder.read(empty) is None


def test_damaged_memory_is_reported_all_the_same():
    """A rank may die in the middle of a word. Seeds are fixed: what failed fails again."""
    made = [(10**18 + n, n % 12, n * 7, f"tensor.{n}".encode()) for n in range(1, 80)]
    whole = laid_out(1, made, 64)
    read = 0
    for seed in range(400):
        draw = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 4, 64))):
            at = draw.choice((draw.randrange(112), draw.randrange(4096, len(whole))))
            damaged[at] = draw.randrange(256)
        if draw.random() < 0.2:
            del damaged[draw.randrange(len(damaged)) :]
        recording = recorder.decode(bytes(damaged))
        if recording is None:
            continue
        read += 1
        recorder.pending(recording)
        text = recorder.report([recording], [f"rank 1 died, {seed}"])
        assert f"rank 1 died, {seed}" in text
    assert read > 100


# --- a folder of several jobs ---------------------------------------------------------------------

JOINED, SUBMITTED, LEFT = 1, 2, 9


def leave(folder: Path, rank: int, size: int, begin: float, end: float, joined: bool = True):
    """A rank's recorder in its file, as ranks under a plain mpirun leave it; times in s."""
    events = [(begin, JOINED, size, b"shm")] if joined else []
    events += [(begin, SUBMITTED, 8, b"x"), (end, LEFT, 0, b"")]
    made = [(int(time * 1e9), *rest) for time, *rest in events]
    (folder / f"rank-{rank}.rec").write_bytes(laid_out(rank, made, 4))


def ranks_in(folder: Path) -> list[int]:
    return [recording.rank for recording in recorder.read_folder(str(folder))]


def test_ranks_of_a_larger_job_before_do_not_count(tmp_path):
    for rank in range(4):
        leave(tmp_path, rank, 4, begin=1000, end=1010)
    assert ranks_in(tmp_path) == [0, 1, 2, 3]
    for rank in range(2):
        leave(tmp_path, rank, 2, begin=1015, end=1020)
    assert ranks_in(tmp_path) == [0, 1]


def test_a_rank_that_recorded_nothing_in_the_newest_job_has_no_recording(tmp_path):
    leave(tmp_path, 0, 3, begin=2000, end=2010)
    leave(tmp_path, 1, 3, begin=1900, end=1930)
    leave(tmp_path, 2, 3, begin=1990, end=2300, joined=False)  # it has recorded a lot since
    assert ranks_in(tmp_path) == [0, 2]


@pytest.mark.parametrize("report_at, shown", [(1500, "rank 0 on h2"), (2500, "of horonrun")])
def test_of_a_report_and_recordings_the_newer_is_shown(tmp_path, capsys, report_at, shown):
    leave(tmp_path, 0, 1, begin=2000, end=2010)
    written = tmp_path / "horon-20261122-000000-7" / "report.txt"
    written.parent.mkdir()
    written.write_text("of horonrun")
    os.utime(written, (report_at, report_at))
    assert main.main(["--postmortem", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert shown in said and ("of horonrun" in said) == (report_at > 2010)
