"""One way to fail, named in HORON_TEST_FAILURE; every rank prints the error that it got.

Started as a program of its own, not through runner.py: ranks end in different ways.
"""

import ctypes
import os
import signal
import sys
import time

import torch

import horon.torch as hvd

if os.environ["HORON_TEST_FAILURE"] == "raising_before_init" and os.environ["HORON_RANK"] == "1":
    raise ValueError("no data")
if os.environ["HORON_TEST_FAILURE"] == "busy_before_init" and os.environ["HORON_RANK"] == "1":
    with open(os.environ["HORON_TEST_FIFO"], encoding="ascii") as never:
        never.read()
if os.environ["HORON_TEST_FAILURE"] == "raising_with_a_hook_of_others":
    sys.excepthook = sys.__excepthook__
try:
    hvd.init()
except hvd.HoronError as error:
    print(f"rank {os.environ['HORON_RANK']}: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
RANK = hvd.rank()


def reduce(name):
    return hvd.allreduce(torch.ones(1000), name=name)


def raising():
    if RANK == hvd.size() - 1:
        raise ValueError("bad batch\nand more")
    reduce("x")


def raising_with_a_hook_of_others():
    """Between import and init something has put its own in place of what was there."""
    raising()


def accents():
    """Longer than what passes it on."""
    if RANK == 1:
        raise ValueError("x" * int(os.environ["HORON_TEST_OFFSET"]) + "é" * 300)
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
    reduce("first")  # once more: who is through knows that all have finished it before
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce("x")


def busy():
    """Rank 1 comes when the test has read what rank 0 says of it."""
    if RANK == 1:
        with open(os.environ["HORON_TEST_FIFO"], encoding="ascii") as fifo:
            fifo.read()
    reduce("late")


def native():
    """The same in calls that let no Python run."""
    if RANK == 1:
        libc = ctypes.PyDLL(None)
        fifo = libc.open(os.environ["HORON_TEST_FIFO"].encode(), os.O_RDONLY)
        libc.read(fifo, ctypes.create_string_buffer(2), 2)
    reduce("late")


def finished():
    if RANK == 1:
        sys.exit(0)
    reduce("x")


def leaving_with_7():
    if RANK == 1:
        sys.exit(7)
    reduce("x")


def reshaped():
    try:
        hvd.allreduce(torch.ones(7 if RANK == 1 else 5), name="x")
    finally:
        reduce("again")
        print(f"rank {RANK} went on", flush=True)


def missing():
    """Rank 1 has no tensor "extra": it goes on to the next step, where it waits for the others."""
    try:
        if RANK != 1:
            reduce("extra")
        reduce("step")
    finally:
        reduce("again")
        print(f"rank {RANK} went on", flush=True)


def described():
    """Rank 0 is asked what it waits for, until it is done: the first answer may come before it
    waits. Rank 1 comes when the test has read an answer."""
    if RANK == 1:
        with open(os.environ["HORON_TEST_FIFO"], encoding="ascii") as fifo:
            fifo.read()
    handle = hvd.allreduce_async(torch.ones(1000), name="late")
    while RANK == 0 and not hvd.poll(handle):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.5)
    hvd.synchronize(handle)


try:
    reduce("first")
    globals()[os.environ["HORON_TEST_FAILURE"]]()
except hvd.HoronError as error:
    print(f"rank {RANK}: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
