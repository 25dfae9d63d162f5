"""Collectives that move tensors without adding them up: allgather, broadcast, alltoall,
reducescatter (which does add) and barrier. Signatures are Horovod's."""

import torch

from horon.errors import HoronInvalidArgument
from horon.names import full_name
from horon.process_sets import global_process_set
from horon.specs import Average, spec_of
from horon.torch import autograd
from horon.torch.calls import (
    GroupCall,
    Handle,
    barrier_call,
    broadcast_call,
    group_names,
    rows_call,
    set_id,
)
from horon.torch.compression import Compression, compress_all
from horon.torch.tensors import whole_number


def allgather(tensor, name=None, process_set=global_process_set):
    """All ranks' tensors, one below the other by rank; their first dimensions may differ.
    Blocking, differentiable."""
    name = full_name("allgather", name, set_id(process_set))
    if autograd.wanted(tensor):
        return autograd.Allgather.apply(tensor, name, process_set)
    return rows_call(name, "allgather", tensor, process_set).run()


def allgather_async(tensor, name=None, process_set=global_process_set) -> Handle:
    name = full_name("allgather", name, set_id(process_set))
    return rows_call(name, "allgather", tensor, process_set).start()


def _group_of_rows(kind, spec, tensors, name, process_set, prescale=1.0, postscale=1.0):
    tensors = list(tensors)
    name = full_name(kind, name, set_id(process_set))
    calls = [
        rows_call(member, spec, tensor, process_set, None, prescale, postscale)
        for member, tensor in zip(group_names(name, len(tensors)), tensors)
    ]
    return GroupCall(calls, name)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """allgather of a list as one. Blocking, differentiable."""
    tensors = list(tensors)
    if tensors and autograd.wanted(*tensors):
        name = full_name("grouped_allgather", name, set_id(process_set))
        return list(autograd.GroupedAllgather.apply(name, process_set, *tensors))
    return _group_of_rows("grouped_allgather", "allgather", tensors, name, process_set).run()


def grouped_allgather_async(tensors, name=None, process_set=global_process_set) -> Handle:
    return _group_of_rows("grouped_allgather", "allgather", tensors, name, process_set).start()


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The tensor of `root_rank` (a global rank) on every rank. Blocking, differentiable."""
    name = full_name("broadcast", name, set_id(process_set))
    if autograd.wanted(tensor):
        return autograd.Broadcast.apply(tensor, root_rank, name, process_set)
    return broadcast_call(name, root_rank, tensor, process_set).run()


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set) -> Handle:
    name = full_name("broadcast", name, set_id(process_set))
    return broadcast_call(name, root_rank, tensor, process_set).start()


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    name = full_name("broadcast", name, set_id(process_set))
    return broadcast_call(name, root_rank, tensor, process_set, in_place=True).run()


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set) -> Handle:
    name = full_name("broadcast", name, set_id(process_set))
    return broadcast_call(name, root_rank, tensor, process_set, in_place=True).start()


def _plain_splits(splits):
    if splits is None:
        return None
    if not isinstance(splits, torch.Tensor):
        return tuple(whole_number(part, "each of splits") for part in splits)
    if splits.dim() != 1 or splits.is_floating_point() or splits.is_complex():
        raise HoronInvalidArgument(
            "alltoall expects splits to be a list or a 1D tensor of whole numbers, not a tensor of "
            f"shape {tuple(splits.shape)} and type {splits.dtype}"
        )
    return tuple(splits.tolist())


def _with_received(output, received):
    return output, autograd.received_splits(received)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends splits[r] rows to the r-th rank of the set (equal parts without splits) and gives the
    rows received, by rank; with splits, (rows, received splits). Blocking, differentiable."""
    parts = _plain_splits(splits)
    name = full_name("alltoall", name, set_id(process_set))
    if autograd.wanted(tensor):
        output, received = autograd.Alltoall.apply(tensor, parts, name, process_set)
        return output if splits is None else (output, received)
    finish = None if splits is None else _with_received
    return rows_call(name, "alltoall", tensor, process_set, parts, finish=finish).run()


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set) -> Handle:
    finish = None if splits is None else _with_received
    name = full_name("alltoall", name, set_id(process_set))
    parts = _plain_splits(splits)
    return rows_call(name, "alltoall", tensor, process_set, parts, finish=finish).start()


def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's part of the reduced tensor, cut along the first dimension: the first
    `rows % size` ranks get one row more. Blocking, differentiable."""
    spec = spec_of(op)
    name = full_name("reducescatter", name, set_id(process_set))
    (sent,), (memo,) = compress_all([tensor], compression)
    if autograd.wanted(sent):
        result = autograd.Reducescatter.apply(
            sent, name, spec, prescale_factor, postscale_factor, process_set
        )
    else:
        result = rows_call(name, autograd.reducescatter_spec(spec), sent, process_set, None,
                           prescale_factor, postscale_factor).run()
    return compression.decompress(result, memo)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
                        prescale_factor=1.0, postscale_factor=1.0) -> Handle:
    name = full_name("reducescatter", name, set_id(process_set))
    spec = autograd.reducescatter_spec(spec_of(op))
    return rows_call(name, spec, tensor, process_set, None, prescale_factor,
                     postscale_factor).start()


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    """reducescatter of a list as one. Blocking, differentiable."""
    sent, memos = compress_all(tensors, compression)
    if sent and autograd.wanted(*sent):
        name = full_name("grouped_reducescatter", name, set_id(process_set))
        results = autograd.GroupedReducescatter.apply(
            name, spec_of(op), prescale_factor, postscale_factor, process_set, *sent
        )
    else:
        spec = autograd.reducescatter_spec(spec_of(op))
        results = _group_of_rows("grouped_reducescatter", spec, sent, name, process_set,
                                 prescale_factor, postscale_factor).run()
    return [compression.decompress(result, memo) for result, memo in zip(results, memos)]


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
                                prescale_factor=1.0, postscale_factor=1.0) -> Handle:
    spec = autograd.reducescatter_spec(spec_of(op))
    return _group_of_rows("grouped_reducescatter", spec, tensors, name, process_set,
                          prescale_factor, postscale_factor).start()


def barrier(process_set=global_process_set) -> None:
    """Blocks until every rank of the set is here."""
    barrier_call(full_name("barrier", None, set_id(process_set)), process_set).run()
