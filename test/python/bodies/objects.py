"""Same start on all ranks: broadcast of parameters, optimizer state and objects."""

import torch
from common import same

import horon.torch as hvd


def gathered_equal(tensor):
    rows = hvd.allgather(tensor.detach().reshape(1, -1))
    same(rows, rows[:1].expand_as(rows))


def check_broadcast_parameters():
    root = hvd.size() - 1
    for form in ("state_dict", "named_parameters", "list"):
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2)
        ).to(memory_format=torch.channels_last)
        params = getattr(model, form)() if form != "list" else list(model.named_parameters())
        hvd.broadcast_parameters(params, root)
        torch.manual_seed(root)
        want = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2)
        )
        for parameter, expected in zip(model.parameters(), want.parameters()):
            assert torch.equal(parameter, expected)
    try:
        hvd.broadcast_parameters(3, 0)
    except ValueError as error:
        assert "invalid params" in str(error)
    else:
        raise AssertionError("broadcast_parameters(3, 0) passed")


def optimizers():
    kinds = [
        "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam",
        "RMSprop", "Rprop", "Adafactor",
    ]
    for kind in kinds:
        yield kind, {"lr": 0.1 / (hvd.rank() + 1)}
    yield "SGD", {"lr": 0.1 / (hvd.rank() + 1), "momentum": 0.5, "nesterov": hvd.rank() == 0}
    yield "LBFGS", {"lr": 0.1 / (hvd.rank() + 1)}


def train_a_step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def same_tree(one, other):
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same_tree(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            same_tree(a, b)
    elif isinstance(one, torch.Tensor):
        same(one, other)
    else:
        assert one == other, (one, other)


def check_broadcast_optimizer_state():
    """The root has trained and the others have other options: afterwards all are alike."""
    for kind, options in optimizers():
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 2)
        optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
        if hvd.rank() == 0:
            train_a_step(model, optimizer)
        parameters = [p.detach().clone() for p in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, 0)
        for parameter, before in zip(model.parameters(), parameters):
            same(parameter.detach(), before)
        want = hvd.broadcast_object(optimizer.state_dict(), 0)
        same_tree(optimizer.state_dict(), want)
        hvd.broadcast_parameters(model.state_dict(), 0)
        train_a_step(model, optimizer)
        for parameter in model.parameters():
            gathered_equal(parameter)


def check_broadcast_state_of_distributed_optimizer():
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train_a_step_of = model(torch.ones(2, 3)).pow(2).sum()
    train_a_step_of.backward()
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, hvd.size() - 1)
    for parameter in model.parameters():
        gathered_equal(parameter)


def check_objects():
    me, size = hvd.rank(), hvd.size()
    mine = {"rank": me, "list": list(range(me)), "call": lambda x: x + me}
    for root in range(size):
        got = hvd.broadcast_object(mine, root)
        assert got["rank"] == root and got["list"] == list(range(root))
        assert got["call"](1) == 1 + root
    assert hvd.broadcast_object(None) is None
    gathered = hvd.allgather_object({"rank": me, "text": "x" * (100 * me)})
    assert [g["rank"] for g in gathered] == list(range(size))
    assert [len(g["text"]) for g in gathered] == [100 * r for r in range(size)]
