"""Training steps on a GPU for gpu_bench.py: how much of its memory the runtime takes, and whether a
thread of the program waits for the device.

    python test/bench/gpu_step.py memory FILE               one rank
    horonrun -np 2 python test/bench/gpu_step.py waits FILE  ranks may share a GPU

Rank 0 writes what was found as JSON. The gradients are ResNet-50's.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from one_gpu import be_a_host
from workloads import gradient_order, resnet50_shapes

FUSION_BYTES = 128 << 20  # the default; a power of two, as blocks of memory are
STEPS = 5
STEP, CONTROL = "a training step", "a synchronisation"

# Calls of CUDA, as a trace names them, that wait for the device.
_WAITS = re.compile(r"Synchronize|^cu(da)?Memcpy(?!.*Async)|^cu(da)?(Mem)?Free(Host)?(_v2)?$"
                    r"|HostUnregister")


def calls_in(trace: list[dict], span: str) -> tuple[Counter, Counter]:
    """Calls of CUDA, by name, that began while a thread was in a span of that name: of the
    program's threads, which are those that run its operators, and of all others."""
    def of(*kinds: str) -> list[dict]:
        return [event for event in trace if event.get("cat") in kinds]

    spans = [(event["ts"], event["ts"] + event["dur"]) for event in of("user_annotation")
             if event["name"] == span]
    program = {event["tid"] for event in of("cpu_op", "user_annotation")}
    own, others = Counter(), Counter()
    for event in of("cuda_runtime", "cuda_driver"):
        if any(begun <= event["ts"] <= ended for begun, ended in spans):
            (own if event["tid"] in program else others)[event["name"]] += 1
    return own, others


def waits_of(calls: Counter) -> Counter:
    return Counter({name: count for name, count in calls.items() if _WAITS.search(name)})


def found_in(trace: list[dict]) -> dict:
    """What a row of the table needs. A trace that misses calls that took place proves nothing: a
    wait of PyTorch's, and those of the runtime, which has a CUDA runtime of its own."""
    own, others = calls_in(trace, STEP)
    if not waits_of(calls_in(trace, CONTROL)[0]):
        return {"missing": "the trace does not show a synchronisation that took place (CUPTI)"}
    if not any(name.startswith("cuda") for name in others):
        return {"missing": "the trace shows no call of the runtime's threads (CUPTI)"}
    return {"program": waits_of(own), "runtime": waits_of(others)}


def beyond_the_buffer(taken: int) -> dict:
    if taken < FUSION_BYTES:
        return {"missing": "the fusion buffer was not taken"}
    return {"bytes": taken - FUSION_BYTES}


def all_over_nccl(before: dict, after: dict) -> bool:
    """Whether there were buckets of GPU tensors between two states of the counters, each of which
    went through NCCL."""
    group, host = (after[name] - before[name] for name in ("gpu.buckets.group", "gpu.buckets.host"))
    return group > 0 and host == 0


def tensors():
    import torch
    return [torch.ones(shape, device="cuda") for shape in gradient_order(resnet50_shapes())]


def memory() -> tuple[int, dict]:
    """Bytes of the device that the runtime takes for a full bucket and steps of tensors by name,
    beyond its fusion buffer; those that PyTorch takes meanwhile are not counted."""
    import torch

    import horon.torch as hvd

    os.environ["HORON_FUSION_THRESHOLD"] = str(FUSION_BYTES)
    hvd.init()
    gradients = tensors()

    def free() -> int:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

    before = free()
    hvd.synchronize(hvd.grouped_allreduce_async_(gradients, name="all"))  # in one bucket
    for _ in range(20):
        handles = [hvd.allreduce_async_(tensor, name=f"gradient.{i}")
                   for i, tensor in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
    return hvd.rank(), beyond_the_buffer(before - free())


def waits() -> tuple[int, dict]:
    """Of steps of a DistributedOptimizer, after some that nobody looks at."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    import horon
    import horon.torch as hvd

    hvd.init()
    be_a_host(hvd.rank())
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    model = torch.nn.ParameterList(tensors())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01),
                                         named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        sum(parameter.square().sum() for parameter in model).backward()
        optimizer.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    before = horon.counters()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(STEPS):
            with record_function(STEP):
                step()
        with record_function(CONTROL):
            torch.cuda.synchronize()
    if not all_over_nccl(before, horon.counters()):
        return hvd.rank(), {"missing": "the buckets went through the host"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return hvd.rank(), found_in(json.loads(path.read_text())["traceEvents"])


def main() -> None:
    what, path = sys.argv[1:]
    rank, found = {"memory": memory, "waits": waits}[what]()
    if rank == 0:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
