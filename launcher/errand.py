"""horon.run's end of horonrun: the function that the ranks shall call, and what became of it.

The program that called horon.run holds the other end of a socket that only the two share. Through
it comes one memory file with the function, and at the end goes one with each rank's result. Between
horonrun and its ranks they travel as packets `task` and `result` (relay.py), to other hosts as
frames (frames.py). Nothing here looks into them.
"""

from __future__ import annotations

import os
import signal
import socket

from .frames import text
from .refusal import Refusal
from .spawn import signal_when_parent_dies
from .standing import Standing

_LONGEST_SENTENCE = 1000


def take(number: int) -> int:
    """The descriptor of the function. From now on the caller's death ends the job."""
    signal_when_parent_dies(signal.SIGTERM)
    with socket.socket(fileno=os.dup(number)) as caller:
        packet, files, _, _ = socket.recv_fds(caller, 16, 1)
    if packet != b"task" or not files:
        raise Refusal("the program that called horon.run is gone")
    return files[0]


def report(number: int, ranks: list[Standing], culprit: Standing | None) -> None:
    """Results of the ranks that have one, how many ranks there were, and whose failure ended the
    job, if one's did."""
    with socket.socket(fileno=os.dup(number)) as caller:
        try:
            for rank in ranks:
                if rank.result is not None:
                    socket.send_fds(caller, [b"result %d" % rank.rank], [rank.result])
            caller.send(b"size %d" % len(ranks))
            if culprit is not None:
                sentence = text(culprit.cause().encode())[:_LONGEST_SENTENCE]
                caller.send(f"failed {culprit.rank} {sentence}".encode())
        except OSError:
            pass  # the caller is gone: nobody wants to know
