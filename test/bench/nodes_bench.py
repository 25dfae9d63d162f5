#!/usr/bin/env python3
"""Allreduce between hosts: Horon, torch's gloo and Open MPI interleaved over links of 1 Gbit/s; and
one round of Horon's gossip, in which each host meets one other.

    python test/bench/nodes_bench.py --json nodes.json --plot nodes.png
    python test/bench/nodes_bench.py --small --layouts 2x1 4x1

The hosts are namespaces of this machine (test/support/world.sh), so that no network is needed but
the links are real ones to all that run here. Each library's time is printed over the bound: of an
allreduce 2(n-1)/n of the bytes must leave each of n hosts, whatever its ranks do, of an exchange
all of them. Some calls of each turn come first and do not count. With --small, many small messages
one after the other: the time of each over what its bytes take on the link and a message of 4 bytes
takes in the same library. Below come the goals, with 95 % intervals of the medians.
docs/benchmarks.md has results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import bars
import goals
import machine
import report
import workloads
from groups import HERE, HORON, Group, Missing, mpi_major, mpirun, turned

WORLD = HERE.parent / "support" / "world.sh"
LIBRARIES = ["horon", "gossip", "gloo", "mpi", "mpi-tuned"]
LAYOUTS = ["2x1", "4x1", "8x1", "2x2", "4x2"]
SMALL = [4, 1 << 10, 4 << 10, 16 << 10, 64 << 10]  # bytes; the first shows the latency
# At most so many times the bound, of SIZE bytes over links of RATE bits a second.
OVER_BOUND = {("2x1", "horon"): 1.10, ("4x1", "horon"): 1.10, ("2x2", "horon"): 1.10,
              ("8x1", "horon"): 1.15,
              ("4x1", "gossip"): 1.10, ("4x2", "gossip"): 1.10, ("8x1", "gossip"): 1.15}
OVER_ALLREDUCE = {"8x1": 0.65}  # gossip, of the fastest allreduce
OVER_SMALL = 1.3  # of a small message
SIZE, RATE = 25_000_000, 1e9
CONNECTIONS = ("OMPI_MCA_btl_tcp_links", "OMPI_MCA_btl_tcp_endpoint_cache")
ETHERNET = {"GLOO_SOCKET_IFNAME": "eth0"}


class HostGroup(Group):
    """Ranks of one library on the hosts h1, h2, ... of the world that this runs in."""

    def __init__(self, library: str, hosts: int, each: int, folder: Path) -> None:
        self.hosts, self.each = [f"h{i}" for i in range(1, hosts + 1)], each
        super().__init__(library, hosts * each, folder, "horonrun", library)

    def start(self, launcher: str) -> list[subprocess.Popen]:
        worker = [sys.executable, str(HERE / "worker.py"), self.library, self.address,
                  str(self.words)]
        named = ",".join(f"{host}:{self.each}" for host in self.hosts)
        if self.library == "gloo":
            return self.start_each(worker)
        if self.library in HORON:
            return [self.spawn([sys.executable, "-m", "horon.launcher", "-H", named, *worker], {})]
        return [self.spawn([mpirun(), "--host", named, *worker], self.settings())]

    def settings(self) -> dict[str, str]:
        """Two connections a pair of hosts, without caches, as Horon has them; tuned: all that Horon
        sets for its own messages. Not the mapping, which would put all ranks on one host."""
        found = {name: value for name, value in self.mpi_environment(mpirun()).items()
                 if "rmaps" not in name}
        from horon.launcher.mpirun import variables
        from horon.launcher.options import Options

        options = Options(np=self.np, command=[], hosts=self.hosts)
        own = variables(mpi_major(mpirun()), options, os.environ)
        if self.library == "mpi":
            own = {name: own[name] for name in CONNECTIONS if name in own}
        return {**found, **own}

    def start_each(self, worker: list[str]) -> list[subprocess.Popen]:
        common = {"WORLD_SIZE": str(self.np), "BENCH_STORE": str(self.folder / "gloo.store")}
        return [self.spawn(["on", self.hosts[rank // self.each], *worker],
                           {**ETHERNET, **common, "RANK": str(rank)}) for rank in range(self.np)]

    def spawn(self, command: list[str], own: dict[str, str]) -> subprocess.Popen:
        with open(self.log, "ab") as log:
            return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **own},
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def bound(library: str, hosts: int, size: int, rate: float) -> float:
    """Seconds: what every host must send, over a link of `rate` bits a second."""
    share = 1 if library == "gossip" else 2 * (hosts - 1) / hosts
    return share * size * 8 / rate


def start(options: argparse.Namespace, folder: Path, first: workloads.Workload
          ) -> tuple[dict[str, HostGroup], dict[str, str]]:
    """The libraries that have done `first`, and why others have not."""
    hosts, each = options.inside
    groups, missing = {}, {}
    for library in options.libraries:
        try:
            groups[library] = HostGroup(library, hosts, each, folder)
            groups[library].measure(first, "float32", 2)
        except Missing as why:
            missing[library] = str(why)
            groups.pop(library, None)
    return groups, missing


def measure(options: argparse.Namespace, folder: Path) -> dict:
    """Inside a world: all libraries in turn, round after round."""
    hosts, each = options.inside
    if options.small:
        works = [workloads.Workload(workloads.text_of(size), ((size // 4,),) * options.messages,
                                    workloads.ONE_BY_ONE) for size in SMALL]
    else:
        works = [workloads.Workload(f"{options.size} B", ((options.size // 4,),))]
    groups, missing = start(options, folder, works[0])
    rows = [report.Row(work, "float32", hosts * each) for work in works]
    for number in range(options.rounds):
        for row in rows:
            for library in turned(list(groups), number):
                taken = groups[library].measure(row.workload, row.dtype,
                                                options.warm_up + options.iterations)
                row.rounds.append(report.Round(library, number, "hosts",
                                               taken[options.warm_up:]))
    for group in groups.values():
        group.stop()
    found = [{"layout": f"{hosts}x{each}", "missing": missing, "work": row.workload.name,
              "seconds": {library: row.median(library) / len(row.workload.shapes)
                          for library in groups},
              "bounds": {library: bound(library, hosts, row.bytes / len(row.workload.shapes),
                                        options.rate) for library in options.libraries},
              "rounds": [vars(r) for r in row.rounds]} for row in rows]
    if options.small:
        for one in found:
            for library, latency in found[0]["seconds"].items():
                one["bounds"][library] += latency
    if (options.size, options.rate) == (SIZE, RATE):
        for one, row in zip(found, rows, strict=True):
            one["goals"] = goals_of(one, row, options.small)
    return found


def goals_of(found: dict, row: report.Row, small: bool) -> list[list[str]]:
    """Cells as goals.py has them."""
    layout, lines = found["layout"], []
    for library in found["seconds"]:
        limit = small_limit(library, row) if small else OVER_BOUND.get((layout, library))
        values = [median(r.seconds) / len(row.workload.shapes) / found["bounds"][library]
                  for r in row.rounds if r.library == library]
        if limit:
            lines.append(goal_line(found, f"{library}: at most {limit:g} of the bound",
                                   report.Ratio(values), limit))
    limit = OVER_ALLREDUCE.get(layout)
    others = [library for library in found["seconds"] if library != "gossip"]
    if limit and not small and others and "gossip" in found["seconds"]:
        best = min(others, key=found["seconds"].__getitem__)
        words = f"gossip: at most {limit:g} of the fastest allreduce ({best})"
        lines.append(goal_line(found, words, row.ratio("gossip", best), limit))
    return lines


def small_limit(library: str, row: report.Row) -> float | None:
    """Of Horon's, and of all sizes but that which shows the latency."""
    shows_latency = row.bytes == SMALL[0] * len(row.workload.shapes)
    return OVER_SMALL if library in HORON and not shows_latency else None


