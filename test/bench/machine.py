"""What a table was measured on: the machine, and the versions of what ran there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPU = Path("/sys/devices/system/cpu/cpu0")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
# The widest first.
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
# Two children of one process, as two ranks are: may the second read the first one's memory?
READS_A_SIBLING = """
import ctypes, os
class Part(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
word = ctypes.create_string_buffer(8)
part, ended = Part(ctypes.addressof(word), 8), os.pipe()
first = os.fork()
if first == 0:
    os.close(ended[1])
    os._exit(len(os.read(ended[0], 1)))
second = os.fork()
if second == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    read = libc.process_vm_readv(first, ctypes.byref(part), 1, ctypes.byref(part), 1, 0)
    os._exit(0 if read == 8 else ctypes.get_errno() or 255)
code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
os.close(ended[1])
os.waitpid(first, 0)
print(f"not permitted ({os.strerror(code)})" if code else "permitted")
"""


def about() -> dict[str, str]:
    """By what it is. What cannot be found out is left out."""
    found = {
        "date": datetime.now(timezone.utc).strftime("%d %B %Y, %H:%M UTC"),
        "processor": processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}, {vectors()}",
        "caches": caches(),
        "memory": memory(),
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "hypervisor": hypervisor(),
        "huge pages": huge_pages(),
        "reading another rank's memory (CMA)": said([sys.executable, "-c", READS_A_SIBLING]),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes)",
        "Python": platform.python_version(),
        "PyTorch": version("torch"),
        "Open MPI": said([str(Path(sys.executable).with_name("mpirun")), "--version"])
                    or said(["mpirun", "--version"]),
        "mpi4py": version("mpi4py"),
        "Horon": horon(),
    }
    return {name: words for name, words in found.items() if words}


def lines(facts: dict[str, str]) -> str:
    return "".join(f"- {name}: {words}\n" for name, words in facts.items())


def said(command: list[str]) -> str:
    """The first line of a program's output, "" if there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def horon() -> str:
    """With the state of the checkout that this file is in, if it is one."""
    git = ["git", "-C", str(ROOT)]
    commit = said([*git, "rev-parse", "--short=10", "HEAD"])
    changes = said([*git, "status", "--porcelain", "--untracked-files=no"])
    checkout = f"checkout {commit}{', changed' if changes else ''}" if commit else ""
    return ", ".join(filter(None, [version("horon"), checkout]))


def cpuinfo(*names: str) -> str:
    """What is said of the first processor under one of these names."""
    for line in read(Path("/proc/cpuinfo")).splitlines():
        name, _, words = line.partition(":")
        if name.strip() in names:
            return words.strip()
    return ""


def model() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()


def processor() -> str:
    numbers = [f"{name} {number}" for name in ("cpu family", "model", "stepping")
               if (number := cpuinfo(name))]
    return model() + (f" ({', '.join(numbers)})" if numbers else "")


def vectors() -> str:
    flags = cpuinfo("flags", "Features").split()
    return next((name for flag, name in VECTORS.items() if flag in flags), "no wide vectors")


def caches() -> str:
    """Of the first core, with the cores that have each together."""
    found = []
    for index in sorted((CPU / "cache").glob("index*")):
        level, kind, size, cores = (read(index / name).strip() for name in
                                    ("level", "type", "size", "shared_cpu_list"))
        letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found.append(f"L{level}{letter} {size} (core {cores})")
    return ", ".join(found)


def memory() -> str:
    for line in read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / (1 << 20):.1f} GiB"
    return ""


def hypervisor() -> str:
    """Empty where none is seen."""
    kind = said(["systemd-detect-virt", "--vm"])
    return kind or ("unknown" if "hypervisor" in cpuinfo("flags").split() else "")


def huge_pages() -> str:
    """What the kernel grants to private memory, and to shared memory (memfd)."""
    found = []
    for name in ("enabled", "shmem_enabled"):
        _, _, chosen = read(HUGE_PAGES / name).partition("[")
        if chosen:
            found.append(f"{name} {chosen.partition(']')[0]}")
    return ", ".join(found)
