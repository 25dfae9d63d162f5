"""What a script says that it does, in the timeline of its rank. On the thread that trains."""

import time
from collections import defaultdict
from contextlib import contextmanager

from horon import timeline
from horon.runtime import when_left

_begun = defaultdict(list)  # (activity, time) by row
when_left(_begun.clear)


def timeline_start_activity(tensor_name, activity_name) -> bool:
    """Activities of one name may lie in each other."""
    _begun[tensor_name].append((activity_name, time.monotonic_ns()))
    return True


def timeline_end_activity(tensor_name) -> bool:
    """Ends the one that began last, and records it, if there is a timeline (HORON_TIMELINE or
    hvd.start_timeline), in a row of this name. Whether it was recorded."""
    if not _begun[tensor_name]:
        return False
    activity, begun = _begun[tensor_name].pop()
    return timeline.note(tensor_name, activity, begun, time.monotonic_ns())


@contextmanager
def timeline_context(tensor_name, activity_name):
    """An activity from here to the end of the block."""
    timeline_start_activity(tensor_name, activity_name)
    try:
        yield
    finally:
        timeline_end_activity(tensor_name)
