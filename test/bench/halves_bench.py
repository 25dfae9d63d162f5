#!/usr/bin/env python3
"""Sets of 16-bit floats over the same sets in float32, interleaved in one run.

    python test/bench/halves_bench.py --rounds 30 --json halves.json --markdown halves.md

Each type has ranks of its own, and nobody else takes part: rounds are short, and a ratio is of
times that were taken right after each other. MPI does not add 16-bit floats, and gloo's are in
allreduce_bench.py.
"""

from __future__ import annotations

from compared import Comparison, Table
from interleaved import Seat
from workloads import Workload, bert_base_shapes, gradient_order, resnet50_shapes

SETS = [Workload("ResNet-50", gradient_order(resnet50_shapes())),
        Workload("BERT-base", gradient_order(bert_base_shapes()))]
WAYS = ("horon", "horon-shared", "horon-registered", "horon-views")
HALVES = ("float16", "bfloat16")
MOST = dict.fromkeys((workload.name for workload in SETS), 0.6)

SEATS = {way: Seat(way, 2, "float32") for way in WAYS}
SEATS |= {f"{way}, {half}": Seat(way, 2, half) for way in WAYS for half in HALVES}
COMPARISONS = [Comparison(f"{way}, {half}", way, MOST) for way in WAYS for half in HALVES]


if __name__ == "__main__":
    Table(SETS, SEATS, COMPARISONS).run(__doc__, "horon")
