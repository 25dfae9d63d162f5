"""DistributedOptimizer(op=Gossip): against all ranks computed by hand in one process."""

import contextlib
import copy
import itertools
import math
import threading
import warnings
from collections import Counter

import torch
from common import close, raises, same
from edges import on_alarm
from optimizers import batches, loss_of, make_model, sgd

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch.calls import Handle


def flat(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def put(model, vector):
    at = 0
    for p in model.parameters():
        p.data.copy_(vector[at:at + p.numel()].reshape(p.shape))
        at += p.numel()


def step_on_x(optimizer, model, batch, x):
    """x with the optimizer's step, of the gradients that z, the model's, has."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    put(model, x)
    optimizer.step()
    return flat(model)


def computed(optimizer, model, batch):
    """A step of an optimizer that calls the closure; the loss of each call."""
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(loss_of(model, batch.to(next(model.parameters()).dtype)))
        losses[-1].backward()
        return losses[-1]

    assert optimizer.step(closure) == losses[0]
    return losses


def step_on_z(optimizer, model, batch, x):
    before = flat(model)
    computed(optimizer, model, batch)
    return x + flat(model) - before


def by_hand(graph, steps, overlap=False, average_every=0, apart=0.1, sync_freq=0,
            make=make_model, make_optimizer=sgd, step_of=step_on_x):
    """Every rank's z after the steps, by the formulas: x <- C(x + u), or C(x) + u."""
    size = graph.n
    models = [make() for _ in range(size)]
    for rank, model in enumerate(models):  # not the same start: mixing has something to do
        put(model, flat(model) + apart * rank)
    optimizers = [make_optimizer(model) for model in models]
    x = torch.stack([flat(model) for model in models])
    w = torch.ones(size, 1, dtype=torch.float64)
    before, t, begun = None, 0, 0  # what the exchange under way has taken, and when
    for step, batch in enumerate(steps, 1):
        x = torch.stack([step_of(*of_rank)
                         for of_rank in zip(optimizers, models, batch, x)])
        averages = average_every and step % average_every == 0
        if before is not None and (averages or step - begun > sync_freq):
            matrix = torch.tensor(graph.matrix(t - 1), dtype=torch.float64)
            x = x + matrix @ before[0] - before[0]
            w = w + matrix @ before[1] - before[1]
            before = None
        if averages:
            x, w = x.mean(0).expand_as(x).clone(), torch.ones_like(w)
        elif overlap and before is None:
            before, t, begun = (x.clone(), w.clone()), t + 1, step
        elif not overlap:
            matrix = torch.tensor(graph.matrix(t), dtype=torch.float64)
            x, w, t = matrix @ x, matrix @ w, t + 1
        for rank in range(size):
            put(models[rank], x[rank] / w[rank])
    if before is not None:
        matrix = torch.tensor(graph.matrix(t - 1), dtype=torch.float64)
        x = x + matrix @ before[0] - before[0]
        w = w + matrix @ before[1] - before[1]
    return x / w, w


def begin(op, kind=sgd, **arguments):
    model = make_model()
    put(model, flat(model) + 0.1 * hvd.rank())
    optimizer = hvd.DistributedOptimizer(kind(model), model.named_parameters(), op=op, **arguments)
    return model, optimizer


def train(model, optimizer, steps):
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, batch[hvd.rank()]).backward()
        optimizer.step()


def data(repeats=2):
    return batches(hvd.size()).repeat(repeats, 1, 1, 1, 1, 1)


def check_trajectories():
    size = hvd.size()
    push = topology.Star(size, mixing=mixing.Push())
    for op, graph, options in (
        (hvd.Gossip("dpsgd"), topology.Topology(size), {}),
        (hvd.Gossip("dpsgd", topology="ring"), topology.Ring(size), {}),
        (hvd.Gossip("dpsgd", overlap=True), topology.Topology(size), {"overlap": True}),
        (hvd.Gossip("sgp", topology=push), push, {}),
        (hvd.Gossip("osgp", topology=push), push, {"overlap": True}),
        (hvd.Gossip("sgp", topology=push, global_average_every=3), push, {"average_every": 3}),
        (hvd.Gossip("osgp", topology=push, global_average_every=3), push,
         {"overlap": True, "average_every": 3}),
        *((hvd.Gossip("osgp", topology=push, sync_freq=2, negotiated=negotiated), push,
           {"overlap": True, "sync_freq": 2}) for negotiated in (True, False)),
        *((hvd.Gossip("dpsgd", overlap=True, sync_freq=1, negotiated=negotiated),
           topology.Topology(size), {"overlap": True, "sync_freq": 1})
          for negotiated in (True, False)),
        (hvd.Gossip("osgp", topology=push, sync_freq=2, global_average_every=4), push,
         {"overlap": True, "sync_freq": 2, "average_every": 4}),
    ):
        model, optimizer = begin(op)
        assert isinstance(optimizer, torch.optim.SGD)
        train(model, optimizer, data())
        optimizer.finish_gossip()
        want, weights = by_hand(graph, data(), **options)
        close(flat(model), want[hvd.rank()], 2e-5)
        if size > 2 and op.push_sum and not op.global_average_every:
            assert (weights - 1).abs().max() > 0.1  # or push-sum was not needed
            close(torch.tensor(optimizer.state_dict()["horon_gossip"]["weight"]),
                  weights[hvd.rank(), 0].float())
        optimizer.close_gossip()


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=4)


def double_model():
    return make_model().double()


def begin_computing(op):
    model = double_model()
    put(model, flat(model) + 0.1 * hvd.rank())
    return model, hvd.DistributedOptimizer(lbfgs(model), model.named_parameters(), op=op)