def goal_line(found: dict, words: str, ratio: report.Ratio, limit: float) -> list[str]:
    return [f"{found['layout']} hosts, {found['work']}", f"-, {len(ratio.values)}", words,
            str(ratio), goals.yes_or_no(ratio.median <= limit)]


def run_world(options: argparse.Namespace, layout: str, arguments: list[str]) -> list[dict]:
    """What was found, by size."""
    hosts, each = layout.split("x")
    with tempfile.TemporaryDirectory(prefix="horon-bench-") as folder:
        found = Path(folder) / "found.json"
        command = [str(WORLD), hosts, sys.executable, str(Path(__file__).resolve()), *arguments,
                   "--inside", hosts, each, "--json", str(found)]
        subprocess.run(command, check=True,
                       env={**os.environ, "WORLD_RATE": f"{options.rate:.0f}bit"})
        return json.loads(found.read_text())


def line_of(found: dict, libraries: list[str]) -> str:
    cells = [found["layout"], found["work"]]
    for library in libraries:
        seconds, least = found["seconds"].get(library), found["bounds"][library]
        cells.append("-" if seconds is None else
                     f"{report.text_of_time(seconds)} ({seconds / least:.2f})")
    return "| " + " | ".join(cells) + " |"


def plot(found: list[dict], libraries: list[str], path: str) -> None:
    heights = {library: [(f["seconds"].get(library) or 0) / f["bounds"][library] for f in found]
               for library in libraries}
    figure, axes = bars.grouped([f'{f["layout"]}\n{f["work"]}' for f in found], heights)
    axes.axhline(1, color="black", linewidth=1)
    below = any(0 < height < 0.8 for of_library in heights.values() for height in of_library)
    axes.set(xlabel="hosts x ranks on each", ylabel="time over the bound",
             ylim=(0 if below else 0.8, None))
    axes.legend(ncols=len(libraries), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=120)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=SIZE, help="bytes (default 25 MB)")
    parser.add_argument("--rate", type=float, default=RATE, help="bits a second (default 1e9)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--iterations", type=int, default=3, help="in one round (default 3)")
    parser.add_argument("--warm-up", type=int, default=3,
                        help="before these, not counted (default 3): TCP begins slowly on "
                             "connections that were idle while others had their turn, and the "
                             "gossip of 8 hosts has other ones in each of three rounds")
    parser.add_argument("--small", action="store_true", help="many small messages instead")
    parser.add_argument("--messages", type=int, default=200,
                        help="one after the other, with --small (default 200)")
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, metavar="HOSTSxEACH")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--inside", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--plot", help="PNG of time over the bound")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = sys.argv[1:]
    options = parse(arguments)
    if options.inside:
        with tempfile.TemporaryDirectory(prefix="horon-bench-") as folder:
            Path(options.json).write_text(json.dumps(measure(options, Path(folder))))
        return
    print(machine.lines(machine.about()))
    print("| hosts x ranks | bytes | " + " | ".join(options.libraries) + " |")
    print("|" + "---|" * (2 + len(options.libraries)))
    found = []
    for layout in options.layouts:
        here = run_world(options, layout, arguments)
        for one in here:
            print(line_of(one, options.libraries), flush=True)
        for library, why in here[0]["missing"].items():
            print(f"Missing: {library} ({why}).", flush=True)
        found += here
    print(f"\n{goals.section([line for one in found for line in one.get('goals', [])])}", end="")
    if options.json:
        Path(options.json).write_text(json.dumps(found))
    if options.plot:
        plot(found, options.libraries, options.plot)


if __name__ == "__main__":
    main()
