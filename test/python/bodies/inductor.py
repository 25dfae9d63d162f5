"""torch.compile with its own backend: it writes C++ and compiles that, so it takes a while."""

import torch
from modern import batches, distributed, mine, network, same_models, serial

import horon.torch as hvd


def check_a_compiled_model_trains_as_a_plain_one():
    model = network()
    compiled = torch.compile(model)
    optimizer = distributed(model)
    for batch in batches():
        optimizer.zero_grad()
        compiled(mine(batch)).square().mean().backward()
        optimizer.step()
    same_models(model, serial())


def check_gradients_of_a_compiled_model_are_views():
    """Fresh gradients are copied into them; those that are kept are added to, as a hook sees that
    runs before ours."""
    for keeps in (False, True):
        model, found = network(), {}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: found.update({p: p.grad.data_ptr()}))
        compiled = torch.compile(model)
        optimizer = distributed(model, gradient_as_bucket_view=True)
        views = None
        for batch in batches():
            optimizer.zero_grad(set_to_none=not keeps)
            compiled(mine(batch)).square().mean().backward()
            fresh = views is None or not keeps
            optimizer.step()
            places = {p: p.grad.data_ptr() for p in model.parameters()}
            assert all((found[p] != place) == fresh for p, place in places.items())
            assert views in (None, places)
            views = places
        same_models(model, serial())


def check_a_collective_between_compiled_parts():
    """Ours are no part of a graph: compiled code breaks there and goes on behind it."""

    @torch.compile
    def step(tensor):
        return hvd.allreduce(tensor * 2, op=hvd.Sum, name="between").sin() + 1

    for _ in range(3):
        got, want = step(torch.ones(3)), (torch.full((3,), 2.0 * hvd.size())).sin() + 1
        torch.testing.assert_close(got, want)
