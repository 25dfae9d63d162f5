"""SyncBatchNorm against torch's own layer on the batches of all ranks put together."""

import torch
from common import close, raises

import horon.torch as hvd

CHANNELS = 5


def parts_of(shape, dtype=torch.float32, empty=False):
    """Every rank's batch: of another size on each, and none on the last one if `empty`."""
    generator = torch.Generator().manual_seed(3)
    sizes = [r + 2 for r in range(hvd.size())]
    if empty and hvd.size() > 1:
        sizes[-1] = 0
    return [(3 * torch.randn(n, CHANNELS, *shape, generator=generator) + r).to(dtype)
            for r, n in enumerate(sizes)]


def layers(kind, **options):
    """The layer under test and torch's, with the same parameters."""
    torch.manual_seed(11)
    ours, theirs = hvd.SyncBatchNorm(CHANNELS, **options), kind(CHANNELS, **options)
    if options.get("affine", True):
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.uniform_(0.5, 2.0)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def compare(ours, theirs, parts, tolerance=1e-4, form=lambda t: t):
    me = hvd.rank()
    mine = form(parts[me].clone()).requires_grad_()
    whole = torch.cat(parts).float().requires_grad_()
    weights = torch.arange(whole.numel()).reshape(whole.shape).sin()
    sizes = [len(part) for part in parts]
    got, want = ours(mine), theirs(whole)
    close(got.float(), want.split(sizes)[me], tolerance)
    (got.float() * weights.split(sizes)[me]).sum().backward()
    (want * weights).sum().backward()
    close(mine.grad.float(), whole.grad.split(sizes)[me], tolerance)
    for own, all_of_them in zip(ours.parameters(), theirs.parameters()):
        close(hvd.allreduce(own.grad, op=hvd.Sum), all_of_them.grad, 10 * tolerance)
    for own, other in zip(ours.buffers(), theirs.buffers()):
        close(own, other, tolerance)


def check_all_shapes():
    for kind, shape in ((torch.nn.BatchNorm1d, ()), (torch.nn.BatchNorm1d, (7,)),
                        (torch.nn.BatchNorm2d, (4, 3)), (torch.nn.BatchNorm3d, (2, 3, 2))):
        ours, theirs = layers(kind)
        for _ in range(3):
            compare(ours, theirs, parts_of(shape))
        ours.eval(), theirs.eval()
        compare(ours, theirs, parts_of(shape))


def check_options():
    for options in ({"momentum": None}, {"affine": False}, {"track_running_stats": False},
                    {"eps": 0.1, "momentum": 0.5}):
        ours, theirs = layers(torch.nn.BatchNorm2d, **options)
        compare(ours, theirs, parts_of((4, 3)))
        compare(ours, theirs, parts_of((4, 3)))
        ours.eval(), theirs.eval()
        if options.get("track_running_stats", True):
            compare(ours, theirs, parts_of((4, 3)))


def check_ranks_without_a_batch():
    ours, theirs = layers(torch.nn.BatchNorm2d)
    compare(ours, theirs, parts_of((4, 3), empty=True))


def check_layouts_and_narrow_types():
    ours, theirs = layers(torch.nn.BatchNorm2d)
    compare(ours, theirs, parts_of((4, 3)),
            form=lambda t: t.to(memory_format=torch.channels_last))
    for dtype in (torch.float16, torch.bfloat16):
        ours, theirs = layers(torch.nn.BatchNorm2d)
        compare(ours, theirs, parts_of((4, 3), dtype), tolerance=0.05)


def check_large_mean_keeps_its_variance():
    """The difference of the mean square and the squared mean would lose it in float32."""
    ours, theirs = layers(torch.nn.BatchNorm1d)
    parts = [part + 10_000 for part in parts_of(())]
    want = theirs.double()(torch.cat(parts).double()).split([len(part) for part in parts])
    close(ours(parts[hvd.rank()]).double(), want[hvd.rank()], 0.01)


def check_process_set():
    if hvd.size() < 3:
        return
    members = [0, 2]
    some = hvd.add_process_set(members)
    if some.included():
        ours, theirs = layers(torch.nn.BatchNorm1d)
        ours.process_set = some
        parts = parts_of(())
        whole = torch.cat([parts[r] for r in members])
        want = theirs(whole).split([len(parts[r]) for r in members])[some.rank()]
        close(ours(parts[hvd.rank()]), want, 1e-4)
    hvd.remove_process_set(some)


def check_trains_like_one_process():
    me, size = hvd.rank(), hvd.size()

    def model(norm):
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(3, 6), norm, torch.nn.ReLU(),
                                   torch.nn.Linear(6, 1))

    ours, theirs = model(hvd.SyncBatchNorm(6)), model(torch.nn.BatchNorm1d(6))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1),
                                         ours.named_parameters())
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(4):
        batch = torch.randn(4 * size, 3, generator=torch.Generator().manual_seed(step))
        for each, mine, opt in ((ours, batch[4 * me:4 * me + 4], optimizer),
                                (theirs, batch, reference)):
            opt.zero_grad()
            each(mine).square().mean().backward()
            opt.step()
    for own, other in zip(ours.state_dict().values(), theirs.state_dict().values()):
        close(own, other, 1e-4)


def check_wrong_input():
    layer = hvd.SyncBatchNorm(CHANNELS)
    with raises(ValueError, words=["2D"]):
        layer(torch.ones(CHANNELS))
    rows = 1 if hvd.rank() == 0 else 0
    with raises(ValueError, words=["more than 1 value"]):
        layer(torch.ones(rows, CHANNELS))
