"""dpsgd, sgp and osgp between peers (negotiated=False): the bits of the negotiated way,
checkpoints, neighbors that are held, and what is refused."""

import copy
import threading

import torch
from common import close, raises, same
from gossip_optimizer import begin, data, flat, keeps_mass, put, total, train

import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.errors import HoronUnsupported
from horon.torch.flat_parameters import FlatParameters


def push_star():
    return topology.Star(hvd.size(), mixing=mixing.Push())


def ways():
    """(algorithm, options), all that go between peers."""
    return (
        ("dpsgd", {}),
        ("dpsgd", {"topology": "ring"}),
        ("dpsgd", {"topology": topology.RandomMatching(hvd.size()), "overlap": True}),
        ("sgp", {"topology": "base", "global_average_every": 3}),
        ("sgp", {"topology": push_star()}),
        ("osgp", {"topology": push_star()}),
        ("osgp", {"sync_freq": 2}),
        ("osgp", {"topology": push_star(), "global_average_every": 3}),
    )


def weights(optimizer):
    state = optimizer.state_dict()["horon_gossip"]
    return state.get("weights", [state["weight"]])


def check_bits_are_those_of_the_negotiated_way():
    for algorithm, options in ways():
        one, negotiated = begin(hvd.Gossip(algorithm, **options))
        other, between = begin(hvd.Gossip(algorithm, **options, negotiated=False))
        for batch in data():
            train(one, negotiated, [batch])
            train(other, between, [batch])
            same(flat(other), flat(one))
        negotiated.finish_gossip()
        between.finish_gossip()
        same(flat(other), flat(one))
        assert weights(between) == weights(negotiated), algorithm
        between.close_gossip()
        train(other, between, data()[:1])  # a local step
    assert hvd.counter("round.folded") == 0 and hvd.counter("round.late") == 0
    assert hvd.size() == 1 or hvd.counter("round.mixed") > 0


