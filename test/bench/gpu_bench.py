#!/usr/bin/env python3
"""What Horon must reach on a GPU, and whether it does.

    python test/bench/gpu_bench.py --markdown gpu.md --json gpu.json

Prints a Markdown table: kernels beside the memory's bandwidth and cuBLAS, a launch through Horon
beside raw NCCL, the device's memory, and waits for the device in a training step. The compiled part
is build/bin/horon_bench_gpu, which is built where nvcc is; `make bench-gpu` builds all and runs
this. Where there is no GPU it says why, prints the table without figures, and ends with 77.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from horon.launcher.prefixes import python_prefixes
from one_gpu import SHARED
from report import interval, table

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parents[1] / "build" / "bin" / "horon_bench_gpu"
NOT_MEASURED = "not measured"
NOTHING_HERE = 77
LIMIT_S = 70  # of each of four parts


@dataclass
class Found:
    """What was measured, by name, and why the rest was not."""

    parts: dict[str, dict] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def add(self, part: dict) -> None:
        name = part.pop("name")
        if "missing" in part:
            self.missing[name] = part["missing"]
        else:
            self.parts[name] = part

    def rate(self, name: str) -> float:
        """Bytes a second."""
        return self.parts[name]["bytes"] / self.parts[name]["seconds"]

    def later(self, name: str, than: str) -> list[float]:
        """Seconds between two of which each was measured in one turn, again and again."""
        return [a - b for a, b in zip(self.parts[name]["samples"], self.parts[than]["samples"])]


@dataclass
class Line:
    """A row of the table. `measured` gives the words for it, and whether the goal is reached; it
    fails with a KeyError where something of it was not measured."""

    what: str
    goal: str
    measured: Callable[[Found], tuple[str, bool]]

    def cells(self, found: Found) -> list[str]:
        try:
            words, reached = self.measured(found)
        except KeyError:
            return [self.what, self.goal, NOT_MEASURED, ""]
        return [self.what, self.goal, words, ("yes" if reached else "**no**") if self.goal else ""]


def moved(set_of: str, what: str, beside: str | None = None, least: float = 0,
          launches: int = 0) -> Callable:
    """A kernel's bandwidth, and its share of a reference's."""
    def measured(found: Found) -> tuple[str, bool]:
        name = f"{set_of}, {what}"
        part, rate = found.parts[name], found.rate(name)
        count = part["launches"]
        words = [f"{part['seconds'] * 1e6:.1f} us", f"{rate / 1e9:.0f} GB/s",
                 f"{count} launch{'' if count == 1 else 'es'}"]
        reached = launches in (0, count)
        if beside is not None:
            share = rate / found.rate(f"{set_of}, {beside}")
            words.insert(2, f"{share:.0%}")
            reached = reached and share >= least
        return ", ".join(words), reached
    return measured


def times_faster(set_of: str, what: str, than: str, least: float) -> Callable:
    def measured(found: Found) -> tuple[str, bool]:
        ratio = (found.parts[f"{set_of}, {than}"]["seconds"]
                 / found.parts[f"{set_of}, {what}"]["seconds"])
        return f"{ratio:.1f} times", ratio >= least
    return measured


def later(name: str, than: str, most: float = float("inf")) -> Callable:
    """The median of the differences, with its 95 % interval."""
    def measured(found: Found) -> tuple[str, bool]:
        values = [seconds * 1e6 for seconds in found.later(name, than)]
        between = interval(values)
        words = f" ({between[0]:.1f} to {between[1]:.1f})" if between else ""
        return f"{median(values):.1f} us{words}", median(values) <= most
    return measured


def beyond_the_buffer(found: Found) -> tuple[str, bool]:
    taken = found.parts["memory"]["bytes"] / (1 << 20)
    return f"{taken:.0f} MiB", taken < 64


def waits(found: Found) -> tuple[str, bool]:
    def said(calls: dict[str, int]) -> str:
        return ", ".join(f"{count} x {name}" for name, count in sorted(calls.items())) or "0"
    part = found.parts["waits"]
    return f"{said(part['program'])} (the runtime's threads: {said(part['runtime'])})", \
        not part["program"]


def lines_of_adasum(set_of: str, about: str) -> list[Line]:
    return [
        Line(f"{about}: dots of all pairs (Adasum)", "85 % of reading",
             moved(set_of, "dots of all pairs", "read", 0.85)),
        Line(f"{about}: combination of all pairs", "",
             moved(set_of, "combination of all pairs", "copy")),
        Line(f"{about}: dots by cuBLAS (`HORON_ADASUM_KERNEL=cublas`)", "",
             moved(set_of, "dots of all pairs, by cuBLAS", "read")),
        Line(f"{about}: combination by cuBLAS", "",
             moved(set_of, "combination of all pairs, by cuBLAS", "copy")),
    ]


def lines_of(set_of: str, about: str) -> list[Line]:
    one_call = "one product of each pair, a call of cuBLAS each"
    return [
        Line(f"{about}: pack, scaled", "85 % of the copy, one launch",
             moved(set_of, "pack, scaled", "copy", 0.85, 1)),
        Line(f"{about}: unpack", "85 % of the copy, one launch",
             moved(set_of, "unpack", "copy", 0.85, 1)),
        *lines_of_adasum(set_of, about),
        Line(f"{about}: dots, beside one call of cuBLAS for each tensor",
             "10 times faster" if set_of == "ResNet-50" else "",
             times_faster(set_of, "dots of all pairs", one_call, 10)),
    ]


LINES = [
    *lines_of("ResNet-50", "ResNet-50, 161 tensors"),
    *lines_of("BERT-base", "BERT-base, 199 tensors"),
    *(line for dtype in ("float16", "bfloat16", "float64")
      for line in lines_of_adasum(f"ResNet-50, {dtype}", f"ResNet-50, {dtype}")),
    Line("4096 x 1024: product with 1024 x 4, by cuBLAS", "",
         moved("4096 x 1024", "product with 1024 x 4, by cuBLAS")),
    Line("one rank, one number, shortly after another: from the call to the launch", "15 us",
         later("Horon's kernel", "a kernel", 15)),
    Line("the same, after a pause of 1 ms", "15 us",
         later("Horon's kernel, after a pause", "a kernel, after a pause", 15)),
    Line("one number, shortly after another: a stream behind the work, later than NCCL's call "
         "(blocking)", "5 us",
         later("Horon, submitted and waited for", "NCCL, blocking, sum", 5)),
    Line("the same, the caller's thread enqueuing (`horon_run`)", "5 us",
         later("Horon, run", "NCCL, blocking, sum", 5)),
    Line("NCCL's call that does not block, later than the one that does: a sum", "",
         later("NCCL, not blocking, sum", "NCCL, blocking, sum")),
    Line("the same: an exchange, for which NCCL launches a group", "",
         later("NCCL, not blocking, exchange", "NCCL, blocking, exchange")),
    Line("Horon's own exchange, later than NCCL's call (blocking)", "5 us",
         later("Horon's group, exchange", "NCCL, blocking, exchange", 5)),
    Line("the same, later than NCCL's call that does not block", "",
         later("Horon's group, exchange", "NCCL, not blocking, exchange")),
    Line("memory of the device beyond the fusion buffer, one rank, without NCCL's", "below 64 MiB",
         beyond_the_buffer),
    Line("waits for the device in training steps, on the program's threads", "0", waits),
]


def versions(found: Found) -> str:
    """A line each: device, driver and libraries."""
    return "\n".join(f"- {name}: {found.parts[name]['is'] if name in found.parts else NOT_MEASURED}"
                     for name in ("device", "driver", "NCCL", "cuBLAS", "PyTorch"))


def no_gpu(program: Path) -> str | None:
    """Why nothing can be measured here."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "this machine has no NVIDIA driver (libcuda.so.1 does not open)"
    if not program.exists():
        return f"{program} is not there: it is built where nvcc is (make bench-gpu)"
    return None


