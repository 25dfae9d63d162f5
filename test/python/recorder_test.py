"""A flight recorder's way from a keeper to horonrun: only what is used of it travels."""

import os
import struct

import pytest
from horon.launcher import recorder

CAPACITY = 16384  # more than one piece


def memory(events):
    """A descriptor of a recorder with so many events, as the runtime lays it out."""
    header = struct.pack("<8sIIQii64s", b"HORONREC", 1, 128, CAPACITY, 77, 3, b"h2")
    whole = bytearray(header.ljust(4096, b"\0") + bytes(CAPACITY * 128))
    for number in range(1, events + 1):
        text = f"tensor.{number}".encode()
        event = struct.pack("<QQQq96s", number, number, 2 | len(text) << 16, 8, text)
        at = 4096 + (number - 1) % CAPACITY * 128
        whole[at : at + 128] = event
    descriptor = os.memfd_create("recorder")
    os.write(descriptor, whole)
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
