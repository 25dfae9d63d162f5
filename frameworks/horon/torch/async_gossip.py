"""DistributedOptimizer(op=hvd.Gossip("adpsgd" or "asgp")): parameters are mixed, and nobody waits.

What the ranks mix is a window (windows.py) beside the parameters; the runtimes exchange it while
the users' threads compute. A step adds to the window what the optimizer changed, and takes from it
what the others brought since. A slow rank's part comes late; nobody waits for it.

    adpsgd   both ranks of a pair move to their mean: x += (x' - x) / 2 here, the opposite there
    asgp     push-sum: a rank gives parts of its x and its weight w away, and adds what has come;
             the model sees z = x / w; a change of z by the optimizer counts w times, with what has
             come by then, which otherwise nobody's changes would count for: x += w u(z)

In asgp a rank gives nothing to one that has not come to take what it gave last: more would wait
there, and learn nothing. Calls are for the training thread; docs/gossip.md says what is kept.

Sources: Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018; Assran et al., Stochastic
Gradient Push, ICML 2019; Spiridonoff et al., Robust Asynchronous Stochastic Gradient-Push, JMLR
2020.
"""

import itertools

import torch

from horon.errors import (
    HoronAborted,
    HoronInvalidArgument,
    HoronLate,
    HoronUnavailable,
    HoronUnsupported,
)
from horon.gossip import fail_when_late, graph_of
from horon.pairing import met_by, pairs_graph, turns_of
from horon.process_sets import global_process_set
from horon.runtime import rank, size
from horon.torch.calls import wait_all
from horon.torch.flat_parameters import FlatParameters
from horon.torch.gossip_state import check_no_weights, weights_for
from horon.torch.meeting import NO_MEAN, meet, warn_of
from horon.torch.reductions import allreduce
from horon.torch.windows import Window, free_all, weighted

# Of push-sum: who has less gives nothing away until more has come. Far below what is lost to a rank
# before its death is known: the others must be able to go on with what is left.
_LEAST_WEIGHT = 1e-20
_numbers = itertools.count()


