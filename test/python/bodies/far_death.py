"""A program: rank 1 kills itself, and the others go on across nodes: windows, averages of pairs and
rounds. In HORON_TEST_FOLDER ranks tell each other what no message is to tell."""

import os
import signal
import threading
import time
from pathlib import Path

import torch

import horon.torch as hvd
from horon import topology
from horon.errors import HoronUnavailable

VICTIM = 1
LIMIT_S = 30.0  # half of what a silent rank would be waited for
LARGE = 200_001  # elements: a message of several pieces
ROUNDS = 40
FOLDER = Path(os.environ["HORON_TEST_FOLDER"])


def until(condition, what):
    end, clock = time.monotonic() + LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < end, what
        clock.wait(0.002)


def is_all(tensor, value):
    assert (tensor - value).abs().max().item() < 1e-9, (tensor, value)


def filled(value, count=1):
    return torch.full((count,), float(value), dtype=torch.float64)


class Survivor:
    def __init__(self):
        self.me, self.n = hvd.rank(), hvd.size()
        self.others = [r for r in range(self.n) if r not in (self.me, VICTIM)]
        graph = topology.FullyConnected(self.n)
        self.mixed, self.given = filled(self.me, LARGE), filled(self.me)
        self.paired, self.round = filled(self.me, LARGE), filled(self.me, LARGE)
        self.mixes = hvd.Window(self.mixed, "mixed", graph)
        self.gives = hvd.Window(self.given, "given", graph, zero_init=True)
        self.pairs = hvd.Window(self.paired, "paired", graph, gets=False)
        self.rounds = hvd.Window(self.round, "round", graph, in_rounds=True)

    # What every neighbor gives a 1/n of, with the dead one's part kept by whom it was meant for.
    def folded(self):
        return (2 * self.me + sum(self.others)) / self.n

    def come(self, window, deliveries):
        until(lambda: all(window.versions()[r] >= deliveries for r in self.others),
              "what living ranks gave has not come")

    def puts(self):
        assert self.mixes.put() == (VICTIM,)
        self.come(self.mixes, 2)  # the first came before the death
        assert self.mixes.update() == (VICTIM,)
        is_all(self.mixed, self.folded())
        assert self.mixes.get() == (VICTIM,)

    def accumulates(self):
        part = 1 / self.n
        weights = dict.fromkeys([*self.others, VICTIM], part)
        assert self.gives.accumulate(weights, self_weight=part) == (VICTIM,)
        self.come(self.gives, 1)
        self.gives.collect()
        is_all(self.given, self.folded())

    # Rank 0 begins them all.
    def averages(self):
        if self.me != 0:
            return
        assert self.pairs.pair_async(VICTIM, 0.5).wait() == (VICTIM,)
        assert hvd.counter("pair.lost") == 1
        value = 0.0
        for other in self.others:
            assert self.pairs.pair_async(other, 0.5).wait() == ()
            value = (value + other) / 2
            is_all(self.paired, value)

    def mix_in_rounds(self):
        for _ in range(ROUNDS):
            assert self.rounds.mix() == (VICTIM,)
        is_all(self.round, (self.me + sum(self.others)) / (self.n - 1))
        assert hvd.counter("round.folded") == ROUNDS and hvd.counter("round.mixed") == ROUNDS


def collectives_fail():
    try:
        for step in range(1000):
            hvd.allreduce(torch.ones(1), name=f"after {step}")
    except HoronUnavailable as error:
        return str(error)
    raise AssertionError("a collective went on without the dead rank")


# Its process lives on, so that the others can know by its word only.
def leave(others):
    hvd.shutdown()
    until(lambda: all((FOLDER / str(r)).exists() for r in others), "who has left is waited for")


def hear_that_rank_0_left(window):
    until(lambda: window.put({0: 1.0}) == (0,), "rank 0 has not left")
    (FOLDER / str(hvd.rank())).touch()


def main():
    hvd.init()
    rank = Survivor()
    assert rank.mixes.put() == ()
    hvd.barrier()
    if rank.me == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    said, begun = collectives_fail(), time.monotonic()
    rank.puts()
    rank.accumulates()
    rank.averages()
    rank.mix_in_rounds()
    assert hvd.counter("peer.unreached") >= 3 + ROUNDS
    took = time.monotonic() - begun
    if rank.me == 0:
        leave(rank.others)
    else:
        hear_that_rank_0_left(rank.gives)
    assert time.monotonic() - begun < LIMIT_S
    print(f"rank {rank.me} went on for {took:.2f} s, though {said}", flush=True)


main()
