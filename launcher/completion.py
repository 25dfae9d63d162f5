"""Completions of horonrun's command line for a shell, made by shtab from the parser itself."""

from __future__ import annotations

import argparse

from .refusal import Refusal

_FILES = ("hostfile", "config_file", "ssh_identity_file")
_FOLDERS = ("output_filename", "postmortem")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What the shell has to evaluate."""
    try:
        import shtab
    except ImportError:
        raise Refusal("--print-completion needs shtab; install it: pip install shtab") from None
    for action in parser._actions:
        if action.dest in (*_FILES, "command"):
            action.complete = shtab.FILE
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY
    return shtab.complete(parser, shell=shell)
