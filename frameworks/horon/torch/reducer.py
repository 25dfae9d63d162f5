"""GradientReducer: starts each gradient's reduction as soon as backward has produced it.

Owned by a DistributedOptimizer. Its hooks run on autograd's threads, one at a time; everything else
on the thread that trains.
"""

import math
import weakref

import torch

from horon import _core
from horon.errors import HoronInvalidArgument
from horon.specs import Max, Sum, spec_of
from horon.torch.calls import reduce_call
from horon.torch.gradient_views import GradientViews, adopt
from horon.torch.groups import make_groups
from horon.torch.parameters import name_parameters, refuse_sharded, remove_with
from horon.torch.tensors import works_with

TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)

# Ops after which each rank has a gradient of its own.
_OF_EACH_RANK = ("gossip", "dissemination", "neighbor_allreduce")

SHARED = (
    "The gradients of '{}' and '{}' lie in the same memory from this step on, and were reduced "
    "there one over the other. Have them reduced together: "
    "DistributedOptimizer(groups=[[one, other], ...])."
)


# Where PyTorch has no such thing, every gradient may be shared.
_use_count = getattr(torch._C, "_storage_Use_Count", lambda storage: 1 << 30)
_NO_GRADIENT, _DENSE, _SPARSE = range(3)  # the ranks take the largest of theirs


