"""ParameterGossip: mixes the parameters of an optimizer after its step, all ranks together.

gossip_optimizer.py says when; here is what travels, and what becomes of it. On the training thread.
"""

import time
import warnings

import torch

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.torch.alike import Comparison, layout_of
from horon.torch.calls import GroupCall, reduce_call, waited_through
from horon.torch.gossip_state import check_no_weights
from horon.torch.marks import took_in
from horon.torch.meeting import NO_MEAN, met
from horon.torch.parameters import (
    least_name,
    name_added,
    name_parameters,
    names_of_its_own,
)
from horon.torch.participants import count_participants

AVERAGE = "average:late=keep"

_ROUNDING = 1e-12  # of a mean of push-sum weights that is 1
_LEAST_WEIGHT = 1e-6  # that parameters may be divided by

DRIFT = (
    "gossip of gradients alone lets the ranks' parameters drift apart: give "
    "global_average_every, or what='both'"
)

_OF_NOBODY_WAITING = (
    "this checkpoint was saved by adpsgd or asgp, whose ranks count rounds each by itself: make "
    "the optimizer with that algorithm, or load the state without its 'horon_gossip', which begins "
    "with round 0"
)
_ADDED_ELSEWHERE = (
    "a parameter was added to the optimizer that hvd.DistributedOptimizer was given, so the ranks "
    "do not mix it: call add_param_group() of the optimizer that it returned"
)


def divisor(weight: float) -> float:
    """A push-sum weight that x may be divided by: x shrinks with it, down to rounding errors."""
    if weight >= _LEAST_WEIGHT:
        return weight
    raise HoronInvalidArgument(
        f"the push-sum weight of this rank has become {weight:.1e}: it has given away nearly all "
        "that it had and heard too little since, so its values cannot be told from rounding "
        "errors. Choose a graph on which each rank hears more often (horon.topology), or give an "
        "optimizer global_average_every")


class _Names(dict):
    """Of parameters."""

    def __missing__(self, parameter):
        raise HoronUnsupported(_ADDED_ELSEWHERE)