class AsyncGossip:
    """What both have in common. `_windows` is empty where there is nobody to gossip with."""

    push_sum = False
    waits_for_nobody = True

    def __init__(self, op, param_groups, named_parameters, process_set):
        _check(op, process_set)
        self._op = op
        # By the spec, before any rank draws its graph: what is wrong with that all ranks find.
        self._flat = FlatParameters(param_groups, named_parameters, f"{op.algorithm} of {op.spec}")
        self._shown = self._flat.new()  # the parameters when they were last the window's
        self._change = self._flat.empty()
        self._steps = self._round = 0
        self._pending = []  # handles of what the last step began
        self._windows = []
        self._fresh = True  # parameters may have been loaded, or broadcast, since they were read

    def _ask(self, wanted):
        """Whether the others may give this one a part."""

    def _open(self, sources, destinations):
        for flat in self._shown:
            name = f"gossip.{self._op.algorithm}.{next(_numbers)}"
            self._windows.append(Window(flat.clone(), name, sources=sources,
                                        destinations=destinations, zero_init=True,
                                        gets=False))

    def bias(self):
        """Parameters are what the model sees, also for the optimizer."""

    def debias(self):
        pass

    def take_left(self) -> bool:
        return False

    def before_step(self):
        pass

    def after_step(self):
        self._steps += 1
        if not self._windows:
            return
        begun = [handle for handle in self._pending if not handle.done()]
        if not begun:
            self._end_pending()
        due = self._steps % (self._op.sync_freq + 1) == 0
        self._exchange(free=due and not begun)
        if not self._op.overlap:
            self._end_pending()
            self._take()

    def _end_pending(self):
        """What could not be reached is counted by the runtime. After Ctrl-C it is still pending."""
        try:
            wait_all(self._pending)
        except Exception:
            self._pending = []
            raise
        self._pending = []

    def _take(self):
        """The window gets what the parameters changed by, the parameters what the window is."""
        self._flat.subtract(self._shown, out=self._change)
        for window, change, shown in zip(self._windows, self._change, self._shown):
            self._mix(window, change, shown)
        self._flat.write(self._shown)
        self._fresh = False

    def finish(self, average=False, timeout=None) -> bool:
        """For all ranks: each takes in what the others gave it; then nothing is under way. False:
        not all are here, so the others may still give; there is no average."""
        if not self._windows:
            return True
        self._end_pending()
        self._ask(False)
        why_not = _why_not_all_are_here(timeout)
        self._take()
        if why_not is None:
            if average:
                self._set(*self._mean())
            _why_not_all_are_here()
        elif isinstance(why_not, HoronLate):
            warn_of(why_not, NO_MEAN if average else "it may still give this one its part")
        elif average:
            raise why_not
        return why_not is None

    def _set(self, values, weights):
        """The parameters and the windows become these."""
        for window, change, shown, value, weight in zip(
                self._windows, self._change, self._shown, values, weights):
            if weight != window.push_sum_weight:
                window.update(weight / window.push_sum_weight, {}, push_sum=True)
            torch.mul(value, weight, out=change)
            window.step(change.sub_(window.tensor))
            shown.copy_(value)
        self._flat.write(self._shown)

    def _mean(self) -> tuple:
        """Of what is there: a part that a neighbor may have taken, or not, is on neither side until
        it says so, and nor is its weight."""
        average = fail_when_late("average")
        weights = torch.tensor([window.push_sum_weight for window in self._windows],
                               dtype=torch.float64)
        weights = allreduce(weights, op=average, name=f"{self._windows[0].name}.mean of weights")
        weights = torch.where((weights - 1).abs() < 1e-9, 1.0, weights).tolist()
        means = [allreduce(window.tensor, op=average, name=f"{window.name}.mean").div_(weight)
                 for window, weight in zip(self._windows, weights)]
        return means, weights

    def mass(self) -> tuple:
        """What this rank holds, with nothing under way: ([x, ...], w)."""
        if not self._windows:
            return self._flat.new(), 1.0
        return ([window.tensor for window in self._windows],
                sum(window.push_sum_weight for window in self._windows) / len(self._windows))

    def close(self, timeout=None):
        """For all ranks: gives the windows back. Steps are local ones afterwards."""
        self._ask(False)
        meet(timeout=timeout)
        self.finish()
        free_all(self._windows)

    def state(self) -> dict:
        return {"round": self._round, "steps": self._steps,
                "weights": [window.push_sum_weight for window in self._windows]}

    def check_state(self, state):
        """Any algorithm's will do, if this one keeps the weights that it has."""
        if self._windows and not self.push_sum:
            check_no_weights(self._op, state)

    def load(self, state):
        """For all ranks; the model's parameters may be loaded before or after. HoronLate where
        a rank does not come, which could still give what it had before; then these are as they
        were."""
        self.check_state(state)
        values = self._flat.new()
        if self._windows:
            self._end_pending()
            _meet_who_lives()
        self._round, self._steps = state["round"], state["steps"]
        if not self._windows:
            return
        self._take()
        count = len(self._windows)
        self._set(values, weights_for(state, count) if self.push_sum else [1.0] * count)
        self._fresh = True
        _meet_who_lives()  # what a rank gives from now on is of what was loaded


