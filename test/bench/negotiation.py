#!/usr/bin/env python3
"""Negotiation at scale: messages and bytes of first and steady steps, as a table and a plot.

    python test/bench/negotiation.py --program build/bin/horon_bench_negotiation \\
        --plot negotiation.png

The coordinator, the wire format, the bundles and the gates of locked steps are the real ones; the
ranks are simulated. Fails where a steady step sends more than the goal allows, also one in which
one tensor of 32 is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

STEPS = 4
MOST_BYTES = 64  # the goal: on an edge between two nodes, up and down, in a step that is negotiated

STEPS_SHOWN = ("first", "steady", "gaps", "locked")


def measure(program: str, nodes: int, each: int, tensors: int) -> dict[str, dict]:
    """Of the first step, a steady one, one without some tensors, and one that is locked."""
    lines = subprocess.run([program, *map(str, (nodes, each, tensors, STEPS))], check=True,
                           capture_output=True, text=True, timeout=600).stdout.splitlines()
    steps = [json.loads(line) for line in lines]
    return dict(zip(STEPS_SHOWN, (steps[0], *steps[-3:])))


def table(rows: list[tuple[int, int, dict]]) -> str:
    lines = ["| ranks | nodes | step | messages between nodes | inside nodes | a leader sends "
             "| a leader receives | a rank reports | the coordinator works |",
             "|---|---|---|---|---|---|---|---|---|"]
    for ranks, nodes, steps in rows:
        for name, step in steps.items():
            lines.append(f"| {ranks:,} | {nodes} | {name} | {step['messages_between']:,} | "
                         f"{step['messages_inside']:,} | {step['bytes_up']:,} B | "
                         f"{step['bytes_down']:,} B | "
                         f"{step['report']:,} B | {step['coordinator_ms']:.2f} ms |")
    return "\n".join(lines) + "\n"


def misses(rows: list[tuple[int, int, dict]]) -> list[str]:
    """Where the goals are missed: a sentence each."""
    found = []
    for ranks, nodes, steps in rows:
        locked = steps["locked"]
        for name in ("steady", "gaps"):
            step = steps[name]
            most = max(step["bytes_up"], step["bytes_down"])
            if most > MOST_BYTES:
                found.append(f"{ranks} ranks: {most} B on an edge in a step '{name}', "
                             f"{MOST_BYTES} asked")
            if step["messages_between"] > 2 * (nodes - 1):
                found.append(f"{ranks} ranks: {step['messages_between']} messages in a step "
                             f"'{name}'")
        hops = (nodes - 1).bit_length()  # each along another edge
        if locked["messages_between"] > nodes * hops:
            found.append(f"{ranks} ranks: {locked['messages_between']} messages in a locked step")
        if locked["bytes_up"] > MOST_BYTES * hops:
            found.append(f"{ranks} ranks: {locked['bytes_up']} B in {hops} messages of a locked "
                         f"step, {MOST_BYTES} each asked")
    return found


def plot(rows: list[tuple[int, int, dict]], path: str, tensors: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (messages, size, time) = pyplot.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    ranks = [row[0] for row in rows]

    def of(name: str, what: str) -> list[float | None]:
        return [steps[name][what] or None for _, _, steps in rows]

    for name, marker, line in (("first", "o", "-"), ("steady", "s", "--"), ("locked", "^", ":")):
        messages.loglog(ranks, of(name, "messages_between"), marker=marker, linestyle=line,
                        label=f"{name} step")
    size.loglog(ranks, of("locked", "bytes_up"), marker="^", linestyle=":",
                label="a node's first rank sends, locked step")
    for name in ("first", "steady"):
        size.loglog(ranks, of(name, "report"), marker="o", label=f"a rank reports, {name} step")
        size.loglog(ranks, of(name, "bytes_down"), marker="s", linestyle="--",
                    label=f"a leader receives, {name} step")
        time.loglog(ranks, of(name, "coordinator_ms"), marker="o", label=f"{name} step")
    messages.set(xlabel="ranks", ylabel="messages", title="Messages between nodes in a step")
    size.set(xlabel="ranks", ylabel="bytes", title=f"Size of messages, {tensors} tensors")
    time.set(xlabel="ranks", ylabel="ms", title="The coordinator's work in a step")
    for axes in (messages, size, time):
        axes.set_xscale("log", base=2)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tensors", type=int, default=161)
    parser.add_argument("--each", type=int, default=8, help="ranks of a node (default 8)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 8, 32, 128, 512])
    parser.add_argument("--plot")
    parser.add_argument("--markdown")
    options = parser.parse_args()
    rows = [(nodes * options.each, nodes,
             measure(options.program, nodes, options.each, options.tensors))
            for nodes in options.nodes]
    print(table(rows))
    if options.markdown:
        Path(options.markdown).write_text(table(rows))
    if options.plot:
        plot(rows, options.plot, options.tensors)
    missed = misses(rows)
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
