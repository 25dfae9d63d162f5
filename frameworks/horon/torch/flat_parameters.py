"""FlatParameters: an optimizer's parameters as flat tensors, which windows work on.

One for each dtype that sums are kept in, on the CPU: float64 for itself, float32 for all narrower
ones; or, not widened, one for each of the parameters' own, on their GPU if they are all on one. On
the training thread.
"""

import torch

from horon.errors import HoronUnsupported
from horon.torch.alike import check_alike, layout_of
from horon.torch.parameters import name_parameters


class FlatParameters:
    """Made by all ranks together, which must have the same parameters in the same order: what lies
    at one place of the flat tensors is mixed. `op`: how, which must be the same as well."""

    def __init__(self, param_groups, named_parameters=None, op="", widened=True):
        self._widened = widened
        self._parameters = {}  # by the dtype of their flat tensor
        for parameter in (p for group in param_groups for p in group["params"]):
            if not parameter.is_floating_point():
                raise HoronUnsupported(
                    f"a parameter is {parameter.dtype}: only floating-point ones can be gossiped")
            keeps = parameter.dtype == torch.float64 or not widened
            dtype = parameter.dtype if keeps else torch.float32
            self._parameters.setdefault(dtype, []).append(parameter)
        names = name_parameters(param_groups, named_parameters)
        check_alike(layout_of(op, names, (p for group in param_groups for p in group["params"])))

    def dtypes(self) -> list:
        return list(self._parameters)

    def empty(self) -> list:
        """Flat tensors with anything in them, one for each of dtypes(); those of the CPU are pinned
        where parameters are on a GPU, which copies pinned ones faster."""
        return [self._empty(dtype, parameters) for dtype, parameters in self._parameters.items()]

    def _empty(self, dtype, parameters) -> torch.Tensor:
        count = sum(p.numel() for p in parameters)
        devices = {p.device for p in parameters}
        on_gpu = any(d.type == "cuda" for d in devices)
        if on_gpu and len(devices) == 1 and not self._widened:
            return torch.empty(count, dtype=dtype, device=devices.pop())
        return torch.empty(count, dtype=dtype, pin_memory=on_gpu)

    def new(self) -> list:
        """Those with the parameters' values."""
        return self.read(self.empty())

    @torch.no_grad()
    def read(self, flats) -> list:
        for parameter, part in self._pairs(flats):
            part.copy_(parameter)
        return flats

    @torch.no_grad()
    def subtract(self, flats, out) -> None:
        """out = the parameters - flats; both as new() gives them."""
        for (parameter, part), (_, difference) in zip(self._pairs(flats), self._pairs(out)):
            if parameter.device == part.device:
                torch.sub(parameter, part, out=difference)
            else:
                difference.copy_(parameter).sub_(part)

    @torch.no_grad()
    def write(self, flats) -> None:
        """Into the parameters; the flats become what these can hold."""
        for parameter, part in self._pairs(flats):
            parameter.copy_(part)
            if parameter.dtype != part.dtype:
                part.copy_(parameter)

    @torch.no_grad()
    def add(self, flats) -> None:
        """To the parameters."""
        for parameter, part in self._pairs(flats):
            parameter.add_(part.to(parameter.device))

    @torch.no_grad()
    def multiply(self, factors) -> None:
        """All parameters of a flat tensor by its factor."""
        for parameters, factor in zip(self._parameters.values(), factors):
            for parameter in parameters if factor != 1 else ():
                parameter.mul_(factor)

    @torch.no_grad()
    def divide(self, factors) -> None:
        for parameters, factor in zip(self._parameters.values(), factors):
            for parameter in parameters if factor != 1 else ():
                parameter.div_(factor)

    def _pairs(self, flats):
        for flat, parameters in zip(flats, self._parameters.values()):
            at = 0
            for parameter in parameters:
                yield parameter, flat[at:at + parameter.numel()].view(parameter.shape)
                at += parameter.numel()
