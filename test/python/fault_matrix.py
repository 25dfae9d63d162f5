"""The fault matrix: every way to fail x every phase x who, each in a job of its own, as a table.

    python test/python/fault_matrix.py --cell build/bin/horon_fault_cell [--quick] [--repeat N] [--markdown FILE]

A cell is right when every rank that lives hears of the fault within its bound, by an error that names a
victim; when the job ends by itself; when horonrun's exit code and last words name a victim; and when no
process, socket or shared memory is left. In the phase shutdown nothing is pending any more, so that
survivors may also simply have left.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NP = 4
PHASES = ("init", "negotiate", "copy_in", "reduce", "copy_out", "shutdown")
FAULTS = ("kill", "stop", "segv", "exit0", "exit7", "raise", "launcher")
WHO = {"rank 0": (0,), "last": (NP - 1,), "two": (0, NP - 1)}
SILENCE_S = 2  # HORON_STALL_SILENCE_SECONDS of the jobs: a stopped rank is given up after this
# From the fault to the error on every survivor. A stopped rank is asked after half a second, and the
# answer is waited for in steps.
BOUND_S = {"stop": SILENCE_S + 3.0, "launcher": 1.0}
OTHERWISE_S = 1.0
JOB_LIMIT_S = 30.0
# The pass at which the fault strikes: the second collective, well inside its chunks.
PASS = {"negotiate": 2, "copy_in": 70, "reduce": 70, "copy_out": 70}
NAMES = {
    "kill": "was killed by signal 9",
    "segv": "was killed by signal 11",
    "exit0": "exited with code 0 without",
    "exit7": "exited with code 7",
    "raise": "raised ValueError: bad batch",
    "stop": "has not answered for",
}
CODES = {"kill": 137, "segv": 139, "exit0": 1, "exit7": 7, "raise": 1}


@dataclass
class Outcome:
    """What went wrong in a cell, and the longest time from the fault to an error."""

    wrong: list[str] = field(default_factory=list)
    latency_s: float = 0.0


def run_cell(cell: str, fault: str, phase: str, victims: tuple[int, ...]) -> Outcome:
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="horon-cell-") as folder:
        environment = _environment(fault, phase, victims, mark, folder)
        command = [sys.executable, "-m", "launcher", "-np", str(NP), "--no-prefix",
                   "--grace-period", "2", cell]
        begun = time.monotonic()
        process = subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        struck = _kill_launcher(process, folder, victims) if fault == "launcher" else None
        try:
            output, errors = process.communicate(timeout=JOB_LIMIT_S)
        except subprocess.TimeoutExpired:
            _end_all(mark)
            process.kill()
            output, errors = process.communicate()
            return Outcome([f"not done after {time.monotonic() - begun:.0f} s\n{output}{errors}"])
    outcome = _judge(fault, phase, victims, output, errors, process.returncode, struck)
    left = _left_behind(mark)
    if left:
        outcome.wrong.append(f"left behind: {', '.join(left)}")
        _end_all(mark)
    if outcome.wrong:
        outcome.wrong.append(f"--- output\n{output}--- errors\n{errors}")
    return outcome


def _environment(fault: str, phase: str, victims: tuple[int, ...], mark: str, folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HORON_", "OMPI_"))}
    added = {
        "PYTHONPATH": str(ROOT),
        "CELL_MARK": mark,
        "CELL_VICTIMS": ",".join(map(str, victims)),
        "HORON_STALL_SILENCE_SECONDS": str(SILENCE_S),
    }
    if fault == "raise":
        added["CELL_RAISE"] = phase
    elif fault == "launcher":
        held = os.path.join(folder, "held")
        os.mkfifo(held)
        os.mkfifo(held + ".go")
        added["CELL_VICTIMS"] = str(victims[0])  # the one that stands still meanwhile
        added["HORON_FAULT"] = f"{phase}:hold={held}:{PASS.get(phase, 1)}"
    else:
        added["HORON_FAULT"] = f"{phase}:{fault}:{PASS.get(phase, 1)}"
    return {**kept, **added}


def _kill_launcher(process: subprocess.Popen, folder: str, victims: tuple[int, ...]) -> float:
    """Kills horonrun while a rank stands in the phase; when that was."""
    held = os.path.join(folder, "held")
    with open(held, encoding="ascii") as fifo:  # until the rank is there
        fifo.read()
    process.kill()
    struck = time.monotonic()
    try:
        os.close(os.open(held + ".go", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        pass  # it died with horonrun, as it should
    return struck


def _judge(fault: str, phase: str, victims: tuple[int, ...], output: str, errors: str, code: int,
           struck: float | None) -> Outcome:
    outcome = Outcome()
    if fault == "launcher":  # its ranks die with it (PR_SET_PDEATHSIG); that nothing is left is the test
        return outcome
    survivors = set(range(NP)) - set(victims)
    ends: dict[int, str] = {}
    for rank, what, when, rest in re.findall(r"^cell (\d+) (error|left) ([\d.]+) ?(.*)$", output, re.M):
        ends[int(rank)] = f"{what} {rest}"
        if what == "error":
            outcome.latency_s = max(outcome.latency_s, float(when) - _last_sign(output, victims))
    for rank in sorted(survivors):
        end = ends.get(rank)
        named = end is not None and any(f"rank {victim} " in end for victim in victims)
        left_in_peace = phase == "shutdown" and end is not None and end.startswith("left")
        if not left_in_peace and not (named and _says(fault, phase, end)):
            outcome.wrong.append(f"rank {rank}: {end or 'said nothing'}")
    bound = BOUND_S.get(fault, OTHERWISE_S)
    if outcome.latency_s > bound:
        outcome.wrong.append(f"{outcome.latency_s:.2f} s until the last rank heard, more than {bound} s")
    expected = CODES.get(fault)
    if code == 0 or (expected is not None and code != expected):
        outcome.wrong.append(f"exit code {code} instead of {expected or 'an error'}")
    if not any(f"horonrun: rank {victim} " in errors for victim in victims):
        outcome.wrong.append("horonrun's last words name no victim")
    return outcome


def _says(fault: str, phase: str, end: str) -> bool:
    # A rank that ends in init has not joined, which is said of it instead.
    if fault == "raise" and phase == "init":
        return "exited with code 1" in end  # it has nobody to tell yet
    stopped = fault == "stop" and "has been stopped" in end  # said by horonrun, not by a peer
    return NAMES[fault] in end or "gave up waiting" in end or stopped


def _last_sign(output: str, victims: tuple[int, ...]) -> float:
    """When a victim was last heard of: the fault came after this, by less than a collective takes."""
    signs = re.findall(rf"^cell (?:{'|'.join(map(str, victims))}) \w+ ([\d.]+)", output, re.M)
    return max(map(float, signs), default=0.0)


def _marked(mark: str) -> list[int]:
    """Processes whose environment holds the mark."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.append(int(entry))
    return found


