"""DistributedOptimizer(op=hvd.Gossip(...)): each rank trains by itself and mixes with neighbors.

After the wrapped optimizer's step the parameters are mixed on the op's graph. With C the mixing and
u what the optimizer adds to the parameters:

    adapt then combine (dpsgd, sgp)     x <- C(x + u(x))
    overlapped (osgp, overlap=True)     x <- C(x) + u(x), C started after the last step

With push-sum (where rows of the graph's matrices do not sum to 1) the optimizer works on x, every
rank has a weight w that is mixed like x, and the model sees z = x / w. Parameters hold z between
steps; the weight and the round are part of state_dict(). Optimizer state is local to the rank.

Sources: Lian et al., NeurIPS 2017 (D-PSGD); Assran et al., ICML 2019 (SGP, OSGP); Daily et al.,
GossipGraD, 2018; Chen et al., Accelerating Gossip SGD with Periodic Global Averaging, ICML 2021.
"""

import warnings

import torch

from horon.errors import HoronInvalidArgument
from horon.runtime import cross_size
from horon.specs import Average
from horon.torch.async_gossip import PairGossip, PushGossip
from horon.torch.calls import GroupCall, reduce_call
from horon.torch.compression import Compression
from horon.torch.optimizer_base import WrappedOptimizer
from horon.torch.parameters import name_parameters
from horon.torch.reducer import GradientReducer

DRIFT = (
    "gossip of gradients alone lets the ranks' parameters drift apart: give "
    "global_average_every, or what='both'"
)


class ParameterGossip:
    """Mixes an optimizer's parameters, at most one exchange at a time. On the training thread."""

    def __init__(self, op, param_groups, named_parameters, process_set):
        self._op = op
        self._param_groups = param_groups
        self._names = name_parameters(param_groups, named_parameters)
        self._set = process_set
        participants = cross_size() if op.hierarchical else process_set.size()
        self._mixes = op.what != "gradients" and participants > 1
        graph = op.graph(participants)
        _check(op, graph)
        self.push_sum = op.push_sum and self._mixes and not graph.rows_sum_to_one
        self.weight = torch.ones(1, dtype=torch.float64)
        self._round = 0  # of every parameter: exchanges started
        self._first = True  # the next exchange says its round, so that all ranks prove it
        self._steps = 0
        self._age = 0  # steps since the exchange under way was started
        self._pending = None  # (handle, what was sent)

    def _parameters(self):
        for group in self._param_groups:
            yield from group["params"]

    @torch.no_grad()
    def bias(self):
        """From z to x = z w."""
        if self.push_sum:
            for parameter in self._parameters():
                parameter.mul_(self.weight.item())

    @torch.no_grad()
    def debias(self):
        """From x to z = x / w."""
        if self.push_sum:
            for parameter in self._parameters():
                parameter.div_(self.weight.item())

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
            self._collect()
            self._start()

    def _due(self) -> bool:
        """Whether the last exchange has had its time. Counted, not asked: ranks that found it
        finished at different steps would start different numbers of them."""
        self._age += 1
        return self._pending is None or self._age > self._op.sync_freq

    def _start(self):
        """Copies go, so that parameters may change meanwhile; they go and arrive as one."""
        sent = [parameter.detach().clone() for parameter in self._parameters()]
        names = [f"gossip.{self._names[parameter]}" for parameter in self._parameters()]
        if self.push_sum:
            sent.append(self.weight.clone())
            names.append("gossip.weight")
        round_ = (self._round or -1) if self._first else 0
        calls = [reduce_call(name, self._op.spec, value, self._set, round=round_)
                 for name, value in zip(names, sent)]
        self._pending = GroupCall(calls, "gossip").start(), sent
        self._round += 1
        self._first = False
        self._age = 0

    @torch.no_grad()
    def _collect(self):
        """Adds what the exchange changed: steps taken meanwhile stay. If it failed, nothing was."""
        if self._pending is None:
            return
        (handle, sent), self._pending = self._pending, None
        changed = [*self._parameters(), *([self.weight] if self.push_sum else [])]
        for value, mixed, before in zip(changed, handle.wait(), sent):
            if self._op.overlap:
                value.add_(mixed - before)
            else:
                value.copy_(mixed)

    def _average(self):
        """The exact mean of x; the weights' mean is 1."""
        calls = [reduce_call(f"gossip.average.{self._names[parameter]}", Average.spec,
                             parameter.detach(), self._set, in_place=True)
                 for parameter in self._parameters()]
        GroupCall(calls, "gossip.average").run()
        self.weight.fill_(1)

    def finish(self, average=False):
        """Takes in what is under way; afterwards no part of anybody's sum is in flight."""
        self.bias()
        self._collect()
        if average:
            self._average()
        self.debias()

    def close(self):
        self.finish()

    def state(self) -> dict:
        return {"weight": self.weight.item(), "round": self._round, "steps": self._steps}

    def load(self, state):
        self.finish()
        self.weight.fill_(state["weight"])
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
    if op.what == "gradients" and not op.global_average_every:
        warnings.warn(DRIFT, stacklevel=4)


