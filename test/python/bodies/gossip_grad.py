"""GossipGraD as DDP's communication hook: with gradients that are known."""

import pickle
import warnings

import torch
from common import close, raises
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch_distributed import group_of_all

import horon.torch as hvd
from horon import topology
from horon.process_sets import form_process_set
from horon.torch.gossip_grad import (
    GossipGraDState,
    Topology,
    get_num_modules,
    gossip_grad_hook,
)


FAMILIES = {Topology.CUBE: topology.OnePeerHypercube,
            Topology.DISSEMINATION: topology.OnePeerExponential}


class Known(torch.nn.Module):
    """Gradients of all three layers are the factor that it is called with."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(3))

    def forward(self, factor):
        return sum(layer.weight.sum() for layer in self.layers) * factor


def wrapped(state):
    group_of_all()
    model = torch.nn.parallel.DistributedDataParallel(Known(), bucket_cap_mb=1e-7)
    model.register_comm_hook(state, gossip_grad_hook)
    return model


def made(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = GossipGraDState(**options)
    assert any("drift apart" in str(w.message) for w in caught) != bool(
        options.get("global_average_every"))
    return state


def check_gradients_of_known_size():
    """Groups of one, and the node's ranks as a group: a step is a round, whatever the buckets."""
    for kind, family in FAMILIES.items():
        for inside in {1, hvd.local_size()}:
            nodes = hvd.size() // inside
            state = made(topology=kind, proc_per_node=inside, random_seed=None)
            model = wrapped(state)
            means = torch.arange(hvd.size()).reshape(nodes, inside).float().mean(1) + 0.5
            for step in range(4):
                model.zero_grad()
                model(hvd.rank() + 0.5).backward()
                matrix = torch.tensor(family(nodes).matrix(step))
                want = (matrix @ means)[hvd.rank() // inside]
                for layer in model.module.layers:
                    close(layer.weight.grad, want.expand(1, 1))


def expect(model, groups, matrix):
    """Of one step, in all layers."""
    mean = torch.tensor([[r + 0.5 for r in group] for group in groups]).mean(1)
    mine = next(i for i, group in enumerate(groups) if hvd.rank() in group)
    model.zero_grad()
    model(hvd.rank() + 0.5).backward()
    want = (torch.tensor(matrix) @ mean)[mine]
    for layer in model.module.layers:
        close(layer.weight.grad, want.expand(1, 1))


def expect_steps(state, groups, matrices):
    """In each step the matrix of participants mixes the means of their groups' gradients."""
    model = wrapped(state)
    for matrix in matrices:
        expect(model, groups, matrix)
    hvd.barrier()  # groups do not wait for each other, and whoever leaves ends the job of all


def check_a_cube_of_single_ranks():
    """By hand: in step t each rank meets the one whose number differs in bit t, and where there is
    none, nobody."""
    n = hvd.size()
    bits, matrices = (n - 1).bit_length(), []
    for t in range(bits + 1):
        met = [r ^ 1 << t % max(1, bits) for r in range(n)]
        met = [other if other < n else r for r, other in enumerate(met)]
        matrices.append([[0.5 * (j == i) + 0.5 * (j == met[i]) for j in range(n)]
                         for i in range(n)])
    expect_steps(made(topology=Topology.CUBE, proc_per_node=1, random_seed=None),
                 [[r] for r in range(n)], matrices)


def check_groups_of_two_in_a_told_order():
    """On one node as well; by hand: the participant at place v of the order hears the one 1, then 2
    places before it."""
    n = hvd.size() // 2
    if hvd.size() % 2 != 0 or n < 2:
        return
    groups = [[2 * i, 2 * i + 1] for i in range(n)]
    leaders = [0, *range(2 * n - 2, 0, -2)]
    places = {leader // 2: v for v, leader in enumerate(leaders)}
    matrices = []
    for far in [1, 2][:(n - 1).bit_length()] * 2:
        heard = {i: leaders[(v - far) % n] // 2 for i, v in places.items()}
        matrices.append([[0.5 * (j == i) + 0.5 * (j == heard[i]) for j in range(n)]
                         for i in range(n)])
    expect_steps(made(virtual_topology=leaders), groups, matrices)
    state = made(proc_per_node=2, virtual_topology=leaders)
    assert state.groups.local_group.ranks == groups[hvd.rank() // 2]
    assert state.groups.master_group.ranks == list(range(hvd.rank() % 2, hvd.size(), 2))
    expect_steps(state, groups, matrices)


def check_ranks_and_other_groups_in_a_told_order():
    """Single ranks from last to first; and groups that are not consecutive."""
    n = hvd.size()
    back = topology.OnePeerHypercube(n)
    turned = [[row[::-1] for row in back.matrix(t)[::-1]] for t in range(2)]
    expect_steps(made(topology=Topology.CUBE, virtual_topology=list(range(n))[::-1]),
                 [[r] for r in range(n)], turned)
    if n != 4:
        return
    far = [form_process_set(ranks) for ranks in ([0, 2], [1, 3]) if hvd.rank() in ranks]
    near = [form_process_set(ranks) for ranks in ([0, 1], [2, 3]) if hvd.rank() in ranks]
    expect_steps(made(local_group=far[0], master_group=near[0], random_seed=None),
                 [[0, 2], [1, 3]], [[[0.5, 0.5], [0.5, 0.5]]] * 2)


def expect_averages(wrap, **options):
    """Every second step leaves the mean over all ranks, the others a step by one's own gradient."""
    state = made(global_average_every=2, random_seed=None, **options)
    model = wrap(state)
    weights = [p for p in model.parameters() if p.requires_grad]
    for weight in weights:
        weight.data.fill_(float(hvd.rank()))
    mean = (hvd.size() - 1) / 2
    for step in range(1, 5):
        before = [weight.detach().clone() for weight in weights]
        state.after_step(model)
        for weight, was in zip(weights, before):
            close(weight.detach(), torch.full_like(was, mean) if step % 2 == 0 else was)
            weight.data.add_(hvd.rank() - mean)  # a step that keeps the mean
    hvd.barrier()


def check_parameters_are_averaged_now_and_then():
    def of_units(state):
        group_of_all()
        model = unsharded(torch.nn.Sequential(unsharded(torch.nn.Linear(1, 1, bias=False)),
                                              torch.nn.Linear(1, 1, bias=False)))
        model.register_comm_hook(state, gossip_grad_hook)
        return model

    expect_averages(wrapped, proc_per_node=1)
    expect_averages(of_units, num_modules=2, proc_per_node=1)
    if hvd.size() % 2 == 0:
        expect_averages(wrapped, proc_per_node=2)
    with raises(ValueError, words=["global_average_every"]):
        GossipGraDState(global_average_every=-1)


def check_averages_that_nobody_asks_for():
    """Two buckets make a pass, and four passes the warning."""
    model = wrapped(made(global_average_every=2, proc_per_node=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            model.zero_grad()
            model(1.0).backward()
            told = [w for w in caught if "after_step" in str(w.message)]
            assert len(told) == (step >= 3), (step, caught)


def check_trained_ranks_end_together():
    """With averages the ranks end together, and without them they do not."""
    torch.manual_seed(3)
    inputs = torch.randn(hvd.size(), 8, 1)

    def apart_after(every):
        state = made(global_average_every=every, proc_per_node=1)
        model = wrapped(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            (model(1.0) - inputs[hvd.rank(), step % 8]).pow(2).mean().backward()
            optimizer.step()
            state.after_step(model)
        return hvd.consensus_distance(model.parameters())

    assert apart_after(4) < 1e-6
    assert hvd.size() < 4 or apart_after(None) > 1e-6


def unsharded(module, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # there is no better word for it in torch
        return FullyShardedDataParallel(module, device_id=torch.device("cpu"),
                                        sharding_strategy=ShardingStrategy.NO_SHARD, **options)


def check_fsdp_that_shards_nothing():
    """Units of equal size, one in another and one frozen: each has its own rounds."""
    group_of_all()
    for options in ({}, {"use_orig_params": True}):
        layers = [torch.nn.Linear(1, 1, bias=False) for _ in range(4)]
        layers[2].weight.requires_grad_(False)
        inner = torch.nn.Sequential(unsharded(layers[0], **options), layers[1])
        model = unsharded(torch.nn.Sequential(
            unsharded(inner, **options), unsharded(layers[2], **options), layers[3]), **options)
        assert get_num_modules(model) == 3
        model.register_comm_hook(made(num_modules=3, proc_per_node=1, random_seed=None),
                                 gossip_grad_hook)
        for parameter in model.parameters():
            parameter.data.fill_(1.0)
        mine = torch.arange(hvd.size()).float() + 0.5
        for step in range(4):
            model.zero_grad()
            model(torch.full((1, 1), hvd.rank() + 0.5)).sum().backward()
            want = (torch.tensor(topology.OnePeerExponential(hvd.size()).matrix(step)) @ mine)
            gradients = [p.grad for p in model.parameters() if p.requires_grad]
            assert len(gradients) == 3
            for gradient in gradients:
                close(gradient.reshape(1), want[hvd.rank()].reshape(1))


def check_a_scaler_that_all_ranks_share():
    """After an overflow that not all have mixed in, all go on with gradients of one scale."""
    model = wrapped(made(proc_per_node=1, global_average_every=50))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = ShardedGradScaler("cpu", init_scale=4.0)
    before = [p.detach().clone() for p in model.parameters()]
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(model(float("inf") if step == 1 and hvd.rank() == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        for parameter, was in zip(model.parameters(), before):
            close(parameter.detach(), was - (step if step >= 1 else 1))
    assert scaler.get_scale() == 2.0


def rotated(kind, rounds, seed=2403):
    """The matrices of these rounds."""
    graph = FAMILIES[kind](hvd.size(), rotate=1, seed=seed)
    return [graph.matrix(t) for t in rounds]


def check_the_order_rotates():
    """By default, after each period: two of them and the beginning of a third, in all layers."""
    n = hvd.size()
    rounds = range(2 * max(1, (n - 1).bit_length()) + 1)
    for kind, family in FAMILIES.items():
        matrices = rotated(kind, rounds)
        assert n < 4 or matrices != [family(n).matrix(t) for t in rounds]
        expect_steps(made(topology=kind, proc_per_node=1), [[r] for r in range(n)], matrices)
    kind = Topology.DISSEMINATION
    assert n < 4 or rotated(kind, rounds, 7) != rotated(kind, rounds)
    expect_steps(made(proc_per_node=1, random_seed=7), [[r] for r in range(n)],
                 rotated(kind, rounds, 7))


def check_a_checkpoint_goes_on_where_it_was():
    """At its round, and so many steps before the next average; in a state that is new, in one that
    is at another round, and in the one that was pickled."""
    n, kind = hvd.size(), Topology.CUBE
    singles, options = [[r] for r in range(n)], {"proc_per_node": 1, "global_average_every": 3}
    first = made(topology=kind, **options)
    expect_steps(first, singles, rotated(kind, range(5)))
    first.after_step(Known())
    saved, pickled = first.state_dict(), pickle.dumps(first)
    assert saved == {"round": 5, "steps": 1}
    new, other = (made(topology=kind, **options) for _ in range(2))
    model = wrapped(other)
    for t in range(2):
        expect(model, singles, rotated(kind, [t])[0])
    new.load_state_dict(saved)
    other.load_state_dict(saved)
    back = pickle.loads(pickled)
    for t in range(5, 8):
        expect(model, singles, rotated(kind, [t])[0])
    for state in (new, back):
        expect_steps(state, singles, rotated(kind, range(5, 8)))
    for state in (first, new, other, back):
        weights = Known()
        for parameter in weights.parameters():
            parameter.data.fill_(float(hvd.rank()))
        for step in (2, 3):
            state.after_step(weights)
            want = (n - 1) / 2 if step == 3 else float(hvd.rank())
            close(weights.layers[0].weight.detach(), torch.full((1, 1), want))
    with raises(hvd.HoronUnsupported, words=["state_dict()"]):
        pickle.dumps(made(local_group=hvd.global_process_set,
                          master_group=form_process_set([hvd.rank()])))


def check_a_checkpoint_of_groups_and_units_goes_on():
    """Groups that average first; and FSDP's units, of which a pass that failed has left some."""
    n = hvd.size()
    saved = {"round": 3, "steps": 0}
    if n % 2 == 0 and n > 2:
        groups = [[2 * i, 2 * i + 1] for i in range(n // 2)]
        graph = topology.OnePeerExponential(n // 2, rotate=1)
        state = made(proc_per_node=2)
        state.load_state_dict(saved)
        expect_steps(state, groups, [graph.matrix(t) for t in (3, 4)])
    state = made(num_modules=2, proc_per_node=1)
    gradient = torch.full((3,), float(hvd.rank()))
    gossip_grad_hook(state, gradient.clone())
    state.load_state_dict(saved)
    for t in (3, 4):
        for _ in range(2):
            mixed = gradient.clone()
            gossip_grad_hook(state, mixed)
            assert state.state_dict()["round"] == t + 1  # the first unit's turn came first
            want = rotated(Topology.DISSEMINATION, [t])[0][hvd.rank()]
            close(mixed, torch.full((3,), sum(w * r for r, w in enumerate(want))))


def check_assertions():
    with raises(ValueError, words=["Topology.CUBE or"]):
        GossipGraDState(topology="cube")
    with raises(ValueError, words=["num_modules is 0"]):
        GossipGraDState(num_modules=0)
    with raises(ValueError, words=["no groups of"]):
        GossipGraDState(proc_per_node=hvd.size() + 1)
    with raises(ValueError, words=["both, or none"]):
        GossipGraDState(local_group=hvd.global_process_set)
    with raises(ValueError, words=["virtual_topology"]):
        made(virtual_topology=[1] * hvd.size())
    with raises(ValueError, words=["proc_per_node=3"]):
        GossipGraDState(proc_per_node=3, virtual_topology=list(range(hvd.size())))
    with raises(hvd.HoronUnsupported, words=["NO_SHARD"]):
        gossip_grad_hook(made(), torch.ones(4), torch.ones(2))
    assert get_num_modules(Known()) == 3
