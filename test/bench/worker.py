"""One rank of one library. Sleeps on a socket until the parent wants a measurement.

All libraries meet at the same barrier before each iteration: words in a shared file, so that no
library's own barrier flatters or harms it. Buffers are written anew before each iteration, as
backward does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import mmap
import os
import socket
import sys
import time
from functools import partial

import torch

from libraries import BY_NAME
from workloads import ONE_BY_ONE

LIMIT_S = 60.0


class Barrier:
    """Each rank counts up its own word and watches the others', yielding its core meanwhile."""

    STRIDE = 64  # bytes: a cache line each

    def __init__(self, path: str, rank: int, size: int) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        self.mine = rank * self.STRIDE // 8
        self.others = [r * self.STRIDE // 8 for r in range(size) if r != rank]
        self.count = 0
        self.spins = 50 if size <= len(os.sched_getaffinity(0)) else 0

    def wait(self) -> None:
        self.count += 1
        self.words[self.mine] = self.count
        deadline, looks = time.monotonic() + LIMIT_S, 0
        for other in self.others:
            while self.words[other] < self.count:
                looks += 1
                if looks > self.spins:
                    os.sched_yield()
                    if time.monotonic() > deadline:
                        raise TimeoutError("a rank did not come to the barrier")


def private(shapes: list, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape in shapes]


class Measure:
    """Buffers of one workload, and the time of each iteration over them."""

    def __init__(self, library, order: dict) -> None:
        self.library, self.name, self.kind = library, order["name"], order["kind"]
        dtype = getattr(torch, order["dtype"])
        empty = getattr(library, "empty", private)
        self.tensors = empty(order["shapes"], dtype)

    def dirty(self, iteration: int) -> None:
        for tensor in self.tensors:
            tensor.fill_(self.library.rank + 1 + iteration % 3)

    def check(self, iteration: int, results: list) -> None:
        size = self.library.size
        first, last = 1 + iteration % 3, size + iteration % 3  # what ranks 0 and size - 1 had
        total = size * (first + last) // 2
        if hasattr(self.library, "result"):  # else it adds
            total = self.library.result(list(range(first, last + 1)), self.name)
        want = {"broadcast": [first, first], "allgather": [first, last],
                "alltoall": [first, last]}.get(self.kind, [total, total])
        for tensor in (results[0], results[-1]):
            ends = tensor.view(-1)[[0, -1]].tolist()
            rounding = 2 * torch.finfo(tensor.dtype).eps
            if not all(map(partial(math.isclose, rel_tol=rounding), ends, want)):
                raise ArithmeticError(f"{self.name}: the ends are {ends}, not {want}")

    def operate(self) -> list:
        if self.kind == "allreduce":
            self.library.reduce(self.tensors, self.name)
            return self.tensors
        if self.kind == ONE_BY_ONE:
            for tensor in self.tensors:
                self.library.reduce([tensor], self.name)
            return self.tensors[-1:]
        return [self.library.collective(self.kind, self.tensors[0], self.name)]

    def run(self, barrier: Barrier, iterations: int) -> list[float]:
        taken = []
        for iteration in range(iterations):
            self.dirty(iteration)
            barrier.wait()
            start = time.perf_counter_ns()
            results = self.operate()
            taken.append((time.perf_counter_ns() - start) / 1e9)
        self.check(iterations - 1, results)
        return taken


def serve(library, channel, barrier: Barrier) -> None:
    measure, made = None, None
    for line in channel:
        order = json.loads(line)
        if order["do"] == "stop":
            return
        wanted = order.get("name"), order.get("memory")  # of "forget" none
        if measure is not None and made != wanted:
            measure = None
            release(library)
        reply = {}
        if order["do"] == "measure":
            if measure is None:
                measure, made = Measure(library, order), wanted
                if order["warm_up"]:
                    measure.run(barrier, order["warm_up"])
            reply["seconds"] = measure.run(barrier, order["iterations"])
        channel.write(json.dumps(reply) + "\n")
        channel.flush()


def release(library) -> None:
    """Gives the memory of tensors that nobody measures any more back to the system."""
    if hasattr(library, "forget"):
        library.forget()
    gc.collect()  # optimizers, which their hooks hold, and these them
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    name, address, words = sys.argv[1:4]
    torch.set_num_threads(1)
    library = BY_NAME[name]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        channel = connection.makefile("rw")
        hello = {"library": name, "rank": library.rank, "size": library.size, "note": library.note}
        channel.write(json.dumps(hello) + "\n")
        channel.flush()
        serve(library, channel, Barrier(words, library.rank, library.size))
    library.stop()


if __name__ == "__main__":
    main()
