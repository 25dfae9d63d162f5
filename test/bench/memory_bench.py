"""What memory the runtime holds, beside how much it reduces.

    horonrun -np 2 python test/bench/memory_bench.py

After each work has run in three steps, of the rank that has most: `hvd.memory_bytes()`, apart for
the pages touched of its share of the node's segment and of its tensors in shared memory, and for
its pool, which keeps staging and outputs to use them again; and the address space that is mapped
for shared memory, its own and the other ranks', which is what the former can come to. All in one
job, one work after the other: what was once taken is in the rows below.
"""

from __future__ import annotations

import argparse

import torch
import workloads

import horon.torch as hvd

STEPS = 3


def mapped_bytes() -> int:
    """Of shared memory that Horon made, in this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        spans = [line.split(None, 1)[0].split("-") for line in lines if "memfd:horon" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def most(value: int) -> float:
    """Of all ranks, in MiB."""
    return hvd.allreduce(torch.tensor([value]), op=hvd.Max, name="most").item() / (1 << 20)


def row(what: str, elements: int) -> None:
    pool = hvd.counter("pool.bytes")
    figures = [most(x) for x in (hvd.memory_bytes() - pool, pool, mapped_bytes())]
    if hvd.rank() == 0:
        cells = [elements * 4 / (1 << 20), *figures]
        print(f"| {what} | {' | '.join(f'{cell:.1f} MiB' for cell in cells)} |", flush=True)


def reduce_all(what: str, tensors: list[torch.Tensor], op: str = "average") -> None:
    for _ in range(STEPS):
        handles = [
            hvd.allreduce_async_(tensor, name=f"{what}.{i}", op=op)
            for i, tensor in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)
    row(what, sum(tensor.numel() for tensor in tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=1 << 30, help="bytes of the largest tensor")
    largest = parser.parse_args().most
    hvd.init()
    if hvd.rank() == 0:
        print("| after | moved a step | shared memory, touched | pool | mapped |", flush=True)
        print("|---|---|---|---|---|", flush=True)
    row("init", 0)
    resnet = workloads.gradient_order(workloads.resnet50_shapes())
    bert = workloads.gradient_order(workloads.bert_base_shapes())
    reduce_all("ResNet-50", [torch.ones(shape) for shape in resnet])
    reduce_all("BERT-base", [torch.ones(shape) for shape in bert])
    reduce_all("one tensor", [torch.ones(largest // 4)])
    for op in ("adasum", "gossip"):
        reduce_all(f"ResNet-50, op={op}", [torch.ones(shape) for shape in resnet], op)
    tensor = torch.ones(largest // 64)
    for call in (hvd.broadcast, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        root = {"root_rank": 0} if call is hvd.broadcast else {}
        for _ in range(STEPS):
            call(tensor, name=call.__name__, **root)
        row(f"{call.__name__}, outputs dropped", tensor.numel())
    reduce_all("ResNet-50 in shared tensors", [hvd.shared_zeros(*shape) for shape in resnet])
    row("those given back", 0)


if __name__ == "__main__":
    main()
