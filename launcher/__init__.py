"""horonrun: starts the ranks of a job, passes their shared memory around, and reports how it ended.

Pure Python and imports nothing heavy: the ranks wait for it.
"""

from __future__ import annotations


def version() -> str:
    """Of the installed Horon; "unknown" in a tree that was not installed."""
    from importlib import metadata

    try:
        return metadata.version("horon")
    except metadata.PackageNotFoundError:
        return "unknown"
