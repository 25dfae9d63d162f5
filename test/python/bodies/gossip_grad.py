"""GossipGraD as DDP's communication hook: with gradients that are known."""

import warnings

import torch
from common import close, raises
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch_distributed import group_of_all

import horon.torch as hvd
from horon import topology
from horon.torch.gossip_grad import (
    GossipGraDState,
    Topology,
    get_num_modules,
    gossip_grad_hook,
)


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
    assert any("drift apart" in str(w.message) for w in caught)
    return state


def check_gradients_of_known_size():
    """Groups of one, and the node's ranks as a group: a step is a round, whatever the buckets."""
    for kind, family in ((Topology.CUBE, topology.OnePeerHypercube),
                         (Topology.DISSEMINATION, topology.OnePeerExponential)):
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


def check_the_order_rotates():
    """All participants meet others than in the fixed order, and the sum is kept."""
    if hvd.size() < 4 or hvd.local_size() not in (1, hvd.size()):
        return
    models = [wrapped(made(proc_per_node=1, random_seed=seed)) for seed in (None, 2403)]
    differs = False
    for _ in range(6):
        gradients = []
        for model in models:
            model.zero_grad()
            model(float(hvd.rank())).backward()
            gradients.append(model.module.layers[0].weight.grad.clone())
            close(hvd.allreduce(gradients[-1]), torch.full((1, 1), (hvd.size() - 1) / 2))
        differs = differs or bool(gradients[0] != gradients[1])
    seen = hvd.allreduce(torch.tensor(float(differs)), op=hvd.Max)
    assert seen == 1


def check_assertions():
    with raises(ValueError, words=["Topology.CUBE or"]):
        GossipGraDState(topology="cube")
    with raises(ValueError, words=["num_modules is 0"]):
        GossipGraDState(num_modules=0)
    with raises(hvd.HoronUnsupported, words=["HORON_LOCAL_SIZE"]):
        GossipGraDState(proc_per_node=hvd.local_size() + 1)
    with raises(hvd.HoronUnsupported, words=["NO_SHARD"]):
        gossip_grad_hook(made(), torch.ones(4), torch.ones(2))
    assert get_num_modules(Known()) == 3
