"""A program: rank 1 is killed while a collective of NCCL's waits for it on rank 0's GPU, who says
what it heard, and that its device came to rest."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import horon.torch as hvd
from horon import _core

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from one_gpu import be_a_host  # noqa: E402

COUNT = 1000
FOREVER = 1 << 40  # cycles of the device: minutes


def main():
    hvd.init()
    be_a_host(hvd.rank())
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    for _ in range(2):  # connected, and not for the first time
        hvd.allreduce(torch.ones(COUNT, device="cuda"), name="x")
    torch.cuda.synchronize()
    mine = torch.ones(COUNT, device="cuda")
    if hvd.rank() == 1:
        torch.cuda._sleep(FOREVER)  # before rank 1's part of it
    handle = hvd.allreduce_async(mine, name="x")
    while not _core.counters()["gpu.buckets.group"] >= 3:
        time.sleep(0.01)
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        while True:
            hvd.allreduce(torch.ones(1), name="next")
            hvd.synchronize(handle)
    except hvd.HoronUnavailable as error:
        print(f"rank 0 heard: {error}", flush=True)
    torch.cuda.synchronize()
    print(f"rank 0 is at rest after {time.monotonic() - begun:.1f} s", flush=True)


main()
