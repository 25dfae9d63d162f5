"""How many descriptors horonrun may have open: enough for its ranks, which keep the limit that it was
started with."""

from __future__ import annotations

import resource

from .refusal import Refusal

_A_RANK = 7  # pipes, socket, flight recorder, result, copies of its output
_BESIDES = 24
_GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)


def reserve(ranks: int) -> None:
    """Raises the limit for a job of so many ranks, or refuses it."""
    soft, hard = _GIVEN
    needed = _BESIDES + _A_RANK * ranks
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Refusal(f"{ranks} ranks take {needed} descriptors of horonrun: raise ulimit -n (its "
                      f"hard limit is {hard})")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def give_back() -> None:
    """In a child, before it becomes its program."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _GIVEN)
