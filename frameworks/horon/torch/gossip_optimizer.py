"""DistributedOptimizer(op=hvd.Gossip(...)): each rank trains by itself and mixes with neighbors.

After the wrapped optimizer's step the parameters are mixed on the op's graph. With C the mixing and
u what the optimizer adds to the parameters:

    adapt then combine (dpsgd, sgp)     x <- C(x + u(x))
    overlapped (osgp, overlap=True)     x <- C(x) + u(x), C started after the last step
    a layer at a time (style=)          the first, during backward (layered_gossip.py), or until
                                        the next forward pass (arriving_gossip.py)

With push-sum (where rows of the graph's matrices do not sum to 1) the optimizer works on x, every
rank has a weight w that is mixed like x, and the model sees z = x / w. Parameters hold z between
steps; the weight and the rounds, of parameters and of mixed gradients, are part of state_dict().
Optimizer state is local to the rank. An optimizer that computes its gradients itself (LBFGS) takes
its whole step on z, and u(x) is what z changes by.

Sources: Lian et al., NeurIPS 2017 (D-PSGD); Assran et al., ICML 2019 (SGP, OSGP); Daily et al.,
GossipGraD, 2018; Chen et al., Accelerating Gossip SGD with Periodic Global Averaging, ICML 2021.
"""

import torch

from horon.errors import (
    HoronAborted,
    HoronInvalidArgument,
    HoronLate,
    HoronUnavailable,
    HoronUnsupported,
)
from horon.gossip import fail_when_late
from horon.torch.advised_gossip import AdvisedGossip
from horon.torch.arriving_gossip import ArrivingGossip
from horon.torch.async_gossip import PairGossip, PushGossip
from horon.torch.compression import Compression
from horon.torch.gossip_reducer import GossipReducer
from horon.torch.gossip_state import check_whose, place_in
from horon.torch.layered_gossip import BY_LAYERS, LayeredGossip
from horon.torch.local_steps import refuse_unsteppable
from horon.torch.marks import marked, show
from horon.torch.optimizer_base import (
    NoReduction,
    WrappedOptimizer,
    needs_closure,
    refuse_closure_steps,
)
from horon.torch.parameter_gossip import ParameterGossip
from horon.torch.reductions import allreduce
from horon.torch.round_gossip import RoundGossip
from horon.torch.tracking import ExactDiffusion, GradientTracking, PushDiging

_WITH_MEMORY = {"gt": GradientTracking, "exact_diffusion": ExactDiffusion,
                "push_diging": PushDiging}
_LOST = (HoronUnavailable, HoronAborted)  # with which all else fails, too
_GROWING = (ParameterGossip, ArrivingGossip, LayeredGossip)


