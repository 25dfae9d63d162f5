"""DistributedOptimizer as an object: wrapping, schedulers, state, wrong arguments, errors."""

import torch
from common import raises, same
from optimizers import batches, loss_of, make_model, sgd

import horon.torch as hvd


def check_wrapping():
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.25
    state = optimizer.state_dict()
    assert len(state["state"]) == 4
    optimizer.load_state_dict(state)
    loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    optimizer.step()


def check_scheduler_made_before_wrapping():
    model = make_model()
    inner = sgd(model)
    torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    data = batches(hvd.size())
    loss_of(model, data[0][hvd.rank()]).backward()
    optimizer.step()
    for parameter in model.parameters():
        gathered = hvd.allgather(parameter.detach().reshape(1, -1))
        same(gathered, gathered[:1].expand_as(gathered))


def check_wrong_arguments():
    model = make_model()
    named = list(model.named_parameters())
    wrong = [
        {"named_parameters": [("x", p) for _, p in named]},
        {"named_parameters": named[1:]},
        {"named_parameters": [p for _, p in named]},
        {"backward_passes_per_step": 0},
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"groups": "two"},
        {"groups": -1},
    ]
    for arguments in wrong:
        with raises(ValueError):
            hvd.DistributedOptimizer(sgd(model), **arguments)


def check_unknown_op_is_an_error():
    if hvd.size() == 1:
        return
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op="adasun")
    with raises(hvd.HoronInvalidArgument, words=["adasun"]):
        loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    hvd.barrier()


def check_error_at_step_names_the_parameter():
    """Ranks with different models: every rank gets the error, and can go on."""
    if hvd.size() == 1:
        return
    model = torch.nn.Linear(3 if hvd.rank() == 1 else 2, 1)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(torch.ones(1, model.in_features)).sum().backward()
    with raises(hvd.HoronMismatch, hvd.HorovodInternalError, words=["'allreduce.weight'"]):
        optimizer.step()
    hvd.barrier()
