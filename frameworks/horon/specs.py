"""Ops by name. An op is a spec string ("sum", "topk:ratio=0.01"); these objects spell it for you.

Equal specs on all ranks are the ranks' agreement, so a new op needs nothing here: `op="name:key=1"`
works wherever an op is asked for, and the runtime says what it does not know.
"""

import functools

from horon import _core
from horon.errors import HoronInvalidArgument


class Op:
    """Something to do with a tensor; `spec` is what the runtime reads."""

    __slots__ = ("spec",)

    def __init__(self, spec: str):
        self.spec = spec

    def __repr__(self) -> str:
        return f"Op({self.spec!r})"

    def __eq__(self, other) -> bool:
        return isinstance(other, Op) and other.spec == self.spec

    def __hash__(self) -> int:
        return hash(self.spec)


Average = Op("average")
Sum = Op("sum")
Adasum = AdaSum = Op("adasum")
Min = Op("min")
Max = Op("max")
Product = Op("product")


def AdasumOp(local_op: str = "adasum", zero_policy: str = "sum", algorithm: str = "auto",
             rings=None) -> Op:
    """Adasum with other choices than hvd.Adasum's.

    local_op: what ranks of one node do among each other: "adasum", "average" or "sum".
    zero_policy: whether a parameter that some ranks did not use is summed ("sum") or averaged
    ("mean"). algorithm: "auto", "halving", "doubling" or "tree"; all give the same result; or
    "ring", which gives nearly that. rings: for "ring", lists of the ranks' places in the process
    set; horon.rings finds good ones. Default: one, in their order.
    """
    choices = [("algo", algorithm, "auto"), ("local", local_op, "adasum"),
               ("zero", zero_policy, "sum"),
               ("rings", "/".join(".".join(map(str, ring)) for ring in rings or ()), "")]
    given = [f"{key}={value}" for key, value, default in choices if value != default]
    return Op("adasum:" + ",".join(given) if given else "adasum")


def Dissemination() -> Op:
    """Averages with one peer a call; it changes so that after log2(size) calls all have met. Calls
    are counted by the tensor's name, so it needs one."""
    return Op("dissemination")


def TopK(ratio: float = 0.01) -> Op:
    """Sends the largest `ratio` of the elements; what is left waits for the next call with a tensor
    of the same name, which has to be given."""
    return Op(f"topk:ratio={ratio!r}")


def spec_of(op) -> str:
    """The spec string of an op constant, an object with a `spec`, or a string."""
    if type(op) is Op:
        return op.spec
    if isinstance(op, str):
        return op
    spec = getattr(op, "spec", None)
    if not isinstance(spec, str):
        name = callable(op) and getattr(op, "__name__", "")
        if name:
            raise HoronInvalidArgument(f"op is {name} itself: call it, {name}(...)")
        raise HoronInvalidArgument(
            f"op is {op!r}: use hvd.Average, hvd.Sum, ... or a spec string like 'topk:ratio=0.01'"
        )
    return spec


def reduction_of(op) -> str:
    """As spec_of(op), of an op that reduces whole tensors, which is what op= takes."""
    return _checked(spec_of(op))


@functools.lru_cache(maxsize=256)
def _checked(spec: str) -> str:
    _core.check_reduction(spec)
    return spec
