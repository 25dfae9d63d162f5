"""Ranks that group their tensors differently: every rank hears so within about two seconds."""

import re
import time

import torch
from common import raises, same

import horon.torch as hvd

MISMATCH = (hvd.HoronMismatch, hvd.HoronError, hvd.HorovodInternalError, RuntimeError)
LIMIT_S = 2.5  # a second and a quarter, and what a busy machine takes


def odd():
    """The last rank does it differently."""
    return hvd.rank() == hvd.size() - 1


def ones(count):
    return [torch.ones(2) for _ in range(count)]


def differs(kind, name):
    """Pattern of the sentence on a group of two tensors on all ranks but the last, with three."""
    usual = "rank 0" if hvd.size() == 2 else "ranks " + ", ".join(map(str, range(hvd.size() - 1)))
    group = re.escape(f"{kind}.{name}")
    sides = (rf"{usual} submitted group '{group}' as 2 tensors \(one is '{group}_\dof2'\)",
             rf"rank {hvd.size() - 1} submitted it as 3 tensors \(one is '{group}_\dof3'\)")
    return rf"Mismatched groups: {sides[0]}, {sides[1]}\."


def heard(call, **expected):
    """The call fails so on every rank, in time, and the runtime goes on."""
    hvd.barrier()
    start = time.monotonic()
    with raises(*MISMATCH, **expected):
        call()
    waited = time.monotonic() - start
    times = hvd.allgather(torch.tensor([waited]), name="times").tolist()
    assert max(times) < LIMIT_S, times
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def polled(handle):
    while not hvd.poll(handle):
        time.sleep(0.001)  # others have work to do on this core
    return hvd.synchronize(handle)


def check_groups_of_other_sizes():
    count = 3 if odd() else 2
    heard(lambda: hvd.grouped_allreduce(ones(count), name="sizes"),
          sentence=differs("grouped_allreduce", "sizes"))
    heard(lambda: hvd.grouped_allgather(ones(count), name="sizes"),
          sentence=differs("grouped_allgather", "sizes"))
    heard(lambda: hvd.grouped_reducescatter(ones(count), name="sizes"),
          sentence=differs("grouped_reducescatter", "sizes"))


def check_where_ranks_poll():
    """A rank that polls might still go on; after a while it is taken to wait."""
    for polls in (lambda: odd(), lambda: not odd(), lambda: True):
        def call():
            handle = hvd.grouped_allreduce_async(ones(3 if odd() else 2), name="polls")
            return polled(handle) if polls() else hvd.synchronize(handle)

        heard(call, sentence=differs("grouped_allreduce", "polls"))


def check_a_group_and_single_tensors():
    def call():
        if odd():
            return hvd.grouped_allreduce(ones(2), name="single")
        handles = [hvd.allreduce_async(tensor, name=f"single.{i}")
                   for i, tensor in enumerate(ones(2))]
        return [hvd.synchronize(handle) for handle in handles]

    heard(call, words=["'allreduce.single.0'", "'grouped_allreduce.single_1of2'",
                       "of group 'grouped_allreduce.single'", "different ways"])


def check_groups_in_another_order_are_none_of_this():
    """Two groups of one name that every rank submits, each rank in another order, are both run."""
    orders = [3, 2] if odd() else [2, 3]
    handles = {count: hvd.grouped_allreduce_async(ones(count), op=hvd.Sum, name="orders")
               for count in orders}
    for count in (2, 3):
        for result in hvd.synchronize(handles[count]):
            same(result, torch.full((2,), float(hvd.size())))


def check_groups_of_two_optimizers():
    """Of which each rank has used another one, and is busy for longer than a mismatch is given."""
    models = [torch.nn.Linear(2, 2) for _ in range(2)]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), groups=1,
            named_parameters=[(f"{i}.{name}", p) for name, p in model.named_parameters()])
        for i, model in enumerate(models)]
    models[odd()](torch.ones(1, 2)).sum().backward()
    time.sleep(LIMIT_S)
    for optimizer in optimizers:
        optimizer.step()