class Mixed(torch.nn.Module):
    """Parameters of three types."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.parts = torch.nn.ParameterList(
            torch.randn(5 + i).to(dtype) for i, dtype in enumerate(
                (torch.float32, torch.float64, torch.bfloat16, torch.float32)))

    def forward(self):
        return sum((p.double() ** 2).sum() for p in self.parts)


def check_each_type_of_parameters_keeps_its_bits():
    for algorithm in ("dpsgd", "osgp"):
        both = []
        for negotiated in (True, False):
            model = Mixed()
            put(model, flat(model) + 0.3 * hvd.rank())
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(),
                op=hvd.Gossip(algorithm, topology=push_star() if algorithm == "osgp" else "ring",
                              negotiated=negotiated))
            for _ in range(6):
                optimizer.zero_grad()
                model().backward()
                optimizer.step()
            optimizer.finish_gossip()
            both.append(flat(model))
        optimizer.close_gossip()
        same(*both)


def check_checkpoints_go_on_bit_by_bit():
    for algorithm, options in ways():
        op = hvd.Gossip(algorithm, **options, negotiated=False)
        model, optimizer = begin(op)
        train(model, optimizer, data()[:3])
        saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        other, resumed = begin(op)
        train(other, resumed, data()[:1])  # leaves something under way
        resumed.load_state_dict(copy.deepcopy(saved[0]))
        other.load_state_dict(saved[1])
        # What was saved goes on in either way.
        third, negotiated = begin(hvd.Gossip(algorithm, **options))
        negotiated.load_state_dict(saved[0])
        third.load_state_dict(saved[1])
        for m, o in ((model, optimizer), (other, resumed), (third, negotiated)):
            train(m, o, data()[3:])
            o.finish_gossip()
        same(flat(other), flat(model))
        same(flat(third), flat(model))
        optimizer.close_gossip()
        resumed.close_gossip()


def check_mass_is_kept_with_exchanges_left_unfinished():
    model, optimizer, before = keeps_mass(hvd.Gossip("osgp", topology=push_star(), sync_freq=2,
                                                     negotiated=False))
    mass, weight = optimizer.gossip_mass()
    close(mass.sum(), before[:-1].sum(), 1e-4)
    assert abs(weight - hvd.size()) < 1e-12
    optimizer.finish_gossip(average=True)
    close(flat(model), before[:-1] / hvd.size(), 1e-5)
    optimizer.close_gossip()


def check_a_mean_after_the_end_is_that_of_all():
    """Push-sum weights that rounds have left count until they are averaged."""
    push = topology.Star(hvd.size(), mixing=mixing.Push())
    model, optimizer = begin(hvd.Gossip("sgp", topology=push, negotiated=False))
    train(model, optimizer, data()[:2])
    before = total(model, optimizer)
    optimizer.close_gossip()
    optimizer.finish_gossip(average=True)
    close(flat(model), before[:-1] / hvd.size(), 1e-5)


def check_who_is_held_delays_its_own_neighbors_only():
    """Two pairs; rank 3 takes its first step when the other pair has taken its last."""
    if hvd.size() != 4:
        return
    me, steps = hvd.rank(), 20
    pairs = "0>1;1>0;2>3;3>2"  # the last round, which nobody comes to, connects them
    edges = "/".join([pairs] * steps + ["0>2;2>0;1>3;3>1"])
    graph = topology.Topology(4, f"graph=custom,edges={edges}")
    x = torch.nn.Parameter(torch.full((3,), float(me)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=0.0),
                                         op=hvd.Gossip("sgp", topology=graph, negotiated=False))
    done = hvd.Window(torch.zeros(1), "done", sources=[0, 1] if me == 3 else [],
                      destinations=[3] if me < 2 else [], zero_init=True)
    clock = threading.Event()
    while me == 3 and not all(done.versions().values()):
        clock.wait(0.001)
    for _ in range(steps):
        x.grad = torch.zeros(3)
        optimizer.step()
    if me < 2:
        done.put()
    same(x.detach(), torch.full((3,), 0.5 if me < 2 else 2.5))
    assert hvd.counter("peer.unreached") == 0
    hvd.barrier()
    done.free()
    optimizer.close_gossip()


def check_windows_mix_in_rounds_by_themselves():
    x = torch.full((4,), float(hvd.rank()))
    graph = topology.Topology(hvd.size())
    window = hvd.Window(x, "x", graph, in_rounds=True, first_round=1)
    values = torch.arange(hvd.size(), dtype=torch.float64)
    for t in range(1, 4):
        assert window.round == t and window.mix() == ()
        values = torch.tensor(graph.matrix(t), dtype=torch.float64) @ values
        close(x, values[hvd.rank()].float().expand(4), 1e-6)
    assert window.mix(torch.ones(4)) == ()
    if hvd.size() > 1:
        with raises(ValueError, words=["mixes in rounds"]):
            window.put([(hvd.rank() + 1) % hvd.size()])
    window.free()
    with raises(ValueError, words=["neighbors of their own"]):
        hvd.Window(x, "y", sources=[], destinations=[], in_rounds=True)


def check_a_mean_counts_weights_that_a_fault_has_left():
    """Also on a graph that leaves them 1 by itself: shares that were not taken came back."""
    for algorithm in ("sgp", "osgp"):
        model, optimizer = begin(hvd.Gossip(algorithm, negotiated=False))
        train(model, optimizer, data()[:2])
        optimizer.finish_gossip()
        saved = optimizer.state_dict()
        odd = 0.5 if hvd.rank() == 0 else 1.0
        saved["horon_gossip"]["weights"] = [odd for _ in weights(optimizer)]
        optimizer.load_state_dict(saved)
        mass = hvd.allreduce(flat(model) * odd, op=hvd.Sum, name="mass of all")
        optimizer.finish_gossip(average=True)
        close(flat(model), mass / (hvd.size() - 0.5), 1e-5)
        optimizer.close_gossip()


def check_a_checkpoint_after_the_end():
    """Its weights are those of the mean, not those that the last steps have left."""
    model, optimizer = begin(hvd.Gossip("sgp", topology=push_star(), negotiated=False))
    train(model, optimizer, data()[:2])
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    mass = optimizer.gossip_mass()[0]
    train(model, optimizer, data()[2:3])
    optimizer.close_gossip()
    optimizer.load_state_dict(saved[0])
    model.load_state_dict(saved[1])
    optimizer.finish_gossip(average=True)
    close(flat(model), mass / hvd.size(), 1e-5)


def check_a_checkpoint_after_one_that_was_refused():
    if hvd.size() == 1:
        return
    model, optimizer = begin(hvd.Gossip("sgp", negotiated=False))
    train(model, optimizer, data()[:2])
    optimizer.finish_gossip()
    good = copy.deepcopy(optimizer.state_dict())
    wrong = copy.deepcopy(good)
    wrong["horon_gossip"]["round"] += hvd.rank()
    with raises(ValueError, words=["from round"]):
        optimizer.load_state_dict(wrong)
    with raises(ValueError, words=["load one that all ranks have"]):
        train(model, optimizer, data()[:1])
    optimizer.load_state_dict(good)
    put(model, torch.full_like(flat(model), float(hvd.rank())))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    apart = hvd.consensus_distance(model.parameters())
    mixed = hvd.counter("round.mixed")
    train(model, optimizer, data()[:2])
    optimizer.finish_gossip()
    assert hvd.counter("round.mixed") > mixed
    assert hvd.consensus_distance(model.parameters()) < apart
    optimizer.close_gossip()


def check_ranks_that_disagree_all_hear_both_views():
    if hvd.size() == 1:
        return
    odd = hvd.rank() == hvd.size() - 1
    views = ["the op is dpsgd of gossip:graph=one_peer_exponential on rank "
             f"[{hvd.size() - 1}], dpsgd of gossip:graph=ring on rank"]
    with raises(ValueError, words=views):
        begin(hvd.Gossip("dpsgd", topology="one_peer_exponential" if odd else "ring",
                         negotiated=False))
    model, optimizer = begin(hvd.Gossip("sgp", negotiated=False))
    train(model, optimizer, data()[:2])
    saved = optimizer.state_dict()
    if odd:
        saved["horon_gossip"]["round"] += 3
    with raises(ValueError, words=["from round 2", "from round 5"]):
        optimizer.load_state_dict(saved)


def check_flat_tensors_are_on_the_cpu_where_windows_cannot_be():
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    flat = FlatParameters([{"params": [parameter]}], widened=False)
    assert [tensor.device.type for tensor in flat.empty()] == ["cpu"]


def check_refusals():
    for algorithm in ("adpsgd", "asgp"):
        assert not hvd.Gossip(algorithm).negotiated
        with raises(ValueError, words=["never waits for all ranks"]):
            hvd.Gossip(algorithm, negotiated=True)
    assert hvd.Gossip("sgp").negotiated
    for arguments in ({"algorithm": "gossipgrad"}, {"algorithm": "gt"}, {"style": "atc"},
                      {"style": "cta"}, {"hierarchical": True}, {"what": "both"}):
        with raises(ValueError, words=["negotiated=False is for"]):
            hvd.Gossip(**arguments, negotiated=False)
    with raises(ValueError, words=["chooses all"]):
        hvd.Gossip(topology="auto", negotiated=False)
    if hvd.size() == 1:
        return
    some = hvd.add_process_set([0])
    with raises(HoronUnsupported, words=["no process sets"]):
        begin(hvd.Gossip("sgp", negotiated=False), process_set=some)
    hvd.remove_process_set(some)
