"""Tables and the picture: nccl-tests' words, medians, ratios of rounds that ran side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from workloads import BYTES, Workload, link_share


@dataclass
class Round:
    """One library's iterations of one workload in one round."""

    library: str
    round: int
    regime: str      # NEAR, FAR, MIXED (it changed meanwhile) or unknown
    seconds: list[float]


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

    def ratio(self, library: str, base: str) -> float | None:
        """How many times the base's time this library takes: the median over rounds, each of which
        ran both within seconds of each other."""
        mine, theirs = ({r.round: median(r.seconds) for r in self.rounds if r.library == name}
                        for name in (library, base))
        ratios = [mine[n] / theirs[n] for n in mine if n in theirs]
        return median(ratios) if ratios else None


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
        print(f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'library':>13} "
              f"{'time':>10} {'algbw':>7} {'busbw':>7}")
        print(f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>13} "
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
                  f"{library:>13} {seconds * 1e6:>10.1f} {row.algbw(seconds):>7.3f} "
                  f"{row.busbw(seconds):>7.3f}{note}", flush=True)


def regimes(rows: list[Row]) -> list[str]:
    return sorted({r.regime for row in rows for r in row.rounds}, reverse=True)


def markdown(rows: list[Row], libraries: list[str], base: str, loops: tuple[str, ...] = ()) -> str:
    """Medians by library and, behind the base's column, how much longer each other one takes. Of
    the loops, the best one for private tensors, as a share of the base's time."""
    loops = tuple(loop for loop in loops if loop in libraries)
    others = [library for library in libraries if library != base and library not in loops]
    lines = []
    for regime in regimes(rows):
        lines += [f"Regime {regime}:", ""]
        head = ["reduced", *(f"{library} time" for library in libraries), f"{base} busbw"]
        head += [f"{library} / {base}" for library in others]
        head += [f"best loop / {base}"] if loops else []
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in rows:
            rounds = [r for r in row.rounds if r.regime == regime]
            if rounds:
                here = Row(row.workload, row.dtype, row.np, rounds)
                cells = cells_of(here, libraries, base, others, loops)
                lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def cells_of(row: Row, libraries: list[str], base: str, others: list[str],
             loops: tuple[str, ...]) -> list[str]:
    own = row.median(base)
    cells = [row.workload.name, *(text_of_time(row.median(library)) for library in libraries)]
    cells.append(f"{row.busbw(own):.2f} GB/s" if own else "-")
    ratios = [row.ratio(library, base) for library in others]
    if loops:
        private = [row.ratio(loop, base) for loop in loops if loop != "in-place"]
        ratios.append(min((ratio for ratio in private if ratio), default=None))
    return cells + [f"{ratio:.2f}" if ratio else "-" for ratio in ratios]


def as_json(rows: list[Row], about: dict) -> dict:
    return {**about, "rows": [{
        "name": row.workload.name, "bytes": row.bytes, "count": row.workload.count,
        "tensors": len(row.workload.shapes), "kind": row.workload.kind,
        "dtype": row.dtype, "np": row.np,
        "rounds": [vars(r) for r in row.rounds],
    } for row in rows]}


def plot(rows: list[Row], libraries: list[str], path: str, title: str) -> None:
    """Time over size, both logarithmic: a line a library, points for single rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    single = [row for row in rows if row.workload.single and row.workload.kind == "allreduce"]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for library in libraries:
        points = [(row.bytes, row.median(library)) for row in single]
        points = [(size, seconds * 1e6) for size, seconds in points if seconds is not None]
        if not points:
            continue
        line, = axes.loglog(*zip(*points), marker="o", markersize=4, label=library)
        scattered = [(row.bytes, median(r.seconds) * 1e6) for row in single for r in row.rounds
                     if r.library == library]
        axes.loglog(*zip(*scattered), ".", markersize=3, alpha=0.4, color=line.get_color())
    axes.set(xlabel="size (bytes)", ylabel="time (us)", title=title)
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
