"""Gossipers: averages among neighbors a round at a time, without training.

    gossiper = PushSum(topology.Star(8))
    for _ in range(20):
        x = gossiper.mix(x)
    mean = gossiper.estimate(x)

All ranks call mix() equally often, in the same order. gossip_average() is the short form.
"""

import itertools

import torch

from horon.errors import HoronInvalidArgument
from horon.gossip import Gossip, graph_of
from horon.mixing import Push
from horon.process_sets import global_process_set
from horon.torch.calls import GroupCall, reduce_call
from horon.torch.parameter_gossip import divisor

_numbers = itertools.count()


class _Gossiper:
    def __init__(self, topology=None, mixing=None, process_set=global_process_set):
        self.graph = graph_of(topology, process_set.size(), mixing)
        self._check(self.graph)
        self._spec = Gossip(topology=self.graph).spec
        self._set = process_set
        self._name = f"gossiper.{next(_numbers)}"
        self.round = 0  # rounds done
        self.weight = torch.ones(1, dtype=torch.float64)

    def mix(self, x, residual=False):
        """One round: x mixed with the neighbors'. residual: only what came from them."""
        mixed = x.detach().clone(memory_format=torch.contiguous_format)
        calls = [self._call(self._name, mixed)]
        if not self.graph.rows_sum_to_one:
            calls.append(self._call(f"{self._name}.weight", self.weight))
        GroupCall(calls, self._name).run()
        t, self.round = self.round, self.round + 1
        return mixed.sub_(x, alpha=self._own(t)) if residual else mixed

    def _call(self, name, tensor):
        return reduce_call(name, self._spec, tensor, self._set, in_place=True,
                           round=-(self.round == 0))

    def _own(self, t) -> float:
        """What this rank keeps of its own in round t."""
        me = self._set.rank()
        return sum(w for sender, to, w in self.graph.edges(t) if sender == to == me)

    def estimate(self, x):
        """The mean, as far as the rounds have brought it."""
        return x / divisor(self.weight.item())


class PushSum(_Gossiper):
    """Senders share out their values and a weight, here `weight`: the mean on any graph."""

    def __init__(self, topology=None, mixing=None, process_set=global_process_set):
        super().__init__(topology, Push() if mixing is None else mixing, process_set)

    def _check(self, graph):
        if not graph.columns_sum_to_one:
            raise HoronInvalidArgument(
                f"{graph!r} does not keep the sum: use mixing weights whose columns sum to 1")


class PushPull(_Gossiper):
    """Weights that sum to 1 for senders and receivers: no weight goes along (D-PSGD)."""

    def _check(self, graph):
        if not (graph.columns_sum_to_one and graph.rows_sum_to_one):
            raise HoronInvalidArgument(f"{graph!r} has rows or columns that do not sum to 1: use "
                                       "horon.mixing.MetropolisHastings(), or PushSum")


class BilatPushPull(PushPull):
    """Ranks meet in pairs, both of which get the same mean; None: a graph of such pairs."""

    def __init__(self, topology=None, mixing=None, process_set=global_process_set):
        super().__init__("one_peer_hypercube" if topology is None else topology, mixing,
                         process_set)

    def _check(self, graph):
        super()._check(graph)
        pairs = all(len(graph.peers(i, t)[0]) <= 1 for t in graph.rounds() for i in range(graph.n))
        if not pairs or not graph.is_symmetric:
            raise HoronInvalidArgument(f"{graph!r} has more than pairs: take one of "
                                       "OnePeerHypercube, BipartiteExponential, RandomMatching")
