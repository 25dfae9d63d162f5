"""Collectives ready to go: what each sends to the runtime, and what it makes of the answer.

The functions here turn tensors into requests (horon._core.REQUEST_FIELDS). The public functions in
reductions.py and exchanges.py start them (a Handle) or run them (blocking, on the caller's thread).
"""

import functools
import math

import torch

from horon import _core
from horon.errors import HoronInvalidArgument, HoronTimeout
from horon.torch.tensors import (
    brought_here,
    dtype_and_device,
    is_elsewhere,
    is_strided,
    lies_as_it_reads,
    owned_output,
    shape_in_memory,
    stream_of,
    whole_number,
)

_DEVICE, _STREAM = 3, 13  # places in a request
_POOLED_BYTES = 1 << 20
_LONGEST_MS = (1 << 31) - 1  # 24 days


class Handle:
    """Something started by an ..._async function; for poll() and synchronize()."""

    __slots__ = ("_work", "_finish", "_result", "_lenders")

    def __init__(self, work, finish, result=None, lenders=()):
        self._work = work
        self._finish = finish
        self._result = result
        self._lenders = lenders  # CUDA ordinals, -1 for the CPU, and the streams of the tensors

    def done(self) -> bool:
        return self._work is None or self._work.done()

    def wait_for(self, ms) -> bool:
        """Whether it is done within so many milliseconds; raises the error of the collective."""
        return self._work is None or self._work.wait(ms)

    def wait(self):
        """Blocks until done; the result, or the error, of the collective. On a GPU: until it is
        enqueued, and the current stream waits for the rest."""
        if self._work is not None:
            try:
                self._work.wait()
            finally:  # what has failed may have written a tensor of a GPU all the same
                for device, stream in self._lenders:
                    if device >= 0:
                        self._work.hold_back(stream_of(device), stream)
            self._result = self._finish(self._work, 0)
            self._work = self._finish = None
        return self._result


def _lender(request) -> tuple:
    return request[_DEVICE], request[_STREAM]


class Call:
    """One collective over one tensor. finish(work, index) makes the result once it is done."""

    __slots__ = ("_request", "_tensors", "_finish")
    group = None

    def __init__(self, request, tensors, finish):
        self._request = request
        self._tensors = tensors  # lent to the runtime until it is done
        self._finish = finish

    def requests(self) -> tuple:
        return (self._request,)

    def is_on(self, tensor) -> bool:
        """Whether it reads and writes this dense tensor itself, and no copy."""
        return (isinstance(self._tensors, tuple) and all(t is tensor for t in self._tensors)
                and tensor.is_cpu and lies_as_it_reads(tensor))

    def then(self, finish):
        """This call, whose result is what finish() makes of it."""
        first = self._finish
        return Call(self._request, self._tensors, lambda *done: finish(first(*done)))

    def start(self) -> Handle:
        work = _core.submit(self._request, self._tensors)
        return Handle(work, self._finish, None, (_lender(self._request),))

    def run(self):
        return self._finish(_core.run(self._request, self._tensors), 0)


class GroupCall:
    """Several calls that complete, and fail, as one. The result is the list of theirs."""

    __slots__ = ("_calls", "group", "_combine")

    def __init__(self, calls, name, combine=None):
        self._calls = calls
        self.group = name
        self._combine = combine

    def then(self, combine):
        """These calls, whose result is what combine() makes of the list."""
        return GroupCall(self._calls, self.group, combine)

    def requests(self) -> tuple:
        return tuple(call._request for call in self._calls)

    def is_on(self, tensors) -> bool:
        """Whether it works on just these, in place."""
        calls = self._calls
        return (len(calls) > 0 and isinstance(tensors, (list, tuple)) and len(tensors) == len(calls)
                and all(call.is_on(tensor) for call, tensor in zip(calls, tensors)))

    def start(self) -> Handle:
        if not self._calls:
            return Handle(None, None, [])
        requests = [call._request for call in self._calls]
        tensors = [call._tensors for call in self._calls]
        finishes = [call._finish for call in self._calls]
        work = _core.submit_group(requests, self.group, tensors)
        lenders = {_lender(request) for request in requests}
        combine = self._combine or (lambda results: results)
        return Handle(work, lambda work, _: combine([f(work, i) for i, f in enumerate(finishes)]),
                      None, lenders)

    def run(self):
        return self.start().wait()


def group_names(base: str, count: int) -> list:
    return [f"{base}_{i}of{count}" for i in range(1, count + 1)]


def set_id(process_set) -> int:
    number = process_set.process_set_id
    return process_set._require_id() if number is None else number


def _scale(factor) -> float:
    factor = float(factor)
    if factor == 0.0:
        raise HoronInvalidArgument("a scale factor of 0 would only erase the tensor")
    return factor


def _request(name, spec, source, output, process_set_id, shape=None, prescale=1.0, postscale=1.0,
             splits=None, round=0, weights=None):
    dtype, device = dtype_and_device(source, name)
    return (
        name,
        spec,
        dtype,
        device,
        source.shape if shape is None else shape,
        source.data_ptr(),
        0 if output is None else output.data_ptr(),
        prescale,
        postscale,
        process_set_id,
        splits,
        round,
        weights,
        stream_of(device),
    )


