"""ArrivingGossip: what a step sends arrives before the next forward pass, a parameter at a time.

optimizer.step() starts the exchange of each parameter and returns. Right before a module's forward
the parameters that are its own are waited for and become what they were mixed to: so the exchange
of the last layers goes on while the first ones compute. At every forward pass the values are, bit
by bit, those of ParameterGossip without overlap. Until then a parameter is what was sent.

A parameter that is used before its own module runs is not known to be: it is taken in before the
next step then, and a warning says so. All on the training thread, and on the one that runs
backward, one at a time.

Source: combine then adapt, Sayed, Adaptation, Learning, and Optimization over Networks, 2014.
"""

import contextlib
import warnings
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from horon.gossip import fail_when_late
from horon.torch.optimizer_base import NoReduction
from horon.torch.parameter_gossip import ParameterGossip, divisor
from horon.torch.parameters import remove_with

_USED_BEFORE = (
    "a parameter was trained before its module's forward pass took in what the neighbors sent, so "
    "its gradient is that of the values before: call optimizer.finish_gossip() before a forward "
    "pass that does not go through the modules"
)


class ArrivingGossip(ParameterGossip, NoReduction):
    """Combine then adapt. Also in a reducer's place, where nothing is to be done."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        super().__init__(op, param_groups, named_parameters, process_set)
        self._arriving = {}  # parameter: the handle of what it becomes
        self._weight_arriving = None
        self._weight_sent = 1.0  # with what has not arrived yet
        self._warned = False
        if self.push_sum:  # the weight and the parameters must not be of different rounds
            self._spec = fail_when_late(self._spec)

    def _arrive_in_forward(self, optimizer):
        """From now on, until the optimizer goes. Of every module: which are meant is known by
        their parameters."""
        me = weakref.WeakMethod(self._before_forward)

        def begins(module, _):
            before_forward = me()
            if before_forward is not None:
                before_forward(module)

        remove_with(optimizer, [register_module_forward_pre_hook(begins)])

    def _before_forward(self, module):
        if self._arriving:
            for parameter in module._parameters.values():
                self._arrive(parameter)

    @torch.no_grad()
    def _arrive(self, parameter):
        """An interrupt (Ctrl-C in a notebook) changes nothing: it can be waited for again."""
        handle = self._arriving.get(parameter)
        if handle is None:
            return
        try:
            if self._weight_arriving is not None:
                self._weight_sent = self.weight.item()
                self.weight.copy_(self._weight_arriving.wait())
                self._weight_arriving = None
            parameter.copy_(handle.wait())
        except Exception:
            self._leave_out()
            raise
        if self.push_sum:
            parameter.div_(divisor(self.weight.item()))
        del self._arriving[parameter]

    def _leave_out(self):
        """An exchange has failed: what has not arrived stays what was sent, and must not be mixed
        by another round than the weight."""
        left, self._arriving, self._weight_arriving = self._arriving, {}, None
        self._first = True  # what was mixed and what was not are at different rounds
        for handle in left.values():  # their tensors are lent
            with contextlib.suppress(Exception):
                handle.wait()
        if self.push_sum:
            for parameter in left:
                parameter.div_(self._weight_sent)

    def _arrive_late(self, parameter):
        """Its gradient is there already."""
        if parameter in self._arriving and not self._warned:
            self._warned = True
            warnings.warn(_USED_BEFORE, stacklevel=2)
        self._arrive(parameter)

    def _arrive_all(self):
        for parameter in list(self._arriving):
            self._arrive(parameter)

    # --- combine then adapt: of ParameterGossip ---------------------------------------------------

    def bias(self):
        for parameter in list(self._arriving):
            self._arrive_late(parameter) if parameter.grad is not None else self._arrive(parameter)
        super().bias()

    @torch.no_grad()
    def after_step(self):
        self._steps += 1
        every = self._op.global_average_every
        if every and self._steps % every == 0:
            self._average()
        elif self._mixes:
            self._send()

    def _send(self):
        """The weight first: with it any parameter can arrive."""
        if self.push_sum:
            self._weight_arriving = self._call(self._weight_name, self.weight).start()
        for parameter in self._parameters():
            call = self._call(f"gossip.{self._names[parameter]}", parameter.detach())
            self._arriving[parameter] = call.start()
        self._round += 1
        self._first = False

    @torch.no_grad()
    def debias(self):
        """What is sent is x, and stays as it is until it arrives."""
        if self.push_sum:
            weight = divisor(self.weight.item())
            for parameter in self._parameters():
                if parameter not in self._arriving:
                    parameter.div_(weight)

    # --- between steps ----------------------------------------------------------------------------

    def finish(self, average=False, timeout=None) -> bool:
        self._arrive_all()
        return super().finish(average, timeout)

    def _discard(self):
        """The parameters may have been loaded already: they stay."""
        arriving, self._arriving = self._arriving, {}
        weight, self._weight_arriving = self._weight_arriving, None
        for handle in (*arriving.values(), weight):
            if handle is not None:
                handle.wait()

    # --- in a reducer's place ---------------------------------------------------------------------

    def follow(self, optimizer):
        self._arrive_in_forward(optimizer)
