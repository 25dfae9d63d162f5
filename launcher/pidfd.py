"""A descriptor of a process: it tells when that ends, and never comes to mean another one."""

from __future__ import annotations

import os


def descriptor_of(pid: int) -> int | None:
    """None if it has ended, or too many files are open; and where the kernel has none, or this Python
    was made for such kernels (conda's are)."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
