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
    same, other, heavier = (topology_util.RingGraph(8) for _ in range(3))
    assert topology_util.IsTopologyEquivalent(same, other)
    heavier[0][1]["weight"] *= 2
    assert not topology_util.IsTopologyEquivalent(same, heavier)
    other.remove_edge(0, 1)
    assert not topology_util.IsTopologyEquivalent(same, other)
    with raises(ValueError, words=["networkx.DiGraph"]):
        bf.set_topology(networkx.path_graph(3))
    assert bf.in_neighbor_machine_ranks() == bf.out_neighbor_machine_ranks() == []
    assert bf.win_create(torch.zeros(2), "kept")
    assert bf.set_topology(bf.RingGraph(size)) and not bf.set_topology(bf.RingGraph(size), True)
    with raises(ValueError, words=["networkx.DiGraph"]):
        bf.set_topology("ring")
    assert bf.win_free("kept")
    assert size < 4 or bf.set_topology(bf.StarGraph(size))
    assert bf.win_create(torch.zeros(2), "kept")
    assert size < 4 or not bf.set_topology(bf.RingGraph(size))
    assert bf.win_free("kept")


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
    machine, machines = bf.machine_rank(), bf.machine_size()
    means = [sum(range(m * bf.local_size(), (m + 1) * bf.local_size())) / bf.local_size()
             for m in range(machines)]
    beside = {(machine + step) % machines for step in (-1, 0, 1)}
    close(bf.hierarchical_neighbor_allreduce(mine),
          torch.full((4,), sum(means[m] for m in beside) / len(beside)))
    others = beside - {machine}  # who sends is given; to whom, the topology says
    got = bf.hierarchical_neighbor_allreduce(mine, self_weight=0.3,
                                             src_machine_weights=dict.fromkeys(others, 0.2))
    close(got, torch.full((4,), 0.3 * means[machine] + 0.2 * sum(means[m] for m in others)))


def lists_agree(rounds, size):
    """rounds: one iterator a rank. Whom each sends to hears it, in every round."""
    for _ in range(2 * size):
        now = [next(one) for one in rounds]
        for rank, (sends, hears) in enumerate(now):
            assert all(rank in now[to][1] for to in sends), now
            assert all(rank in now[sender][0] for sender in hears), now
        yield now


def check_inner_and_outer_turns():
    """Rings: by hand. Exponential: every rank meets each counterpart at a power of two."""
    if networkx is None:
        return
    generators = (topology_util.GetInnerOuterRingDynamicSendRecvRanks,
                  topology_util.GetInnerOuterExpo2DynamicSendRecvRanks)
    for size, local in ((1, 1), (3, 3), (8, 4), (12, 3), (20, 4), (6, 6), (5, 1)):
        for make in generators:
            met = [set() for _ in range(size)]
            for now in lists_agree([make(size, local, rank) for rank in range(size)], size):
                assert all(len(sends) <= 1 and len(hears) <= 1 for sends, hears in now)
                for rank, (sends, _) in enumerate(now):
                    met[rank].update(sends)
            machines = size // local
            far = [2**k for k in range(8) if 2**k < machines]
            if make is generators[0]:
                far = far[:1]
            for rank in range(size):
                assert met[rank] >= {(rank + d * local) % size for d in far}, (size, local, rank)
    ring = topology_util.GetInnerOuterRingDynamicSendRecvRanks(12, 3, 4)
    assert [next(ring) for _ in range(4)] == [([5], [5]), ([7], [1]), ([3], [3]), ([5], [5])]
    with raises(ValueError, words=["do not divide"]):
        topology_util.GetInnerOuterRingDynamicSendRecvRanks(8, 3, 0)
    with raises(ValueError, words=["2 ranks these never meet"]):
        topology_util.GetInnerOuterExpo2DynamicSendRecvRanks(8, 2, 0)


def check_turns_of_machines():
    if networkx is None:
        return
    turns = topology_util.GetExp2DynamicSendRecvMachineRanks(10, 2, 5, 1)
    assert [next(turns) for _ in range(4)] == [([3], [1]), ([4], [0]), ([1], [3]), ([3], [1])]
    assert next(topology_util.GetExp2DynamicSendRecvMachineRanks(2, 2, 1, 1)) == ([], [])
    with raises(ValueError, words=["machines with 2 ranks"]):
        topology_util.GetExp2DynamicSendRecvMachineRanks(10, 2, 5, 0)


