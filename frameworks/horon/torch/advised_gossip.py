"""AdvisedGossip: what DistributedOptimizer does for op=hvd.Gossip(topology="auto").

The first steps average parameters exactly, and are timed; then horon.advise decides how to go on,
on all ranks alike. Everything else is the chosen algorithm's. On the training thread.
"""

import sys
import time
from statistics import median

import torch

from horon.errors import HoronUnsupported
from horon.gossip import Gossip, advise
from horon.process_sets import global_process_set
from horon.runtime import rank

_EXACT = {"algorithm": "dpsgd", "global_average_every": 1}
_STEPS = 8  # that are timed; the first one, which is slow, is not


class AdvisedGossip:
    """`make`: gossip_optimizer.make_gossip, for the chosen op."""

    def __init__(self, param_groups, named_parameters, process_set, make):
        if process_set is not global_process_set:
            raise HoronUnsupported("topology='auto' is for all ranks: it has no process sets")
        self._param_groups = param_groups
        self._make = lambda op: make(op, param_groups, named_parameters, process_set)
        self._chosen = self._make(Gossip(**_EXACT))
        self._advised = None  # {} means: go on like this; else the arguments of the chosen Gossip
        self._seconds = []
        self._since = None

    @property
    def waits_for_nobody(self) -> bool:
        return self._chosen.waits_for_nobody

    @property
    def push_sum(self) -> bool:
        return self._chosen.push_sum

    def bias(self):
        if self._advised is None and self._since is not None:
            self._seconds.append(time.perf_counter() - self._since)
        self._chosen.bias()

    def debias(self):
        self._chosen.debias()
        self._since = time.perf_counter()

    def take_left(self) -> bool:
        return self._chosen.take_left()

    def before_step(self):
        self._chosen.before_step()

    def after_step(self):
        self._chosen.after_step()
        if self._advised is None and len(self._seconds) > _STEPS:
            self._decide()

    def _decide(self):
        advice = advise(self._parameters(), median(self._seconds[1:]))
        if rank() == 0:
            print(advice, file=sys.stderr, flush=True)
        self._go_on_with(advice.chosen.arguments or {})

    def _go_on_with(self, arguments):
        self._advised = arguments
        if arguments:
            self._chosen.finish()
            self._chosen = self._make(Gossip(**arguments))

    def _runs_another(self, state) -> bool:
        """Whether the job that saved this state ran another algorithm than this one does."""
        return "advised" in state and (state["advised"] or {}) != (self._advised or {})

    @torch.no_grad()
    def _choose_as(self, state):
        """The state's choice; without one, as it is."""
        if self._runs_another(state):
            # They may have been loaded already: what is under way must not change them.
            loaded = [p.detach().clone() for p in self._parameters()]
            self._chosen.close()
            for parameter, value in zip(self._parameters(), loaded):
                parameter.copy_(value)
            self._chosen = self._make(Gossip(**(state["advised"] or _EXACT)))
        if "advised" in state:
            self._advised = state["advised"]
            self._seconds, self._since = [], None

    def _parameters(self) -> list:
        return [p for group in self._param_groups for p in group["params"]]

    def finish(self, average=False, timeout=None) -> bool:
        return self._chosen.finish(average, timeout)

    def mass(self) -> tuple:
        return self._chosen.mass()

    def close(self, timeout=None):
        self._chosen.close(timeout)

    def state(self) -> dict:
        return {"advised": self._advised, **self._chosen.state()}

    def check_state(self, state):
        """As of others; one with a choice is the chosen algorithm's."""
        if not self._runs_another(state):
            self._chosen.check_state(state)

    def load(self, state):
        """For all ranks; the model's parameters may be loaded before or after."""
        self.check_state(state)
        self._choose_as(state)
        self._chosen.load(state)
