"""Gossip that reaches the optimum of all ranks' data with a constant learning rate.

Plain gossip stops short of it where ranks have different data: each rank's gradient pulls at its
parameters for ever. These remember what they need to take that pull out. With C the mixing, u(y)
what the optimizer makes of y in the gradient's place, g the gradient at the model's parameters:

    gt                y <- C(y + g - g before), the first time y = g;  x <- C(x + u(y))
    exact_diffusion   p <- x + u(g);  x <- C(p + x - p before), with C = (I + W) / 2, W symmetric
    push_diging       y <- C(y) + g - g before;  (x, w, y) <- C(x + u(y), w, y), model at x / w

The mean of y over the ranks is the mean of g. On the training thread.

Sources: Di Lorenzo and Scutari, NEXT, 2016; Nedic, Olshevsky and Shi, DIGing and Push-DIGing, SIAM
J. Optim. 2017; Yuan, Ying, Zhao and Sayed, Exact Diffusion, IEEE TSP 2019; Tang et al., D2, ICML
2018.
"""

import torch

from horon.errors import HoronInvalidArgument
from horon.torch.calls import waited_through
from horon.torch.parameter_gossip import ParameterGossip


class _Remembering(ParameterGossip):
    """Keeps tensors like the parameters from step to step; they are part of the state."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        if op.overlap or op.global_average_every or op.what != "parameters":
            raise HoronInvalidArgument(f"{op.algorithm} has an order of its own: leave overlap, "
                                       "global_average_every and what as they are")
        super().__init__(op, param_groups, named_parameters, process_set)
        self._kept = {}  # name: a tensor for each parameter

    def state(self) -> dict:
        return {**super().state(), "kept": self._kept}

    def load(self, state):
        super().load(state)
        owners = {"gradient": self._learning(), "y": self._learning()}
        self._kept = {name: [value.to(p.device) for p, value
                             in zip(owners.get(name, self._parameters()), values)]
                      for name, values in state.get("kept", {}).items()}

    def _learning(self) -> list:
        """What has gradients to track; a frozen parameter must not get one."""
        return [p for p in self._parameters() if p.requires_grad]

    @torch.no_grad()
    def _gradients(self) -> list:
        return [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
                for p in self._learning()]

    def _track(self) -> list:
        """y + g - g before; the first time it is g."""
        now = self._gradients()
        before, self._kept["gradient"] = self._kept.get("gradient"), now
        if before is None:
            return [gradient.clone() for gradient in now]
        return [y + (new - old) for y, new, old in zip(self._kept["y"], now, before)]

    def _use(self, values):
        """In the gradients' place."""
        self._kept["y"] = values
        for parameter, y in zip(self._learning(), values):
            parameter.grad = y.clone()


class GradientTracking(_Remembering):
    _interrupt = None
    _mixed_before = False  # any y since rounds have been counted from where they are

    def load(self, state):
        super().load(state)
        self._mixed_before = False

    @torch.no_grad()
    def before_step(self):
        if not self._mixes:
            return
        begins = "gradient" not in self._kept
        tracked = self._track()
        if not begins:
            names = [f"gossip.y.{self._names[p]}" for p in self._learning()]
            first, self._mixed_before = not self._mixed_before, True
            mixing = self._mixed(names, tracked, "gossip.y", first)
            self._interrupt = waited_through(mixing.wait)
            tracked = mixing.wait()
        self._use(tracked)

    def after_step(self):
        """Ctrl-C while y was mixed waits until here: ranks mix y and x in turn."""
        super().after_step()
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt


class PushDiging(_Remembering):
    @torch.no_grad()
    def before_step(self):
        if self._mixes:
            self._use(self._track())

    def _travelling(self):
        tracked = [(f"gossip.y.{self._names[p]}", y)
                   for p, y in zip(self._learning(), self._kept["y"])]
        return [*super()._travelling(), *tracked]


class ExactDiffusion(_Remembering):
    def _check_graph(self):
        super()._check_graph()
        if self._mixes and (self._graph.period != 1 or not self._graph.is_symmetric):
            raise HoronInvalidArgument(
                f"{self._graph!r} changes from round to round or is not symmetric, which "
                "exact_diffusion needs: take SymmetricExponential, Ring or another static graph, "
                "or algorithm='gt'")

    @torch.no_grad()
    def before_step(self):
        if self._mixes:
            self._kept["x"] = [p.detach().clone() for p in self._parameters()]

    @torch.no_grad()
    def after_step(self):
        if self._mixes:
            stepped = [p.detach().clone() for p in self._parameters()]
            before = self._kept.get("stepped", self._kept["x"])
            for p, x, old in zip(self._parameters(), self._kept.pop("x"), before):
                p.add_(x - old)
            self._kept["stepped"] = stepped
        super().after_step()
