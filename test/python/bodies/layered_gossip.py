"""Gossip(style="atc"): the step and the exchange of each parameter during backward; "cta": the
exchange until the next forward pass; both. The result must be, bit by bit, that of the plain
algorithm."""

import copy
import warnings

import torch
from adasum_local_steps import Counting, Estimating, Remembering, Stateful
from common import raises, same
from gossip_optimizer import begin, data, flat, load, put, train
from optimizers import batches, loss_of, make_model

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)


STYLES = ({}, {"style": "atc"}, {"style": "atc", "overlap": True}, {"style": "cta"})


def losses(model, optimizer, steps):
    """What each forward pass saw, too."""
    seen = []
    for batch in steps:
        optimizer.zero_grad()
        loss = loss_of(model, batch[hvd.rank()])
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


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
        for style in STYLES:
            model, optimizer = begin(hvd.Gossip(algorithm, **style, **options))
            seen = losses(model, optimizer, data())
            optimizer.finish_gossip()
            results.append((flat(model), seen, optimizer.state_dict()["horon_gossip"]))
        for values, seen, state in results[1:]:
            same(values, results[0][0])
            assert seen == results[0][1] and state == results[0][2], results


def check_checkpoints_go_on_bit_by_bit():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for style in STYLES:
        op = hvd.Gossip("sgp", topology=push, **style)
        model, optimizer = begin(op)
        losses(model, optimizer, data()[:3])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        losses(model, optimizer, data()[3:])
        optimizer.finish_gossip()
        for parameters_first in (True, False):
            other, resumed = begin(op)
            losses(other, resumed, data()[:2])  # its exchange is dropped
            load(copy.deepcopy(saved), resumed, other, parameters_first)
            losses(other, resumed, data()[3:])
            resumed.finish_gossip()
            same(flat(other), flat(model))


def check_each_layer_takes_in_its_own_right_before_it_runs():
    for op in (hvd.Gossip("sgp", style="cta"), hvd.Gossip("dpsgd", style="atc", overlap=True)):
        model, optimizer = begin(op)
        names = {parameter: name for name, parameter in model.named_parameters()}
        gossip, events = optimizer._horon_gossip, []
        arrive = gossip._arrive

        def noted(parameter, gossip=gossip, arrive=arrive, events=events, names=names):
            if parameter in gossip._arriving:
                events.append(names[parameter])
            arrive(parameter)

        gossip._arrive = noted
        for i, layer in enumerate(model):
            layer.register_forward_pre_hook(lambda *_, i=i, events=events: events.append(i))
        train(model, optimizer, data()[:1])
        assert events == list(range(len(model))), events  # the first step has nothing to take in
        events.clear()
        loss_of(model, data()[0][hvd.rank()])
        mixes = hvd.size() > 1
        want = ["0.weight", "0.bias", 0, 1, 2, "3.weight", "3.bias", 3]
        assert events == [e for e in want if mixes or isinstance(e, int)], events
        optimizer.finish_gossip()
        assert len(events) == (8 if mixes else 4)


def check_a_step_waits_for_no_exchange():
    """Rank 0 ends its step before the others begin theirs: the barrier is between them. Had it
    waited, for HORON_GOSSIP_TIMEOUT, its round would be left out."""
    kept = hvd.counter("gossip.kept")
    for op in (hvd.Gossip("dpsgd", style="cta"), hvd.Gossip("sgp", style="atc", overlap=True)):
        model, optimizer = begin(op)
        if hvd.rank() > 0:
            hvd.barrier()
        train(model, optimizer, data()[:1])
        if hvd.rank() == 0:
            hvd.barrier()
        optimizer.finish_gossip()
    assert hvd.counter("gossip.kept") == kept


def check_who_trains_past_the_modules_is_warned_once():
    x = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0), [("x", x)],
                                         op=hvd.Gossip("dpsgd", topology="ring", style="cta"))
    graph = torch.tensor(topology.Ring(hvd.size()).matrix(0))
    want = torch.arange(hvd.size()).float()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            optimizer.zero_grad()
            x.sum().backward()
            optimizer.step()
            want = graph @ (want - 1.0)
    optimizer.finish_gossip()
    assert (x.detach() - want[hvd.rank()]).abs().max() < 1e-5
    warned = [w for w in caught if "before its module's forward pass" in str(w.message)]
    assert len(warned) == (hvd.size() > 1), caught


