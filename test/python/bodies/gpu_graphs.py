"""What is called while a stream is captured into a CUDA graph is refused; neither the capture nor
the job takes harm."""

import torch
from common import raises, same
from gpu import check_device, device  # noqa: F401  the first check

import horon.torch as hvd
from horon import topology
from horon.errors import HoronUnsupported

WORDS = ["captured into a CUDA graph", "outside of the capture"]


def in_a_capture(call):
    """Captures the doubling of a tensor, with the call in its midst, which is refused."""
    x, y = torch.ones(100, device=device()), torch.zeros(100, device=device())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
        with raises(HoronUnsupported, words=WORDS, of=call.__name__):
            call(x)
        y.mul_(2)
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        same(y.cpu(), torch.full((100,), 2 * value))


def works():
    result = hvd.allreduce(torch.ones(10, device=device()), op=hvd.Sum, name="works")
    same(result.cpu(), torch.full((10,), float(hvd.size())))


def check_calls():
    graph = topology.Ring(hvd.size())
    window = hvd.Window(torch.ones(100, device=device()), "w", graph) if hvd.size() > 1 else None
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, name="a"),
        "allreduce_": lambda x: hvd.allreduce_(x, name="b"),
        "allreduce_async": lambda x: hvd.allreduce_async(x, name="c"),
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, x + 1], name="d"),
        "allgather": lambda x: hvd.allgather(x, name="e"),
        "broadcast": lambda x: hvd.broadcast(x, 0, name="f"),
        "alltoall": lambda x: hvd.alltoall(x, name="g"),
        "reducescatter": lambda x: hvd.reducescatter(x, name="h"),
        "adasum": lambda x: hvd.allreduce(x, op=hvd.Adasum, name="i"),
    }
    if window is not None:
        calls["neighbor_allreduce"] = lambda x: hvd.neighbor_allreduce(x, name="j", topology=graph)
        calls["put"] = lambda x: window.put()
        calls["update"] = lambda x: window.update(out=x)
    for name, call in calls.items():
        call.__name__ = name
        in_a_capture(call)
        works()
    if window is not None:
        window.free()


def check_an_earlier_call_is_not_waited_for_in_a_capture():
    """It is afterwards, and is right then."""
    handles = []

    def wait(x):
        hvd.synchronize(handles[0])

    for step in range(3):
        mine = torch.full((1000,), float(hvd.rank() + step), device=device())
        handles[:] = [hvd.allreduce_async(mine, op=hvd.Sum, name="earlier")]
        in_a_capture(wait)
        total = float(sum(r + step for r in range(hvd.size())))
        same(hvd.synchronize(handles[0]).cpu(), torch.full((1000,), total))


def check_an_optimizer():
    """Its hooks refuse in backward, whose error ends the capture as any error of a program does."""
    if hvd.size() == 1:
        return  # it has nothing to reduce
    model = torch.nn.Linear(8, 8).to(device())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         model.named_parameters())
    x = torch.ones(4, 8, device=device())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    torch.cuda.synchronize()
    with raises(HoronUnsupported, words=WORDS, of="backward"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x).sum().backward()
    works()
