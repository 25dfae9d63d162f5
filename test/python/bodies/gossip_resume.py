"""What one job has saved goes on in the next, bit by bit: nothing is left of the runtime, nor of
the rounds that it has counted."""

import copy

import torch
from gossip_optimizer import begin, data, flat, gradients_are_mixed, load, train

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology

OWN_LIFE = True


def ops():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    matching = topology.RandomMatching(hvd.size())
    return (*gradients_are_mixed(), hvd.Gossip("gt"), hvd.Gossip("push_diging", topology=push),
            hvd.Gossip("sgp", topology=push), hvd.Gossip("dpsgd", topology=matching, style="atc"),
            hvd.Gossip("osgp", topology=push, sync_freq=1),
            hvd.Gossip("osgp", topology=push, negotiated=False))


def leave():
    hvd.barrier()  # who leaves before the others are through ends the job for them
    hvd.shutdown()


def check_training_goes_on_in_the_next_job():
    """In a new optimizer, and in the one that has trained on meanwhile."""
    hvd.init()
    first = []
    for op in ops():
        model, optimizer = begin(op)
        train(model, optimizer, data()[:3])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        train(model, optimizer, data()[3:])
        optimizer.close_gossip()
        first.append((op, model, optimizer, saved, flat(model)))
    leave()
    for again in (False, True):
        hvd.init()
        for op, model, optimizer, saved, want in first:
            if not again:
                model, optimizer = begin(op)
            elif not op.negotiated:
                continue  # its windows were freed
            load(copy.deepcopy(saved), optimizer, model, parameters_first=True)
            train(model, optimizer, data()[3:])
            optimizer.close_gossip()
            assert torch.equal(flat(model), want), (op.spec, op.what, again)
        leave()
