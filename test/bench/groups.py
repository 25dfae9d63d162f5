"""The parent's side: starts the ranks of each library and asks one library at a time to measure."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from loops import FLOATS, HEADER

HERE = Path(__file__).resolve().parent
HORON = ("horon", "horon-shared", "horon-registered", "horon-views", "horon-grouped", "gossip",
         "gossip-of-ranks", "neighbors", "average", "adasum")
MPI = ("mpi", "mpi-other", "mpi-tuned")
# No libraries: what the memory allows (loops.py).
LOOPS = ("streamed", "staged", "in-place", "two-pass", "mixed", "mixed-to")
NEEDS = {**dict.fromkeys(HORON, ["horon", "torch"]), **dict.fromkeys(LOOPS, ["torch"]),
         **dict.fromkeys(MPI, ["mpi4py", "torch", "numpy"]), "gloo": ["torch"],
         "gloo-buckets": ["torch"], "gloo-views": ["torch"]}
WORD_BYTES = 64  # of the shared barrier, for each rank
START_S, MEASURE_S, STOP_S = 120.0, 300.0, 20.0


class Missing(Exception):
    """A library that cannot be measured here, and why."""


def turned(libraries: list[str], number: int) -> list[str]:
    """The order of one round: each library comes first in one of as many rounds."""
    first = number % max(len(libraries), 1)
    return libraries[first:] + libraries[:first]


def mpirun() -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise Missing("no mpirun found")
    return found


def other_mpi() -> tuple[str, dict[str, str]]:
    """The mpirun of a second MPI, as the system's is beside an environment's, and the variable by
    which mpi4py takes its library."""
    first = Path(mpirun()).resolve()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("mpirun", path=folder)
        if found is None or Path(found).resolve() == first:
            continue
        prefix = Path(found).resolve().parent.parent
        libraries = [*prefix.glob("lib*/libmpi.so.*"), *prefix.glob("lib*/*/libmpi.so.*")]
        if libraries:
            return found, {"MPI4PY_LIBMPI": str(min(libraries))}
    raise Missing("no second MPI found in PATH")


def mpi_major(program: str) -> int:
    """Of the Open MPI of this mpirun; others ignore its options."""
    from horon.launcher.mpirun import version

    match = re.search(r"(\d+)\.", version(program))
    return int(match[1]) if match else 0


def compiled(source: str, result: Path, *flags: str) -> str:
    """The path of a small C++ program or library, built unless it is there."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise Missing("no C++ compiler found")
    if not result.exists():
        subprocess.run([compiler, "-std=c++20", *flags, str(HERE / source), "-o", str(result)],
                       check=True)
    return str(result)


