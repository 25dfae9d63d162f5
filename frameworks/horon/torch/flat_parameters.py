"""FlatParameters: an optimizer's parameters as flat tensors of the CPU, which windows work on.

One for each dtype that sums are kept in: float64 for itself, float32 for all narrower ones. On the
training thread.
"""

import torch

from horon.errors import HoronUnsupported


class FlatParameters:
    def __init__(self, param_groups):
        self._parameters = {}  # by the dtype of their flat tensor
        for parameter in (p for group in param_groups for p in group["params"]):
            if not parameter.is_floating_point():
                raise HoronUnsupported(
                    f"a parameter is {parameter.dtype}: only floating-point ones can be gossiped")
            wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            self._parameters.setdefault(wide, []).append(parameter)

    def dtypes(self) -> list:
        return list(self._parameters)

    def new(self) -> list:
        """Flat tensors with the parameters' values, one for each of dtypes()."""
        return self.read([torch.empty(sum(p.numel() for p in parameters), dtype=dtype)
                          for dtype, parameters in self._parameters.items()])

    @torch.no_grad()
    def read(self, flats) -> list:
        for parameter, part in self._pairs(flats):
            part.copy_(parameter)
        return flats

    @torch.no_grad()
    def write(self, flats) -> None:
        """Into the parameters; the flats become what these can hold."""
        for parameter, part in self._pairs(flats):
            parameter.copy_(part)
            if parameter.dtype != part.dtype:
                part.copy_(parameter)

    def _pairs(self, flats):
        for flat, parameters in zip(flats, self._parameters.values()):
            at = 0
            for parameter in parameters:
                yield parameter, flat[at:at + parameter.numel()].view(parameter.shape)
                at += parameter.numel()
