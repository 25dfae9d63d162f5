"""Gossip(style="atc"): the step and the exchange of each parameter during backward. The result must
be, bit by bit, that of the plain algorithm."""

import torch
from common import raises, same
from gossip_optimizer import begin, data, flat, put, train
from optimizers import batches, loss_of, make_model

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)


def check_the_same_as_plain():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for algorithm, options in (
        ("dpsgd", {}),
        ("dpsgd", {"topology": "ring"}),
        ("dpsgd", {"global_average_every": 3}),
        ("sgp", {"topology": push}),
        ("sgp", {"topology": push, "global_average_every": 3}),
        ("dpsgd", {"hierarchical": True}),
    ):
        results = []
        for style in (None, "atc"):
            model, optimizer = begin(hvd.Gossip(algorithm, style=style, **options))
            train(model, optimizer, data())
            optimizer.finish_gossip()
            results.append((flat(model), optimizer.state_dict()["horon_gossip"]))
        same(results[1][0], results[0][0])
        assert results[1][1] == results[0][1], results


def check_any_optimizer_and_schedule():
    results = []
    for style in (None, "atc"):
        model = make_model()
        put(model, flat(model) + 0.1 * hvd.rank())
        optimizer = hvd.DistributedOptimizer(adam(model), model.named_parameters(),
                                             op=hvd.Gossip("dpsgd", style=style))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for batch in data():
            optimizer.zero_grad()
            loss_of(model, batch[hvd.rank()]).backward()
            optimizer.step()
            schedule.step()
        assert optimizer.param_groups[0]["lr"] < 0.01
        assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))
        results.append(flat(model))
    same(*results)


def check_steps_are_taken_during_backward():
    model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"))
    before = flat(model)
    loss_of(model, data()[0][hvd.rank()]).backward()
    assert optimizer._horon_gossip.pending
    assert (flat(model) != before).any(), "the step waits for step()"
    own = flat(model)
    optimizer.step()
    alone = topology.Topology(hvd.size()).matrix(0)[hvd.rank()][hvd.rank()] == 1  # this round
    assert (flat(model) == own).all() == alone


def check_parameters_that_some_ranks_do_not_use():
    """They are mixed all the same, like those that nobody trains."""
    used, odd, frozen = (torch.nn.Parameter(torch.full((3,), float(hvd.rank()))) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([used, odd, frozen], lr=1.0),
        [("used", used), ("odd", odd), ("frozen", frozen)], op=hvd.Gossip("dpsgd", style="atc"))
    (used.sum() + (odd.sum() if hvd.rank() == 0 else 0.0)).backward()
    optimizer.step()
    matrix = torch.tensor(topology.Topology(hvd.size()).matrix(0), dtype=torch.float64)
    start = torch.arange(hvd.size(), dtype=torch.float64)
    first = torch.zeros(hvd.size(), dtype=torch.float64)
    first[0] = 1.0
    for parameter, step in ((used, torch.ones_like(first)), (odd, first),
                            (frozen, torch.zeros_like(first))):
        want = (matrix @ (start - step))[hvd.rank()]
        assert (parameter.detach().double() - want).abs().max() < 1e-6, (parameter, want)


def check_several_passes_a_step():
    results = []
    for style in (None, "atc"):
        model, optimizer = begin(hvd.Gossip("dpsgd", style=style), backward_passes_per_step=2)
        for batch in data():
            optimizer.zero_grad()
            for _ in range(2):
                loss_of(model, batch[hvd.rank()]).backward()
            optimizer.step()
        results.append(flat(model))
    same(*results)
    model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"))
    batch = batches(hvd.size())[0][hvd.rank()]
    loss_of(model, batch).backward()
    with raises(AssertionError, words=["more than backward_passes_per_step"]):
        loss_of(model, batch).backward()
    optimizer.step()


def check_a_parameter_that_is_trained_later():
    results = []
    for style in (None, "atc"):
        model, optimizer = begin(hvd.Gossip("dpsgd", style=style))
        parameters = list(model.parameters())
        parameters[0].requires_grad_(False)
        train(model, optimizer, data()[:2])
        parameters[0].requires_grad_(True)
        train(model, optimizer, data()[2:4])
        results.append(flat(model))
    same(*results)


def check_combine_then_adapt_is_overlap():
    results = []
    for options in ({"style": "cta"}, {"overlap": True}):
        model, optimizer = begin(hvd.Gossip("dpsgd", **options))
        train(model, optimizer, data())
        optimizer.finish_gossip()
        results.append(flat(model))
    same(*results)


def check_refusals():
    for options, words in (
        ({"algorithm": "gossipgrad", "style": "atc"}, "is for dpsgd and sgp"),
        ({"algorithm": "osgp", "style": "cta"}, "is for dpsgd and sgp"),
        ({"style": "atc", "overlap": True}, "leave overlap and sync_freq out"),
        ({"style": "atc", "sync_freq": 2}, "leave overlap and sync_freq out"),
        ({"style": "both"}, "use one of atc, cta"),
        ({"topology": "auto", "style": "atc"}, "chooses all"),
    ):
        with raises(ValueError, words=[words]):
            hvd.Gossip(**options)
    model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"))
    loss_of(model, data()[0][hvd.rank()]).backward()
    with raises(AssertionError, words=["zero_grad"]):
        optimizer.zero_grad()
    with raises(hvd.HoronUnsupported, words=["call optimizer.step() first"]):
        optimizer.state_dict()
    with raises(hvd.HoronUnsupported, words=["during backward"]), optimizer.skip_synchronize():
        optimizer.step()
    optimizer.step()
    for change in (lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6),
                   lambda: setattr(model[0].weight, "grad", model[0].weight.grad.clamp(-1, 1))):
        optimizer.zero_grad()
        loss_of(model, data()[0][hvd.rank()]).backward()
        change()
        with raises(hvd.HoronUnsupported, words=["neither be clipped"]):
            optimizer.step()
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(loss_of(model, data()[0][hvd.rank()])).backward()
    with raises(hvd.HoronUnsupported, words=["unscaled"]):
        scaler.step(optimizer)
    optimizer.step()
