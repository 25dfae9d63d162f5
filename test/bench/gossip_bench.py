#!/usr/bin/env python3
"""Averages with one neighbor inside a node, beside a C++ loop, interleaved in one run.

    python test/bench/gossip_bench.py --rounds 30 --json gossip.json --markdown gossip.md

Two ranks; the loop copies each rank's tensors once through shared memory and mixes them in one pass
(reference/loops.cc), in place as the op does, or into other tensors, as BlueFog's API does.
"""

from __future__ import annotations

from compared import Comparison, Table
from interleaved import Seat
from workloads import Workload, gradient_order, resnet50_shapes

SETS = [Workload("4 B", ((1,),)), Workload("1 MiB", ((1 << 18,),)),
        Workload("64 MiB", ((1 << 24,),)),
        Workload("ResNet-50", gradient_order(resnet50_shapes()))]
SEATS = {
    "neighbor_allreduce": Seat("neighbors", 2, "float32"),
    "op=Gossip": Seat("gossip-of-ranks", 2, "float32"),
    "Average": Seat("average", 2, "float32"),
    "one copy, one mix": Seat("mixed", 2, "float32"),
    "one copy, one mix elsewhere": Seat("mixed-to", 2, "float32"),
}
COMPARISONS = [
    Comparison("neighbor_allreduce", "one copy, one mix elsewhere", {"64 MiB": 1.1}),
    Comparison("neighbor_allreduce", "one copy, one mix"),
    Comparison("op=Gossip", "one copy, one mix", {"64 MiB": 1.1}),
    Comparison("op=Gossip", "Average"),
]


if __name__ == "__main__":
    Table(SETS, SEATS, COMPARISONS).run(__doc__, "one copy, one mix")
