"""DistributedOptimizer: any torch optimizer, with gradients reduced over the ranks.

Reductions start in backward() (reducer.py); step() waits for them, then lets the wrapped optimizer
do its step. For op=Adasum the order is the other way round: adasum.py. For op=Gossip parameters are
mixed after the step: gossip_optimizer.py.
"""

import warnings

import torch

from horon.errors import HoronInvalidArgument
from horon.gossip import Gossip
from horon.process_sets import global_process_set
from horon.specs import Average, Sum
from horon.torch.adasum import make_delta_optimizer
from horon.torch.compression import Compression
from horon.torch.gossip_optimizer import make_gossip_optimizer
from horon.torch.gradients import Reduction
from horon.torch.local_steps import refuse_unsteppable
from horon.torch.optimizer_base import WrappedOptimizer, check_passes
from horon.torch.reducer import GradientReducer
from horon.torch.reductions import allreduce_

_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
)


class _DistributedOptimizer(WrappedOptimizer):
    """Mixed into a subclass of the wrapped optimizer's class."""

    def step(self, closure=None):
        """closure: computes the gradients anew, as often as the optimizer likes (LBFGS); each time
        they are reduced before it goes on. LBFGS decides by the loss how to, so it gets the mean of
        the ranks' losses (with op=Sum their sum); others get their own."""
        if closure is not None and not self._horon_skip:
            result = super().step(self._synchronized(closure))
            self._forget_synchronizing()
            return result
        if not self._horon_skip and not self._horon_scaled:
            if self._horon_synchronized:
                warnings.warn(_TWICE, stacklevel=2)
            self._horon_synchronize()
        self._forget_synchronizing()
        return super().step() if closure is None else super().step(closure)

    step.hooked = True  # hooks of steps run in the wrapped optimizer's: torch adds them to no other

    def finish_gossip(self, average=False, timeout=None) -> bool:
        """For op=hvd.Gossip(...). Here nothing is under way between two steps, and what was equal
        on all ranks still is: True, so that a program need not know which op it was advised. Where
        each rank has gradients of its own (dissemination) there is no average: ValueError."""
        if average and self._horon_reducer.differs:
            raise ValueError("with this op each rank has parameters of its own: average them with "
                             "hvd.grouped_allreduce_(parameters, op=hvd.Average)")
        return True

    def close_gossip(self, timeout=None):
        """For op=hvd.Gossip(...). Here nothing is held."""

    def defer_local_steps(self, defer=True):
        """For op=Adasum on several ranks. Here no step is taken before step() anyway."""

    def _synchronized(self, closure):
        before = self._horon_reducer.pending  # a backward pass; the closure's come on top, if any
        if before:
            self._horon_synchronize()

        def reduced():
            self._forget_synchronizing()
            loss = closure()
            # Not again what was reduced before, or by the closure itself, to clip.
            if not (self._horon_synchronized or before and self._horon_reducer.untouched):
                self._horon_synchronize()
            return self._of_all(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return reduced

    def _of_all(self, loss):
        reducer = self._horon_reducer
        if not reducer.active:
            return loss
        total = torch.as_tensor(loss).detach().clone()
        return allreduce_(total, name="closure.loss", op=Sum if reducer.sums else Average,
                          process_set=reducer.process_set)


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set, gradient_as_bucket_view=False):
    """An optimizer of the same class that shares `optimizer`'s parameters, options and state, and
    reduces gradients with `op` before each step.

    named_parameters: model.named_parameters(); names make messages readable and match tensors.
    backward_passes_per_step: gradients of so many backward passes are summed before one reduction.
    gradient_predivide_factor: Average divides by it before the sum, and by the rest after.
    groups: a number of groups, or lists of parameters; a group is reduced as one.
    sparse_as_dense: reduces sparse gradients as dense tensors.
    gradient_as_bucket_view: gradients of CPU parameters lie in memory that the ranks of a node
    share and are reduced there (horon/torch/gradient_views.py). The ranks of the process set must
    then make the optimizer together. Refused with op=Adasum and op=hvd.Gossip(...), which reduce
    other things.

    With op=Adasum (or a spec of it) on several ranks, each rank's optimizer takes its own step, and
    what it changed is combined (horon/torch/adasum.py). Its state then differs from rank to rank.
    With op=hvd.Gossip(...) each rank takes its own step, and parameters or gradients are averaged
    among neighbors (horon/torch/gossip_optimizer.py, docs/gossip.md).
    """
    check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning,
                      stacklevel=2)
        groups = num_groups if groups is None else groups
    reduction = Reduction(op, compression, gradient_predivide_factor, sparse_as_dense, process_set)
    averages = not isinstance(op, Gossip) and reduction.spec.split(":")[0] != "adasum"
    if gradient_as_bucket_view and not averages:
        raise HoronInvalidArgument(f"gradient_as_bucket_view: {op!r} does not reduce gradients")
    if isinstance(op, Gossip):
        return make_gossip_optimizer(optimizer, reduction, named_parameters,
                                     backward_passes_per_step, groups)
    if not averages:
        refuse_unsteppable(optimizer)
    set_size = process_set.size() if process_set.included() else 1
    if not averages and set_size > 1:
        return make_delta_optimizer(optimizer, reduction, named_parameters,
                                    backward_passes_per_step, groups)
    reducer = GradientReducer(optimizer.param_groups, reduction, named_parameters,
                              backward_passes_per_step, groups, gradient_as_bucket_view)
    kind = type(optimizer)
    wrapped_kind = type(kind.__name__, (_DistributedOptimizer, kind), {"__module__": __name__})
    wrapped = _DistributedOptimizer.wrap(optimizer, wrapped_kind)
    wrapped._distribute(reducer)
    return wrapped
