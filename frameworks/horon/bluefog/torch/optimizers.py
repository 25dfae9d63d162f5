"""BlueFog's optimizers: around any torch optimizer, with parameters mixed among neighbors.

    adapt then combine      step() takes the optimizer's step, then mixes and waits
    adapt with combine      mixing begins with the forward pass; step() waits, then takes the step

Whom to mix with is an attribute of the optimizer, which may change from step to step: self_weight,
src_weights and dst_weights (of machines: src_machine_weights, dst_machine_weights), for windows
neighbor_weights; None: the topology's. With force_barrier = True optimizers with windows, and
push-sum, mix once all ranks have delivered. All on the thread that trains.

num_steps_per_communication=J: parameters are mixed with the step of every J-th forward pass in
training. Each pass may have a step, or J passes one; a pass more than that is an AssertionError.
"""

import enum
import functools
import weakref

import torch

import horon.torch as hvd
from horon import mixing, topology as topologies
from horon.bluefog.torch import collectives, state, windows
from horon.bluefog.torch.activities import ModelActivities
from horon.torch.calls import wait_all
from horon.torch.flat_parameters import FlatParameters
from horon.torch.layered_gossip import TOO_LATE
from horon.torch.local_steps import Asked, LocalSteps, refuse_unsteppable
from horon.torch.meeting import meet
from horon.torch.optimizer_base import NoReduction, WrappedOptimizer, refuse_closure_steps
from horon.torch.parameter_gossip import AVERAGE
from horon.torch.parameters import remove_with
from horon.torch.reducer import TOO_MANY


TOO_MANY_PASSES = (
    "The model ran forward more than num_steps_per_communication={0} times before call to step(). "
    "Call it after each pass, or after {0} of them; passes without a step belong into "
    "torch.no_grad() or after model.eval().")


class CommunicationType(enum.Enum):
    neighbor_allreduce = "neighbor.allreduce"
    hierarchical_neighbor_allreduce = "hierarchical.neighbor.allreduce"
    allreduce = "allreduce"
    empty = "empty"

    @classmethod
    def named(cls, kind) -> "CommunicationType":
        """This one, or the one of this name or value. HoronInvalidArgument where there is none."""
        if isinstance(kind, (cls, str)):
            for one in cls:
                if kind in (one, one.name, one.value):
                    return one
        names = ", ".join(cls.__members__)
        raise hvd.HoronInvalidArgument(
            f"communication_type={kind!r}: it is one of CommunicationType's {names}")


class _Collective:
    """Mixes each parameter by a collective, which all ranks take part in."""

    def __init__(self, optimizer, named_parameters):
        self._optimizer = optimizer
        self._parameters = named_parameters
        self._begun = []

    def mixes(self, parameter) -> bool:
        return any(parameter is mixed for _, mixed in self._parameters)

    def begin(self):
        kind = self._optimizer.communication_type
        if kind is not CommunicationType.empty:
            start, arguments = getattr(self, f"_{kind.name}")()
            self._begun = [(parameter, start(parameter.detach(), name=f"bluefog.{name}",
                                             **arguments))
                           for name, parameter in self._parameters]

    def _neighbor_allreduce(self):
        o = self._optimizer
        return collectives.neighbor_allreduce_nonblocking, {
            "self_weight": o.self_weight, "src_weights": o.src_weights,
            "dst_weights": o.dst_weights}

    def _hierarchical_neighbor_allreduce(self):
        o = self._optimizer
        return collectives.hierarchical_neighbor_allreduce_nonblocking, {
            "self_weight": o.self_weight, "src_machine_weights": o.src_machine_weights,
            "dst_machine_weights": o.dst_machine_weights}

    def _allreduce(self):
        return hvd.allreduce_async, {"op": AVERAGE}

    @torch.no_grad()
    def end(self):
        begun, self._begun = self._begun, []
        wait_all(handle for _, handle in begun)
        for parameter, handle in begun:
            parameter.copy_(handle.wait())


_BY_LAYERS = Asked("during_backward=True", "The parameters are not as they were",
                   "leave during_backward out with it", "bf.DistributedAdaptThenCombineOptimizer")


