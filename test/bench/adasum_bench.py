#!/usr/bin/env python3
"""Adasum beside Average and a C++ loop, interleaved in one run.

    python test/bench/adasum_bench.py --rounds 30 --json adasum.json --markdown adasum.md

Every op has ranks of its own, which sleep while another is measured, as in allreduce_bench.py. The
loop is what an Adasum of two ranks must compute and move (reference/adasum.cc). docs/benchmarks.md
explains how to read the output.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import quoted
import report
from interleaved import Bench, Seat, add_options
from workloads import Workload, gradient_order, resnet50_shapes

SETS = [Workload("1 MiB", ((1 << 18,),)), Workload("64 MiB", ((1 << 24,),)),
        Workload("ResNet-50", gradient_order(resnet50_shapes()))]
SEATS = {
    "Adasum": Seat("adasum", 2, "float32"), "Average": Seat("average", 2, "float32"),
    "two-pass loop": Seat("two-pass", 2, "float32"),
    "Adasum, float16": Seat("adasum", 2, "float16"),
    "Average, float16": Seat("average", 2, "float16"),
    "Adasum, bfloat16": Seat("adasum", 2, "bfloat16"),
    "Average, bfloat16": Seat("average", 2, "bfloat16"),
    "Adasum, 3 ranks": Seat("adasum", 3, "float32"),
    "Adasum, 4 ranks": Seat("adasum", 4, "float32"),
    "Average, 4 ranks": Seat("average", 4, "float32"),
}


@dataclass
class Comparison:
    what: str
    over: str
    goals: dict[str, float] = field(default_factory=dict)  # by set: at most so many times as long


HALF = dict.fromkeys((workload.name for workload in SETS), 0.7)
COMPARISONS = [
    Comparison("Adasum", "Average", {"1 MiB": 2, "64 MiB": 2, "ResNet-50": 1.6}),
    Comparison("Adasum", "two-pass loop", {"64 MiB": 1.2}),
    Comparison("Adasum, float16", "Adasum", HALF),
    Comparison("Adasum, float16", "Average, float16"),
    Comparison("Adasum, bfloat16", "Adasum", HALF),
    Comparison("Adasum, bfloat16", "Average, bfloat16"),
    Comparison("Adasum, 4 ranks", "Average, 4 ranks"),
    Comparison("Adasum, 3 ranks", "Adasum, 4 ranks",
               dict.fromkeys((workload.name for workload in SETS), 1.5)),
]
HEAD = ["reduced", "rounds", "what", "time", "over", "its time", "ratio (95 %)", "goal",
        "Horovod's Adasum, quoted"]


def line_of(row: report.Row, compared: Comparison) -> list[str]:
    ratio, goal = row.ratio(compared.what, compared.over), compared.goals.get(row.workload.name)
    seat = SEATS[compared.what]
    horovod = quoted.ADASUM.get((row.workload.name, seat.np)) if seat.dtype == "float32" else None
    return [row.workload.name, str(len(ratio.values) if ratio else 0), compared.what,
            report.text_of_time(row.median(compared.what)), compared.over,
            report.text_of_time(row.median(compared.over)), str(ratio or "-"), str(goal or "-"),
            horovod or "-"]


def markdown(rows: list[report.Row], missing: dict[str, str]) -> str:
    lines = []
    for regime in report.regimes(rows):
        here = [row.within(regime) for row in rows]
        cells = [line_of(row, compared) for row in here if row.rounds for compared in COMPARISONS]
        lines += [f"Regime {regime}:", "", *report.table(HEAD, cells), ""]
    return "\n".join(lines) + report.named(missing)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [workload.name for workload in SETS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    add_options(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="horon-bench-") as folder:
        bench = Bench(options, SEATS, Path(folder))
        try:
            rows = [bench.run(workload) for workload in SETS if workload.name in options.only]
            facts = bench.about()
        finally:
            bench.stop()
    text = markdown(rows, facts["missing"])
    print(f"\n{text}")
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(rows, "Average", facts)))


if __name__ == "__main__":
    main()
