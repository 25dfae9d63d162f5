"""What travels instead of a gradient: it is converted before it is sent and back afterwards.

A compressor has compress(tensor) -> (tensor, memo) and decompress(tensor, memo). Compression that
keeps state or sends sparse tensors is an op instead: op=hvd.TopK(...).
"""

import torch

from horon.errors import HoronInvalidArgument


class Compressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, memo):
        return tensor


class _Narrow(Compressor):
    """Sends floating-point tensors in a narrower type; others pass as they are."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor):
        dtype = getattr(tensor, "dtype", cls.wire_dtype)  # the call refuses what is no tensor
        if dtype.is_floating_point and dtype != cls.wire_dtype:
            return tensor.to(cls.wire_dtype), dtype
        return tensor, None

    @staticmethod
    def decompress(tensor, memo):
        return tensor if memo is None else tensor.to(memo)


class FP16Compressor(_Narrow):
    wire_dtype = torch.float16


class BF16Compressor(_Narrow):
    wire_dtype = torch.bfloat16


class Compression:
    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def checked(compression):
    """`compression`, if it is a compressor: HoronInvalidArgument if not."""
    if all(callable(getattr(compression, does, None)) for does in ("compress", "decompress")):
        return compression
    raise HoronInvalidArgument(
        f"compression is {compression!r}: use hvd.Compression.none, fp16 or bf16, or an object "
        "with compress(tensor) and decompress(tensor, memo)"
    )


def compress_all(tensors, compression):
    """What to send of each, and the memos to decompress with."""
    compress = checked(compression).compress
    pairs = [compress(tensor) for tensor in tensors]
    return [sent for sent, _ in pairs], [memo for _, memo in pairs]
