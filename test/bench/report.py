"""Tables and the picture: nccl-tests' words, medians, ratios of rounds that ran side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from math import comb
from statistics import median

import quoted
from workloads import BYTES, Workload, link_share


@dataclass
class Round:
    """One library's iterations of one workload in one round."""

    library: str
    round: int
    regime: str      # NEAR, FAR, MIXED (it changed meanwhile) or unknown
    seconds: list[float]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The order statistics between which the median of what these are drawn from lies, with 95 % or
    more, whatever its distribution. None for fewer than six."""
    values, below, cut = sorted(values), 0, 0
    while (below := below + comb(len(values), cut)) <= 0.025 * 2 ** len(values):
        cut += 1
    return (values[cut - 1], values[-cut]) if cut else None


def three_digits(value: float) -> str:
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


@dataclass
class Ratio:
    """Of two libraries' times, one value for each round in which both were measured."""

    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        found = interval(self.values)
        between = f" ({three_digits(found[0])}-{three_digits(found[1])})" if found else ""
        return three_digits(self.median) + between

    def as_json(self) -> dict:
        return {"median": self.median, "interval": interval(self.values),
                "rounds": len(self.values)}


@dataclass
class Row:
    """All rounds of one workload."""

    workload: Workload
    dtype: str
    np: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return self.workload.count * BYTES[self.dtype]

    def median(self, library: str, regime: str | None = None) -> float | None:
        seconds = [s for r in self.rounds if r.library == library and regime in (None, r.regime)
                   for s in r.seconds]
        return median(seconds) if seconds else None

    def algbw(self, seconds: float) -> float:
        """GB/s: the size over the time."""
        return self.bytes / seconds / 1e9

    def busbw(self, seconds: float) -> float:
        """GB/s over each rank's link: an allreduce must move 2(n-1)/n of the size, and so on."""
        return self.algbw(seconds) * link_share(self.workload.kind, self.np)

    def ratio(self, library: str, base: str) -> Ratio | None:
        """How many times the base's time this library takes, in each round, which ran both within
        seconds of each other."""
        mine, theirs = ({r.round: median(r.seconds) for r in self.rounds if r.library == name}
                        for name in (library, base))
        ratios = [mine[n] / theirs[n] for n in mine if n in theirs]
        return Ratio(ratios) if ratios else None

    def within(self, regime: str) -> Row:
        return Row(self.workload, self.dtype, self.np,
                   [r for r in self.rounds if r.regime == regime])


def text_of_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    us = seconds * 1e6
    if us < 100:
        return f"{us:.1f} us"
    return f"{us:.0f} us" if us < 10000 else f"{us / 1000:.1f} ms"


def nccl_table(rows: list[Row], libraries: list[str], header: bool) -> None:
    """As nccl-tests prints it, with a line for each library."""
    if header:
        print(f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'library':>16} "
              f"{'time':>10} {'algbw':>7} {'busbw':>7}")
        print(f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>16} "
              f"{'(us)':>10} {'(GB/s)':>7} {'(GB/s)':>7}")
    for row in rows:
        for library in libraries:
            seconds = row.median(library)
            if seconds is None:
                continue
            plain = row.workload.single and row.workload.kind == "allreduce"
            note = "" if plain else f"  {row.workload.name}"
            redop = "none" if row.workload.kind in ("broadcast", "allgather", "alltoall") else "sum"
            print(f"  {row.bytes:>12} {row.workload.count:>12} {row.dtype:>9} {redop:>6} "
                  f"{library:>16} {seconds * 1e6:>10.1f} {row.algbw(seconds):>7.3f} "
                  f"{row.busbw(seconds):>7.3f}{note}", flush=True)


def named(missing: dict[str, str], short: dict[str, str] | None = None, regime: str | None = None
          ) -> str:
    """What could not be measured, and why; and rows that have not all rounds of a regime."""
    lines = [f"Missing: {name} ({why}).\n" for name, why in missing.items()]
    lines += [f"Not got in {regime}: {name} ({why}).\n" for name, why in (short or {}).items()]
    return "".join(lines)


def regimes(rows: list[Row]) -> list[str]:
    return sorted({r.regime for row in rows for r in row.rounds}, reverse=True)


def told_regimes(rows: list[Row]) -> list[str]:
    """Without rounds in which the regime changed, unless there are no others."""
    found = regimes(rows)
    return [regime for regime in found if regime != "MIXED"] or found


def rounds_by_regime(rows: list[Row]) -> str:
    counts = {regime: sum(len({r.round for r in row.within(regime).rounds}) for row in rows)
              for regime in regimes(rows)}
    return ", ".join(f"{count} {regime}" for regime, count in counts.items()) or "none"


