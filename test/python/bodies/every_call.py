"""Every public collective as a call of one tensor, for checks that hold for all of them."""

import torch

import horon.torch as hvd

CALLS = {
    "allreduce": lambda t: hvd.allreduce(t, op=hvd.Sum),
    "allreduce_": lambda t: hvd.allreduce_(t, op=hvd.Sum),
    "allreduce_async": lambda t: hvd.allreduce_async(t, op=hvd.Sum),
    "allreduce_async_": lambda t: hvd.allreduce_async_(t, op=hvd.Sum),
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum),
    "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([t, t], op=hvd.Sum),
    "grouped_allreduce_async": lambda t: hvd.grouped_allreduce_async([t, t], op=hvd.Sum),
    "grouped_allreduce_async_": lambda t: hvd.grouped_allreduce_async_([t, t], op=hvd.Sum),
    "sparse_allreduce_async": lambda t: hvd.sparse_allreduce_async(sparse(t), "sparse", hvd.Sum),
    "allgather": lambda t: hvd.allgather(t),
    "allgather_async": lambda t: hvd.allgather_async(t),
    "grouped_allgather": lambda t: hvd.grouped_allgather([t, t]),
    "grouped_allgather_async": lambda t: hvd.grouped_allgather_async([t, t]),
    "broadcast": lambda t: hvd.broadcast(t, 0),
    "broadcast_": lambda t: hvd.broadcast_(t, 0),
    "broadcast_async": lambda t: hvd.broadcast_async(t, 0),
    "broadcast_async_": lambda t: hvd.broadcast_async_(t, 0),
    "alltoall": lambda t: hvd.alltoall(t),
    "alltoall_async": lambda t: hvd.alltoall_async(t),
    "reducescatter": lambda t: hvd.reducescatter(t, op=hvd.Sum),
    "reducescatter_async": lambda t: hvd.reducescatter_async(t, op=hvd.Sum),
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t, t], op=hvd.Sum),
    "grouped_reducescatter_async": lambda t: hvd.grouped_reducescatter_async([t, t], op=hvd.Sum),
    "gossip_average": lambda t: hvd.gossip_average(t),
    "gossip_average_async": lambda t: hvd.gossip_average_async(t),
    "neighbor_allreduce": lambda t: hvd.neighbor_allreduce(t, name="t"),
    "neighbor_allreduce_async": lambda t: hvd.neighbor_allreduce_async(t, name="t"),
    "neighbor_allgather": lambda t: hvd.neighbor_allgather(t),
    "neighbor_allgather_async": lambda t: hvd.neighbor_allgather_async(t),
    "pair_average": lambda t: hvd.pair_average(t, 0),
    "pair_average_async": lambda t: hvd.pair_average_async(t, 0),
    "push_sum": lambda t: hvd.push_sum(t),
    "push_sum_async": lambda t: hvd.push_sum_async(t),
    "Window": lambda t: hvd.Window(t, "window"),
    "broadcast_parameters": lambda t: hvd.broadcast_parameters({"t": t}, 0),
}
WITHOUT_TENSOR = {
    "barrier": hvd.barrier,
    "broadcast_object": lambda: hvd.broadcast_object(1, 0),
    "allgather_object": lambda: hvd.allgather_object(1),
    "join": hvd.join,
    "add_process_set": lambda: hvd.add_process_set([0]),
}


def sparse(tensor):
    return tensor.unsqueeze(1).to_sparse(1) if not tensor.is_sparse else tensor


def forgotten():
    """Public functions that move tensors and are not above."""
    modules = {f"horon.torch.{name}" for name in ("exchanges", "reductions", "gossip")}
    public = {name for name in dir(hvd) if not name.startswith("_")
              and getattr(getattr(hvd, name), "__module__", "") in modules
              and not isinstance(getattr(hvd, name), type)}
    return public - set(CALLS) - set(WITHOUT_TENSOR)


assert not forgotten(), forgotten()


def each(tensor=None):
    """(name, call) of every collective, with a tensor of its own; without one, those too that take
    none."""
    given = torch.ones(4) if tensor is None else tensor
    calls = [(name, lambda call=call: call(given.clone())) for name, call in CALLS.items()]
    return calls if tensor is not None else calls + list(WITHOUT_TENSOR.items())
