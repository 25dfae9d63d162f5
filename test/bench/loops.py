"""The yardstick: C++ loops that move what a sum must move and do nothing else (reference/*.cc).

One rank is one worker process, as of any other library. Their shared memory is of the kind that
Horon's shared tensors lie in (runtime/base/shared_memory.cc): a memfd, whose huge pages the kernel
grants by shmem_enabled where a file of /dev/shm has those of its mount, with the same advice. Each
page of a tensor is touched first by its own rank, which fills it before the others add.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

import torch

HEADER = 4096  # bytes, of world.h
# A rank's: the largest workload are BERT-base's gradients. Whole huge pages, so that every rank's
# begin in one as tensors do in Horon's memory, a page behind its start.
FLOATS = 105 << 20


def places(tensors) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


class Loops:
    """Tensors of float32 only; its ranks are started like gloo's."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.library = ctypes.CDLL(os.environ["BENCH_LOOPS"])
        with open(os.environ["BENCH_STORE"], "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        with suppress(OSError):  # a kernel without huge pages
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        cores = len(os.sched_getaffinity(0))
        self.library.loops_open(ctypes.c_void_p(start), self.rank, self.size, cores)
        self.given: dict[str, tuple] = {}  # what the C function takes, by workload
        self.note = "plain loops, " + self.__doc__.splitlines()[0]

    def empty(self, shapes, dtype) -> list[torch.Tensor]:
        if dtype != torch.float32:
            raise TypeError(f"the loops do not reduce {dtype}")
        return [torch.empty(shape, dtype=dtype) for shape in shapes]

    def arguments(self, tensors, name) -> tuple:
        if name not in self.given:
            counts = (ctypes.c_int64 * len(tensors))(*(t.numel() for t in tensors))
            self.given = {name: (places(tensors), counts, len(tensors))}
        return self.given[name]

    def stop(self) -> None:
        pass


class Streamed(Loops):
    """private tensors through a small shared buffer"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_streamed(*self.arguments(tensors, name))


class Staged(Loops):
    """private tensors, copied whole into shared memory and out again"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_staged(*self.arguments(tensors, name), ctypes.c_int64(FLOATS))


class InPlace(Loops):
    """tensors that lie in shared memory"""

    def empty(self, shapes, dtype) -> list[torch.Tensor]:
        super().empty([], dtype)
        tensors, at = [], HEADER + self.rank * FLOATS * 4
        for shape in shapes:
            tensor = torch.frombuffer(self.memory, dtype=dtype, count=torch.Size(shape).numel(),
                                      offset=at)
            tensors.append(tensor.view(shape))
            at += tensor.nbytes
        self.count = sum(t.numel() for t in tensors)
        return tensors

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_in_place(ctypes.c_int64(FLOATS), ctypes.c_int64(self.count))


class Mixed(Loops):
    """private tensors of two ranks, copied once through shared memory and averaged"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        arguments = self.arguments(tensors, name)
        self.library.loops_mixed(*arguments, arguments[0])

    def result(self, values: list[float], name: str) -> float:
        return sum(values) / len(values)


class MixedTo(Mixed):
    """private tensors of two ranks, copied once through shared memory; the averages are others"""

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[str, list[torch.Tensor]] = {}  # where the next averages go, by workload

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        if name not in self.others:
            self.others = {name: [torch.empty_like(t) for t in tensors]}
        means = self.others[name]
        _, counts, n = self.arguments(tensors, name)
        self.library.loops_mixed(places(tensors), counts, n, places(means))
        tensors[:], means[:] = means[:], tensors[:]


class TwoPass(Mixed):
    """Adasum of private tensors of two ranks"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_two_pass(*self.arguments(tensors, name), ctypes.c_int64(FLOATS))

    def result(self, values: list[float], name: str) -> float:
        """Of parallel vectors."""
        return sum(values) / len(values)
