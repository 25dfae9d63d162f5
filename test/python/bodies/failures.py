"""One way to fail, named in HORON_TEST_FAILURE; every rank prints the error that it got.

Started as a program of its own, not through runner.py: ranks end in different ways.
"""

import os
import signal
import sys

import torch

import horon.torch as hvd

hvd.init()
RANK = hvd.rank()


def reduce(name):
    return hvd.allreduce(torch.ones(1000), name=name)


def raising():
    if RANK == 2:
        raise ValueError("bad batch\nand more")
    reduce("x")


def diverging():
    try:
        reduce("a" if RANK == 1 else "b")
    finally:
        reduce("again")  # the runtime goes on
        print(f"rank {RANK} went on", flush=True)


def stopped():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce("x")


def killed():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce("x")


def described():
    """Rank 0 is asked what it waits for; rank 1 comes when the test has read the answer."""
    if RANK == 1:
        with open(os.environ["HORON_TEST_FIFO"], encoding="ascii") as fifo:
            fifo.read()
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
    reduce("late")


try:
    reduce("first")
    globals()[os.environ["HORON_TEST_FAILURE"]]()
except hvd.HoronError as error:
    print(f"rank {RANK}: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
