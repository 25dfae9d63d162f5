"""Gradients as views of memory that the ranks of a node share (gradient_as_bucket_view=True).

Backward makes each gradient somewhere; when it is complete it is copied here, while the cache has
it, and p.grad becomes the view. From then on nothing is copied: ranks reduce the views in place.
zero_grad(set_to_none=True), PyTorch's default, drops the views and is the fast way; with False
backward adds to them. Made by the GradientReducer, on all ranks alike.
"""

import torch

from horon.torch.shared import SharedArena


class GradientViews:
    def __init__(self, parameters, process_set):
        """For the dense parameters on the CPU among these; all ranks of the set give the same.
        Blocks."""
        mine = [p for p in parameters if p.device.type == "cpu" and p.layout == torch.strided]
        needed = sum(SharedArena.bytes_for(p.numel(), p.dtype) for p in mine)
        arena = SharedArena(needed, process_set)
        # The order in which backward completes them, more or less: those of one bucket are close.
        self._views = {p: _like(p, arena.take(p.numel(), p.dtype)) for p in reversed(mine)}

    def of(self, parameter):
        """The view that is this parameter's gradient; None where it has none."""
        return self._views.get(parameter)


def _like(parameter, flat):
    """The elements in the parameter's own order in memory, as autograd wants its gradients."""
    dense = torch.empty_like(parameter, device="meta")
    return flat.as_strided(dense.size(), dense.stride())


def adopt(parameter, view):
    """Makes the view the gradient, with the value that the gradient has."""
    gradient = parameter.grad
    if gradient is view or gradient is None or gradient.is_sparse:
        return
    with torch.no_grad():
        view.copy_(gradient)
    parameter.grad = view