def check_an_optimizer_that_computes_its_gradients():
    """LBFGS calls the closure several times a step, and each rank as often as it likes."""
    size = hvd.size()
    push = topology.Star(size, mixing=mixing.Push())
    for algorithm, graph, options in (
        ("dpsgd", topology.Topology(size), {}),
        ("dpsgd", topology.Topology(size), {"negotiated": False}),
        ("sgp", push, {}),
        ("sgp", push, {"negotiated": False}),
        ("sgp", push, {"global_average_every": 3}),
        ("osgp", push, {}),
        ("osgp", push, {"sync_freq": 2, "negotiated": False}),
    ):
        op = hvd.Gossip(algorithm, topology=graph, **options)
        model, optimizer = begin_computing(op)
        assert isinstance(optimizer, torch.optim.LBFGS)
        calls = [len(computed(optimizer, model, batch[hvd.rank()])) for batch in data()]
        assert max(calls) > 1, calls
        optimizer.finish_gossip()
        want, weights = by_hand(graph, data(), op.overlap, op.global_average_every,
                                sync_freq=op.sync_freq, make=double_model, make_optimizer=lbfgs,
                                step_of=step_on_z)
        close(flat(model), want[hvd.rank()], 1e-9)
        if size > 2 and op.push_sum and not op.global_average_every:
            assert (weights - 1).abs().max() > 0.1  # or push-sum was not needed
        optimizer.close_gossip()


def check_one_computes_its_gradients_and_nobody_waits():
    """Of asgp one's own step counts as often as one's weight: the mean is all that is exact."""
    for algorithm in ("adpsgd", "asgp"):
        model, optimizer = begin_computing(hvd.Gossip(algorithm))
        batch = data()[0].double()
        mean = hvd.allreduce(flat(model), name="mean")
        optimizer.step(lambda model=model: 0 * sum(p.sum() for p in model.parameters()))
        assert optimizer.finish_gossip(average=True)
        close(flat(model), mean, 1e-6)  # a step that changes nothing loses nothing
        losses = [computed(optimizer, model, batch[hvd.rank()]) for _ in range(6)]
        assert losses[0][-1] < losses[0][0], losses  # nothing is mixed within a step
        assert optimizer.finish_gossip(average=True)
        gathered = hvd.allgather(flat(model)[None], name="computed")
        close(gathered, gathered[:1].expand_as(gathered), 1e-6)
        optimizer.close_gossip()


def check_one_computes_its_gradients_and_the_advice_is_taken():
    model, optimizer = begin_computing(hvd.Gossip(topology="auto"))
    for _ in range(12):
        computed(optimizer, model, data()[0][hvd.rank()])
    if hvd.size() > 1:
        assert optimizer.state_dict()["horon_gossip"]["advised"] is not None
    optimizer.close_gossip()


def check_a_computed_step_that_fails():
    """What the optimizer has changed by then counts as any change of z does."""
    size = hvd.size()
    push = topology.Star(size, mixing=mixing.Push())
    model, optimizer = begin_computing(hvd.Gossip("sgp", topology=push))
    batch = data()[0][hvd.rank()]
    computed(optimizer, model, batch)
    _, weight = optimizer._horon_gossip.mass()
    z, changes = flat(model), []

    def fails():
        optimizer.zero_grad()
        loss = loss_of(model, batch.double())
        loss.backward()
        changes.append(flat(model) - z)
        if changes[-1].any():
            raise ArithmeticError("no more")
        return loss

    with raises(ArithmeticError):
        optimizer.step(fails)
    close(flat(model) * weight, z * weight + changes[-1], 1e-12)
    z = flat(model)
    with raises(TypeError, words=["closure"]):
        optimizer.step()
    close(flat(model), z, 1e-12)
    if size > 2:
        assert abs(weight - 1) > 0.01  # or the two would be alike
    optimizer.close_gossip()


def check_a_scaler_and_computed_gradients():
    model, optimizer = begin_computing(hvd.Gossip("dpsgd"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(loss_of(model, data()[0][hvd.rank()].double())).backward()
    before = flat(model)
    with raises(hvd.HoronUnsupported, words=["LBFGS", "GradScaler"]):
        scaler.step(optimizer, lambda: None)
    same(flat(model), before)


def check_what_needs_gradients_before_the_step_refuses_one_that_computes_them():
    model = torch.nn.Linear(3, 2)
    for options in ({"algorithm": "sgp", "style": "atc"}, {"style": "cta"}, {"algorithm": "gt"},
                    {"algorithm": "exact_diffusion"}, {"what": "gradients"}, {"what": "both"}):
        with raises(hvd.HoronInvalidArgument, words=["LBFGS.step()", "op=hvd.Average"]):
            hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()),
                                     model.named_parameters(), op=hvd.Gossip(**options))


def check_a_rank_that_has_nothing_left_is_told():
    """Rank 0 gives away all but 1 / size in each of many rounds: its weight is 1e-6 then."""
    if hvd.size() == 1:
        return
    steps = math.ceil(6 / math.log10(hvd.size()))
    others = range(1, hvd.size())
    away = topology.Custom(hvd.size(), *[[(0, to) for to in others]] * steps,
                           [(other, 0) for other in others], mixing=mixing.Push())
    for options in ({}, {"style": "atc"}, {"negotiated": False}, {"style": "cta"},
                    {"style": "atc", "overlap": True}):
        model, optimizer = begin(hvd.Gossip("sgp", topology=away, **options))
        arrives = options.get("style") == "cta" or "overlap" in options
        for step in range(steps):
            model.zero_grad()
            loss_of(model, data(1)[0][hvd.rank()]).backward()
            if step == steps - 1 and hvd.rank() == 0:
                if arrives:
                    optimizer.step()
                nothing_left = ["push-sum weight", "hears more often"]
                with raises(hvd.HoronInvalidArgument, words=nothing_left, of=f"{options}"):
                    optimizer.finish_gossip() if arrives else optimizer.step()
            else:
                optimizer.step()
        hvd.barrier()


def check_a_parameter_may_be_called_weight():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for style in (None, "atc", "cta"):
        model = torch.nn.Linear(3, 2)
        op = hvd.Gossip("sgp", topology=push, global_average_every=2, style=style)
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=op)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        rows = hvd.allgather(flat(model).reshape(1, -1))
        close(rows, rows[:1].expand_as(rows), 1e-6)


