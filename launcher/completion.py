"""Completions of horonrun's command line for a shell, made by shtab from the parser itself."""

from __future__ import annotations

import argparse

from .refusal import Refusal
from .settings import SETTINGS

_FILES = ("hostfile", "config_file", "merge_timelines", "plot_autotune", "ssh_identity_file")
_FILE_OPTIONS = {one.option for one in SETTINGS if one.factor is None}
_FOLDERS = ("output_filename", "postmortem")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What the shell has to evaluate."""
    try:
        import shtab
    except ImportError:
        raise Refusal("--print-completion needs shtab; install it: pip install shtab") from None
    for action in parser._actions:
        of_file = not _FILE_OPTIONS.isdisjoint(action.option_strings)
        if of_file or action.dest in (*_FILES, "command"):
            action.complete = shtab.FILE
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY
    return shtab.complete(parser, shell=shell)
