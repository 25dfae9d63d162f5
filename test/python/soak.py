"""A soak: four ranks run everything for a while, and hold no more at the end than in the middle.

    python test/python/soak.py --program build/bin/horon_soak [--hosts 2] [--seconds 120]

HORON_SOAK_SECONDS says how long otherwise, in CTest too; `make test-all` takes an hour each.
The ranks' program is test/soak/soak.cc: one long life, then many short ones. Prints, for each rank
and both, how what it holds grows in the second half (least squares), and fails where memory grows
by more than a limit or descriptors, threads or shared memory grow at all.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import own_world

ROOT = Path(__file__).resolve().parents[2]
NP = 4
START_S = 120  # that a job may take longer than it soaks
LIVES = ("long", "short")
# Between the third and the last quarter: at most so much, and so much more with each sample. An
# allocator's own ups and downs are smaller; a communicator that MPI keeps takes 9 KiB. Over MPI
# single steps of up to 2 MiB were seen, at no particular time: its lists of buffers for messages
# that come early, which do not shrink (docs/testing.md). What grows with the lives shows in an
# hour.
MOST_GROWTH_KIB = {"long": (4096.0, 0.0), "short": (256.0, 8.0)}
MPI_STEPS_KIB = 2048.0
# Of malloc but for the runtime's pool, on one host: to the KiB what is held, where pages come and
# go (in two minutes +1 to +51 KiB a minute were measured, of pages up to +254) and the pool keeps
# the most that was ever in use at once, which may come late. An MPI's lists are malloc's, too.
MOST_OF_MALLOC_KIB = 128.0
# Lives of ten minutes and more also by their slope, a minute, by the number of hosts: measured over
# half an hour +0.2 to +4.4 on one, and up to +100 on two, in single steps.
LONG_S = 600.0
MOST_SLOPE_KIB = {1: 20.0, 2: 200.0}
HELD = ("KiB of its own", "KiB of malloc", "KiB in use of the pool", "descriptors", "threads",
        "shared KiB")
Sample = tuple[float, ...]  # seconds, then what is HELD, then rounds


def run(program: str, hosts: int, seconds: float) -> tuple[int, str]:
    """The job's exit code and output."""
    where = ["-np", str(NP)] if hosts == 1 else ["-H", f"h1:{NP // 2},h2:{NP // 2}"]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *where, "--no-prefix", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOAK_SECONDS": str(seconds)},
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds + START_S,
        check=False,
    )
    return done.returncode, done.stdout


def samples(output: str, life: str) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {rank: [] for rank in range(NP)}
    for rank, rest in re.findall(rf"^soak (\d+) {life} ([-\d. ]+)$", output, re.M):
        found[int(rank)].append(tuple(map(float, rest.split())))
    return found


def quarter(taken: list[Sample], which: int, column: int) -> list[float]:
    size = len(taken) // 4
    return [sample[column] for sample in taken[which * size : (which + 1) * size]]


def grown(life: str, taken: list[Sample], hosts: int) -> list[str]:
    """What a rank holds too much of at the end."""
    wrong = []
    growth, of_malloc = (statistics.mean(quarter(taken, 3, column))
                         - statistics.mean(quarter(taken, 2, column)) for column in (1, 2))
    once, each = MOST_GROWTH_KIB[life]
    once = max(once, MPI_STEPS_KIB if hosts > 1 else 0.0)
    if growth > once + each * len(taken) / 4:
        wrong.append(f"{growth:.0f} KiB more memory in the last quarter than in the third")
    if hosts == 1 and of_malloc > MOST_OF_MALLOC_KIB:
        wrong.append(f"{of_malloc:.0f} KiB more of malloc in the last quarter than in the third")
    slope = slopes(taken)[0]
    if taken[-1][0] - taken[0][0] >= LONG_S and slope > MOST_SLOPE_KIB[hosts]:
        wrong.append(f"{slope:.0f} KiB more memory a minute")
    for column, name in enumerate(HELD[2:], start=3):
        # A thread that makes MPI's blocking calls may just be ending: single samples do not count.
        before, after = (statistics.median(quarter(taken, which, column)) for which in (1, 3))
        if after > before:
            wrong.append(f"{after:.0f} {name} instead of {before:.0f}")
    return wrong


def slopes(taken: list[Sample]) -> list[float]:
    """Of each thing HELD, per minute, in the second half."""
    half = taken[len(taken) // 2 :]
    minutes = [sample[0] / 60 for sample in half]
    columns = [[sample[i + 1] for sample in half] for i in range(len(HELD))]
    return [statistics.linear_regression(minutes, column).slope for column in columns]


def judge(rank: int, life: str, taken: list[Sample], hosts: int) -> list[str]:
    """Prints how a rank grew; what is wrong with that."""
    if len(taken) < 8:
        return [f"said too little, {len(taken)} lines"]
    grows = ", ".join(f"{s:+.1f} {n}" for s, n in zip(slopes(taken), HELD, strict=True))
    _, own, *_, rounds = taken[-1]
    print(f"rank {rank}, {life}, {rounds:.0f} rounds, {own:.0f} KiB; a minute: {grows}")
    return grown(life, taken, hosts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="horon_soak")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    default = float(os.environ.get("HORON_SOAK_SECONDS", "120"))
    parser.add_argument("--seconds", type=float, default=default)
    asked = parser.parse_args()
    if asked.hosts > 1 and not own_world.inside():
        return own_world.run_inside(asked.hosts)
    os.nice(10)  # what runs beside it has bounds; a soak goes round as often as it can
    code, output = run(os.path.abspath(asked.program), asked.hosts, asked.seconds)
    wrong = [] if code == 0 else [f"exit code {code}\n{output[-4000:]}"]
    for life in LIVES:
        for rank, taken in samples(output, life).items():
            found = judge(rank, life, taken, asked.hosts)
            wrong += [f"rank {rank}, {life}: {what}" for what in found]
    print("\n".join(f"WRONG {what}" for what in wrong) or f"flat after {asked.seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
