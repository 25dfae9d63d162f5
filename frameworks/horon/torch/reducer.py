"""GradientReducer: starts each gradient's reduction as soon as backward has produced it.

Owned by a DistributedOptimizer. Its hooks run on autograd's threads, one at a time; everything else
on the thread that trains.
"""

import torch

from horon.torch.groups import make_groups
from horon.torch.parameters import name_parameters, refuse_sharded

_TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class GradientReducer:
    prefix = "allreduce"  # of the names under which the runtime knows the gradients

    def __init__(self, param_groups, reduction, named_parameters, passes, groups):
        refuse_sharded(param_groups)
        self._param_groups = param_groups
        self._reduction = reduction
        self._names = name_parameters(param_groups, named_parameters)
        self._passes = passes
        self._left = {}  # parameter: backward passes until its reduction starts
        self._pending = {}  # parameter, or its group: what is under way
        self._hooks = {}
        self._was_sparse = set()
        self.active = reduction.process_set.included() and reduction.process_set.size() > 1
        self._group_of = make_groups(groups, self._names, reduction.process_set, self.active)
        self._hook_parameters()

    @property
    def process_set(self):
        return self._reduction.process_set

    @property
    def pending(self) -> bool:
        """Whether any reduction has started that synchronize() has not waited for."""
        return bool(self._pending)

    def set_passes(self, passes) -> None:
        self._passes = passes
        self._count_anew()

    def reset(self) -> None:
        """Forgets what is under way; the runtime keeps its tensors until it is done."""
        self._pending = {}
        self._count_anew()

    def synchronize(self) -> None:
        """Starts what no backward pass has started, and waits until every gradient is reduced.
        Raises the first failure after the last one is done."""
        if not self.active:
            return
        self._hook_parameters()
        for parameter in self._hooks:
            group = self._group_of.get(parameter)
            if group is None and parameter not in self._pending:
                self._start(parameter)
            elif group is not None and group not in self._pending:
                self._start_group(group)
        pending = list(self._pending.values())
        self.reset()
        failure = None
        for work in pending:
            try:
                work.wait()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _count_anew(self):
        for parameter in self._left:
            self._left[parameter] = self._passes

    def _hook_parameters(self):
        """Also finds parameters that were added, or began to require gradients, since last time."""
        if not self.active:
            return
        for options in self._param_groups:
            for parameter in options["params"]:
                if parameter.requires_grad and parameter not in self._hooks:
                    hook = parameter.register_post_accumulate_grad_hook(self._ready)
                    self._hooks[parameter] = hook
                    self._left[parameter] = self._passes

    def _ready(self, parameter):
        """The hook: one backward pass is through with this parameter."""
        if self._count(parameter) > 0:
            return
        group = self._group_of.get(parameter)
        if group is None:
            self._start(parameter)
        elif all(self._left.get(member, 0) == 0 for member in group.parameters):
            self._start_group(group)

    def _count(self, parameter) -> int:
        """One pass less; how many are left until the reduction."""
        left = self._left[parameter]
        if left <= 0:
            raise AssertionError(_TOO_MANY)
        self._left[parameter] = left - 1
        return left - 1

    def _start(self, parameter):
        self._fill_gradient(parameter)
        if parameter.grad is not None and parameter.grad.is_sparse:
            self._was_sparse.add(parameter)
        self._pending[parameter] = self._reduction.start(self._name(parameter), parameter)

    def _start_group(self, group):
        for parameter in group.parameters:
            self._fill_gradient(parameter)
        names = [self._name(parameter) for parameter in group.parameters]
        self._pending[group] = self._reduction.start_group(group.name, names, group.parameters)

    def _fill_gradient(self, parameter):
        """The other ranks may have a gradient where we have none: then ours counts as zeros."""
        if parameter.grad is not None:
            return
        parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        if parameter in self._was_sparse and not self._reduction.sparse_as_dense:
            parameter.grad = parameter.grad.to_sparse(1)

    def _name(self, parameter):
        if parameter not in self._names:
            self._names.update(name_parameters(self._param_groups, None, skip=self._names))
        return f"{self.prefix}.{self._names[parameter]}"
