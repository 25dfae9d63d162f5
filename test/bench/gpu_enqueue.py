"""What Horon adds to a collective on a GPU: one rank, from the call to the end of the wait.

Prints rows of a table: the time of a call that is enqueued and waited for by the stream alone,
beside the same reduction that torch.distributed gives to NCCL. Without a GPU it says so and ends
with 77.
"""

import os
import statistics
import sys
import time

import torch

ROUNDS = 300
SIZES = [1, 1 << 10, 1 << 18, 1 << 24]


def microseconds(call):
    """Median time of a call on the host, the device being idle before."""
    times = []
    for i in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times[20:]) * 1e6


def main():
    if not torch.cuda.is_available():
        print("not measured: this PyTorch sees no GPU")
        return 77
    import torch.distributed as dist

    import horon.torch as hvd

    hvd.init()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    print("\n| floats | Horon: call and stream's wait | NCCL through torch.distributed |\n"
          "|---|---|---|")
    for size in SIZES:
        tensor = torch.ones(size, device="cuda")
        ours = microseconds(lambda i, t=tensor: hvd.allreduce_(t, op=hvd.Sum, name="bench"))
        theirs = microseconds(lambda i, t=tensor: dist.all_reduce(t))
        print(f"| {size} | {ours:.1f} us | {theirs:.1f} us |")
    dist.destroy_process_group()
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
