"""Names of tensors that the program did not name.

Ranks match tensors by name, so unnamed ones are counted, for each kind of collective and each
process set by itself: ranks that take part in different sets still count alike.
"""

import itertools
from collections import defaultdict

_counts = defaultdict(itertools.count)


def full_name(kind: str, name, process_set_id: int) -> str:
    """"allreduce.<name>", or "allreduce.noname.<n>"."""
    if name is not None:
        return f"{kind}.{name}"
    return f"{kind}.noname.{next(_counts[process_set_id, kind])}"


def forget(process_set_id=None) -> None:
    """Counts a set (or all of them) from 0 again: its number now means other ranks."""
    for key in [key for key in _counts if process_set_id in (None, key[0])]:
        del _counts[key]
