"""LocalSteps: an optimizer's step on one parameter after the other, for those who take it while
backward goes on.

Each is taken by a copy of the optimizer whose only group holds only that parameter. The parameter's
own state is shared. What a step writes elsewhere, a count in its group or an attribute of the
optimizer, is kept apart until commit(), which writes it once, as one step on all parameters would
have. That is right as long as every parameter's step writes the same; an optimizer that computes
something from all its parameters together is refused.
"""

import copy
import math
from dataclasses import dataclass

import torch

from horon.errors import HoronInvalidArgument
from horon.torch.optimizer_base import needs_closure


@dataclass(frozen=True)
class Asked:
    """Who takes the steps, what became of them when commit() refuses, what to do then, and what is
    put around an optimizer."""

    by: str
    outcome: str
    instead: str
    wrapper: str


ADASUM = Asked("op=Adasum", "Nothing was applied", "use op=hvd.Average with it",
               "hvd.DistributedOptimizer")
_TAKES = "{asked.by} takes the step of each parameter alone, and "
_DIFFERENT = _TAKES + (
    "{0}.step() has written different values to {1} for '{2}' and '{3}': it computes something "
    "from all its parameters together. {asked.outcome}; {asked.instead}"
)
_IN_PLACE = _TAKES + (
    "{0}.step() changes {1} in place, which one step on all parameters would do once. "
    "{asked.outcome}; {asked.instead}"
)
_OTHERS = _TAKES + (
    "{0}.step() on another one changed '{1}', too. Its parameters are not as they were; "
    "{asked.instead}"
)
_INNER = _TAKES + (
    "{0} has another optimizer, {1}, that would step all of them: wrap that one, "
    "{0}({asked.wrapper}({2}(...), ...), ...), or {asked.instead}"
)
_CLOSURE = _TAKES + (
    "{0}.step() cannot do without a closure for all of them: {asked.instead}"
)

