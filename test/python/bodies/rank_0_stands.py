"""The runtime of rank 0, which judges stalls, stands still in the middle of a reduction, and another
rank lacks a tensor that all others wait for. STANDS is the fifo that rank 0 stands at, LOADS the one
that the other rank reads its data from."""

import os

import torch

RANK, SIZE = (int(os.environ.get(f"HORON_{what}") or os.environ[f"OMPI_COMM_WORLD_{what}"])
              for what in ("RANK", "SIZE"))
if RANK == 0:
    os.environ["HORON_FAULT"] = f"reduce:hold={os.environ['STANDS']}:3"
import horon.torch as hvd  # noqa: E402


def load():
    with open(os.environ["LOADS"], encoding="ascii") as data:
        return data.read()


hvd.init()
begun = hvd.allreduce_async(torch.ones(1 << 20), name="x")
try:
    if RANK == max(1, SIZE - 2):
        load()
        hvd.synchronize(begun)
    else:
        hvd.allreduce(torch.ones(2), name="late")
except hvd.HoronUnavailable as error:
    print(f"rank {RANK} raised: {error}", flush=True)
hvd.shutdown()
