"""Meeting the other ranks, but not for ever: before what gossip does with all of them at once.

Who is late is found out once, here: what follows a meeting finds all ranks ready for it.
"""

import math
import warnings

from horon import _core
from horon.errors import HoronAborted, HoronLate, HoronUnavailable
from horon.process_sets import global_process_set
from horon.torch.calls import barrier_call, set_id

_left = {}  # by process set: a meeting whose wait Ctrl-C has ended. The others may have met by now

NO_MEAN = "the ranks keep their own parameters, which are not averaged"


def meet(process_set=global_process_set, timeout=None) -> None:
    """Blocks until every rank of the set has called it. HoronLate, on all of them and on those that
    come later, where one has not within HORON_GOSSIP_TIMEOUT, or that and as many times more as
    `timeout`, in seconds and equal on all ranks, takes. Ctrl-C ends the wait, and the next call
    goes on with it."""
    for left in reversed(range(_tries(timeout))):
        try:
            return _go_on(process_set)
        except HoronLate:
            # A late rank is told so once for each time that the others have waited for it: so its
            # next call meets theirs.
            if left == 0:
                raise


def _go_on(process_set) -> None:
    key = set_id(process_set)
    try:
        if key in _left:
            return _wait(key, _left.pop(key))
    except (HoronAborted, HoronUnavailable):
        pass  # of a job before this one, unless this one is over, too
    return _wait(key, barrier_call(f"gossip.meeting.{key}", process_set,
                                   "barrier:late=fail").start())


def _wait(key, handle) -> None:
    try:
        return handle.wait()
    except KeyboardInterrupt:
        _left[key] = handle
        raise


def met(left_out, process_set=global_process_set, timeout=None) -> bool:
    """Whether all have met. If not, a warning says what is `left_out`."""
    try:
        meet(process_set, timeout)
    except HoronLate as late:
        warn_of(late, left_out)
        return False
    return True


def warn_of(late, left_out) -> None:
    warnings.warn(f"{late}: {left_out}. timeout=seconds waits longer", stacklevel=4)


def _tries(timeout) -> int:
    limit = _core.gossip_timeout_ms() / 1000
    return 1 if timeout is None or limit <= 0 else max(1, math.ceil(timeout / limit))
