"""DistributedOptimizer(op=Adasum): ranks combine what their optimizers did, not their gradients.

As a parameter's gradient arrives in backward(), the wrapped optimizer takes its step on that
parameter alone, from the local gradient; the difference that it made, the delta, goes into an
Adasum with the other ranks' while backward() goes on. The parameter itself stays as it was until
step(), which waits for all deltas and adds them. So momentum, weight decay and per-parameter
scaling act before the combination, and their state is local to the rank.

Source: Maleki et al., Scaling Distributed Training with Adaptive Summation, MLSys 2021.
"""

import warnings
import weakref

import torch

from horon.errors import HoronInvalidArgument
from horon.specs import Max
from horon.torch.calls import reduce_call
from horon.torch.gradients import UnderWay, start_as_one
from horon.torch.local_steps import LocalSteps
from horon.torch.optimizer_base import WrappedOptimizer
from horon.torch.parameters import name_parameters
from horon.torch.reducer import GradientReducer

_LATE_SCALER = (
    "GradScaler was first used, on this rank or another one, after steps without one, so this step "
    "has been taken with scaled gradients and was dropped. Call optimizer.defer_local_steps() on "
    "all ranks before you begin to use it."
)

_CHANGED = (
    "op=Adasum: gradients were changed after backward() had taken the local steps with them, so "
    "this step is without the change. From the next one on, local steps wait for step(). Call "
    "optimizer.defer_local_steps() on all ranks before the first step to be sure"
)


class Gradients:
    """What they were like at some moment. Those that share their memory with others share a count
    of changes with them, which then says nothing."""

    def __init__(self):
        self._noted = {}  # parameter: (its gradient, the version of it)

    def note(self, parameter):
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            return
        if gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size():
            self._noted[parameter] = gradient, gradient._version

    def changed(self) -> bool:
        """Whether any was changed since, or replaced. Forgets them."""
        noted = self._noted
        self.forget()
        return any(p.grad is not None and (p.grad is not gradient or gradient._version != version)
                   for p, (gradient, version) in noted.items())

    def forget(self):
        self._noted = {}


class DeltaReduction:
    """What GradientReducer starts in place of a gradient's reduction: step, delta, Adasum."""

    def __init__(self, reduction, local_steps):
        self._reduction = reduction
        self._local_steps = local_steps
        self._deltas = {}  # parameter: its buffer, kept from step to step
        self._ready = []  # parameters whose delta is combined
        self.used = Gradients()  # that local steps were taken with
        self.process_set = reduction.process_set
        self.sparse_as_dense = True  # a delta is dense, whatever the gradient was

    def start(self, name, parameter, hook):
        call, place = self._prepare(name, parameter)
        return UnderWay(call.start(), [place], self)

    def start_group(self, group, names, parameters):
        return start_as_one(group, map(self._prepare, names, parameters), self)

    def _prepare(self, name, parameter):
        delta = self._take_local_step(parameter)
        sent, memo = self._reduction.compression.compress(delta)
        call = reduce_call(name, self._reduction.spec, sent, self.process_set, in_place=True)
        return call, (parameter, delta, sent, memo)

    @torch.no_grad()
    def _take_local_step(self, parameter):
        delta = self._deltas.get(parameter)
        if delta is None:
            delta = self._deltas[parameter] = torch.empty_like(parameter, requires_grad=False)
        if parameter.grad is None:  # other ranks may have one
            return delta.zero_()
        self._local_steps.take(parameter, delta)
        self.used.note(parameter)
        return delta

    def put_back(self, parameter, delta, combined, memo):
        combined = self._reduction.compression.decompress(combined, memo)
        if combined is not delta:
            delta.copy_(combined)
        self._ready.append(parameter)

    @torch.no_grad()
    def apply(self):
        self._local_steps.commit()
        for parameter in self._ready:
            parameter.add_(self._deltas[parameter])
        self._ready.clear()
        self.used.forget()

    def drop(self):
        """Also the buffers: what is under way may still be written there."""
        self._local_steps.drop()
        self._ready.clear()
        self._deltas.clear()
        self.used.forget()


class DeltaReducer(GradientReducer):
    """Starts each parameter's local step and combination when its gradient is there, or, if
    deferred, when synchronize() is called."""

    prefix = "adasum"
    deferred = True

    def __init__(self, *args):
        self.left = Gradients()  # as backward leaves them, while local steps are deferred
        super().__init__(*args)

    def _ready(self, parameter):
        if self.deferred:
            self._count(self._hooks[parameter])
            self.left.note(parameter)
        else:
            super()._ready(parameter)

    def reset(self):
        super().reset()
        self.left.forget()

    def _unshare(self, parameter, in_backward):
        return False  # gradients stay as they are

    def _fill_gradient(self, parameter):
        """Nothing: where there is no gradient there is no step, and the delta is zero."""

    @property
    def parameters(self):
        return list(self._hooks)