class _ByLayers(_Collective):
    """The step and the exchange of each parameter as soon as backward has its gradient."""

    def __init__(self, optimizer, named_parameters, kind):
        refuse_unsteppable(optimizer, _BY_LAYERS)
        super().__init__(optimizer, named_parameters)
        self._names = {parameter: name for name, parameter in named_parameters}
        self._local = LocalSteps(weakref.proxy(optimizer), kind, self._names, _BY_LAYERS)
        self._used = {}  # parameter: (its gradient, the version of it that the step was taken with)
        ready = weakref.WeakMethod(self._ready)
        remove_with(optimizer, [
            parameter.register_post_accumulate_grad_hook(lambda p: ready() and ready()(p))
            for parameter in self._names if parameter.requires_grad])

    @torch.no_grad()
    def _ready(self, parameter):
        if not self._optimizer._bluefog_due():
            return
        if parameter in self._used:
            raise AssertionError(TOO_MANY)
        self._step(parameter)
        self._used[parameter] = parameter.grad, parameter.grad._version
        self._begin_one(parameter)

    def _step(self, parameter):
        if not self._optimizer._bluefog_step_one(parameter):
            self._local.step(parameter)

    def _begin_one(self, parameter):
        kind = self._optimizer.communication_type
        if kind is not CommunicationType.empty:
            start, arguments = getattr(self, f"_{kind.name}")()
            self._begun.append((parameter, start(
                parameter.detach(), name=f"bluefog.{self._names[parameter]}", **arguments)))

    def adapt_and_end(self, scaled):
        """The rest, which has no gradient of this pass, then waits."""
        used, self._used = self._used, {}
        for parameter in self._names:
            if parameter in used:
                continue
            if parameter.grad is not None:
                self._step(parameter)
            self._begin_one(parameter)
        try:
            self.end()
        finally:
            self._local.commit()
        if scaled or any(parameter.grad is not gradient or gradient._version != version
                         for parameter, (gradient, version) in used.items()):
            raise hvd.HoronUnsupported(TOO_LATE.replace("style='atc'", "during_backward=True"))


class _Windowed:
    """Mixes by windows, one for each dtype: with whatever the neighbors have delivered by then."""

    def __init__(self, optimizer, param_groups, prefix):
        self._optimizer = optimizer
        self._flat = FlatParameters(param_groups)
        self._values = self._flat.new()
        self._names = [f"{prefix or 'optimizer'}.{str(values.dtype).split('.')[1]}"
                       for values in self._values]
        self._handles = []
        for values, name in zip(self._values, self._names):
            if not windows.win_create(values, name):
                raise hvd.HoronInvalidArgument(
                    f"there is a window '{name}' already: give each optimizer a window_prefix")

    def mixes(self, parameter) -> bool:
        """It has not been among those that the windows were made of."""
        return False

    def begin(self):
        self._flat.read(self._values)
        self._handles = [self._start(values, name)
                         for values, name in zip(self._values, self._names)]

    def end(self):
        handles, self._handles = self._handles, []
        wait_all(handles)
        if self._optimizer.force_barrier:
            meet()
        for name in self._names:
            windows.win_update(name, self._optimizer.self_weight, self._optimizer.neighbor_weights)
        self._flat.write(self._values)

    def free(self):
        for name in self._names:
            windows.win_free(name)


class _Put(_Windowed):
    def _start(self, values, name):
        return windows.win_put_nonblocking(values, name, dst_weights=self._optimizer.dst_weights)


class _Get(_Windowed):
    def _start(self, values, name):
        return windows.win_get_nonblocking(name, self._optimizer.src_weights)


class _Shown:
    """What all of them have. Mixed into a subclass of the wrapped optimizer's class."""

    _bluefog_models = ()
    _bluefog_shown = None

    def turn_on_timeline(self):
        """From now on the timeline has a row for each parameter, with its part of each pass."""
        self.turn_off_timeline()
        self._bluefog_shown = ModelActivities(self._bluefog_models)

    def turn_off_timeline(self):
        if self._bluefog_shown is not None:
            self._bluefog_shown.remove()
        self._bluefog_shown = None


def _shown(wrapped, model, mixin=_Shown):
    kind = type(wrapped)
    wrapped.__class__ = type(kind.__name__, (mixin, kind), {"__module__": __name__})
    wrapped._bluefog_models = _models(model)
    return wrapped


