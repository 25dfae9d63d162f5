"""Pending: what a collective of the backend gives back, as torch.distributed.Work."""

import threading

import torch.distributed as dist

from horon.torch.futures import future_of


class Pending(dist.Work):
    """`tensors`: what its future holds when `handle` is done."""

    def __init__(self, handle, tensors):
        super().__init__()
        self._handle = handle
        self._tensors = tensors
        self._future = None
        self._lock = threading.Lock()  # a future's thread and the program may both wait
        self._error = None

    def wait(self, timeout=None) -> bool:
        with self._lock:
            try:
                self._handle.wait()
            except Exception as error:
                self._error = error
                raise
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._handle.done()

    def is_success(self) -> bool:
        return self._handle.done() and self.exception() is None

    def exception(self):
        if self._handle.done() and self._error is None:
            try:
                self.wait()
            except Exception:
                pass  # it is in _error
        return self._error

    def result(self) -> list:
        self.wait()
        return self._tensors

    def get_future(self):
        """For DDP's reducer, which is C++: it sees an error only of what `then` has made, and takes
        one that a future was given for its tensors."""
        if self._future is None:
            self._future = future_of(self.result, self._handle.done()).then(_value)
        return self._future


def _value(future):
    return future.value()  # or raises