class NoReduction:
    """In a reducer's place where gradients stay local."""

    pending = False

    def synchronize(self):
        pass

    def reset(self):
        pass

    def set_passes(self, passes):
        pass


class _GossipOptimizer(WrappedOptimizer):
    """Mixed into a subclass of the wrapped optimizer's class."""

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._horon_skip and not self._horon_synchronized:
            self.synchronize()
        self._horon_synchronized = False
        self._horon_gossip.bias()
        self._step_locally()
        self._horon_gossip.after_step()
        self._horon_gossip.debias()
        return loss

    def _step_locally(self):
        """GradScaler leaves its finding here: an overflow of this rank skips its own step only."""
        scaler = {name: self.__dict__.pop(name)
                  for name in ("grad_scale", "found_inf") if name in self.__dict__}
        try:
            if scaler.get("found_inf") is not None and scaler["found_inf"].item() > 0:
                return
            scale = scaler.get("grad_scale")
            for group in self.param_groups if scale is not None else ():
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale.to(parameter.grad.device))
            super().step()
        finally:
            self.__dict__.update(scaler)

    def finish_gossip(self, average=False):
        """Waits for the exchange under way and takes it in: before the model is saved or
        evaluated, on all ranks alike. average: then all ranks get the exact mean."""
        self._horon_gossip.finish(average)

    def close_gossip(self):
        """finish_gossip, and gives back what gossip holds, on all ranks alike. Only adpsgd and asgp
        hold something, until shutdown."""
        self._horon_gossip.close()

    def state_dict(self):
        """Finishes the exchange under way first: take it before the model's. Where ranks wait for
        nobody, call finish_gossip() on all of them before."""
        if not self._horon_waits_for_nobody:
            self.finish_gossip()
        return {**super().state_dict(), "horon_gossip": self._horon_gossip.state()}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if "horon_gossip" in state_dict:
            self._horon_gossip.load(state_dict["horon_gossip"])


def make_gossip(op, param_groups, named, process_set):
    if op.waits_for_nobody:
        kind = PairGossip if op.algorithm == "adpsgd" else PushGossip
        return kind(op, param_groups, process_set)
    return ParameterGossip(op, param_groups, named, process_set)


def make_gossip_optimizer(optimizer, reduction, named_parameters, passes, groups):
    """What DistributedOptimizer gives for op=hvd.Gossip(...)."""
    op = reduction.op
    if op.what == "parameters" and reduction.compression is not Compression.none:
        raise HoronInvalidArgument("compression is for gradients; parameters are mixed as they are")
    named = None if named_parameters is None else list(named_parameters)
    gossip = make_gossip(op, optimizer.param_groups, named, reduction.process_set)
    kind = type(optimizer)
    wrapped_kind = type(kind.__name__, (_GossipOptimizer, kind), {"__module__": __name__})
    wrapped = _GossipOptimizer.wrap(optimizer, wrapped_kind)
    if op.what == "parameters":
        wrapped._distribute(NoReduction())
        wrapped._step_supports_amp_scaling = True
    else:
        wrapped._distribute(
            GradientReducer(optimizer.param_groups, reduction, named, passes, groups))
    wrapped._horon_gossip = gossip
    wrapped._horon_waits_for_nobody = op.waits_for_nobody
    return wrapped
