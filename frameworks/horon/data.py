"""Data loaders that prepare the next batches while the ranks compute. No framework is involved.

Horovod's names (horovod.data): a loader has _iterate(), which yields an epoch's batches; the mix-in
runs that in a thread. horon.torch.data has the same for PyTorch's DataLoader.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any


class BaseDataLoader:
    """An epoch's batches come from _iterate(); each goes through _process_batch()."""

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """What the training loop gets for a batch, on its own thread: a copy to a device, say."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Epoch:
    """Batches between the thread that makes them and the one that takes them."""

    def __init__(self, batches: Iterator[Any], most: int) -> None:
        self._batches = batches
        self._most = most
        self._ready: deque[Any] = deque()
        self._changed = threading.Condition()
        self._over = False  # the last batch has been made, or making one failed
        self._unwanted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name="horon-data", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        error = None
        try:
            for batch in self._batches:
                if not self._put(batch):
                    break
        except BaseException as raised:
            error = raised
        with self._changed:
            self._over, self._error = True, error
            self._changed.notify_all()

    def _put(self, batch: Any) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._unwanted or len(self._ready) < self._most)
            if not self._unwanted:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._unwanted

    def take(self) -> Iterator[Any]:
        """The batches in order; what making them raised is raised in its place."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._over or self._unwanted)
                if not self._ready:
                    break
                batch = self._ready.popleft()
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """The thread ends after the batch that it is making."""
        with self._changed:
            self._unwanted = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()


class AsyncDataLoaderMixin:
    """Before a loader in the list of base classes: its batches are made ahead, in a thread.

    async_loader_queue_size: how many batches may lie ready; 0 makes them when they are asked for.
    An epoch that is left before its end, or close_async_loader(), ends the thread.
    """

    _epoch: _Epoch | None = None
    _queue_size = 64

    def __init__(self, async_loader_queue_size: int = 64, *args: Any, **kwargs: Any) -> None:
        if not isinstance(async_loader_queue_size, int):
            raise TypeError(
                f"async_loader_queue_size is {async_loader_queue_size!r}, not a number of batches; "
                "it comes before the loader's own arguments"
            )
        if async_loader_queue_size < 0:
            raise ValueError(f"async_loader_queue_size is {async_loader_queue_size}: at least 0")
        self._queue_size = async_loader_queue_size
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the thread, if there is one; an epoch under way ends where it is."""
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None

    def __iter__(self) -> Iterator[Any]:
        if self._queue_size == 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        self.close_async_loader()  # one epoch at a time: a new one ends the last
        epoch = self._epoch = _Epoch(self._iterate(), self._queue_size)
        try:
            for batch in epoch.take():
                yield self._process_batch(batch)
        finally:
            epoch.close()
