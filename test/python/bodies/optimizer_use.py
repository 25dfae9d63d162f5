"""DistributedOptimizer as an object: wrapping, schedulers, state, wrong arguments, errors."""

import torch
from common import raises, same
from optimizers import batches, loss_of, make_model, same_models, sgd

import horon.torch as hvd


def check_wrapping():
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.25
    state = optimizer.state_dict()
    assert len(state["state"]) == 4
    optimizer.load_state_dict(state)
    loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    optimizer.step()


def check_scheduler_made_before_wrapping():
    model = make_model()
    inner = sgd(model)
    torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    data = batches(hvd.size())
    loss_of(model, data[0][hvd.rank()]).backward()
    optimizer.step()
    for parameter in model.parameters():
        gathered = hvd.allgather(parameter.detach().reshape(1, -1))
        same(gathered, gathered[:1].expand_as(gathered))


def everywhere_the_same(model):
    return all(torch.equal(rows, rows[:1].expand_as(rows)) for rows in (
        hvd.allgather(p.detach().reshape(1, -1)) for p in model.parameters()))


def check_scheduler_made_before_the_state_came():
    """It goes on with the optimizer's groups, on all ranks alike."""
    model = make_model()
    inner = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in batches(hvd.size()):
        optimizer.zero_grad()
        loss_of(model, step[hvd.rank()]).backward()
        optimizer.step()
        scheduler.optimizer._opt_called = True  # it looks at the bare one's steps, and warns
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.1 * 0.5**4
    assert everywhere_the_same(model)


class MasterSGD(torch.optim.Optimizer):
    """With a copy of each parameter in a wider type."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("master", parameter.detach().float().clone())
                state["master"] -= group["lr"] * parameter.grad.float()
                parameter.data.copy_(state["master"])


def check_state_comes_with_its_types():
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MasterSGD([parameter])
    if hvd.rank() == 0:
        parameter.grad = torch.full((2,), 0.01, dtype=torch.bfloat16)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    master = optimizer.state[parameter]["master"]
    assert master.dtype == torch.float32 and 0.998 < master[0] < 0.9995


class Lookahead(torch.optim.Optimizer):
    """Has another optimizer, to which it leaves state, groups and loading."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict):
        self.inner.load_state_dict(state_dict)
        self.param_groups = self.inner.param_groups


def check_state_of_an_optimizer_that_loads_in_its_own_way():
    model = make_model()
    optimizer = Lookahead(sgd(model))
    if hvd.rank() == 0:
        loss_of(model, batches(1)[0][0]).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert len(optimizer.inner.state) == 4
    buffers = [state["momentum_buffer"].reshape(-1) for state in optimizer.inner.state.values()]
    rows = hvd.allgather(torch.cat(buffers).reshape(1, -1))
    same(rows, rows[:1].expand_as(rows))


def check_hooks_of_steps_run_once():
    for op in (hvd.Average, hvd.Adasum, hvd.Gossip(), hvd.Gossip(style="atc"),
               hvd.Gossip(style="cta")):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=op)
        before, after = [], []
        optimizer.register_step_pre_hook(lambda *_, calls=before: calls.append(1))
        optimizer.register_step_post_hook(lambda *_, calls=after: calls.append(1))
        for load in (False, True):
            if load:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
            optimizer.step()
        assert (len(before), len(after)) == (2, 2), (op, before, after)
        hvd.barrier()


def check_closures():
    """Gradients are reduced before each step of the optimizer's own, also of one that takes
    several, and looks at the loss."""
    def lbfgs(model):
        return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4,
                                 line_search_fn="strong_wolfe")

    for kind in (sgd, lbfgs):
        model, alone = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(kind(model), model.named_parameters())
        reference = kind(alone)
        for step in batches(hvd.size()):
            def closure(mine=step[hvd.rank()]):
                optimizer.zero_grad()
                loss = loss_of(model, mine)
                loss.backward()
                return loss

            def of_all(batches=step):
                reference.zero_grad()
                loss = sum(loss_of(alone, batch) for batch in batches) / len(batches)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            assert isinstance(loss, torch.Tensor) and loss.numel() == 1
            reference.step(of_all)
        assert everywhere_the_same(model)
        same_models(model, alone, 1e-3)