def _private_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).resolve_neg()


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, where it lies as it reads."""
    return tensor.detach().contiguous().resolve_neg()


def _staged_call(request, staged, tensor, in_place) -> Call:
    """Over a copy of the tensor, whose result goes to where the tensor lies."""
    home = tensor.device

    def copy_back(work, index):
        _keep_for_current_stream(staged)
        with torch.no_grad():
            tensor.copy_(staged, non_blocking=tensor.is_cuda)
        return tensor

    def hand_over(work, index):
        if staged.device == home:
            return staged
        _keep_for_current_stream(staged)
        return staged.to(home, non_blocking=True)

    return Call(request, staged, copy_back if in_place else hand_over)


def _keep_for_current_stream(staged: torch.Tensor) -> None:
    """It may have been made on another stream, to which its memory goes back when it is dropped."""
    if staged.is_cuda:
        staged.record_stream(torch.cuda.current_stream(staged.device))


def _new_output(tensor):
    """Where a result that is not in place goes; None: memory of the runtime's, which is used again
    once the result is dropped. torch maps large results anew each time, and their first touch costs
    more than the collective."""
    if (tensor.is_cpu and lies_as_it_reads(tensor)
            and tensor.numel() * tensor.element_size() >= _POOLED_BYTES):
        return None
    return torch.empty_like(tensor, requires_grad=False)


def _call_into(request, tensor, output) -> Call:
    if output is not None:
        return Call(request, (tensor, output), lambda work, index: output)
    dtype, device = request[2], request[3]
    return Call(request, tensor, lambda work, index: owned_output(work, index, dtype, device))


def reduce_call(name, spec, tensor, process_set, prescale=1.0, postscale=1.0,
                in_place=False, splits=None, round=0, weights=None) -> Call:
    """Any op whose output has the shape of its input. Tensors with gaps are copied, as are those on
    another GPU than this rank's."""
    strided = is_strided(tensor, name)
    elsewhere = strided and is_elsewhere(tensor)
    source = brought_here(tensor) if elsewhere else tensor
    shape = shape_in_memory(source) if strided else None
    # All that follows the shape in _request.
    options = (_scale(prescale), _scale(postscale), splits, round, weights)
    if strided and (elsewhere or shape is None):
        staged = _private_copy(source) if shape is None else source
        request = _request(name, spec, staged, staged, set_id(process_set), shape, *options)
        return _staged_call(request, staged, tensor, in_place)
    output = tensor if in_place else _new_output(tensor)
    request = _request(name, spec, tensor, output, set_id(process_set), shape, *options)
    return _call_into(request, tensor, output)


def broadcast_call(name, root_rank, tensor, process_set, in_place=False) -> Call:
    """root_rank is a global rank, whatever the set."""
    spec = f"broadcast:root={whole_number(root_rank, 'root_rank')}"
    strided = is_strided(tensor, name)
    elsewhere = strided and is_elsewhere(tensor)
    if elsewhere or strided and not lies_as_it_reads(tensor):
        staged = _in_order(brought_here(tensor)) if elsewhere else _private_copy(tensor)
        request = _request(name, spec, staged, staged, set_id(process_set))
        return _staged_call(request, staged, tensor, in_place)
    output = tensor if in_place else _new_output(tensor)
    return _call_into(_request(name, spec, tensor, output, set_id(process_set)), tensor, output)


def rows_call(name, spec, tensor, process_set, splits=None, prescale=1.0, postscale=1.0,
              finish=None) -> Call:
    """Ops that move rows: the runtime owns the output, whose rows only it knows.

    finish(output, received): received[r] is the number of rows that came from rank r of the set.
    """
    strided = is_strided(tensor, name)
    elsewhere = strided and is_elsewhere(tensor)
    source, home = tensor.detach(), tensor.device
    if strided:
        source = _in_order(brought_here(tensor) if elsewhere else source)
    request = _request(name, spec, source, None, set_id(process_set), None, _scale(prescale),
                       _scale(postscale), splits)
    dtype, device = request[2], request[3]

    def take(work, index):
        output = owned_output(work, index, dtype, device)
        if elsewhere:
            output = output.to(home, non_blocking=True)
        return output if finish is None else finish(output, work.received_splits(index))

    return Call(request, source, take)


def barrier_call(name, process_set, spec="barrier") -> Call:
    request = (name, spec, 0, -1, (0,), 0, 0, 1.0, 1.0, set_id(process_set), None, 0,
               None, 0)
    return Call(request, None, lambda work, index: None)


_HANDLES = (_core.Started, Handle)


def _checked(handle):
    if not isinstance(handle, _HANDLES):
        raise HoronInvalidArgument(
            f"{handle!r} is no handle; handles are what the functions that end in _async return"
        )
    return handle


def poll(handle) -> bool:
    """Whether synchronize(handle) would return at once."""
    return _checked(handle).done()


def _milliseconds(timeout) -> int:
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        raise HoronInvalidArgument(f"timeout={timeout!r} is no number of seconds")
    return math.ceil(min(seconds * 1000, _LONGEST_MS))


def _waiting(function):
    """For function(handle), which returns handle.wait(): one of a repeated call does so at once."""
    return functools.update_wrapper(_core.waiting(function), function)


@_waiting
def synchronize(handle, timeout=None):
    """Blocks until done; the collective's result. Raises what went wrong, on every rank alike.

    timeout: seconds, after which this rank's wait ends with HoronTimeout. The collective goes on
    and keeps its tensors; the handle may be waited for again.
    """
    handle = _checked(handle)
    if timeout is not None and not handle.wait_for(_milliseconds(timeout)):
        raise HoronTimeout(
            f"the collective was not done within {timeout} s; it goes on, with its tensors, and "
            "the handle may be waited for again"
        )
    return handle.wait()


def waited_through(wait):
    """wait(), and again after a Ctrl-C: what it waits for has tensors that must not change before.
    A second one ends it. The interrupt, for the caller to raise when all is in place; or None."""
    try:
        wait()
    except KeyboardInterrupt as interrupt:
        wait()
        return interrupt
    return None


def wait_all(handles) -> None:
    """Waits for all before it raises the first failure: tensors stay lent until they are done."""
    failure = None
    for handle in handles:
        try:
            handle.wait()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
