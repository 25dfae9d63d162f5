"""Adasum beside Average, in one run: medians over interleaved repetitions.

    horonrun -np 2 python test/bench/adasum_bench.py [--repeat 15] [--markdown FILE]

Each row is one set of tensors in one dtype, reduced in place and asynchronously, as the hooks of an
optimizer do; a repetition is one pass of every op in turn, so that what else the machine does falls
on all alike. `loop` is what one rank has to compute for an Adasum of two, and nothing else: dots of
two halves and their combination, in PyTorch, one thread.
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
OPS = {
    "average": hvd.Average,
    "adasum": hvd.Adasum,
    "doubling": hvd.AdasumOp(algorithm="doubling"),
    "tree": hvd.AdasumOp(algorithm="tree"),
}


def run(tensors, op, name) -> float:
    """Seconds from the first submit to the last result on this rank; all begin together."""
    hvd.barrier()
    start = time.perf_counter()
    handles = [
        hvd.allreduce_async_(tensor, op=op, name=f"{name}.{i}") for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    return time.perf_counter() - start


def loop(tensors) -> float:
    halves = [tensor.flatten().split((tensor.numel() + 1) // 2) for tensor in tensors]
    pairs = [(parts[0], parts[-1]) for parts in halves if parts[0].numel() == parts[-1].numel()]
    start = time.perf_counter()
    for a, b in pairs:
        dot, aa, bb = torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)
        torch.mul(a, 1 - dot / (2 * aa)).add_(b, alpha=1 - (dot / (2 * bb)).item())
    return time.perf_counter() - start


def measure(name, shapes, dtype, repeat) -> dict:
    """Milliseconds by op: the median of the slowest rank's times."""
    generator = torch.Generator().manual_seed(hvd.rank())
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    times = {op: [] for op in [*OPS, "loop"]}
    for turn in range(repeat + 2):
        for label, op in OPS.items():
            elapsed = torch.tensor(run(tensors, op, f"{name}.{dtype}.{label}"), dtype=torch.float64)
            elapsed = hvd.allreduce(elapsed, op=hvd.Max).item()
            if turn >= 2:
                times[label].append(elapsed)
        if dtype == torch.float32 and turn >= 2:
            times["loop"].append(loop(tensors))
    return {op: 1e3 * statistics.median(t) for op, t in times.items() if t}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeat", type=int, default=15)
    arguments.add_argument("--markdown")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    heads = ["dtype", "average ms", "adasum ms", "ratio", "doubling", "tree", "loop"]
    lines = [f"| {hvd.size()} ranks | " + " | ".join(heads) + " |", "|---" * 8 + "|"]
    for name, shapes in SETS.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            ms = measure(name, shapes, dtype, options.repeat)
            cells = [f"{ms['average']:.2f}", f"{ms['adasum']:.2f}",
                     f"{ms['adasum'] / ms['average']:.2f}", f"{ms['doubling']:.2f}",
                     f"{ms['tree']:.2f}", f"{ms['loop']:.2f}" if "loop" in ms else ""]
            lines.append(f"| {name} | {str(dtype)[6:]} | " + " | ".join(cells) + " |")
    if hvd.rank() == 0:
        print("\n".join(lines))
        if options.markdown:
            with open(options.markdown, "w") as file:
                file.write("\n".join(lines) + "\n")
    hvd.shutdown()


main()
