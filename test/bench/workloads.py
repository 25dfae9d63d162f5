"""What is reduced: single tensors by size, and sets of tensors as training produces them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

ONE_BY_ONE = "one by one"  # allreduces that block, without a barrier in between
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Workload:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    kind: str = "allreduce"  # or ONE_BY_ONE, or one of KINDS
    dtype: str = ""  # empty: what the run asks for

    @property
    def count(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def reduces(self) -> bool:
        return self.kind in ("allreduce", ONE_BY_ONE)

    @property
    def single(self) -> bool:
        return len(self.shapes) == 1


# Other collectives, and what of each rank's input crosses its link, for nccl-tests' busbw.
KINDS = {"broadcast": lambda n: 1, "allgather": lambda n: n - 1,
         "alltoall": lambda n: (n - 1) / n, "reducescatter": lambda n: (n - 1) / n}


def link_share(kind: str, ranks: int) -> float:
    return KINDS[kind](ranks) if kind in KINDS else 2 * (ranks - 1) / ranks


def resnet50_shapes() -> tuple[tuple[int, ...], ...]:
    """The 161 parameters of torchvision's ResNet-50, 25,557,032 elements, in the model's order."""
    shapes: list[tuple[int, ...]] = []

    def convolution(out: int, into: int, kernel: int) -> None:
        shapes.extend([(out, into, kernel, kernel), (out,), (out,)])  # its batch norm follows

    convolution(64, 3, 7)
    into = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(width, into, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, into, 1)
            into = 4 * width
    shapes.extend([(1000, 2048), (1000,)])
    return tuple(shapes)


def bert_base_shapes() -> tuple[tuple[int, ...], ...]:
    """The 199 parameters of BERT-base with its pooler, 109,482,240 elements, in the model's
    order."""
    width, wide = 768, 3072
    norm = [(width,), (width,)]
    shapes = [(30522, width), (512, width), (2, width), *norm]
    for _ in range(12):
        shapes += [(width, width), (width,)] * 4 + norm  # query, key, value, output
        shapes += [(wide, width), (wide,), (width, wide), (width,)] + norm
    return (*shapes, (width, width), (width,))


def gradient_order(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Backward produces gradients from the last layer to the first."""
    return tuple(reversed(shapes))


def sizes(least: int, most: int, factor: int, element: int) -> list[Workload]:
    """One tensor each, from `least` to `most` bytes."""
    found, size = [], max(least, element)
    while size <= most:
        found.append(Workload(text_of(size), ((size // element,),)))
        size *= factor
    return found


def sets(dtype: str) -> list[Workload]:
    found = []
    for name, shapes in (("ResNet-50", resnet50_shapes()), ("BERT-base", bert_base_shapes())):
        gradients = gradient_order(shapes)
        found.append(Workload(name, gradients))
        if dtype == "float32":
            found += [Workload(f"{name}, {half}", gradients, dtype=half)
                      for half in ("float16", "bfloat16")]
    found.append(Workload("1,000 x 1 KiB", ((1024 // BYTES[dtype],),) * 1000))
    if dtype == "float32":
        found.append(Workload("100 x 4 B, one by one", ((1,),) * 100, ONE_BY_ONE))
    return found


def others(element: int, ranks: int, size: int = 64 << 20) -> list[Workload]:
    """One tensor a rank, whose rows divide evenly among the ranks."""
    rows = size // element // ranks * ranks
    return [Workload(f"{kind} {text_of(size)}", ((rows,),), kind) for kind in KINDS]


def text_of(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """'64', '4K', '64M', '1G': in powers of 1024, as nccl-tests has it."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text if factor == 1 else text[:-1]) * factor
