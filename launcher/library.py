"""libhoron beside this launcher: where it is, and what it says of the settings."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from .refusal import Refusal

_PREFIXES = ("HORON_", "HOROVOD_")


def folders() -> list[str]:
    """Of the package horon, in which the library lies."""
    spec = importlib.util.find_spec("horon")
    return list(spec.submodule_search_locations or []) if spec else []


def find() -> Path | None:
    paths = (Path(folder) / "libhoron.so" for folder in folders())
    return next(filter(Path.exists, paths), None)


def refuse_wrong_settings(environment: Mapping[str, str]) -> None:
    """A value that makes no sense is said once, and not by every rank. `environment` is this
    process's own. Where the library does not open, the ranks say why."""
    path = find() if any(name.startswith(_PREFIXES) for name in environment) else None
    if path is None:
        return
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return
    library.horon_last_error.restype = ctypes.c_char_p
    if library.horon_check_settings():
        raise Refusal(library.horon_last_error().decode(errors="replace"))
