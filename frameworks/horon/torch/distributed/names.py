"""torch.distributed's names of reductions as Horon's."""

from torch.distributed import ReduceOp

from horon.errors import HoronUnsupported

_SPECS = ((ReduceOp.SUM, "sum"), (ReduceOp.AVG, "average"), (ReduceOp.MIN, "min"),
          (ReduceOp.MAX, "max"), (ReduceOp.PRODUCT, "product"))


def spec_of_reduce_op(reduce_op) -> str:
    if reduce_op is None:
        return "sum"
    for known, spec in _SPECS:
        if reduce_op == known:
            return spec
    raise HoronUnsupported(
        f"the backend 'horon' has no reduction {getattr(reduce_op, 'op', reduce_op)!s}; "
        "it has SUM, AVG, MIN, MAX and PRODUCT"
    )
