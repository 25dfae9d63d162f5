"""What recording a timeline costs a training step: interleaved pairs of steps with and without it.

    horonrun -np 2 python test/bench/timeline_bench.py

A step computes for as long as --compute-ms says, in processor time, and reduces the gradients of
ResNet-50, as its DistributedOptimizer would: 161 tensors, one call each. Rank 0 prints, of all
ranks: the median of the pairs' ratios, which on a shared machine is mostly noise; and the processor
time of the recording's own thread as a share of the steps'.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from workloads import gradient_order, resnet50_shapes

import horon.torch as hvd


def thread_seconds(name: str) -> float:
    """Processor time so far of this process's threads of that name."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text(encoding="utf-8").strip() == name:
                total += int((task / "schedstat").read_text(encoding="utf-8").split()[0])
        except (FileNotFoundError, ProcessLookupError):  # another thread, which has ended
            pass
    return total / 1e9


class Step:
    def __init__(self, compute_ms: float) -> None:
        self._gradients = [torch.ones(shape) for shape in gradient_order(resnet50_shapes())]
        self._compute = compute_ms / 1e3
        self._square = torch.ones(256, 256)

    def run(self) -> float:
        begun, processor = time.perf_counter(), time.thread_time()
        while time.thread_time() - processor < self._compute:
            self._square @ self._square
        handles = [
            hvd.allreduce_async_(g, name=f"g{i}") for i, g in enumerate(self._gradients)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        return time.perf_counter() - begun


def measure(step: Step, pairs: int, steps: int, path: str) -> tuple[list[float], float, float]:
    ratios, writer, used = [], 0.0, 0.0
    for pair in range(pairs):
        times = {}
        for recorded in (pair % 2 == 0, pair % 2 != 0):
            if recorded:
                hvd.start_timeline(path)
            hvd.barrier()
            step.run()
            processor = time.process_time()
            times[recorded] = sum(step.run() for _ in range(steps))
            if recorded:
                used += time.process_time() - processor
                writer += thread_seconds("horon-timeline")
                hvd.stop_timeline()
        ratios.append(times[True] / times[False])
    return ratios, writer, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5, help="of each half of a pair")
    parser.add_argument("--compute-ms", type=float, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    step = Step(options.compute_ms)
    for _ in range(20):
        step.run()
    with tempfile.TemporaryDirectory() as own:
        path = hvd.broadcast_object(os.path.join(own, "timeline.json"), root_rank=0)
        results = hvd.allgather_object(measure(step, options.pairs, options.steps, path))
    events, dropped = hvd.counter("timeline.events"), hvd.counter("timeline.dropped")
    if hvd.rank() != 0:
        return
    for rank, (ratios, writer, used) in enumerate(results):
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"rank {rank}: with / without {middle:.4f} (quartiles {low:.4f} {high:.4f}), "
            f"writer {writer / used:.3%} of the steps' processor time, "
            f"{1e6 * writer / options.pairs / (options.steps + 1):.0f} us a step"
        )
    recorded = options.pairs * (options.steps + 1)
    print(f"{events / recorded:.0f} events a step, {dropped} dropped")


main()
