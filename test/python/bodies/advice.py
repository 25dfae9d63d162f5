"""horon.advise and op=hvd.Gossip(topology="auto") on ranks: they measure, and choose alike."""

import copy
import time

import torch
from common import same
from gossip_optimizer import begin, data, flat, load, train
from optimizers import make_model, sgd

import horon.torch as hvd
from horon import advice as advices
from horon.advice import ALLREDUCE, ASYNCHRONOUS


def all_alike(text):
    assert hvd.allgather_object(text) == [text] * hvd.size()


def check_ranks_see_the_same_and_say_the_same():
    model = make_model()
    begin = time.perf_counter()
    advice = hvd.advise(model, 0.01 * (1 + hvd.rank()))
    assert time.perf_counter() - begin < 10  # one second, beside others at work
    all_alike(str(advice))
    job, links = advice.job, advice.links
    assert job.bytes == 4 * len(flat(model)) and job.size == hvd.size()
    assert job.compute == tuple(0.01 * (1 + r) for r in range(hvd.size()))
    assert job.each == hvd.local_size() and len(set(job.hosts)) == hvd.cross_size()
    assert len(links.outside) == (hvd.cross_size() if hvd.cross_size() > 1 else 0)
    if hvd.size() > 1:
        assert 0 < links.exchange_s < 1 and 0 < links.allreduce_s < 1
        assert 1e6 < links.memory < 1e12, links
    if hvd.local_size() > 1:
        assert 1e6 < links.inside < 1e12, links


def check_a_step_is_timed_where_it_is_a_function():
    calls = []
    advice = hvd.advise(4000, lambda: calls.append(torch.ones(1000).exp_()))
    assert len(calls) == 3 and all(0 < seconds < 1 for seconds in advice.job.compute)


def advised(choose):
    """An optimizer whose advice is plan()'s among the candidates that `choose` picks from."""
    model, plan = make_model(), advices.plan
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(),
                                         op=hvd.Gossip(topology="auto"))

    def planned(job, links):
        advice = plan(job, links)
        picked = next(c for c in advice.candidates if c.name == choose)
        return advices.Advice(job, links, advice.candidates, picked, "For a test.")

    advices.plan = planned
    try:
        train(model, optimizer, data(3))
    finally:
        advices.plan = plan
    return model, optimizer


def check_auto_that_stays_exact():
    model, optimizer = advised(ALLREDUCE)
    assert optimizer.state_dict()["horon_gossip"]["advised"] == {}
    same(hvd.broadcast(flat(model), 0), flat(model))
    plain = make_model()
    train(plain, hvd.DistributedOptimizer(sgd(plain), plain.named_parameters()), data(3))
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-5)


def check_auto_that_goes_on_by_gossip():
    if hvd.size() == 1:
        return
    for name, algorithm in (("ring", "osgp"), (ASYNCHRONOUS, "adpsgd")):
        model, optimizer = advised(name)
        optimizer.finish_gossip()
        state = optimizer.state_dict()
        assert state["horon_gossip"]["advised"]["algorithm"] == algorithm
        other = make_model()
        again = hvd.DistributedOptimizer(sgd(other), other.named_parameters(),
                                         op=hvd.Gossip(topology="auto"))
        other.load_state_dict(model.state_dict())
        again.load_state_dict(state)
        assert again.state_dict()["horon_gossip"]["advised"] == state["horon_gossip"]["advised"]
        for each in (again, optimizer):
            each.close_gossip()


def check_a_saved_choice_replaces_ones_own():
    """Whichever of the parameters and the state is loaded first. None: the steps are timed anew."""
    if hvd.size() == 1:
        return
    models = {name: advised(name) for name in (ALLREDUCE, "ring", ASYNCHRONOUS)}
    models["none yet"] = begin(hvd.Gossip(topology="auto"))
    saved = {}
    for name, (model, optimizer) in models.items():
        optimizer.finish_gossip()
        saved[name] = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        hvd.barrier()
    model, optimizer = models.pop("ring")
    for parameters_first, name in enumerate(("none yet", "ring", ASYNCHRONOUS, ALLREDUCE, "ring",
                                             ASYNCHRONOUS, "none yet", ASYNCHRONOUS, "ring")):
        load(copy.deepcopy(saved[name]), optimizer, model, parameters_first % 2 == 0)
        for key, value in saved[name][1].items():
            same(model.state_dict()[key], value)
        hvd.barrier()
        for key in ("advised", "steps"):
            want = saved[name][0]["horon_gossip"][key]
            assert optimizer.state_dict()["horon_gossip"][key] == want, (name, key)
        train(model, optimizer, data(1)[:3])
    for _, each in (*models.values(), (model, optimizer)):
        each.close_gossip()


def check_a_state_without_a_choice():
    """Of a job that named its algorithm: this one goes on choosing."""
    model, optimizer = begin(hvd.Gossip("osgp"))
    train(model, optimizer, data()[:3])
    saved = optimizer.state_dict(), model.state_dict()
    other, resumed = begin(hvd.Gossip(topology="auto"))
    load(saved, resumed, other, parameters_first=True)
    same(flat(other), flat(model))
    train(other, resumed, data()[:2])
    assert resumed.state_dict()["horon_gossip"]["advised"] is None
    assert resumed.state_dict()["horon_gossip"]["steps"] == 5