def total(model, optimizer):
    """The sum over ranks of x, which gossip must keep, and of the weights."""
    optimizer.finish_gossip()
    weight = optimizer.state_dict()["horon_gossip"]["weight"]
    both = torch.cat([flat(model) * weight, torch.tensor([weight], dtype=torch.float64)])
    return hvd.allreduce(both, op=hvd.Sum)


def check_two_optimizers_have_weights_of_their_own():
    """On a graph whose rounds differ: a weight of other rounds than x moves what is the same."""
    if hvd.size() == 1:
        return
    others = range(1, hvd.size())
    push = topology.Custom(hvd.size(), [(0, r) for r in others], [(r, 0) for r in others],
                           mixing=mixing.Push())
    for options in ({}, {"overlap": True}, {"style": "cta"}, {"style": "atc"},
                    {"global_average_every": 3}):
        pairs = []
        for i in range(2):
            model = make_model()
            put(model, torch.ones_like(flat(model)))
            names = [(f"{i}.{name}", p) for name, p in model.named_parameters()]
            if pairs:  # names of a whole model, of which each trains a part
                names += pairs[0][2]
            pairs.append((model, hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.0), names,
                op=hvd.Gossip("sgp", topology=push, **options)), names))
        for batch in data(5):
            for model, optimizer, _ in pairs:
                train(model, optimizer, [batch])
        for model, optimizer, _ in pairs:
            optimizer.finish_gossip()
            close(flat(model), torch.ones_like(flat(model)), 1e-5)


def interrupt():
    raise KeyboardInterrupt


def in_a_wait(run):
    """Calls `run` in a signal's handler, when the main thread waits for a collective."""
    return on_alarm(run, within=(Handle.wait, Handle.wait_for))


def is_ended_by_ctrl_c(wait):
    try:
        with in_a_wait(interrupt):
            wait()
        raise AssertionError("nothing was waited for")
    except KeyboardInterrupt:
        pass


def check_an_interrupted_forward_pass():
    """Ctrl-C while it waits for what the neighbors send; the next one waits again, and what comes
    is mixed by one round, the weight's."""
    push = by_turns(hvd.size())
    for op in (hvd.Gossip("sgp", topology=push, style="cta"),
               hvd.Gossip("sgp", topology=push, style="atc", overlap=True)):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:2])
        told = Told()
        told.wait()  # the last rank's part
        train(model, optimizer, data()[2:3])
        if not told.late and hvd.size() > 1:
            is_ended_by_ctrl_c(optimizer.finish_gossip)
        told.tell()
        told.free()
        train(model, optimizer, data()[3:])
        optimizer.finish_gossip()
        want, _ = by_hand(push, data())
        close(flat(model), want[hvd.rank()], 2e-5)


def interrupted(step, waits, told, through=False):
    """Takes the step, for which all but the last rank wait if they `waits`, and get a Ctrl-C;
    `through`: that is raised when the last one has come."""
    def tell_and_interrupt():
        if through:
            told.tell()
        interrupt()

    try:
        with in_a_wait(tell_and_interrupt) if waits else contextlib.nullcontext():
            step()
        assert not waits
    except KeyboardInterrupt:
        pass
    if not (through and waits):
        told.tell()
    told.free()


def check_an_interrupted_step():
    """Ctrl-C while a step waits for others: what it had begun is not lost, but taken in by whoever
    asks for it next. Between peers it is the centre of the star that waits for the last rank."""
    star = topology.Star(hvd.size(), mixing=mixing.Push())
    for negotiated in (True, False):
        model, optimizer = begin(hvd.Gossip("sgp", topology=star, negotiated=negotiated))
        train(model, optimizer, data()[:2])
        told = Told()
        told.wait()
        waits = not told.late and hvd.size() > 1 and (negotiated or hvd.rank() == 0)
        interrupted(lambda: train(model, optimizer, data()[2:3]), waits, told)
        optimizer.finish_gossip()
        train(model, optimizer, data()[3:])
        want, _ = by_hand(star, data())
        close(flat(model), want[hvd.rank()], 2e-5)


def check_a_step_that_is_interrupted_before_its_exchange():
    """With overlap a step waits for the exchange of the one before. Its own is started all the
    same. A learning rate of 0: the next gradient is that of values without what has not come."""
    star = topology.Star(hvd.size(), mixing=mixing.Push())
    for negotiated in (True, False):
        model, optimizer = begin(hvd.Gossip("osgp", topology=star, negotiated=negotiated))
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        train(model, optimizer, data()[:2])
        told = Told()
        told.wait()
        at = 2 if told.late else 3
        train(model, optimizer, data()[2:at])
        waits = not told.late and hvd.size() > 1 and (negotiated or hvd.rank() == 0)
        interrupted(lambda: train(model, optimizer, data()[at:at + 1]), waits, told)
        train(model, optimizer, data()[at + 1:])
        optimizer.finish_gossip()
        want, _ = by_hand(star, data(), overlap=True,
                          make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0))
        close(flat(model), want[hvd.rank()], 2e-5)


def check_an_interrupted_step_that_ends_first():
    """What changes parameters where they lie is waited for; a second Ctrl-C would end that."""
    star = topology.Star(hvd.size(), mixing=mixing.Push())
    for op, by in ((hvd.Gossip("sgp", topology=star, global_average_every=3), {"average_every": 3}),
                   (hvd.Gossip("sgp", topology=star, style="atc"), {})):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:2])
        told = Told()
        told.wait()
        waits = not told.late and hvd.size() > 1
        interrupted(lambda: train(model, optimizer, data()[2:3]), waits, told, through=True)
        train(model, optimizer, data()[3:])
        want, _ = by_hand(star, data(), **by)
        close(flat(model), want[hvd.rank()], 2e-5)


def keeps_mass(op):
    """A learning rate of 0: only gossip moves the parameters. Model, optimizer, and the sums."""
    model, optimizer = begin(op)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = total(model, optimizer)
    train(model, optimizer, data(6))
    after = total(model, optimizer)
    close(after, before, 1e-5)
    for weights in (before[-1], after[-1]):
        assert abs(weights - hvd.size()) < 1e-12
    return model, optimizer, before


