"""A16 and A17 (docs/algorithms.md) of the optimizer on steps, models and overflows drawn at random.

All ranks draw the same. A failure is not shrunk, for which they would have to agree on who failed.
"""

import torch
from common import close, same
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import horon.torch as hvd

DRAWS = settings(database=None, deadline=None, derandomize=True, max_examples=25,
                 phases=[Phase.generate], suppress_health_check=list(HealthCheck))
RATES = st.floats(1e-3, 1.0)
SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3), min_size=1, max_size=5)


def parameters_of(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def step(optimizer, parameters, gradients):
    """One in which each parameter's gradient is what is given."""
    optimizer.zero_grad()
    loss = sum((p * g).sum() for p, g in zip(parameters, gradients))
    loss.backward()
    optimizer.step()


def adasum(parameters, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, **options), op=hvd.Adasum)


def check_a16_equal_gradients_are_one_workers():
    @DRAWS
    @given(RATES, st.floats(0, 0.99), SHAPES, st.integers(1, 4), st.integers(0, 999))
    def equal(lr, momentum, shapes, steps, seed):
        alone, together = parameters_of(shapes), parameters_of(shapes)
        one = torch.optim.SGD(alone, lr=lr, momentum=momentum)
        all_of_them = adasum(together, lr=lr, momentum=momentum)
        for number in range(steps):
            gradients = [p.detach() for p in parameters_of(shapes, seed + number + 1)]
            step(one, alone, gradients)
            step(all_of_them, together, gradients)
        for a, b in zip(alone, together):
            close(b.detach(), a.detach())

    equal()


def check_a16_orthogonal_steps_are_added():
    """Each element has a gradient on one rank only, on all or on some of them."""
    @DRAWS
    @given(RATES, SHAPES, st.integers(0, 999))
    def orthogonal(lr, shapes, seed):
        parameters, start = parameters_of(shapes), parameters_of(shapes)
        gradients = [p.detach() for p in parameters_of(shapes, seed + 1)]
        owners = [torch.randint(0, hvd.size(), g.shape, generator=torch.Generator().manual_seed(i))
                  for i, g in enumerate(gradients)]
        mine = [g * (owner == hvd.rank()) for g, owner in zip(gradients, owners)]
        step(adasum(parameters, lr=lr), parameters, mine)
        for p, before, gradient in zip(parameters, start, gradients):
            close(p.detach(), before.detach() - lr * gradient)

    orthogonal()


def check_a17_an_overflow_anywhere_changes_no_bit_anywhere():
    @DRAWS
    @given(RATES, SHAPES, st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99),
                                             st.sampled_from([float("inf"), float("nan")])),
                                   min_size=1, max_size=4),
           st.booleans())
    def overflow(lr, shapes, plan, unscales):
        parameters = parameters_of(shapes)
        expected = parameters_of(shapes)
        optimizer = adasum(parameters, lr=lr, momentum=0.9)
        plain = torch.optim.SGD(expected, lr=lr, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for number, (overflows, who, where, bad) in enumerate(plan):
            before = [p.detach().clone() for p in parameters]
            state = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
            gradients = [p.detach() for p in parameters_of(shapes, number + 1)]
            if overflows and hvd.rank() == who % hvd.size():
                gradients[where % len(gradients)].view(-1)[0] = bad
            optimizer.zero_grad()
            scaler.scale(sum((p * g).sum() for p, g in zip(parameters, gradients))).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if not overflows:
                step(plain, expected, gradients)
                for p, want in zip(parameters, expected):
                    close(p.detach(), want.detach())
                continue
            for p, old in zip(parameters, before):
                same(p.detach(), old)
            for s, old in zip(optimizer.state.values(), state):
                same(s["momentum_buffer"], old)

    overflow()