class PairGossip(AsyncGossip):
    """AD-PSGD: averages of pairs, at most one begun by this rank at a time."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        super().__init__(op, param_groups, named_parameters, process_set)
        graph = graph_of(op.topology or pairs_graph(size()), size(), op.mixing)
        self._turns = turns_of(graph, rank())
        if size() > 1:
            met = met_by(graph, rank())
            self._open(met, met)

    def _mix(self, window, change, out):
        window.step(change, out)

    def _exchange(self, free):
        self._take()
        if free and self._turns:
            peer, weight = self._turns[self._round % len(self._turns)]
            self._pending = [window.pair_async(peer, weight) for window in self._windows]
            self._round += 1


class PushGossip(AsyncGossip):
    """Asynchronous push-sum: what is given away arrives whenever it does, and is then mixed in."""

    push_sum = True

    def __init__(self, op, param_groups, named_parameters, process_set):
        super().__init__(op, param_groups, named_parameters, process_set)
        graph = graph_of(op.topology, size(), op.mixing)
        if not graph.columns_sum_to_one:
            raise HoronInvalidArgument(
                f"{graph!r} does not keep the sum over the ranks: use mixing weights whose columns "
                "sum to 1, such as horon.mixing.Push()")
        of_all = [[_parts_of(graph, r, t) for t in graph.rounds()] for r in range(size())]
        self._parts = of_all[rank()]
        self._told = None  # (own, parts) of the user's, in place of the graph's
        self.in_step = False
        self._collects = True
        for r, its in enumerate(of_all):  # the same verdict on all ranks
            if any(parts and own <= _LEAST_WEIGHT for own, parts in its):
                raise HoronInvalidArgument(f"in {graph!r} rank {r} keeps nothing of its own, and "
                                           "asgp gives only part of what a rank has")
        if size() > 1:
            every = [graph.peers(rank(), t) for t in graph.rounds()]
            self._open({r for _, heard in every for r in heard},
                       {r for out, _ in every for r in out})

    def give(self, own, parts):
        """From now on this rank keeps `own` of what it has, above 0, and gives parts, {rank:
        weight}, in place of the graph's; together 1. None and None: the graph's."""
        if own is None and parts is None:
            self._told = None
            return
        if own is None or parts is None:
            raise HoronInvalidArgument("push-sum takes self_weight and dst_weights, or neither")
        own, parts = float(own), weighted(parts, (), 1.0)
        out = self._windows[0].destinations if self._windows else []
        if not set(parts) <= set(out):
            raise HoronInvalidArgument(f"dst_weights has ranks {sorted(parts)}; rank {rank()} "
                                       f"sends to {out}, by the topology")
        total = own + sum(parts.values())
        if not (own > _LEAST_WEIGHT and min(parts.values(), default=0) >= 0
                and abs(total - 1) <= 1e-6):
            raise HoronInvalidArgument(
                f"self_weight {own} and dst_weights {parts} sum to {total}: what push-sum keeps "
                "and gives away is all that a rank has, 1, and it keeps some of it")
        self._told = own / total, {to: weight / total for to, weight in parts.items()}

    def after_step(self):
        """in_step: what the others give in this step is taken in once all have given, not before.
        HoronLate then where one does not come."""
        self._collects = not self.in_step
        try:
            super().after_step()
        finally:
            self._collects = True
        if self.in_step and self._windows and self._steps % (self._op.sync_freq + 1) == 0:
            self._end_pending()
            meet()
            self._take()

    def _ask(self, wanted):
        for window in self._windows:
            window.ask(wanted)

    def _mix(self, window, change, out):
        """A change counts with what has come, but not one that may be of other parameters: what has
        come is of the sender's new ones."""
        weight = window.push_sum_weight
        if self._collects:
            window.collect(push_sum=True)
        window.step(change, weight=weight if self._fresh else window.push_sum_weight)
        torch.div(window.tensor, window.push_sum_weight, out=out)

    def _exchange(self, free):
        """While a part is on its way its window must not change: the steps wait beside it."""
        if not free:
            return
        self._take()
        self._ask(True)
        own, parts = self._told or self._parts[self._round % len(self._parts)]
        if parts and all(own * window.push_sum_weight > _LEAST_WEIGHT for window in self._windows):
            self._pending = [window.accumulate_async(parts, own, push_sum=True,
                                                     if_asked=not self.in_step)
                             for window in self._windows]
        self._round += 1


def _parts_of(graph, me, t) -> tuple:
    """(what of its own `me` keeps in round t, {rank: what it gives to that one})."""
    given = {to: weight for sender, to, weight in graph.edges(t) if sender == me}
    return given.pop(me, 0.0), given


def _why_not_all_are_here(timeout=None):
    """None: they are. Else a rank is late or gone, and who is here need not agree with it."""
    try:
        meet(timeout=timeout)
    except (HoronUnavailable, HoronAborted) as error:
        return error


def _meet_who_lives():
    why_not = _why_not_all_are_here()
    if isinstance(why_not, HoronLate):
        raise why_not


def _check(op, process_set):
    if process_set is not global_process_set:
        raise HoronUnsupported(f"{op.algorithm} is for all ranks: it has no process sets")
    if op.hierarchical or op.what != "parameters":
        raise HoronUnsupported(f"{op.algorithm} mixes parameters of single ranks: leave "
                               "hierarchical and what as they are")
    if op.global_average_every:
        raise HoronInvalidArgument(
            f"{op.algorithm} waits for nobody: global_average_every must be 0; "
            "optimizer.finish_gossip(average=True) gives all ranks the mean when training is over")
