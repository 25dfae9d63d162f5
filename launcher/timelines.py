"""horonrun --merge-timelines: one timeline of the files of hosts that share no file system.

In all of them times are rank 0's, processes are ranks, and the first event is the recording's own
(runtime/base/timeline_file.h): so the events of one follow those of the other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .refusal import Refusal

_OPEN, _CLOSE = b"[\n", b"\n]\n"
_FIRST = b'{"name":"horon_timeline",'
_LONGEST = 1000  # bytes of the first event


def merge(out: str, files: Sequence[str]) -> None:
    """Writes the events of all files into `out`, which is replaced. Raises Refusal before that if
    one of the files is no timeline, is not whole, or is of another recording than the first."""
    if os.path.realpath(out) in map(os.path.realpath, files):
        raise Refusal(f"--merge-timelines would write over {out}, which it is to read")
    try:
        firsts = [_first_event(file) for file in files]
        for file, first in zip(files, firsts, strict=True):
            if first != firsts[0]:
                raise Refusal(f"{file} is of another recording than {files[0]}")
        _write(out, files, _OPEN + firsts[0])
    except OSError as error:
        raise Refusal(f"cannot merge: {error.filename or out}: {error.strerror}") from None


def _first_event(path: str) -> bytes:
    with open(path, "rb") as file:
        begin, first = file.readline(len(_OPEN)), file.readline(_LONGEST).rstrip(b",\n")
        if begin != _OPEN or not first.startswith(_FIRST):
            raise Refusal(f"{path} is no timeline of Horon's")
        file.seek(-len(_CLOSE), os.SEEK_END)
        if file.read() != _CLOSE:
            raise Refusal(f"{path} ends in the middle of an event: its job still writes, or died")
    return first


def _write(out: str, files: Sequence[str], begin: bytes) -> None:
    with open(out, "wb") as merged:
        merged.write(begin)
        for path in files:
            with open(path, "rb") as file:
                file.seek(len(begin))
                shutil.copyfileobj(file, merged)
            merged.seek(-len(_CLOSE), os.SEEK_CUR)  # the next one's events come before it
