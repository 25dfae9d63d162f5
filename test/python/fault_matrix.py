"""The fault matrix: every way to fail x every phase x who, each in a job of its own, as a table.

    python test/python/fault_matrix.py --cell build/bin/horon_fault_cell [--hosts 2] [--quick]
        [--repeat N] [--jobs N] [--only WORDS] [--markdown FILE]

A cell is right when every rank that lives hears of the fault within its bound, by an error that
names a victim (of a cut link: who is beyond it); when the job ends by itself; when horonrun's exit
code and last words name a victim; and when no process or file is left, on no host. In the phase
shutdown nothing is pending any more, so that survivors may also simply have left.

With --hosts 2 the four ranks are on two hosts: namespaces of this machine (test/support/world.sh).
On one host they are in such a world, too, where there can be one. --jobs N: in N worlds at a time,
since most of a cell is waiting.

A job that went wrong while the machine kept a thread that could run from running, for STILL_S or
longer (standstill.py), says nothing about Horon: it is printed and run again, and the last line
counts such jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

import fault_job
import own_world
from fault_cells import FAULTS, PHASES, WHO, Cell, Outcome, cells
from standstill import Standstill

Results = dict[Cell, list[Outcome]]
STILL_S = 0.5
ATTEMPTS = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", required=True, help="the program horon_fault_cell")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument("--quick", action="store_true", help="the cells that differ most")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--only", default="", help="only cells whose name has all these words")
    parser.add_argument("--markdown", help="write the table there, too")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # INDEX:FILE, of one world
    return parser.parse_args()


def wanted(asked: argparse.Namespace) -> list[tuple[int, Cell]]:
    """Every job, with its turn."""
    chosen = [
        cell
        for cell in cells(asked.hosts, asked.quick)
        if all(word in str(cell).replace(",", "").split() for word in asked.only.split())
    ]
    return [(turn + 1, cell) for turn in range(asked.repeat) for cell in chosen]


def run_part(asked: argparse.Namespace) -> int:
    """One world's jobs; a line of the file for each."""
    index, path = asked.part.split(":", 1)
    mine = wanted(asked)[int(index) :: asked.jobs]
    with open(path, "w", encoding="utf-8") as file, Standstill() as machine:
        for i, (turn, cell) in enumerate(mine):
            outcome = run_cell(os.path.abspath(asked.cell), cell, machine)
            for sentence in outcome.wrong:
                print(f"WRONG {cell}, turn {turn}: {sentence}", flush=True)
            print(json.dumps([dataclasses.asdict(cell), dataclasses.asdict(outcome)]), file=file)
            if asked.repeat > 1 and (i + 1 == len(mine) or mine[i + 1][0] != turn):
                print(f"turn {turn}: done in world {int(index) + 1}", flush=True)
    return 0


def run_cell(program: str, cell: Cell, machine: Standstill) -> Outcome:
    for attempt in range(ATTEMPTS):
        machine.begin()
        outcome = fault_job.run(program, cell)
        outcome.again = attempt
        stood_s, what = machine.longest()
        if not outcome.wrong or stood_s < STILL_S:
            break
        why = f"{what} could run, and did not for {stood_s:.1f} s"
        print(f"AGAIN {cell}: {outcome.wrong[0]}; {why}", flush=True)
    return outcome


def run_all(asked: argparse.Namespace, in_worlds: bool) -> Results:
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{index}.json") for index in range(asked.jobs)]
        each = ["--jobs", str(asked.jobs), "--part"]
        parts = [[*each, f"{index}:{path}"] for index, path in enumerate(paths)]
        own_world.run_all(asked.hosts if in_worlds else 0, parts)
        for line in "".join(path.read_text() for path in paths if path.exists()).splitlines():
            cell, outcome = json.loads(line)
            results.setdefault(Cell(**cell), []).append(Outcome(**outcome))
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
    if asked.part:
        return run_part(asked)
    # On one host, too, where it can: there all files that appear are the job's.
    why = own_world.why_not(asked.hosts)
    if why and asked.hosts > 1:
        print(f"SKIPPED: {why}")
        return 0
    if why:
        asked.jobs = 1
    results = run_all(asked, in_worlds=not why)
    made = table(results, asked.hosts)
    print(made)
    if asked.markdown:
        Path(asked.markdown).write_text(made + "\n", encoding="utf-8")
    outcomes = [outcome for several in results.values() for outcome in several]
    misses = sum(bool(outcome.wrong) for outcome in outcomes)
    again = sum(outcome.again for outcome in outcomes)
    print(f"{len(outcomes)} jobs on {asked.hosts} host(s), {misses} wrong; {again} run again "
          "because the machine kept a thread from running")
    pairs = [outcome.struck for cell, several in results.items() for outcome in several
             if cell.strikes_itself and len(cell.victims) == 2]
    if pairs:
        print(f"of {len(pairs)} jobs with two victims, both struck in {pairs.count(2)}")
    missing = len(wanted(asked)) - len(outcomes)
    if missing:
        print(f"{missing} jobs were not run to their end")
    return 1 if misses or missing or not results else 0


if __name__ == "__main__":
    sys.exit(main())
