"""DistributedOptimizer: any torch optimizer, with gradients reduced over the ranks.

Reductions start in backward() (reducer.py); step() waits for them, then lets the wrapped optimizer
do its step.
"""

import warnings
from contextlib import contextmanager

from horon.process_sets import global_process_set
from horon.specs import Average
from horon.torch.compression import Compression
from horon.torch.gradients import Reduction
from horon.torch.reducer import GradientReducer

_ZEROED = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)
_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
)


class _DistributedOptimizer:
    """Mixed into a subclass of the wrapped optimizer's class."""

    def _distribute(self, reducer):
        self._horon_reducer = reducer
        self._horon_synchronized = False
        self._horon_skip = False

    def synchronize(self):
        """Waits until every gradient is reduced; those without one count as zeros."""
        self._horon_reducer.synchronize()
        self._horon_synchronized = True

    @contextmanager
    def skip_synchronize(self):
        """step() inside does not synchronize: after synchronize(), for clipping gradients."""
        self._horon_skip = True
        try:
            yield
        finally:
            self._horon_skip = False

    def step(self, closure=None):
        if not self._horon_skip:
            if self._horon_synchronized:
                warnings.warn(_TWICE, stacklevel=2)
            self.synchronize()
        self._horon_synchronized = False
        return super().step() if closure is None else super().step(closure)

    def zero_grad(self, *args, **kwargs):
        if self._horon_reducer.pending:
            raise AssertionError(_ZEROED)
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        self._horon_reducer.reset()
        self._horon_synchronized = False
        return super().load_state_dict(*args, **kwargs)

    def set_backward_passes_per_step(self, passes):
        _check_passes(passes)
        self._horon_reducer.set_passes(passes)


def _check_passes(passes):
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set):
    """An optimizer of the same class that shares `optimizer`'s parameters, options and state, and
    reduces gradients with `op` before each step.

    named_parameters: model.named_parameters(); names make messages readable and match tensors.
    backward_passes_per_step: gradients of so many backward passes are summed before one reduction.
    gradient_predivide_factor: Average divides by it before the sum, and by the rest after.
    groups: a number of groups, or lists of parameters; a group is reduced as one.
    sparse_as_dense: reduces sparse gradients as dense tensors.
    """
    _check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning,
                      stacklevel=2)
        groups = num_groups if groups is None else groups
    reduction = Reduction(op, compression, gradient_predivide_factor, sparse_as_dense, process_set)
    reducer = GradientReducer(optimizer.param_groups, reduction, named_parameters,
                              backward_passes_per_step, groups)
    kind = type(optimizer)
    wrapped_kind = type(kind.__name__, (_DistributedOptimizer, kind), {"__module__": __name__})
    wrapped = wrapped_kind.__new__(wrapped_kind)
    wrapped.__dict__.update(optimizer.__dict__)
    # A scheduler made before now has put a `step` bound to the bare optimizer into its __dict__.
    wrapped.__dict__.pop("step", None)
    wrapped._distribute(reducer)
    return wrapped
