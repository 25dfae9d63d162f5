"""The Python API with tensors of a GPU on a machine without one. It needs the CUDA plugin of fake
GPUs (test/support/fake_cuda.h) in the place of Horon's.

The tensors here say that they are on cuda:0. They lie in the fake GPU's memory, which this process
cannot read: what looks into one dies. Alone a stream is held while the program waits, which it
must not notice; between ranks messages wait for the copy to the host.
"""

import ctypes
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace

import torch

import horon.torch as hvd
from horon import _core
from horon.torch.windows import Window


class FakeCuda(ctypes.Structure):
    _fields_ = [
        ("memory", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)),
        ("stream", ctypes.CFUNCTYPE(ctypes.c_void_p)),
        ("write", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)),
        ("read", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)),
        ("hold", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("capture", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)),
        ("lose", ctypes.CFUNCTYPE(None, ctypes.c_char_p)),
        ("complaint", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


_plugin = ctypes.CDLL(str(Path(_core.__file__).with_name("libhoron_cuda.so")))
_plugin.horon_fake_cuda.restype = ctypes.POINTER(FakeCuda)
cuda = _plugin.horon_fake_cuda().contents
MINE, OTHER = cuda.stream(), cuda.stream()
_current = SimpleNamespace(cuda_stream=MINE)
torch.cuda.current_stream = lambda device=None: _current


class OnGpu(torch.Tensor):
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", 0))


def on_gpu(value, count):
    """So many float32 of this value, which the current stream writes."""
    host = torch.full((count,), float(value))
    nbytes = host.numel() * host.element_size()
    at = cuda.memory(nbytes)
    cuda.write(_current.cuda_stream, at, host.data_ptr(), nbytes)
    memory = (ctypes.c_char * nbytes).from_address(at)
    return torch.frombuffer(memory, dtype=torch.float32).as_subclass(OnGpu)


def read(at, count):
    """What the current stream finds there."""
    host = torch.full((count,), -1.0)
    cuda.read(_current.cuda_stream, host.data_ptr(), at, host.numel() * host.element_size())
    return host


def total():
    return hvd.size() * (hvd.size() + 1) / 2


class Held:
    """Until it ends the stream that writes the tensors begins nothing, if this rank is alone."""

    def __enter__(self):
        self._held = hvd.size() == 1
        if self._held:
            cuda.hold(MINE)

    def __exit__(self, *_):
        if self._held:
            cuda.release(MINE)


class OnStream:
    """The framework's current stream, meanwhile."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        self._before, _current.cuda_stream = _current.cuda_stream, self._stream

    def __exit__(self, *_):
        _current.cuda_stream = self._before


def check_synchronize_puts_the_current_stream_behind():
    for count in (1, 100_000):
        with OnStream(OTHER):
            with Held():
                with OnStream(MINE):
                    tensor = on_gpu(hvd.rank() + 1, count)
                    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="in place")
                assert hvd.synchronize(handle) is tensor
            assert torch.equal(read(tensor.data_ptr(), count), torch.full((count,), total()))


def check_blocking_calls_put_the_current_stream_behind():
    with Held():
        tensor = on_gpu(hvd.rank() + 1, 500)
        assert hvd.allreduce_(tensor, op=hvd.Sum, name="blocking") is tensor
    assert torch.equal(read(tensor.data_ptr(), 500), torch.full((500,), total()))


def check_grouped():
    with OnStream(OTHER):
        with Held():
            with OnStream(MINE):
                tensors = [on_gpu(hvd.rank() + 1, count) for count in (7, 70_000)]
                handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name="grouped")
            hvd.synchronize(handle)
        for tensor in tensors:
            expected = torch.full(tensor.shape, total())
            assert torch.equal(read(tensor.data_ptr(), tensor.numel()), expected)


def _request(name, spec, tensor, output):
    return (name, spec, 7, 0, tuple(tensor.shape), tensor.data_ptr(), output, 1.0, 1.0, 0, None, 0,
            None, MINE)


class Lent:
    """What is kept with a tensor that is lent."""


def check_a_tensor_is_kept_while_another_stream_than_its_own_may_come_first():
    seen = {}
    with Held():
        for stream in (MINE, OTHER):
            tensor, thing = on_gpu(1, 30), Lent()
            seen[stream] = weakref.ref(thing)
            name = f"lent {stream == MINE}"
            work = _core.submit(_request(name, "sum", tensor, tensor.data_ptr()), thing)
            thing = None
            work.wait()
            work.hold_back(stream, MINE)
            # The framework gives memory of its own stream to what comes behind on it.
            if hvd.size() == 1:
                assert (seen[stream]() is None) == (stream == MINE), stream
            work = None
        gc.collect()
        assert seen[MINE]() is None
        if hvd.size() == 1:
            assert seen[OTHER]() is not None
    read(0, 0)  # the streams are through
    with OnStream(OTHER):
        read(0, 0)
    tensor = on_gpu(1, 30)
    hvd.allreduce_(tensor, name="after")  # any call drops what is no longer lent
    assert seen[OTHER]() is None


def check_an_output_of_its_own_says_that_it_is_on_the_gpu():
    tensor = on_gpu(hvd.rank() + 1, 40)
    work = _core.run(_request("gathered", "allgather", tensor, 0), tensor)
    capsule = work.output(0, 7, 0)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = pointer(capsule, b"dltensor")
    data = ctypes.c_void_p.from_address(at).value
    device_type, device, ndim = (ctypes.c_int32 * 3).from_address(at + 8)
    assert (device_type, device, ndim) == (2, 0, 1)
    expected = torch.arange(1.0, hvd.size() + 1).repeat_interleave(40)
    assert torch.equal(read(data, 40 * hvd.size()), expected)


def check_a_window_of_a_gpu():
    left, right = (hvd.rank() - 1) % hvd.size(), (hvd.rank() + 1) % hvd.size()
    neighbors = hvd.size() > 1
    tensor = on_gpu(hvd.rank() + 1, 900)
    window = Window(tensor, "window of a gpu", sources=[left] if neighbors else [],
                    destinations=[right] if neighbors else [], zero_init=True)
    with OnStream(OTHER):
        window.put({right: 0.5} if neighbors else {})
        while neighbors and not window.versions()[left]:
            pass
        window.update(0.5, {left: 0.5} if neighbors else {})
        expected = (hvd.rank() + 1) / 2 + ((left + 1) / 4 if neighbors else 0)
        assert torch.equal(read(tensor.data_ptr(), 900), torch.full((900,), expected))
    window.free()


def check_a_captured_stream_is_refused():
    tensor = on_gpu(1, 3)
    cuda.capture(MINE, 1)
    try:
        hvd.allreduce_(tensor, name="captured")
    except hvd.HoronUnsupported as error:
        assert "captured into a CUDA graph" in str(error)
    else:
        raise AssertionError("it was not refused")
    finally:
        cuda.capture(MINE, 0)
    hvd.allreduce_(tensor, op=hvd.Sum, name="captured")
    assert torch.equal(read(tensor.data_ptr(), 3), torch.full((3,), float(hvd.size())))


def check_no_stream_came_too_early():
    assert cuda.complaint() == b""
