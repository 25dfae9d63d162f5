"""Tensors in memory that ranks share, and gradients as views of it."""

import torch
from common import raises

import horon.torch as hvd

STEPS = 4


def network():
    """Parameters below and above the size that lanes reduce in one go, one in another order."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(576, 64), torch.nn.Linear(64, 3))
    return model.to(memory_format=torch.channels_last)


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(4, 4, 8, 8, generator=generator)


def distributed(model, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                    model.named_parameters(), **options)


def train(model, optimizer, passes=1, set_to_none=True, between=None):
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        for i in range(passes):
            model(batch(step * passes + i)).square().mean().backward()
        if between is not None:
            between(model, optimizer)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()


def same(model, other):
    for (name, got), want in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(got, want), name


def both(passes=1, **how):
    """Trained with views and without: the same bits."""
    plain, viewed = network(), network()
    train(plain, distributed(plain, backward_passes_per_step=passes), passes, **how)
    optimizer = distributed(viewed, backward_passes_per_step=passes, gradient_as_bucket_view=True)
    train(viewed, optimizer, passes, **how)
    same(viewed, plain)
    return viewed, optimizer


def in_one_node():
    return hvd.local_size() == hvd.size() > 1


def check_reduced_in_place():
    before = hvd.counters().get("lane.in_place", 0)
    model, _ = both()
    large = any(p.grad.numel() * 4 > 8192 for p in model.parameters())
    assert large and (hvd.counters().get("lane.in_place", 0) > before) == in_one_node()


def check_views_stay():
    """The gradient is the same memory in each step, whoever drops or keeps it."""
    for set_to_none in (True, False):
        model, optimizer = both(set_to_none=set_to_none)
        if hvd.size() == 1:
            continue
        places = [p.grad.data_ptr() for p in model.parameters()]
        strides = [p.grad.stride() == p.stride() for p in model.parameters()]
        train(model, optimizer, set_to_none=set_to_none)
        assert places == [p.grad.data_ptr() for p in model.parameters()] and all(strides)
        assert all(place % 64 == 0 for place in places)


def check_kept_views_are_added_to():
    """zero_grad(set_to_none=False) keeps each view, and backward adds to it: nothing is copied back
    by the hooks, in front of which this one looks."""
    if hvd.size() == 1:
        return
    model = network()
    found = {}
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: found.update({name: p.grad}))
    optimizer = distributed(model, gradient_as_bucket_view=True)
    train(model, optimizer)
    views = {name: p.grad for name, p in model.named_parameters()}
    assert all(found[name].data_ptr() != view.data_ptr() for name, view in views.items())  # fresh
    for step in range(2):
        optimizer.zero_grad(set_to_none=False)
        for name, p in model.named_parameters():
            assert p.grad is views[name] and not p.grad.any(), name
        model(batch(step)).square().mean().backward()
        assert all(found[name] is view for name, view in views.items())
        optimizer.step()
        assert all(p.grad is views[name] for name, p in model.named_parameters())


def check_several_passes():
    both(passes=3)


def check_clipping():
    def clip(model, optimizer):
        optimizer.synchronize()
        reduced = [p.grad for p in model.parameters()]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert all(p.grad is gradient for p, gradient in zip(model.parameters(), reduced))

    both(between=clip)


def check_scaled_and_compiled():
    """GradScaler, with an overflow on one rank in the second step; and a compiled model."""
    def trained(views, compiled):
        model = network()
        run = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = distributed(model, gradient_as_bucket_view=views)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        places = None
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = run(batch(step)).square().mean()
            if step == 1 and hvd.rank() == hvd.size() - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            if views and hvd.size() > 1:
                now = [p.grad.data_ptr() for p in model.parameters()]
                assert places in (None, now)
                places = now
        assert scaler.get_scale() < 1024.0  # all ranks saw the overflow
        return model

    for compiled in (False, True):
        same(trained(True, compiled), trained(False, compiled))


def check_parameter_without_gradient():
    """It counts as zeros, in its view."""
    models = network(), network()
    for views, model in enumerate(models):
        unused = torch.nn.Linear(64, 64)
        torch.nn.init.ones_(unused.weight)
        parameters = [*model.named_parameters(), *unused.named_parameters("unused")]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p for _, p in parameters], lr=0.1), parameters,
            gradient_as_bucket_view=bool(views))
        train(model, optimizer)
        if hvd.size() > 1:
            assert not unused.weight.grad.any()
        assert (unused.weight == 1).all()
    same(*models)


def check_own_gradients():
    """A gradient that the user puts there moves into the view."""
    model, optimizer = both()
    places = [p.grad.data_ptr() for p in model.parameters()]
    for turn in range(3):
        for p in model.parameters():
            p.grad = torch.full_like(p, hvd.rank() + turn)
        optimizer.synchronize()
        for p in model.parameters():
            want = (hvd.size() - 1) / 2 + turn
            assert (p.grad == want).all(), (p.grad.flatten()[0], want)
        if hvd.size() > 1:
            assert places == [p.grad.data_ptr() for p in model.parameters()]


def check_sparse():
    """Sparse gradients have no view; a rank that does not use the embedding hears of that."""
    for dense in (False, True):
        results = []
        for views in (False, True):
            torch.manual_seed(1)
            table = torch.nn.Embedding(30, 4, sparse=True)
            head = torch.nn.Linear(4, 2)
            model = torch.nn.Sequential(table, head)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                sparse_as_dense=dense, gradient_as_bucket_view=views)
            for step in range(3):
                optimizer.zero_grad()
                used = hvd.rank() != step % 2
                rows = table(torch.tensor([hvd.rank(), step])) if used else torch.ones(2, 4)
                head(rows).square().mean().backward()
                optimizer.step()
            results.append(model)
        same(*results)


def check_gradients_with_a_graph():
    """The view holds values only, or each step would keep the one before."""
    model = network()
    optimizer = distributed(model, gradient_as_bucket_view=True)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward(create_graph=True)
        optimizer.step()
        if hvd.size() > 1:
            assert not any(p.grad.requires_grad for p in model.parameters())


def check_refused():
    for op in (hvd.Adasum, hvd.Gossip("dpsgd")):
        with raises(ValueError, hvd.HoronInvalidArgument, words=["gradient_as_bucket_view"]):
            distributed(network(), op=op, gradient_as_bucket_view=True)


def check_grouped_and_compressed():
    for options in ({"groups": 2}, {"compression": hvd.Compression.bf16}):
        plain, viewed = network(), network()
        train(plain, distributed(plain, **options))
        train(viewed, distributed(viewed, gradient_as_bucket_view=True, **options))
        same(viewed, plain)


def check_process_set():
    if hvd.size() < 3:
        return
    some = hvd.add_process_set([0, hvd.size() - 1])
    if some.included():
        plain, viewed = network(), network()
        train(plain, distributed(plain, process_set=some))
        train(viewed, distributed(viewed, process_set=some, gradient_as_bucket_view=True))
        same(viewed, plain)
    hvd.remove_process_set(some)


def check_tensors():
    for dtype in (torch.float32, torch.float16, torch.float64, torch.int32, torch.uint8):
        for shape in ((), (3,), (5, 1000), (300, 1000), 0):
            tensor = hvd.shared_zeros(*(shape if isinstance(shape, tuple) else (shape,)),
                                      dtype=dtype)
            assert tensor.dtype == dtype and not tensor.any()
            for op, want in ((hvd.Sum, hvd.size()), (hvd.Max, 1)):
                tensor.fill_(1)
                hvd.allreduce_(tensor, op=op, name=f"shared {dtype} {shape}")
                assert (tensor == want).all()
    assert hvd.shared_zeros([2, 3]).shape == (2, 3)
    assert hvd.shared_zeros(4).dtype == torch.get_default_dtype()


def check_part_of_a_tensor():
    """Also views, also at other places on other ranks."""
    tensor = hvd.shared_zeros(100000)
    for begin in (0, 17, 1000 * hvd.rank()):
        tensor.fill_(hvd.rank())
        hvd.allreduce_(tensor[begin:begin + 50000], op=hvd.Sum, name="part")
        assert (tensor[begin:begin + 50000] == sum(range(hvd.size()))).all()
        rest = torch.cat([tensor[:begin], tensor[begin + 50000:]])
        assert (rest == hvd.rank()).all()


def check_other_operations():
    tensor = hvd.shared_zeros(40000)
    tensor.fill_(hvd.rank() + 1)
    assert (hvd.allreduce(tensor, op=hvd.Sum) == sum(range(1, hvd.size() + 1))).all()
    assert (tensor == hvd.rank() + 1).all()
    hvd.broadcast_(tensor, root_rank=hvd.size() - 1)
    assert (tensor == hvd.size()).all()
    assert hvd.allgather(tensor).numel() == 40000 * hvd.size()


def check_sizes_that_differ():
    if hvd.size() == 1:
        return
    with raises(ValueError, hvd.HoronInvalidArgument,
                words=["rank 0 asks for 448 bytes", "rank 1 asks for 832"]):
        hvd.shared_zeros(100 if hvd.rank() != 1 else 200)
    assert (hvd.allreduce(torch.ones(3), op=hvd.Sum) == hvd.size()).all()
