"""DistributedOptimizer(op=Adasum) with any optimizer: equal ranks train like the plain one."""

import inspect

import torch
from common import close, raises, same
from torch.optim.optimizer import register_optimizer_step_post_hook

import horon.torch as hvd

STEPS = 6


class Net(torch.nn.Module):
    """`sparse`: its only layer is an embedding with sparse gradients."""

    def __init__(self, biases=True, sparse=False):
        super().__init__()
        torch.manual_seed(7)
        self.embedding = torch.nn.Embedding(9, 6, sparse=sparse)
        self.layers = torch.nn.Sequential() if sparse else torch.nn.Sequential(
            torch.nn.Linear(6, 8, bias=biases), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=biases))

    def forward(self, tokens):
        return self.layers(self.embedding(tokens))


def tokens(step):
    return torch.randint(0, 9, (4, 5), generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps=range(STEPS), scheduler=None):
    for step in steps:
        optimizer.zero_grad()
        (model(tokens(step)) - 1).pow(2).mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return model


def adasum(optimizer, model):
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)


def like_the_plain_one(make, scheduled=False, **net):
    """All ranks have the same batches, so that Adasum is their mean."""
    plain, model = Net(**net), Net(**net)
    alone = make(plain.parameters())
    together = adasum(make(model.parameters()), model)
    for one, optimizer in ((plain, alone), (model, together)):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) if scheduled else None
        train(one, optimizer, scheduler=scheduler)
    moved = [(p - q).abs().max().item() for p, q in zip(plain.parameters(), Net(**net).parameters())]
    assert max(moved) > 1e-4, moved
    for p, q in zip(plain.parameters(), model.parameters()):
        close(p.detach(), q.detach(), 2e-5)
    same_options(alone, together)
    return together


def same_options(one, other):
    for a, b in zip(one.param_groups, other.param_groups):
        assert a.keys() == b.keys()
        for name in a.keys() - {"params"}:
            assert a[name] == b[name], (name, a[name], b[name])


SPECIAL = {
    "LBFGS": None,  # refused: it needs a closure
    "Muon": dict(lr=0.02, biases=False),  # for matrices only
    "SparseAdam": dict(lr=0.02, sparse=True),
    "Adadelta": dict(lr=1.0),
    "Adagrad": dict(lr=0.05),
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": dict(lr=0.01, momentum=0.9, centered=True),
    "Adam": dict(lr=0.02, amsgrad=True),
}


def kinds():
    for name, kind in vars(torch.optim).items():
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) \
                and kind is not torch.optim.Optimizer:
            yield name, kind


def check_every_optimizer_of_torch():
    names = [name for name, _ in kinds()]
    assert len(names) >= 15 and set(SPECIAL) <= set(names), names
    for name, kind in kinds():
        options = SPECIAL.get(name, dict(lr=0.02))
        if options is None:
            continue
        net = {key: options[key] for key in ("biases", "sparse") if key in options}
        options = {key: value for key, value in options.items() if key not in net}
        for scheduled in (False, True):
            like_the_plain_one(lambda p: kind(p, **options), scheduled, **net)


def check_variants_of_torchs_optimizers():
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        like_the_plain_one(lambda p: kind(p, lr=0.02, fused=True))
    for kind in (torch.optim.Adam, torch.optim.NAdam, torch.optim.Rprop):
        like_the_plain_one(lambda p: kind(p, lr=0.02, foreach=True))
    like_the_plain_one(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.02)), scheduled=True)


class Counting(torch.optim.SGD):
    """Counts its steps in its groups and in itself, and goes by them, like ScheduleFree."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.steps = 0
        for group in self.param_groups:
            group.update(k=0, weight_sum=torch.tensor(0.0), base=lr, seen=[])

    def step(self, closure=None):
        self.steps = self.steps + 1
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += 0.5
            group["seen"].append(group["k"])
            group["lr"] = group["base"] / (group["k"] * float(group["weight_sum"]) + self.steps)
        return super().step(closure)


def check_counts_in_groups_and_attributes():
    together = like_the_plain_one(lambda p: Counting(p, lr=0.3))
    for group in together.param_groups:
        assert group["k"] == STEPS and group["weight_sum"] == STEPS / 2, group
        assert group["seen"] == list(range(1, STEPS + 1)), group["seen"]
    assert together.steps == STEPS, together.steps
    assert together.state_dict()["param_groups"][0]["k"] == STEPS  # so a checkpoint has it


class Estimating(torch.optim.SGD):
    """Estimates a factor from all its parameters, like Prodigy."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.param_groups[0]["d"] = 1e-6

    def step(self, closure=None):
        squares = sum(p.grad.pow(2).sum().item() for p in self.param_groups[0]["params"]
                      if p.grad is not None)
        self.param_groups[0]["d"] = max(self.param_groups[0]["d"], squares)
        return super().step(closure)


