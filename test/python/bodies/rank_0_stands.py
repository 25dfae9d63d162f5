"""The runtime of rank 0, which judges stalls, stands still in the middle of a reduction, and another
rank lacks a tensor that all others wait for. STANDS is the fifo that rank 0 stands at, and so do the
ranks of STANDING if it is set; LOADS the one that the rank LACKS, by itself the last but one, reads
its data from. A rank that FEEDS writes there when it has heard of the end."""

import os

import torch

RANK, SIZE = (int(os.environ.get(f"HORON_{what}") or os.environ[f"OMPI_COMM_WORLD_{what}"])
              for what in ("RANK", "SIZE"))
LACKS = int(os.environ.get("LACKS", max(1, SIZE - 2)))
if str(RANK) in os.environ.get("STANDING", "0").split(","):
    os.environ["HORON_FAULT"] = f"reduce:hold={os.environ['STANDS']}:3"
import horon.torch as hvd  # noqa: E402


def load():
    with open(os.environ["LOADS"], encoding="ascii") as data:
        return data.read()


hvd.init()
begun = hvd.allreduce_async(torch.ones(1 << 20), name="x")
try:
    if RANK == LACKS:
        load()
        hvd.synchronize(begun)
    hvd.allreduce(torch.ones(2), name="late")
    print(f"rank {RANK} goes on", flush=True)
except hvd.HoronUnavailable as error:
    print(f"rank {RANK} raised: {error}", flush=True)
    if os.environ.get("FEEDS") == str(RANK):
        with open(os.environ["LOADS"], "w", encoding="ascii") as data:
            data.write("go")
hvd.shutdown()