def check_mass_is_kept_with_exchanges_left_unfinished():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    model, optimizer, before = keeps_mass(hvd.Gossip("osgp", topology=push, sync_freq=2))
    mean = before[:-1] / hvd.size()
    if hvd.size() > 1:
        start = 0.1 * abs(hvd.rank() - (hvd.size() - 1) / 2)
        assert (flat(model) - mean).abs().max() < max(start, 0.02)


def staleness():
    """Exchanges taken in, by their age in steps."""
    prefix = "gossip.staleness."
    return Counter({int(name.removeprefix(prefix)): value
                    for name, value in hvd.counters().items() if name.startswith(prefix)})


def check_what_arrives_is_no_older_than_promised():
    """O1. In step t a rank adds 1 to an element of its own: so each sees what its neighbors' news
    are, and how many steps after they were made."""
    size, me, steps = hvd.size(), hvd.rank(), 24
    heard = topology.Ring(size).peers(me)[1]
    for negotiated, s in itertools.product((True, False), (0, 1, 3)):
        x = torch.nn.Parameter(torch.zeros(steps, size, dtype=torch.float64))
        op = hvd.Gossip("osgp", topology=topology.Ring(size), sync_freq=s, negotiated=negotiated)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0), op=op)
        newest, ages, before = dict.fromkeys(heard, -1), [], staleness()
        for t in range(steps):
            x.grad = torch.zeros_like(x)
            x.grad[t, me] = -1.0
            optimizer.step()
            for other in heard:
                last = max([newest[other], *x.detach()[:, other].nonzero().flatten().tolist()])
                if last > newest[other]:
                    newest[other] = last
                    ages.append(t - last)
        optimizer.close_gossip()
        assert all(age <= s + 1 for age in ages), (s, ages)
        assert len(ages) >= len(heard) * (steps // (s + 1) - 1), (s, ages)
        counted = staleness() - before
        assert max(counted, default=0) <= s + 1 and counted.total() >= bool(heard), (s, counted)


class Told:
    """By which a rank, the last one unless told otherwise, hears that all others have come so
    far."""

    def __init__(self, late=None):
        late = hvd.size() - 1 if late is None else late
        self.late = hvd.rank() == late
        others = [rank for rank in range(hvd.size()) if rank != late]
        self._window = hvd.Window(torch.zeros(1), "told", sources=others if self.late else [],
                                  destinations=[] if self.late else [late])

    def wait(self):
        """On that rank."""
        clock = threading.Event()
        while self.late and not all(self._window.versions().values()):
            clock.wait(0.001)

    def tell(self):
        """On the others."""
        if not self.late:
            assert self._window.put() == ()

    def free(self):
        hvd.barrier()
        self._window.free()


def check_a_late_rank_is_not_waited_for_too_soon():
    """O2. While the last rank takes no step the others take sync_freq + 1, for which they wait for
    nobody; it begins when they have told it. None of its rounds is mixed without it: between peers
    that would be waiting in vain, and counted; negotiated, its round would be left out."""
    for negotiated, s in itertools.product((True, False), (0, 1, 3)):
        op = hvd.Gossip("osgp", topology="ring", sync_freq=s, negotiated=negotiated)
        model, optimizer = begin(op)
        before = [hvd.counter(name) for name in ("round.folded", "gossip.kept")]
        told = Told()
        told.wait()
        steps = data(2)
        train(model, optimizer, steps[:s + 1])
        told.tell()
        train(model, optimizer, steps[s + 1:])
        optimizer.close_gossip()
        assert [hvd.counter(name) for name in ("round.folded", "gossip.kept")] == before
        told.free()


def check_checkpoints_go_on_bit_by_bit():
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for op in (hvd.Gossip("sgp", topology=push), hvd.Gossip("osgp", topology=push),
               hvd.Gossip("dpsgd", topology=topology.RandomMatching(hvd.size())),
               *gradients_are_mixed()):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:3])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        train(model, optimizer, data()[3:])
        optimizer.finish_gossip()
        want = flat(model)
        other, resumed = begin(op)
        for m, o in ((other, resumed), (model, optimizer)):  # a new one, and itself
            load(copy.deepcopy(saved), o, m, parameters_first=True)
            train(m, o, data()[3:])
            o.finish_gossip()
            same(flat(m), want)


def check_the_scale_of_the_weights_changes_nothing():
    """With all x, all weights and the steps four times as large z is the same, bit by bit."""
    if hvd.size() == 1:
        return
    push = by_turns(hvd.size())
    for algorithm in ("sgp", "osgp"):
        model, optimizer = begin(hvd.Gossip(algorithm, topology=push))
        train(model, optimizer, data()[:3])
        state, values = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        train(model, optimizer, data()[3:])
        optimizer.finish_gossip()
        want, mass = flat(model), optimizer.gossip_mass()
        state["horon_gossip"]["weight"] *= 4
        for group in state["param_groups"]:
            group["lr"] *= 4
        load((state, values), optimizer, model, parameters_first=True)
        train(model, optimizer, data()[3:])
        optimizer.finish_gossip()
        same(flat(model), want)
        values, weights = optimizer.gossip_mass()
        same(values, 4 * mass[0])
        assert weights == 4 * mass[1] and abs(weights - 4 * hvd.size()) < 1e-12, weights


def gradients_are_mixed():
    """Ops whose every round is of another order of the ranks, and a graph that gradients and
    parameters are not at the same round of."""
    matching = topology.RandomMatching(hvd.size())
    return (hvd.Gossip("gossipgrad"), hvd.Gossip("gossipgrad", what="both"),
            hvd.Gossip("dpsgd", topology=matching, what="both", global_average_every=2))


def check_gradients_of_groups_and_copies_go_on_at_their_round():
    """They go other ways through the runtime than gradients that are reduced where they lie. A new
    optimizer begins with round 0, whatever others of its parameters' names did."""
    for arguments in ({"groups": 2}, {"compression": hvd.Compression.fp16}):
        model, optimizer = begin(hvd.Gossip("gossipgrad"), **arguments)
        expect_rounds(model, optimizer, range(3))
        state = optimizer.state_dict()
        state["horon_gossip"]["gradients_round"] = 7
        optimizer.load_state_dict(state)
        expect_rounds(model, optimizer, range(7, 10))