def _left_behind(mark: str) -> list[str]:
    """Nothing may be left one second after the end, which the kernel needs to take processes down."""
    limit = time.monotonic() + 1.0
    while (processes := _marked(mark)) and time.monotonic() < limit:
        time.sleep(0.01)  # watching others' processes: there is nothing to wait on
    left = [f"process {pid}" for pid in processes]
    left += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "horon" in name]
    return left


def _end_all(mark: str) -> None:
    for pid in _marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _cells(quick: bool):
    for fault in FAULTS:
        for phase in PHASES:
            for who, victims in WHO.items():
                if fault == "launcher" and who != "last":
                    continue  # one launcher, and where it is killed from does not matter
                if quick and (fault in ("segv", "exit7", "stop") and phase not in ("init", "reduce")):
                    continue
                if quick and who == "two" and phase not in ("negotiate", "reduce"):
                    continue
                yield fault, phase, who, victims


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", required=True, help="the program horon_fault_cell")
    parser.add_argument("--quick", action="store_true", help="the cells that differ most")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--markdown", help="write the table there, too")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    asked = parser.parse_args()
    results: dict[tuple[str, str, str], list[Outcome]] = {}
    for turn in range(asked.repeat):
        for fault, phase, who, victims in _cells(asked.quick):
            if asked.only not in f"{fault} {phase} {who}":
                continue
            outcome = run_cell(os.path.abspath(asked.cell), fault, phase, victims)
            results.setdefault((fault, phase, who), []).append(outcome)
            for sentence in outcome.wrong:
                print(f"WRONG {fault} in {phase}, {who}, turn {turn + 1}: {sentence}", flush=True)
    table = _table(results)
    print(table)
    if asked.markdown:
        Path(asked.markdown).write_text(table + "\n", encoding="utf-8")
    misses = sum(bool(outcome.wrong) for outcomes in results.values() for outcome in outcomes)
    print(f"{sum(map(len, results.values()))} jobs, {misses} wrong")
    return 1 if misses or not results else 0


def _table(results: dict[tuple[str, str, str], list[Outcome]]) -> str:
    lines = ["| fault | who | " + " | ".join(PHASES) + " |", "|---|---|" + "---|" * len(PHASES)]
    for fault in FAULTS:
        for who in WHO:
            cells = [results.get((fault, phase, who)) for phase in PHASES]
            if any(cells):
                lines.append(f"| {fault} | {who} | " + " | ".join(map(_shown, cells)) + " |")
    return "\n".join(lines)


def _shown(outcomes: list[Outcome] | None) -> str:
    if not outcomes:
        return "–"
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    if wrong:
        return f"{wrong} of {len(outcomes)} WRONG"
    longest = max(outcome.latency_s for outcome in outcomes)
    return f"{longest:.2f} s" if longest > 0 else "ok"


if __name__ == "__main__":
    sys.exit(main())
