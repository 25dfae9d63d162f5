"""torch futures of handles: what torch's own code waits for.

One thread for the whole program waits for handles in the order in which their futures were asked
for. It is made when the first future is, and ends before the interpreter does.
"""

import atexit
import queue
import threading

import torch

from horon import _core
from horon.runtime import shutdown


class _Keeper:
    """The thread, and what it has still to wait for."""

    def __init__(self):
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="horon-futures", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def add(self, wait, future) -> None:
        # torch's code on this thread is going to wait for the future, and so for what we wait for.
        self._waiting.put((wait, future, _core.hands_over()))

    def _run(self):
        while (item := self._waiting.get()) is not None:
            *promise, whose = item
            keep_promise(*promise)
            _core.takes_back(whose)
            # Tensors must not live on while the thread waits for the next one.
            item = promise = None

    def _end(self):
        shutdown()  # what is pending fails, so that nothing is waited for
        self._waiting.put(None)
        self._thread.join()


_lock = threading.Lock()
_keeper = None


def keep_promise(wait, future) -> None:
    """Sets the future to what wait() gives, or to what it raises."""
    try:
        future.set_result(wait())
    except Exception as error:
        future.set_exception(error)


def future_of(wait, done: bool = False) -> torch.futures.Future:
    """A future that will have what wait() gives; `done`: it gives it at once."""
    global _keeper
    future = torch.futures.Future()
    if done:
        keep_promise(wait, future)
        return future
    with _lock:
        if _keeper is None:
            _keeper = _Keeper()
    _keeper.add(wait, future)
    return future
