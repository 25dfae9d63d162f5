"""A horonrun as a child of this process: its output, its end, what its ranks sent back."""

from __future__ import annotations

import codecs
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import Any

import cloudpickle

from horon.errors import HoronRunError

_READ_BYTES = 1 << 16
_PACKET_BYTES = 1 << 13
_ENDING_S = 10.0  # that horonrun has after Ctrl-C; it needs two
_KEPT_LINES = 20
_WORKER = ("-m", "horon.runner.worker")


class _RemoteTraceback(Exception):
    """Shows the traceback of another process above the exception that it was of."""


class _Pipe:
    """Output of horonrun on its way to one of this process's streams."""

    def __init__(self, descriptor: int, stream) -> None:
        self._descriptor = descriptor
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = ""

    def pass_on(self) -> bool:
        """False at its end."""
        part = os.read(self._descriptor, _READ_BYTES)
        text = self._decoder.decode(part, final=not part)
        *lines, self._rest = (self._rest + text).split("\n")
        self.last_lines.extend(lines)
        self._stream.write(text)
        self._stream.flush()
        return bool(part)


class _Job:
    def __init__(self, program: str, options: list[str], task: bytes) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "horon.launcher", f"--task-socket={theirs.fileno()}"]
        with theirs:
            self.process = subprocess.Popen(
                [*command, *options, program, *_WORKER],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
            )
        self._send(task)
        self.errors = _Pipe(self.process.stderr.fileno(), sys.stderr)
        self._selector = selectors.DefaultSelector()
        output = _Pipe(self.process.stdout.fileno(), sys.stdout)
        self._watch(self.process.stdout, output.pass_on)
        self._watch(self.process.stderr, self.errors.pass_on)
        self._watch(self._socket, self._on_packet)
        self.outcomes: dict[int, bytes] = {}  # by rank
        self.size = 0  # of the job; 0 until it has ended
        self.culprit: tuple[int, str] | None = None  # rank, and how it ended

    def _send(self, task: bytes) -> None:
        memory = os.memfd_create("task")
        with open(memory, "wb") as file:
            file.write(task)
            file.flush()
            try:
                socket.send_fds(self._socket, [b"task"], [memory])
            except OSError:
                pass  # horonrun has ended already, and has said why

    def _watch(self, source, read) -> None:
        self._selector.register(source, selectors.EVENT_READ, read)

    def _on_packet(self) -> bool:
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, _PACKET_BYTES, 1)
        except ConnectionResetError:  # it ended without taking the task
            return False
        match = re.fullmatch(rb"(result|size|failed) (\d+)(?: (.*))?", packet, re.DOTALL)
        if match is not None and match[1] == b"failed":
            self.culprit = int(match[2]), match[3].decode(errors="replace")
        elif match is not None and match[1] == b"size":
            self.size = int(match[2])
        for memory in files:
            with open(memory, "rb") as file:
                file.seek(0)
                self.outcomes[int(match[2])] = file.read()
        return bool(packet)

    def serve(self, seconds: float | None = None) -> None:
        """Until horonrun has closed everything, or so long."""
        end = None if seconds is None else time.monotonic() + seconds
        while self._selector.get_map() and (end is None or time.monotonic() < end):
            for key, _ in self._selector.select(seconds):
                if not key.data():
                    self._selector.unregister(key.fileobj)

    def interrupt(self) -> None:
        """Ctrl-C, as horonrun takes it from a terminal."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.serve(_ENDING_S)
        except KeyboardInterrupt:
            self.process.kill()  # its guard ends the ranks

    def close(self) -> int:
        """horonrun's exit code. Whatever happened, nothing of the job is left."""
        self._selector.close()
        self._socket.close()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()  # where we could not go on reading, its next line ends it
        if self.size == 0:
            self.process.terminate()
        return self.process.wait()


def run(program: str, options: list[str], task: bytes) -> list[Any]:
    """Starts horonrun with these options, and returns what the function returned on each rank."""
    job = _Job(program, options, task)
    try:
        job.serve()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        code = job.close()
    returned: dict[int, bytes] = {}
    raised: dict[int, BaseException] = {}
    words: dict[int, str] = {}
    for rank, pickled in sorted(job.outcomes.items()):
        well, value, words[rank], text = cloudpickle.loads(pickled)
        if well:
            returned[rank] = value
        else:
            raised[rank] = _exception(value, words[rank], text)
    if code != 0 or len(returned) != job.size:
        raise _failure(job, code, raised, words)
    return [_unpickled(rank, returned[rank], words[rank]) for rank in sorted(returned)]


def _unpickled(rank: int, value: bytes, kind: str) -> Any:
    try:
        return cloudpickle.loads(value)
    except Exception as error:
        raise HoronRunError(
            f"horon.run: rank {rank} returned a {kind} that cannot be unpickled here: "
            f"{type(error).__name__}: {error}",
            rank,
        ) from error


def _exception(pickled: bytes | None, words: str, text: str) -> BaseException:
    """What was raised; a RuntimeError with the words where that cannot be had here."""
    error: BaseException = RuntimeError(words)
    if pickled is not None:
        try:
            error = cloudpickle.loads(pickled)
        except Exception:
            pass  # its class may be of a module that only the rank can import
    error.__cause__ = _RemoteTraceback(f"\n{text}")
    return error


def _failure(
    job: _Job, code: int, raised: dict[int, BaseException], words: dict[int, str]
) -> HoronRunError:
    said = [line for line in job.errors.last_lines if line.startswith("horonrun: ")]
    if job.culprit is not None:
        rank, sentence = job.culprit
    elif raised:
        rank = min(raised)
        sentence = f"rank {rank} raised {words[rank]}"
    elif code == 0:
        rank = min(set(range(job.size)) - set(job.outcomes))
        sentence = f"rank {rank} ended before the function returned"
    else:
        last = said[-1][len("horonrun: ") :] if said else f"horonrun ended with {code}"
        rank, sentence = None, last
    failure = HoronRunError(f"horon.run: {sentence}", rank, raised)
    failure.__cause__ = raised.get(rank)
    return failure
