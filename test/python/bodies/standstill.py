"""The runtime's own thread of rank 1 stands still in the middle of a reduction (HORON_FAULT's hold,
as a call of MPI or of a driver would keep it); both ranks wait. STANDS is the fifo it stands at."""

import gc
import os
import sys
import time
import weakref

import torch

RANK = int(os.environ["HORON_RANK"])
if RANK == 1:
    os.environ["HORON_FAULT"] = f"reduce:hold={os.environ['STANDS']}:3"
import horon.torch as hvd  # noqa: E402

hvd.init()
lent = torch.ones(1 << 20)
kept = weakref.ref(lent)
alone = hvd.allreduce_async(torch.ones(2), name="alone") if RANK == 1 else None
try:
    handle = hvd.allreduce_async_(lent, name="x")
    hvd.synchronize(handle)
    sys.exit("the reduction went through")
except hvd.HorovodInternalError as error:
    print(f"rank {RANK} raised: {error}", flush=True)
    assert hvd.poll(alone or handle), "who polls waits for ever"
del handle, lent
gc.collect()
print(f"rank {RANK} lent on: {kept() is not None}", flush=True)
begun = time.monotonic()
hvd.shutdown()
print(f"rank {RANK} left after {time.monotonic() - begun:.1f} s", flush=True)
if RANK == 1:
    try:
        hvd.synchronize(alone)
        sys.exit("nobody finished it")
    except hvd.HoronAborted as error:
        print(f"rank 1 afterwards: {error}", flush=True)
