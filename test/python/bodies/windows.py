"""Windows: horon.torch.Window, and BlueFog's names for them."""

import torch
from common import close, raises, same

import horon.torch as hvd
from horon import topology

try:
    import networkx
except ImportError:
    print("windows: BlueFog's names not checked, networkx is not installed")
    networkx = None

if networkx is not None:
    import horon.bluefog.torch as bf
    from horon.bluefog.common import topology_util


def ring(name, tensor, **options):
    rank, size = hvd.rank(), hvd.size()
    before, after = [(rank - 1) % size], [(rank + 1) % size]
    if size == 1:
        before = after = []
    return hvd.Window(tensor, name, sources=before, destinations=after, **options)


def check_put_and_update():
    rank, size = hvd.rank(), hvd.size()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.full((100, 7), float(rank), dtype=dtype)
        window = ring(f"put {dtype}", tensor)
        assert window.put() == ()
        hvd.barrier()
        assert set(window.versions().values()) <= {1}
        before = (rank - 1) % size
        window.update()
        expected = (rank + before) / 2 if size > 1 else rank
        same(tensor, torch.full((100, 7), expected, dtype=dtype))
        assert set(window.versions().values()) <= {0}
        hvd.barrier()
        window.free()


def check_get():
    rank, size = hvd.rank(), hvd.size()
    window = ring("get", torch.zeros(70_000))
    window.tensor.fill_(rank + 1)
    window.publish()
    hvd.barrier()
    hvd.synchronize(window.get_async())
    hvd.barrier()
    window.update(0.0, dict.fromkeys(window.sources, 2.0))
    close(window.tensor, torch.full((70_000,), 2.0 * ((rank - 1) % size + 1) if size > 1 else 0.0))
    window.free()


def check_what_one_rank_refuses_no_rank_makes():
    """All hear why, and can make it anew."""
    n, last = hvd.size(), hvd.size() - 1
    if n == 1:
        return
    odd = hvd.rank() == last
    ring = topology.Ring(n)
    gaps = torch.zeros(3, 2).t() if odd else torch.zeros(2, 3)
    whole = torch.zeros(3)
    for values, graph, in_rounds, why in (
            (whole, topology.Ring(n + 1) if odd else ring, False, f"for {n + 1} participants"),
            (whole, topology.Ring(n + 1) if odd else ring, True, f"for {n + 1} participants"),
            (gaps, ring, False, "must be contiguous"),
            (torch.zeros(3, dtype=torch.int32) if odd else whole, ring, False, "floating")):
        told = [] if odd else [f"rank {last} could not make its part"]
        with raises(hvd.HoronError, words=[why, *told], of=why):
            hvd.Window(values, "refused", graph, in_rounds=in_rounds)
    window = hvd.Window(torch.full((3,), float(hvd.rank())), "refused", ring)
    assert window.put() == ()
    hvd.barrier()
    window.update()
    close(window.tensor, torch.full((3,), sum([hvd.rank(), *window.sources]) /
                                    (1 + len(window.sources))))
    window.free()


def check_push_sum_on_a_star():
    """Irregular: weights differ from 1, and the mean is reached all the same."""
    rank, size = hvd.rank(), hvd.size()
    values = torch.tensor([float(rank), 1.0])
    window = hvd.Window(values, "star", topology.Star(size), zero_init=True)
    part = 1 / (len(window.destinations) + 1)
    parts = dict.fromkeys(window.destinations, part)
    for step in range(20):
        window.accumulate(parts, part, push_sum=True)
        if step % 3 == 0:
            hvd.barrier()  # nothing is under way
            held = hvd.allreduce(window.held(), op=hvd.Sum, name="audit")
            hvd.barrier()
        window.collect(push_sum=True)
        if step == 0 and size > 2:
            assert window.push_sum_weight != 1
        close(values[1], torch.tensor(window.push_sum_weight, dtype=torch.float32))
    close(held, torch.tensor([size * (size - 1) / 2, float(size)]), 1e-4)
    hvd.barrier()
    window.collect(push_sum=True)
    total = hvd.allreduce(values, op=hvd.Sum, name="mass")
    close(total, torch.tensor([size * (size - 1) / 2, float(size)]), 1e-4)
    window.free()