def expect_rounds(model, optimizer, rounds):
    """The gradients' next ones, of gossipgrad."""
    graph = hvd.Gossip("gossipgrad").graph(hvd.size())
    for t in rounds:
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float(hvd.rank()))
        optimizer.synchronize()
        want = sum(w * rank for rank, w in enumerate(graph.matrix(t)[hvd.rank()]))
        assert all((p.grad == want).all() for p in model.parameters()), t
        assert optimizer.state_dict()["horon_gossip"]["gradients_round"] == t + 1


def check_a_state_without_the_gradients_round():
    """Of a version that did not save it: gradients go on with the next round of the runtime's."""
    model, optimizer = begin(hvd.Gossip("gossipgrad"))
    expect_rounds(model, optimizer, range(2))
    state = optimizer.state_dict()
    del state["horon_gossip"]["gradients_round"]
    optimizer.load_state_dict(state)
    expect_rounds(model, optimizer, range(2, 5))


def check_a_state_that_one_rank_sends_to_all():
    """In the middle of training: the others load it, so the sender must prove its round, too."""
    push = by_turns(hvd.size())
    for op in (hvd.Gossip("gossipgrad"), hvd.Gossip("dpsgd"),
               hvd.Gossip("dpsgd", negotiated=False), hvd.Gossip("adpsgd"), hvd.Gossip("asgp"),
               hvd.Gossip("sgp", topology=push), hvd.Gossip("osgp", topology=push),
               hvd.Gossip("sgp", topology=push, negotiated=False)):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:3])
        hvd.broadcast_optimizer_state(optimizer, hvd.size() - 1)
        assert abs(optimizer.gossip_mass()[1] - hvd.size()) < 1e-12  # not n times the sender's
        train(model, optimizer, data()[3:5])
        assert optimizer.state_dict()["horon_gossip"]["steps"] == 5
        assert abs(optimizer.gossip_mass()[1] - hvd.size()) < 1e-12
        optimizer.close_gossip()


def check_weights_are_not_lost():
    """A state with push-sum weights is for what keeps them; those of the exact mean are 1."""
    if hvd.size() == 1:
        return
    push = by_turns(hvd.size())
    model, optimizer = begin(hvd.Gossip("sgp", topology=push))
    train(model, optimizer, data()[:3])
    saved = copy.deepcopy(optimizer.state_dict())
    apart = torch.tensor(abs(saved["horon_gossip"]["weight"] - 1))
    assert hvd.allreduce(apart, op=hvd.Min, name="apart") > 0.01
    optimizer.finish_gossip(average=True)
    mean, of_mean = flat(model), copy.deepcopy(optimizer.state_dict())
    for op in (hvd.Gossip("dpsgd"), hvd.Gossip("dpsgd", negotiated=False), hvd.Gossip("sgp"),
               hvd.Gossip("gt"), hvd.Gossip("dpsgd", style="cta"), hvd.Gossip("adpsgd"),
               hvd.Gossip("gossipgrad")):
        other, resumed = begin(op)
        with raises(hvd.HoronInvalidArgument, words=[
                "push-sum weight of", op.algorithm, "finish_gossip(average=True)"]):
            resumed.load_state_dict(saved)
        assert not resumed.state
        put(other, mean)
        resumed.load_state_dict(copy.deepcopy(of_mean))
        for group in resumed.param_groups:
            group["lr"] = 0.0
        train(other, resumed, data()[3:5])
        resumed.finish_gossip(average=True)
        close(flat(other), mean, 1e-6)
        resumed.close_gossip()


def check_ranks_that_differ_hear_both_views():
    """In their first step, or with overlap when its exchange is taken in, on all of them, whatever
    is different."""
    if hvd.size() == 1:
        return
    last = hvd.size() - 1
    for ops, view in (
            ([hvd.Gossip("dpsgd", global_average_every=h) for h in (8, 16)],
             "dpsgd of gossip, global_average_every={}"),
            ([hvd.Gossip("osgp", sync_freq=s) for s in (1, 2)], "osgp of gossip, sync_freq={}"),
            ([hvd.Gossip("osgp", global_average_every=h) for h in (8, 16)],
             "osgp of gossip, global_average_every={}"),
            ([hvd.Gossip("gossipgrad", global_average_every=h) for h in (8, 4)],
             "gossipgrad of gossip:graph=one_peer_exponential,rotate=1, global_average_every={}")):
        model, optimizer = begin(ops[hvd.rank() == last])
        views = [view.format(op.global_average_every or op.sync_freq) for op in ops]
        with raises(hvd.HoronMismatch, words=[f"{views[0]} on rank", f"{views[1]} on rank [{last}]",
                                              "same hvd.Gossip(...)"]):
            for _ in range(2 + ops[hvd.rank() == last].sync_freq if ops[0].overlap else 1):
                train(model, optimizer, data()[:1])
        optimizer.finish_gossip()
        begun = hvd.counter("gossip.kept")
        model, optimizer = begin(ops[0])  # all alike
        train(model, optimizer, data()[:2])
        optimizer.finish_gossip()
        assert hvd.counter("gossip.kept") == begun


def check_ranks_whose_other_parameters_differ():
    """Names may have been given of a whole model, of which the rest is each rank's own."""
    body, head = make_model(), torch.nn.Linear(2 + hvd.rank(), 1)
    model = torch.nn.ModuleDict({"body": body, f"head of {hvd.rank()}": head})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(body.parameters(), lr=0.1),
                                         model.named_parameters(), op=hvd.Gossip("dpsgd"))
    train(body, optimizer, data()[:2])


