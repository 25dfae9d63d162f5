"""How many descriptors horonrun may have open: enough for its ranks, which keep the limit that it
was started with."""

from __future__ import annotations

import resource

from .options import Options
from .refusal import Refusal

_BESIDES = 24
_GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)


def reserve(options: Options) -> None:
    """Raises the limit for a job, or refuses it."""
    each = 2 if options.use_mpi else 4  # connection, or pipes and socket; flight recorder
    each += 2 * bool(options.output_folder) + (options.task is not None)
    soft, hard = _GIVEN
    ranks, needed = options.np, _BESIDES + each * options.np
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Refusal(f"{ranks} ranks take {needed} descriptors of horonrun: raise ulimit -n (its "
                      f"hard limit is {hard})")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def give_back() -> None:
    """In a child, before it becomes its program."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _GIVEN)
