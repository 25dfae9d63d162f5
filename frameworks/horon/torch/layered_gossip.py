"""LayeredGossip: adapt then combine, a parameter at a time, while backward goes on.

As soon as backward has completed a parameter's gradient, the wrapped optimizer takes its step for
that parameter alone, and the parameter is on its way to the neighbors; optimizer.step() waits for
what is still under way, with overlap=True the next forward pass does, module by module
(arriving_gossip.py). The result is that of ParameterGossip without overlap, x <- C(x + u(x)), but
the exchange of all layers but the first hides behind backward, or all of it behind both.

Source: BlueFog's adapt-then-combine (Ying et al., 2021), whose hooks do this for some optimizers.
On the thread that runs backward and the one that trains, one at a time.
"""

import weakref

import torch

from horon.errors import HoronUnsupported
from horon.torch.arriving_gossip import ArrivingGossip
from horon.torch.calls import wait_all, waited_through
from horon.torch.local_steps import Asked, LocalSteps
from horon.torch.parameters import remove_with
from horon.torch.reducer import TOO_MANY

TOO_LATE = ("style='atc' takes each parameter's step during backward: afterwards gradients can "
            "neither be clipped nor unscaled. Leave the style out for that")
BY_LAYERS = Asked("style='atc'", "The parameters are not as they were",
                  "leave the style out with it", "hvd.DistributedOptimizer")


class LayeredGossip(ArrivingGossip):
    """Also in a reducer's place: what backward starts, step() ends."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        super().__init__(op, param_groups, named_parameters, process_set)
        self._steps_of_one = None  # of the wrapped optimizer
        self._passes = 1
        self._left = {}  # backward passes until a parameter's step
        self._used = {}  # parameter: (its gradient, the version of it that the step was taken with)
        self._hooked = set()
        self._handles = []  # of the hooks
        self._under_way = {}  # parameter: handle of what it becomes; None: it is not mixed now
        self._weight_under_way = None

    def follow(self, optimizer):
        remove_with(optimizer, self._handles)
        if self._op.overlap:
            super().follow(optimizer)

    def attach(self, optimizer, kind):
        """Hooks come with this. kind: the class whose step is taken on one parameter at a time."""
        self._steps_of_one = LocalSteps(weakref.proxy(optimizer), kind, self._names, BY_LAYERS)
        self._hook_parameters()

    def _hook_parameters(self):
        for parameter in self._parameters():
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked.add(parameter)
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._ready))

    def take_new(self, param_groups):
        super().take_new(param_groups)
        self._hook_parameters()

    # --- during backward --------------------------------------------------------------------------

    @torch.no_grad()
    def _ready(self, parameter):
        left = self._left.get(parameter, self._passes) - 1
        if left < 0:
            self._used.clear()  # this pass has changed them, and says so here
            raise AssertionError(TOO_MANY)
        self._left[parameter] = left
        self._arrive_late(parameter)
        if left == 0:
            self._bias_one(parameter)
            self._steps_of_one.step(parameter)
            self._used[parameter] = parameter.grad, parameter.grad._version
            self._combine(parameter)

    def _bias_one(self, parameter):
        """From z to x = z w."""
        if self.push_sum:
            parameter.mul_(self.weight.item())

    def _combine(self, parameter):
        """The parameter is x, and stays as it is until it is replaced."""
        mixes = self._mixes and not self._averages_now()
        self._under_way[parameter] = (
            self._call(f"gossip.{self._names[parameter]}", parameter.detach()).start()
            if mixes else None)
        if mixes and self.push_sum and self._weight_under_way is None:
            self._weight_under_way = self._call(self._weight_name, self.weight).start()

    def _averages_now(self) -> bool:
        every = self._op.global_average_every
        return bool(every) and (self._steps + 1) % every == 0

    # --- optimizer.step() -------------------------------------------------------------------------

    @torch.no_grad()
    def after_step(self):
        """Ends what backward has started, and does the same for the rest: whose gradient is not of
        all passes, or was set by hand. A parameter without one is mixed all the same."""
        for parameter in self._parameters():
            if parameter not in self._under_way:
                self._arrive(parameter)
                self._bias_one(parameter)
                if parameter.grad is not None:
                    self._steps_of_one.step(parameter)
                self._combine(parameter)
        averages = self._averages_now()
        self._left.clear()
        under_way, self._under_way = self._under_way, {}
        weight_under_way, self._weight_under_way = self._weight_under_way, None
        self._steps += 1
        if self._mixes and not averages:
            self._round += 1
            self._first = False
        try:
            if self._op.overlap and self._mixes and not averages:
                self._arriving, self._weight_arriving = under_way, weight_under_way
            else:
                self._end(under_way, weight_under_way, averages)
        finally:
            self._hook_parameters()
            self._steps_of_one.commit()

    def _end(self, under_way, weight, averages):
        try:
            self._take_in(under_way, weight)
            if averages:
                self._average()
        finally:
            self.debias()

    def _take_in(self, under_way, weight):
        """All or nothing: when a parameter's exchange has failed, none is mixed."""
        handles = [handle for handle in (*under_way.values(), weight) if handle is not None]
        try:
            interrupt = waited_through(lambda: wait_all(handles))
        except Exception:
            self._first = True  # what was mixed and what was not are at different rounds
            raise
        for parameter, handle in under_way.items():
            if handle is not None:
                parameter.copy_(handle.wait())
        if weight is not None:
            self.weight.copy_(weight.wait())
        if interrupt is not None:
            raise interrupt

    def finish(self, average=False, timeout=None) -> bool:
        self._check_between_steps()
        return super().finish(average, timeout)

    def _discard(self):
        self._check_between_steps()
        super()._discard()

    def _check_between_steps(self):
        if self.pending:
            raise HoronUnsupported("backward has begun a step: call optimizer.step() first")

    def check_step(self, skips, scaled):
        used, self._used = self._used, {}
        changed = any(parameter.grad is not gradient or gradient._version != version
                      for parameter, (gradient, version) in used.items())
        if skips or scaled or changed:
            raise HoronUnsupported(TOO_LATE)

    # --- in a reducer's place ---------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether steps were taken that step() has not ended."""
        return bool(self._under_way)

    def synchronize(self):
        pass

    def reset(self):
        self._left.clear()
        self._used.clear()
        self._steps_of_one.drop()

    def set_passes(self, passes):
        self._passes = passes
        self._left.clear()