def check_a_rank_that_has_joined_counts_for_nothing():
    """Neither in the first step nor in an exact mean, which is that of the others."""
    if hvd.size() < 3:
        return
    for op in (hvd.Gossip("dpsgd", global_average_every=2),
               hvd.Gossip("gossipgrad", global_average_every=2)):
        model, optimizer = begin(op)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        last = hvd.size() - 1
        before = flat(model)
        if hvd.rank() < last:
            train(model, optimizer, data()[:1])
            before = flat(model)
            train(model, optimizer, data()[1:2])
        hvd.join()
        mean = torch.stack(hvd.allgather_object(before, name="parts")[:last]).mean(0)
        if hvd.rank() < last:
            close(flat(model), mean, 1e-6)


def check_a_state_is_saved_after_the_end():
    """Of its process set, say: whoever saves or loads asks the runtime nothing."""
    if hvd.size() == 1:
        return
    some = hvd.add_process_set(list(range(hvd.size() - 1)))
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(),
                                         op=hvd.Gossip("dpsgd"), process_set=some)
    hvd.remove_process_set(some)
    state = optimizer.state_dict()
    assert state["horon_gossip"]["of"] == [hvd.rank(), hvd.size() - 1]
    optimizer.load_state_dict(state)


def check_loading_after_an_interrupted_step():
    """The exchange that it owed was another past's: all ranks start equally many afterwards."""
    star = topology.Star(hvd.size(), mixing=mixing.Push())
    before = [hvd.counter(name) for name in ("round.folded", "gossip.kept")]
    for negotiated in (True, False):
        model, optimizer = begin(hvd.Gossip("osgp", topology=star, negotiated=negotiated))
        train(model, optimizer, data()[:2])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        train(model, optimizer, data()[2:3])
        told = Told()
        told.wait()
        at = 3 if told.late else 4
        train(model, optimizer, data()[3:at])
        waits = not told.late and hvd.size() > 1 and (negotiated or hvd.rank() == 0)
        leaf = not (told.late or waits)  # the centre takes no step more for it
        interrupted(lambda: leaf or train(model, optimizer, data()[at:at + 1]), waits, told)
        ends = []
        for m, o in ((model, optimizer), begin(hvd.Gossip("osgp", topology=star,
                                                          negotiated=negotiated))):
            load(copy.deepcopy(saved), o, m, parameters_first=False)
            train(m, o, data()[2:])
            o.finish_gossip()
            ends.append(flat(m))
        same(*ends)
    assert [hvd.counter(name) for name in ("round.folded", "gossip.kept")] == before


def load(saved, optimizer, model, parameters_first):
    """(the optimizer's state, the model's), in one order or the other."""
    targets = [(optimizer, saved[0]), (model, saved[1])]
    for target, state in reversed(targets) if parameters_first else targets:
        target.load_state_dict(state)


def check_loading_drops_the_exchange_under_way():
    """Whichever of the two is loaded first; what was under way belongs to other parameters."""
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    for op in (hvd.Gossip("osgp", topology=push), hvd.Gossip("dpsgd", overlap=True)):
        model, optimizer = begin(op)
        train(model, optimizer, data()[:3])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        want = flat(model)
        for parameters_first in (True, False):
            train(model, optimizer, data()[3:])
            load(saved, optimizer, model, parameters_first)
            same(flat(model), want)
            optimizer.finish_gossip()
            same(flat(model), want)
            assert optimizer.state_dict()["horon_gossip"] == saved[0]["horon_gossip"]


def by_turns(size):
    """Rank 0 gives to the others, then they to rank 0: of push-sum, with weights that change."""
    others = range(1, size)
    return topology.Custom(size, [(0, to) for to in others], [(other, 0) for other in others],
                           mixing=mixing.Push())


def check_a_state_of_another_algorithm():
    model, optimizer = begin(hvd.Gossip("dpsgd"))
    train(model, optimizer, data()[:3])
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    for op in (hvd.Gossip("gt"), hvd.Gossip("sgp"), hvd.Gossip("sgp", negotiated=False),
               hvd.Gossip("dpsgd", style="cta")):
        other, resumed = begin(op)
        load(copy.deepcopy(saved), resumed, other, parameters_first=True)
        train(other, resumed, data()[3:5])
        assert resumed.state_dict()["horon_gossip"]["steps"] == 5
        resumed.close_gossip()


def check_a_state_with_rounds_of_each_rank_is_refused():
    """Before anything is loaded. Without it the rest of the checkpoint will do."""
    model, optimizer = begin(hvd.Gossip("asgp"))
    train(model, optimizer, data()[:3])
    optimizer.finish_gossip()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.01
    optimizer.close_gossip()
    for op in (hvd.Gossip("sgp"), hvd.Gossip("gt"), hvd.Gossip("osgp", negotiated=False),
               hvd.Gossip(topology="auto")):
        other, resumed = begin(op)
        with raises(hvd.HoronInvalidArgument, words=["saved by adpsgd or asgp", "'horon_gossip'"]):
            resumed.load_state_dict(copy.deepcopy(saved))
        assert resumed.param_groups[0]["lr"] == 0.1 and not resumed.state
        resumed.load_state_dict({name: value for name, value in saved.items()
                                 if name != "horon_gossip"})
        assert resumed.param_groups[0]["lr"] == 0.01
        train(other, resumed, data()[3:5])
        resumed.close_gossip()


def grown(op, late):
    """A model that gets one layer more after three steps: the optimizer has it from the start, or
    is given it then. Between the two a state was loaded, which replaces the groups."""
    model, more = make_model(), torch.nn.Linear(5, 5)
    put(model, flat(model) + 0.1 * hvd.rank())
    both = torch.nn.Sequential(model, more)
    groups = [{"params": list(part.parameters())} for part in (model, more)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(groups[:1] if late else groups, lr=0.1, momentum=0.9),
        (model if late else both).named_parameters(), op=op)
    train(model, optimizer, data()[:3])
    optimizer.load_state_dict(optimizer.state_dict())
    if late:
        train(model, optimizer, data()[3:4])  # with overlap an exchange is under way now
        optimizer.add_param_group(groups[1])
    else:
        train(model, optimizer, data()[3:4])
        optimizer.finish_gossip()
    train(both, optimizer, data()[4:])
    optimizer.finish_gossip()
    return flat(both), optimizer


