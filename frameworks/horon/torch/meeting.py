"""Meeting the other ranks, but not for ever: before what gossip does with all of them at once.

Who is late is found out once, here: what follows a meeting finds all ranks ready for it.
"""

import math
import warnings

from horon import _core
from horon.errors import HoronError, HoronLate
from horon.process_sets import global_process_set
from horon.runtime import when_left
from horon.torch.calls import barrier_call, set_id

NO_MEAN = "the ranks keep their own parameters, which are not averaged"


# By process set: what a wait was for that Ctrl-C or the like has ended, its handle, and how often
# more it would have waited. All may have met by now.
_left = {}
when_left(_left.clear)


def meet(process_set=global_process_set, timeout=None, purpose=None) -> None:
    """Blocks until every rank of the set has called it. HoronLate, on all of them and on those that
    come later, where one has not within HORON_GOSSIP_TIMEOUT, or that and as many times more as
    `timeout`, in seconds and equal on all ranks, takes. A call after one that Ctrl-C has ended goes
    on with it, and with its timeout, if both have the same `purpose`, an object; else it is a
    meeting of its own, after that one."""
    key = set_id(process_set)
    tries = _tries(timeout)
    if key in _left:
        before, handle, left = _left.pop(key)
        same = purpose is not None and before is purpose
        try:
            _wait(key, before, handle, left)
            if same:
                return
        except HoronLate:
            if same and left == 0:
                raise
        tries = left if same else tries
    for left in reversed(range(tries)):
        barrier = barrier_call(f"gossip.meeting.{key}", process_set, "barrier:late=fail")
        try:
            return _wait(key, purpose, barrier.start(), left)
        except HoronLate:
            # A late rank is told so once for each time that the others have waited for it: so its
            # next call meets theirs.
            if left == 0:
                raise


def _wait(key, purpose, handle, left) -> None:
    try:
        handle.wait()
    except HoronError:
        raise
    except BaseException:
        _left[key] = purpose, handle, left
        raise


def met(left_out, process_set=global_process_set, timeout=None, purpose=None) -> bool:
    """Whether all have met. If not, a warning says what is `left_out`."""
    try:
        meet(process_set, timeout, purpose)
    except HoronLate as late:
        warn_of(late, left_out)
        return False
    return True


def warn_of(late, left_out) -> None:
    warnings.warn(f"{late}: {left_out}. timeout=seconds waits longer", stacklevel=4)


def _tries(timeout) -> int:
    limit = _core.gossip_timeout_ms() / 1000
    return 1 if timeout is None or limit <= 0 else max(1, math.ceil(timeout / limit))
