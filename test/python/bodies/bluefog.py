"""horon.bluefog.torch: BlueFog's names and what they mean there."""

import torch
from common import close, raises, same
from optimizers import batches, loss_of, make_model, sgd

try:
    import networkx
except ImportError:
    print("bluefog: not checked, networkx is not installed")
    networkx = None

if networkx is not None:
    import horon.bluefog.torch as bf
    from horon.bluefog.common import topology_util


def check_topologies():
    if networkx is None:
        return
    bf.init()
    size, rank = bf.size(), bf.rank()
    assert topology_util.IsTopologyEquivalent(bf.load_topology(),
                                              topology_util.ExponentialGraph(size))
    out = {(rank + 2**k) % size for k in range(4) if 2**k < size}
    assert bf.out_neighbor_ranks() == sorted(out)
    assert bf.set_topology(topology_util.RingGraph(size))
    assert bf.in_neighbor_ranks() == sorted({(rank - 1) % size, (rank + 1) % size} - {rank})
    own, heard = topology_util.GetRecvWeights(topology_util.StarGraph(8), 0)
    assert abs(own - 1 / 8) < 1e-12 and sorted(heard) == list(range(1, 8))
    assert topology_util.MeshGrid2DGraph(6, (3, 2)).has_edge(0, 2)
    with raises(ValueError, words=["networkx.DiGraph"]):
        bf.set_topology(networkx.path_graph(3))


def check_neighbor_allreduce():
    if networkx is None:
        return
    bf.init()
    size, rank = bf.size(), bf.rank()
    mine = torch.full((4,), float(rank))
    heard = bf.in_neighbor_ranks()
    mean = (rank + sum(heard)) / (len(heard) + 1)
    close(bf.neighbor_allreduce(mine), torch.full((4,), mean))
    handle = bf.neighbor_allreduce_nonblocking(mine, name="later")
    close(bf.synchronize(handle), torch.full((4,), mean))
    same(bf.neighbor_allgather(mine[:1]), torch.tensor([float(r) for r in heard]))
    turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), rank)
    for _ in range(4):
        send, receive = next(turns)
        got = bf.neighbor_allreduce(mine, self_weight=1 / (len(receive) + 1), dst_weights=send,
                                    src_weights={r: 1 / (len(receive) + 1) for r in receive})
        close(got, torch.full((4,), (rank + sum(receive)) / (len(receive) + 1)))
    if size % 2 == 0:
        close(bf.pair_gossip(mine, rank ^ 1), torch.full((4,), (rank + (rank ^ 1)) / 2))
    close(bf.allreduce(mine), torch.full((4,), (size - 1) / 2))
    bf.set_machine_topology(topology_util.RingGraph(bf.machine_size()))
    bf.hierarchical_neighbor_allreduce(mine)


def check_optimizers_bring_ranks_together():
    if networkx is None:
        return
    bf.init()
    for make in (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedAdaptWithCombineOptimizer,
                 bf.DistributedGradientAllreduceOptimizer):
        model = make_model()
        bf.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = make(sgd(model), model=model)
        first = None
        for batch in batches(bf.size()).repeat(3, 1, 1, 1, 1, 1):
            optimizer.zero_grad()
            loss = loss_of(model, batch[bf.rank()])
            loss.backward()
            optimizer.step()
            first = loss.item() if first is None else first
        assert loss.item() < first
        if hasattr(optimizer, "finish_gossip"):
            optimizer.finish_gossip()
        weight = next(model.parameters()).detach()
        assert (weight - bf.allreduce(weight)).abs().max() < 0.05