class _GossipOptimizer(WrappedOptimizer):
    """Mixed into a subclass of the wrapped optimizer's class."""

    def step(self, closure=None):
        gossip = self._horon_gossip
        if not isinstance(gossip, ParameterGossip):
            return self._step_gossiping(closure)
        gossip.begin_comparing()
        try:
            loss = self._step_gossiping(closure)
        except Exception as error:
            if isinstance(error, HoronLate) or not isinstance(error, _LOST):
                gossip.end_comparing()  # says more, where it finds something
            raise
        gossip.end_comparing()
        return loss

    step.hooked = True  # hooks of steps run in the wrapped optimizer's: torch adds them to no other

    def _step_gossiping(self, closure):
        self._horon_gossip.take_left()
        if self._horon_computes:
            return self._step_computing(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._horon_skip and not self._horon_synchronized:
            self._horon_synchronize()
        self._forget_synchronizing()
        if isinstance(self._horon_gossip, LayeredGossip):
            self._end_layers()
            return loss
        scaler = self._take_scaler()
        self._horon_gossip.bias()
        try:
            self._horon_gossip.before_step()
            self._step_locally(scaler)
            self._horon_gossip.after_step()
        finally:
            self._horon_gossip.debias()
        return loss

    @torch.optim.Optimizer.profile_hook_step  # no step of the wrapped optimizer runs the hooks
    def _end_layers(self):
        self._horon_gossip.check_step(self._horon_skip, bool(self._take_scaler()))
        self._horon_gossip.after_step()

    def _step_computing(self, closure):
        """Of an optimizer that calls the closure as often as it likes."""
        if self._take_scaler():
            name = type(self).__name__
            raise HoronUnsupported(f"{name}.step() computes gradients itself, which no GradScaler "
                                   f"unscales: use {name} without one, or another optimizer")
        gossip = self._horon_gossip
        try:
            loss = self._stepped_on_z(closure)
            gossip.after_step()
        finally:
            gossip.debias()
        return loss

    def _stepped_on_z(self, closure):
        """Leaves x, with what z has changed by, also where the closure raised something."""
        gossip = self._horon_gossip
        weighs = gossip.push_sum and not gossip.waits_for_nobody  # these work on z anyway
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters] if weighs else []
        try:
            return self._step_wrapped(**({} if closure is None else {"closure": closure}))
        finally:
            with torch.no_grad():
                changes = [p - z for p, z in zip(parameters, before)]
                for p, z in zip(parameters, before):
                    p.copy_(z)
                gossip.bias()
                for p, change in zip(parameters, changes):
                    p.add_(change)

    def _take_scaler(self) -> dict:
        scaler = super()._take_scaler()
        if scaler and type(self._horon_gossip) in _WITH_MEMORY.values():
            raise HoronUnsupported("algorithms that remember gradients work without a GradScaler: "
                                   "its scale changes, and some ranks would skip steps")
        return scaler

    def finish_gossip(self, average=False, timeout=None) -> bool:
        """Waits for the exchange under way and takes it in: before the model is saved or
        evaluated, on all ranks alike. average: then all ranks get the exact mean.

        What waits for all ranks (the mean; with adpsgd and asgp always) waits for
        HORON_GOSSIP_TIMEOUT, or for `timeout` seconds, equal on all ranks, in pieces of that. False
        on all of them where a rank is later: then nothing is averaged, and a warning names it."""
        return self._horon_gossip.finish(average, timeout)

    def gossip_mass(self):
        """(the sum over the ranks of all parameters times their weights, as one float64 tensor; the
        sum of the weights), on all ranks alike: what gossip alone never changes. Finishes first.
        HoronLate where a rank does not come."""
        self.finish_gossip()
        values, weight = self._horon_gossip.mass()
        both = torch.cat([*(v.detach().double().reshape(-1).cpu() for v in values),
                          torch.tensor([weight], dtype=torch.float64)])
        if not self._horon_process_set.included():  # of this rank, which mixes with nobody
            return both[:-1], weight
        with marked("gossip") as words:
            total = allreduce(both, op=fail_when_late("sum"), name="gossip.mass",
                              process_set=self._horon_process_set)
            weights = total[-1].item()
            words.append(f"mass: weights {weights:.12g}, sum {total[:-1].sum().item():.12g}")
        show("gossip.weights.nano", weights)
        return total[:-1], weights

    def close_gossip(self, timeout=None):
        """finish_gossip, and gives back what gossip holds, on all ranks alike. Only what runs
        between peers (adpsgd, asgp, negotiated=False) holds something, until shutdown. HoronLate
        where a rank does not come, with finish_gossip's timeout; then all may try again."""
        self._horon_gossip.close(timeout)

    def add_param_group(self, param_group):
        """torch's, on all ranks alike, between two steps: its parameters are mixed from the next
        one on. HoronUnsupported, with nothing added, where all parameters must be known from the
        start: with adpsgd, asgp, negotiated=False, gt, exact_diffusion, push_diging and
        topology='auto'."""
        gossip = self._horon_gossip
        if type(gossip) not in _GROWING:
            raise HoronUnsupported(
                "parameters cannot be added to an optimizer with this kind of gossip: make it with "
                "all parameters, those too that are trained later (requires_grad=False until then)")
        gossip.finish()  # what is under way is of those until now
        super().add_param_group(param_group)
        gossip.take_new(self.param_groups)

    def state_dict(self):
        """Finishes the exchange under way first: take it before the model's. Where ranks wait for
        nobody, call finish_gossip() on all of them before."""
        if not self._horon_gossip.waits_for_nobody:
            self.finish_gossip()
        state = {**self._horon_gossip.state(), "of": self._horon_place}
        if isinstance(self._horon_reducer, GossipReducer):
            state["gradients_round"] = self._horon_reducer.round
        return {**super().state_dict(), "horon_gossip": state}

    def load_state_dict(self, state_dict):
        """For all ranks, each its own. Other algorithms' checkpoints will do; but those of adpsgd
        and asgp are HoronInvalidArgument where all ranks count rounds alike, so are those with
        push-sum weights other than 1 where there are none, and those that another rank saved, or
        this one among other ranks, where they have such weights or gt's, exact_diffusion's or
        push_diging's memory. Then nothing is loaded."""
        if "horon_gossip" in state_dict:
            check_whose(state_dict["horon_gossip"], self._horon_place)
            self._horon_gossip.check_state(state_dict["horon_gossip"])
        super().load_state_dict(state_dict)
        if "horon_gossip" in state_dict:
            self._load_gossip(state_dict["horon_gossip"])

    def _load_gossip(self, state):
        self._horon_gossip.load(state)
        if "gradients_round" in state and isinstance(self._horon_reducer, GossipReducer):
            self._horon_reducer.go_on_at(state["gradients_round"])


