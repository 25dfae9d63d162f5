"""Aggregations: callables that make many ranks' tensors one, in place.

    aggregate = horon.aggregation.Sparsified(ratio=0.01)
    aggregate(model, op="avg")        # a module: its gradients; also a tensor or a list of tensors

Each names an op of the runtime by its spec: the same algorithms serve op= in DistributedOptimizer.
Every rank calls with the same shapes in the same order. Blocking.
"""

import itertools

import torch

from horon.errors import HoronInvalidArgument
from horon.process_sets import global_process_set
from horon.specs import Dissemination, reduction_of, spec_of
from horon.torch.calls import reduce_call, wait_all

_instances = itertools.count()


class Aggregation:
    """Base: subclasses say in spec() which op of the runtime does `op`.

    name: sets this object's tensors apart from others', the same on all ranks. Ops that remember
    something from call to call (residuals, rounds) keep it per name and position.
    """

    def __init__(self, name=None, process_set=global_process_set):
        self._name = f"aggregation.{next(_instances) if name is None else name}"
        self._process_set = process_set

    def spec(self, op: str) -> str:
        raise NotImplementedError

    def __call__(self, data, op="avg"):
        """Aggregates `data` in place and gives it back."""
        spec = self.spec(op)
        handles = [
            reduce_call(f"{self._name}.{name}", spec, tensor, self._process_set,
                        in_place=True).start()
            for name, tensor in _named_tensors(data)
        ]
        wait_all(handles)
        return data


def _named_tensors(data) -> list:
    if isinstance(data, torch.nn.Module):
        return [(n, _gradient(p)) for n, p in data.named_parameters() if p.requires_grad]
    if isinstance(data, torch.Tensor):
        return [("0", data)]
    return [(str(i), tensor) for i, tensor in enumerate(data)]


def _gradient(parameter) -> torch.Tensor:
    """Other ranks may have a gradient where we have none: then ours counts as zeros."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad


_PLAIN = {"avg": "average", "average": "average", "sum": "sum", "min": "min", "max": "max",
          "product": "product"}


def _choose(op, choices: dict, what: str) -> str:
    word = spec_of(op)
    if word not in choices:
        raise HoronInvalidArgument(f"{what} has no op {word!r}; it has {', '.join(choices)}")
    return choices[word]


class AllReduce(Aggregation):
    """All tensors of all ranks, whole: avg, sum, min, max, product."""

    def spec(self, op):
        return _choose(op, _PLAIN, "AllReduce")


class Sparsified(Aggregation):
    """Each rank sends the `ratio` of the elements that are largest, and keeps the rest for the next
    call: avg, sum."""

    def __init__(self, ratio=0.01, name=None, process_set=global_process_set):
        super().__init__(name, process_set)
        self._ratio = ratio

    def spec(self, op):
        kind = _choose(op, {"avg": "average", "average": "average", "sum": "sum"}, "Sparsified")
        return f"topk:ratio={self._ratio!r},op={kind}"


class Decentralized(Aggregation):
    """Averages with one peer a call, another one each time: avg."""

    def spec(self, op):
        return _choose(op, dict.fromkeys(("avg", "average"), Dissemination().spec), "Decentralized")


def aggregation(data, op="avg"):
    """AllReduce()(data, op) for the words above; any other `op` is a spec of the runtime, such as
    "topk:ratio=0.01" or hvd.Dissemination()."""
    return _plain(data, op)


class _Plain(Aggregation):
    def spec(self, op):
        word = spec_of(op)
        return reduction_of(_PLAIN.get(word, word))


_plain = _Plain("plain")
