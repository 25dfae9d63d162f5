"""Groups of gradients that are reduced as one (DistributedOptimizer's `groups`)."""

import torch

from horon.torch.functions import broadcast_object


class Group:
    """Some parameters; its name is the same on all ranks."""

    def __init__(self, name, parameters):
        self.name = name
        self.parameters = parameters


def make_groups(groups, names, process_set, active) -> dict:
    """{parameter: its Group} for those in groups. `names` is {parameter: name}."""
    if not groups:
        _check(groups)
        return {}
    _check(groups)
    if not active:
        return {}
    if isinstance(groups, int):
        lists = _equal_parts(_in_first_ranks_order(names, process_set), groups)
    else:
        lists = [[p for p in group if p.requires_grad] for group in groups]
    # Another optimizer's groups have other names: the ranks take those of one name for one group.
    whose = min(names.values(), default="")
    made = [Group(f"gradients.{whose}.{i}", members) for i, members in enumerate(lists) if members]
    group_of = {}
    for group in made:
        for parameter in group.parameters:
            if parameter not in names or parameter in group_of:
                raise ValueError(
                    f"groups: parameter '{names.get(parameter, id(parameter))}' "
                    "is not one of the optimizer's, or is in two groups"
                )
            group_of[parameter] = group
    return group_of


def _check(groups) -> None:
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return
    if isinstance(groups, list) and all(
        isinstance(group, (list, tuple)) and all(isinstance(p, torch.Tensor) for p in group)
        for group in groups
    ):
        return
    raise ValueError("groups should be a non-negative integer or a list of lists of parameters")


def _in_first_ranks_order(names, process_set):
    by_name = {name: parameter for parameter, name in names.items() if parameter.requires_grad}
    order = broadcast_object(
        list(by_name), process_set.ranks[0], "gradient_groups", process_set
    )
    missing = sorted(set(order) ^ set(by_name))
    if missing:
        raise ValueError(f"groups: the ranks have different parameters: {missing}")
    return [by_name[name] for name in order]


def _equal_parts(parameters, count):
    count = min(count, len(parameters))
    least, longer = divmod(len(parameters), count) if count else (0, 0)
    parts, start = [], 0
    for i in range(count):
        end = start + least + (i < longer)
        parts.append(parameters[start:end])
        start = end
    return parts