# Attributes that the copy does not have, or has empty: they run in the wrapped optimizer's step.
_OF_THE_WHOLE_STEP = ("step", "grad_scale", "found_inf")
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class LocalSteps:
    """names: of parameters, for messages."""

    def __init__(self, optimizer, kind, names, asked=ADASUM):
        self._asked = asked
        self._optimizer = optimizer
        self._kind = kind
        self._names = names
        self._group_of = {}
        self._written = {}  # (index of group, or None: the optimizer): (parameter, {name: value})
        self._trusted = False  # no step has changed another parameter than its own
        self._refusal = None
        self._states = 0  # entries of state when it was last looked at
        self._starts = {}  # (device, dtype): memory for one parameter's value

    def take(self, parameter, delta) -> None:
        """What the optimizer's step makes of the parameter, less what it was before, into delta.
        The parameter stays as it is."""
        start = self._copy(parameter)
        self.step(parameter)
        torch.sub(parameter, start, out=delta)
        parameter.copy_(start)

    def step(self, parameter) -> None:
        """The optimizer's step on this parameter, which it changes; none on one that it has not."""
        index = self._index(parameter)
        if index is None:
            return
        others = [] if self._trusted else [(p, p._version) for p in self._beside(parameter)]
        self._step(parameter, index)
        for other, version in others:  # in the first round
            if other._version != version:
                self._refuse(_OTHERS, self._name(other))

    def _beside(self, parameter):
        """Those that nobody else may change meanwhile: autograd has a thread for each device."""
        return [p for group in self._groups for p in group["params"]
                if p is not parameter and p.device == parameter.device]

    def commit(self) -> None:
        """Writes what the steps since the last call wrote beside their parameters, or raises."""
        self._check_state()
        refusal, written = self._refusal, self._written
        self.drop()
        if refusal is not None:
            raise HoronInvalidArgument(refusal)
        self._trusted = bool(written)
        for place, (_, values) in written.items():
            target = vars(self._optimizer) if place is None else self._groups[place]
            for name, value in values.items():
                _write(target, name, value)

    def drop(self) -> None:
        """Forgets what steps since the last commit() wrote."""
        self._refusal = None
        self._written = {}

    @property
    def _groups(self) -> list:
        return self._optimizer.param_groups

    def _step(self, parameter, index):
        # An optimizer of its own, so that nothing that others look at changes while hooks run.
        group = {name: _isolated(value) for name, value in self._groups[index].items()
                 if name != "params"}
        single = object.__new__(self._kind)
        single.__dict__.update(vars(self._optimizer))
        for name in _OF_THE_WHOLE_STEP:
            single.__dict__.pop(name, None)
        single.__dict__.update({name: {} for name in _HOOKS})
        single.param_groups = [{**group, "params": [parameter]}]
        before = {name: (value, _mark(value)) for name, value in vars(single).items()}
        _unhooked(self._kind.step)(single)
        self._note(index, parameter, _changes(self._groups[index], single.param_groups[0]))
        self._note(None, parameter, self._attributes(before, vars(single)))

    def _index(self, parameter):
        """Of its group, or None."""
        groups = self._groups
        known = self._group_of.get(parameter)
        if known is None or known >= len(groups):
            for index, group in enumerate(groups):
                self._group_of.update((member, index) for member in group["params"])
            known = self._group_of.get(parameter)
        return known

    def _copy(self, parameter):
        """Of its value, in memory that is kept for the largest one of its kind."""
        if not parameter.is_contiguous():
            return parameter.detach().clone()
        kind = (parameter.device, parameter.dtype)
        memory = self._starts.get(kind)
        if memory is None or memory.numel() < parameter.numel():
            memory = self._starts[kind] = torch.empty(parameter.numel(), device=kind[0],
                                                      dtype=kind[1])
        return memory[:parameter.numel()].view(parameter.shape).copy_(parameter)

    # --- what the steps did beside

    def _attributes(self, before, after) -> dict:
        """What the step assigned to attributes. Those changed in place are refused."""
        changes = {}
        for name, value in after.items():
            old, mark = before.get(name, (_NOTHING, None))
            if old is not value and name != "param_groups":
                changes[name] = value
            elif mark is not None and not _same(mark, _mark(value)):
                self._refuse(_IN_PLACE, f"its attribute '{name}'")
        return changes

    def _note(self, place, parameter, changes):
        first, known = self._written.setdefault(place, (parameter, changes))
        if known is changes:
            return
        for name in (*known, *changes):
            if not _same(known.get(name, _NOTHING), changes.get(name, _NOTHING)):
                what = f"its attribute '{name}'" if place is None else f"'{name}' of a group"
                self._refuse(_DIFFERENT, what, self._name(first), self._name(parameter))
                return

    def _check_state(self):
        state = self._optimizer.state
        if len(state) == self._states:
            return
        self._states = len(state)
        other = next((key for key in state if not isinstance(key, torch.Tensor)), None)
        if other is not None:
            self._states = 0  # to be refused again
            self._refuse(_IN_PLACE, f"its state '{other}', which is no parameter's,")

    def _refuse(self, sentence, *words):
        """The first refusal is what commit() raises: hooks of backward() cannot well."""
        if self._refusal is None:
            self._refusal = sentence.format(self._kind.__name__, *words, asked=self._asked)

    def _name(self, parameter) -> str:
        return self._names.get(parameter, "?")


class _Nothing:
    """In place of a value that is not there."""

    def __repr__(self):
        return "nothing"


_NOTHING = _Nothing()


def _isolated(value):
    """One that can be changed in place without the original noticing."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if type(value) in (list, dict, set) else value


def _mark(value):
    """Tells later whether it was changed in place; None: it cannot be, or is not looked at."""
    if isinstance(value, torch.Tensor):
        return value._version
    return copy.copy(value) if type(value) in (list, dict, set) else None


def _changes(group, after) -> dict:
    return {name: value for name, value in after.items()
            if name != "params" and not _same(value, group.get(name, _NOTHING))}


def _same(one, other) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
                and one.shape == other.shape and torch.equal(one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    try:
        return type(one) is type(other) and bool(one == other)
    except RuntimeError:  # tensors inside
        return False


def _write(target, name, value):
    old = target.get(name)
    if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) \
            and old.shape == value.shape:
        with torch.no_grad():
            old.copy_(value)  # who holds it, as schedulers hold a learning rate, sees it
    else:
        target[name] = value


def _unhooked(step):
    """Without the hooks of all optimizers, which run in the wrapped optimizer's step, once."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def refuse_unsteppable(optimizer, asked=ADASUM) -> None:
    """Those of which it is known beforehand that no step can be taken on one parameter alone."""
    name = type(optimizer).__name__
    if needs_closure(optimizer):
        raise HoronInvalidArgument(_CLOSURE.format(name, asked=asked))
    for attribute, value in vars(optimizer).items():
        members = value.values() if isinstance(value, dict) else value
        for inner in members if isinstance(value, (list, tuple, dict)) else [value]:
            if hasattr(inner, "param_groups") and callable(getattr(inner, "step", None)):
                raise HoronInvalidArgument(_INNER.format(
                    name, f"'{attribute}'", type(inner).__name__, asked=asked))
