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


def check_other_reductions():
    """As in Horovod, gradients are reduced as the tensors were, whatever calculus says."""
    size = hvd.size()
    factors = torch.arange(1.0, size + 1)
    for op, factor in ((hvd.Min, 1.0), (hvd.Max, float(size)), (hvd.Product, factors.prod())):
        tensor = leaf(4)
        hvd.allreduce(tensor, op=op).backward(torch.full((4,), hvd.rank() + 1.0))
        torch.testing.assert_close(tensor.grad, torch.full((4,), float(factor)))


# --- second derivatives ---------------------------------------------------------------------------


def of(rank, *shape):
    """Numbers of a rank that all ranks know."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def loss(output, rank):
    return (output.pow(3) * of(100 + rank, *output.shape)).sum()


def slopes_and_penalty(value, tensors, share=1):
    """The value's gradients by the tensors, and those of a share of these gradients' squares."""
    slopes = torch.autograd.grad(value, tensors, create_graph=True)
    penalty = sum(slope.square().sum() for slope in slopes) / share
    return [*slopes, *torch.autograd.grad(penalty, tensors)]


def expect(got, want):
    assert len(got) == len(want)
    for ours, serial in zip(got, want):
        torch.testing.assert_close(ours.detach(), serial.detach())


def in_sets(check):
    """check(process set, place in it, its size) of all ranks, and of two of four."""
    check(hvd.global_process_set, hvd.rank(), hvd.size())
    if hvd.size() == 4:
        pair = hvd.add_process_set([1, 3])
        if pair.included():
            check(pair, pair.rank(), 2)
        assert hvd.remove_process_set(pair)


def check_twice_through_allgather():
    def check(process_set, me, n):
        rows = [r + 1 for r in range(n)]
        whole = torch.cat([of(r, rows[r], 2) for r in range(n)]).requires_grad_()
        want = [part.split(rows)[me] for part in slopes_and_penalty(
            sum(loss(whole, r) for r in range(n)) / n, [whole], n)]
        mine = of(me, rows[me], 2).requires_grad_()
        output = hvd.allgather(mine, process_set=process_set)
        expect(slopes_and_penalty(loss(output, me), [mine]), want)
        mine = [of(me, rows[me], 2).requires_grad_() for _ in range(2)]
        outputs = hvd.grouped_allgather(mine, process_set=process_set)
        got = slopes_and_penalty(sum(loss(output, me) for output in outputs), mine)
        expect(got, [want[0], want[0], want[1], want[1]])

    in_sets(check)


def check_twice_through_broadcast():
    def check(process_set, me, n):
        root = n - 1
        mine = of(me, 3).requires_grad_()
        output = hvd.broadcast(mine, process_set.ranks[root], process_set=process_set)
        got = slopes_and_penalty(loss(output, me), [mine])
        source = of(root, 3).requires_grad_()
        want = slopes_and_penalty(sum(loss(source, r) for r in range(n)) / n, [source], n)
        expect(got, [(me == root) * part for part in want])

    in_sets(check)


def check_twice_through_alltoall():
    """Uneven: rank r sends r + to rows, or none to itself."""
    def check(process_set, me, n):
        splits = [[(r + to) * (r != to) for to in range(n)] for r in range(n)]
        sent = [of(r, sum(splits[r]), 2).requires_grad_() for r in range(n)]
        parts = [tensor.split(row) for tensor, row in zip(sent, splits)]
        total = sum(loss(torch.cat([parts[r][to] for r in range(n)]), to) for to in range(n))
        want = slopes_and_penalty(total, sent)
        mine = of(me, sum(splits[me]), 2).requires_grad_()
        output, received = hvd.alltoall(mine, splits[me], process_set=process_set)
        assert received.tolist() == [row[me] for row in splits]
        expect(slopes_and_penalty(loss(output, me), [mine]), [want[me], want[n + me]])

    in_sets(check)


def check_twice_through_reducescatter():
    """As if all ranks had the mean of their tensors."""
    def check(process_set, me, n):
        rows = [2] + [1] * (n - 1)
        tensors = [of(r, n + 1, 2) for r in range(n)]
        for op, factor in ((hvd.Sum, n), (hvd.Average, 1)):
            mean = (sum(tensors) / n).requires_grad_()
            outputs = (factor * mean).split(rows)
            want = slopes_and_penalty(sum(loss(outputs[r], r) for r in range(n)), [mean])
            mine = tensors[me].clone().requires_grad_()
            output = hvd.reducescatter(mine, op=op, process_set=process_set)
            expect(slopes_and_penalty(loss(output, me), [mine]), want)
            (output,) = hvd.grouped_reducescatter([mine], op=op, process_set=process_set)
            expect(slopes_and_penalty(loss(output, me), [mine]), want)

    in_sets(check)


def check_no_graph_without_gradients():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.allreduce(tensor.detach()).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
