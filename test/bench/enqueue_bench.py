"""What handing one tensor to the runtime costs the program's thread, in Python.

    horonrun -np 2 python test/bench/enqueue_bench.py

Two ways: by name, as `allreduce_async_(tensor, name=...)` in a loop over tensors that come again in
each step; and registered, as DistributedOptimizer's hooks do when a gradient is ready. Processor
time of the calling thread alone, a step at a time, over the tensors of the step; waiting for the
results is not part of it. Rank 0 prints the median step and the best, of the slower rank.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from registered import Registered

import horon.torch as hvd


def by_name(tensors: list[torch.Tensor]) -> Callable[[], list]:
    """Submits all; the handles."""
    names = [f"tensor{i}" for i in range(len(tensors))]
    return lambda: [
        hvd.allreduce_async_(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)
    ]


def steps(submit: Callable[[], object], wait: Callable[[object], None], count: int) -> list[float]:
    """Seconds of the calling thread in each submit."""
    times = []
    for _ in range(count):
        begun = time.thread_time()
        started = submit()
        times.append(time.thread_time() - begun)
        wait(started)
    return times


def report(way: str, times: list[float], tensors: int) -> None:
    """Of the slower rank."""
    mine = torch.tensor([statistics.median(times), min(times)]) / tensors * 1e6
    median, best = hvd.allreduce(mine, op=hvd.Max, name=f"report.{way}").tolist()
    if hvd.rank() == 0:
        print(f"| {way} | {median:.2f} us | {best:.2f} us |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=161)
    parser.add_argument("--elements", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--way", choices=["by name", "registered"], help="only this one")
    options = parser.parse_args()
    hvd.init()
    tensors = [torch.ones(options.elements) for _ in range(options.tensors)]
    if hvd.rank() == 0:
        print("| way | median | best |\n|---|---|---|")
    gradients = [torch.ones_like(tensor) for tensor in tensors]
    registered = Registered(gradients, hvd.Average, "gradient")
    ways = {
        "by name": (by_name(tensors), lambda handles: [hvd.synchronize(h) for h in handles]),
        "registered": (registered.submit, lambda _: registered.wait()),
    }
    for way, (submit, wait) in ways.items():
        if options.way not in (None, way):
            continue
        steps(submit, wait, 20)
        report(way, steps(submit, wait, options.steps), options.tensors)


if __name__ == "__main__":
    main()
