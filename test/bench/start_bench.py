"""What starting costs: importing horon, joining a job, and the memory of a runtime without one.

    python test/bench/start_bench.py

Interleaved, medians and extremes of --rounds: `import horon`; `horonrun -np 2` of a program that
imports horon.torch and calls init, beyond two Pythons that import torch side by side; and what the
resident memory of a rank grows by from after its import until after init.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

LIMIT_S = 120
HORONRUN = (sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix", sys.executable, "-c")
IMPORT = "import time; t = time.perf_counter(); import horon; print(time.perf_counter() - t)"
TWO_TORCHES = ("sh", "-c", '"$0" -c "import torch" & "$0" -c "import torch"; wait', sys.executable)
JOIN = "import horon.torch as hvd; hvd.init()"
MEMORY = """
import horon
def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
before = resident()
horon.init()
print(resident() - before, flush=True)
"""


def output_of(*command: str) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


def seconds(*command: str) -> float:
    begun = time.perf_counter()
    output_of(*command)
    return time.perf_counter() - begun


def row(what: str, values: list[float], unit: str, goal: str) -> None:
    middle, least, most = statistics.median(values), min(values), max(values)
    print(f"| {what} | {middle:.1f} {unit} ({least:.1f} to {most:.1f}) | {goal} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    seconds(*TWO_TORCHES), seconds(*HORONRUN, JOIN)  # from disk, the first time
    imports, joins, memory = [], [], []
    for _ in range(rounds):
        imports.append(float(output_of(sys.executable, "-c", IMPORT)) * 1e3)
        bare = seconds(*TWO_TORCHES)
        joins.append((seconds(*HORONRUN, JOIN) - bare) * 1e3)
        memory += [int(line) / 1024 for line in output_of(*HORONRUN, MEMORY).split()]
    print("| what | median | goal |\n|---|---|---|")
    row("import horon", imports, "ms", "150 ms")
    row("two ranks, beyond importing torch", joins, "ms", "500 ms")
    row("memory of a runtime, a rank", memory, "MiB", "20 MiB")


if __name__ == "__main__":
    main()
