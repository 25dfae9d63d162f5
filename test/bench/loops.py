"""The yardstick: C++ loops that move what a sum must move and do nothing else (reference/*.cc).

One rank is one worker process, as of any other library. Their shared memory is of the kind that
Horon's shared tensors lie in (runtime/base/shared_memory.cc): a memfd, whose huge pages the kernel
grants by shmem_enabled where a file of /dev/shm has those of its mount, with the same advice.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from contextlib import suppress

import torch

HEADER = 4096  # bytes, of world.h: a line a rank, whose count is followed by what a rank tells
LINE, COUNT = 64, 8
FLOATS = 105 << 20  # a rank's: the largest workload are BERT-base's gradients
BEHIND = 4096  # bytes, after which tensors begin in Horon's memory


def places(tensors) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


def mapped(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Loops:
    """Tensors of float32 only; its ranks are started like gloo's."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.library = ctypes.CDLL(os.environ["BENCH_LOOPS"])
        self.memory = mapped(os.environ["BENCH_STORE"])
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        cores = len(os.sched_getaffinity(0))
        self.library.loops_open(ctypes.c_void_p(start), self.rank, self.size, cores)
        self.forget()
        self.note = "plain loops, " + self.__doc__.splitlines()[0]

    def forget(self) -> None:
        self.given: tuple = (None, ())  # tensors, and what the C function takes for them

    def empty(self, shapes, dtype) -> list[torch.Tensor]:
        if dtype != torch.float32:
            raise TypeError(f"the loops do not reduce {dtype}")
        return [torch.empty(shape, dtype=dtype) for shape in shapes]

    def arguments(self, tensors) -> tuple:
        if self.given[0] is not tensors:
            counts = (ctypes.c_int64 * len(tensors))(*(t.numel() for t in tensors))
            self.given = tensors, (places(tensors), counts, len(tensors))
        return self.given[1]

    def stop(self) -> None:
        pass


class Streamed(Loops):
    """private tensors through a small shared buffer"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_streamed(*self.arguments(tensors))


class Staged(Loops):
    """private tensors, copied whole into shared memory and out again"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_staged(*self.arguments(tensors), ctypes.c_int64(FLOATS))


class InPlace(Loops):
    """tensors that lie in shared memory

    As Horon's do: a file a rank, made with the workload's tensors, of which each page is touched
    first by its own rank.
    """

    def forget(self) -> None:
        super().forget()
        self.rows, self.places = [], None

    def empty(self, shapes, dtype) -> list[torch.Tensor]:
        super().empty([], dtype)
        counts = [torch.Size(shape).numel() for shape in shapes]
        self.count = sum(counts)
        own = os.memfd_create("horon-bench-tensors")
        os.truncate(own, BEHIND + 4 * self.count)
        rows = [torch.frombuffer(memory, dtype=dtype, count=self.count, offset=BEHIND)
                for memory in self.of_all(own)]
        self.rows, self.places = rows, places(rows)
        pieces = rows[self.rank].split(counts)
        return [piece.view(shape) for piece, shape in zip(pieces, shapes)]

    def of_all(self, own: int) -> list[mmap.mmap]:
        """Each rank's file, mapped; closes the own one."""
        told = struct.Struct("2i")  # process and descriptor
        told.pack_into(self.memory, self.rank * LINE + COUNT, os.getpid(), own)
        self.library.loops_meet()
        whose = [told.unpack_from(self.memory, r * LINE + COUNT) for r in range(self.size)]
        memories = [mapped(f"/proc/{process}/fd/{descriptor}") for process, descriptor in whose]
        self.library.loops_meet()
        os.close(own)
        return memories

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_in_place(self.places, ctypes.c_int64(self.count))


class Mixed(Loops):
    """private tensors of two ranks, copied once through shared memory and averaged"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        arguments = self.arguments(tensors)
        self.library.loops_mixed(*arguments, arguments[0])

    def result(self, values: list[float], name: str) -> float:
        return sum(values) / len(values)


class MixedTo(Mixed):
    """private tensors of two ranks, copied once through shared memory; the averages are others"""

    def forget(self) -> None:
        super().forget()
        self.others: tuple = (None, [])  # tensors, and where their next averages go

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        if self.others[0] is not tensors:
            self.others = tensors, [torch.empty_like(t) for t in tensors]
        means = self.others[1]
        _, counts, n = self.arguments(tensors)
        self.library.loops_mixed(places(tensors), counts, n, places(means))
        tensors[:], means[:] = means[:], tensors[:]


class TwoPass(Mixed):
    """Adasum of private tensors of two ranks"""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.library.loops_two_pass(*self.arguments(tensors), ctypes.c_int64(FLOATS))

    def result(self, values: list[float], name: str) -> float:
        """Of parallel vectors."""
        return sum(values) / len(values)
