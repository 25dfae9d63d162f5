"""Tensors in memory that the ranks of a node share: inside a node they are reduced where they lie.

A rank reads and writes its own tensors there as always. While a reduction of one is under way the
other ranks of the node write into it.
"""

import math

import torch

from horon import _core
from horon.process_sets import global_process_set
from horon.torch.calls import set_id

_ALIGNMENT = 64  # bytes: a tensor begins at a cache line


class SharedArena:
    """Room for so many bytes of tensors. All ranks of the set make it together and lay it out
    alike. Blocks."""

    def __init__(self, nbytes: int, process_set=global_process_set):
        self._memory = _core.SharedMemory(nbytes, set_id(process_set))
        self._used = 0

    @property
    def shared(self) -> bool:
        """Whether all ranks of each node have mapped it; otherwise it is ordinary memory."""
        return self._memory.shared

    @staticmethod
    def bytes_for(count: int, dtype: torch.dtype) -> int:
        return -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The next `count` elements, zeros. They keep the memory as long as they are used."""
        if count == 0:
            return torch.zeros(0, dtype=dtype)
        tensor = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._used)
        self._used += self.bytes_for(count, dtype)
        return tensor


def shared_zeros(*size, dtype=None, process_set=global_process_set) -> torch.Tensor:
    """A tensor of zeros on the CPU, which allreduce_ inside a node reduces without copying it: half
    the bytes to move. All ranks of the set call it together, with the same size and dtype; it
    blocks. HoronInvalidArgument (a ValueError) on all of them where sizes differ."""
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    dtype = dtype or torch.get_default_dtype()
    count = math.prod(size)
    arena = SharedArena(SharedArena.bytes_for(count, dtype), process_set)
    return arena.take(count, dtype).view(size)
