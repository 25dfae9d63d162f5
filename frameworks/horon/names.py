"""Names of tensors that the program did not name.

Ranks match tensors by name, so unnamed ones are counted, for each kind of collective and each
process set by itself: ranks that take part in different sets still count alike. After a join, which
some ranks reached with fewer calls than others, all count anew.
"""

import itertools
from collections import defaultdict

_counts = defaultdict(itertools.count)
_era = 0  # joins so far; what was submitted before one may still be pending under its name


def full_name(kind: str, name, process_set_id: int) -> str:
    """"allreduce.<name>", or "allreduce.noname.<n>"."""
    if name is not None:
        return f"{kind}.{name}"
    era = f"{_era}." if _era else ""
    return f"{kind}.noname.{era}{next(_counts[process_set_id, kind])}"


def forget(process_set_id=None) -> None:
    """Counts a set (or all of them) from 0 again: its number now means other ranks."""
    global _era
    if process_set_id is None:
        _era = 0
    for key in [key for key in _counts if process_set_id in (None, key[0])]:
        del _counts[key]


def begin_era() -> None:
    """All ranks have joined."""
    global _era
    _counts.clear()
    _era += 1
