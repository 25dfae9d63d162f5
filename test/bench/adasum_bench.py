"""Adasum beside Average, in one run: medians over interleaved repetitions.

    horonrun -np 2 python test/bench/adasum_bench.py [--repeat 15] [--markdown FILE]

Each row is one set of tensors in one dtype, reduced in place and asynchronously, as the hooks of an
optimizer do; a repetition is one pass of every op in turn, so that what else the machine does falls
on all alike. Two times for each: from the first submit to the last result on the slowest rank, and
processor time, the mean of the ranks, which a busy machine changes less. `loop` is what one rank
must compute for an Adasum of two, and nothing else: dots of two halves and their combination, in
PyTorch on one thread.
"""

import argparse
import statistics
import time

import torch
from workloads import gradient_order, resnet50_shapes

import horon.torch as hvd

SETS = {
    "1 MiB": [(1 << 18,)],
    "64 MiB": [(1 << 24,)],
    "ResNet-50": list(gradient_order(resnet50_shapes())),
}
OPS = {"average": hvd.Average, "adasum": hvd.Adasum}
HEADS = ["dtype", "Average ms", "Adasum ms", "ratio", "Average cpu", "Adasum cpu", "ratio", "loop"]


def run(tensors, op, name) -> tuple:
    """Seconds on the slowest rank, and of processor time on the mean rank; all begin together."""
    hvd.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    handles = [
        hvd.allreduce_async_(tensor, op=op, name=f"{name}.{i}") for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    mine = torch.tensor([time.perf_counter() - wall, time.process_time() - cpu]).double()
    slowest = hvd.allreduce(mine, op=hvd.Max)
    return slowest[0].item(), hvd.allreduce(mine)[1].item()


def loop(tensors) -> float:
    halves = [tensor.flatten().split((tensor.numel() + 1) // 2) for tensor in tensors]
    pairs = [(parts[0], parts[-1]) for parts in halves if parts[0].numel() == parts[-1].numel()]
    start = time.process_time()
    for a, b in pairs:
        dot, aa, bb = torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)
        torch.mul(a, 1 - dot / (2 * aa)).add_(b, alpha=1 - (dot / (2 * bb)).item())
    return time.process_time() - start


def measure(name, shapes, dtype, repeat) -> list:
    """A row's cells."""
    generator = torch.Generator().manual_seed(hvd.rank())
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    times, loops = {op: [] for op in OPS}, []
    for turn in range(repeat + 2):
        taken = {label: run(tensors, op, f"{name}.{dtype}.{label}") for label, op in OPS.items()}
        if turn < 2:
            continue
        for label in OPS:
            times[label].append(taken[label])
        loops.append(loop(tensors))
    cells = []
    for which in (0, 1):
        ms = [1e3 * statistics.median(t[which] for t in times[op]) for op in OPS]
        cells += [f"{ms[0]:.2f}", f"{ms[1]:.2f}", f"{ms[1] / ms[0]:.2f}"]
    return cells + [f"{1e3 * statistics.median(loops):.2f}"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeat", type=int, default=15)
    arguments.add_argument("--markdown")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    lines = [f"| {hvd.size()} ranks | " + " | ".join(HEADS) + " |", "|---" * 9 + "|"]
    for name, shapes in SETS.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            cells = measure(name, shapes, dtype, options.repeat)
            lines.append(f"| {name} | {str(dtype)[6:]} | " + " | ".join(cells) + " |")
    if hvd.rank() == 0:
        print("\n".join(lines))
        if options.markdown:
            with open(options.markdown, "w") as file:
                file.write("\n".join(lines) + "\n")
    hvd.shutdown()


main()
