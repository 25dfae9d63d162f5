"""DistributedDataParallel with Horon as its communication hook."""

import torch
import torch.distributed as dist
from common import close, raises
from torch_distributed import group_of_all, network, serial, train

import horon.torch as hvd
from horon.torch import hooks


def wrapped(**options):
    group_of_all()
    return torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.0001, **options)


def check_average():
    for view in (False, True):
        model = wrapped(gradient_as_bucket_view=view)
        hooks.register(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), hvd.rank())
        for got, want in zip(model.parameters(), serial()):
            close(got.detach(), want.detach())


def check_compression_and_scales():
    model = wrapped()
    hooks.register(model, op=hvd.Sum, compression=hvd.Compression.bf16,
                   prescale_factor=1 / hvd.size())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), hvd.rank())
    for got, want in zip(model.parameters(), serial()):
        close(got.detach(), want.detach(), 0.02)


def check_any_op():
    """The bucket's tensors are the op's tensors, by the model's names."""
    for op in (hvd.Adasum, hvd.TopK(1.0), hvd.Dissemination(), "max"):
        model = wrapped()
        hooks.register(model, op=op)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), hvd.rank())
        for parameter in model.parameters():
            assert parameter.detach().isfinite().all()
        if op is not hvd.Dissemination() and hvd.size() > 1:
            spread = hvd.allgather(next(model.parameters()).detach().reshape(1, -1))
            if getattr(op, "spec", op) != "dissemination":
                close(spread, spread[:1].expand_as(spread))


def check_dissemination_and_top_k_by_hand():
    """Each rank's own average with one other, which changes; and what top-k owes, of each rank."""
    size, me = hvd.size(), hvd.rank()
    start = torch.arange(4.0)
    gradients = [torch.tensor([1.0, -2.0, 4.5, 8.0]) * (rank + 1) for rank in range(size)]

    def trained(op):
        group_of_all()
        layer = torch.nn.Linear(4, 1, bias=False)
        layer.weight.data.copy_(start)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        hooks.register(model, op=op)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(gradients[me]).sum().backward()
            optimizer.step()
        return layer.weight.detach().reshape(-1)

    owed = [torch.zeros(4) for _ in range(size)]
    wanted = start.clone()
    for _ in range(3):
        for rank in range(size):
            whole = owed[rank] + gradients[rank]
            sent = torch.zeros(4)
            largest = whole.abs().topk(2).indices
            sent[largest] = whole[largest]
            owed[rank] = whole - sent
            wanted -= sent / size
    close(trained(hvd.TopK(0.5)), wanted, 1e-5)

    wanted = start.clone()
    for step in range(3):
        offset = 2 ** (step % max(1, (size - 1).bit_length()))
        wanted -= (gradients[me] + gradients[(me - offset) % size]) / 2
    close(trained(hvd.Dissemination()), wanted, 1e-5)


def check_adasum_of_equal_gradients_is_one_of_them():
    model = wrapped()
    hooks.register(model, op=hvd.Adasum)
    batch = torch.ones(2, 4)
    model(batch).sum().backward()
    alone = network()
    alone(batch).sum().backward()
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.grad, want.grad)


def check_failure_keeps_its_type():
    """Rank 1 reduces with another op."""
    if hvd.size() == 1:
        return
    model = wrapped()
    state = hooks.register(model, op=hvd.Max if hvd.rank() == 1 else hvd.Sum)
    with raises(RuntimeError):
        model(torch.ones(2, 4)).sum().backward()
    assert isinstance(state.failure, hvd.HoronMismatch), state.failure


def check_end():
    dist.destroy_process_group()
