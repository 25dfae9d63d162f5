"""What Horon must reach, and whether rows that were measured show it.

    python test/bench/goals.py build/bench.json build/bench-4.json ...

prints the goals of several runs as one table, from the files that they left with --json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import machine
import quoted
import report

HEAD = ["work", "regime, rounds", "goal", "measured", "reached"]
ROUNDS = 30  # decide whether one is not slower than another
NOT_SLOWER = 1 / 1.05  # what the 95 % interval of peer / Horon then stays above
SHARE = 0.87  # of the steps of training without communication
IDLE_CORE, IDLE_SWITCHES = 0.005, 1  # of a runtime that only waits; switches a second
GLOO, MPI = ("gloo", "gloo-buckets", "gloo-views"), ("mpi", "mpi-other")
PRIVATE_LOOPS, IN_PLACE = ("streamed", "staged"), ("in-place",)
NAMES = {GLOO: "gloo", MPI: "Open MPI", IN_PLACE: "the in-place loop",
         PRIVATE_LOOPS: "the best loop"}
PLACES = {"horon": "", "horon-shared": "shared tensors: ",
          "horon-views": "gradient_as_bucket_view: "}


class NotMeasured(Exception):
    """What a goal needs and a row lacks."""

    def __init__(self, libraries: Iterable[str]) -> None:
        super().__init__()
        self.libraries = tuple(libraries)


@dataclass
class Found:
    words: str
    rounds: int
    reached: str


def yes_or_no(reached: bool) -> str:
    return "yes" if reached else "**no**"


def against(row: report.Row, others: tuple[str, ...], horon: str) -> tuple[str, report.Ratio]:
    """The fastest of the others, and its time over Horon's."""
    if row.median(horon) is None:
        raise NotMeasured([horon])
    ratios = {name: ratio for name in others if (ratio := row.ratio(name, horon))}
    if not ratios:
        raise NotMeasured(others)
    return min(ratios.items(), key=lambda item: item[1].median)


@dataclass(frozen=True)
class Goal:
    """`words` say it, `find` judges a row of one regime; it raises NotMeasured."""

    @property
    def words(self) -> str:
        raise NotImplementedError

    def find(self, row: report.Row) -> Found:
        raise NotImplementedError

    def counts_in(self, regime: str) -> bool:
        return True


@dataclass(frozen=True)
class AtMost(Goal):
    """Of the libraries the fastest counts."""

    seconds: float
    libraries: tuple[str, ...] = ("horon",)
    way: str = ""

    @property
    def words(self) -> str:
        limit = self.seconds * 1e6
        return self.way + (f"at most {limit:g} us" if limit < 1000 else
                           f"at most {limit / 1000:g} ms")

    def find(self, row: report.Row) -> Found:
        times = {name: time for name in self.libraries
                 if (time := row.median(name)) is not None}
        if not times:
            raise NotMeasured(self.libraries)
        name, time = min(times.items(), key=lambda item: item[1])
        which = f" ({name})" if len(self.libraries) > 1 else ""
        rounds = sum(r.library == name for r in row.rounds)
        return Found(report.text_of_time(time) + which, rounds, yes_or_no(time <= self.seconds))


@dataclass(frozen=True)
class Faster(Goal):
    """So many times faster than the peer, whose faster way counts."""

    peers: tuple[str, ...]
    times: float = 1
    horon: str = "horon"
    only: str = ""  # this regime

    @property
    def words(self) -> str:
        times = f"{self.times:g} times " if self.times > 1 else ""
        return f"{PLACES[self.horon]}{times}faster than {NAMES[self.peers]}"

    def find(self, row: report.Row) -> Found:
        peer, ratio = against(row, self.peers, self.horon)
        which = f" ({peer})" if len(self.peers) > 1 else ""
        reached = ratio.median >= self.times if self.times > 1 else ratio.median > 1
        return Found(f"{ratio} times{which}", len(ratio.values), yes_or_no(reached))

    def counts_in(self, regime: str) -> bool:
        return self.only in ("", regime)


