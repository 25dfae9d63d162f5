"""Libraries that are measured in turn, round after round, while the ranks of the others sleep."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import machine
import report
import workloads
from groups import LOOPS, MPI, Group, Missing, compiled, turned


BETWEEN_LOOKS_S = 0.2  # at the regime, while another one is waited for
# Rounds over the same memory. Where caches are far the same loop takes up to 1.5 times as long over
# one memory as over another.
ROUNDS_A_MEMORY = 6
WARM_UP = 5  # iterations over new memory: pages are touched, schedules locked


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7,
                        help="interleaved rounds in one regime (default 7); a row ends without "
                             "them after --most-rounds")
    parser.add_argument("--most-rounds", type=int, default=None,
                        help="of a row in all (default: half as many again as --rounds)")
    parser.add_argument("--regime", choices=("NEAR", "FAR"),
                        help="only what begins and ends in this regime, which is waited for")
    parser.add_argument("--patience", type=float, default=120,
                        help="seconds a row may take with --regime (default 120); what it has "
                             "not got by then stays out")
    parser.add_argument("--seconds", type=float, default=0.2,
                        help="about how long a library is measured in one round (default 0.2)")
    parser.add_argument("--most-iterations", type=int, default=200,
                        help="in one round (default 200)")
    parser.add_argument("--launcher", choices=("horonrun", "mpirun"), default="horonrun",
                        help="what starts Horon's ranks (default horonrun)")
    parser.add_argument("--pingpong", help="program that tells the regime; built if not given")
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--markdown", help="file for the table that is printed")


class PingPong:
    """Tells the machine's regime. Built once a run, from one small C++ file, unless given."""

    def __init__(self, program: str | None, folder: Path) -> None:
        self.program = program
        if program is None and shutil.which(os.environ.get("CXX", "c++")):
            self.program = compiled("pingpong.cc", folder / "pingpong", "-O2", "-pthread")

    def ask(self) -> tuple[str, float | None]:
        if self.program is None:
            return "unknown", None
        said = subprocess.run([self.program], check=True, capture_output=True, text=True,
                              timeout=60)
        ns, regime = said.stdout.split()
        return regime, float(ns)

    def wait_for(self, regime: str | None, until: float) -> str:
        """The regime, once it is this one (None: any), or it is too late."""
        now, _ = self.ask()
        while regime not in (None, now) and time.monotonic() < until:
            time.sleep(BETWEEN_LOOKS_S)
            now, _ = self.ask()
        return now


@dataclass(frozen=True)
class Seat:
    """What takes part under a name of its own."""

    library: str
    np: int
    dtype: str