def check_parameters_that_are_added():
    """They are mixed as if they had been there from the start, without gradients."""
    push = by_turns(hvd.size())
    for op in (hvd.Gossip("dpsgd"), hvd.Gossip("dpsgd", overlap=True),
               hvd.Gossip("sgp", topology=push), hvd.Gossip("osgp", topology=push, sync_freq=1),
               hvd.Gossip("sgp", topology=push, global_average_every=3),
               *(hvd.Gossip("sgp", topology=push, style=style, overlap=overlap) for style, overlap
                 in (("atc", False), ("atc", True), ("cta", True))), *gradients_are_mixed()):
        want, _ = grown(op, late=False)
        got, optimizer = grown(op, late=True)
        close(got, want, 1e-5)
        assert len(optimizer.param_groups) == 2
        assert abs(optimizer.gossip_mass()[1] - hvd.size()) < 1e-12


def trained_beside(numbers, op, grows=False):
    """Models by number, whose parameters have the same names, or of layers that were added, and
    which train by turns: what becomes of each."""
    pairs = {}
    for i in numbers:
        model, more = make_model(), torch.nn.Linear(5, 5)
        put(model, flat(model) + 0.1 * (hvd.rank() + i))
        names = [(f"{i if grows else 0}.{name}", p) for name, p in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), names,
                                             op=op)
        if grows:
            optimizer.add_param_group({"params": list(more.parameters())})
            model = torch.nn.Sequential(model, more)
        pairs[i] = model, optimizer
    for batch in data():
        for model, optimizer in pairs.values():
            train(model, optimizer, [batch])
    for _, optimizer in pairs.values():
        optimizer.finish_gossip()
    return {i: flat(model) for i, (model, _) in pairs.items()}


def check_two_optimizers_have_rounds_of_their_own():
    """Where the graph changes from round to round: also when parameters have the same names, as two
    models of one class have, and while exchanges of the other one are under way."""
    turns = {"topology": topology.OnePeerExponential(hvd.size())}
    for options, grows in (
            (turns, False), ({"algorithm": "sgp", "topology": by_turns(hvd.size())}, False),
            ({"style": "atc", **turns}, False), ({"style": "cta", **turns}, False),
            ({"algorithm": "osgp", **turns}, False), ({"algorithm": "gt", **turns}, False),
            ({"algorithm": "push_diging", **turns}, False), ({"what": "both", **turns}, False),
            ({"algorithm": "gossipgrad"}, False), ({"algorithm": "gossipgrad"}, True)):
        op = hvd.Gossip(**options)
        together = trained_beside((0, 1), op, grows)
        for i in together:
            close(together[i], trained_beside((i,), op, grows)[i], 1e-6)


def check_where_parameters_cannot_be_added():
    more = torch.nn.Linear(5, 5)
    for op in (hvd.Gossip("adpsgd"), hvd.Gossip("asgp"), hvd.Gossip("sgp", negotiated=False),
               hvd.Gossip("gt"), hvd.Gossip("exact_diffusion"), hvd.Gossip("push_diging"),
               hvd.Gossip(topology="auto")):
        model, optimizer = begin(op)
        with raises(hvd.HoronUnsupported, words=["make it with all parameters"]):
            optimizer.add_param_group({"params": list(more.parameters())})
        assert len(optimizer.param_groups) == 1
        train(model, optimizer, data()[:1])
        optimizer.close_gossip()


def check_parameters_added_to_the_wrapped_optimizer():
    """Which has the same groups."""
    model, wrapped = make_model(), torch.nn.Linear(5, 5)
    inner = sgd(model)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(),
                                         op=hvd.Gossip("dpsgd", global_average_every=1))
    inner.add_param_group({"params": list(wrapped.parameters())})
    with raises(hvd.HoronUnsupported, words=["the optimizer that it returned"]):
        train(model, optimizer, data()[:1])


def check_ranks_outside_the_set_step_by_themselves():
    """Those in it train as if they were all."""
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 1])
    push = by_turns(2)
    for op, graph, options in (
        (hvd.Gossip("dpsgd"), topology.Topology(2), {}),
        (hvd.Gossip("dpsgd", style="cta"), topology.Topology(2), {}),
        (hvd.Gossip("sgp", topology=push, global_average_every=3), push, {"average_every": 3}),
        (hvd.Gossip("osgp", topology=push), push, {"overlap": True}),
        (hvd.Gossip("dpsgd", style="atc", global_average_every=2), topology.Topology(2),
         {"average_every": 2}),
        (hvd.Gossip("dpsgd", hierarchical=True), None, {}),
        (hvd.Gossip("gossipgrad", global_average_every=2), None, {}),
        (hvd.Gossip("gossipgrad", what="both"), None, {}),
        (hvd.Gossip("gt"), None, {}),
        (hvd.Gossip("push_diging"), None, {}),
    ):
        model, optimizer = begin(op, process_set=pair)
        train(model, optimizer, data())
        assert optimizer.finish_gossip()
        if not pair.included():
            alone = make_model()
            put(alone, flat(alone) + 0.1 * hvd.rank())
            train(alone, sgd(alone), data())
            close(flat(model), flat(alone), 1e-6)
        elif graph is not None:
            close(flat(model), by_hand(graph, data(), **options)[0][hvd.rank()], 2e-5)
        before = flat(model)
        total, weights = optimizer.gossip_mass()
        assert abs(weights - (2 if pair.included() else 1)) < 1e-12
        assert optimizer.finish_gossip(average=True)
        if pair.included():
            rows = hvd.allgather(flat(model)[None], name="pair", process_set=pair)
            same(rows, rows[:1].expand_as(rows))
            close(total / 2, flat(model), 1e-5)
        else:
            same(flat(model), before)
            same(total, before)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.close_gossip()
    hvd.barrier()
    hvd.remove_process_set(pair)


@torch.no_grad()
def mix(matrix, tensors):
    """Of all ranks, in place."""
    for tensor, mixed in zip(tensors, torch.einsum("ij,j...->i...", matrix, torch.stack(tensors))):
        tensor.copy_(mixed)


