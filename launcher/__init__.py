"""horonrun: starts the ranks of a job, passes their shared memory around, and reports how it ended.

Pure Python and imports nothing heavy: the ranks wait for it.
"""

from __future__ import annotations


def version() -> str:
    """Of the installed Horon; "unknown" in a tree that was not installed."""
    from importlib import metadata
    from pathlib import Path

    # Beside the package first: a checkout in the working directory has its own idea of the version.
    beside = {"path": [str(Path(__file__).resolve().parents[2])]}
    for where in (beside, {}):
        for found in metadata.distributions(name="horon", **where):
            return found.version
    return "unknown"
