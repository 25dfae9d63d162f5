"""What the optimizers of horon.torch have in common: the wrapping, and when things must not happen.

optimizer.py reduces gradients before the wrapped optimizer's step; adasum.py lets it take its step
first, and combines the differences.
"""

import inspect
from contextlib import contextmanager

from horon.errors import HoronInvalidArgument

_ZEROED = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)


class NoReduction:
    """In a reducer's place where gradients stay local."""

    pending = False

    def synchronize(self):
        pass

    def reset(self):
        pass

    def set_passes(self, passes):
        pass

    def agree_on_overflow(self):
        pass

    def follow(self, optimizer):
        pass


class WrappedOptimizer:
    """Mixed into a subclass of the wrapped optimizer's class."""

    _horon_scaled = False  # synchronized because a GradScaler is about to look at the gradients

    @property
    def _step_supports_amp_scaling(self):
        """GradScaler.step() asks for this before it looks at the gradients: they must be reduced by
        then. If it asks again without a step since, it has found infinite ones and taken none."""
        if not self._horon_skip and (self._horon_scaled or not self._horon_synchronized):
            self.synchronize()
            self._horon_scaled = True
        return self.__dict__.get("_step_supports_amp_scaling", False)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports):
        self.__dict__["_step_supports_amp_scaling"] = supports

    @staticmethod
    def wrap(optimizer, kind):
        """An optimizer of `kind` that shares the parameters, options and state of `optimizer`."""
        wrapped = kind.__new__(kind)
        wrapped.__dict__.update(optimizer.__dict__)
        # A scheduler made before now has put a `step` of the bare optimizer into its __dict__.
        wrapped.__dict__.pop("step", None)
        return wrapped

    def _distribute(self, reducer):
        reducer.follow(self)
        self._horon_reducer = reducer
        self._horon_synchronized = False
        self._horon_skip = False

    def synchronize(self):
        """Waits until everything that step() needs of the other ranks is there. On all ranks alike:
        where each has gradients of its own (gossip, dissemination) they tell each other of an
        overflow, since a GradScaler may come next, and all have it then."""
        self._horon_synchronize()
        self._horon_reducer.agree_on_overflow()

    def _horon_synchronize(self):
        self._horon_reducer.synchronize()
        self._horon_synchronized = True

    def _forget_synchronizing(self):
        self._horon_synchronized = self._horon_scaled = False

    @contextmanager
    def skip_synchronize(self):
        """step() inside does not synchronize: after synchronize(), for clipping gradients."""
        self._horon_skip = True
        try:
            yield
        finally:
            self._horon_skip = False

    def zero_grad(self, *args, **kwargs):
        if self._horon_reducer.pending:
            raise AssertionError(_ZEROED)
        if self._horon_scaled:  # a scaler found infinite gradients and took no step
            self._forget_synchronizing()
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        self._horon_reducer.reset()
        self._forget_synchronizing()
        return super().load_state_dict(*args, **kwargs)

    # --- of optimizers whose step a GradScaler leaves to them: _step_supports_amp_scaling is True

    def _take_scaler(self) -> dict:
        """What GradScaler left here for the step."""
        names = [name for name in ("grad_scale", "found_inf") if name in self.__dict__]
        return {name: self.__dict__.pop(name) for name in names}

    def _step_locally(self, scaler):
        """An overflow of this rank skips its own step only."""
        try:
            if scaler.get("found_inf") is not None and float(scaler["found_inf"]) > 0:
                return
            scale = scaler.get("grad_scale")
            for group in self.param_groups if scale is not None else ():
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale.to(parameter.grad.device))
            self._step_wrapped()
        finally:
            self.__dict__.update(scaler)

    def _step_wrapped(self, **closure):
        return super().step(**closure)

    def set_backward_passes_per_step(self, passes):
        check_passes(passes)
        self._horon_reducer.set_passes(passes)


def needs_closure(optimizer) -> bool:
    """Whether its step computes the gradients itself, as often as it likes (LBFGS)."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def refuse_closure_steps(optimizer, what: str, instead: str) -> None:
    """what: works with the gradients of one backward pass before the step."""
    if needs_closure(optimizer):
        name = type(optimizer).__name__
        raise HoronInvalidArgument(
            f"{name}.step() computes gradients as often as it likes, and {what} works with those "
            f"that are there before the step: use {instead} or op=hvd.Average with {name}, or "
            "another optimizer")


def check_passes(passes):
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
