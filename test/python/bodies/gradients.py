"""Gradients through the blocking collectives, as Horovod defines them."""

import torch
from common import same

import horon.torch as hvd


def leaf(*shape):
    return torch.full(shape, float(hvd.rank() + 1), requires_grad=True)


def weight(shape, rank=None):
    """A rank's own incoming gradient."""
    rank = hvd.rank() if rank is None else rank
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape) * (rank + 1)


def ranks_total():
    return float(sum(r + 1 for r in range(hvd.size())))


def check_allreduce():
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        tensor = leaf(4)
        hvd.allreduce(tensor, op=op, prescale_factor=2.0).backward(weight((4,)))
        torch.testing.assert_close(tensor.grad, weight((4,), 0) * 2 * ranks_total() / divisor)


def check_allreduce_compressed():
    tensor = leaf(4)
    hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16).backward(weight((4,)))
    same(tensor.grad, weight((4,), 0) * ranks_total())


def check_grouped_allreduce():
    tensors = [leaf(2), leaf(3)]
    outputs = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    torch.autograd.backward(outputs, [weight((2,)), weight((3,))])
    for tensor in tensors:
        same(tensor.grad, weight(tensor.shape, 0) * ranks_total())


def check_allgather():
    me, size = hvd.rank(), hvd.size()
    rows = [r + 1 for r in range(size)]
    tensor = leaf(rows[me], 2)
    hvd.allgather(tensor).backward(weight((sum(rows), 2)))
    averaged = weight((sum(rows), 2), 0) * ranks_total() / size
    torch.testing.assert_close(tensor.grad, averaged.split(rows)[me])
    tensors = [leaf(1), leaf(2)]
    outputs = hvd.grouped_allgather(tensors)
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    for tensor in tensors:
        same(tensor.grad, torch.ones_like(tensor))


def check_broadcast():
    root = hvd.size() - 1
    tensor = leaf(3)
    hvd.broadcast(tensor, root).backward(weight((3,)))
    averaged = weight((3,), 0) * ranks_total() / hvd.size()
    torch.testing.assert_close(tensor.grad, averaged * (hvd.rank() == root))


def check_alltoall():
    me, size = hvd.rank(), hvd.size()
    tensor = leaf(size * 2)
    output, received = hvd.alltoall(tensor, splits=[2] * size)
    same(received, torch.full((size,), 2, dtype=torch.int32))
    output.backward(torch.arange(2.0 * size))
    # Rank r gave gradient (2 me, 2 me + 1) to the rows that came from me.
    same(tensor.grad, torch.tensor([2.0 * me, 2.0 * me + 1] * size))


def check_reducescatter():
    size = hvd.size()
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = leaf(2 * size)
        output = hvd.reducescatter(tensor, op=op, postscale_factor=2.0)
        incoming = weight(output.shape)
        output.backward(incoming)
        want = torch.cat([weight((2,), r) for r in range(size)]) * 2 * factor
        same(tensor.grad, want)
        same(incoming, weight(output.shape))  # the caller's own gradient is left as it is
    tensors = [leaf(size), leaf(size)]
    outputs = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    for tensor in tensors:
        same(tensor.grad, torch.full((size,), float(size)))


def check_no_graph_without_gradients():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.allreduce(tensor.detach()).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
