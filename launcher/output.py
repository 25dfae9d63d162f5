"""The ranks' output on its way to the user: whole lines, with the rank before each.

On a terminal unfinished lines (prompts, progress bars that rewrite themselves with a carriage
return) are shown at once; when another rank has something to say, its line goes above and the
unfinished one is drawn again below. Into a file or a pipe only whole lines are written, byte for
byte.

A reader that stands still is waited for (job.py says how long), and nothing is read from the ranks
meanwhile, so they wait, too.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from .refusal import Refusal

_COLOURS = (36, 33, 32, 35, 34, 31)
_CLEAR_LINE = b"\r\x1b[K"
_LONGEST_LINE = 1 << 16  # more without a line end is written as it is
_LIBC = ctypes.CDLL(None, use_errno=True)


class Screen:
    """One place that output goes to: a terminal, a file or a pipe. Several streams may share it.

    `wait` returns when it takes something; false: what is not written yet is dropped.
    """

    def __init__(self, descriptor: int, wait: Callable[[int], bool]) -> None:
        self.descriptor = descriptor
        self._wait = wait
        self.terminal = os.isatty(descriptor)
        self.over = False  # takes nothing of the ranks' any more
        self._open: Stream | None = None  # whose unfinished line stands on the terminal

    def same_as(self, descriptor: int) -> bool:
        return os.path.samestat(os.fstat(self.descriptor), os.fstat(descriptor))

    def lines(self, stream: Stream, lines: bytes, unfinished: bytes) -> None:
        """Writes whole lines of a stream; on a terminal also what follows the last of them."""
        if not self.terminal:
            self.write(lines)
            return
        shown = b""
        if self._open is not None and (lines or self._open is stream):
            shown += _CLEAR_LINE
        shown += lines
        if self._open is stream or (self._open is None and unfinished):
            self._open = stream if unfinished else None
            shown += unfinished
        elif self._open is not None and lines:
            shown += self._open.unfinished
        self.write(shown)

    def close(self, stream: Stream) -> None:
        """The stream has ended: its unfinished line stays."""
        if self._open is stream:
            self._open = None
            self.write(b"\n")

    def write(self, text: bytes) -> None:
        """In pieces that a pipe takes without blocking when it is ready, and whole lines if they
        fit."""
        at = 0
        while at < len(text) and self._wait(self.descriptor):
            most = at + select.PIPE_BUF
            end = len(text) if most >= len(text) else text.rfind(b"\n", at, most) + 1 or most
            at += _write_now(self.descriptor, text[at:end])


def _write_now(descriptor: int, text: bytes) -> int:
    """How many bytes it took; 0 if it is full, or a signal came, after which os.write would begin
    again. It is full or blocks only if another process writes there, too. Raises OSError."""
    written = int(_LIBC.write(descriptor, text, len(text)))
    if written >= 0:
        return written
    number = ctypes.get_errno()
    if number in (errno.EAGAIN, errno.EINTR):
        return 0
    raise OSError(number, os.strerror(number))


class _Words(io.RawIOBase):
    """A screen as a file."""

    def __init__(self, screen: Screen, replaced: TextIO) -> None:
        self._screen = screen
        self._replaced = replaced  # may close the descriptor when nobody has it any more

    def fileno(self) -> int:
        return self._screen.descriptor

    def isatty(self) -> bool:
        return self._screen.terminal

    def writable(self) -> bool:
        return True

    def write(self, text) -> int:
        self._screen.write(bytes(text))
        return len(text)


def own_words(screen: Screen) -> io.TextIOWrapper:
    """In place of sys.stderr: for what horonrun itself says there."""
    return io.TextIOWrapper(
        _Words(screen, sys.stderr), sys.stderr.encoding, sys.stderr.errors, line_buffering=True
    )


class Stream:
    """Output of one rank on stdout or stderr."""

    def __init__(
        self,
        screen: Screen,
        rank: int,
        prefix: bool,
        kept_lines: int = 0,
        timestamps: bool = False,
        copy: BinaryIO | None = None,  # gets what the rank wrote, as it is
    ) -> None:
        self._screen = screen
        self._timestamps = timestamps
        self._copy = copy
        self._prefix = b""
        if prefix:
            self._prefix = f"[{rank}] ".encode()
            if screen.terminal:
                self._prefix = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], self._prefix)
        self._rest = b""
        self._last: deque[bytes] = deque(maxlen=kept_lines)

    @property
    def unfinished(self) -> bytes:
        """The line that has not ended yet, as a terminal shows it."""
        shown = re.split(rb"[\r\n]", self._rest.rstrip(b"\r\n"))[-1]
        return self._before() + shown if shown else b""

    def _before(self) -> bytes:
        if not self._timestamps:
            return self._prefix
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        return b"%s.%03d %s" % (stamp.encode(), now % 1 * 1000, self._prefix)

    @property
    def last_lines(self) -> list[str]:
        """The end of what was written, a rewritten line only as it was in the end."""
        texts = (line.rstrip(b"\r\n").split(b"\r")[-1] for line in self._last)
        return [text.decode(errors="replace") for text in texts]

    def feed(self, text: bytes) -> None:
        """Takes what the rank wrote."""
        if self._copy is not None:
            self._copy.write(text)
        if self._screen.over:
            return
        lines = (self._rest + text).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST_LINE:
            if self._screen.terminal:
                self._rest = re.split(rb"\r", self._rest)[-1][-_LONGEST_LINE:]
            else:
                lines.append(self._rest)
                self._rest = b""
        self._last.extend(lines)
        self._screen.lines(self, b"".join(self._shown(line) for line in lines), self.unfinished)

    def _shown(self, line: bytes) -> bytes:
        if self._screen.terminal:  # what was overwritten has been seen
            line = line.rstrip(b"\r").split(b"\r")[-1]
        return self._before() + line + b"\n"

    def end(self) -> None:
        """The rank has closed it."""
        if self._copy is not None:
            self._copy.close()
        if self._rest:
            self._last.append(self._rest)
            if not self._screen.terminal:
                self._screen.lines(self, self._shown(self._rest), b"")
        self._screen.close(self)
        self._rest = b""


def screens(
    wait: Callable[[int], bool], stdout: int = 1, stderr: int = 2
) -> tuple[Screen, Screen]:
    """Where stdout and stderr go: one screen when both are the same terminal."""
    out = Screen(stdout, wait)
    return out, out if out.terminal and out.same_as(stderr) else Screen(stderr, wait)


def copies(folder: str, ranks: int) -> dict[tuple[int, bool], BinaryIO]:
    """A file for each rank's stdout and stderr, by rank and whether it is stderr."""
    files: dict[tuple[int, bool], BinaryIO] = {}
    digits = len(str(ranks - 1))
    try:
        for rank in range(ranks if folder else 0):
            place = Path(folder) / f"rank.{rank:0{digits}d}"
            place.mkdir(parents=True, exist_ok=True)
            for errors, name in ((False, "stdout"), (True, "stderr")):
                files[rank, errors] = open(place / name, "wb", buffering=0)
    except OSError as error:
        raise Refusal(f"--output-filename: {error.filename}: {error.strerror}") from None
    return files
