"""The YAML file of --config-file: options by the keys that Horovod gives them.

A key is turned into the words that say the same on a command line, so that both are judged alike.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator

from .refusal import Refusal
from .settings import IDLE, SETTINGS, SWITCHES

_NUMBER, _TEXT, _YES_NO = "a number", "a text", "true or false"
_PLAIN_KEYS = {"controller": ("", _TEXT), "logging.level": ("--log-level", _TEXT)}


def _keys() -> dict[str, tuple[str, str, str]]:
    """Of each key: what its value must be, and the options for it, or for true and for false."""
    found = {key: (kind, option, option) for key, (option, kind) in _PLAIN_KEYS.items()}
    for one in SETTINGS:
        if one.key:
            found[one.key] = (_TEXT if one.factor is None else _NUMBER, one.option, one.option)
    found |= {one.key: (_YES_NO, one.yes[0], one.no[0]) for one in SWITCHES}
    for one in IDLE:
        if one.key and one.takes is None:
            found[one.key] = (_YES_NO, one.option, f"--no-{one.option[2:]}")
        elif one.key:
            found[one.key] = (_TEXT if one.takes is str else _NUMBER, one.option, one.option)
    return found


def _read(path: str) -> object:
    try:
        import yaml
    except ImportError:
        raise Refusal("--config-file needs PyYAML; install it: pip install pyyaml") from None
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Refusal(f"cannot read the config file {path}: {why}") from None
    except yaml.YAMLError as error:
        raise Refusal(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _entries(path: str, tree: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and their values; sections may be empty."""
    if not isinstance(tree, dict):
        raise Refusal(f"{path}: {above.rstrip('.') or 'the file'} must hold keys and values")
    sections = {key.split(".")[0] for key in _keys() if "." in key}
    for key, value in tree.items():
        if not above and key in sections:
            yield from _entries(path, {} if value is None else value, f"{key}.")
        else:
            yield f"{above}{key}", value


def _unknown(path: str, key: str) -> Refusal:
    known = _keys()
    # "fusion_threshold" in the wrong section is nearer to its own than to another one of that.
    last = {name.split(".")[-1]: name for name in known}
    near = difflib.get_close_matches(key, known, 1, 0.75)
    near = near or [last[x] for x in difflib.get_close_matches(key.split(".")[-1], last, 1, 0.6)]
    near = near or difflib.get_close_matches(key, known, 1, 0.0)
    return Refusal(f"{path}: unknown key {key}; the nearest known one is {near[0]}")


def _words(path: str, key: str, value: object) -> list[str]:
    if key not in _keys():
        raise _unknown(path, key)
    kind, yes, no = _keys()[key]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    right = {_YES_NO: isinstance(value, bool), _NUMBER: is_number}.get(kind, not is_number)
    if kind == _TEXT and not isinstance(value, str):
        right = key.endswith("thread_affinity") and is_number  # a list of one core
    if not right:
        raise Refusal(f"{path}: {key} is {value!r}, which is not {kind}")
    if key == "controller":
        return [_controller(path, value)]
    if kind == _YES_NO:
        return [yes if value else no]
    return [f"{yes}={value}"]


def _controller(path: str, value: object) -> str:
    if value not in ("mpi", "gloo", "shm"):
        raise Refusal(f"{path}: controller is {value!r}; it can be mpi, or shm (gloo means it)")
    return "--mpi" if value == "mpi" else "--gloo"


def read(path: str, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What a command line that says the same would be parsed to. Raises Refusal."""
    found = parser.parse_args([])
    for key, value in _entries(path, _read(path) or {}):
        if value is None and key in _keys():
            continue  # "log_file:" with nothing behind it
        words = _words(path, key, value)
        try:
            parser.parse_args(words, namespace=found)
        except Refusal as refusal:
            raise Refusal(f"{path}: {key}: {str(refusal).split(' (horonrun')[0]}") from None
    return found
