#!/usr/bin/env python3
"""Collectives: Horon, torch's gloo and plain MPI side by side, interleaved in one run.

    python test/bench/allreduce_bench.py --np 2 --json bench.json --plot bench.png

Each library has ranks of its own, which sleep while another is measured. One round measures every
library once, in an order that turns from round to round; each time is tagged with how near the
machine's cores were to each other before and after, and only those of the same round and tag are
compared.
docs/benchmarks.md explains how to read the output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import goals
import machine
import report
import workloads
from groups import HORON, LOOPS
from interleaved import Bench, Seat, add_options

LIBRARIES = ["horon", "horon-shared", "horon-registered", "horon-views", "horon-grouped", "gloo",
             "gloo-buckets", "gloo-views", "mpi", "mpi-other", "streamed", "staged", "in-place"]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = workloads.parse_size
    parser.add_argument("--np", type=int, default=2, help="ranks of each library (default 2)")
    parser.add_argument("--min", type=size, default=4,
                        help="smallest size, such as 4 or 1K (default 4)")
    parser.add_argument("--max", type=size, default=64 << 20, help="largest size (default 64M)")
    parser.add_argument("--factor", type=int, default=4, help="from size to size (default 4)")
    parser.add_argument("--dtype", choices=sorted(workloads.BYTES), default="float32")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--no-sets", action="store_true", help="allreduce of single tensors only")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="only these rows of the table, such as '1,000 x 1 KiB'")
    parser.add_argument("--lean", action="store_true",
                        help="sets without gloo, with which a round may outlast a regime")
    parser.add_argument("--no-cma", action="store_true",
                        help="neither Horon nor Open MPI reads another process's memory")
    parser.add_argument("--plot", help="PNG of time over size")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.np < 1 or options.factor < 2 or options.rounds < 1 or options.min < 1:
        parser.error("--np, --rounds and --min are at least 1, --factor at least 2")
    if options.no_cma:  # of Open MPI 5, and of 4
        os.environ.update({"HORON_CMA": "0", "OMPI_MCA_smsc": "^cma,knem,xpmem",
                           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"})
    return options


def note(options: argparse.Namespace) -> str:
    """What tells the goals of this run from those of others."""
    if options.no_cma:
        return ", without CMA"
    peers = set(options.libraries) - set(HORON)
    alone = [whose for whose in (goals.MPI, goals.GLOO) if peers and peers.issubset(whose)]
    return f", beside {goals.NAMES[alone[0]]} alone" if alone else ""


def publish(options: argparse.Namespace, rows: list[report.Row], facts: dict) -> None:
    measured = [name for name in options.libraries
                if any(r.library == name for row in rows for r in row.rounds)]
    if not measured and not options.regime:
        sys.exit("nothing was measured")
    base = (measured or options.libraries)[0]
    facts["machine"]["rounds"] = report.rounds_by_regime(rows)
    facts["goals"] = goals.of(rows, facts["missing"], options.regime,
                              note(options), options.libraries)
    text = f"{machine.lines(facts['machine'])}\n"
    text += report.markdown(rows, measured, base, LOOPS)
    text += f"\n{goals.section(facts['goals'])}"
    text += report.named(facts["missing"], facts["short"], options.regime)
    print(f"\n{text}")
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(rows, base, facts)))
    if options.plot:
        title = f"allreduce, {options.np} ranks, {options.dtype}, {machine.model()}"
        report.plot(rows, measured, options.plot, title)


def main() -> None:
    options = parse(sys.argv[1:])
    element = workloads.BYTES[options.dtype]
    todo = workloads.sizes(options.min, options.max, options.factor, element)
    if not options.no_sets:
        todo += workloads.sets(options.dtype) + workloads.others(element, options.np)
    if options.only:
        todo = [workload for workload in todo if workload.name in options.only]
    with tempfile.TemporaryDirectory(prefix="horon-bench-") as folder:
        seats = {name: Seat(name, options.np, options.dtype) for name in options.libraries}
        bench = Bench(options, seats, Path(folder))
        rows: list[report.Row] = []
        try:
            for workload in todo:
                lean = options.lean and not workload.single
                rows.append(bench.run(workload, without=goals.GLOO if lean else ()))
                report.nccl_table(rows[-1:], options.libraries, header=len(rows) == 1)
            facts = {"np": options.np, "dtype": options.dtype, **bench.about()}
        finally:
            bench.stop()
    publish(options, rows, facts)


if __name__ == "__main__":
    main()
