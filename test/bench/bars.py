"""A picture of bars in groups, as the benchmarks on several hosts draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def grouped(groups: Sequence[str], heights: Mapping[str, Sequence[float]]) -> tuple[Figure, Axes]:
    """In each group one bar for each name, as high as its list says. Needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7, 0.8 * len(groups)), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(heights)
    for i, (name, of_groups) in enumerate(heights.items()):
        places = [x + (i - (len(heights) - 1) / 2) * width for x in range(len(groups))]
        axes.bar(places, of_groups, width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    return figure, axes
