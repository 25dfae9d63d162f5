"""join(): ranks with fewer batches than others; every collective goes on without them."""

import torch
from common import close, raises, same

import horon.torch as hvd


def after(joined, work):
    """Ranks in `joined` join at once, the others after work(those that are there)."""
    there = [r for r in range(hvd.size()) if r not in joined]
    if hvd.rank() in there:
        work(there)
    last = hvd.join()
    assert last in there, (last, there)
    lasts = hvd.allgather(torch.tensor([last]))
    assert (lasts == last).all(), lasts


def groups_of_ranks():
    size = hvd.size()
    return [set(), {size - 1}, {0}, set(range(1, size)), set(range(size - 1))]


def rounds(work):
    for joined in groups_of_ranks():
        if len(joined) < hvd.size():
            after(joined, work)


def values(r, count=7):
    return torch.arange(count).remainder(5) - 2.0 - r


def check_reductions():
    def work(there):
        stacked = torch.stack([values(r) for r in there])
        me = values(hvd.rank())
        for turn in range(3):  # by name and, from the second round on, remembered before
            for op, want in ((hvd.Sum, stacked.sum(0)), (hvd.Average, stacked.sum(0) / hvd.size()),
                             (hvd.Min, stacked.amin(0)), (hvd.Max, stacked.amax(0)),
                             (hvd.Product, stacked.prod(0))):
                close(hvd.allreduce(me, op=op, name=f"j.{op.spec}"), want)
                mine = me.clone()
                hvd.allreduce_(mine, op=op, name=f"j.in.{op.spec}")
                close(mine, want)
            close(hvd.allreduce(me, op=hvd.Product, prescale_factor=-2.0),
                  (-2 * stacked).prod(0))
        for got, want in zip(hvd.grouped_allreduce([me, me * 2], op=hvd.Sum, name="j.group"),
                             (stacked.sum(0), 2 * stacked.sum(0))):
            close(got, want)
        whole = hvd.allreduce(torch.full((3,), hvd.rank() + 1), op=hvd.Min)
        same(whole, torch.full((3,), min(there) + 1))

    rounds(work)


def check_rows():
    def work(there):
        size, rank = hvd.size(), hvd.rank()
        same(hvd.allgather(values(rank, rank + 1)), torch.cat([values(r, r + 1) for r in there]))
        rows, received = hvd.alltoall(torch.arange(2.0 * size) + 100 * rank, splits=[2] * size)
        same(rows, torch.cat([torch.arange(2.0) + 100 * r + 2 * rank for r in there]))
        same(received,
             torch.tensor([2 * (r in there) for r in range(size)], dtype=torch.int32))
        part = hvd.reducescatter(torch.ones(size, 2) * (rank + 1), op=hvd.Sum)
        same(part, torch.full((1, 2), sum(r + 1.0 for r in there)))
        mine = [values(rank, rank + 1), torch.full((2,), float(rank))]
        for got, want in zip(hvd.grouped_allgather(mine, name="j.rows"),
                             (torch.cat([values(r, r + 1) for r in there]),
                              torch.cat([torch.full((2,), float(r)) for r in there]))):
            same(got, want)
        mine = [torch.ones(size, 2) * (rank + 1), torch.ones(2 * size) * rank]
        for got, want in zip(hvd.grouped_reducescatter(mine, op=hvd.Sum, name="j.parts"),
                             (torch.full((1, 2), sum(r + 1.0 for r in there)),
                              torch.full((2,), float(sum(there))))):
            same(got, want)
        assert hvd.allgather_object(rank) == [r if r in there else None for r in range(size)]
        sparse = torch.eye(3)[rank % 3].to_sparse()
        total = hvd.sparse_allreduce_async(sparse, "j.sparse", hvd.Sum)()
        close(total.to_dense(), sum(torch.eye(3)[r % 3] for r in there))
        tensor = values(rank, 3).requires_grad_()
        hvd.allgather(tensor).sum().backward()  # Horovod's rule: averaged over all ranks
        close(tensor.grad, torch.full((3,), len(there) / size))

    rounds(work)


def check_roots():
    def work(there):
        for root in range(hvd.size()):
            mine = torch.full((3,), float(hvd.rank()))
            if root in there:
                same(hvd.broadcast(mine, root), torch.full((3,), float(root)))
            else:
                with raises(hvd.HoronMismatch, words=["root rank", root, "has joined"]):
                    hvd.broadcast(mine, root)
        hvd.barrier()

    rounds(work)


def check_adasum_counts_no_leaf():
    def work(there):
        own = torch.zeros(hvd.size() * 100)
        own[hvd.rank()] = 2.0
        got = hvd.allreduce(own, op=hvd.Adasum, name="j.adasum")
        want = torch.zeros_like(own)
        want[there] = 2.0
        close(got, want)
        close(hvd.allreduce(torch.ones(9), op=hvd.Adasum), torch.ones(9))

    rounds(work)


def check_gossip_and_topk_stay_in_step():
    def work(there):
        value = torch.full((4,), float(hvd.rank()))
        got = hvd.allreduce(value, op=hvd.Dissemination(), name="j.gossip")
        close(hvd.allreduce(got, op=hvd.Sum), torch.full((4,), float(sum(there))))
        got = hvd.allreduce(value + 1, op=hvd.TopK(1.0), name="j.topk")
        close(got, torch.full((4,), sum(r + 1.0 for r in there) / hvd.size()))

    rounds(work)


def check_uneven_epochs():
    """The usual program: a DistributedOptimizer, and more batches on some ranks."""
    me, size = hvd.rank(), hvd.size()
    torch.manual_seed(2)
    model = torch.nn.Linear(3, 1)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5),
                                         model.named_parameters())
    for epoch in range(3):
        for _ in range(2 + (me + epoch) % size):
            optimizer.zero_grad()
            model(torch.ones(1, 3) * (me + 1)).sum().backward()
            optimizer.step()
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), (size - 1 - epoch) % size)
    # The rank with the most batches took every step: bias goes down by 0.5 * (ranks there) / n.
    steps = 0.0
    for epoch in range(3):
        for batch in range(size + 1):
            steps += sum(batch < 2 + (r + epoch) % size for r in range(size)) / size
    close(model.bias.detach(), start[1] - 0.5 * steps)


def check_process_sets():
    if hvd.size() < 4:
        return
    some = hvd.add_process_set([0, 1, 2])

    def work(there):
        # Needs all ranks: whoever joined at once has by then, also where the set does not need it.
        same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.full((1,), float(len(there))))
        if hvd.rank() < 3:
            members = [r for r in there if r < 3]
            got = hvd.allreduce(torch.full((2,), float(hvd.rank())), op=hvd.Sum, process_set=some)
            same(got, torch.full((2,), float(sum(members))))
            # Divided by the set's size, as Horovod does, whoever of it is there.
            mean = hvd.allreduce(torch.full((2,), float(hvd.rank())), op=hvd.Average,
                                 process_set=some)
            close(mean, torch.full((2,), sum(members) / 3))
            hvd.barrier(some)

    after({1}, work)
    after({hvd.size() - 1}, work)
    if hvd.rank() != 1:
        with raises(hvd.HoronError, words=["joined"]):
            hvd.add_process_set([0, 2])
    hvd.join()
    assert hvd.remove_process_set(some)


def check_what_is_pending_at_join_goes_on():
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="j.pending")
    hvd.join()
    if handle is not None:
        same(hvd.synchronize(handle), torch.ones(3))
