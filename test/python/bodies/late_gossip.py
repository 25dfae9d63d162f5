"""Negotiated gossip with a rank that is too late for a round: HORON_GOSSIP_TIMEOUT after the others
it is left out on all ranks. The late rank begins when the others have told it that they are
through, so nothing but the limit can have let them go on."""

import os
import threading
import warnings
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from common import close, raises, same
from gossip_grad import made
from gossip_optimizer import (
    Told, begin, by_hand, data, flat, is_ended_by_ctrl_c, keeps_mass, total, train)
from optimizers import make_model, sgd

import horon.bluefog.torch as bf
import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch import meeting
from horon.torch.gossip import SimpleGossipDataParallel

LIMIT_S = float(os.environ["HORON_GOSSIP_TIMEOUT"])
ROUND = 2  # that a rank is late for, of those that an optimizer has made


def late():
    return hvd.size() - 1


@contextmanager
def others_first(who=None):
    """What the others do in the block is done when rank `who`, or the last one, begins it."""
    told = Told(who)
    told.wait()
    yield
    told.tell()
    told.free()


class WithoutRound:
    """A graph whose one round is left out; the next ones keep their numbers."""

    def __init__(self, graph):
        self._graph, self.n = graph, graph.n

    def matrix(self, t):
        return torch.eye(hvd.size()).tolist() if t == ROUND else self._graph.matrix(t)


def check_trajectories():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    one_peer = topology.OnePeerExponential(hvd.size())
    for op, graph, who in (  # rank 0 tells the others what is left out
            (hvd.Gossip("dpsgd", topology=one_peer), one_peer, late()),
            (hvd.Gossip("sgp", topology=push), push, 0),
            (hvd.Gossip("dpsgd", topology=one_peer, style="atc"), one_peer, late())):
        before = hvd.counter("gossip.kept")
        model, optimizer = begin(op)
        for step, batch in enumerate(data()):
            hvd.barrier()
            if step == ROUND:
                with others_first(who):
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


def check_a_scaler_of_mixed_gradients():
    """Nobody knows of an overflow of others then: all leave the step out, and halve the scale."""
    weight = torch.nn.Parameter(torch.zeros(3))
    op = hvd.Gossip("gossipgrad", global_average_every=1000)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=op)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        hvd.barrier()
        with others_first() if step == 1 else nullcontext():
            optimizer.zero_grad()
            scaler.scale(weight.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        close(weight.detach(), torch.full((3,), -float(step if step >= 1 else 1)), 1e-6)
        assert scaler.get_scale() == (2.0 if step >= 1 else 4.0), (step, scaler.get_scale())


def check_a_mean_that_ctrl_c_has_left():
    """Asked for again it goes on with the meeting that was begun: it is left out when that has
    waited for long enough, here as on the other ranks, and the next one is made."""
    for size in (1, 2):  # ranks that get one
        model, optimizer = begin(hvd.Gossip("dpsgd", topology="ring"))
        train(model, optimizer, data()[:1])
        optimizer.finish_gossip()
        if hvd.rank() < size:
            is_ended_by_ctrl_c(lambda: optimizer.finish_gossip(average=True))
        with others_first(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begins = meeting.barrier_call
            with mock.patch.object(meeting, "barrier_call", wraps=begins) as begun:
                assert not optimizer.finish_gossip(average=True)
            assert begun.call_count == (hvd.rank() >= size)
        want = hvd.allreduce(flat(model))
        assert optimizer.finish_gossip(average=True)
        close(flat(model), want, 1e-6)


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
    with too_late(0):
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
            with raises(hvd.HoronLate, words=[f"rank {late()} has not come for"]):
                train(model, optimizer, data()[:1])
                optimizer.finish_gossip()


def check_what_has_not_arrived_is_left_out_with_its_weight():
    """A rank that is late for the weight, and not for what is sent later."""
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for options in ({"style": "cta"}, {"style": "atc", "overlap": True}):
        model, optimizer = begin(hvd.Gossip("sgp", topology=push, **options))
        train(model, optimizer, data()[:1])
        optimizer.finish_gossip()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        before, (_, weights) = flat(model), optimizer.gossip_mass()
        with others_first():
            with raises(hvd.HoronLate, words=[f"rank {late()} has not come for"]):
                train(model, optimizer, data()[1:2])
                optimizer.finish_gossip()
        close(flat(model), before, 1e-6)
        assert abs(optimizer.gossip_mass()[1] - weights) < 1e-9
        sums = total(model, optimizer)
        optimizer.finish_gossip(average=True)
        close(flat(model), sums[:-1] / hvd.size(), 1e-5)


def check_gossip_of_gradients_from_the_first_step_on():
    """Nobody asks in the first step what gradients all have."""
    before = hvd.counter("gossip.kept")
    model, optimizer = begin(hvd.Gossip("dpsgd", what="gradients"))
    with others_first():
        train(model, optimizer, data()[:1])
    assert hvd.counter("gossip.kept") > before


@contextmanager
def too_late(who=None):
    """All ranks get the error, the late one when it comes, and the next call is whole again."""
    named = late() if who is None else who
    with others_first(who):
        with raises(hvd.HoronLate, words=[f"rank {named} has not come for", "GOSSIP_TIMEOUT"]):
            yield


def check_windows_are_not_waited_for_for_ever():
    x = torch.full((3,), float(hvd.rank()))
    with too_late():
        hvd.Window(x, "late window", "ring")
    window = hvd.Window(x, "late window", "ring")
    with too_late():
        window.free()
    assert window.put() == ()  # it is still there
    window.free()


def check_what_all_do_together_fails_in_time():
    model, optimizer = begin(hvd.Gossip("dpsgd", topology="ring"))
    calls = {
        "the mass": optimizer.gossip_mass,
        "buffers": lambda: hvd.average_buffers(torch.nn.BatchNorm1d(2)),
        "the distance": lambda: hvd.consensus_distance(model.parameters()),
        "advice": lambda: hvd.advise(model, 0.01),
        "an optimizer": lambda: begin(hvd.Gossip("adpsgd")),
        "groups": lambda: begin(hvd.Gossip(what="gradients"), groups=2),
        "a module": lambda: SimpleGossipDataParallel(model),
        "neighbors": lambda: bf.InferSourceFromDestinationRanks([]),
    }
    for call in calls.values():
        with too_late():
            call()
    assert optimizer.gossip_mass()[1] == hvd.size()


def check_loading_where_nobody_waits_for_others():
    """A late rank could still give what it had before, so nobody begins with what was loaded."""
    for algorithm in ("adpsgd", "asgp"):
        model, optimizer = begin(hvd.Gossip(algorithm))
        train(model, optimizer, data()[:2])
        optimizer.finish_gossip()
        hvd.barrier()
        saved = optimizer.state_dict()
        with too_late():
            optimizer.load_state_dict(saved)
        optimizer.load_state_dict(saved)
        assert abs(optimizer.gossip_mass()[1] - hvd.size()) < 1e-12
        optimizer.close_gossip()


def check_first_pair_gossip():
    """Of the last rank and the one before; the others form no set, and hear of nothing."""
    x = torch.full((3,), float(hvd.rank()))
    partner = {late(): late() - 1, late() - 1: late()}.get(hvd.rank())
    with others_first():
        if partner is not None:
            with raises(hvd.HoronLate, words=[f"rank {late()} has not come for"]):
                bf.pair_gossip(x, partner)
    if partner is not None:
        same(bf.pair_gossip(x, partner), torch.full((3,), late() - 0.5))


def check_bluefogs_exact_averages():
    """Left out as any exact average beside gossip; the next step's is exact."""
    bf.init()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, hvd.rank())
    optimizer = bf.DistributedAllreduceOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model)
    with others_first():
        optimizer.step()
    same(model.weight.detach(), torch.full((1, 1), float(hvd.rank())))
    optimizer.step()
    close(model.weight.detach(), torch.full((1, 1), late() / 2))