def mixed_by_hand(op, passes):
    """This rank's parameters after training on data(): gradients of so many passes are mixed before
    each step, with what="both" parameters after it."""
    size = hvd.size()
    graph = op.graph(size)
    models = [make_model() for _ in range(size)]
    optimizers = [sgd(m) for m in models]
    for rank, m in enumerate(models):
        put(m, flat(m) + 0.1 * rank)
    for t, batch in enumerate(data()):
        for rank in range(size):
            optimizers[rank].zero_grad()
            for _ in range(passes):
                loss_of(models[rank], batch[rank]).backward()
        matrix = torch.tensor(graph.matrix(t), dtype=torch.float32)
        of_each = list(zip(*(m.parameters() for m in models)))
        for parameters in of_each:
            mix(matrix, [p.grad for p in parameters])
        for o in optimizers:
            o.step()
        for parameters in of_each if op.what == "both" else ():
            mix(matrix, [p.data for p in parameters])
    return flat(models[hvd.rank()])


def check_gradients_are_mixed_before_the_step():
    for what, passes in (("gradients", 1), ("gradients", 2), ("both", 1), ("both", 2)):
        op = hvd.Gossip("gossipgrad", what=what,
                        global_average_every=1000 if what == "gradients" else 0)
        model, optimizer = begin(op, backward_passes_per_step=passes)
        for batch in data():
            optimizer.zero_grad()
            for _ in range(passes):
                loss_of(model, batch[hvd.rank()]).backward()
            optimizer.step()
        close(flat(model), mixed_by_hand(op, passes), 1e-5)


def check_what_keeps_parameters_together():
    """By default gossip of gradients averages parameters, too; who wants neither is warned."""
    for op, every, warned in ((hvd.Gossip("gossipgrad"), 16, False),
                              (hvd.Gossip("dpsgd", what="gradients"), 16, False),
                              (hvd.Gossip("gossipgrad", what="both"), 0, False),
                              (hvd.Gossip("sgp"), 0, False),
                              (hvd.Gossip("gossipgrad", global_average_every=0), 0, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin(op)
        assert op.global_average_every == every, op.global_average_every
        assert any("drift apart" in str(w.message) for w in caught) == warned
    model, optimizer = begin(hvd.Gossip("gossipgrad"))
    apart = hvd.consensus_distance(model.parameters())
    steps = data(16)
    train(model, optimizer, steps[:15])
    assert hvd.consensus_distance(model.parameters()) >= apart / 2
    train(model, optimizer, steps[15:16])
    assert hvd.consensus_distance(model.parameters()) < 1e-6


def check_refusals():
    if hvd.size() > 2:
        with raises(ValueError, words=["use algorithm='sgp'"]):
            begin(hvd.Gossip("dpsgd", topology="star", mixing=mixing.Push()))
        with raises(ValueError, words=["does not keep the sum"]):
            begin(hvd.Gossip("sgp", topology="star", mixing=mixing.Uniform()))
        for what in ("gradients", "both"):
            with raises(ValueError, words=["needs rows that sum to 1", f"what={what!r}"]):
                begin(hvd.Gossip("sgp", topology="star", mixing=mixing.Push(), what=what,
                                 global_average_every=10))
    with raises(ValueError, words=["multiply the parameters"]):
        begin(hvd.Gossip(hierarchical=True, local_op="sum"))
    with raises(ValueError, words=["overlap", "is not for what='gradients'"]):
        hvd.Gossip("osgp", what="gradients")
    with raises(ValueError, words=["overlap", "is not for what='gradients'"]):
        hvd.Gossip("gossipgrad", overlap=True, sync_freq=3)
    with raises(ValueError, words=["compression is for gradients"]):
        begin(hvd.Gossip(), compression=hvd.Compression.fp16)


def check_an_overflow_skips_this_ranks_step_only():
    weight = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Gossip("dpsgd"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    bad = float("inf") if hvd.rank() == 0 else 1.0
    scaler.scale((weight * bad).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    after = torch.arange(hvd.size(), dtype=torch.float64) - 1.0
    after[0] = 0.0
    matrix = torch.tensor(topology.Topology(hvd.size()).matrix(0), dtype=torch.float64)
    close(weight.detach().double(), (matrix @ after)[hvd.rank()].expand(3), 1e-6)


def check_a_rank_without_gradients_under_a_scaler():
    """PyTorch says 0 then, which is no tensor: it mixes all the same."""
    weight = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Gossip("dpsgd"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = scaler.scale(weight.sum())
    if hvd.rank() > 0:
        loss.backward()
    scaler.step(optimizer)
    after = torch.arange(hvd.size(), dtype=torch.float64) - 1.0
    after[0] = 0.0
    matrix = torch.tensor(topology.Topology(hvd.size()).matrix(0), dtype=torch.float64)
    close(weight.detach().double(), (matrix @ after)[hvd.rank()].expand(3), 1e-6)


def check_a_scaler_sees_mixed_gradients():
    """An infinite one that some ranks have mixed in skips the step of all, whose scales stay equal:
    so all mix gradients of one scale in the next step. They go on mixing."""
    size = hvd.size()
    for op in (hvd.Gossip("gossipgrad", global_average_every=2),
               hvd.Gossip("gossipgrad", topology="one_peer_exponential", global_average_every=50),
               hvd.Dissemination()):
        for clips in (False, True):
            weight = torch.nn.Parameter(torch.zeros(3))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=op,
                                                 named_parameters=[(f"w.{op}.{clips}", weight)])
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
            for step in range(6):
                bad = step == 1 and hvd.rank() == 0
                optimizer.zero_grad()
                scaler.scale((weight * (float("inf") if bad else 1.0)).sum()).backward()
                if clips:
                    optimizer.synchronize()
                    scaler.unscale_(optimizer)
                    with optimizer.skip_synchronize():
                        scaler.step(optimizer)
                else:
                    scaler.step(optimizer)
                scaler.update()
                steps = step if step >= 1 else step + 1
                close(weight.detach(), torch.full((3,), -float(steps)), 1e-6)
            assert scaler.get_scale() == 8.0, scaler.get_scale()
