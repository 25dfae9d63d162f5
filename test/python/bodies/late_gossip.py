"""Negotiated gossip with a rank that is too late for a round: HORON_GOSSIP_TIMEOUT after the others
it is left out on all ranks. The late rank begins when the others have told it that they are
through, so nothing but the limit can have let them go on."""

from contextlib import contextmanager

import torch
from common import close, raises, same
from gossip_optimizer import Told, begin, by_hand, data, flat, keeps_mass, total, train

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology

ROUND = 2  # that the last rank is late for, of those that an optimizer has made


def late():
    return hvd.size() - 1


@contextmanager
def others_first():
    """What the others do in the block is done when the last rank begins it."""
    told = Told()
    told.wait()
    yield
    told.tell()
    told.free()


class WithoutRound:
    """A graph whose one round is left out; the next ones keep their numbers."""

    def __init__(self, graph):
        self._graph = graph

    def matrix(self, t):
        return torch.eye(hvd.size()).tolist() if t == ROUND else self._graph.matrix(t)


def check_trajectories():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    one_peer = topology.OnePeerExponential(hvd.size())
    for op, graph in ((hvd.Gossip("dpsgd", topology=one_peer), one_peer),
                      (hvd.Gossip("sgp", topology=push), push),
                      (hvd.Gossip("dpsgd", topology=one_peer, style="atc"), one_peer)):
        before = hvd.counter("gossip.kept")
        model, optimizer = begin(op)
        for step, batch in enumerate(data()):
            hvd.barrier()
            if step == ROUND:
                with others_first():
                    train(model, optimizer, [batch])
            else:
                train(model, optimizer, [batch])
        want, _ = by_hand(WithoutRound(graph), data())
        close(flat(model), want[hvd.rank()], 2e-5)
        tensors = len(list(model.parameters())) + (op.push_sum and not graph.rows_sum_to_one)
        assert hvd.counter("gossip.kept") == before + tensors


def check_exact_averages():
    """Left out they change nothing, the push-sum weights neither; the next one is exact."""
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for op in (hvd.Gossip("sgp", topology=push, global_average_every=2),
               hvd.Gossip("dpsgd", topology="ring", global_average_every=2, style="atc"),
               hvd.Gossip("dpsgd", topology="ring", global_average_every=2, style="cta")):
        model, optimizer = begin(op)
        optimizer.param_groups[0]["lr"] = 0.0
        before = total(model, optimizer)
        for step, batch in enumerate(data()[:4], 1):
            optimizer.finish_gossip()
            hvd.barrier()
            kept, was = hvd.counter("gossip.kept"), flat(model)
            if step != 2:
                train(model, optimizer, [batch])
                continue
            with others_first():
                train(model, optimizer, [batch])
            assert hvd.counter("gossip.kept") > kept
            close(flat(model), was, 1e-6)
            close(total(model, optimizer), before, 1e-5)
        close(flat(model), before[:-1] / hvd.size(), 1e-5)
        assert optimizer.state_dict()["horon_gossip"]["weight"] == 1.0


def check_mass_is_kept_with_an_exchange_under_way():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    model, optimizer, before = keeps_mass(hvd.Gossip("osgp", topology=push))
    kept = hvd.counter("gossip.kept")
    with others_first():  # they wait for the first of their exchanges, and may for the second
        train(model, optimizer, data()[:2])
    close(total(model, optimizer), before, 1e-5)
    assert hvd.counter("gossip.kept") > kept


def check_a_mean_fails_instead():
    x = torch.full((5,), float(hvd.rank()))
    with others_first():
        with raises(hvd.HoronAborted, words=[f"rank {late()} has not come for", "GOSSIP_TIMEOUT"]):
            hvd.gossip_average(x, topology="ring", name="late mean")
    same(x, torch.full((5,), float(hvd.rank())))
    close(hvd.gossip_average(x, rounds=200, topology="ring", name="late mean"),
          torch.full((5,), late() / 2), 1e-5)


def check_weights_that_travel_alone_fail_instead():
    """A parameter's round must be that of the push-sum weight, which has another name here."""
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for style in ("atc", "cta"):
        model, optimizer = begin(hvd.Gossip("sgp", topology=push, style=style))
        with others_first():
            with raises(hvd.HoronAborted, words=[f"rank {late()} has not come for"]):
                train(model, optimizer, data()[:1])
                optimizer.finish_gossip()
