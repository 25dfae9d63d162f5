"""What the checks share."""

import re
import tempfile
from contextlib import contextmanager

import torch

import horon.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = INTEGERS + FLOATS
SHAPES = [(), (0,), (1,), (17,), (5, 3), (2, 3, 4, 5)]

_folders = []  # removed when rank 0 ends


def shared_folder() -> str:
    """A new folder on rank 0's host, which all ranks know."""
    if hvd.rank() == 0:
        _folders.append(tempfile.TemporaryDirectory())
    return hvd.broadcast_object(_folders[-1].name if hvd.rank() == 0 else None, root_rank=0)


def values(rank, shape, dtype, seed=0):
    """Small whole numbers that every rank can compute for every other one; sums are exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype == torch.uint8 else -5
    return torch.randint(low, 6, shape, generator=generator).to(dtype)


def all_values(size, shape, dtype, seed=0):
    return torch.stack([values(r, shape, dtype, seed) for r in range(size)])


def same(actual, expected):
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert torch.equal(actual, expected), (actual, expected)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@contextmanager
def raises(*classes, words=(), sentence="", of=""):
    """The block must raise an error that is each of the classes and says each of the words; if
    there is a pattern of the whole sentence, that. `of`: which call it is."""
    try:
        yield
    except Exception as error:
        for kind in classes:
            assert isinstance(error, kind), f"{of} {error!r} is no {kind}"
        for word in words:
            assert str(word) in str(error), f"{str(error)!r} does not say {word!r}"
        if sentence:
            assert re.fullmatch(sentence, str(error)), f"{str(error)!r} is not {sentence}"
    else:
        raise AssertionError(f"{of} raised nothing; expected {classes}")