def check_a_closure_that_only_looks():
    """Gradients of a backward pass before it are reduced once."""
    model, other = make_model(), make_model()
    steps = [hvd.DistributedOptimizer(sgd(m), [(f"{i}.{n}", p) for n, p in m.named_parameters()],
                                      op=hvd.Sum) for i, m in enumerate((model, other))]
    for batch in batches(hvd.size()):
        for m, optimizer in zip((model, other), steps):
            optimizer.zero_grad()
            loss = loss_of(m, batch[hvd.rank()])
            loss.backward()
            optimizer.step(*([lambda value=loss: value] if m is other else []))
    same_models(model, other, 0)


def check_clipping_in_a_closure():
    """synchronize() in it is enough."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    norms = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batches(hvd.size())[0][hvd.rank()])
        loss.backward()
        optimizer.synchronize()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3).item())
        return loss

    optimizer.step(closure)
    clipped = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norms[0] > 1e-3 and abs(clipped - 1e-3) < 1e-6, (norms, clipped)
    assert everywhere_the_same(model)


def check_a_group_added_after_loading():
    model, more = make_model(), torch.nn.Linear(5, 5)
    hvd.broadcast_parameters(more.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": list(more.parameters())})
    for step in batches(hvd.size()):
        optimizer.zero_grad()
        more(model(step[hvd.rank()])).pow(2).mean().backward()
        optimizer.step()
    assert everywhere_the_same(model) and everywhere_the_same(more)


def check_layers_that_are_frozen_and_thawed():
    """As in fine-tuning: also between two steps, and back."""
    model = make_model()
    layers = list(model.parameters())
    half = layers[:len(layers) // 2]
    for parameter in half:
        parameter.requires_grad_(False)
    frozen = [parameter.detach().clone() for parameter in half]
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Sum)

    def train():
        for step in batches(hvd.size())[:3]:
            optimizer.zero_grad()
            loss_of(model, step[hvd.rank()]).backward()
            optimizer.step()
        assert everywhere_the_same(model)

    train()
    for parameter, before in zip(half, frozen, strict=True):
        assert parameter.grad is None and torch.equal(parameter, before)
    for parameter in half:
        parameter.requires_grad_(True)
    train()
    assert not any(torch.equal(p, before) for p, before in zip(half, frozen, strict=True))
    for parameter in half:
        parameter.requires_grad_(False)
    train()


def check_wrapping_again():
    """Another optimizer for the same model, under the same names, when the first one is gone."""
    for op in (hvd.Sum, hvd.Adasum, hvd.Gossip(style="atc")):
        model = make_model()
        for rate in (0.1, 0.01, 0.001):
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate),
                                                 model.named_parameters(), op=op)
            for step in batches(hvd.size())[:2]:
                optimizer.zero_grad()
                loss_of(model, step[hvd.rank()]).backward()
                optimizer.step()
            del optimizer
            assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
        assert op not in (hvd.Sum, hvd.Adasum) or everywhere_the_same(model)


def check_gradients_that_share_memory():
    """Where parameters are added up, backward gives all of them the same tensor."""
    total = hvd.size() * (hvd.size() + 1) / 2
    for count in (4, 100_000):
        for grouped in (False, True):
            one, other = (torch.nn.Parameter(torch.ones(1, count)) for _ in range(2))
            mine = torch.full((count,), hvd.rank() + 1.0)
            name = f"{count}.{grouped}"
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([one, other], lr=0.0),
                [(f"{name}.one", one), (f"{name}.other", other)], op=hvd.Sum,
                groups=[[one, other]] if grouped else None)
            for keep in (False, False, False, True):
                ((one.squeeze(0) + other.squeeze(0)) * mine).sum().backward()
                optimizer.step()
                for parameter in (one, other):
                    same(parameter.grad, torch.full((1, count), total))
                optimizer.zero_grad(set_to_none=not keep)


def check_gradients_that_begin_to_share_memory():
    if hvd.size() == 1:
        return
    one, other = (torch.nn.Parameter(torch.ones(1, 1000)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one, other], lr=0.0),
                                         [("late.one", one), ("late.other", other)], op=hvd.Sum)
    mine = torch.ones(1000)
    for _ in range(3):
        ((one.squeeze(0) * mine).sum() + 2 * (other.squeeze(0) * mine).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    ((one.squeeze(0) + other.squeeze(0)) * mine).sum().backward()
    with raises(hvd.HoronInvalidArgument, words=["'late.one'", "'late.other'", "groups"]):
        optimizer.step()
    optimizer.zero_grad()
    ((one.squeeze(0) + other.squeeze(0)) * mine).sum().backward()
    optimizer.step()
    for parameter in (one, other):
        same(parameter.grad, torch.full((1, 1000), float(hvd.size())))


def check_a_new_gradient_that_shares_an_old_ones_memory():
    """The one goes the short way, the other has not been there before."""
    if hvd.size() == 1:
        return
    old, new = (torch.nn.Parameter(torch.ones(1, 1000)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([old], lr=0.0), [("old", old)], op=hvd.Sum)
    mine = torch.ones(1000)
    for _ in range(3):
        (old.squeeze(0) * mine).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.add_param_group({"params": [new]})
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        # Which of the two comes first is the graph's business.
        ((old.squeeze(0) + new.squeeze(0)) * mine).sum().backward()
        try:
            optimizer.step()
        except hvd.HoronInvalidArgument as error:
            assert "'old'" in str(error), error
        else:
            for parameter in (old, new):
                same(parameter.grad, torch.full((1, 1000), float(hvd.size())))
        optimizer.zero_grad()


def check_gradients_in_a_buffer_of_the_user():
    """They stay where they were put, before or after."""
    for before in (True, False):
        flat = torch.zeros(30)
        parameters = [torch.nn.Parameter(torch.ones(10)) for _ in range(3)]

        def place(flat=flat, parameters=parameters):
            for i, parameter in enumerate(parameters):
                parameter.grad = flat[10 * i:10 * (i + 1)]

        if before:
            place()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0), [
            (f"flat.{before}.{i}", p) for i, p in enumerate(parameters)])
        if not before:
            place()
        for _ in range(3):
            sum((i + 1) * p.sum() for i, p in enumerate(parameters)).backward()
            optimizer.step()
            same(flat, torch.arange(1.0, 4.0).repeat_interleave(10))
            flat.zero_()


def check_wrong_arguments():
    model = make_model()
    named = list(model.named_parameters())
    wrong = [
        {"named_parameters": [("x", p) for _, p in named]},
        {"named_parameters": named[1:]},
        {"named_parameters": [p for _, p in named]},
        {"backward_passes_per_step": 0},
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"groups": "two"},
        {"groups": -1},
    ]
    for arguments in wrong:
        with raises(ValueError):
            hvd.DistributedOptimizer(sgd(model), **arguments)


def check_unknown_op_is_an_error():
    """It is refused where the optimizer is made, not within backward."""
    model = make_model()
    for op, words in (("adasun", ["adasun", "there are", "adasum"]),
                      ("topk:ration=0.1", ["topk:ration=0.1", "ratio or count"]),
                      ("adasum:lokal=sum", ["lokal", "it has", "local"]),
                      ("topk:ratio=2", ["topk:ratio=2", "ratio"]), ("", ["name is missing"])):
        with raises(hvd.HoronInvalidArgument, ValueError, words=words, of=op):
            hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=op)
    # Nothing of it stays: the same parameters may have an optimizer.
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op="average")
    loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
    optimizer.step()


def check_error_at_step_names_the_parameter():
    """Ranks with different models: every rank gets the error, and can go on."""
    if hvd.size() == 1:
        return
    model = torch.nn.Linear(3 if hvd.rank() == 1 else 2, 1)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(torch.ones(1, model.in_features)).sum().backward()
    with raises(hvd.HoronMismatch, hvd.HorovodInternalError, words=["'allreduce.weight'"]):
        optimizer.step()
    hvd.barrier()
