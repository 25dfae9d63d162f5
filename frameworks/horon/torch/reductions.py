"""The allreduce family: every tensor comes back with the shape it had.

`op` is a constant (hvd.Average, hvd.Sum, ...), an op object (hvd.TopK(0.01)) or a spec string.
Signatures are Horovod's.
"""

import warnings

import torch

from horon.errors import HoronInvalidArgument
from horon.gossip import Gossip, rounds_differ
from horon.names import full_name
from horon.process_sets import global_process_set
from horon.specs import Average, Sum, reduction_of, spec_of
from horon.torch import autograd
from horon.torch.calls import GroupCall, Handle, group_names, reduce_call, set_id, synchronize
from horon.torch.compression import Compression, compress_all
from horon.torch.exchanges import allgather_async
from horon.torch.repeats import remember, repeated


_GO_ON = ("dissemination", "topk")  # ops for which one call of a tensor is like no other


def reduction_spec(op, average=None) -> str:
    """The op's spec; `average` is Horovod's older way to choose."""
    if isinstance(op, Gossip):
        op.check_call()
    if average is None:
        return reduction_of(Average if op is None else op)
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning,
                  stacklevel=3)
    return spec_of(Average if average else Sum)


def _name(kind, name, spec, process_set) -> str:
    if name is None and (spec.partition(":")[0] in _GO_ON
                         or spec.startswith("gossip") and rounds_differ(spec, process_set.size())):
        raise HoronInvalidArgument(
            f"op '{spec}' goes on where its last call with this tensor ended: "
            "give the tensor a name"
        )
    return full_name(kind, name, set_id(process_set))


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """Reduces the tensor over all ranks of the set; the result is new, the same everywhere.
    Blocking, differentiable."""
    spec = reduction_spec(op, average)
    name = _name("allreduce", name, spec, process_set)
    (sent,), (memo,) = compress_all([tensor], compression)
    if autograd.wanted(sent):
        result = autograd.Allreduce.apply(
            sent, name, spec, prescale_factor, postscale_factor, process_set
        )
    else:
        result = reduce_call(name, spec, sent, process_set, prescale_factor, postscale_factor).run()
    return compression.decompress(result, memo)


def _single(tensor, average, name, op, prescale, postscale, process_set, in_place):
    spec = reduction_spec(op, average)
    name = _name("allreduce", name, spec, process_set)
    return reduce_call(name, spec, tensor, process_set, prescale, postscale, in_place)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                    postscale_factor=1.0, process_set=global_process_set) -> Handle:
    """allreduce without waiting; synchronize(handle) gives the new tensor."""
    return _single(tensor, average, name, op, prescale_factor, postscale_factor, process_set,
                   False).start()


@repeated(blocking=True)
def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
               process_set=global_process_set):
    """allreduce in place; blocking."""
    call = _single(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True)
    return remember(allreduce_, name, call, tensor, process_set).run()


@repeated(blocking=False)
def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                     postscale_factor=1.0, process_set=global_process_set) -> Handle:
    """allreduce in place, without waiting: leave the tensor alone until synchronize(handle)."""
    call = _single(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True)
    return remember(allreduce_async_, name, call, tensor, process_set).start()


def _group(tensors, average, name, op, prescale, postscale, process_set, in_place) -> GroupCall:
    spec = reduction_spec(op, average)
    tensors = list(tensors)
    name = _name("grouped_allreduce", name, spec, process_set)
    calls = [
        reduce_call(member, spec, tensor, process_set, prescale, postscale, in_place)
        for member, tensor in zip(group_names(name, len(tensors)), tensors)
    ]
    return GroupCall(calls, name)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """allreduce of a list as one: all succeed, or all fail. Blocking, differentiable."""
    sent, memos = compress_all(tensors, compression)
    if sent and autograd.wanted(*sent):
        spec = reduction_spec(op, average)
        name = _name("grouped_allreduce", name, spec, process_set)
        results = autograd.GroupedAllreduce.apply(
            name, spec, prescale_factor, postscale_factor, process_set, *sent
        )
    else:
        results = _group(sent, average, name, op, prescale_factor, postscale_factor, process_set,
                         False).run()
    return [compression.decompress(result, memo) for result, memo in zip(results, memos)]


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                            postscale_factor=1.0, process_set=global_process_set) -> Handle:
    return _group(tensors, average, name, op, prescale_factor, postscale_factor, process_set,
                  False).start()


@repeated(blocking=True)
def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                       postscale_factor=1.0, process_set=global_process_set):
    call = _group(tensors, average, name, op, prescale_factor, postscale_factor, process_set, True)
    return remember(grouped_allreduce_, name, call, tensors, process_set).run()


@repeated(blocking=False)
def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                             postscale_factor=1.0, process_set=global_process_set) -> Handle:
    call = _group(tensors, average, name, op, prescale_factor, postscale_factor, process_set, True)
    return remember(grouped_allreduce_async_, name, call, tensors, process_set).start()


def sparse_allreduce_async(tensor, name, op=Average, process_set=global_process_set):
    """Gathers the indices and values of all ranks. Returns a function that waits and gives the
    reduced sparse tensor: entries at equal indices are added, and divided by the number of ranks
    for Average. Those are the ops that it has."""
    spec = spec_of(op)
    if spec not in (Average.spec, Sum.spec):
        raise HoronInvalidArgument(
            f"tensor '{name}' is sparse, whose entries can be added or averaged (op=hvd.Sum, "
            f"hvd.Average), not '{spec}': reduce its to_dense(), in DistributedOptimizer by "
            "sparse_as_dense=True"
        )
    indices = tensor._indices().t().contiguous()  # one row an entry
    # First what may be refused for its type: so nothing is left pending.
    values_handle = allgather_async(tensor._values(), f"{name}.values", process_set)
    indices_handle = allgather_async(indices, f"{name}.indices", process_set)

    def finish():
        values = synchronize(values_handle)
        indices = synchronize(indices_handle)
        if spec == Average.spec:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.size(), check_invariants=False)

    return finish
