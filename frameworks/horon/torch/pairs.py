"""What two ranks do without the others: collectives in a process set of the two.

A set is formed when its two first meet, by a thread: a rank that sends to the next one and receives
from the one before must not wait for the first before it has called the second.
"""

import threading
import time

from horon import _core
from horon.errors import HoronInvalidArgument, HoronMismatch
from horon.process_sets import form_process_set
from horon.torch.calls import Handle


class Later(Handle):
    """The handle of a call that has not started yet. `make` starts it."""

    def __init__(self, make):
        self._make = make
        self._whose = _core.hands_over()  # its thread waits for what the one that forms waits for
        self._started = threading.Event()
        self._handle = self._error = None

    def start(self, error=None) -> None:
        """With an error: it never will."""
        try:
            if error is not None:
                raise error
            self._handle = self._make()
        except Exception as failed:
            self._error = failed
        self._make = None
        _core.takes_back(self._whose)
        self._started.set()

    def done(self) -> bool:
        return self._started.is_set() and (self._error is not None or self._handle.done())

    def wait_for(self, ms) -> bool:
        begun = time.monotonic()
        if not self._started.wait(ms / 1000):
            return False
        left = ms - int(1000 * (time.monotonic() - begun))
        return self._error is not None or self._handle.wait_for(max(0, left))

    def wait(self):
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self._handle.wait()


class Pair:
    """Two ranks, in ascending order, of which this is one."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._lock = threading.Lock()
        self._set = None  # until it has been formed
        self._queued = []
        self._forming = False

    def start(self, make):
        """A handle of what make(process set) starts. Never waits for the other rank."""
        with self._lock:
            if self._set is None:
                later = Later(lambda: make(self._set))
                self._queued.append(later)
                if not self._forming:
                    self._forming = True
                    threading.Thread(target=self._form, name="horon-pair", daemon=True).start()
                return later
        return make(self._set)

    def _form(self):
        formed = error = None
        try:
            formed = form_process_set(self._ranks, in_time=True)
        except HoronInvalidArgument as refused:  # by all ranks together
            error = HoronMismatch(str(refused))
        except Exception as failed:
            error = failed  # whoever waits gets it; the next call tries again
        with self._lock:
            if error is None:
                self._set = formed
            queued, self._queued, self._forming = self._queued, [], False
            for later in queued:  # in their order, before any other
                later.start(error)