def check_bluefogs_reductions_inside_a_node():
    """They form its process set when they are first asked for: here the last node's have to."""
    if hvd.local_size() == hvd.size():
        return
    x = torch.full((3,), float(hvd.rank()))
    first = hvd.rank() - hvd.local_rank()
    mean = torch.full((3,), first + (hvd.local_size() - 1) / 2)
    failing = raises(hvd.HoronLate, words=[f"rank {late()} has not come for"])
    with others_first(), failing if first + hvd.local_size() > late() else nullcontext():
        bf.allreduce(x, is_hierarchical_local=True, name="inside")
    same(bf.allreduce(x, is_hierarchical_local=True, name="inside"), mean)


def check_averages_of_gossipgrad_groups():
    """Ranks of a group have the same parameters, and must not go on without each other."""
    state = made(proc_per_node=2, virtual_topology=list(range(0, hvd.size(), 2)))
    first = hvd.rank() - hvd.rank() % 2  # of this rank's group
    x = torch.full((3,), float(hvd.rank()))
    failing = raises(hvd.HoronLate, words=[f"rank {late()} has not come for"])
    with others_first(), failing if first + 1 == late() else nullcontext():
        state.average_unit(x)
    if first + 1 != late():  # whose partners in the other group did not come
        same(x, torch.full((3,), first + 0.5))


def check_the_end():
    """Without the late rank nothing is averaged and all keep what they have; then all are there."""
    for op in (hvd.Gossip("osgp", topology="ring"),
               hvd.Gossip("sgp", topology="ring", negotiated=False),
               hvd.Gossip("adpsgd"), hvd.Gossip("asgp", topology="ring")):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:2])
        optimizer.finish_gossip()
        was = flat(model)
        with others_first(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert optimizer.finish_gossip(average=True) is False
        assert any(f"rank {late()} has not come for" in str(w.message) for w in warned), warned
        close(flat(model), was, 1e-6)
        assert optimizer.finish_gossip(average=True) is True
        close(flat(model), hvd.broadcast(flat(model), 0, name="end"), 1e-6)
        if op.algorithm != "asgp":  # whose mean has the push-sum weights in it
            close(flat(model), hvd.allreduce(was, op=hvd.Average, name="end"), 1e-6)
        if not getattr(op, "negotiated", True) or op.algorithm in ("adpsgd", "asgp"):
            with too_late():
                optimizer.close_gossip()
        optimizer.close_gossip()


def check_the_end_of_ranks_that_are_willing_to_wait():
    """The last rank comes when the others have been told once that it is late."""
    model, optimizer = begin(hvd.Gossip("adpsgd"))
    train(model, optimizer, data()[:2])
    if hvd.rank() == late():  # this is its being late
        threading.Event().wait(1.5 * LIMIT_S)
    assert optimizer.finish_gossip(average=True, timeout=5 * LIMIT_S) is True
    same(flat(model), hvd.broadcast(flat(model), 0, name="end"))
    optimizer.close_gossip()


def check_parameters_with_other_names_are_told_so():
    """They never meet, which would look as if a rank were late in each step."""
    model = make_model()
    named = [(f"{'other.' * (hvd.rank() == late())}{name}", p)
             for name, p in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(sgd(model), named, op=hvd.Gossip("dpsgd"))
    with raises(hvd.HoronMismatch, words=[
            "Mismatched parameters: in the order of names number 0 is", "'other.",
            f"on rank [{late()}]"]):
        train(model, optimizer, data()[:1])