class GradientReducer:
    prefix = "allreduce"  # of the names under which the runtime knows the gradients

    def __init__(self, param_groups, reduction, named_parameters, passes, groups, views=False):
        refuse_sharded(param_groups)
        self._given_groups = param_groups
        self._optimizer = None  # weak reference to that which owns them
        self._handles = []  # of the hooks
        self._reduction = reduction
        self.active = reduction.process_set.included() and reduction.process_set.size() > 1
        self._names = self._names_of(param_groups, named_parameters)
        self._passes = passes
        self._hooks = {}  # parameter: its hook, which knows what is under way
        self._gatherer = _core.gatherer()  # of the hooks
        self._seen, self._frozen = [], []  # parameters, at the last look; those that want no hook
        self._sparse = set()  # parameters whose gradient is, or was, sparse somewhere
        self._unknown = set()  # those of which no rank has had a gradient yet
        self._clash = 0  # address of a gradient that was already under way for another parameter
        self._last = {}  # parameter: weak reference to its gradient that lies where it shall
        for parameter in self._names if self.active else ():
            works_with(parameter.device)  # the first on a GPU: autograd has a thread for each
        self._views = self._make_views() if views and self.active else None
        mine = {parameter for options in param_groups for parameter in options["params"]}
        names = {parameter: name for parameter, name in self._names.items() if parameter in mine}
        self._group_of = make_groups(groups, names, reduction.process_set, self.active)
        self._hook_parameters()
        for parameter in self._hooks:
            self._note(parameter)

    def follow(self, optimizer) -> None:
        """Goes by the optimizer's groups, which load_state_dict() replaces, and leaves the
        parameters alone when it is gone: another one may come."""
        self._optimizer = weakref.ref(optimizer)
        remove_with(optimizer, self._handles)

    @property
    def _param_groups(self):
        optimizer = self._optimizer and self._optimizer()
        return self._given_groups if optimizer is None else optimizer.param_groups

    @property
    def process_set(self):
        return self._reduction.process_set

    @property
    def untouched(self) -> bool:
        """Whether no backward pass has come since reductions were waited for."""
        return _core.untouched(self._hooks, self._passes)

    @property
    def sums(self) -> bool:
        """Whether gradients are added, and not averaged."""
        return spec_of(self._reduction.op) == Sum.spec

    @property
    def pending(self) -> bool:
        """Whether any reduction has started that synchronize() has not waited for."""
        return _core.count_pending(self._hooks) > 0

    def set_passes(self, passes) -> None:
        self._passes = passes
        for hook in self._hooks.values():
            hook.left = passes

    def reset(self) -> None:
        """Forgets what is under way; the runtime keeps its tensors until it is done."""
        self._take_pending()

    def _take_pending(self) -> list:
        """What is under way, and forgets it."""
        self._clash = 0
        return _core.take_pending(self._hooks, self._passes)

    def synchronize(self) -> None:
        """Starts what no backward pass has started, and waits until every gradient is reduced.
        Raises the first failure after the last one is done."""
        if not self.active:
            return
        self._hook_parameters()
        if self._unknown:
            self._learn_which_are_sparse()
        if _core.count_pending(self._hooks) < len(self._hooks):
            for parameter, hook in self._hooks.items():
                if hook.pending is None:
                    self._start(parameter, hook)
        clash = self._clash or self._gatherer.common_place()
        failure = _core.wait_for_all(self._take_pending())
        if failure is not None:
            raise failure
        if clash:
            self._refuse_sharing(clash)

    @property
    def differs(self) -> bool:
        """Whether each rank has a gradient of its own afterwards."""
        return spec_of(self._reduction.op).partition(":")[0] in _OF_EACH_RANK

    @torch.no_grad()
    def agree_on_overflow(self) -> None:
        """For all ranks, before a GradScaler looks at reduced gradients of which each rank has its
        own: an overflow that some of them see is made one of all, so that all leave the step out
        and go on with one scale. Gradients of several scales could not be mixed. Blocks; with a
        rank that is too late it is an overflow, too: nobody knows of the others then."""
        if not (self.active and self.differs):
            return
        mine = _overflow_in([p.grad for p in self._hooks if p.grad is not None])
        first = float(self.process_set.rank() == 0)  # a mean of that is neither 0 nor 1
        seen, met = reduce_call("gradients.overflow", "average:late=keep",
                                torch.tensor([float(mine), first]), self.process_set).run().tolist()
        if mine or (seen == 0 and met not in (0.0, 1.0)):
            return
        parameter = next(iter(self._hooks), None)
        if parameter is not None:
            parameter.grad = torch.full_like(parameter, math.inf, requires_grad=False)

    def _make_views(self):
        parameters = (p for options in self._param_groups for p in options["params"])
        return GradientViews([p for p in parameters if p.requires_grad], self.process_set)

    def _hook_parameters(self):
        """Also finds parameters that were added, or began to require gradients, since last time."""
        if not self.active:
            return
        parameters = [p for options in self._param_groups for p in options["params"]]
        if (_core.same_objects(parameters, self._seen)
                and not any(parameter.requires_grad for parameter in self._frozen)):
            return
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooks:
                self._hook(parameter)
        self._seen = parameters
        self._frozen = [parameter for parameter in parameters if parameter not in self._hooks]

    def _hook(self, parameter):
        hook = _core.gradient_hook(self._ready, self._gatherer)
        hook.left = self._passes
        hook.view = self._views.of(parameter) if self._views else None
        self._hooks[parameter] = hook
        if not self._dense_anyway(parameter):
            self._unknown.add(parameter)
        self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _dense_anyway(self, parameter) -> bool:
        """Whether a sparse gradient would be reduced as a dense one."""
        return self._reduction.sparse_as_dense or parameter in self._group_of

    def _learn_which_are_sparse(self):
        """Sparse gradients travel in another way than dense ones, so a rank without a gradient must
        know what the others have. Only a gradient shows it: the ranks tell each other at the end
        of the first step, and again while there are parameters that nobody has used."""
        asked = sorted(self._unknown, key=self._name)  # the ranks may have them in other orders
        kinds = torch.tensor([_kind(parameter.grad) for parameter in asked], dtype=torch.uint8)
        reduce_call(f"{self.prefix}.sparse.{self._name(asked[0])}", Max.spec, kinds,
                    self.process_set, in_place=True).run()
        kinds = dict(zip(asked, kinds.tolist()))
        self._sparse.update(p for p, kind in kinds.items() if kind == _SPARSE)
        self._unknown = {p for p, kind in kinds.items() if kind == _NO_GRADIENT}

    def _unshare(self, parameter, in_backward) -> bool:
        """Backward may give one tensor to two parameters, which it adds up: reduced in place, one
        gradient would change the other. Such a one gets memory of its own; whether it is one. In
        backward, autograd still holds what it has made the gradient of."""
        shared = self._shares(parameter, held=2 if in_backward else 1)
        if shared:
            place = _place(parameter.grad)
            if self._gatherer.holds(place):
                self._clash = place  # too late
            else:
                parameter.grad = parameter.grad.clone()
        self._note(parameter)
        return shared

    def _shares(self, parameter, held) -> bool:
        """Whether its gradient's memory has more references than `held`. Not what has been the
        gradient before, or is a part of a buffer: its owner has put it where it lies."""
        gradient = parameter.grad
        if self._hooks[parameter].view is not None or not _place(gradient):
            return False
        last = self._last.get(parameter)
        return (_references(gradient) > held and not (last is not None and last() is gradient)
                and gradient.untyped_storage().nbytes() <= gradient.nbytes)

    def _note(self, parameter):
        """That this gradient lies where it shall."""
        if parameter.grad is not None:
            self._last[parameter] = weakref.ref(parameter.grad)

    def _refuse_sharing(self, place):
        names = []
        for parameter, hook in self._hooks.items():
            if _place(parameter.grad) == place:
                names.append(self._names.get(parameter, "?"))
                hook.forget()
        raise HoronInvalidArgument(SHARED.format(*names[:2]))

    def _ready(self, parameter):
        """One backward pass is through with this parameter, and its hook could not do the rest."""
        hook = self._hooks[parameter]
        if hook.view is not None:  # before the next pass adds to it
            adopt(parameter, hook.view)
        if self._count(hook) > 0:
            return
        group = self._group_of.get(parameter)
        if group is None or all(self._hooks[member].left == 0 for member in group.parameters):
            self._start(parameter, hook, in_backward=True)

    def _count(self, hook) -> int:
        """One pass less; how many are left until the reduction."""
        if hook.left <= 0:
            raise AssertionError(TOO_MANY)
        hook.left -= 1
        return hook.left

    def _start(self, parameter, hook, in_backward=False):
        """Starts the parameter's reduction, or that of its group."""
        group = self._group_of.get(parameter)
        if group is not None:
            self._start_group(group, parameter if in_backward else None)
            return
        self._fill_gradient(parameter)
        if parameter.grad is not None and parameter.grad.is_sparse:
            self._sparse.add(parameter)
        shared = self._unshare(parameter, in_backward)
        hook.pending = self._reduction.start(self._name(parameter), parameter,
                                             None if shared else hook)

    def _start_group(self, group, last_ready):
        for parameter in group.parameters:
            self._fill_gradient(parameter)
            self._unshare(parameter, in_backward=parameter is last_ready)
        names = [self._name(parameter) for parameter in group.parameters]
        pending = self._reduction.start_group(group.name, names, group.parameters)
        for parameter in group.parameters:
            self._hooks[parameter].pending = pending

    def _fill_gradient(self, parameter):
        """The other ranks may have a gradient where we have none: then ours counts as zeros. One
        that we have moves into its view."""
        view = self._hooks[parameter].view
        if parameter.grad is not None:
            if view is not None:
                adopt(parameter, view)
        elif parameter in self._sparse and not self._dense_anyway(parameter):
            parameter.grad = torch.zeros_like(parameter, requires_grad=False).to_sparse(1)
        elif view is not None:
            parameter.grad = view.zero_()
        else:
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)

    def _names_of(self, param_groups, named_parameters) -> dict:
        return name_parameters(param_groups, named_parameters)

    def _names_of_added(self) -> dict:
        return name_parameters(self._param_groups, None, skip=self._names)

    def _name(self, parameter):
        if parameter not in self._names:
            self._names.update(self._names_of_added())
        return f"{self.prefix}.{self._names[parameter]}"


def _overflow_in(gradients) -> bool:
    """Whether any has a value that is not finite. Waits once for each device."""
    of_device = {}
    for gradient in gradients:
        values = gradient._values() if gradient.is_sparse else gradient
        if values.numel() > 0:
            finite = torch.linalg.vector_norm(values, math.inf).isfinite()
            of_device.setdefault(values.device, []).append(finite)
    return not all(bool(torch.stack(finite).all()) for finite in of_device.values())


def _place(gradient) -> int:
    """Address of its elements; 0 if they lie in no one place."""
    return gradient.data_ptr() if gradient is not None and gradient.layout == torch.strided else 0


def _references(gradient) -> int:
    """To the memory that it lies in, its own included."""
    return _use_count(gradient.untyped_storage()._cdata)


def _kind(gradient) -> int:
    if gradient is None:
        return _NO_GRADIENT
    return _SPARSE if gradient.is_sparse else _DENSE