def check_inner_and_outer_graphs():
    if networkx is None:
        return
    ring, expo = (make(16, 2) for make in (topology_util.InnerOuterRingGraph,
                                           topology_util.InnerOuterExpo2Graph))
    assert sorted(ring.successors(5)) == [4, 5, 7] and sorted(expo.successors(5)) == [
        4, 5, 7, 9, 13]
    for graph in (ring, expo, topology_util.InnerOuterRingGraph(4, 4),
                  topology_util.InnerOuterExpo2Graph(1, 1)):
        assert topology_util.IsRegularGraph(graph)
        for rank in graph.nodes:
            own, heard = topology_util.GetRecvWeights(graph, rank)
            assert abs(own + sum(heard.values()) - 1) < 1e-12
    with raises(ValueError, words=["do not divide"]):
        topology_util.InnerOuterRingGraph(8, 3)
    assert [x for x in range(1, 30) if topology_util.isPowerOf(x, 3)] == [1, 3, 9, 27]
    assert topology_util.isPowerOf(1000, 10) and not topology_util.isPowerOf(1001, 10)
    for x, base in ((0, 2), (4, 1), (4, 2.0)):
        with raises(ValueError, words=["isPowerOf"]):
            topology_util.isPowerOf(x, base)


def check_lists_from_the_other_side():
    if networkx is None:
        return
    bf.init()
    size, rank = bf.size(), bf.rank()
    onwards = [(rank + 1) % size] if size > 1 else []
    back = [(rank - 1) % size] if size > 1 else []
    assert bf.InferSourceFromDestinationRanks(onwards) == back
    for infer, given, want in ((bf.InferSourceFromDestinationRanks, onwards, back),
                               (bf.InferDestinationFromSourceRanks, back, onwards)):
        found, matrix = infer(given, construct_adjacency_matrix=True)
        assert found == want and abs(matrix.sum(axis=0) - 1).max() < 1e-12
        assert all(matrix[i, (i + 1) % size] > 0 for i in range(size))
    with raises(ValueError, words=["without one's own"]):
        bf.InferSourceFromDestinationRanks([rank])


def check_pairs_do_not_wait_for_others():
    """First only two ranks, then all: each with both neighbors on a ring, at once and as each
    likes, with the first call begun before the other rank knows of it."""
    if networkx is None:
        return
    bf.init()
    size, rank = bf.size(), bf.rank()
    mine = torch.full((5,), float(rank))
    if size == 1:
        with raises(ValueError, words=["cannot meet"]):
            bf.pair_gossip(mine, 0)
        return
    if rank < 2:
        other = 1 - rank
        close(bf.pair_gossip(mine, other, 0.25, 0.75),
              torch.full((5,), 0.25 * rank + 0.75 * other))
    bf.barrier()
    sides = sorted({(rank - 1) % size, (rank + 1) % size}, reverse=rank % 2 == 0)
    for _ in range(2):
        handles = [bf.pair_gossip_nonblocking(mine, other) for other in sides]
        for handle, other in zip(handles, sides):
            close(bf.synchronize(handle), torch.full((5,), (rank + other) / 2))
            assert bf.poll(handle)
    same(mine, torch.full((5,), float(rank)))
    if rank == 0:
        handle = bf.pair_gossip_nonblocking(mine, size - 1, name="late")
        assert not bf.poll(handle)  # the other one begins after the barrier
    bf.barrier()
    if rank == size - 1:
        handle = bf.pair_gossip_nonblocking(mine, 0, name="late")
    if rank in (0, size - 1):
        close(bf.wait(handle), torch.full((5,), (size - 1) / 2))


def check_what_scripts_ask():
    if networkx is None:
        return
    bf.init()
    assert bf.get_skip_negotiate_stage() is False
    bf.set_skip_negotiate_stage(True)
    assert bf.get_skip_negotiate_stage() is True
    bf.set_skip_negotiate_stage(False)
    assert bf.unified_mpi_window_model_supported() is True
    assert isinstance(bf.mpi_threads_supported(), bool)
    mean = (bf.size() - 1) / 2
    for form in (lambda m: m.state_dict(), lambda m: m.named_parameters(), lambda m:
                 m.parameters(), lambda m: list(m.named_parameters())):
        model = torch.nn.Linear(2, 3)
        for parameter in model.parameters():
            parameter.data.fill_(bf.rank())
        bf.allreduce_parameters(form(model))
        for parameter in model.parameters():
            close(parameter.data, torch.full_like(parameter.data, mean))


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
