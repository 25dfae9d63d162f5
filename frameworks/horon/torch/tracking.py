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
from horon.torch.calls import GroupCall, waited_through
from horon.torch.parameter_gossip import ParameterGossip


class _Remembering(ParameterGossip):
    """Keeps tensors like the parameters from step to step; they are part of the state."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        if op.overlap or op.global_average_every or op.what != "parameters":
            raise HoronInvalidArgument(f"{op.algorithm} has an order of its own: leave overlap, "
                                       "global_average_every and what as they are")
        super().__init__(op, param_groups, named_parameters, process_set)
        self._kept = {}  # name: {parameter: a tensor like it}

    def state(self) -> dict:
        """Of kept tensors those of each parameter, by its number in the groups."""
        numbers = {p: number for number, p in enumerate(self._parameters())}
        return {**super().state(), "kept": {name: {numbers[p]: value for p, value in of.items()}
                                            for name, of in self._kept.items()}}

    def check_state(self, state):
        super().check_state(state)
        if not all(isinstance(of, dict) for of in state.get("kept", {}).values()):
            raise HoronInvalidArgument(
                "this checkpoint is of an older version, which kept lists of what the algorithm "
                "remembers: load it without its 'horon_gossip', which begins to remember anew")

    def _forget(self):
        """All begin to remember anew, so any rank may go on from a mean's checkpoint."""
        self._kept.clear()

    def load(self, state):
        super().load(state)
        parameters = list(self._parameters())
        self._kept = {name: {parameters[number]: value.to(parameters[number].device)
                             for number, value in of.items()}
                      for name, of in state.get("kept", {}).items()}

    @torch.no_grad()
    def _gradients(self) -> dict:
        """Of what is trained: a frozen parameter must not get one."""
        return {p: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
                for p in self._parameters() if p.requires_grad}

    def _track(self) -> dict:
        """By parameter y + g - g before; the first time, and when it is trained again, it is g."""
        now = self._gradients()
        before, self._kept["gradient"] = self._kept.get("gradient", {}), now
        return {p: self._kept["y"][p] + (gradient - before[p]) if p in before else gradient.clone()
                for p, gradient in now.items()}

    def _use(self, tracked):
        """In the gradients' place."""
        self._kept["y"] = tracked
        for parameter, y in tracked.items():
            parameter.grad = y.clone()


class GradientTracking(_Remembering):
    _interrupt = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._mixed_before = set()  # whose y, since rounds have been counted from where they are

    def load(self, state):
        super().load(state)
        self._mixed_before.clear()

    def _forget(self):
        super()._forget()
        self._mixed_before.clear()

    @torch.no_grad()
    def before_step(self):
        if not self._mixes:
            return
        known = self._kept.get("gradient", {})
        tracked = self._track()
        going_on = [p for p in tracked if p in known]
        if going_on:
            mixing = GroupCall([self._call(f"gossip.y.{self._names[p]}", tracked[p],
                                           p not in self._mixed_before) for p in going_on],
                               "gossip.y").start()
            self._mixed_before.update(going_on)
            self._interrupt = waited_through(mixing.wait)
            tracked.update(zip(going_on, mixing.wait()))
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
        if not self._mixes:
            return
        known = self._kept.get("gradient", {})
        tracked = self._track()
        if any(p not in known for p in tracked):
            self._first = True  # a new y must be at the round of the others
        self._use(tracked)

    def _travelling(self):
        tracked = [(f"gossip.y.{self._names[p]}", y) for p, y in self._kept["y"].items()]
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
            self._kept["x"] = {p: p.detach().clone() for p in self._parameters()}

    @torch.no_grad()
    def after_step(self):
        if self._mixes:
            stepped = {p: p.detach().clone() for p in self._parameters()}
            begun = self._kept.pop("x")
            before = self._kept.get("stepped", begun)
            for p, x in begun.items():
                p.add_(x - before[p])
            self._kept["stepped"] = stepped
        super().after_step()