def check_mutex():
    window = hvd.Window(torch.zeros(3), "mutex", topology.FullyConnected(hvd.size()))
    for _ in range(5):
        with window.mutex([0]):
            pass
    hvd.barrier()
    window.free()


def check_pairs():
    """Both ranks of a pair move, and only one of them calls. An odd one out stays."""
    rank, size = hvd.rank(), hvd.size()
    peer = rank ^ 1 if rank ^ 1 < size else rank
    window = hvd.Window(torch.full((70_000,), float(rank)), "pair", topology.Ring(size))
    hvd.barrier()
    if rank < peer:
        assert hvd.synchronize(window.pair_async(peer)) == ()
    hvd.barrier()
    out = torch.empty(70_000)
    window.step(torch.ones(70_000), out)
    same(out, torch.full((70_000,), (rank + peer) / 2 + 1))
    window.step(out, weight=-0.5)
    window.step(out=out)
    same(out, torch.full((70_000,), ((rank + peer) / 2 + 1) / 2))
    window.free()


def check_errors():
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    shape = (3,) if rank == 1 else (2,)
    with raises(hvd.HoronInvalidArgument, words=["rank 1 float32 [3]", "rank 0 float32 [2]"]):
        ring("shapes", torch.zeros(shape))
    with raises(hvd.HoronUnsupported, words=["floating"]):
        ring("integers", torch.zeros(2, dtype=torch.int32))
    window = ring("errors", torch.zeros(2))
    with raises(hvd.HoronInvalidArgument, words=["no such neighbor"]):
        window.put({rank: 1.0})
    others = (torch.zeros(3), torch.zeros(1), torch.zeros(2, dtype=torch.float64),
              torch.zeros(4)[::2])
    for other in others:
        with raises(hvd.HoronInvalidArgument, words=["'errors'", "float32 of 2 elements on cpu"]):
            window.step(other)
        with raises(hvd.HoronInvalidArgument, words=["'errors'", "float32 of 2 elements on cpu"]):
            window.update(out=other)
    with raises(hvd.HoronUnsupported, words=["'errors'", "meta"]):
        window.step(torch.zeros(2, device="meta"))
    window.free()
    with raises(hvd.HoronInvalidArgument, words=["freed"]):
        window.put()
    window = ring("copies", torch.zeros(2))
    for call in (window.accumulate, window.collect):
        with raises(hvd.HoronInvalidArgument, words=["'copies'", "zero_init=True"]):
            call(push_sum=True)
    window.free()
    for of_rounds in ({"push_sum": True}, {"first_round": 3}):
        with raises(hvd.HoronInvalidArgument, words=["'no rounds'", "in_rounds=True"]):
            ring("no rounds", torch.zeros(2), **of_rounds)
    window = hvd.Window(torch.zeros(2), "quiet", gets=False)
    with raises(hvd.HoronInvalidArgument, words=["without gets"]):
        window.get()
    window.free()


def check_values_that_are_given_away_are_left_alone():
    """Until that is done: what has been sent of them would not be what stays."""
    if hvd.size() != 2:
        return
    me, other = hvd.rank(), 1 - hvd.rank()
    window = ring("given", torch.ones(3), zero_init=True)
    with window.mutex([me]):
        hvd.barrier()  # both hold their own, so neither is served
        given = window.accumulate_async({other: 0.5}, 0.5, mutex=True)
        for refused in (lambda: window.accumulate({other: 0.5}, 0.5), window.collect, window.put,
                        window.update, lambda: window.step(torch.ones(3))):
            with raises(hvd.HoronInvalidArgument, words=["under way", "wait for it"]):
                refused()
        close(window.held(), torch.ones(3))  # but it may be looked at
        hvd.barrier()
    assert hvd.synchronize(given) == ()
    hvd.barrier()
    assert window.collect() == ()
    close(window.tensor, torch.ones(3))
    window.free()
    window = hvd.Window(torch.full((3,), float(me)), "rounds", topology.Ring(2), in_rounds=True)
    if me == 0:
        first = window.mix_async()
        with raises(hvd.HoronInvalidArgument, words=["under way"]):
            window.mix_async()
    hvd.barrier()
    hvd.synchronize(first if me == 0 else window.mix_async())
    close(window.tensor, torch.full((3,), 0.5))
    window.free()


