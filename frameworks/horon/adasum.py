"""A learning rate to start from with op=Adasum (docs/adasum.md)."""

from __future__ import annotations

from horon.errors import HoronInvalidArgument
from horon.runtime import is_homogeneous, local_size
from horon.specs import Adasum, spec_of


def suggest_lr(lr: float, op=Adasum, ranks_per_node: int | None = None) -> float:
    """The learning rate to try first with `op`, an Adasum, if `lr` is the best one of one rank.

    That is `lr`, whatever the number of ranks: Adasum makes the steps longer by itself where
    gradients do not agree. With AdasumOp(local_op="average") the ranks of a node bring one gradient
    of a larger batch, and it is `lr` times their number; with "sum" the factor is in the gradients
    already. A start, not a result: try more and less.

    ranks_per_node: where nodes have different numbers of ranks, or before init().
    """
    name, _, options = spec_of(op).partition(":")
    if name != Adasum.spec:
        raise HoronInvalidArgument(f"suggest_lr is for Adasum, not for {op!r}")
    if "local=average" not in options.split(","):
        return lr
    if ranks_per_node is None:
        if not is_homogeneous():
            raise HoronInvalidArgument("nodes have different numbers of ranks: say ranks_per_node")
        ranks_per_node = local_size()
    return lr * ranks_per_node