def markdown(rows: list[Row], libraries: list[str], base: str, loops: tuple[str, ...] = ()) -> str:
    """For each regime the medians by library, then how much longer than the base each other one
    takes. Of the loops, the best one for private tensors, as a share of the base's time."""
    lines = []
    for regime in regimes(rows):
        here = [row.within(regime) for row in rows]
        here = [row for row in here if row.rounds]
        lines += [f"Regime {regime}, time:", "", *times_table(here, libraries, base), "",
                  f"Regime {regime}, ratio of times (95 % interval):", "",
                  *ratios_table(here, libraries, base, loops), ""]
    return "\n".join(lines)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Its lines, without columns that say nothing."""
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    lines = [[cells[i] for i in kept] for cells in (head, ["---"] * len(head), *rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def times_table(rows: list[Row], libraries: list[str], base: str) -> list[str]:
    head = ["reduced", "rounds", *libraries, "Horovod, quoted", f"{base} busbw"]
    cells = []
    for row in rows:
        own = row.median(base)
        cells.append([row.workload.name, str(len({r.round for r in row.rounds})),
                      *(text_of_time(row.median(library)) for library in libraries),
                      horovod(row), f"{row.busbw(own):.2f} GB/s" if own else "-"])
    return table(head, cells)


def horovod(row: Row) -> str:
    if row.dtype != (row.workload.dtype or "float32"):
        return "-"
    return quoted.ALLREDUCE.get((row.workload.name, row.np), "-")


def ratios_table(rows: list[Row], libraries: list[str], base: str,
                 loops: tuple[str, ...]) -> list[str]:
    others = [library for library in libraries if library != base and library not in loops]
    pairs = [(library, base) for library in others]
    pairs += [(library, "horon-shared") for library in ("mpi", "in-place")]
    head = ["reduced", *(f"{library} / {under}" for library, under in pairs), f"best loop / {base}"]
    cells = []
    for row in rows:
        ratios = [row.ratio(*pair) for pair in pairs] + [best_loop(row, base, loops)]
        cells.append([row.workload.name, *(str(ratio or "-") for ratio in ratios)])
    return table(head, cells)


def best_loop(row: Row, base: str, loops: tuple[str, ...]) -> Ratio | None:
    """Of those for private tensors."""
    ratios = [row.ratio(loop, base) for loop in loops if loop != "in-place"]
    return min(filter(None, ratios), key=lambda ratio: ratio.median, default=None)


def as_json(rows: list[Row], base: str, about: dict) -> dict:
    return {**about, "rows": [{
        "name": row.workload.name, "bytes": row.bytes, "count": row.workload.count,
        "tensors": len(row.workload.shapes), "kind": row.workload.kind,
        "dtype": row.dtype, "np": row.np, "ratios": ratios_of(row, base),
        "rounds": [vars(r) for r in row.rounds],
    } for row in rows]}


def ratios_of(row: Row, base: str) -> dict:
    """By regime and library, over the base."""
    found: dict = {}
    for regime in regimes([row]):
        here = row.within(regime)
        for library in dict.fromkeys(r.library for r in here.rounds):
            ratio = here.ratio(library, base)
            if ratio and library != base:
                found.setdefault(regime, {})[library] = ratio.as_json()
    return found


def plot(rows: list[Row], libraries: list[str], path: str, title: str) -> None:
    """Time over size, both logarithmic, a panel for each regime: a line a library, points for
    single rounds. Rounds in which the regime changed have none, unless there are no others, nor has
    a regime in which few of the sizes were measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    single = [row for row in rows if row.workload.single and row.workload.kind == "allreduce"]
    told = told_regimes(single) or ["unknown"]
    shown = [regime for regime in told
             if 2 * sum(bool(row.within(regime).rounds) for row in single) >= len(single)] or told
    figure, panels = pyplot.subplots(1, len(shown), figsize=(2 + 6 * len(shown), 5), sharey=True,
                                     squeeze=False, layout="constrained")
    drawn = [library for library in libraries if any(row.median(library) for row in single)]
    colours = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
    for axes, regime in zip(panels[0], shown):
        here = [row.within(regime) for row in single]
        for library, colour in zip(drawn, cycle(colours)):
            draw(axes, here, library, colour)
        alone = title if regime == "unknown" else f"{title}, {regime}"
        axes.set(xlabel="size (bytes)", title=regime if len(shown) > 1 else alone)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(True, which="major", alpha=0.3)
    panels[0][0].set(ylabel="time (us)")
    most = max((axes.get_legend_handles_labels() for axes in panels[0]), key=lambda of: len(of[1]))
    figure.legend(*most, loc="outside right center")
    if len(shown) > 1:
        figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw(axes, rows: list[Row], library: str, colour: str) -> None:
    points = [(row.bytes, row.median(library)) for row in rows]
    points = [(size, seconds * 1e6) for size, seconds in points if seconds is not None]
    rounds = [(row.bytes, median(r.seconds) * 1e6) for row in rows for r in row.rounds
              if r.library == library]
    if points:
        line = "--" if library == "mpi-other" else "-"  # it lies on the first one's
        axes.plot(*zip(*points), line, marker="o", markersize=4, label=library, color=colour)
        axes.plot(*zip(*rounds), ".", markersize=3, alpha=0.4, color=colour)
