"""Gradients through the blocking collectives, as Horovod defines them.

Horovod differentiates as if every rank's loss were averaged: allgather and broadcast *average* the
incoming gradients over ranks, reducescatter multiplies by the size for a sum. Backwards are made of
these functions again, so that they too have gradients (create_graph=True).
"""

import torch

from horon.errors import HoronWrongOp
from horon.names import full_name
from horon.specs import Average, Sum
from horon.torch.calls import (
    GroupCall,
    broadcast_call,
    group_names,
    reduce_call,
    rows_call,
    set_id,
)


def wanted(*tensors) -> bool:
    """Whether anyone may ask for gradients of these."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


def _average(gradient, process_set):
    name = full_name("allreduce", None, set_id(process_set))
    if wanted(gradient):
        return Allreduce.apply(gradient, name, Average.spec, 1.0, 1.0, process_set)
    return reduce_call(name, Average.spec, gradient, process_set).run()


def _of_gradient(name) -> str:
    """Rounds of an op that counts them, and what it keeps, belong to the name: a gradient has one
    of its own, and the same one in each step if the call has."""
    return f"{name} gradient"


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, spec, prescale, postscale, process_set):
        ctx.name, ctx.arguments = name, (spec, prescale, postscale, process_set)
        return reduce_call(name, spec, tensor, process_set, prescale, postscale).run()

    @staticmethod
    def backward(ctx, gradient):
        reduced = Allreduce.apply(gradient, _of_gradient(ctx.name), *ctx.arguments)
        return reduced, None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, spec, prescale, postscale, process_set, *tensors):
        ctx.name, ctx.arguments = name, (spec, prescale, postscale, process_set)
        calls = [
            reduce_call(member, spec, tensor, process_set, prescale, postscale)
            for member, tensor in zip(group_names(name, len(tensors)), tensors)
        ]
        return tuple(GroupCall(calls, name).run())

    @staticmethod
    def backward(ctx, *gradients):
        reduced = GroupedAllreduce.apply(_of_gradient(ctx.name), *ctx.arguments, *gradients)
        return (None, None, None, None, None, *reduced)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.process_set = process_set
        output, ctx.rows = rows_call(name, "allgather", tensor, process_set, finish=_both).run()
        return output

    @staticmethod
    def backward(ctx, gradient):
        return _own_rows(gradient, ctx.rows, ctx.process_set), None, None


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        ctx.process_set = process_set
        calls = [
            rows_call(member, "allgather", tensor, process_set, finish=_both)
            for member, tensor in zip(group_names(name, len(tensors)), tensors)
        ]
        outputs, ctx.rows = zip(*GroupCall(calls, name).run())
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        own = [_own_rows(g, rows, ctx.process_set) for g, rows in zip(gradients, ctx.rows)]
        return (None, None, *own)


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.arguments = (root_rank, process_set)
        return broadcast_call(name, root_rank, tensor, process_set).run()

    @staticmethod
    def backward(ctx, gradient):
        root_rank, process_set = ctx.arguments
        averaged = _average(gradient, process_set)
        if process_set.ranks[process_set.rank()] != root_rank:
            # Keeps its place in the graph: the root's second derivative needs every rank.
            nowhere = torch.ones((), dtype=torch.bool, device=averaged.device)
            averaged = averaged.masked_fill(nowhere, 0)
        return averaged, None, None, None


def received_splits(counts) -> torch.Tensor:
    """As Horovod's: int32, but where one is too large for that."""
    large = max(counts, default=0) >= 1 << 31
    return torch.tensor(counts, dtype=torch.int64 if large else torch.int32)


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.process_set = process_set
        call = rows_call(name, "alltoall", tensor, process_set, splits, finish=_both)
        output, ctx.received = call.run()
        received = received_splits(ctx.received)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient, _):
        name = full_name("alltoall", None, set_id(ctx.process_set))
        if wanted(gradient):
            back, _ = Alltoall.apply(gradient, ctx.received, name, ctx.process_set)
        else:
            back = rows_call(name, "alltoall", gradient, ctx.process_set, ctx.received).run()
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, spec, prescale, postscale, process_set):
        ctx.factor = _reducescatter_factor(spec, prescale, postscale, process_set)
        ctx.process_set = process_set
        return rows_call(name, reducescatter_spec(spec), tensor, process_set, None, prescale,
                         postscale).run()

    @staticmethod
    def backward(ctx, gradient):
        name = full_name("allgather", None, set_id(ctx.process_set))
        if wanted(gradient):
            gathered = Allgather.apply(gradient, name, ctx.process_set)
        else:
            gathered = rows_call(name, "allgather", gradient, ctx.process_set).run()
        return gathered * ctx.factor, None, None, None, None, None


class GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, spec, prescale, postscale, process_set, *tensors):
        ctx.factor = _reducescatter_factor(spec, prescale, postscale, process_set)
        ctx.process_set = process_set
        calls = [
            rows_call(member, reducescatter_spec(spec), tensor, process_set, None, prescale,
                      postscale)
            for member, tensor in zip(group_names(name, len(tensors)), tensors)
        ]
        return tuple(GroupCall(calls, name).run())

    @staticmethod
    def backward(ctx, *gradients):
        name = full_name("grouped_allgather", None, set_id(ctx.process_set))
        gathered = GroupedAllgather.apply(name, ctx.process_set, *gradients)
        return (None, None, None, None, None, *[g * ctx.factor for g in gathered])


def reducescatter_spec(spec: str) -> str:
    if spec not in (Average.spec, Sum.spec):
        raise HoronWrongOp(
            f"reducescatter adds or averages (op=hvd.Sum, hvd.Average); not '{spec}'"
        )
    return f"reduce_scatter:op={spec}"


def _reducescatter_factor(spec, prescale, postscale, process_set) -> float:
    return prescale * postscale * (process_set.size() if spec == Sum.spec else 1)


def _both(output, received):
    return output, received


def _own_rows(gradient, rows, process_set):
    me = process_set.rank()
    return _average(gradient, process_set).narrow(0, sum(rows[:me]), rows[me])
