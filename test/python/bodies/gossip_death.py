"""A program: ranks gossip without waiting, and rank 1 kills itself in the middle of it.

HORON_TEST_ALGORITHM: adpsgd, asgp, dpsgd or sgp between peers, or window (put and update by hand).
In HORON_TEST_FOLDER a rank says that it has taken its steps after the death.
"""

import os
import signal
import threading
from pathlib import Path

import torch

import horon.torch as hvd
from horon import topology

KILLED_AT, MOST, MORE = 10, 3000, 60
ALGORITHM = os.environ["HORON_TEST_ALGORITHM"]
NEGOTIATED = False if ALGORITHM in ("dpsgd", "sgp") else None
THROUGH = [Path(os.environ["HORON_TEST_FOLDER"]) / f"rank-{rank}" for rank in (0, 2)]


class ByOptimizer:
    def __init__(self):
        self.x = torch.nn.Parameter(torch.full((1000,), float(hvd.rank())))
        graph = topology.OnePeerExponential(hvd.size())  # each rank begins something
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD([self.x], lr=0.0),
                                                  op=hvd.Gossip(ALGORITHM, topology=graph,
                                                                negotiated=NEGOTIATED))

    def step(self):
        self.x.grad = torch.zeros_like(self.x)
        self.optimizer.step()

    def weight(self):
        return self.optimizer.state_dict()["horon_gossip"]["weights"][0]

    def end(self):
        self.optimizer.finish_gossip()
        return self.x.detach()


class ByWindow:
    def __init__(self):
        self.x = torch.full((1000,), float(hvd.rank()))
        self.window = hvd.Window(self.x, "x", topology.FullyConnected(hvd.size()))

    def step(self):
        self.window.put()
        self.window.update()

    def weight(self):
        return self.window.push_sum_weight

    def end(self):
        return self.x


def lost() -> int:
    return hvd.counter("peer.unreached")


def main():
    hvd.init()
    work, clock = (ByWindow if ALGORITHM == "window" else ByOptimizer)(), threading.Event()
    hvd.barrier()
    steps = left = 0
    while not all(path.exists() for path in THROUGH) and steps < MOST:
        if steps == KILLED_AT and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work.step()
        steps += 1
        dead = lost() > 0  # asked once: it may become known between two questions
        if dead and not left:
            known = work.weight()
        left += dead
        if left == MORE:  # and on until the other one is so far: neither mixes alone
            (THROUGH[0].parent / f"rank-{hvd.rank()}").touch()
        clock.wait(0.002)
    x = work.end()
    same, kept = bool((x == x[0]).all()), work.weight() / known if left else 0.0
    print(f"rank {hvd.rank()} went on: value {x[0].item():.6f} kept {kept:.6f} whole {same} "
          f"unreached {lost()} pairs lost {hvd.counter('pair.lost')}", flush=True)


main()
