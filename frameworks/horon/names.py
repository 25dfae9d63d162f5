"""Names of tensors that the program did not name.

Ranks match tensors by name, so unnamed ones are counted, for each kind of collective and each
process set by itself: ranks that take part in different sets still count alike. After a join, which
some ranks reached with fewer calls than others, all count anew.
"""

import itertools
from collections import defaultdict
from weakref import WeakKeyDictionary

_counts = defaultdict(itertools.count)
_own = WeakKeyDictionary()  # owner: (process set, name)
_era = 0  # joins so far; what was submitted before one may still be pending under its name


def full_name(kind: str, name, process_set_id: int) -> str:
    """"allreduce.<name>", or "allreduce.noname.<n>"."""
    if name is not None:
        return f"{kind}.{name}"
    era = f"{_era}." if _era else ""
    return f"{kind}.noname.{era}{next(_counts[process_set_id, kind])}"


def own_name(owner, kind: str, name, process_set_id: int) -> str:
    """As full_name(), but counted once for an owner that calls in every step, one call at a time:
    the ranks know the tensor again. Owners make their first calls in the same order everywhere."""
    if name is not None:
        return full_name(kind, name, process_set_id)
    known = _own.get(owner)
    if known is None or known[0] != process_set_id:
        known = _own[owner] = process_set_id, full_name(kind, None, process_set_id)
    return known[1]


def forget(process_set_id=None) -> None:
    """Counts a set (or all of them) from 0 again: its number now means other ranks."""
    global _era
    if process_set_id is None:
        _era = 0
    for owner in [owner for owner, of in _own.items() if process_set_id in (None, of[0])]:
        del _own[owner]
    for key in [key for key in _counts if process_set_id in (None, key[0])]:
        del _counts[key]


def begin_era() -> None:
    """All ranks have joined."""
    global _era
    _counts.clear()
    _own.clear()
    _era += 1
