"""A rank that has too little of something: HORON_TEST_LIMIT says of what, and which ranks.

Prints what init said, or "done RANK". Without PyTorch, whose own needs are not the matter here.
"""

import os
import resource
import sys

import horon

WHAT, HOW_MUCH, WHO = os.environ["HORON_TEST_LIMIT"].split()
RANK = os.environ.get("HORON_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]


def descriptors(spare):
    """All but some are in use."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    for descriptor in taken[:spare]:
        os.close(descriptor)


def address_space(spare):
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))


def locked_memory(most):
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))


if WHO in ("all", RANK):
    globals()[WHAT](int(HOW_MUCH))
try:
    horon.init()
except horon.HoronError as error:
    print(f"rank {RANK}: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
print("done", horon.rank(), flush=True)
