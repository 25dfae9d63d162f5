"""An optimizer's parameters: their names, by which the ranks match gradients, and their hooks."""

import weakref
from collections import Counter

from horon.errors import HoronUnsupported
from horon.runtime import when_left
from horon.torch.calls import set_id


def refuse_sharded(param_groups) -> None:
    """fully_shard and tensor parallelism reduce the gradients of their own parameters."""
    if any(hasattr(p, "device_mesh") for group in param_groups for p in group["params"]):
        raise HoronUnsupported(
            "a parameter is a DTensor (fully_shard or tensor parallelism), whose gradients "
            "torch.distributed reduces itself; use the optimizer as it is, and let those "
            "collectives run over Horon: import horon.torch.distributed, then "
            "init_process_group('horon', init_method='horon://')"
        )


def remove_with(optimizer, handles: list) -> None:
    """Hooks, those too that come into the list later, go when the optimizer does."""
    weakref.finalize(optimizer, _remove, handles).atexit = False


def _remove(handles):
    for handle in handles:
        handle.remove()


def least_name(param_groups, names) -> str:
    """Of those that are trained here: names may have been given of a whole model."""
    trained = (p for group in param_groups for p in group["params"])
    return min((names[p] for p in trained if p in names), default="")


_made = {}  # (kind of rounds, process set, name): how many optimizers were made that have it
when_left(_made.clear)


def names_of_its_own(kind, names, param_groups, process_set) -> dict:
    """For an optimizer that mixes in rounds, which the runtime counts by names: these, with a
    number where one was made before that has some of them, as two models of one class have. All
    ranks of the set make their optimizers in the same order."""
    trained = (p for group in param_groups for p in group["params"])
    keys = [(kind, set_id(process_set), names[p]) for p in trained if p in names]
    number = 1 + max((_made.get(key, 0) for key in keys), default=0)
    _made.update(dict.fromkeys(keys, number))
    if number == 1:
        return names
    return {parameter: f"{name} of optimizer {number}" for parameter, name in names.items()}


def name_added(param_groups, names) -> dict:
    """{parameter: name} for those that were added since `names` were given; an optimizer's own, for
    those of the others may have added as many."""
    beside = least_name(param_groups, names)
    added = name_parameters(param_groups, None, skip=names)
    return {parameter: f"{name} beside {beside}" for parameter, name in added.items()}


def name_parameters(param_groups, named_parameters, skip=()) -> dict:
    """{parameter: name}. Without names: noname.<group>.<index>, for those not in `skip`."""
    if named_parameters is None:
        return {
            parameter: f"noname.{g}.{i}"
            for g, group in enumerate(param_groups)
            for i, parameter in enumerate(group["params"])
            if parameter not in skip
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(sorted(repeated))
        )
    names = {parameter: name for name, parameter in pairs}
    missing = [
        id(parameter)
        for group in param_groups
        for parameter in group["params"]
        if parameter not in names
    ]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            "Python object ids: " + ", ".join(map(str, missing))
        )
    return names
