"""What a script says that it does, and its model's passes, in the timeline of its rank. On the
thread that trains."""

import time
from collections import defaultdict
from contextlib import contextmanager

import torch

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


class ModelActivities:
    """FORWARD of each parameter, while its module runs, and BACKWARD, from when the gradient of the
    module's output is there until the parameter's is, in rows of the parameters' names; until
    remove()."""

    def __init__(self, models):
        self._running = set()  # (row, activity)
        self._hooks = []
        for i, model in enumerate(models):
            for prefix, module in model.named_modules():
                own = dict(module.named_parameters(
                    prefix if len(models) == 1 else f"{i}.{prefix}".rstrip("."), recurse=False))
                if own:
                    self._watch(module, own)

    def _watch(self, module, parameters):
        rows = list(parameters)
        trained = [row for row, parameter in parameters.items() if parameter.requires_grad]
        self._hooks += [
            module.register_forward_pre_hook(lambda *_: self._begin(rows, "FORWARD")),
            module.register_forward_hook(
                lambda _, __, out: self._forward_ended(rows, trained, out)),
            *(parameters[row].register_post_accumulate_grad_hook(
                lambda _, row=row: self._end([row], "BACKWARD")) for row in trained)]

    def _forward_ended(self, rows, trained, out):
        self._end(rows, "FORWARD")
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._begin(trained, "BACKWARD"))

    def _begin(self, rows, activity):
        """Once, for a module that is in a pass several times."""
        for row in rows:
            if (row, activity) not in self._running:
                self._running.add((row, activity))
                timeline_start_activity(row, activity)

    def _end(self, rows, activity):
        for row in rows:
            if (row, activity) in self._running:
                self._running.remove((row, activity))
                timeline_end_activity(row)

    def remove(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for row, _ in self._running:
            timeline_end_activity(row)
        self._running.clear()
