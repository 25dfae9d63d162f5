"""horonrun --check-build: what of Horon is built, and what it finds on this machine."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

from .mpirun import find_mpirun, version

_FRAMEWORKS = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("JAX", "jax"))


def _library() -> tuple[ctypes.CDLL | None, str]:
    """libhoron, and where it is or why it does not open. The package itself is not imported."""
    spec = importlib.util.find_spec("horon")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / "libhoron.so"
        if path.exists():
            try:
                return ctypes.CDLL(str(path)), str(path)
            except OSError as error:
                return None, str(error)
    return None, "libhoron.so not found; install Horon: pip install ."


def _mark(found: bool) -> str:
    return "[X]" if found else "[ ]"


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def report() -> int:
    """Prints the table; exit code 0 if the library opens."""
    library, where = _library()
    if library is None:
        print(f"Horon: {where}")
        return 1
    library.horon_version.restype = ctypes.c_char_p
    lines = [f"Horon {library.horon_version().decode()}: {where}", "", "Frameworks:"]
    for name, module in _FRAMEWORKS:
        shim, installed = _has(f"horon.{module}"), _has(module)
        state = (
            " (not installed)" if not installed else "" if shim else " (no shim in this version)"
        )
        lines.append(f"    {_mark(shim and installed)} {name}{state}")
    mpirun = find_mpirun(os.environ)
    where = f": {mpirun} ({version(mpirun)})" if mpirun else ""
    lines += [
        "",
        "Controllers and transports:",
        f"    {_mark(True)} shared memory",
        f"    {_mark(bool(library.horon_mpi_available()))} MPI",
        f"    {_mark(mpirun is not None)} mpirun{where}",
        "",
        "Variables:",
        *_variables(library),
    ]
    print("\n".join(lines))
    return 0


def _variables(library: ctypes.CDLL) -> list[str]:
    lines = []

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def add(name: bytes, horovod: int, meaning: bytes, user: object) -> None:
        also = " (HOROVOD_ too)" if horovod else ""
        lines.append(f"    HORON_{name.decode():26s} {meaning.decode()}{also}")

    library.horon_knobs(add, None)
    return lines