@dataclass(frozen=True)
class NotSlower(Goal):
    peers: tuple[str, ...] = MPI

    @property
    def words(self) -> str:
        return f"not slower than {NAMES[self.peers]}"

    def find(self, row: report.Row) -> Found:
        peer, ratio = against(row, self.peers, "horon")
        between, rounds = report.interval(ratio.values), len(ratio.values)
        if rounds < ROUNDS or between is None:
            reached = "too few rounds"
        else:
            reached = yes_or_no(between[0] > NOT_SLOWER)
        return Found(f"{ratio} times as fast ({peer})", rounds, reached)


@dataclass(frozen=True)
class Within(Goal):
    """At most so many times as long as what the memory allows."""

    times: float
    loops: tuple[str, ...] = PRIVATE_LOOPS
    horon: str = "horon"

    @property
    def words(self) -> str:
        return f"{PLACES[self.horon]}at most {self.times:g} of {NAMES[self.loops]}"

    def find(self, row: report.Row) -> Found:
        loop, _ = against(row, self.loops, self.horon)
        ratio = row.ratio(self.horon, loop)
        which = f" ({loop})" if len(self.loops) > 1 else ""
        return Found(f"{ratio}{which}", len(ratio.values), yes_or_no(ratio.median <= self.times))


@dataclass(frozen=True)
class Share(Goal):
    """At most so much of another seat's time."""

    seat: str
    over: str
    times: float

    @property
    def words(self) -> str:
        return f"{self.seat}: at most {self.times:g} of {self.over}"

    def find(self, row: report.Row) -> Found:
        ratio = row.ratio(self.seat, self.over)
        if ratio is None:
            raise NotMeasured(name for name in (self.seat, self.over) if row.median(name) is None)
        return Found(str(ratio), len(ratio.values), yes_or_no(ratio.median <= self.times))


@dataclass(frozen=True)
class FasterThanQuoted(Goal):
    """Than Horovod's figure, which the run has not measured."""

    text: str

    @property
    def words(self) -> str:
        return f"faster than Horovod, quoted: {self.text}"

    def find(self, row: report.Row) -> Found:
        time = row.median("horon")
        if time is None:
            raise NotMeasured(["horon"])
        rounds = sum(r.library == "horon" for r in row.rounds)
        return Found(report.text_of_time(time), rounds, yes_or_no(time < quoted.best(self.text)))


def horovod(name: str, ranks: int) -> FasterThanQuoted:
    return FasterThanQuoted(quoted.ALLREDUCE[name, ranks])


SET = [Within(1.15), NotSlower(), Faster(GLOO, 2.5), Within(1.2, IN_PLACE, "horon-shared"),
       Within(1.2, IN_PLACE, "horon-views")]
# By the name of what is reduced, in float32, and the number of ranks.
GOALS: dict[tuple[str, int], list[Goal]] = {
    ("4 B", 2): [AtMost(10e-6), Faster(GLOO, 15)],
    ("100 x 4 B, one by one", 2): [AtMost(1e-3), Faster(GLOO, 15)],
    ("64 KiB", 2): [NotSlower()],
    ("1 MiB", 2): [NotSlower(), Faster(MPI, 5, "horon-shared")],
    ("64 MiB", 2): [Within(1.15), Faster(MPI, 3, only="NEAR"),
                    Within(1.2, IN_PLACE, "horon-shared")],
    ("ResNet-50", 2): SET,
    ("BERT-base", 2): SET,
    ("1,000 x 1 KiB", 2): [
        AtMost(1.2e-3, ("horon-registered", "horon-grouped"), "registered or grouped: "),
        AtMost(2.2e-3, way="by name: ")],
    **{(f"{kind} 64 MiB", 2): [Faster(GLOO), horovod(f"{kind} 64 MiB", 2), NotSlower()]
       for kind in ("broadcast", "allgather", "alltoall", "reducescatter")},
    ("4 B", 4): [AtMost(60e-6)],
    ("100 x 4 B, one by one", 4): [AtMost(6e-3), Faster(GLOO)],
    **{(name, 4): [Faster(GLOO), horovod(name, 4), Faster(MPI)]
       for name in ("64 MiB", "ResNet-50")},
}


