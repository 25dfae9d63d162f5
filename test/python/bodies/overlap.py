"""Between nodes gradients travel while backward still computes those of the layers before."""

import time

import torch

import horon.torch as hvd

STEPS, LIMIT_S = 12, 30.0


def averaged(tensor):
    """Waits until a tensor that was the rank's number + 1 is the ranks' mean, which nobody's is."""
    mean, end = (hvd.size() + 1) / 2, time.monotonic() + LIMIT_S
    while not (tensor == mean).all():
        assert time.monotonic() < end, f"not reduced during backward: {tensor[0]}, not {mean}"
        time.sleep(0.001)


class Wall(torch.autograd.Function):
    """Lets backward through once what is behind it has been done."""

    @staticmethod
    def forward(ctx, x, behind):
        ctx.behind = behind
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.behind()
        return gradient, None


def train(name, **options):
    first, last = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(1 << 16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, last], lr=0.0),
                                         [(f"{name}.first", first), (f"{name}.last", last)],
                                         **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        wall = Wall.apply(first * (hvd.rank() + 1.0), lambda: averaged(last.grad))
        (wall * last).sum().backward()
        optimizer.step()


def check_the_last_layers_gradient_is_reduced_before_the_first_ones_is_there():
    """In steps that are negotiated, and in locked ones."""
    assert hvd.cross_size() > 1 and hvd.size() % 2 == 0
    train("overlap")
    train("overlap.views", gradient_as_bucket_view=True)
    assert hvd.counters()["schedule.tensors"] > 0, hvd.counters()
