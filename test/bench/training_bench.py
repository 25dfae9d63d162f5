#!/usr/bin/env python3
"""What communication costs a training job, and what the runtime costs while it only waits.

    horonrun -np 2 python test/bench/training_bench.py --markdown training.md

Training: 50 x Linear(256, 256) + ReLU, batch 64, one OpenMP thread a rank, gradients averaged over
the ranks; the same steps without communication right before them, in turns. A share of 1.00 means
that communication is free. Before and after them the ranks meet over gloo: a call of Horon's would
leave the locked schedule, which no training does every ten steps. By the machine's regime, as a
spin ping-pong tells it before and after each pair; pairs go on until one regime has as many as
were asked for, with --regime those of that one alone, which is waited for. Idle: processor time
and voluntary switches of the runtime's threads over a minute in which each rank trains the same
model by itself, and over another in which the script sleeps.

Between two hosts, over links of 1 Gbit/s, with batches for which a step computes longer than its
gradients travel:

    WORLD_RATE=1gbit GLOO_SOCKET_IFNAME=eth0 test/support/world.sh 2 \\
        horonrun -H h1:1,h2:1 python test/bench/training_bench.py --batch 2048 --idle 0
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import goals
import machine
import quoted
import torch
import torch.distributed as dist
from interleaved import PingPong
from report import Ratio

import horon.torch as hvd

LAYERS, WIDTH, BATCH = 50, 256, 64
TOO_LATE = ""
REGIMES = ("NEAR", "FAR", "unknown", TOO_LATE)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> None:
    """Else glibc gives gradients' memory back to the system in some steps and not in others, for
    reasons that have nothing to do with communication, and page faults take a fifth of a step."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_TRIM_THRESHOLD, 1 << 30)
    libc.mallopt(_MMAP_THRESHOLD, 32 << 20)


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


class Job:
    """A model and its optimizer; subclasses say how gradients meet."""

    def __init__(self, batch: int) -> None:
        self.model = self.wrapped(network())
        self.optimizer = self.made(torch.optim.SGD(self.model.parameters(), lr=1e-3))
        self.batch = torch.randn(batch, WIDTH)

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def made(self, optimizer):
        return optimizer

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> float:
        """Seconds of one step, the slowest rank's."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        taken = torch.tensor([(time.perf_counter() - start) / count])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return float(taken)


class MeetingJob(Job):
    """Sends nothing, but the ranks wait for each other once a step: what their noise alone costs,
    and no way of reducing gradients can be below."""

    def made(self, optimizer):
        optimizer.register_step_pre_hook(lambda *_: hvd.barrier())
        return optimizer


class HoronJob(Job):
    def made(self, optimizer):
        return hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters(), op=hvd.Average)


class HoronViewsJob(Job):
    def made(self, optimizer):
        return hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters(), op=hvd.Average,
            gradient_as_bucket_view=True)


class HoronAfterBackwardJob(Job):
    """All gradients in one call when backward is over: nothing overlaps."""

    def made(self, optimizer):
        def reduce(*_) -> None:
            gradients = [p.grad for p in self.model.parameters()]
            hvd.grouped_allreduce_(gradients, op=hvd.Average, name="after")

        optimizer.register_step_pre_hook(reduce)
        return optimizer


class GlooJob(Job):
    """DistributedDataParallel over gloo, gradients as views of its buckets."""

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


JOBS = {"nothing, a barrier a step": MeetingJob, "Horon": HoronJob,
        "Horon, gradient_as_bucket_view": HoronViewsJob,
        "Horon, after backward": HoronAfterBackwardJob, "gloo, DistributedDataParallel": GlooJob}
WITH_GOAL = ("Horon", "Horon, gradient_as_bucket_view")


def agreed(value: int) -> int:
    """Rank 0's."""
    told = torch.tensor([value])
    dist.broadcast(told, 0)
    return int(told)


class Kept:
    """What a job keeps of the steps without communication, right before each of its own."""

    def __init__(self, job: Job, alone: Job, options: argparse.Namespace,
                 pingpong: PingPong | None) -> None:
        self.wanted: str | None = options.regime
        self.seconds: list[float] = []
        self.ratios: list[float] = []
        self.in_regime: dict[str, list[float]] = {}
        for each in (alone, job):
            each.steps(5)
        until = time.monotonic() + options.patience if self.wanted else math.inf
        before = self._regime(pingpong, self.wanted, until)
        while (before != TOO_LATE and self.told < options.pairs
               and len(self.ratios) < options.most_pairs):
            without, seconds = alone.steps(options.steps), job.steps(options.steps)
            after = self._regime(pingpong)
            regime = before if before == after else "MIXED"
            if self.wanted in (None, regime):
                self.seconds.append(seconds)
                self.ratios.append(without / seconds)
                self.in_regime.setdefault(regime, []).append(self.ratios[-1])
            before = self._regime(pingpong, self.wanted, until) if self.wanted else after

    @staticmethod
    def _regime(pingpong: PingPong | None, wanted: str | None = None,
                until: float = math.inf) -> str:
        """Rank 0 looks, or waits for the one that is wanted, and all know: they must agree on how
        many pairs there are."""
        seen = pingpong.wait_for(wanted, until) if pingpong else TOO_LATE
        return REGIMES[agreed(REGIMES.index(TOO_LATE if time.monotonic() >= until else seen))]

    @property
    def regime(self) -> str:
        """The one with the most pairs; where it changed in all of them, MIXED."""
        return max((regime for regime in self.in_regime if regime != "MIXED"),
                   key=lambda regime: len(self.in_regime[regime]), default=self.wanted or "MIXED")

    @property
    def told(self) -> int:
        """Pairs in one regime."""
        return 0 if self.regime == "MIXED" else len(self.share.values)

    @property
    def share(self) -> Ratio:
        return Ratio(self.in_regime.get(self.regime, []))

    def cells(self) -> list[str]:
        if not self.ratios:
            return ["-", "-", f"{self.regime}, 0"]
        by_regime = "; ".join(f"{regime}, {len(ratios)}: {median(ratios):.3f}"
                              for regime, ratios in sorted(self.in_regime.items()))
        return [f"{1 / median(self.seconds):.1f}", str(Ratio(self.ratios)), by_regime]


