#!/usr/bin/env python3
"""Training on hosts of which one is slow: the step rate of the others, by algorithm.

    python test/bench/stragglers_bench.py --json stragglers.json --plot stragglers.png

Each host is a namespace of this machine (test/support/world.sh) with a link of 1 Gbit/s and one
rank. A step's computing is a wait, so that the ranks' shared cores are free for what is measured.
In turn all hosts are alike, one has a link of 100 Mbit/s, one computes five times as long, and one
is late once, by --staleness + 1 steps (OSGP's exchanges have so many steps more then). Where all
are alike, what a step takes beyond its computing says how much of an exchange is hidden. sgp and
sgp-peers, if asked for, show what a round takes that all agree on, or that waits for peers only.
Says at the end which goals are reached, and ends with 1 where one is missed. docs/benchmarks.md has
results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import bars

HERE = Path(__file__).resolve().parent
WORLD = HERE.parent / "support" / "world.sh"
ALGORITHMS = ["allreduce", "osgp", "adpsgd", "asgp"]
ROUNDS = ["sgp", "sgp-peers"]  # waited for in each step: negotiated, and between peers
SLOW = 2  # the rank that is slow, on host h3
# What must be reached: the others' share of the rate of computing only, where one is slow and
# nobody waits for it, or late for no longer than an exchange is given; and what is hidden of one.
KEPT = HIDDEN = 0.9
KEEPING = {"slow link": ["adpsgd", "asgp"], "slow host": ["adpsgd", "asgp"], "late once": ["osgp"]}
HIDING = "osgp"
WARM_UP = 2  # steps
LATE_AT = 3  # the step in which one is late once


@dataclass(frozen=True)
class Scene:
    links: dict[str, str] = field(default_factory=dict)  # world.sh's variables
    slower: float = 1.0  # so many times as long rank SLOW computes
    late: bool = False  # once


SCENES = {"alike": Scene(), "slow link": Scene({f"WORLD_RATE_{SLOW + 1}": "100mbit"}),
          "slow host": Scene(slower=5.0), "late once": Scene(late=True)}


class Training:
    """One rank: a parameter of so many bytes, which every step waits for and gossips."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        import horon.torch as hvd

        torch.set_num_threads(1)
        hvd.init()
        self.hvd, self.pace, slow = hvd, options.compute, hvd.rank() == SLOW
        scene, more = SCENES[options.scene], options.staleness
        self.compute = self.pace * (scene.slower if slow else 1)
        self.late = (more + 1) * self.pace if scene.late and slow else 0.0
        self.parameter = torch.nn.Parameter(torch.zeros(options.size // 4))
        waits = {"sync_freq": more} if scene.late and options.algorithm == "osgp" else {}
        algorithm, _, between_peers = options.algorithm.partition("-")
        if between_peers:
            waits["negotiated"] = False
        op = hvd.Average if algorithm == "allreduce" else hvd.Gossip(algorithm, **waits)
        self.waits_for_nobody = getattr(op, "waits_for_nobody", False)
        sgd = torch.optim.SGD([self.parameter], lr=0.1)
        self.optimizer = hvd.DistributedOptimizer(sgd, [("x", self.parameter)], op=op)

    def step(self, late: float = 0.0) -> float:
        """Its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.parameter.sum().backward()
        rest = self.compute + late - (time.perf_counter() - start)
        if rest > 0:
            time.sleep(rest)  # the computing
        self.optimizer.step()
        return time.perf_counter() - start

    def run(self, steps: int) -> list[float]:
        """Seconds of each step. Where ranks wait for nobody, all go on for as long as a rank that
        is not slow computes for so many."""
        for _ in range(WARM_UP):
            self.step()
        self.hvd.barrier()
        until = time.perf_counter() + steps * self.pace
        taken = []
        while time.perf_counter() < until if self.waits_for_nobody else len(taken) < steps:
            taken.append(self.step(self.late if len(taken) == LATE_AT else 0.0))
        return taken

    def exchange(self) -> float:
        """Seconds of one that nothing hides."""
        taken = []
        for _ in range(5):
            self.hvd.barrier()
            start = time.perf_counter()
            self.hvd.allreduce_(self.parameter.detach(), op=self.hvd.Gossip(), name="exchange")
            taken.append(time.perf_counter() - start)
        return median(taken)


def be_a_rank(options: argparse.Namespace) -> None:
    training = Training(options)
    taken = training.run(options.steps)
    close = getattr(training.optimizer, "close_gossip", None)
    if close is not None:
        close()
    seen = {"rank": training.hvd.rank(), "seconds": taken, "exchange": training.exchange()}
    print(f"\nsaw {json.dumps(seen)}", flush=True)
    training.hvd.shutdown()


def run_scene(options: argparse.Namespace, scene: str, algorithm: str) -> dict:
    """The ranks of a world of their own; what they saw, by rank."""
    names = ",".join(f"h{i + 1}" for i in range(options.hosts))
    command = [str(WORLD), str(options.hosts), sys.executable, "-m", "horon.launcher", "-H", names,
               "--no-prefix", sys.executable, str(Path(__file__).resolve()),
               "--algorithm", algorithm, "--scene", scene, "--size", str(options.size),
               "--compute", str(options.compute), "--steps", str(options.steps),
               "--staleness", str(options.staleness)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={
        **os.environ, "OMP_NUM_THREADS": "1", "WORLD_RATE": options.rate, **SCENES[scene].links})
    seen = [json.loads(line) for line in re.findall(r"^saw (.*)$", done.stdout, re.MULTILINE)]
    if done.returncode != 0 or len(seen) != options.hosts:
        raise SystemExit(f"{scene}, {algorithm}: exit code {done.returncode}\n{done.stdout}\n"
                         f"{done.stderr}")
    return {rank["rank"]: rank for rank in seen}


def result(scene: str, algorithm: str, seen: dict, compute: float) -> dict:
    """Rates are shares of what a rank does that computes only."""
    rates = {rank: compute * len(one["seconds"]) / sum(one["seconds"])
             for rank, one in seen.items()}
    others = [rate for rank, rate in rates.items() if rank != SLOW]
    exchange = max(one["exchange"] for one in seen.values())
    step = median(s for rank, one in seen.items() if rank != SLOW for s in one["seconds"])
    return {"scene": scene, "algorithm": algorithm, "others": min(others), "slow": rates[SLOW],
            "step": step, "exchange": exchange,
            "hidden": 1 - (step - compute) / exchange if scene == "alike" else None, "seen": seen}


def line_of(row: dict) -> str:
    hidden = "" if row["hidden"] is None else f"{row['hidden']:.0%}"
    cells = [row["scene"], row["algorithm"], f"{row['others']:.0%}", f"{row['slow']:.0%}",
             f"{row['step'] * 1e3:.0f} ms", f"{row['exchange'] * 1e3:.0f} ms", hidden]
    return "| " + " | ".join(cells) + " |"


def goals_of(rows: list[dict]) -> list[tuple[str, bool]]:
    """A sentence each, and whether it is reached, of the rows that have a goal."""
    goals = []
    for row in rows:
        name = f"{row['scene']}, {row['algorithm']}"
        if row["algorithm"] in KEEPING.get(row["scene"], []):
            goals.append((f"{name}: the others keep {row['others']:.1%} (at least {KEPT:.0%})",
                          row["others"] >= KEPT))
        if row["scene"] == "alike" and row["algorithm"] == HIDING:
            goals.append((f"{name}: hides {row['hidden']:.1%} of an exchange (at least "
                          f"{HIDDEN:.0%})", row["hidden"] >= HIDDEN))
    return goals


def plot(rows: list[dict], path: str) -> None:
    scenes = list(dict.fromkeys(row["scene"] for row in rows))
    heights = {}
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        found = {row["scene"]: row for row in rows if row["algorithm"] == algorithm}
        heights[algorithm] = [found[scene]["others"] if scene in found else 0 for scene in scenes]
    figure, axes = bars.grouped(scenes, heights)
    axes.axhline(KEPT, color="red", linewidth=1, linestyle="--", label=str(KEPT))
    axes.set(ylabel="step rate of the slowest of the others,\nover that of computing only")
    axes.legend(fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=100, bbox_inches="tight")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=25_000_000, help="bytes (default 25 MB)")
    parser.add_argument("--rate", default="1gbit", help="of the links (default 1gbit)")
    parser.add_argument("--hosts", type=int, default=4, help="3 or more (default 4)")
    parser.add_argument("--compute", type=float, default=0.4, help="s of a step (default 0.4)")
    parser.add_argument("--steps", type=int, default=12, help="that are timed (default 12)")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS + ROUNDS,
                        default=ALGORITHMS)
    parser.add_argument("--staleness", type=int, default=2,
                        help="steps more that OSGP has where one is late once (default 2)")
    parser.add_argument("--algorithm", help=argparse.SUPPRESS)  # of a rank, as the next one
    parser.add_argument("--scene", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="file for all that was seen")
    parser.add_argument("--plot", help="PNG of the rates")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if options.algorithm:
        be_a_rank(options)
        return 0
    print("| hosts | algorithm | rate of the others | of the slow one | step | exchange | hidden |")
    print("|" + "---|" * 7)
    rows = []
    for scene in options.scenes:
        for algorithm in options.algorithms:
            seen = run_scene(options, scene, algorithm)
            rows.append(result(scene, algorithm, seen, options.compute))
            print(line_of(rows[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows))
    if options.plot:
        plot(rows, options.plot)
    goals = goals_of(rows)
    print()
    for words, reached in goals:
        print(f"{'reached' if reached else 'MISSED'}: {words}")
    return 0 if all(reached for _, reached in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
