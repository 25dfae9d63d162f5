"""What PyTorch has that horovod.torch never knew: set_to_none, GradScaler, torch.compile,
checkpointing, DTensor."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import close, raises
from torch.distributed.fsdp import fully_shard

import horon.torch as hvd
import horon.torch.distributed  # noqa: F401  makes the backend known

ROWS = 4


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))


def batches(count=4):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(ROWS * hvd.size(), 5, generator=generator) for _ in range(count)]


def mine(batch):
    return batch.chunk(hvd.size())[hvd.rank()]


def distributed(model, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                    model.named_parameters(), **options)


def train(forward, optimizer, rows=mine, set_to_none=True):
    for batch in batches():
        optimizer.zero_grad(set_to_none=set_to_none)
        forward(rows(batch)).square().mean().backward()
        optimizer.step()


def serial():
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda batch: batch)
    return model


def same_models(got, want):
    for a, b in zip(got.parameters(), want.parameters()):
        close(a.detach(), b.detach())


def check_set_to_none():
    for set_to_none in (True, False):
        model = network()
        train(model, distributed(model), set_to_none=set_to_none)
        same_models(model, serial())


def check_compiled_as_a_whole_and_by_block():
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, distributed(model))
    same_models(model, serial())
    model = network()
    for block in model:
        block.compile(backend="aot_eager")
    train(model, distributed(model))
    same_models(model, serial())


def check_checkpointing():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        model = network()

        def forward(rows, model=model, reentrant=reentrant):
            return checkpoint(model, rows.requires_grad_(), use_reentrant=reentrant)

        train(forward, distributed(model))
        same_models(model, serial())


def scaler_of_size(scale):
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)


def scaled_step(model, optimizer, scaler, batch, factor=1.0):
    optimizer.zero_grad()
    scaler.scale(model(mine(batch)).square().mean() * factor).backward()
    scaler.step(optimizer)
    scaler.update()


def check_grad_scaler_just_works():
    """Nothing but scaler.step(): the scaler looks at reduced gradients only."""
    model = network()
    optimizer, scaler = distributed(model), scaler_of_size(1024.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches():
            scaled_step(model, optimizer, scaler, batch)
    same_models(model, serial())


def check_grad_scaler_skips_on_all_ranks():
    """One rank alone has an infinite gradient: nobody takes the step, all halve the scale."""
    model = network()
    optimizer, scaler = distributed(model), scaler_of_size(1024.0)
    before = [p.detach().clone() for p in model.parameters()]
    bad = float("inf") if hvd.rank() == hvd.size() - 1 else 1.0
    scaled_step(model, optimizer, scaler, batches()[0], bad)
    for parameter, old in zip(model.parameters(), before):
        close(parameter.detach(), old, 0)
    assert scaler.get_scale() == 512.0
    for batch in batches():
        scaled_step(model, optimizer, scaler, batch)
    same_models(model, serial())


def check_grad_scaler_after_a_step_not_taken():
    """Gradients are cleared without the optimizer, which so hears of no step and no zero_grad."""
    for fail_twice in (False, True):
        model = network()
        optimizer, scaler = distributed(model), scaler_of_size(1024.0)
        factors = [float("inf")] * (1 + fail_twice) + [1.0] * len(batches())
        for batch, factor in zip(batches()[:1] * (1 + fail_twice) + batches(), factors):
            model.zero_grad()
            bad = factor if hvd.rank() == 0 else 1.0
            scaler.scale(model(mine(batch)).square().mean() * bad).backward()
            scaler.step(optimizer)
            scaler.update()
        same_models(model, serial())


def check_grad_scaler_with_clipping():
    """Horovod's recipe: synchronize, unscale, clip, step."""
    model, reference = network(), network()
    optimizer, scaler = distributed(model), scaler_of_size(256.0)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for batch in batches():
        optimizer.zero_grad()
        scaler.scale(model(mine(batch)).square().mean()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        plain.zero_grad()
        reference(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        plain.step()
    same_models(model, reference)


def check_autocast():
    model = network()
    optimizer = distributed(model, compression=hvd.Compression.bf16)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(mine(batch)).square().mean()
        loss.backward()
        optimizer.step()
    for parameter, other in zip(model.parameters(), serial().parameters()):
        close(parameter.detach(), other.detach(), 0.1)


def check_memory_layout_of_parameters():
    """channels_last convolutions: gradients are reduced as they lie."""
    torch.manual_seed(1)
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         model.named_parameters())
    images = torch.randn(2 * hvd.size(), 4, 8, 8).to(memory_format=torch.channels_last)
    model(mine(images)).square().mean().backward()
    optimizer.synchronize()
    got = model.weight.grad.clone()
    assert model.weight.grad.is_contiguous(memory_format=torch.channels_last)
    with optimizer.skip_synchronize():
        optimizer.step()
    alone = torch.nn.Conv2d(4, 6, 3)
    torch.manual_seed(1)
    alone.reset_parameters()
    alone(images).square().mean().backward()
    close(got, alone.weight.grad)


def check_compiled_functional_collectives():
    dist.init_process_group("horon", init_method="horon://")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    for _ in range(3):
        close(step(torch.ones(3)), torch.full((3,), 2.0 * hvd.size() + 1))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def in_place(tensor):
        twice = tensor * 2
        dist.all_reduce(twice)
        return twice + 1

    for _ in range(3):
        close(in_place(torch.ones(3)), torch.full((3,), 2.0 * hvd.size() + 1))
    dist.destroy_process_group()


def check_sharded_parameters_are_refused():
    dist.init_process_group("horon", init_method="horon://")
    model = network()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (hvd.size(),)))
    with raises(hvd.HoronUnsupported, ValueError, words=["DTensor", "horon://"]):
        distributed(model)
    dist.destroy_process_group()