def check_bluefog():
    if networkx is None:
        return
    bf.init()
    rank, size = bf.rank(), bf.size()
    bf.set_topology(topology_util.RingGraph(size))
    tensor = torch.full((5,), float(rank))
    assert bf.win_create(tensor, "bf") and not bf.win_create(tensor, "bf")
    assert bf.get_current_created_window_names() == ["bf"]
    # Nothing changes while there are windows; of up to 2 ranks a star is the ring that is set.
    assert bf.set_topology(topology_util.StarGraph(size)) == (size < 3)
    assert topology_util.IsTopologyEquivalent(bf.load_topology(), topology_util.RingGraph(size))
    handle = bf.win_put_nonblocking(tensor, "bf")
    assert bf.win_wait(handle) and bf.win_poll(handle)
    bf.barrier()
    heard = bf.in_neighbor_ranks()
    assert bf.get_win_version("bf") == dict.fromkeys(heard, 1)
    mean = (rank + sum(heard)) / (len(heard) + 1)
    copy = bf.win_update("bf", clone=True)
    close(copy, torch.full((5,), mean))
    assert float(tensor[0]) == rank
    assert bf.win_update("bf") is not copy
    close(tensor, torch.full((5,), mean))
    with bf.win_mutex("bf", for_self=True):
        pass
    bf.barrier()
    assert bf.win_get("bf") and bf.win_free("bf") and not bf.win_free("bf")


def check_bluefogs_calls_without_waiting():
    if networkx is None:
        return
    bf.init()
    rank, size = bf.rank(), bf.size()
    bf.set_topology(topology_util.RingGraph(size))
    tensor = torch.full((5,), rank + 1.0)
    assert bf.win_create(tensor, "aside", zero_init=True)
    with raises(hvd.HoronInvalidArgument, words=["or neither"]):
        bf.win_update("aside", self_weight=0.5)
    with raises(hvd.HoronInvalidArgument, words=["or neither"]):
        bf.win_update("aside", neighbor_weights={})
    heard = bf.in_neighbor_ranks()
    bf.barrier()
    for _ in range(2):
        handle = bf.win_accumulate_nonblocking(tensor, "aside")
        assert bf.win_wait(handle) and bf.win_poll(handle)
    bf.barrier()
    sums = torch.full((5,), 2.0 * sum(r + 1 for r in heard))
    close(bf.win_update("aside", 0.0, dict.fromkeys(heard, 1.0), reset=True), sums)
    with bf.win_lock("aside"):
        tensor.fill_(10.0 * (rank + 1))
    bf.barrier()
    handle = bf.win_get_nonblocking("aside", dict.fromkeys(heard, 0.5))
    assert bf.win_wait(handle) and bf.win_poll(handle)
    bf.barrier()
    half = torch.full((5,), 5.0 * sum(r + 1 for r in heard))
    close(bf.win_update("aside", 0.0, dict.fromkeys(heard, 1.0), clone=True), half)
    bf.win_free("aside")


def check_bluefog_push_sum():
    if networkx is None:
        return
    bf.init()
    rank, size = bf.rank(), bf.size()
    bf.set_topology(topology_util.ExponentialGraph(size))
    bf.turn_on_win_ops_with_associated_p()
    x = torch.tensor([float(rank), 1.0])
    assert bf.win_create(x, "x")
    out = bf.out_neighbor_ranks()
    part = 1 / (len(out) + 1)
    for _ in range(12):
        bf.win_accumulate(x, "x", self_weight=part, dst_weights=dict.fromkeys(out, part),
                          require_mutex=True)
        bf.win_update_then_collect("x")
        close(x[1], torch.tensor(bf.win_associated_p("x"), dtype=torch.float32))
    bf.barrier()
    bf.win_update_then_collect("x")
    total = bf.allreduce(x, average=False)
    close(total, torch.tensor([size * (size - 1) / 2, float(size)]), 1e-4)
    bf.win_free()
    bf.turn_off_win_ops_with_associated_p()
