"""Lives of a job whose steady steps are not negotiated: each locks, leaves, fails, ends, and the
next one begins. Between nodes, what travels with the words of one must mean nothing in the next."""

import time
from pathlib import Path

import torch
from common import raises, same, shared_folder

import horon
import horon.torch as hvd

OWN_LIFE = True
# The first two travel with the word that they have started, the last one only begins with it.
SHAPES = ((3,), (700,), (100_000,))


def step(life, number):
    """Each rank and step has values of its own."""
    values = [float(10_000 * life + 10 * number + rank) for rank in range(hvd.size())]
    tensors = [torch.full(shape, values[hvd.rank()]) for shape in SHAPES]
    handles = [hvd.allreduce_async_(tensor, name=f"gradient.{i}", op=hvd.Sum)
               for i, tensor in enumerate(tensors)]
    for handle, tensor in zip(handles, tensors):
        hvd.synchronize(handle)
        same(tensor, torch.full(tensor.shape, sum(values)))
    same(hvd.allgather(torch.full((2,), values[hvd.rank()]), name="rows"),
         torch.tensor(values).repeat_interleave(2))


def locked():
    return horon.counters()["schedule.locks"]


def steps_until_locked(life):
    """All ranks lock at the same decision; they say so to each other every ten steps."""
    before = locked()
    for turn in range(200):
        for number in range(10):
            step(life, 10 * turn + number)
        least = hvd.allreduce(torch.tensor([locked()]), name="locks", op=hvd.Min)
        if int(least) > before:
            return
    raise AssertionError("the steady job was not locked")


def ends_in_a_step(life, folder):
    """Rank 0 leaves when the others have started a step that it never will: they hear of it, and
    nothing is written to their tensors."""
    started = [folder / str(rank) for rank in range(1, hvd.size())]
    if hvd.rank() == 0:
        while not all(path.exists() for path in started):
            time.sleep(0.001)
        hvd.shutdown()
        return
    ours = torch.full(SHAPES[0], float(life))
    handle = hvd.allreduce_async_(ours, name="gradient.0", op=hvd.Sum)
    started[hvd.rank() - 1].touch()
    with raises(hvd.HoronAborted, words=["rank 0", "has left the job"]):
        hvd.synchronize(handle)
    same(ours, torch.full(SHAPES[0], float(life)))
    hvd.shutdown()


def check_lives():
    for life in range(4):
        hvd.init()
        folder = Path(shared_folder())
        steps_until_locked(life)
        # Something else: the schedule is left, and comes again.
        same(hvd.allreduce(torch.ones(5), name="else", op=hvd.Sum),
             torch.full((5,), float(hvd.size())))
        step(life, 1)
        # A tensor of the schedule with another shape on rank 0 fails on all ranks.
        shape = (4,) if hvd.rank() == 0 else SHAPES[0]
        with raises(hvd.HoronMismatch, words=["gradient.0"]):
            hvd.allreduce(torch.ones(shape), name="gradient.0", op=hvd.Sum)
        steps_until_locked(life)
        nodes = hvd.cross_size()
        carried = horon.counters()["schedule.carried"]
        assert (carried > 0) == (nodes > 1 and hvd.local_rank() == 0), (carried, nodes)
        if life % 2 == 0:
            hvd.shutdown()
        else:
            ends_in_a_step(life, folder)
