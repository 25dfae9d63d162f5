"""The end of a timeline's file (runtime/base/timeline_file.h), when all its ranks were killed.

A rank that lives cuts a torn piece away when it writes the next one. When none does, whoever
started the ranks closes the array again, so that the file is whole JSON.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Mapping

_CLOSE = b"\n]\n"
_TAIL = 256 << 10  # bytes; more than a piece
# The brace of a whole line; the last case is a piece torn after its first byte.
_WHOLE_LINE = re.compile(rb"\}(?=,?\n|,\]\n\Z)")


def path(environment: Mapping[str, str]) -> str:
    """Where a rank with this environment is told to write one; "" if nowhere."""
    told = environment.get("HORON_TIMELINE") or environment.get("HOROVOD_TIMELINE", "")
    return "" if told == "DYNAMIC" else told


def mend(file: str) -> None:
    """Cuts a torn piece away. Does nothing with a file that is whole, is none of a timeline, cannot
    be written, or is just being written: that writer does it, or its end is heard of, too."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(descriptor).st_size
        begin = max(0, size - _TAIL)
        tail = os.pread(descriptor, size - begin, begin)
        lines = list(_WHOLE_LINE.finditer(tail))
        if not tail.endswith(_CLOSE) and lines:
            end = begin + lines[-1].end()
            os.pwrite(descriptor, _CLOSE, end)
            os.truncate(descriptor, end + len(_CLOSE))
    except OSError:
        pass
    finally:
        os.close(descriptor)
