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