class _BluefogOptimizer(_Shown, WrappedOptimizer):
    """Mixed into a subclass of the wrapped optimizer's class."""

    _bluefog_kind = CommunicationType.neighbor_allreduce
    self_weight = src_weights = dst_weights = neighbor_weights = None
    src_machine_weights = dst_machine_weights = None
    enable_topo_check = True  # lists are always checked
    force_barrier = False
    _bluefog_step = None

    def add_param_group(self, param_group):
        """torch's. HoronUnsupported, with nothing added, for parameters that would not be mixed:
        with windows any, else those that are not of the model."""
        super().add_param_group(param_group)
        if not all(map(self._bluefog_way.mixes, self.param_groups[-1]["params"])):
            self.param_groups.pop()
            raise hvd.HoronUnsupported("parameters that are added now would not be mixed: make the "
                                       "optimizer with all parameters, and of all models")

    @property
    def communication_type(self) -> CommunicationType:
        """How parameters are mixed from the next exchange on; may be set by its name, too.
        HoronUnsupported where it is set of an optimizer that mixes by windows."""
        return self._bluefog_kind

    @communication_type.setter
    def communication_type(self, kind):
        if isinstance(self._bluefog_way, _Windowed):
            raise hvd.HoronUnsupported("communication_type: this optimizer mixes by windows")
        self._bluefog_kind = CommunicationType.named(kind)

    def register_step_function(self, step_function):
        """step_function(parameter, gradient, parameter_group) is what a step does from now on, for
        each parameter that has a gradient, in place of the wrapped optimizer's; None: that again.
        It changes the parameter in place."""
        self._bluefog_step = step_function

    def _step_wrapped(self):
        if self._bluefog_step is None:
            super()._step_wrapped()
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                self._bluefog_step_in(group, parameter)

    @torch.no_grad()
    def _bluefog_step_in(self, group, parameter):
        if parameter.grad is not None:
            self._bluefog_step(parameter, parameter.grad, group)

    def _bluefog_step_one(self, parameter) -> bool:
        """The registered function's step for it. False: there is no such function."""
        if self._bluefog_step is None:
            return False
        for group in self.param_groups:
            if any(p is parameter for p in group["params"]):
                self._bluefog_step_in(group, parameter)
        return True

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._bluefog_seen:  # a forward pass that did not go through the model as a whole
            self._forward_begins()
        self._bluefog_seen = False
        due = self._bluefog_due()
        if due:
            self._bluefog_passes = 0  # also where the exchange fails
        if due and isinstance(self._bluefog_way, _ByLayers):
            self._bluefog_end_layers()
            return loss
        if due and self._bluefog_overlaps:
            self._bluefog_way.end()
        self._step_locally(self._take_scaler())
        if due and not self._bluefog_overlaps:
            self._bluefog_way.begin()
            self._bluefog_way.end()
        return loss

    step.hooked = True  # hooks of steps run in the wrapped optimizer's: torch adds them to no other

    @torch.optim.Optimizer.profile_hook_step  # here no step of the wrapped optimizer does
    def _bluefog_end_layers(self):
        self._bluefog_way.adapt_and_end(bool(self._take_scaler()))

    def _bluefog_due(self) -> bool:
        """Whether parameters are mixed with this step."""
        return self._bluefog_passes >= self._bluefog_every

    def _forward_begins(self):
        if 1 < self._bluefog_every == self._bluefog_passes:
            raise AssertionError(TOO_MANY_PASSES.format(self._bluefog_every))
        self._bluefog_seen = True
        self._bluefog_passes += 1
        if self._bluefog_overlaps and self._bluefog_passes == self._bluefog_every:
            self._bluefog_way.begin()

    def unregister_window(self):
        """For all ranks: frees the optimizer's windows. No steps afterwards."""
        for hook in self._bluefog_hooks:
            hook.remove()
        if isinstance(self._bluefog_way, _Windowed):
            self._bluefog_way.free()


def _wrap(optimizer, model, steps, overlaps, make_way) -> _BluefogOptimizer:
    if steps < 1:
        raise hvd.HoronInvalidArgument("num_steps_per_communication must be at least 1")
    refuse_closure_steps(optimizer, "this one, which counts forward passes,",
                         "DistributedPushSumOptimizer, hvd.DistributedOptimizer(op=hvd.Gossip()),")
    models = _models(model)
    kind = type(optimizer)
    wrapped = _BluefogOptimizer.wrap(
        optimizer, type(kind.__name__, (_BluefogOptimizer, kind), {"__module__": __name__}))
    wrapped._distribute(NoReduction())
    wrapped._step_supports_amp_scaling = True
    wrapped._bluefog_every, wrapped._bluefog_overlaps = steps, overlaps
    wrapped._bluefog_passes, wrapped._bluefog_seen = 0, False
    wrapped._bluefog_models = models
    wrapped._bluefog_way = make_way(wrapped, models)

    def begins(module, _):
        if module.training and torch.is_grad_enabled():
            wrapped._forward_begins()

    wrapped._bluefog_hooks = [models[0].register_forward_pre_hook(begins)]
    return wrapped


