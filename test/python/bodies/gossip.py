"""Gossip collectives: every result is the product of the predicted matrices."""

from collections import Counter

import torch
from common import close, raises, same

import horon
import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch import hooks
from horon.torch.gossip import PushSum
from horon.torch.gossip import _check_exact as refuse_inexact


def start(shape=(5, 3), dtype=torch.float64):
    """All ranks' values, by rank."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(hvd.size(), *shape, generator=generator, dtype=torch.float64).to(dtype)


def predicted(graph, values, rounds, first=0):
    for t in range(first, first + rounds):
        values = torch.einsum("ij,j...->i...", torch.tensor(graph.matrix(t), dtype=torch.float64),
                              values.double())
    return values


def graphs(n):
    yield from (topology.Ring(n), topology.Star(n), topology.OnePeerExponential(n),
                topology.Base(n, k=2), topology.OnePeerExponential(n, rotate=1),
                topology.RandomMatching(n), topology.Topology(n))
    if n > 1:
        yield topology.Custom(n, [(i, (i + 1) % n) for i in range(n)],
                              [(0, i) for i in range(1, n)] + [(i, 0) for i in range(1, n)])


def check_ranks_that_share_memory_mix_where_values_lie():
    """Both with weights that travel and without, in several tensors of odd sizes."""
    before = hvd.counter("lane.swapped")
    n, me = hvd.size(), hvd.rank()
    tensors = [torch.full((count,), float(me + 1)) for count in (1, 70_001, 3)]
    mixed = hvd.grouped_allreduce(tensors, name="lie", op=hvd.Gossip(topology="ring"))
    left, right = (me - 1) % n, (me + 1) % n
    heard = {left, right} - {me}
    for one in mixed:
        want = (me + 1 + sum(r + 1 for r in heard)) / (1 + len(heard))
        assert torch.allclose(one, torch.full_like(one, want)), (one, want)
    given = {right: 0.5} if n > 1 else {}
    moved = hvd.neighbor_allreduce(tensors[1], self_weight=0.0, dst_weights=given,
                                   src_weights={left: 2.0} if n > 1 else {}, name="moved")
    assert torch.equal(moved, torch.full_like(moved, float(left + 1) if n > 1 else 0.0))
    if n > 1 and hvd.transport() == "shm":
        assert hvd.counter("lane.swapped") == before + 2


def check_rounds_are_products():
    for number, graph in enumerate(graphs(hvd.size())):
        values = start()
        mine = values[hvd.rank()].clone()
        for t in range(5):
            hvd.allreduce_(mine, name=f"rounds.{number}", op=hvd.Gossip(topology=graph))
            close(mine, predicted(graph, values, t + 1)[hvd.rank()], 1e-13)


def check_dtypes_async_and_groups():
    op = hvd.Gossip(topology=topology.Ring(hvd.size()))
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-6)):
        values = start(dtype=dtype)
        want = predicted(topology.Ring(hvd.size()), values, 1)[hvd.rank()].to(dtype)
        handles = [hvd.allreduce_async(values[hvd.rank()], name=f"many.{dtype}.{i}", op=op)
                   for i in range(20)]
        for handle in handles:
            close(hvd.synchronize(handle), want, tolerance)
        for result in hvd.grouped_allreduce([values[hvd.rank()]] * 3, name=f"group.{dtype}", op=op):
            close(result, want, tolerance)


def check_gossip_average_is_exact_or_as_told():
    size = hvd.size()
    values = start()
    mean = values.mean(0)
    close(horon.gossip_average(values[hvd.rank()]), mean, 1e-13)
    ring = topology.Ring(size)
    got = hvd.gossip_average(values[hvd.rank()], tol=1e-6, topology=ring)
    close(got, predicted(ring, values, ring.rounds_for(1e-6))[hvd.rank()], 1e-12)
    assert (got - mean).norm() <= 1e-6 * (values - mean).norm() + 1e-12
    got = hvd.gossip_average(values[hvd.rank()], rounds=3, topology="random_matching", name="r")
    close(got, predicted(topology.RandomMatching(size), values, 3)[hvd.rank()], 1e-13)
    # Once more under the name: it begins with round 0 again.
    again = hvd.gossip_average(values[hvd.rank()], rounds=3, topology="random_matching", name="r")
    same(again, got)
    with raises(ValueError, words=["rounds or tol"]):
        hvd.gossip_average(values[0], rounds=1, tol=0.1)
    for n in (1, 3, 128, 256):
        refuse_inexact(n, None)
        assert topology.Topology(n, "graph=auto").contraction() < 1e-12, n
    for n in (129, 255):
        with raises(ValueError, words=[f"of {n} ranks", "rounds or tol"]):
            refuse_inexact(n, None)
    assert topology.Topology(129, "graph=auto").contraction() > 1e-4
    lazy = mixing.Lazy(mixing.Natural())
    with raises(ValueError, words=["Lazy", "not the mean", "rounds or tol"]):
        hvd.gossip_average(values[0], mixing=lazy)
    got = hvd.gossip_average(values[hvd.rank()], mixing=lazy, tol=1e-6, name="lazy")
    assert (got - mean).norm() <= 1e-6 * (values - mean).norm() + 1e-12


def check_push_sum():
    """On a graph whose ranks have different numbers of neighbors the plain values are off."""
    size = hvd.size()
    values = start()
    star = topology.Star(size, mixing=mixing.Push())
    close(hvd.push_sum(values[hvd.rank()], tol=1e-9, topology="star"), values.mean(0), 1e-7)
    for name, topo in (("of its own", None), ("auto", "auto"), ("base", topology.Base(size))):
        exact = hvd.push_sum if name != "base" else hvd.gossip_average
        close(exact(values[hvd.rank()], topology=topo, name=name), values.mean(0), 1e-13)
    if size > 2:
        plain = predicted(star, values, 300)
        assert (plain - values.mean(0)).abs().max() > 0.01
        with raises(ValueError, words=["weighted mean"]):
            hvd.gossip_average(values[0], topology="star", mixing=mixing.Uniform())


def check_neighbor_allreduce_with_weights():
    rank, size = hvd.rank(), hvd.size()
    values = start()
    left, right = (rank - 1) % size, (rank + 1) % size
    if size == 1:
        same(hvd.neighbor_allreduce(values[0], src_weights={}, dst_weights={}), values[0])
        return
    got = hvd.neighbor_allreduce(values[rank], self_weight=0.5, src_weights={left: 2.0},
                                 dst_weights={right: 0.125 * (rank + 1)})
    close(got, 0.5 * values[rank] + 2 * 0.125 * (left + 1) * values[left], 1e-14)
    handle = hvd.neighbor_allreduce_async(values[rank], src_weights=[left], dst_weights=[right],
                                          sums="both")
    close(hvd.synchronize(handle), (values[rank] + values[left]) / 2, 1e-14)
    for t in range(4):  # other neighbors in every call
        out, heard = topology.OnePeerExponential(size).peers(rank, t)
        got = hvd.neighbor_allreduce(values[rank], src_weights=heard, dst_weights=out, name="turn")
        close(got, (values[rank] + values[heard[0]]) / 2, 1e-14)
    close(hvd.neighbor_allreduce(values[rank], topology="ring", name="static"),
          predicted(topology.Ring(size), values, 1)[rank], 1e-14)


def check_pair_average():
    rank, size = hvd.rank(), hvd.size()
    values = start()
    peer = rank ^ 1
    if peer < size:
        got = hvd.pair_average(values[rank], peer, weight=0.25, name="pair")
        close(got, 0.75 * values[rank] + 0.25 * values[peer], 1e-14)
    else:  # an odd one out meets nobody
        same(hvd.neighbor_allreduce(values[rank], src_weights=[], dst_weights=[], name="pair"),
             values[rank])


def check_averages_without_waiting():
    """Several at a time; ranks begin them, and wait for them, in different orders."""
    rank, size = hvd.rank(), hvd.size()
    values, peer = start(), hvd.rank() ^ 1
    order = list(range(4))[::1 if rank % 2 else -1]
    handles = {i: hvd.gossip_average_async(values[rank] + i, name=f"aside.{i}") for i in order}
    sums = hvd.push_sum_async(values[rank], tol=1e-9, topology="star", name="aside.sum")
    if peer < size:
        pair = hvd.pair_average_async(values[rank], peer, weight=0.25, name="aside.pair")
        close(hvd.synchronize(pair), 0.75 * values[rank] + 0.25 * values[peer], 1e-14)
    else:
        hvd.neighbor_allreduce(values[rank], src_weights=[], dst_weights=[], name="aside.pair")
    for i in reversed(order):
        close(hvd.synchronize(handles[i]), values.mean(0) + i, 1e-13)
    close(hvd.synchronize(sums), values.mean(0), 1e-7)
    before = values[rank].clone()
    same(hvd.gossip_average(values[rank], rounds=0, name="aside.none"), before)
    if size > 1:
        with raises(hvd.HoronMismatch, words=["rounds=1", "rounds=2"]):
            hvd.gossip_average(values[rank], rounds=1 + (rank == 0), name="aside.differs")


def check_neighbor_allgather():
    rank, size = hvd.rank(), hvd.size()
    mine = torch.full((rank + 1, 2), rank, dtype=torch.int32)
    heard = topology.Ring(size).peers(rank)[1]
    want = [torch.full((r + 1, 2), r, dtype=torch.int32) for r in heard]
    empty = torch.empty((0, 2), dtype=torch.int32)
    same(hvd.neighbor_allgather(mine, topology="ring"), torch.cat([empty, *want]))
    graph = topology.OnePeerExponential(size)
    for t in range(3):  # in the ranks' own lists, and by the graph's round
        out, heard = graph.peers(rank, t)
        want = torch.cat([empty, *(torch.full((r + 1, 2), r, dtype=torch.int32) for r in heard)])
        handle = hvd.neighbor_allgather_async(mine, src_ranks=heard, dst_ranks=out)
        same(hvd.synchronize(handle), want)
        handle = hvd.neighbor_allgather_async(mine, topology=graph, round=t)
        same(hvd.synchronize(handle), want)
        same(hvd.neighbor_allgather(mine, topology="one_peer_exponential", round=t), want)


def check_hierarchical():
    nodes, each = hvd.cross_size(), hvd.local_size()
    values = start()
    means = values.reshape(nodes, each, 5, 3).mean(1)
    ring = topology.Ring(nodes)
    got = hvd.neighbor_allreduce(values[hvd.rank()], topology=ring, hierarchical=True)
    close(got, predicted(ring, means, 1)[hvd.cross_rank()], 1e-13)
    out, heard = topology.OnePeerExponential(nodes).peers(hvd.cross_rank())
    got = hvd.neighbor_allreduce(values[hvd.rank()], src_weights=heard, dst_weights=out,
                                 hierarchical=True)
    want = (means[hvd.cross_rank()] + sum(means[node] for node in heard)) / (1 + len(heard))
    close(got, want, 1e-13)


def check_disagreement_shows_both_views():
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    value = torch.ones(3)
    wrong = "ring" if rank == 0 else "star"
    with raises(hvd.HoronMismatch, words=["graph=ring", "graph=star", "rank [0] has"]):
        hvd.allreduce(value, name="other", op=hvd.Gossip(topology=wrong))
    lists = [1] if rank == 0 else []
    views = "rank [0] hears rank [1], but rank [1] sends to no rank"
    with raises(hvd.HoronMismatch, words=[views]):
        hvd.neighbor_allreduce(value, src_weights=lists, dst_weights=[], name="unheard")
    with raises(hvd.HoronMismatch, words=["sum to 0.75", "as was claimed"]):
        hvd.neighbor_allreduce(value, self_weight=0.75, src_weights=[], dst_weights=[],
                               sums="rows", name="sums")
    with raises(ValueError, words=[f"for {size + 1} participants", f"there are {size}"]):
        hvd.allreduce(value, name="n", op=hvd.Gossip(topology=topology.Ring(size + 1)))
    with raises(ValueError, words=["needs a floating data type"]):
        hvd.allreduce(value.int(), name="whole", op=hvd.Gossip())
    for more in ({"self_weight": 0.5}, {"sums": "both"}):
        with raises(ValueError, words=["go with src_weights and dst_weights"]):
            hvd.neighbor_allreduce(value, topology="ring", name="more", **more)
    close(hvd.gossip_average(value), value)  # and on it goes


def check_a_tensor_without_a_name_has_no_rounds():
    """Each call would be round 0; where all rounds are alike it is."""
    x, ring = torch.full((3,), float(hvd.rank())), topology.Ring(hvd.size())
    calls = (lambda graph: hvd.allreduce(x, op=hvd.Gossip(topology=graph)),
             lambda graph: hvd.grouped_allreduce([x], op=hvd.Gossip(topology=graph))[0],
             lambda graph: hvd.neighbor_allreduce(x, topology=graph))
    by_turns = (topology.RandomMatching(hvd.size()), topology.Base(hvd.size(), k=1),
                *([None, "one_peer_exponential"] if hvd.size() > 2 else []))
    for call in calls:
        close(call(ring), predicted(ring, torch.arange(hvd.size())[:, None].expand(-1, 3).double(),
                                    1)[hvd.rank()].float(), 1e-6)
        for graph in by_turns:
            if not isinstance(graph, topology.Topology) or graph.period != 1:
                with raises(hvd.HoronInvalidArgument, words=["give the tensor a name"]):
                    call(graph)
    with raises(hvd.HoronInvalidArgument, words=["give the tensor a name"]):
        hvd.allreduce(x, op="gossip:graph=random_matching")


def check_a_gradient_has_rounds_of_its_own():
    graph = topology.RandomMatching(hvd.size())
    values, gradients = start(), start() + 1
    for t in range(4):
        mine = values[hvd.rank()].clone().requires_grad_()
        several = [mine.detach().clone().requires_grad_() for _ in range(2)]
        one = hvd.allreduce(mine, op=hvd.Gossip(topology=graph), name="one with gradient")
        both = hvd.grouped_allreduce(several, op=hvd.Gossip(topology=graph),
                                     name="both with gradients")
        torch.autograd.backward([one, *both], [gradients[hvd.rank()]] * 3)
        for mixed, before in zip((one, *both), (mine, *several)):
            close(mixed.detach(), predicted(graph, values, 1, first=t)[hvd.rank()], 1e-13)
            close(before.grad, predicted(graph, gradients, 1, first=t)[hvd.rank()], 1e-13)


def check_a_weight_that_is_given_away_is_told():
    if hvd.size() != 2:
        return
    away = topology.Custom(2, [(0, 1, 1.0), (1, 1, 1.0)], [(1, 0, 0.5), (1, 1, 0.5), (0, 0, 1.0)])
    words = ["push-sum weight", "hears more often"]
    x = torch.full((3,), float(hvd.rank()))
    gossiper = PushSum(away, mixing.Natural())
    gossiper.mix(x)
    for call in (lambda: hvd.gossip_average(x, rounds=1, topology=away, name="away"),
                 lambda: gossiper.estimate(x)):
        if hvd.rank() == 0:
            with raises(hvd.HoronInvalidArgument, words=words):
                call()
        else:
            call()


def check_what_only_optimizers_do_is_refused():
    x = torch.full((3,), float(hvd.rank()))
    calls = (lambda op: hvd.allreduce(x, name="more", op=op),
             lambda op: hvd.allreduce_async_(x, name="more", op=op),
             lambda op: hvd.grouped_allreduce([x, x], name="more", op=op),
             lambda op: hooks.Reduce(op),
             lambda op: hvd.gossip.AllReduceDataParallel(torch.nn.Linear(1, 1), op=op))
    given = [({"algorithm": name}, name) for name in
             ("osgp", "adpsgd", "asgp", "gt", "exact_diffusion", "push_diging")]
    given += [({"algorithm": "sgp", "negotiated": False}, "negotiated=False"),
              ({"style": "cta"}, "style='cta'"), ({"style": "atc"}, "style='atc'"),
              ({"overlap": True}, "overlap=True"), ({"topology": "auto"}, "topology='auto'"),
              ({"algorithm": "sgp", "global_average_every": 4}, "global_average_every=4")]
    for options, word in given:
        op = hvd.Gossip(**options)
        for call in calls:
            with raises(hvd.HoronInvalidArgument, words=[word, "DistributedOptimizer", "Window"]):
                call(op)
    for algorithm in ("dpsgd", "sgp", "gossipgrad"):  # whose one round it is
        hvd.allreduce(x, name=f"one.{algorithm}", op=hvd.Gossip(algorithm))


def check_process_sets():
    if hvd.size() < 3:
        return
    members = [0, 2]
    half = hvd.add_process_set(members)
    if hvd.rank() in members:
        got = hvd.gossip_average(torch.tensor([float(hvd.rank())]), process_set=half)
        close(got, torch.tensor([1.0]))
    hvd.remove_process_set(half)


def sent():
    """Bytes of negotiated gossip, by the rank that they went to."""
    prefix = "gossip.bytes.to."
    return Counter({int(name.removeprefix(prefix)): value
                    for name, value in hvd.counters().items() if name.startswith(prefix)})


def check_bytes_of_each_edge_are_counted():
    rank, size = hvd.rank(), hvd.size()
    left, right = (rank - 1) % size, (rank + 1) % size
    x, before = torch.ones(300, dtype=torch.float64), sent()
    hvd.allreduce_(x, name="counted", op=hvd.Gossip(topology="ring"))
    want = Counter(dict.fromkeys({left, right} - {rank}, 2400))
    if size > 1:
        hvd.neighbor_allreduce(x, src_weights={left: 0.5}, dst_weights=[right], name="counted.one")
        hvd.neighbor_allgather(x, src_ranks=[left], dst_ranks=[right], name="counted.rows")
        want[right] += 4800
    assert sent() - before == want, (sent(), before, want)


def check_what_is_no_topology_and_no_mixing():
    """Says what to give."""
    for arguments, words in (
            ({"topology": topology.Ring}, ["Ring(n)", "number of ranks"]),
            ({"topology": [[0.5, 0.5], [0.5, 0.5]]}, ["list", "from_matrix"]),
            ({"mixing": "metropolis"}, ["'metropolis'", "MetropolisHastings()"]),
            ({"mixing": mixing.Push}, ["Push", "objects"])):
        for call in (lambda a=arguments: hvd.Gossip(**a),
                     lambda a=arguments: hvd.gossip_average(torch.ones(2), rounds=1, **a)):
            with raises(hvd.HoronInvalidArgument, words=words):
                call()