def thread_times() -> dict[str, tuple[float, int]]:
    """By thread of this process that the runtime started: processor seconds, voluntary switches."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        if not name.startswith("horon"):
            continue
        status = dict(line.split(":\t") for line in (task / "status").read_text().splitlines()
                      if ":\t" in line)
        on_core = int((task / "schedstat").read_text().split()[0])  # ns
        found[f"{name} {task.name}"] = on_core / 1e9, int(status["voluntary_ctxt_switches"])
    if not found:
        raise RuntimeError("no thread of this process is named as the runtime's are")
    return found


def idle_cost(seconds: float, pass_time: Callable[[], None]) -> tuple[float, float]:
    """Share of a core, and voluntary switches a second, of all runtime threads, while this rank
    does again and again what sends nothing."""
    before, start = thread_times(), time.perf_counter()
    while time.perf_counter() < start + seconds:
        pass_time()
    after, taken = thread_times(), time.perf_counter() - start
    spent = sum(after[name][0] - before.get(name, (0, 0))[0] for name in after)
    switches = sum(after[name][1] - before.get(name, (0, 0))[1] for name in after)
    return spent / taken, switches / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="of one regime (default 30)")
    parser.add_argument("--most-pairs", type=int,
                        help="of each kind in all (default: four times as many)")
    parser.add_argument("--steps", type=int, default=10, help="in each half of a pair")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"of each rank (default {BATCH})")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB",
                        help="only these, such as 'Horon'")
    parser.add_argument("--regime", choices=REGIMES[:2],
                        help="only pairs that begin and end in this one")
    parser.add_argument("--patience", type=float, default=120,
                        help="seconds that each may take with --regime (default 120)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds; 0: not measured")
    parser.add_argument("--markdown", help="file for the tables that are printed")
    parser.add_argument("--json", help="file for the goals, as goals.py reads them")
    options = parser.parse_args()
    options.most_pairs = options.most_pairs or 4 * options.pairs
    about = machine.about()
    torch.set_num_threads(1)
    keep_freed_memory()
    hvd.init()
    store = hvd.broadcast_object(tempfile.mktemp(prefix="horon-bench-"), 0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=hvd.rank(),
                            world_size=hvd.size())
    alone = Job(options.batch)
    as_asked = options.batch == BATCH and hvd.size() == hvd.local_size() == 2
    lines = ["| gradients over | steps/s | share of the steps without communication (95 %) | "
             "in each regime, pairs: share |", "|---|---|---|---|"]
    reached = []
    with tempfile.TemporaryDirectory() as folder:
        pingpong = PingPong(None, Path(folder)) if hvd.rank() == 0 else None
        for name in options.only:
            kept = Kept(JOBS[name](options.batch), alone, options, pingpong)
            lines.append("| " + " | ".join([name, *kept.cells()]) + " |")
            if name in WITH_GOAL and as_asked:
                reached.append(goals.training(name, kept.regime, kept.share))
    if options.batch == BATCH:  # what was quoted is of that
        lines += [f"| {name} | {rate} | {share} | |"
                  for name, (rate, share) in quoted.TRAINING.items()]
    if options.idle:
        lines.append("")
        for meanwhile, pass_time in {"trains by itself": alone.step,
                                     "sleeps": lambda: time.sleep(options.idle)}.items():
            core, switches = idle_cost(options.idle, pass_time)
            lines.append(f"A rank that {meanwhile} for {options.idle:.0f} s: {core:.3%} of a core, "
                         f"{switches:.2f} voluntary switches a second, all threads of the runtime.")
            reached += goals.idle(meanwhile, core, switches, options.idle)
        lines.append(quoted.IDLE)
    if hvd.rank() == 0:
        text = "\n".join([machine.lines(about), *lines, "", goals.section(reached)])
        print(text)
        if options.markdown:
            Path(options.markdown).write_text(text)
        if options.json:
            Path(options.json).write_text(json.dumps({"machine": about, "goals": reached}))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
