"""RoundGossip: dpsgd, sgp and osgp in which a round waits for a rank's own neighbors alone.

The algorithms are ParameterGossip's, and so are the values, to the bit. What travels is a window
(windows.py) for each dtype of the parameters, which the runtimes mix in rounds: nobody agrees with
all ranks that a round can begin. Calls are for the training thread; docs/gossip.md says what
happens when a neighbor is late or gone.
"""

import itertools
import time

import torch

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.process_sets import global_process_set
from horon.torch.calls import wait_all
from horon.torch.flat_parameters import FlatParameters
from horon.torch.gossip_state import weights_for
from horon.torch.marks import took_in
from horon.torch.meeting import meet
from horon.torch.parameter_gossip import ParameterGossip, divisor
from horon.torch.windows import Window, free_all

_numbers = itertools.count()


class RoundGossip(ParameterGossip):
    """Made, loaded and closed by all ranks together. `_windows` is empty where nobody is there to
    gossip with."""

    _compares = False  # FlatParameters has done that

    def __init__(self, op, param_groups, named_parameters, process_set):
        if process_set is not global_process_set:
            raise HoronUnsupported("negotiated=False is for all ranks: it has no process sets")
        # By the spec, before any rank draws its graph: what is wrong with that all ranks find.
        self._flat = FlatParameters(param_groups, named_parameters, op.words(), widened=False)
        super().__init__(op, param_groups, named_parameters, process_set)
        # Where rows sum to 1, too: a part that a neighbor did not take comes back with its weight.
        self._weighs = self.push_sum = op.push_sum and self._mixes
        self._weights = [1.0] * len(self._flat.dtypes())
        self._sent = self._flat.new() if self._mixes and op.overlap else None
        self._number = next(_numbers)
        self._windows = []
        if self._mixes:
            self._open(0)

    def _open(self, first):
        for flat in self._flat.new():
            name = f"gossip.{self._op.algorithm}.{self._number}.{len(self._windows)}"
            self._windows.append(Window(flat, name, self._graph, gets=False, in_rounds=True,
                                        push_sum=self.push_sum, first_round=first))

    def bias(self):
        self._flat.multiply(self._weights)
        self._take_left()

    def debias(self):
        self._flat.divide([divisor(weight) for weight in self._weights])

    def _tensors(self) -> list:
        return [window.tensor for window in self._windows]

    def _start(self):
        """With overlap what was sent is kept, to find out what the exchange has changed."""
        if not self._windows:
            raise HoronInvalidArgument("a checkpoint was refused, so there is no round to go on "
                                       "from: load one that all ranks have")
        overlap = self._sent is not None
        self._flat.read(self._sent if overlap else self._tensors())
        for window, weight in zip(self._windows, self._weights):
            window.push_sum_weight = weight
        self._pending = [window.mix_async(sent) for window, sent in
                         zip(self._windows, self._sent or itertools.repeat(None))]
        self._age, self._begun, self._begun_at = 0, self._steps, time.monotonic_ns()

    def _collect(self):
        if self._pending is None:
            return
        self._ended(lambda: wait_all(self._pending))
        after = [window.push_sum_weight for window in self._windows]
        if self._sent is None:
            self._flat.write(self._tensors())
            self._weights = after
            return
        for tensor, sent in zip(self._tensors(), self._sent):
            torch.sub(tensor, sent, out=sent)
        self._flat.add(self._sent)
        self._weights = [now + (new - now) for now, new in zip(self._weights, after)]
        took_in(self._steps - self._begun, self._begun_at)

    def _take_back(self):
        """What was given to a neighbor that turned out not to have taken it: with nothing under
        way."""
        self._flat.read(self._tensors())
        for window, weight in zip(self._windows, self._weights):
            window.push_sum_weight = weight
            window.publish()
        self._flat.write(self._tensors())
        self._weights = [window.push_sum_weight for window in self._windows]

    def _weights_now(self):
        return torch.tensor(self._weights, dtype=torch.float64)

    def _set_weights(self, weights):
        self._weights = weights.tolist()

    def _discard(self):
        pending, self._pending = self._pending, None
        wait_all(pending or ())

    def _take_all_in(self):
        self._collect()
        if self.push_sum and self._windows:
            self._take_back()

    def mass(self) -> tuple:
        values = [flat * weight for flat, weight in zip(self._flat.new(), self._weights)]
        return values, sum(self._weights) / len(self._weights)

    def close(self, timeout=None):
        """Steps are local ones afterwards."""
        self.finish()
        meet(timeout=timeout)
        free_all(self._windows)
        self._mixes = self.push_sum = False

    def state(self) -> dict:
        return {"weight": self._weights[0], "weights": list(self._weights),
                "round": self._windows[0].round if self._windows else 0, "steps": self._steps}

    def load(self, state):
        """For all ranks; the model's parameters may be loaded before or after. A state of the
        negotiated way will do."""
        self.check_state(state)
        self._discard()
        self._owed = False
        self._steps = state["steps"]
        if self._weighs:
            self._weights = weights_for(state, len(self._weights))
        if self._mixes:
            free_all(self._windows)
            self._open(state["round"])