def end(process: subprocess.Popen) -> None:
    """With all of its group; horonrun ends its ranks when it is told to end."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(found: Found, what: str, command: list[str], env: dict[str, str] | None = None) -> str:
    """A part's output. What fails is named, and the other parts are measured."""
    # The compiled part finds the libraries of this Python, as the package does.
    env = {"HORON_PYTHON_PREFIX": python_prefixes(), **os.environ, **(env or {})}
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            end(process)
            found.missing[what], found.failed = f"not done after {LIMIT_S} s", True
            return ""
        except BaseException:  # this program is to end
            end(process)
            raise
    if process.returncode == NOTHING_HERE:
        found.missing[what] = output.strip().removeprefix("not measured: ")
    elif process.returncode != 0:
        found.missing[what] = (errors or output).strip()[-1000:]
        found.failed = True
    return output if process.returncode == 0 else ""


def measure_compiled(found: Found, program: Path) -> None:
    for part in ("kernels", "launches"):
        for line in run(found, part, [str(program), part]).splitlines():
            if line.startswith("{"):
                found.add(json.loads(line))


def measure_steps(found: Found) -> None:
    try:
        import torch
    except ImportError:
        found.missing["memory, waits"] = "no PyTorch"
        return
    if not torch.cuda.is_available():
        found.missing["memory, waits"] = f"this PyTorch ({torch.__version__}) sees no GPU"
        return
    found.add({"name": "PyTorch", "is": f"{torch.__version__}, for CUDA {torch.version.cuda}"})
    two = [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix"]
    shared = SHARED if torch.cuda.device_count() < 2 else {}
    for what, launcher, env in (("memory", [], {}), ("waits", two, shared)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "found.json"
            run(found, what,
                [*launcher, sys.executable, str(HERE / "gpu_step.py"), what, str(path)], env)
            if path.exists():
                found.add({"name": what, **json.loads(path.read_text())})


def text_of(found: Found) -> str:
    why = "".join(f"\n- Missing: {name} ({' '.join(reason.split())})."
                  for name, reason in found.missing.items())
    lines = table(["what", "goal", "measured", "reached"], [line.cells(found) for line in LINES])
    return "\n".join([versions(found), "", *lines, why])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started ends, too
    found = Found()
    reason = no_gpu(arguments.program)
    if reason is None:
        measure_compiled(found, arguments.program)
        measure_steps(found)
        if not found.parts:
            reason = "; ".join(found.missing.values())
    text = text_of(found)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"parts": found.parts, "missing": found.missing}))
    if reason is not None:
        print(f"Nothing was measured: {reason}.", file=sys.stderr)
        return NOTHING_HERE
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
