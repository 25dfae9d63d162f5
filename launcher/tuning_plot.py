"""horonrun --plot-autotune: a picture of how autotuning went. Needs matplotlib, and nothing else
of horonrun does."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from .refusal import Refusal
from .tuning import START, Comparison, Log, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_INCHES = 0.2  # of a setting in the right panel
_FEW = 9  # settings that have colours of their own, beside the start
_FAR = 2.0  # times the median: what is slower is drawn at the upper edge
_BEST = "0.15"
_START_COLOUR = "0.55"


def write(path: str) -> str:
    """Draws the log beside it; what to say of it, with the picture's name."""
    log = read(path)
    picture = os.path.splitext(path)[0] + ".png"
    if picture == path:
        raise Refusal(f"{path} ends with .png, so the picture would be in its place: rename it")
    try:
        draw(log).savefig(picture, dpi=120)
    except ImportError:
        why = "--plot-autotune needs matplotlib; install it: pip install matplotlib"
        raise Refusal(why) from None
    except OSError as error:
        raise Refusal(f"cannot write {picture}: {error.strerror}") from None
    return f"{picture}: {len(log.samples)} samples of {len(log.settings)} settings; {outcome(log)}"


def outcome(log: Log) -> str:
    """What came of it, in some words."""
    if log.chosen is None:
        return "not at its end"
    if log.chosen == START:
        return "no setting was faster than the start"
    gain = _percent(median(log.relative().get(log.chosen, [1.0])))
    return f"{log.label(log.chosen)} is chosen, step time {gain}"


def draw(log: Log) -> Figure:
    """Step times over time, and each setting's beside them."""
    from matplotlib.figure import Figure

    rows = len(log.settings)
    figure = Figure(figsize=(13, max(5.0, 1.4 + _ROW_INCHES * rows)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    colour = _colours(log)
    _draw_samples(left, log, colour)
    _draw_best(left, log)
    _draw_settings(right, log, colour)
    start = ", ".join(log.settings[START].words())
    figure.suptitle(f"Autotuning: {outcome(log)}\nstart: {start}", fontsize=11)
    return figure


def _colours(log: Log) -> Callable[[int], object]:
    """Neighbours in time are easy to tell apart, the start is grey."""
    import matplotlib

    few = len(log.settings) - 1 <= _FEW
    map = matplotlib.colormaps["tab10" if few else "turbo"]
    order = {number: at for at, number in enumerate(sorted(set(log.settings) - {START}))}
    palette = [at for at in range(10) if at != 7]  # without tab10's grey

    def colour(setting: int) -> object:
        if setting == START:
            return _START_COLOUR
        at = order[setting]
        return map(palette[at]) if few else map(0.05 + 0.9 * at / (len(order) - 1))

    return colour


def _draw_samples(axes: Axes, log: Log, colour: Callable[[int], object]) -> None:
    limit = _FAR * median(one.step_seconds for one in log.samples)
    names = {"o": "sample, in its setting's colour", "^": "slower than shown"}
    for marker, name in names.items():
        drawn = [one for one in log.samples if (one.step_seconds > limit) == (marker == "^")]
        if not drawn:
            continue
        axes.scatter(
            [one.seconds for one in drawn],
            [min(one.step_seconds, limit) * 1e3 for one in drawn],
            c=[colour(one.setting) for one in drawn], marker=marker, s=26, linewidths=0.4,
            edgecolors="white", zorder=3, clip_on=marker == "o", label=name,
        )  # fmt: skip
        if marker == "^":
            axes.set_ylim(top=limit * 1e3)
    axes.set(xlabel="seconds since tuning began", ylabel="step time (ms)")
    axes.grid(True, alpha=0.25)


def _draw_best(axes: Axes, log: Log) -> None:
    """What the best so far took in each comparison, which ones were won, and by whom for good."""
    stations = _bests(log)
    if stations:
        last, _, now = stations[-1]
        times = [one.samples[0].seconds for one, _, _ in stations] + [log.samples[-1].seconds]
        levels = [one.step_seconds(best) for one, best, _ in stations] + [last.step_seconds(now)]
        levels = [1e3 * level for level in levels]
        axes.step(times, levels, where="post", color=_BEST, linewidth=1.6, label="best so far")
    won = [one for one in log.comparisons if one.is_won]
    if won:
        axes.scatter(
            [one.samples[-1].seconds for one in won],
            [one.step_seconds(one.new) * 1e3 for one in won],
            marker="*", s=130, color="gold", edgecolors=_BEST, linewidths=0.8, zorder=4,
            label="comparison won",
        )  # fmt: skip
    for one, before, after in stations:
        if after != before:
            axes.annotate(
                log.label(after), (one.samples[-1].seconds, one.step_seconds(after) * 1e3),
                xytext=(0, -15), textcoords="offset points", fontsize=8, ha="center", zorder=5,
                path_effects=_outline(),
            )  # fmt: skip
    axes.margins(y=0.08)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=8, frameon=False)


def _bests(log: Log) -> list[tuple[Comparison, int, int]]:
    """Comparisons, each with the best setting before and after it."""
    found, best = [], START
    for one in log.comparisons:
        # At the end the best is the new one, on trial against the start.
        before = best if best in (one.new, one.best) else one.best
        best = one.new if one.is_won else one.best
        found.append((one, before, best))
    return found


def _outline() -> list[object]:
    """Keeps words readable over points."""
    from matplotlib import patheffects

    return [patheffects.withStroke(linewidth=2.5, foreground="white")]


def _draw_settings(axes: Axes, log: Log, colour: Callable[[int], object]) -> None:
    """A row a setting, the fastest on top."""
    relative = log.relative()
    order = sorted(relative, key=lambda one: median(relative[one]), reverse=True)
    for row, setting in enumerate(order):
        middle, shade = median(relative[setting]), colour(setting)
        shown, side = min(middle, _FAR), -1 if middle < 1 else 1
        axes.plot([1, shown], [row, row], color=shade, linewidth=1.4, zorder=2)
        axes.scatter(shown, row, color=shade, s=46, marker="o" if shown == middle else ">")
        each = [min(one, _FAR) for one in relative[setting]]
        axes.scatter(each, [row] * len(each), color=shade, s=8, alpha=0.6, zorder=2)
        beside = min(each) if side < 0 else max(each)
        axes.annotate(
            _percent(middle), (beside, row), xytext=(8 * side, 0), textcoords="offset points",
            fontsize=8, ha="right" if side < 0 else "left", va="center",
        )  # fmt: skip
    axes.axvline(1, color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    axes.set_yticks(range(len(order)), [log.label(one) for one in order], fontsize=8)
    for tick, setting in zip(axes.get_yticklabels(), order, strict=True):
        tick.set_fontweight("bold" if setting == log.chosen else "normal")
    axes.margins(x=0.22, y=0.6 / len(order))
    axes.set_xlabel("step time, start = 1")
    axes.grid(True, axis="x", alpha=0.25)


def _percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1)) or 0:+d} %".replace("+0", "0")
