"""Tables of one seat's time over another's, where all are measured in turn (interleaved.py)."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import goals
import machine
import report
from interleaved import Bench, Seat, add_options
from workloads import Workload


@dataclass
class Comparison:
    what: str
    over: str
    goals: dict[str, float] = field(default_factory=dict)  # by set: at most so many times as long


@dataclass
class Table:
    """What is measured, and what is compared in each set. `quoted` gives a cell's words from
    elsewhere, under the title that comes with it."""

    sets: list[Workload]
    seats: dict[str, Seat]
    comparisons: list[Comparison]
    quoted: Callable[[str, Seat], str | None] = lambda name, seat: None
    quoted_title: str = ""

    def line_of(self, row: report.Row, compared: Comparison) -> list[str]:
        ratio = row.ratio(compared.what, compared.over)
        goal = compared.goals.get(row.workload.name)
        return [row.workload.name, str(len(ratio.values) if ratio else 0), compared.what,
                report.text_of_time(row.median(compared.what)), compared.over,
                report.text_of_time(row.median(compared.over)), str(ratio or "-"), str(goal or "-"),
                goals.yes_or_no(ratio.median <= goal) if ratio and goal else "-",
                self.quoted(row.workload.name, self.seats[compared.what]) or "-"]

    def markdown(self, rows: list[report.Row], missing: dict[str, str]) -> str:
        head = ["reduced", "rounds", "what", "time", "over", "its time", "ratio (95 %)", "goal",
                "reached", self.quoted_title]
        lines = []
        for regime in report.regimes(rows):
            here = [row.within(regime) for row in rows]
            cells = [self.line_of(row, compared) for row in here if row.rounds
                     for compared in self.comparisons]
            lines += [f"Regime {regime}:", "", *report.table(head, cells), ""]
        return "\n".join(lines) + report.named(missing)

    def goals_of(self, rows: list[report.Row], missing: dict[str, str],
                 regime: str | None) -> list[list[str]]:
        """Cells as goals.py has them."""
        return [line for row in rows for line in goals.lines_of(
            row, [goals.Share(one.what, one.over, one.goals[row.workload.name])
                  for one in self.comparisons if row.workload.name in one.goals],
            set(missing), regime)]

    def run(self, description: str, base: str) -> None:
        """A benchmark's main. JSON has each library's time over the base's."""
        options = self.parse(description)
        with tempfile.TemporaryDirectory(prefix="horon-bench-") as folder:
            bench = Bench(options, self.seats, Path(folder))
            try:
                rows = [bench.run(one) for one in self.sets if one.name in options.only]
                facts = bench.about()
            finally:
                bench.stop()
        facts["machine"]["rounds"] = report.rounds_by_regime(rows)
        facts["goals"] = self.goals_of(rows, facts["missing"], options.regime)
        text = f"{machine.lines(facts['machine'])}\n{self.markdown(rows, facts['missing'])}"
        text += report.named({}, facts["short"], options.regime)
        print(f"\n{text}")
        if options.markdown:
            Path(options.markdown).write_text(text)
        if options.json:
            Path(options.json).write_text(json.dumps(report.as_json(rows, base, facts)))

    def parse(self, description: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        names = [workload.name for workload in self.sets]
        parser.add_argument("--only", nargs="+", choices=names, default=names)
        add_options(parser)
        return parser.parse_args()