class Group:
    """Long-lived ranks of one library. They sleep unless they measure."""

    def __init__(self, library: str, np: int, folder: Path, launcher: str, name: str) -> None:
        for module in NEEDS[library]:
            if importlib.util.find_spec(module) is None:
                raise Missing(f"no Python module {module}")
        self.library, self.np, self.folder, self.name = library, np, folder, name
        self.channels: list = []
        self.memory = None  # a memfd that its ranks share
        self.note = ""
        self.words = folder / f"{name}.words"
        self.words.write_bytes(bytes(WORD_BYTES * np))
        self.log = folder / f"{name}.log"
        self.listener = socket.socket(socket.AF_UNIX)
        self.address = str(folder / f"{name}.socket")
        self.listener.bind(self.address)
        self.listener.listen(np)
        self.processes = self.start(launcher)
        try:
            self.greet()
        except (OSError, ValueError) as error:
            self.kill()
            raise Missing(f"did not start: {self.last_words() or error}") from None

    def start(self, launcher: str) -> list[subprocess.Popen]:
        worker = [sys.executable, str(HERE / "worker.py"), self.library, self.address,
                  str(self.words)]
        over_mpi = self.library in MPI or (self.library in HORON and launcher == "mpirun")
        ranks = [{}]
        if over_mpi:
            program, own = other_mpi() if self.library == "mpi-other" else (mpirun(), {})
            worker = [program, "-np", str(self.np), *worker]
            ranks = [self.mpi_environment(program) | own]
        elif self.library in HORON:
            worker = [sys.executable, "-m", "horon.launcher", "-np", str(self.np), *worker]
        else:
            common = {"WORLD_SIZE": str(self.np), **self.meeting_place()}
            ranks = [{**common, "RANK": str(rank)} for rank in range(self.np)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with open(self.log, "wb") as log:
            return [subprocess.Popen(worker, env={**environment, **own}, stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log) for own in ranks]

    def meeting_place(self) -> dict[str, str]:
        """Where ranks without a launcher find each other."""
        if self.library not in LOOPS:
            return {"BENCH_STORE": str(self.folder / f"{self.name}.store")}
        source = "adasum" if self.library == "two-pass" else "loops"
        built = compiled(f"reference/{source}.cc", self.folder / f"{source}.so", "-O3",
                         "-march=native", "-fopenmp-simd", "-shared", "-fPIC")
        self.memory = open(os.memfd_create(f"horon-bench-{self.name}"), "r+b")
        # Sparse: what is not used costs nothing.
        self.memory.truncate(HEADER + 4 * FLOATS * self.np)
        store = f"/proc/{os.getpid()}/fd/{self.memory.fileno()}"
        return {"BENCH_STORE": store, "BENCH_LOOPS": built}

    def mpi_environment(self, program: str) -> dict[str, str]:
        """Options of the Open MPI of this mpirun as variables, which other MPIs ignore."""
        shared_memory = "sm" if mpi_major(program) >= 5 else "vader"
        options = {
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": f"self,{shared_memory},tcp",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",  # the same two for Open MPI 4
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }
        if os.geteuid() == 0:
            options |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if self.np > len(os.sched_getaffinity(0)):
            options["OMPI_MCA_mpi_yield_when_idle"] = "1"  # without it, ranks spin each other out
        return {**options, **{k: os.environ[k] for k in options if k in os.environ}}

    def greet(self) -> None:
        self.listener.settimeout(1.0)
        waited = 0.0
        while len(self.channels) < self.np:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                waited += 1.0
                if waited >= START_S or any(p.poll() not in (None, 0) for p in self.processes):
                    raise OSError("the ranks did not come") from None
                continue
            connection.settimeout(MEASURE_S)
            self.channels.append(connection.makefile("rw"))
        hellos = [json.loads(channel.readline()) for channel in self.channels]
        if sorted(hello["rank"] for hello in hellos) != list(range(self.np)):
            raise ValueError(f"ranks {[hello['rank'] for hello in hellos]} of {self.np}")
        self.note = hellos[0]["note"]

    def measure(self, workload, dtype: str, iterations: int, memory: int = 0,
                warm_up: int = 0) -> list[float]:
        """Seconds of each iteration: the slowest rank's. Over new memory where that has another
        number than before, and then after so many to warm up."""
        order = {"do": "measure", "name": workload.name, "shapes": workload.shapes,
                 "kind": workload.kind, "dtype": workload.dtype or dtype,
                 "iterations": iterations, "memory": memory, "warm_up": warm_up}
        replies = [reply["seconds"] for reply in self.ask(order, f"failed at {workload.name}")]
        return [max(of_ranks) for of_ranks in zip(*replies)]

    def forget(self) -> None:
        """Gives the memory of what was measured back."""
        self.ask({"do": "forget"}, "failed between two rows")

    def ask(self, order: dict, failed: str) -> list[dict]:
        """Each rank's reply."""
        try:
            for channel in self.channels:
                channel.write(json.dumps(order) + "\n")
                channel.flush()
            return [json.loads(channel.readline()) for channel in self.channels]
        except (OSError, ValueError) as error:
            self.kill()
            raise Missing(f"{failed}: {self.last_words() or error}") from None

    def last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        said = [line for line in lines if line and not set(line) <= set("-=*")]
        errors = [line for line in said if "Error" in line or "error" in line]
        return (errors or said or [""])[-1]

    def stop(self) -> None:
        for channel in self.channels:
            try:
                channel.write('{"do": "stop"}\n')
                channel.flush()
            except OSError:
                pass  # it is gone already
        for process in self.processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        for channel in self.channels:
            with suppress(OSError):  # what was not sent to a rank that has ended
                channel.close()
        self.channels = []
        self.listener.close()
        if self.memory is not None:
            self.memory.close()