def check_gradients_may_be_clipped_and_scaled():
    """With "cta" the optimizer takes its step as it always does."""
    results = []
    for style in (None, "cta"):
        model, optimizer = begin(hvd.Gossip("dpsgd", style=style))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for batch in data():
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch[hvd.rank()])).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish_gossip()
        results.append(flat(model))
    same(*results)


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
    for style in STYLES:
        model, optimizer = begin(hvd.Gossip("dpsgd", **style), backward_passes_per_step=2)
        for batch in data():
            optimizer.zero_grad()
            for _ in range(2):
                loss_of(model, batch[hvd.rank()]).backward()
            optimizer.step()
        optimizer.finish_gossip()
        results.append(flat(model))
    for values in results[1:]:
        same(values, results[0])
    model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"))
    batch = batches(hvd.size())[0][hvd.rank()]
    loss_of(model, batch).backward()
    with raises(AssertionError, words=["more than backward_passes_per_step"]):
        loss_of(model, batch).backward()
    optimizer.step()


def check_gradients_of_fewer_passes_than_a_step():
    """Of a parameter that not every pass uses, of a step before the last pass, and set by hand: all
    are stepped with, as without a style."""
    for style in STYLES:
        a, b, c = (torch.nn.Parameter(torch.full((3,), 5.0)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b, c], lr=1.0),
                                             op=hvd.Gossip("dpsgd", **style),
                                             backward_passes_per_step=2)
        a.sum().backward()
        (a.sum() + b.sum()).backward()
        c.grad = torch.ones(3)
        optimizer.step()
        optimizer.zero_grad()
        a.sum().backward()
        optimizer.step()
        optimizer.finish_gossip()
        for parameter, expected in ((a, 2.0), (b, 4.0), (c, 4.0)):
            same(parameter.detach(), torch.full((3,), expected))


def check_optimizers_that_count_their_steps():
    """Once for all parameters, in their groups and in themselves; and go by that."""
    results = []
    for style in STYLES:
        model, optimizer = begin(hvd.Gossip("dpsgd", **style),
                                 kind=lambda model: Counting(model.parameters(), lr=0.3))
        losses(model, optimizer, data())
        optimizer.finish_gossip()
        assert optimizer.steps == optimizer.param_groups[0]["k"] == len(data())
        results.append(flat(model))
    for values in results[1:]:
        same(values, results[0])


def check_hooks_of_steps_come_too_late_to_clip():
    model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"))

    def clip(*_):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    optimizer.register_step_pre_hook(clip)
    loss_of(model, data()[0][hvd.rank()]).backward()
    with raises(hvd.HoronUnsupported, words=["neither be clipped"]):
        optimizer.step()


def check_optimizers_that_look_at_all_parameters_are_refused():
    for kind in (Estimating, Remembering, Stateful):
        model, optimizer = begin(hvd.Gossip("dpsgd", style="atc"),
                                 kind=lambda model, kind=kind: kind(model.parameters(), lr=0.1))
        loss_of(model, data()[0][hvd.rank()]).backward()
        with raises(hvd.HoronInvalidArgument, words=["style='atc'", kind.__name__]):
            optimizer.step()


def check_a_parameter_that_is_trained_later():
    results = []
    for style in STYLES:
        model, optimizer = begin(hvd.Gossip("dpsgd", **style))
        parameters = list(model.parameters())
        parameters[0].requires_grad_(False)
        train(model, optimizer, data()[:2])
        parameters[0].requires_grad_(True)
        train(model, optimizer, data()[2:4])
        optimizer.finish_gossip()
        results.append(flat(model))
    for values in results[1:]:
        same(values, results[0])


def check_refusals():
    for options, words in (
        ({"algorithm": "gossipgrad", "style": "atc"}, "is for dpsgd and sgp"),
        ({"algorithm": "osgp", "style": "cta"}, "is for dpsgd and sgp"),
        ({"style": "atc", "sync_freq": 2}, "leave sync_freq out"),
        ({"style": "cta", "sync_freq": 2}, "leave sync_freq out"),
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
