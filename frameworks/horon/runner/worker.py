"""What a rank of horon.run runs: it takes the function, calls it, and sends back what became of it.

Both travel as memory files over the socket that horonrun gives to each rank. The function is the
first packet on it; the runtime reads it only afterwards, in init().
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

import cloudpickle


def _receive(launcher: socket.socket) -> bytes:
    packet, files, _, _ = socket.recv_fds(launcher, 16, 1)
    if packet != b"task" or not files:
        raise SystemExit("horon.runner.worker is started by horon.run only")
    with open(files[0], "rb", closefd=True) as file:
        file.seek(0)
        return file.read()


def _send(launcher: socket.socket, outcome: tuple) -> None:
    """outcome: whether it returned; the pickled value, or exception or None; in words what that is,
    for whoever cannot unpickle it; the traceback."""
    pickled = cloudpickle.dumps(outcome)
    memory = os.memfd_create("result")
    with open(memory, "wb") as file:
        file.write(pickled)
        file.flush()
        socket.send_fds(launcher, [b"result %d" % len(pickled)], [memory])


def _call(task: bytes) -> tuple[bytes, str]:
    """What the function returned, pickled, and its type's name."""
    path, call = cloudpickle.loads(task)
    sys.path += [folder for folder in path if folder not in sys.path]
    func, args, kwargs = cloudpickle.loads(call)
    value = func(*args, **kwargs)
    name = type(value).__name__
    try:
        return cloudpickle.dumps(value), name
    except Exception as error:
        why = " ".join(str(error).split())
        raise TypeError(f"the function returned a {name} that cannot be pickled: {why}") from None


def _pickled_exception(error: BaseException) -> bytes | None:
    """None when it cannot be sent; then its traceback has to do."""
    try:
        pickled = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)  # a class with an __init__ of its own may refuse
        return pickled
    except Exception:
        return None


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # from a __str__ of its own
        return type(error).__name__


def main() -> None:
    """An exception leaves it as it would leave a script, so that the other ranks are told, before
    init() as well."""
    launcher = socket.socket(fileno=os.dup(int(os.environ["HORON_LAUNCHER_FD"])))
    task = _receive(launcher)
    try:
        _send(launcher, (True, *_call(task), ""))
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        _send(launcher, (False, _pickled_exception(error), _in_words(error), text))
        raise


if __name__ == "__main__":
    main()
