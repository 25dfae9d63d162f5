"""Whose rounds a tensor's name counts.

The runtime counts rounds by name. Two optimizers may give it the same names: two models of one
class, or parameters without names. They take turns then, and each says its own round whenever the
other one has had the name since. All ranks make the same calls, so they come to the same answers.
On the training thread and the one that runs backward, one at a time.
"""

import weakref

from horon.runtime import when_left
from horon.torch.calls import set_id

_last = {}  # (process set, spec, name): weak reference to whose round was the last one
when_left(_last.clear)


def takes_over(owner, name, spec, process_set) -> bool:
    """Before an owner's round of this tensor: whether the last one was not its own, so that it has
    to say which one this is. owner.lost() is called of whom that one was."""
    key = set_id(process_set), spec, name
    known = _last.get(key)
    before = known and known()
    if before is owner:
        return False
    if before is not None:
        before.lost()
    _last[key] = weakref.ref(owner)
    return True
