"""One gradient's, or one group's, way through the runtime, as GradientReducer starts it.

What start() returns is under way: its wait() blocks, then puts the reduced gradient in p.grad.
"""

import math

import torch

from horon import _core
from horon.specs import Average, Sum, reduction_of
from horon.torch.calls import GroupCall, reduce_call
from horon.torch.compression import checked
from horon.torch.gradient_rounds import NO_ROUNDS
from horon.torch.reductions import sparse_allreduce_async


class Reduction:
    """How gradients are reduced: the arguments of DistributedOptimizer, checked."""

    def __init__(self, op, compression, predivide, sparse_as_dense, process_set):
        self.op = op
        self.compression = checked(compression)
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.rounds = NO_ROUNDS  # GradientRounds, where gradients are mixed
        self.spec, self.prescale, self.postscale = reduction_of(op), 1.0, 1.0
        if predivide == 1.0:
            return
        if self.spec != Average.spec:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if not 0 < abs(predivide) < math.inf:
            raise ValueError(f"gradient_predivide_factor cannot be {predivide!r}")
        # Dividing in part before the sum keeps narrow types in range.
        self.spec = Sum.spec
        self.prescale = 1.0 / predivide
        self.postscale = predivide / process_set.size()

    def start(self, name, parameter, hook):
        """Starts on one parameter's gradient. Its hook, if given, may do so itself the next
        time."""
        gradient = parameter.grad
        if gradient.is_sparse and not self.sparse_as_dense:
            return _Sparse(name, parameter, self)
        round_ = self.rounds.say(name)
        call, place = self._prepare(name, parameter, round_)
        if hook is not None and place is None and round_ == 0 and call.is_on(gradient):
            hook.remember(*call.requests(), gradient, self.process_set)
        return UnderWay(call.start(), [place], self)

    def start_group(self, group, names, parameters):
        """Starts on a group's gradients, which are reduced as one."""
        rounds = map(self.rounds.say, names)
        return start_as_one(group, map(self._prepare, names, parameters, rounds), self)

    def _prepare(self, name, parameter, round_):
        gradient = parameter.grad
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        sent, memo = self.compression.compress(gradient)
        call = reduce_call(name, self.spec, sent, self.process_set, self.prescale, self.postscale,
                           in_place=True, round=round_)
        # Most gradients are reduced where they lie: nothing to put back.
        return call, None if sent is parameter.grad else (parameter, sent, memo)

    def put_back(self, parameter, reduced, memo):
        """Makes parameter.grad what came back, in the form that it had."""
        reduced = self.compression.decompress(reduced, memo)
        gradient = parameter.grad
        if gradient is None:
            parameter.grad = reduced
        elif gradient.is_sparse:
            parameter.grad = reduced.to_sparse(gradient.sparse_dim())
        else:
            with torch.no_grad():
                gradient.copy_(reduced)


class UnderWay:
    """A started call, or a group of them. `places`: what reduction.put_back takes, a tensor
    each."""

    __slots__ = ("_handle", "_places", "_reduction")

    def __init__(self, handle, places, reduction):
        self._handle = handle
        self._places = places
        self._reduction = reduction

    def wait(self):
        self._handle.wait()
        for place in self._places:
            if place is not None:
                self._reduction.put_back(*place)


def start_as_one(group, prepared, reduction):
    """Starts pairs of a Call and its place as the group of this name."""
    calls, places = zip(*prepared)
    return UnderWay(GroupCall(list(calls), group).start(), places, reduction)


class _Sparse:
    __slots__ = ("_finish", "_parameter")

    def __init__(self, name, parameter, reduction):
        self._parameter = parameter
        self._finish = sparse_allreduce_async(
            parameter.grad, name, reduction.op, reduction.process_set
        )

    def wait(self):
        self._parameter.grad = self._finish()