class ParameterGossip:
    """Mixes an optimizer's parameters, at most one exchange at a time. On the training thread."""

    waits_for_nobody = False
    _compares = True  # with the other ranks, whether they gossip alike

    def __init__(self, op, param_groups, named_parameters, process_set):
        self._op = op
        self._spec = op.spec  # of each exchange
        self._param_groups = param_groups
        self._names = _Names(name_parameters(param_groups, named_parameters))
        self._set = process_set
        self._outside = not process_set.included()  # then steps are local ones
        self._mixes = op.what != "gradients" and process_set.size() > 1 and not self._outside
        self._graph = None
        if not (self._outside and op.hierarchical):  # whose nodes only the set's ranks can count
            self._graph = op.graph(count_participants(process_set, op.hierarchical))
            self._check_graph()
        if self._mixes:
            named = names_of_its_own("parameters", self._names, param_groups, process_set)
            self._names = _Names(named)
        self.push_sum = op.push_sum and self._mixes and not self._graph.rows_sum_to_one
        self._weighs = self.push_sum  # also when it mixes no more
        self.weight = torch.ones(1, dtype=torch.float64)
        # No parameter's name, and an optimizer's own: its rounds are those of the parameters.
        beside = least_name(param_groups, self._names)
        self._weight_name = f"gossip push-sum weight beside {beside}"
        self._round = 0  # of every parameter: exchanges started
        self._first = True  # the next exchange says its round, so that all ranks prove it
        self._steps = 0
        self._age = 0  # steps since the exchange under way was started
        self._begun = 0  # the step that started it
        self._begun_at = 0  # and when, by time.monotonic_ns()
        self._pending = None  # (handle, what was sent)
        self._owed = False  # an exchange is due that Ctrl-C has kept from being started
        self._copies = None  # what is sent while parameters change: used again, kept
        self._size = process_set.size()
        compares = self._compares and not self._outside
        self._comparison = Comparison(process_set) if compares else None

    def _layout(self) -> list:
        return layout_of(self._op.words(), self._names, self._parameters())

    def begin_comparing(self):
        """In each step, until all ranks have found out together that they gossip alike."""
        if self._comparison is not None:
            self._comparison.begin(self._layout)

    def end_comparing(self):
        """HoronMismatch on all of them where they do not. With overlap it is waited for after the
        exchange that was begun beside it, which all ranks take in in the same step."""
        if self._comparison is not None:
            self._comparison.end(after=2 + self._op.sync_freq if self._op.overlap else 1)

    def _check_graph(self):
        _check(self._op, self._graph)

    def _parameters(self):
        for group in self._param_groups:
            yield from group["params"]

    def take_new(self, param_groups):
        """For all ranks, with nothing under way: parameters that were added to these, too, are
        mixed from the next step on."""
        self._param_groups = param_groups
        self._names.update(name_added(param_groups, self._names))
        self._first = True  # the new ones must be at the round of the others
        self._copies = None

    @torch.no_grad()
    def bias(self):
        """From z to x = z w, with what a step that was interrupted has begun."""
        if self.push_sum and not self._lent():
            for parameter in self._parameters():
                parameter.mul_(self.weight.item())
        self._take_left()

    def _lent(self) -> bool:
        """Whether the parameters themselves are under way: since Ctrl-C has ended a step. They stay
        x until it is over."""
        return self._pending is not None and not self._op.overlap

    def take_left(self) -> bool:
        """Takes in what such a step left under way, so that others may change the parameters,
        which are z then. False where there was nothing."""
        if not self._lent():
            return False
        self.bias()
        self.debias()
        return True

    def _take_left(self):
        """What such a step left to do. The parameters are x; z, if it fails."""
        try:
            if self._owed:
                self._go_on()
            elif not self._op.overlap:
                self._collect()
        except BaseException:
            self.debias()
            raise

    @torch.no_grad()
    def debias(self):
        """From x to z = x / w."""
        if self.push_sum and not self._lent():
            weight = divisor(self.weight.item())
            for parameter in self._parameters():
                parameter.div_(weight)

    def before_step(self):
        """The parameters are x, their gradients are there."""

    @torch.no_grad()
    def after_step(self):
        """The parameters are x, with the optimizer's step taken."""
        self._steps += 1
        every = self._op.global_average_every
        if every and self._steps % every == 0:
            self._collect()
            self._average()
        elif self._mixes and not self._op.overlap:
            self._start()
            self._collect()
        elif self._mixes and self._due():
            self._owed = True
            self._go_on()

    def _go_on(self):
        """From one exchange to the next. Ctrl-C leaves it owed: all ranks start equally many."""
        try:
            self._collect()
            self._start()
        except Exception:
            self._owed = False
            raise
        self._owed = False

    def _due(self) -> bool:
        """Whether the last exchange has had its time. Counted, not asked: ranks that found it
        finished at different steps would start different numbers of them."""
        self._age += 1
        return self._pending is None or self._age > self._op.sync_freq

    def _start(self):
        """With overlap copies go, so that parameters may change meanwhile; all arrive as one."""
        names, values = zip(*self._travelling())
        sent = self._copies_of(values) if self._op.overlap else values
        self._pending = self._mixed(names, sent, self._spec), sent
        self._round += 1
        self._first = False
        self._age, self._begun, self._begun_at = 0, self._steps, time.monotonic_ns()

    def _copies_of(self, values) -> list:
        if self._copies is None:
            self._copies = [torch.empty_like(value) for value in values]
        for copy, value in zip(self._copies, values):
            copy.copy_(value)
        return self._copies

    def _travelling(self) -> list:
        """[(name, tensor), ...] of what an exchange mixes."""
        named = [(f"gossip.{self._names[p]}", p) for p in self._parameters()]
        return [*named, (self._weight_name, self.weight)] if self.push_sum else named

    def _mixed(self, names, values, group):
        """A handle of the values as this round mixes them."""
        calls = [self._call(name, value) for name, value in zip(names, values)]
        return GroupCall(calls, group).start()

    def _call(self, name, value, first=False):
        """This round's mixing of one value. first: it never was mixed before."""
        round_ = (self._round or -1) if self._first or first else 0
        return reduce_call(name, self._spec, value, self._set, round=round_)

    @torch.no_grad()
    def _collect(self):
        """Adds what the exchange changed: steps taken meanwhile stay. If it failed, nothing was;
        after Ctrl-C it is still under way."""
        if self._pending is None:
            return
        handle, sent = self._pending
        came = self._ended(handle.wait)
        for (_, value), mixed, before in zip(self._travelling(), came, sent):
            if self._op.overlap:
                value.add_(mixed.sub_(before))
            else:
                value.copy_(mixed)
        if self._op.overlap:
            took_in(self._steps - self._begun, self._begun_at)

    def _ended(self, wait):
        """wait() for what is under way, which is over then, also where it failed; not by Ctrl-C."""
        try:
            came = wait()
        except Exception:
            self._pending = None
            raise
        self._pending = None
        return came

    def _average(self) -> bool:
        """The exact mean of x, and of the weights, which is 1. Left out, as an exchange is, where a
        rank is too late: False."""
        if self._outside:
            return False
        named = [(f"gossip.average.{self._names[p]}", p.detach()) for p in self._parameters()]
        # Who has joined is left out, and counted all the same: behind the weights come numbers that
        # say how many came, and whether the average was made.
        number = self._set.rank() + 1
        own = torch.tensor([1, number, number ** 2], dtype=torch.float64)
        weights = torch.cat([self._weights_now(), own])
        named.append((f"average of {self._weight_name}", weights))
        calls = [reduce_call(name, AVERAGE, value, self._set, in_place=True)
                 for name, value in named]
        interrupt = waited_through(GroupCall(calls, "gossip.average").start().wait)
        weights, came = weights.split([len(weights) - len(own), len(own)])
        made = self._size == 1 or not torch.equal(came, own)
        share = round(came[0].item() * self._size) / self._size
        if share != 1:
            for _, value in named:
                value.div_(share)
        if self._weighs:
            self._set_weights(torch.where((weights - 1).abs() < _ROUNDING, 1.0, weights))
        if made:
            self._forget()
        if interrupt is not None:
            raise interrupt
        return made

    def _forget(self):
        """What was remembered of the time before an exact mean."""

    def _weights_now(self):
        return self.weight.clone()

    def _set_weights(self, weights):
        self.weight.copy_(weights)

    def _discard(self):
        """Waits for what is under way, to which its tensors are lent, and forgets it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending[0].wait()

    def finish(self, average=False, timeout=None) -> bool:
        """Takes in what is under way; afterwards no part of anybody's sum is in flight. False: the
        average was left out."""
        average = average and not self._outside
        self.bias()
        try:
            self._take_all_in()
            averages = average and met(NO_MEAN, self._set, timeout, self) and self._average()
        finally:
            self.debias()
        return averages == average

    def _take_all_in(self):
        self._collect()

    def mass(self) -> tuple:
        """What this rank holds, with nothing under way: ([x, ...], w)."""
        weight = self.weight.item()
        return [p * weight if self.push_sum else p for p in self._parameters()], weight

    def close(self, timeout=None):
        self.finish()

    def state(self) -> dict:
        return {"weight": self.weight.item(), "round": self._round, "steps": self._steps}

    def check_state(self, state):
        """HoronInvalidArgument for one that load() cannot go on from; nothing is changed."""
        if "weight" not in state:
            raise HoronInvalidArgument(_OF_NOBODY_WAITING)
        if not (self._weighs or self._outside or self._size == 1):
            check_no_weights(self._op, state)

    def load(self, state):
        """The model's parameters may be loaded before or after."""
        self.check_state(state)
        self._discard()
        self._owed = False
        self.weight.fill_(state["weight"] if self._weighs else 1.0)
        self._round, self._steps = state["round"], state["steps"]
        self._first = True


def _check(op, graph):
    if not graph.columns_sum_to_one:
        raise HoronInvalidArgument(
            f"{graph!r} does not keep the sum over the ranks: use mixing weights whose columns sum "
            "to 1, such as horon.mixing.MetropolisHastings() or Push()")
    if not op.push_sum and not graph.rows_sum_to_one:
        raise HoronInvalidArgument(
            f"{op.algorithm} on {graph!r} needs rows that sum to 1: use algorithm='sgp'")
    if op.what != "parameters" and not graph.rows_sum_to_one:
        raise HoronInvalidArgument(
            f"what={op.what!r} on {graph!r} needs rows that sum to 1, because gradients have no "
            "push-sum weight: use horon.mixing.MetropolisHastings(), or what='parameters'")
    if op.what != "gradients" and op.local_op == "sum":
        raise HoronInvalidArgument(
            "local_op='sum' would multiply the parameters by a node's ranks in each step: leave it "
            "out; it is for what='gradients'")
    if op.what == "gradients" and not op.global_average_every:
        warnings.warn(DRIFT, stacklevel=7)
