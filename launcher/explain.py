"""horonrun --explain: where the time of a step went, and what to do about it.

Each rank says at its end what it has counted since a tensor came for the second time
(runtime/base/time_use.h), in packets `explain <counter>=<value> ...`. Pure: works on these figures,
by rank.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_ROWS = 16
_WORTH = 0.1  # of a step: what is less is not worth advice
_SMALL_BYTES = 1 << 20  # of a message
_MANY = 20  # messages, or waits, a step
_INSTANT = 1e-9  # s: of a step that took no time
_PARTS = ("program", "others", "negotiate", "queue", "wire", "reduce", "copy")


def take(figures: dict[str, int], packet: str) -> None:
    """Adds what a packet says; a rank may join and leave several times."""
    for name, value in re.findall(r"(?<!\S)([a-z_.]+)=(\d{1,19})(?!\S)", packet):
        figures[name] = figures.get(name, 0) + int(value)


@dataclass(frozen=True)
class Row:
    """A rank's step. Times are seconds a step: `program` is that of the program's own work, the
    others those in which it waited, by what it waited for."""

    rank: int
    steps: float
    parts: Mapping[str, float]
    hidden: float  # share of the time in which bytes travelled that the program did not wait
    tensors: float  # a step, as the next three
    buckets: float
    bytes: float
    waits: float  # how often it waited
    locked: float  # share of the tensors that needed no negotiation

    @property
    def step(self) -> float:
        return sum(self.parts.values()) or _INSTANT

    @property
    def waited(self) -> float:
        return self.step - self.parts["program"]


def row(rank: int, figures: Mapping[str, int]) -> Row | None:
    """None if no tensor came twice."""
    get = Counter(figures)
    if not get["distinct"]:
        return None
    # Gradients are most of the bytes, and the loss that is averaged now and then is not a step.
    steps = (get["bytes"] + get["tensors"]) / (get["distinct_bytes"] + get["distinct"])
    return Row(
        rank, steps, _parts(get, steps), _share(get["ns.hidden_moving"], get["ns.moving"]),
        get["tensors"] / steps, get["buckets"] / steps, get["bytes"] / steps,
        get["waits"] / steps, get["locked"] / get["tensors"],
    )


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0 else 0.0


def _parts(get: Counter[str], steps: float) -> dict[str, float]:
    hidden = sum(get[f"ns.hidden_{stage}"] for stage in ("negotiation", "others", "moving"))
    waited, moved = get["ns.moving"], get["ns.moving"] + get["ns.hidden_moving"]
    busy = get["ns.copying"] + get["ns.reducing"]
    # Of what was waited for while bytes moved, as much as of all that time.
    copied, reduced = (
        waited * get[name] / max(moved, busy) if busy else 0.0
        for name in ("ns.copying", "ns.reducing")
    )
    spent = {
        "program": get["ns.program"] + hidden, "others": get["ns.others"],
        "negotiate": get["ns.negotiation"], "queue": get["ns.queue"],
        "wire": waited - copied - reduced, "reduce": reduced, "copy": copied,
    }  # fmt: skip
    return {part: nanoseconds / 1e9 / steps for part, nanoseconds in spent.items()}


# --- advice ---------------------------------------------------------------------------------------


def advice(rows: Sequence[Row], threshold: int | None = None) -> str:
    """What would gain most, as a sentence. `threshold`: bytes, if HORON_FUSION_THRESHOLD is set."""
    found = [
        _straggler(rows), _one_by_one(rows), _small(rows, threshold), _copies(rows),
        _negotiated(rows), _in_turn(rows), _bare(rows), _wire(rows),
    ]  # fmt: skip
    gain, sentence = max(found, key=lambda one: one[0])
    if gain >= _WORTH:
        return sentence.format(share=f"{gain:.0%}".replace("%", " %"))
    own = statistics.mean(r.parts["program"] / r.step for r in rows)
    return f"nothing stands out: {own:.0%} of the step is the program's own work".replace("%", " %")


def _least(rows: Sequence[Row], *parts: str) -> float:
    """Share of the step, of the rank that has least of it: waiting for a slow rank is not in it."""
    return min(sum(r.parts[part] for part in parts) / r.step for r in rows)


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.mean(getattr(r, name) for r in rows)


def _straggler(rows: Sequence[Row]) -> tuple[float, str]:
    slow = min(rows, key=lambda r: r.waited / r.step)
    others = [r.waited / r.step for r in rows if r is not slow]
    if not others:
        return 0.0, ""
    return statistics.mean(others) - slow.waited / slow.step, (
        f"{{share}} of the step waits for rank {slow.rank}: its program takes longer than the "
        "others', or its machine is slower or has other work (horonrun top shows it while it runs)"
    )


def _one_by_one(rows: Sequence[Row]) -> tuple[float, str]:
    waits, tensors = _mean(rows, "waits"), _mean(rows, "tensors")
    if tensors < _MANY or waits < 0.5 * tensors:
        return 0.0, ""
    return _least(rows, *_PARTS[1:]), (
        f"the program waits {waits:.0f} times a step, {{share}} of it: submit the tensors together "
        "(grouped_allreduce, the ..._async calls, DistributedOptimizer) and wait once"
    )


def _small(rows: Sequence[Row], threshold: int | None) -> tuple[float, str]:
    buckets, tensors = _mean(rows, "buckets"), _mean(rows, "tensors")
    size = _mean(rows, "bytes") / buckets if buckets else 0.0
    if buckets < _MANY or size >= _SMALL_BYTES or 2 * _mean(rows, "waits") > tensors:
        return 0.0, ""
    cure = "group them (grouped_allreduce, num_groups=)"
    if threshold is not None and threshold < 2 * _SMALL_BYTES:
        cure = f"HORON_FUSION_THRESHOLD={threshold} is too small, leave it at its default"
    return _least(rows, *_PARTS[1:]), (
        f"{buckets:.0f} messages of {size / 1e3:.1f} kB a step take {{share}} of it: {cure}"
    )


def _copies(rows: Sequence[Row]) -> tuple[float, str]:
    return _least(rows, "copy"), (
        "{share} of the step copies gradients into and out of shared memory: "
        "DistributedOptimizer(gradient_as_bucket_view=True) keeps them there"
    )


def _negotiated(rows: Sequence[Row]) -> tuple[float, str]:
    if _mean(rows, "locked") > 0.5:
        return 0.0, ""
    return _least(rows, "negotiate"), (
        "{share} of the step passes until the ranks have agreed: steps that submit the same "
        "tensors, by the same names, need not (HORON_LOCK_SCHEDULE)"
    )


def _in_turn(rows: Sequence[Row]) -> tuple[float, str]:
    if len(rows) < 2:
        return 0.0, ""
    return _least(rows, "others"), (
        "the ranks wait {share} of the step for each other, in turn: their steps take unequally "
        "long (data of different length, other work on the machines)"
    )


def _bare(rows: Sequence[Row]) -> tuple[float, str]:
    if _mean(rows, "hidden") > 0.3:
        return 0.0, ""
    return 0.7 * _least(rows, "wire", "reduce"), (
        "hardly anything of the communication runs beside the program: reduce while the gradients "
        "are made (DistributedOptimizer), or submit earlier what is waited for"
    )


def _wire(rows: Sequence[Row]) -> tuple[float, str]:
    return 0.5 * _least(rows, "wire"), (
        "the wire is what a step waits for: send less (compression=hvd.Compression.fp16, "
        "backward_passes_per_step=, op=hvd.Gossip(...))"
    )


# --- the report -----------------------------------------------------------------------------------


def report(
    figures: Mapping[int, Mapping[str, int]], size: int, threshold: int | None = None
) -> list[str]:
    """Lines for a job of `size` ranks; empty if no rank was asked."""
    if not any(figures.values()):
        return []
    rows = [made for rank in sorted(figures) if (made := row(rank, figures[rank])) is not None]
    if not rows:
        return ["nothing to explain: no tensor came twice under its name, so there are no steps "
                "(name= says which tensor it is)"]
    lines = [
        f"where the time of a step went: {_mean(rows, 'steps'):.0f} steps of "
        f"{_time(_mean(rows, 'step'))}, {_mean(rows, 'tensors'):.0f} tensors in "
        f"{_mean(rows, 'buckets'):.0f} messages, {_mean(rows, 'bytes') / 1e6:.3g} MB",
        f"{'rank':>6} " + " ".join(f"{part:>10}" for part in _PARTS) + "   hidden",
    ]
    shown = sorted(rows, key=lambda r: r.waited / r.step) if len(rows) > _MOST_ROWS else rows
    lines += [_line(str(r.rank), r.parts, r.hidden) for r in shown[:_MOST_ROWS]]
    if len(rows) > 1:
        mean = {part: statistics.mean(r.parts[part] for r in rows) for part in _PARTS}
        lines.append(_line("mean", mean, _mean(rows, "hidden")))
    silent = sorted(set(range(size)) - {r.rank for r in rows})
    if silent:
        lines.append(f"nothing is known of rank {', '.join(map(str, silent))}")
    return [*lines, advice(rows, threshold)]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _line(who: str, parts: Mapping[str, float], hidden: float) -> str:
    times = " ".join(f"{_time(parts[part]):>10}" for part in _PARTS)
    return f"{who:>6} {times}   {hidden:>5.0%}"
