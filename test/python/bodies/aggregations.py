"""Ops beyond the classic ones, and the aggregation objects over them."""

import math

import torch
from common import all_values, close, raises, same

import horon.aggregation
import horon.torch as hvd
from horon.aggregation import AllReduce, Decentralized, Sparsified, aggregation


def mine(count=24):
    return all_values(hvd.size(), (count,), torch.float32)[hvd.rank()].clone()


def total(count=24):
    return all_values(hvd.size(), (count,), torch.float32).sum(0)


def check_allreduce():
    for op, want in (("avg", total() / hvd.size()), ("sum", total()), (hvd.Sum, total())):
        tensor = mine()
        assert AllReduce()(tensor, op) is tensor
        close(tensor, want)
        tensors = [mine(), mine()]
        aggregation(tensors, op)
        for tensor in tensors:
            close(tensor, want)
    with raises(ValueError):
        AllReduce()(mine(), "median")


def check_module_gradients():
    model = torch.nn.Linear(3, 2)
    if hvd.rank() == 0:  # the other ranks have no gradients: they count as zeros
        model(torch.ones(1, 3)).sum().backward()
    AllReduce()(model, "avg")
    close(model.bias.grad, torch.full((2,), 1.0 / hvd.size()))


def check_dissemination():
    """With 2^k ranks everyone has the exact mean after k calls; the mean is always conserved."""
    size = hvd.size()
    aggregate = Decentralized()
    tensor = mine()
    for _ in range(max(1, math.ceil(math.log2(size)))):
        aggregate(tensor, "avg")
        close(hvd.allreduce(tensor, op=hvd.Average), total() / size)
    if size & (size - 1) == 0:
        close(tensor, total() / size)
    with raises(ValueError):
        aggregate(tensor, "sum")
    tensor = mine()
    hvd.allreduce_(tensor, op=hvd.Dissemination(), name="one_peer")
    peer = (hvd.rank() - 1) % size
    want = (mine() + all_values(size, (24,), torch.float32)[peer]) / 2
    close(tensor, want)


def check_topk_sends_everything_in_the_end():
    """What a rank does not send it adds to the next call: over many calls nothing is lost."""
    aggregate = Sparsified(ratio=0.25)
    received = torch.zeros(24)
    for call in range(40):
        tensor = mine() if call == 0 else torch.zeros(24)
        aggregate(tensor, "sum")
        received += tensor
    close(received, total())
    whole = mine()
    same(Sparsified(ratio=1.0)(whole, "sum"), total())
    with raises(ValueError):
        Sparsified(ratio=2.0)(mine())


def check_topk_sparsity():
    tensor = torch.arange(1.0, 101.0)
    hvd.allreduce_(tensor, op=hvd.TopK(ratio=0.1), name="sparse")
    same(tensor[:90], torch.zeros(90))
    close(tensor[90:], torch.arange(91.0, 101.0))


def check_specs_agree():
    assert hvd.TopK(0.01).spec == "topk:ratio=0.01"
    assert hvd.Dissemination() == hvd.Dissemination() != hvd.Average
    assert horon.aggregation.Sparsified(0.5).spec("avg") == "topk:ratio=0.5,op=average"
