"""A descriptor of a process: it tells when that ends, and never comes to mean another one."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable


def descriptor_of(pid: int) -> int | None:
    """None if it has ended, or too many files are open; and where the kernel has none, or this
    Python was made for such kernels (conda's are)."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def wait_for_one(descriptors: Iterable[int], seconds: float) -> None:
    """Until one of the processes has ended."""
    watch = select.poll()
    for descriptor in descriptors:
        watch.register(descriptor, select.POLLIN)
    watch.poll(1000 * max(0.0, seconds))
