#!/usr/bin/env python3
"""Collectives: Horon, torch's gloo and plain MPI side by side, interleaved in one run.

    python test/bench/allreduce_bench.py --np 2 --json bench.json --plot bench.png

Each library has ranks of its own, which sleep while another is measured. One round measures every
library once, in an order that turns from round to round, and is tagged with how near the machine's
cores were to each other before and after: only numbers of the same round are compared.
docs/benchmarks.md explains how to read the output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import report
import workloads
from groups import LOOPS, NEEDS, Group, Missing, compiled, turned

LIBRARIES = [name for name in NEEDS if name != "gossip"]  # no allreduce: nodes_bench.py has it


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


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.groups, self.missing = options, {}, {}
        self.pingpong = PingPong(options.pingpong, folder)
        for library in options.libraries:
            try:
                self.groups[library] = Group(library, options.np, folder, options.launcher)
                print(f"# {library}: {self.groups[library].note}", flush=True)
            except Missing as missing:
                self.give_up(library, missing)

    def give_up(self, library: str, missing: Missing) -> None:
        self.missing[library] = str(missing)
        self.groups.pop(library, None)
        print(f"# missing: {library} ({missing})", flush=True)

    def measure(self, library: str, workload: workloads.Workload, iterations: int) -> list[float]:
        """Empty if the library is missing, or goes missing now."""
        if library not in self.groups:
            return []
        try:
            return self.groups[library].measure(workload, self.options.dtype, iterations)
        except Missing as missing:
            self.give_up(library, missing)
            return []

    def run(self, workload: workloads.Workload) -> report.Row:
        """Warms every library up, which also shows how many iterations fit, then goes round."""
        row = report.Row(workload, workload.dtype or self.options.dtype, self.options.np)
        iterations = {}
        for library in self.wanted(workload):
            self.measure(library, workload, 2)
            probe = self.measure(library, workload, 3)
            if probe:
                fitting = int(self.options.seconds / max(min(probe), 1e-9))
                iterations[library] = max(3, min(self.options.most_iterations, fitting))
        before, _ = self.pingpong.ask()
        for number in range(self.options.rounds):
            taken = {library: self.measure(library, workload, iterations[library])
                     for library in turned(list(iterations), number)}
            after, _ = self.pingpong.ask()
            regime = before if before == after else "MIXED"
            row.rounds += [report.Round(library, number, regime, seconds)
                           for library, seconds in taken.items() if seconds]
            before = after
        return row

    def wanted(self, workload: workloads.Workload) -> list[str]:
        """Buckets differ from single calls only where there are several tensors; MPI adds no 16-bit
        floats, and the loops do nothing but sums of float32."""
        dtype = workload.dtype or self.options.dtype
        left_out = {"gloo-buckets": workload.single,
                    "mpi": workload.kind == "allreduce" and workloads.BYTES[dtype] == 2}
        left_out["horon-shared"] = workload.kind != "allreduce"
        left_out |= {loop: workload.kind != "allreduce" or dtype != "float32" for loop in LOOPS}
        return [library for library in list(self.groups) if not left_out.get(library)]

    def stop(self) -> None:
        for group in self.groups.values():
            group.stop()


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
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--seconds", type=float, default=0.2,
                        help="about how long a library is measured in one round (default 0.2)")
    parser.add_argument("--most-iterations", type=int, default=200,
                        help="in one round (default 200)")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--no-sets", action="store_true", help="allreduce of single tensors only")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="only these rows of the table, such as '1,000 x 1 KiB'")
    parser.add_argument("--launcher", choices=("horonrun", "mpirun"), default="horonrun",
                        help="what starts Horon's ranks (default horonrun)")
    parser.add_argument("--pingpong", help="program that tells the regime; built if not given")
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--plot", help="PNG of time over size")
    parser.add_argument("--markdown", help="file for the table that is printed")
    options = parser.parse_args(arguments)
    if options.np < 1 or options.factor < 2 or options.rounds < 1 or options.min < 1:
        parser.error("--np, --rounds and --min are at least 1, --factor at least 2")
    return options


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def about(options: argparse.Namespace, bench: Bench) -> dict:
    return {"np": options.np, "dtype": options.dtype, "processor": processor(),
            "cores": len(os.sched_getaffinity(0)), "system": platform.platform(),
            "notes": {name: group.note for name, group in bench.groups.items()},
            "missing": bench.missing}


def publish(options: argparse.Namespace, rows: list[report.Row], facts: dict) -> None:
    measured = [name for name in options.libraries
                if any(r.library == name for row in rows for r in row.rounds)]
    if not measured:
        sys.exit("nothing was measured")
    base = measured[0]
    table = report.markdown(rows, measured, base, LOOPS)
    missing = "".join(f"Missing: {name} ({why}).\n" for name, why in facts["missing"].items())
    print(f"\n{table}{missing}")
    if options.markdown:
        Path(options.markdown).write_text(table + missing)
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(rows, base, facts)))
    if options.plot:
        title = f"allreduce, {options.np} ranks, {options.dtype}, {facts['processor']}"
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
        bench = Bench(options, Path(folder))
        rows: list[report.Row] = []
        try:
            for workload in todo:
                rows.append(bench.run(workload))
                report.nccl_table(rows[-1:], options.libraries, header=len(rows) == 1)
            facts = about(options, bench)
        finally:
            bench.stop()
    publish(options, rows, facts)


if __name__ == "__main__":
    main()