class _DeltaOptimizer(WrappedOptimizer):
    """Mixed into a subclass of the wrapped optimizer's class."""

    # GradScaler then leaves the gradients to step(), and says there what it found.
    _step_supports_amp_scaling = True

    def _distribute(self, reducer, deltas):
        super()._distribute(reducer)
        self._horon_deltas = deltas
        self._horon_defers = False
        # Whether a GradScaler is in use shows at the first step: so its local steps are deferred.
        self._horon_first = True
        self._horon_agreed = None  # what was agreed for the next step()

    def defer_local_steps(self, defer=True):
        """Local steps are taken in step(), not in backward(): between the two, gradients are yours
        to clip. Costs the overlap with backward. The same on all ranks."""
        self._horon_defers = defer
        self._horon_reducer.deferred = defer or self._horon_first

    def synchronize(self):
        """Who calls this wants to change gradients before step(): local steps are deferred from the
        next one on. Waits for those that backward() has taken already."""
        self._horon_defers = True
        if not self._horon_reducer.deferred:
            self._horon_agreed = self._agree()  # a rank that defers starts nothing before
            self._wait()

    def _wait(self):
        try:
            self._horon_synchronize()
        except BaseException:
            self._horon_deltas.drop()
            raise

    def _agree(self, changed=False) -> list:
        """Of which things are so on some rank: an overflow, a GradScaler, local steps taken before
        step(), gradients that were changed before it. Waits for the others, in every step, so that
        all of them go the same way."""
        found_inf = getattr(self, "found_inf", None)  # 0 where no parameter has a gradient
        scaled = found_inf is not None
        mine = [scaled and float(found_inf) > 0, scaled, not self._horon_reducer.deferred, changed]
        flags = torch.tensor(mine, dtype=torch.uint8)
        process_set = self._horon_reducer.process_set
        try:
            flags = reduce_call("adasum.agreed", Max.spec, flags, process_set).run()
        except BaseException:
            self._horon_reducer.reset()
            self._horon_deltas.drop()
            raise
        return flags.bool().tolist()

    def _apply(self):
        try:
            self._horon_deltas.apply()
        except BaseException:
            self._horon_deltas.drop()
            self._horon_synchronized = False
            raise

    def load_state_dict(self, *args, **kwargs):
        self._horon_agreed = None
        self._horon_deltas.drop()
        return super().load_state_dict(*args, **kwargs)

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        changed = self._look_for_changes()
        overflow, scaled, early, changed = self._horon_agreed or self._agree(changed)
        self._horon_agreed = None
        self._horon_defers = self._horon_defers or changed
        if early and (scaled or getattr(self, "found_inf", None) is not None):
            if not self._horon_synchronized:
                self._wait()  # also who has taken no local step yet: the others wait for its deltas
            self._horon_deltas.drop()
            self._horon_synchronized = False
            if scaled:  # who ends by what follows must not end what others still wait for
                self._agree()
            raise HoronInvalidArgument(_LATE_SCALER)
        if overflow:
            self._horon_reducer.reset()
        else:
            self._unscale()
            if not self._horon_synchronized:
                self._wait()
            self._apply()
        self._horon_synchronized = False
        self._horon_first = False
        self._horon_reducer.deferred = self._horon_defers or scaled
        return loss

    def _look_for_changes(self) -> bool:
        """Who clips between backward() and step() in the first step does so in the others."""
        left = self._horon_reducer.left.changed()
        late = self._horon_deltas.used.changed()
        if getattr(self, "found_inf", None) is not None:
            return False
        if late:
            warnings.warn(_CHANGED, stacklevel=3)
        return left or late

    @torch.no_grad()
    def _unscale(self):
        scale = getattr(self, "grad_scale", None)
        if scale is None:
            return
        for parameter in self._horon_reducer.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(scale.to(parameter.grad.device))


def make_delta_optimizer(optimizer, reduction, named_parameters, passes, groups):
    """What DistributedOptimizer gives for op=Adasum on several ranks."""
    kind = type(optimizer)
    wrapped_kind = type(kind.__name__, (_DeltaOptimizer, kind), {"__module__": __name__})
    wrapped = _DeltaOptimizer.wrap(optimizer, wrapped_kind)
    wrapped._patch_step_function()  # hooks of steps run in this one, once
    # The hooks of parameters lead to what is made here: it must not keep the optimizer alive.
    if named_parameters is not None:
        named_parameters = list(named_parameters)
    names = name_parameters(optimizer.param_groups, named_parameters)
    deltas = DeltaReduction(reduction, LocalSteps(weakref.proxy(wrapped), kind, names))
    reducer = DeltaReducer(optimizer.param_groups, deltas, named_parameters, passes, groups)
    wrapped._distribute(reducer, deltas)
    return wrapped
