"""Tensors on a GPU that the rank does not work with. The GPUs are made up: every tensor of doubles
is said to lie elsewhere, and a copy of it to be here."""

import contextlib

import torch
from common import same, values
from optimizers import batches, sgd

import horon.torch as hvd
from horon.torch import calls


@contextlib.contextmanager
def doubles_are_elsewhere():
    brought = []

    def bring(tensor):
        brought.append(tensor.detach().clone(memory_format=torch.preserve_format))
        return brought[-1]

    real = calls.is_elsewhere, calls.brought_here
    calls.is_elsewhere = lambda tensor: tensor.dtype == torch.float64
    calls.brought_here = bring
    try:
        yield brought
    finally:
        calls.is_elsewhere, calls.brought_here = real


def every_call(tensor, mark):
    """What each function makes of it."""
    def name(what):
        return f"{what}.{mark}"

    in_place = tensor.clone()
    hvd.allreduce_(in_place, op=hvd.Sum, name=name("in place"))
    told = tensor.clone()
    hvd.broadcast_(told, 0, name=name("told"))
    grouped = hvd.grouped_allreduce([tensor, tensor + 1], op=hvd.Max, name=name("grouped"))
    received = hvd.alltoall(tensor.repeat(hvd.size(), 1), name=name("all"))
    return [hvd.allreduce(tensor, name=name("mean")), in_place, told,
            hvd.broadcast(tensor, hvd.size() - 1, name=name("last")), *grouped,
            hvd.allgather(tensor, name=name("rows")), received,
            hvd.reducescatter(tensor.repeat(hvd.size(), 1), name=name("part")),
            hvd.allreduce(tensor.t(), op=hvd.Adasum, name=name("adasum"))]


def check_every_call():
    tensor = values(hvd.rank(), (6, 4), torch.float64)
    expected = every_call(tensor, "here")
    with doubles_are_elsewhere() as brought:
        results = every_call(tensor, "elsewhere")
    assert len(brought) == 10
    for result, wanted in zip(results, expected):
        same(result, wanted)


def check_what_is_elsewhere_on_some_ranks_only():
    """It is the same tensor, whatever order its memory has."""
    for layout in (torch.contiguous_format, torch.channels_last):
        tensor = values(hvd.rank(), (2, 3, 4, 5), torch.float64).to(memory_format=layout)
        name = f"some.{layout}"
        expected = hvd.allreduce(tensor, op=hvd.Sum, name=f"{name}.here")
        with doubles_are_elsewhere() if hvd.rank() == 0 else contextlib.nullcontext():
            same(hvd.allreduce(tensor, op=hvd.Sum, name=name), expected)


def check_a_result_in_place_comes_back_when_it_is_waited_for():
    with doubles_are_elsewhere() as brought:
        tensor = torch.full((4,), 1.0, dtype=torch.float64)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="later")
        while not hvd.poll(handle):
            pass
        same(brought[0], torch.full((4,), float(hvd.size()), dtype=torch.float64))
        same(tensor, torch.full((4,), 1.0, dtype=torch.float64))
        assert hvd.synchronize(handle) is tensor
        same(tensor, brought[0])


def train(op, mark):
    torch.manual_seed(3)
    first, last = torch.nn.Linear(16, 8), torch.nn.Linear(8, 3).double()
    model = torch.nn.ModuleList([first, last])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        sgd(model), [(f"{mark}.{name}", p) for name, p in model.named_parameters()], op=op)
    for step in batches(hvd.size()):
        optimizer.zero_grad()
        inputs = step[hvd.rank()].flatten(1)
        last(first(inputs).relu().double()).square().mean().backward()
        optimizer.step()
    if op == hvd.Gossip("dpsgd"):
        optimizer.finish_gossip(average=True)
    return [p.detach().clone() for p in model.parameters()]


def check_a_model_that_is_partly_elsewhere():
    """Trains as one that is here, to the bit."""
    for op in (hvd.Average, hvd.Adasum, hvd.Gossip("dpsgd")):
        expected = train(op, f"here.{op}")
        with doubles_are_elsewhere() as brought:
            trained = train(op, f"elsewhere.{op}")
        assert brought
        for ours, theirs in zip(trained, expected):
            same(ours, theirs)
