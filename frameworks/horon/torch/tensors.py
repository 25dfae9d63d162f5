"""What the runtime needs to know of a torch tensor: element type, device, shape, where it lies."""

import operator

import torch
from torch.utils.dlpack import from_dlpack

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.runtime import when_left

DTYPES = {  # horon_dtype in horon.h
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.bfloat16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
}


def is_strided(tensor: torch.Tensor, name: str) -> bool:
    """Whether its elements lie in memory, if with gaps. Raises if it is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise HoronInvalidArgument(
            f"'{name}' is a {type(tensor).__name__}, not a tensor: use torch.as_tensor, or "
            "allgather_object and broadcast_object for other objects"
        )
    return tensor.layout is torch.strided


def whole_number(value, what) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise HoronInvalidArgument(f"{what} is a whole number, not {value!r}") from None


def dtype_and_device(tensor: torch.Tensor, name: str) -> tuple:
    """horon_dtype, and the CUDA ordinal or -1."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise HoronUnsupported(f"Tensor type {tensor.dtype} of tensor '{name}' is not supported.")
    if not is_strided(tensor, name):
        raise HoronInvalidArgument(
            f"tensor '{name}' is {tensor.layout}: use sparse_allreduce_async, or its to_dense()"
        )
    if tensor.is_cpu:
        return dtype, -1
    if tensor.is_cuda:
        return dtype, tensor.device.index
    raise HoronUnsupported(f"tensor '{name}' is on device {tensor.device}, which is not supported.")


_gpu = []  # the CUDA ordinal of this rank's first tensor there: the runtime works with one GPU
when_left(_gpu.clear)  # and the next job with another one, perhaps


def works_with(device: torch.device) -> None:
    """The rank does, if that is a GPU and it works with none yet."""
    if device.type == "cuda" and not _gpu:
        _gpu.append(device.index)


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether it lies on a GPU, and not on that which this rank works with."""
    if not tensor.is_cuda:
        return False
    works_with(tensor.device)
    return tensor.device.index != _gpu[0]


def brought_here(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU that this rank works with, in memory as the tensor is. The current streams
    of both GPUs are in step behind it; the host waits for nothing."""
    return tensor.detach().to(torch.device("cuda", _gpu[0]), non_blocking=True)


def stream_of(device: int) -> int:
    """The CUDA stream that a tensor of this device is worked on now, as a number; 0 on the CPU."""
    return 0 if device < 0 else torch.cuda.current_stream(device).cuda_stream


def lies_as_it_reads(tensor: torch.Tensor) -> bool:
    """Without gaps, in order, and with its signs."""
    return tensor.is_contiguous() and not tensor.is_neg()


def shape_in_memory(tensor: torch.Tensor):
    """Shape of a dense tensor in the order of its memory; None if it must be copied to be sent.

    A channels_last tensor is reduced as it lies, and says so by its shape: ranks that hold the same
    tensor in different layouts get an error instead of mixed-up numbers. Where the two shapes would
    look alike (channels = height = width), it is copied.
    """
    if tensor.is_neg():  # what lies there has the other sign
        return None
    if tensor.is_contiguous():
        return tensor.shape
    if tensor.dim() == 4:
        memory_format = torch.channels_last
    elif tensor.dim() == 5:
        memory_format = torch.channels_last_3d
    else:
        return None
    if not tensor.is_contiguous(memory_format=memory_format):
        return None
    rows, channels, *places = tensor.shape
    shape = (rows, *places, channels)
    return None if shape == tuple(tensor.shape) else shape


def owned_output(work, index: int, dtype: int, device: int) -> torch.Tensor:
    """A finished work's own output, without a copy; the tensor keeps the memory alive."""
    return from_dlpack(work.output(index, dtype, device))
