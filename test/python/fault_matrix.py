"""The fault matrix: every way to fail x every phase x who, each in a job of its own, as a table.

    python test/python/fault_matrix.py --cell build/bin/horon_fault_cell [--hosts 2] [--quick]
        [--repeat N] [--only WORDS] [--markdown FILE]

A cell is right when every rank that lives hears of the fault within its bound, by an error that
names a victim (of a cut link: who is beyond it); when the job ends by itself; when horonrun's exit
code and last words name a victim; and when no process or file is left, on no host. In the phase
shutdown nothing is pending any more, so that survivors may also simply have left.

With --hosts 2 the four ranks are on two hosts: namespaces of this machine (test/support/world.sh),
one world for all cells. On one host they are in such a world, too, where there can be one.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import fault_job
import own_world
from fault_cells import FAULTS, PHASES, WHO, Cell, Outcome, cells

Results = dict[Cell, list[Outcome]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", required=True, help="the program horon_fault_cell")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument("--quick", action="store_true", help="the cells that differ most")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="only cells whose name has all these words")
    parser.add_argument("--markdown", help="write the table there, too")
    return parser.parse_args()


def run_all(asked: argparse.Namespace) -> Results:
    results: Results = {}
    wanted = [
        cell
        for cell in cells(asked.hosts, asked.quick)
        if all(word in str(cell).replace(",", "").split() for word in asked.only.split())
    ]
    for turn in range(asked.repeat):
        for cell in wanted:
            outcome = fault_job.run(os.path.abspath(asked.cell), cell)
            results.setdefault(cell, []).append(outcome)
            for sentence in outcome.wrong:
                print(f"WRONG {cell}, turn {turn + 1}: {sentence}", flush=True)
        if asked.repeat > 1:
            print(f"turn {turn + 1}: {len(wanted)} jobs", flush=True)
    return results


def table(results: Results, hosts: int) -> str:
    phases = [phase for phase in PHASES if any(cell.phase == phase for cell in results)]
    lines = ["| fault | who | " + " | ".join(phases) + " |", "|---|---|" + "---|" * len(phases)]
    for fault in FAULTS:
        for who in WHO:
            row = [results.get(Cell(fault, phase, who, hosts)) for phase in phases]
            if any(row):
                lines.append(f"| {fault} | {who} | " + " | ".join(map(_shown, row)) + " |")
    return "\n".join(lines)


def _shown(outcomes: list[Outcome] | None) -> str:
    """The longest times, on a victim's host / elsewhere; "ok" where nobody had anything to hear."""
    if not outcomes:
        return "–"
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    if wrong:
        return f"{wrong} of {len(outcomes)} WRONG"
    near = max((o.near_s for o in outcomes if o.near_s is not None), default=None)
    far = max((o.far_s for o in outcomes if o.far_s is not None), default=None)
    times = [f"{seconds:.2f}" for seconds in (near, far) if seconds is not None]
    if far is not None and near is None:
        times = ["–", *times]
    return " / ".join(times) + " s" if times else "ok"


def main() -> int:
    asked = arguments()
    # On one host, too, where it can: there all files that appear are the job's.
    if not own_world.inside() and (asked.hosts > 1 or not own_world.why_not(1)):
        return own_world.run_inside(asked.hosts)
    results = run_all(asked)
    made = table(results, asked.hosts)
    print(made)
    if asked.markdown:
        Path(asked.markdown).write_text(made + "\n", encoding="utf-8")
    outcomes = [outcome for several in results.values() for outcome in several]
    misses = sum(bool(outcome.wrong) for outcome in outcomes)
    print(f"{len(outcomes)} jobs on {asked.hosts} host(s), {misses} wrong")
    return 1 if misses or not results else 0


if __name__ == "__main__":
    sys.exit(main())