def of(rows: list[report.Row], missing: Iterable[str] = (), regime: str | None = None,
       note: str = "", asked: Collection[str] | None = None) -> list[list[str]]:
    """The cells of the rows' goals, by regime. Rounds in which it changed count only where there
    are no others. `missing` could not be measured; `regime` is what was asked for; `note` is added
    to the name of the work; goals that need others than `asked` are left out."""
    return [line for row in rows if row.dtype == "float32"
            for line in lines_of(row, GOALS.get((row.workload.name, row.np), []), set(missing),
                                 regime, note, asked)]


def lines_of(row: report.Row, goals: list[Goal], missing: set[str] = frozenset(),
             regime: str | None = None, note: str = "",
             asked: Collection[str] | None = None) -> list[list[str]]:
    work = row.workload.name + (f", {row.np} ranks" if row.np != 2 else "") + note
    lines = [line_of(row.within(here), here, goal, missing, asked)
             for here in report.told_regimes([row]) or [regime or "-"]
             for goal in goals if goal.counts_in(here)]
    return [[work, *line] for line in lines if line]


def line_of(row: report.Row, regime: str, goal: Goal, missing: set[str],
            asked: Collection[str] | None = None) -> list[str]:
    """Empty where the goal is about libraries that nobody has asked for."""
    try:
        found = goal.find(row)
    except NotMeasured as lacks:
        if asked is not None and set(lacks.libraries).isdisjoint(asked):
            return []
        rounds = len({r.round for r in row.rounds})
        gone = missing.intersection(lacks.libraries)
        said = "missing: " + ", ".join(sorted(gone)) if gone else "not measured"
        if rounds and not gone:
            said += ": " + ", ".join(lacks.libraries)
        return [f"{regime}, {rounds}", goal.words, said, "-"]
    return [f"{regime}, {found.rounds}", goal.words, found.words, found.reached]


def training(way: str, regime: str, share: report.Ratio) -> list[str]:
    """Of the steps without communication, in this regime."""
    rounds = len(share.values)
    line = [f"training, {way}", f"{regime}, {rounds}", f"at least {SHARE} of the steps without "
            "communication"]
    if not rounds:
        return [*line, "not measured", "-"]
    reached = yes_or_no(share.median >= SHARE) if rounds >= ROUNDS else "too few rounds"
    return [*line, str(share), reached]


def idle(meanwhile: str, core: float, switches: float, seconds: float) -> list[list[str]]:
    work = f"the runtime of a rank that {meanwhile} for {seconds:g} s"
    return [[work, "-, 1", f"at most {IDLE_CORE * 100:g} % of a core", f"{core * 100:.3f} %",
             yes_or_no(core <= IDLE_CORE)],
            [work, "-, 1", f"at most {IDLE_SWITCHES} voluntary switch a second",
             f"{switches:.2f}", yes_or_no(switches <= IDLE_SWITCHES)]]


def table(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (HEAD, ["---"] * len(HEAD), *lines))


def section(lines: list[list[str]]) -> str:
    """Under its title; empty without goals."""
    return f"Goals:\n\n{table(lines)}\n" if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="what they have left with --json")
    parser.add_argument("--markdown", type=Path, help="file for what is printed")
    options = parser.parse_args()
    left = [path for path in options.runs if path.exists()]
    runs = [json.loads(path.read_text()) for path in left]
    missing = {name: why for run in runs for name, why in run.get("missing", {}).items()}
    missing |= {path.name: "the run left no figures" for path in options.runs if path not in left}
    about = {name: words for run in runs[:1] for name, words in run["machine"].items()
             if name != "rounds"}
    text = "\n".join([machine.lines(about), table([line for run in runs for line in run["goals"]]),
                      report.named(missing)])
    print(text, end="")
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