def _models(model) -> list:
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _named(models) -> list:
    named = [pair for model in models for pair in model.named_parameters()]
    if len(models) == 1:
        return named
    return [(f"{i}.{name}", parameter) for i, model in enumerate(models)
            for name, parameter in model.named_parameters()]


def _mixing_optimizer(optimizer, model, communication_type, steps, overlaps, way=_Collective):
    kind = CommunicationType.named(communication_type)
    wrapped = _wrap(optimizer, model, steps, overlaps,
                    lambda wrapped, models: way(wrapped, _named(models)))
    wrapped.communication_type = kind
    return wrapped


def DistributedAdaptThenCombineOptimizer(
        optimizer, model, communication_type=CommunicationType.neighbor_allreduce,
        num_steps_per_communication=1, *, during_backward=False):
    """The optimizer's step, then parameters are mixed. during_backward: both for each parameter
    as soon as backward has its gradient; gradients cannot be clipped or unscaled then."""
    by_layers = functools.partial(_ByLayers, kind=type(optimizer))
    return _mixing_optimizer(optimizer, model, communication_type, num_steps_per_communication,
                             False, by_layers if during_backward else _Collective)


def DistributedAdaptWithCombineOptimizer(
        optimizer, model, communication_type=CommunicationType.neighbor_allreduce,
        num_steps_per_communication=1):
    """Parameters are mixed while gradients are computed, then comes the optimizer's step."""
    return _mixing_optimizer(optimizer, model, communication_type, num_steps_per_communication,
                             True)


def DistributedAllreduceOptimizer(optimizer, model, num_steps_per_communication=1):
    return DistributedAdaptWithCombineOptimizer(optimizer, model, CommunicationType.allreduce,
                                                num_steps_per_communication)


def DistributedNeighborAllreduceOptimizer(optimizer, model, num_steps_per_communication=1):
    return DistributedAdaptWithCombineOptimizer(
        optimizer, model, CommunicationType.neighbor_allreduce, num_steps_per_communication)


def DistributedHierarchicalNeighborAllreduceOptimizer(optimizer, model,
                                                      num_steps_per_communication=1):
    return DistributedAdaptWithCombineOptimizer(
        optimizer, model, CommunicationType.hierarchical_neighbor_allreduce,
        num_steps_per_communication)


def DistributedGradientAllreduceOptimizer(optimizer, model, num_steps_per_communication=1):
    return _shown(hvd.DistributedOptimizer(optimizer, _named(_models(model)),
                                           backward_passes_per_step=num_steps_per_communication),
                  model)


def DistributedWinPutOptimizer(optimizer, model, num_steps_per_communication=1,
                               window_prefix=None):
    """Each rank puts its parameters to its out-neighbors with the forward pass; step() mixes what
    has come, then takes the step. Nobody waits for a slow rank."""
    return _wrap(optimizer, model, num_steps_per_communication, True,
                 lambda wrapped, _: _Put(wrapped, wrapped.param_groups, window_prefix))


def DistributedPullGetOptimizer(optimizer, model, num_steps_per_communication=1,
                                window_prefix=None):
    """The same, but each rank gets what its in-neighbors had when their last forward pass began."""
    return _wrap(optimizer, model, num_steps_per_communication, True,
                 lambda wrapped, _: _Get(wrapped, wrapped.param_groups, window_prefix))


class _PushSumOptimizer(_Shown):
    """Mixed into a subclass of DistributedOptimizer's class."""

    self_weight = dst_weights = None
    force_barrier = False

    def step(self, closure=None):
        self._horon_gossip.give(self.self_weight, self.dst_weights)
        self._horon_gossip.in_step = self.force_barrier
        return super().step(closure)

    step.hooked = True  # as DistributedOptimizer's


def DistributedPushSumOptimizer(optimizer, model, num_steps_per_communication=1):
    """Asynchronous push-sum on the topology's edges, each rank's parts equal: the ranks' mean on
    any graph. self_weight and dst_weights, both, are other parts from the next step on; they sum
    to 1. What is under way is taken in by optimizer.finish_gossip(), for all ranks."""
    graph = state.rank_topology()
    edges = [(sender, to) for sender, to, _ in graph.edges() if sender != to]
    push = topologies.Custom(graph.n, edges, mixing=mixing.Push()) if edges else None
    op = hvd.Gossip("asgp", topology=push, sync_freq=num_steps_per_communication - 1)
    return _shown(hvd.DistributedOptimizer(optimizer, _named(_models(model)), op=op), model,
                  _PushSumOptimizer)