class Remembering(torch.optim.SGD):
    """Appends to a list of its own."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.times = []

    def step(self, closure=None):
        self.times.append(1)
        return super().step(closure)


class Stateful(torch.optim.SGD):
    """Has state that is no parameter's."""

    def step(self, closure=None):
        self.state["steps"] = {"k": self.state.get("steps", {}).get("k", 0) + 1}
        return super().step(closure)


def hidden(params, lr):
    """An optimizer whose step() steps all parameters by another one that nothing shows."""
    inner = torch.optim.SGD(params := list(params), lr)
    kind = type("Hidden", (torch.optim.SGD,), {"step": lambda self, closure=None: inner.step()})
    return kind(params, lr)


REFUSED = [
    (Estimating, ["Estimating.step()", "'d' of a group", "layers.", "op=hvd.Average"]),
    (Remembering, ["Remembering.step()", "attribute 'times'", "in place"]),
    (Stateful, ["Stateful.step()", "state 'steps'"]),
    (hidden, ["Hidden.step()", "on another one changed"]),
]


def check_refused_at_the_first_step():
    if hvd.size() == 1:
        return
    for make, words in REFUSED:
        model = Net()
        optimizer = adasum(make(model.parameters(), lr=0.1), model)
        before = [p.detach().clone() for p in model.parameters()]
        with raises(hvd.HoronInvalidArgument, words=words, of=make.__name__):
            train(model, optimizer, range(1))
        for p, q in zip(before, model.parameters()):
            assert make is hidden or torch.equal(p, q), make
        with raises(hvd.HoronInvalidArgument, words=words[:1]):  # and at the next one
            optimizer.step()


class Lookahead(torch.optim.Optimizer):
    """Every second step of the optimizer that it wraps it goes half of the way back."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.steps = 0
        super().__init__(optimizer.param_groups, {})
        self.param_groups = optimizer.param_groups
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        self.steps += 1
        if self.steps % 2 == 0:
            for slow, p in zip(self.slow, self.param_groups[0]["params"]):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


def check_a_wrapper_of_another_optimizer():
    """Refused when it is wrapped; around the distributed one it works."""
    model = Net()
    with raises(hvd.HoronInvalidArgument, words=["Lookahead(hvd.DistributedOptimizer(SGD(...)"]):
        adasum(Lookahead(torch.optim.SGD(model.parameters(), lr=0.1)), model)
    plain = Net()
    train(plain, Lookahead(torch.optim.SGD(plain.parameters(), lr=0.1)))
    train(model, Lookahead(adasum(torch.optim.SGD(model.parameters(), lr=0.1), model)))
    for p, q in zip(plain.parameters(), model.parameters()):
        close(p.detach(), q.detach(), 2e-5)


def check_hooks_of_all_optimizers_run_once_a_step():
    calls = []
    handle = register_optimizer_step_post_hook(lambda *args: calls.append(1))
    try:
        model = Net()
        train(model, adasum(torch.optim.SGD(model.parameters(), lr=0.1), model))
    finally:
        handle.remove()
    assert len(calls) == STEPS, calls


def check_checkpoints_take_counts_along():
    """Half of the steps, state_dict, the other half by another optimizer: as in one go."""
    whole = Net()
    train(whole, adasum(Counting(whole.parameters(), lr=0.3), whole))
    model = Net()
    first = adasum(Counting(model.parameters(), lr=0.3), model)
    train(model, first, range(3))
    second_model = Net()
    second_model.load_state_dict(model.state_dict())
    second = adasum(Counting(second_model.parameters(), lr=0.3), second_model)
    second.load_state_dict(first.state_dict())
    second.steps = first.steps  # an attribute, of which no checkpoint knows
    train(second_model, second, range(3, STEPS))
    for p, q in zip(whole.parameters(), second_model.parameters()):
        same(p.detach(), q.detach())
