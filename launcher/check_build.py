"""horonrun --check-build: what is built, what this machine has, and what a job would use."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from . import huge_pages
from .library import find, folders, refuse_wrong_settings
from .mpirun import find_mpirun, remote_shell, require, version
from .options import Options
from .prefixes import python_prefixes
from .refusal import Refusal
from .surroundings import around

_FRAMEWORKS = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("JAX", "jax"))
_AGAIN = "install Horon again: pip install --force-reinstall --no-deps . in its sources"
_MOST_VERSION_BYTES = 8192  # more than any MPI says of itself


def report() -> int:
    """Prints it; exit code 0 if the library opens. Raises Refusal for a variable with a wrong
    value."""
    library, where = _library()
    if library is None:
        print(f"horonrun: {where}", file=sys.stderr)
        return 1
    refuse_wrong_settings(os.environ)
    library.horon_version.restype = library.horon_last_error.restype = ctypes.c_char_p
    # As the package does for a rank.
    os.environ.setdefault("HORON_PYTHON_PREFIX", python_prefixes())
    mpi = bool(library.horon_mpi_available())
    why = "" if mpi else library.horon_last_error().decode(errors="replace")
    sections = {
        "Built": _built(Path(where), bool(library.horon_cuda_built())),
        "Found": [*_found(mpi), *_gpu_parts(library)],
        "Used": _used(why),
        "Variables": _variables(library),
    }
    print(f"Horon {library.horon_version().decode()}: {where}")
    for title, lines in sections.items():
        print("\n".join(["", f"{title}:", *(f"    {line}" for line in lines)]))
    return 0


def _library() -> tuple[ctypes.CDLL | None, str]:
    """libhoron as Python's module uses it, and where it is, or why one of them does not open."""
    path = find()
    if path is None:
        where = ", ".join(folders()) or "any package horon"
        return None, f"libhoron.so is not in {where}; {_AGAIN}"
    try:
        library = ctypes.CDLL(str(path))
        importlib.import_module("horon._core")
        return library, str(path)
    except (OSError, ImportError) as error:
        return None, f"Horon does not open: {error}; {_AGAIN}"


def _line(there: bool, what: str, details: str = "", otherwise: str = "") -> str:
    more = details if there else otherwise
    return f"[{'X' if there else ' '}] {what}{': ' if more else ''}{more}"


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _built(library: Path, cuda: bool) -> Iterator[str]:
    yield _line(True, "shared memory, inside a host")
    plugin = library.with_name("libhoron_mpi.so")
    missing = "no MPI was found when this was built"
    yield _line(plugin.exists(), "MPI, between hosts", str(plugin), missing)
    missing = "no nvcc was found when this was built"
    where = str(library.with_name("libhoron_cuda.so"))
    yield _line(cuda, "CUDA, for tensors of GPUs", where, missing)
    for name, module in _FRAMEWORKS:
        shim = _has(f"horon.{module}")
        yield _line(shim, f"{name}, horon.{module}", "", "not in this version")


def _found(mpi: bool) -> Iterator[str]:
    libmpi = _opened("libmpi.so") if mpi else ""
    yield _line(bool(libmpi), "libmpi", f"{libmpi} ({_library_version(libmpi)})")
    mpirun = find_mpirun(os.environ)
    said = version(mpirun) if mpirun else ""
    yield _line(mpirun is not None, "mpirun", f"{mpirun} ({said})")
    shell = remote_shell(Options(np=1, command=[]), os.environ)[0]
    path = shutil.which(shell)
    yield _line(path is not None, "remote shell", str(path), f"no {shell} in PATH")
    got = huge_pages.granted()
    said = huge_pages.sentence(got)
    yield _line(got > 0, "huge pages for shared memory", said, said)
    for name, module in _FRAMEWORKS:
        yield _line(_has(module), name, _package_version(module), "not installed")
    yield f"around: {'; '.join(around(os.environ)) or 'no batch system, no other launcher'}"


def _gpu_parts(library: ctypes.CDLL) -> list[str]:
    """What tensors of GPUs need: each with the place where it is, or the reason why it is not."""
    names = {"driver": "NVIDIA driver", "nccl": "NCCL", "cublas": "cuBLAS"}
    lines = []

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def add(part: bytes, version: int, text: bytes, user: object) -> None:
        said = text.decode(errors="replace")
        lines.append(_line(version > 0, names[part.decode()], said, said))

    library.horon_gpu_parts(add, None)
    return lines


def _used(why_no_mpi: str) -> Iterator[str]:
    yield "ranks on one host: started by horonrun, over shared memory"
    try:
        mpirun, _ = require(os.environ)
        how = f"through {mpirun}, over shared memory inside a host and MPI between hosts"
    except Refusal as refusal:
        mpirun, how = "", f"not possible: {refusal}"
    if mpirun and why_no_mpi:
        how = f"not possible: {why_no_mpi}"
    yield f"ranks on several hosts: {how}"


def _opened(name: str) -> str:
    """Path of a library that this process has opened, "" if it has not."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    match = re.search(rf"(/.*/{re.escape(name)}\S*)$", maps, re.M)
    return match[1] if match else ""


def _library_version(libmpi: str) -> str:
    if not libmpi:
        return ""
    text, length = ctypes.create_string_buffer(_MOST_VERSION_BYTES), ctypes.c_int()
    ctypes.CDLL(libmpi).MPI_Get_library_version(text, ctypes.byref(length))  # needs no MPI_Init
    return re.split(rb"[,\n]", text.value)[0].decode(errors="replace")


def _package_version(module: str) -> str:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _variables(library: ctypes.CDLL) -> list[str]:
    lines = []

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def add(name: bytes, horovod: int, meaning: bytes, user: object) -> None:
        knob = name.decode()
        names = [f"HORON_{knob}"] + ([f"HOROVOD_{knob}"] if horovod else [])
        also = " (HOROVOD_ too)" if horovod else ""
        value = next((os.environ[one] for one in names if one in os.environ), None)
        now = "" if value is None else f"; now {value!r}"
        lines.append(f"HORON_{knob:26s} {meaning.decode()}{also}{now}")

    library.horon_knobs(add, None)
    return lines