def make_gossip(op, param_groups, named, process_set):
    if op.advised:
        return AdvisedGossip(param_groups, named, process_set, make_gossip)
    if op.waits_for_nobody:
        kind = PairGossip if op.algorithm == "adpsgd" else PushGossip
        return kind(op, param_groups, named, process_set)
    if not op.negotiated:
        return RoundGossip(op, param_groups, named, process_set)
    if op.style == "atc":
        return LayeredGossip(op, param_groups, named, process_set)
    if op.style == "cta":
        return ArrivingGossip(op, param_groups, named, process_set)
    kind = _WITH_MEMORY.get(op.algorithm, ParameterGossip)
    return kind(op, param_groups, named, process_set)


def make_gossip_optimizer(optimizer, reduction, named_parameters, passes, groups):
    """What DistributedOptimizer gives for op=hvd.Gossip(...)."""
    op = reduction.op
    computes = needs_closure(optimizer)
    if op.style or op.what != "parameters" or op.algorithm in _WITH_MEMORY:
        asked = f"style={op.style!r}" if op.style else op.algorithm
        refuse_closure_steps(optimizer, asked if op.what == "parameters" else "gossip of gradients",
                             'op=hvd.Gossip("dpsgd"), "sgp", "osgp", "adpsgd" or "asgp",')
    if op.what == "parameters" and reduction.compression is not Compression.none:
        raise HoronInvalidArgument("compression is for gradients; parameters are mixed as they are")
    named = None if named_parameters is None else list(named_parameters)
    gossip = make_gossip(op, optimizer.param_groups, named, reduction.process_set)
    kind = type(optimizer)
    layered = isinstance(gossip, LayeredGossip)
    if layered:
        refuse_unsteppable(optimizer, BY_LAYERS)
    wrapped_kind = type(kind.__name__, (_GossipOptimizer, kind), {"__module__": __name__})
    wrapped = _GossipOptimizer.wrap(optimizer, wrapped_kind)
    if op.what == "parameters":
        by_layers = isinstance(gossip, ArrivingGossip)
        wrapped._distribute(gossip if by_layers else NoReduction())
        if layered:
            gossip.set_passes(passes)
            gossip.attach(wrapped, kind)
    else:
        wrapped._distribute(
            GossipReducer(optimizer.param_groups, reduction, named, passes, groups))
    # A GradScaler leaves the step to this optimizer: also a rank that takes none goes on mixing.
    wrapped._step_supports_amp_scaling = True
    wrapped._horon_gossip = gossip
    wrapped._horon_computes = computes
    wrapped._horon_process_set = reduction.process_set
    wrapped._horon_place = place_in(reduction.process_set)
    return wrapped
