"""Gradients as DistributedOptimizer has them: registered once, then handed over by a hook each."""

from __future__ import annotations

import torch

import horon.torch as hvd


class Registered:
    """The hooks of a model with these gradients, called in their order, which is backward's: the
    model has its parameters the other way round. `arguments` are DistributedOptimizer's."""

    def __init__(self, gradients: list[torch.Tensor], op: object, name: str, **arguments) -> None:
        # Nobody reads them: memory for one element is enough.
        self._parameters = [torch.nn.Parameter(g.new_zeros(1).expand(g.shape)) for g in gradients]
        named = [(f"{name}.{i}", p) for i, p in enumerate(self._parameters)][::-1]
        hooks = []
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
            register = parameter.register_post_accumulate_grad_hook
            parameter.register_post_accumulate_grad_hook = (
                lambda hook, register=register: (hooks.append(hook), register(hook))[1]
            )
        sgd = torch.optim.SGD(self._parameters[::-1], 0.0)
        self._optimizer = hvd.DistributedOptimizer(sgd, named, op=op, **arguments)
        self._calls = list(zip(hooks[::-1], self._parameters, strict=True))

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._parameters]

    def submit(self) -> None:
        for hook, parameter in self._calls:
            hook(parameter)

    def wait(self) -> None:
        self._optimizer.synchronize()
