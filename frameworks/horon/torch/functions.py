"""Getting all ranks to the same start: parameters, optimizer state, any Python object."""

import collections.abc
import ctypes
import io

import torch

from horon.errors import HoronInvalidArgument
from horon.names import full_name
from horon.process_sets import global_process_set
from horon.runtime import rank
from horon.torch.calls import rows_call, set_id, wait_all
from horon.torch.exchanges import broadcast_, broadcast_async_
from horon.torch.gossip_state import of_all_ranks
from horon.torch.optimizer_base import WrappedOptimizer


def broadcast_parameters(params, root_rank, process_set=global_process_set) -> None:
    """Overwrites the parameters with root_rank's, on every rank of the set. `params`:
    model.state_dict(), model.named_parameters(), or any (name, tensor) pairs; None values are
    passed over."""
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, collections.abc.Iterable):
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise HoronInvalidArgument(f"invalid params of type: {type(params)}")
    handles = []
    for name, tensor in pairs:
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise HoronInvalidArgument(f"invalid params: '{name}' is a {type(tensor)}, no tensor")
        handles.append(broadcast_async_(tensor, root_rank, name, process_set))
    wait_all(handles)


class _TensorPlace:
    """Stands for a tensor in the skeleton of an optimizer's state."""

    def __init__(self, tensor):
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type


def _map_leaves(tree, function):
    if isinstance(tree, dict):
        return {key: _map_leaves(value, function) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_map_leaves(value, function) for value in tree)
    return function(tree)


def broadcast_optimizer_state(optimizer, root_rank, model=None,
                              process_set=global_process_set) -> None:
    """Gives the optimizer root_rank's state and options (learning rate, ...), on every rank of the
    set. No step is taken: the other ranks take over the root's tensors, whatever they had, with the
    root's types. Their groups stay the same dictionaries, so that a scheduler made before goes on
    with them. Of gossip all have the root's rounds; push-sum weights become 1, on the root as well,
    and what gt, exact_diffusion and push_diging remember begins anew, so broadcast the parameters,
    too. Blocks."""
    is_root = rank() == root_rank
    tensors = []

    def leave_place(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return _TensorPlace(leaf)

    own = optimizer.state_dict() if is_root else {}
    if "horon_gossip" in own:
        own["horon_gossip"] = of_all_ranks(own["horon_gossip"])
    skeleton = _map_leaves(own, leave_place) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state", process_set)
    if not is_root:
        device = _device_of(optimizer)

        def fill_place(leaf):
            if not isinstance(leaf, _TensorPlace):
                return leaf
            where = device if leaf.device != "cpu" else torch.device("cpu")
            tensors.append(torch.empty(leaf.shape, dtype=leaf.dtype, device=where))
            return tensors[-1]

        state = _map_leaves(skeleton, fill_place)
    wait_all([
        broadcast_async_(tensor, root_rank, f"optimizer_state.{i}", process_set)
        for i, tensor in enumerate(tensors)
    ])
    if not is_root:
        _take_over(optimizer, state)
    elif "horon_gossip" in own:  # the others load it, which is for all ranks
        optimizer._load_gossip(own["horon_gossip"])


def _take_over(optimizer, state) -> None:
    """What load_state_dict() does, but that it casts tensors, and replaces groups, of which others
    may know."""
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    if (not _loads_as_usual(optimizer) or set(state) != {"state", "param_groups"}
            or [len(group["params"]) for group in state["param_groups"]] != sizes):
        optimizer.load_state_dict(state)  # in a way of its own; or says what does not fit
        return
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = dict(zip(numbers, (p for group in groups for p in group["params"])))
    optimizer.state.clear()
    for key, value in state["state"].items():
        parameter = parameters.get(key, key)
        optimizer.state[parameter] = _map_leaves(value, lambda leaf, p=parameter: (
            leaf.to(p.device) if isinstance(leaf, torch.Tensor) and leaf.is_cuda else leaf))
    for group, new in zip(groups, state["param_groups"]):
        group.update((key, value) for key, value in new.items() if key != "params")


def _loads_as_usual(optimizer) -> bool:
    own = next(kind for kind in type(optimizer).__mro__
               if "load_state_dict" in vars(kind) and not issubclass(kind, WrappedOptimizer))
    hooks = (getattr(optimizer, f"_optimizer_load_state_dict_{when}_hooks", None)
             for when in ("pre", "post"))
    return own is torch.optim.Optimizer and not any(hooks)


def _device_of(optimizer):
    return next(
        (p.device for group in optimizer.param_groups for p in group["params"]),
        torch.device("cpu"),
    )


def _pickle(obj) -> torch.Tensor:
    import cloudpickle

    pickled = io.BytesIO()
    cloudpickle.dump(obj, pickled)
    return torch.frombuffer(bytearray(pickled.getbuffer()), dtype=torch.uint8)


def _unpickle(pickled: torch.Tensor):
    import cloudpickle

    # Not by numpy, which PyTorch does not bring.
    return cloudpickle.loads(ctypes.string_at(pickled.data_ptr(), pickled.numel()))


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """root_rank's object (anything cloudpickle takes) on every rank of the set. Blocking."""
    name = full_name("broadcast_object", name, set_id(process_set))
    length = torch.zeros(1, dtype=torch.int64)
    is_root = rank() == root_rank
    if is_root:
        pickled = _pickle(obj)
        length[0] = pickled.numel()
    broadcast_(length, root_rank, f"{name}.size", process_set)
    if not is_root:
        pickled = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(pickled, root_rank, f"{name}.object", process_set)
    return obj if is_root else _unpickle(pickled)


def allgather_object(obj, name=None, process_set=global_process_set) -> list:
    """Everybody's object, by rank of the set; None for a rank that has joined. Blocking."""
    name = full_name("allgather_object", name, set_id(process_set))
    call = rows_call(name, "allgather", _pickle(obj), process_set, finish=lambda *both: both)
    output, lengths = call.run()
    return [_unpickle(part) if len(part) else None for part in output.split(list(lengths))]