class Bench:
    def __init__(self, options: argparse.Namespace, seats: dict[str, Seat], folder: Path) -> None:
        self.options, self.seats = options, seats
        self.groups: dict[str, Group] = {}
        self.missing: dict[str, str] = {}
        self.short: dict[str, str] = {}  # rows that lack rounds of the regime that was asked for
        self.hopeless: bool | None = None  # the first row found none: the others are not tried
        self.machine = machine.about()  # before its load is this run's own
        self.pingpong = PingPong(options.pingpong, folder)
        if options.regime and self.pingpong.program is None:
            sys.exit("--regime: nothing tells it here; install a C++ compiler, or give --pingpong")
        for name, seat in seats.items():
            try:
                self.groups[name] = Group(seat.library, seat.np, folder, options.launcher, name)
                print(f"# {name}: {self.groups[name].note}", flush=True)
            except Missing as missing:
                self.give_up(name, missing)

    def give_up(self, library: str, missing: Missing) -> None:
        self.missing[library] = str(missing)
        self.groups.pop(library, None)
        print(f"# missing: {library} ({missing})", flush=True)

    def measure(self, library: str, workload: workloads.Workload, iterations: int,
                memory: int = 0) -> list[float]:
        """Empty if the library is missing, or goes missing now."""
        if library not in self.groups:
            return []
        try:
            return self.groups[library].measure(workload, self.seats[library].dtype, iterations,
                                                memory, WARM_UP)
        except Missing as missing:
            self.give_up(library, missing)
            return []

    def forget(self, library: str) -> None:
        try:
            self.groups[library].forget()
        except Missing as missing:
            self.give_up(library, missing)

    def run(self, workload: workloads.Workload, without: Collection[str] = ()) -> report.Row:
        """Warms every library up, which also shows how many iterations fit, then goes round.
        `without`: who does not take part."""
        first = next(iter(self.seats.values()))
        row = report.Row(workload, workload.dtype or first.dtype, first.np)
        tried = not self.hopeless
        if tried:
            self.go_round(row, [name for name in self.wanted(workload) if name not in without])
        rounds = len({r.round for r in row.rounds})
        if self.options.regime and rounds < self.options.rounds:
            self.short[workload.name] = (f"{rounds} of {self.options.rounds} rounds"
                                         + ("" if tried else ", not tried"))
            print(f"# {workload.name}: {self.short[workload.name]}", flush=True)
        if self.hopeless is None:
            self.hopeless = self.options.regime is not None and rounds == 0
        return row

    def go_round(self, row: report.Row, libraries: list[str]) -> None:
        workload, iterations = row.workload, {}
        for library in list(self.groups):  # what the row before had, before any has this one's
            self.forget(library)
        for library in libraries:
            probe = self.measure(library, workload, 3)
            if probe:
                fitting = int(self.options.seconds / max(min(probe), 1e-9))
                iterations[library] = max(3, min(self.options.most_iterations, fitting))
        until = time.monotonic() + self.options.patience
        number, now = 0, self.pingpong.wait_for(self.options.regime, until)
        while (self.counts(now) and not self.late(until)
               and not self.enough(row, list(iterations), number)):
            round_of_all = []
            for library in turned(list(iterations), number):
                taken, now = self.measured(library, row, iterations[library], number, now, until)
                round_of_all += taken
            if self.late(until) and len(round_of_all) < len(self.groups.keys() & iterations):
                break
            row.rounds += round_of_all
            number += 1

    def measured(self, library: str, row: report.Row, iterations: int, number: int, now: str,
                 until: float) -> tuple[list[report.Round], str]:
        """One library's part of a round, and the regime after it; `now`: before it. Where one
        regime was asked for, again until it has stayed; nothing if it is too late for that, or the
        library goes missing."""
        while True:
            seconds = self.measure(library, row.workload, iterations, number // ROUNDS_A_MEMORY)
            before, now = now, self.pingpong.ask()[0]
            regime = before if before == now else "MIXED"
            if not self.counts(now):
                now = self.pingpong.wait_for(self.options.regime, until)
            if seconds and self.counts(regime):
                return [report.Round(library, number, regime, seconds)], now
            if not seconds or self.late(until):
                return [], now

    def enough(self, row: report.Row, libraries: list[str], number: int) -> bool:
        """Some regime has all rounds, or the machine changes too often for that."""
        told = max((self.together(row.within(regime), libraries)
                    for regime in report.regimes([row]) if regime != "MIXED"), default=0)
        most = self.options.most_rounds or self.options.rounds * 3 // 2
        return told >= self.options.rounds or number >= most

    def together(self, row: report.Row, libraries: list[str]) -> int:
        """The rounds that each has with the first one, at least."""
        of = [{r.round for r in row.rounds if r.library == library}
              for library in libraries if library in self.groups]
        return min((len(of[0] & rounds) for rounds in of), default=self.options.rounds)

    def late(self, until: float) -> bool:
        return self.options.regime is not None and time.monotonic() >= until

    def counts(self, regime: str) -> bool:
        return self.options.regime in (None, regime)

    def wanted(self, workload: workloads.Workload) -> list[str]:
        return [name for name in self.groups
                if suits(self.seats[name].library, workload, self.seats[name].dtype)]

    def stop(self) -> None:
        for group in self.groups.values():
            group.stop()

    def about(self) -> dict:
        return {"machine": self.machine, "missing": self.missing, "short": self.short,
                "notes": {name: group.note for name, group in self.groups.items()}}


def suits(library: str, workload: workloads.Workload, dtype: str) -> bool:
    """Some differ from single calls only where there are several tensors; MPI adds no 16-bit
    floats, and the loops take nothing but float32."""
    dtype, at_once = workload.dtype or dtype, workload.kind == "allreduce"
    if library in ("gloo-buckets", "gloo-views", "horon-registered", "horon-views",
                   "horon-grouped"):
        return at_once and not workload.single
    if library in MPI:
        return not workload.reduces or workloads.BYTES[dtype] > 2
    if library in LOOPS:
        return at_once and dtype == "float32"
    return workload.reduces or library != "horon-shared"
