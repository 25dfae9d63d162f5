"""A started process: in a group of its own, with pipes, and a socket to the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess

from . import limits, timeline_end

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PACKET_BYTES = 4096


class Child:
    """A rank's process. Used by horonrun for ranks beside it, by a keeper for its one rank."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        stdin: int | None,
        task: int | None = None,  # a descriptor that the first packet brings
    ) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = subprocess.Popen(
                command,
                env={**environment, "HORON_LAUNCHER_FD": str(theirs.fileno())},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno()],
                preexec_fn=in_the_child(os.getpid(), signal.SIGKILL),
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.socket.setblocking(False)
        self._timeline = timeline_end.path(environment)
        if task is not None:
            self.send(b"task", task)
        self.read_all = True  # false once it has closed its end with packets of ours unread
        self.short = False  # of descriptors: one that came got lost
        self._code: int | None = None  # its status, once it has ended
        self._killed = False  # it, and all that it started

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """Its status as subprocess says it, once it has ended. It may have left the file of its
        timeline torn; that is mended.

        It stays a zombie until all that it started has been killed: its number, which is that of
        its group as well, becomes nobody else's.
        """
        if self._code is None and (code := _ended(self.pid)) is not None:
            self._code = code
            if self._timeline:
                timeline_end.mend(self._timeline)
        if self._code is not None and self._killed:
            self.process.poll()
        return self._code

    def receive(self) -> tuple[bytes, list[int]] | None:
        """A packet of its and the descriptors in it; an empty one when it has closed its end. None:
        nothing lies there now."""
        try:
            packet, files, flags, _ = socket.recv_fds(self.socket, _PACKET_BYTES, 1)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # said once, before what it has sent, its last words among it
            self.read_all = False
            return self.receive()
        except OSError:
            self.read_all = False
            return b"", []
        self.short = self.short or bool(flags & socket.MSG_CTRUNC)
        return packet, files

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        if descriptor is None:
            self.socket.send(packet, socket.MSG_NOSIGNAL)
        else:
            socket.send_fds(self.socket, [packet], [descriptor])

    def kill(self, number: int) -> None:
        """Sends a signal to everything that it started."""
        if self.process.returncode is not None:
            return  # all of it was killed, and the number may be somebody else's by now
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # all of it has ended
        if number == signal.SIGKILL:
            self._killed = True
            self.poll()


def _ended(pid: int) -> int | None:
    """A child's status as subprocess says it, once it has ended; the kernel keeps it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def in_the_child(parent: int, when_it_dies: int):
    """What a child does before it becomes its program."""

    def prepare() -> None:
        limits.give_back()
        os.setpgid(0, 0)  # a group of its own, so that everything it starts can be ended with it
        _LIBC.prctl(_PR_SET_PDEATHSIG, when_it_dies)
        if os.getppid() != parent:  # it died before prctl took hold
            os.kill(os.getpid(), signal.SIGKILL)
        # The launcher ignores or masks some of these; its children start afresh.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)

    return prepare


def name_this_process(name: str) -> None:
    """As ps -o comm and pkill know it."""
    _LIBC.prctl(_PR_SET_NAME, name.encode())


def signal_when_parent_dies(number: int) -> None:
    """Its death becomes a signal of this process."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
