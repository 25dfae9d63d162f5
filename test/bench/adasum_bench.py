#!/usr/bin/env python3
"""Adasum beside Average and a C++ loop, interleaved in one run.

    python test/bench/adasum_bench.py --rounds 30 --json adasum.json --markdown adasum.md

Every op has ranks of its own, which sleep while another is measured, as in allreduce_bench.py. The
loop is what an Adasum of two ranks must compute and move (reference/adasum.cc). docs/benchmarks.md
explains how to read the output.
"""

from __future__ import annotations

import quoted
from compared import Comparison, Table
from interleaved import Seat
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


def horovods(name: str, seat: Seat) -> str | None:
    return quoted.ADASUM.get((name, seat.np)) if seat.dtype == "float32" else None


if __name__ == "__main__":
    Table(SETS, SEATS, COMPARISONS, horovods, "Horovod's Adasum, quoted").run(__doc__, "Average")
