"""libhoron of the installed package: where it is, and what it says of the settings."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from .refusal import Refusal

_PREFIXES = ("HORON_", "HOROVOD_")
_PLACED = ("RANK", "SIZE", "LAUNCHER_FD")  # each rank gets its own
_Getter = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def folders() -> list[str]:
    """Of the package horon, in which the library lies."""
    spec = importlib.util.find_spec("horon")
    return list(spec.submodule_search_locations or []) if spec else []


def find() -> Path | None:
    paths = (Path(folder) / "libhoron.so" for folder in folders())
    return next(filter(Path.exists, paths), None)


def refuse_wrong_settings(environment: Mapping[str, str]) -> None:
    """A value that makes no sense is said once, and not by every rank. `environment` is what they
    get. Where the library does not open, or cannot tell, the ranks say what is wrong."""
    placed = {prefix + name for prefix in _PREFIXES for name in _PLACED}
    given = {
        name.encode(): ctypes.create_string_buffer(os.fsencode(value))
        for name, value in environment.items()
        if name.startswith(_PREFIXES) and name not in placed
    }
    path = find() if given else None
    if path is None:
        return
    try:
        library = ctypes.CDLL(str(path))
        check = library.horon_check_settings
    except (OSError, AttributeError):
        return

    @_Getter
    def get(name: bytes) -> int | None:
        return ctypes.addressof(given[name]) if name in given else None

    library.horon_last_error.restype = ctypes.c_char_p
    if check(get):
        raise Refusal(library.horon_last_error().decode(errors="replace"))
