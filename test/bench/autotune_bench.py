"""What autotuning finds, and how a job with the result compares with one without it.

    python test/bench/autotune_bench.py --markdown autotune.md

For each way of ranks and each set of tensors: a job that tunes until it is through, then --rounds
pairs of jobs, one with the file that it left and one with the defaults, which come first in turn.
A job's time is the median of its steps: all tensors submitted one by one, then waited for. The
ratio is tuned over default, the median of the pairs, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
import torch
import workloads

# Ranks, and ranks of a pretended node.
WAYS = {"2 ranks": (2, None), "4 ranks": (4, None), "2 x 2 ranks, pretended nodes, MPI": (4, 2)}
SETS = {
    "ResNet-50": workloads.gradient_order(workloads.resnet50_shapes()),
    "1,000 x 1 KiB": ((256,),) * 1000,
}
WARM_STEPS = 30


def rank_main(options: argparse.Namespace) -> None:
    """On each rank. Until `--until` exists, which rank 0 sees; else for so many steps."""
    import horon.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    tensors = [torch.ones(shape) for shape in SETS[options.work]]
    names = [f"tensor{i}" for i in range(len(tensors))]

    def step() -> float:
        begun = time.perf_counter()
        handles = [hvd.allreduce_async_(tensor, name=name)
                   for tensor, name in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)
        return time.perf_counter() - begun

    def through() -> bool:
        here = torch.tensor(float(Path(options.until).exists()))
        return bool(hvd.broadcast(here, 0, name="through").item())

    if options.until:
        while not through():
            for _ in range(100):
                step()
        return
    for _ in range(WARM_STEPS):
        step()
    mine = torch.tensor(statistics.median(step() for _ in range(options.steps)))
    slowest = hvd.allreduce(mine, op=hvd.Max, name="slowest").item()
    if hvd.rank() == 0:
        print(f"step {slowest:.9f}", flush=True)


def run(way: str, launcher: list[str], *arguments: str) -> str:
    ranks, node = WAYS[way]
    command = [sys.executable, "-m", "horon.launcher", "--no-prefix", "-np", str(ranks), *launcher,
               sys.executable, __file__, "--rank", *arguments]
    environment = {**os.environ, **({"HORON_LOCAL_SIZE": str(node)} if node else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False,
                          env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def step_s(way: str, work: str, steps: int, launcher: list[str]) -> float:
    said = run(way, launcher, "--work", work, "--steps", str(steps))
    return float(next(line.split()[1] for line in said.splitlines() if line.startswith("step ")))


def measure(way: str, work: str, options: argparse.Namespace, folder: Path) -> list[str]:
    """A row of the table."""
    tuned, log = folder / "tuned.txt", folder / "log.csv"
    begun = time.monotonic()
    run(way, ["--autotune", "--autotune-file", str(tuned), "--autotune-log-file", str(log)],
        "--work", work, "--until", str(tuned))
    took = time.monotonic() - begun
    with log.open(encoding="utf-8") as lines:
        samples = sum(1 for _ in csv.reader(lines)) - 1
    found = " ".join(line for line in tuned.read_text(encoding="utf-8").splitlines()
                     if not line.startswith("#"))
    pairs = []
    for number in range(options.rounds):
        ways = {"tuned": ["--autotune-file", str(tuned)], "default": []}
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        times = {name: step_s(way, work, options.steps, ways[name]) for name in order}
        pairs.append((times["tuned"], times["default"]))
    ratio = report.Ratio([one / other for one, other in pairs])
    with_it, without = (report.text_of_time(statistics.median(side))
                        for side in zip(*pairs, strict=True))
    return [way, work, f"{samples}, {took:.0f} s", f"`{found}`", without, with_it, str(ratio)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="of a job that is measured")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--markdown", help="file for the table that is printed")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--until", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options)
        return
    rows = []
    for way in options.only:
        for work in options.sets:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(way, work, options, Path(folder)))
            print("# " + " | ".join(rows[-1]), flush=True)
    head = ["ranks", "tensors", "samples, with the start", "found", "default", "tuned",
            "tuned / default"]
    text = "\n".join(report.table(head, rows)) + "\n"
    print(text, end="")
    if options.markdown:
        Path(options.markdown).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
