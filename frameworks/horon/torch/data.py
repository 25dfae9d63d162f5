"""PyTorch's DataLoader with batches made ahead in a thread: also without worker processes."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from horon.data import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoader", "AsyncDataLoaderMixin", "BaseDataLoader"]


class _Loader(DataLoader):
    def _iterate(self) -> Iterator[Any]:
        return super().__iter__()

    def _process_batch(self, batch: Any) -> Any:
        return batch


class AsyncDataLoader(AsyncDataLoaderMixin, _Loader):
    """DataLoader(...) with async_loader_queue_size= before its own arguments."""
