"""Module wrappers and gossipers, against what the optimizers do and against means."""

import copy

import torch
from common import close, raises, same
from gossip_optimizer import by_hand, data, flat
from optimizers import loss_of, make_model, same_models, sgd, train_alone

import horon.gossip
import horon.mixing as mixing
import horon.torch as hvd
from horon import topology
from horon.torch.gossip import (
    AllReduceDataParallel,
    BilatGossipDataParallel,
    GossipDataParallel,
    SimpleGossipDataParallel,
)


def train(model, optimizer, steps):
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, batch[hvd.rank()]).backward()
        optimizer.step()
        with torch.no_grad():  # a look in between changes nothing
            model(batch[hvd.rank()])


def check_the_modules_train_like_the_optimizers():
    size = hvd.size()
    push = topology.Star(size, mixing=mixing.Push())
    for make, graph, options in (
            (lambda net: SimpleGossipDataParallel(net, push), push, {}),
            (lambda net: SimpleGossipDataParallel(net, "ring", push_sum=False),
             topology.Ring(size), {}),
            (lambda net: GossipDataParallel(net, push), push, {}),
            (lambda net: GossipDataParallel(net, push, overlap=True), push, {"overlap": True}),
            (lambda net: GossipDataParallel(net, push, overlap=True, synch_freq=2), push,
             {"overlap": True, "sync_freq": 2}),
            (lambda net: GossipDataParallel(net, push_sum=False, overlap=True, synch_freq=1),
             topology.Topology(size), {"overlap": True, "sync_freq": 1}),
            (lambda net: GossipDataParallel(net, push_sum=False, overlap=True),
             topology.Topology(size), {"overlap": True})):
        net = make_model()
        model = make(net)
        train(model, sgd(net), data())
        model.finish_gossip()
        want, weights = by_hand(graph, data(), apart=0.0, **options)
        close(flat(net), want[hvd.rank()], 2e-5)
        close(torch.tensor(model.get_extra_state()["weight"]), weights[hvd.rank(), 0].float())


def check_evaluation_changes_nothing():
    """However often, to the bit, also while what the last step changed was not mixed yet."""
    net = make_model()
    model = GossipDataParallel(net, topology.Star(hvd.size(), mixing=mixing.Push()))
    optimizer, batch = sgd(net), data(1)[0][hvd.rank()]
    train(model, optimizer, data(1))
    loss_of(model, batch).backward()
    optimizer.step()
    model.eval()
    model(batch)
    before = flat(net)
    for _ in range(10):
        model(batch)
    same(flat(net), before)
    model.train()
    model.finish_gossip()
    assert hvd.size() == 1 or not torch.equal(flat(net), before)


def check_allreduce():
    net = make_model()
    model = AllReduceDataParallel(net)
    optimizer = sgd(net)
    train(model, optimizer, data(1))
    same_models(net, train_alone(hvd.size()))


def check_pairs_keep_the_sum():
    net = make_model()
    model = BilatGossipDataParallel(net)
    optimizer = sgd(net)
    optimizer.param_groups[0]["lr"] = 0.0
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(hvd.rank())
    before = hvd.allreduce(flat(net))
    train(model, optimizer, data(5))
    model.finish_gossip()
    close(hvd.allreduce(flat(net)), before, 1e-5)
    model.finish_gossip(average=True)
    close(flat(net), before, 1e-5)
    model.close_gossip()


def check_checkpoints_go_on_bit_by_bit():
    def make():
        net = make_model()
        return net, GossipDataParallel(net, topology.Star(hvd.size(), mixing=mixing.Push()),
                                       overlap=True)

    def plain(net):
        return torch.optim.SGD(net.parameters(), lr=0.1)

    net, model = make()
    train(model, plain(net), data()[:3])
    saved = copy.deepcopy(model.state_dict())
    train(model, plain(net), data()[3:])
    model.finish_gossip()
    other, resumed = make()
    train(resumed, plain(other), data()[:2])
    resumed.load_state_dict(saved)
    train(resumed, plain(other), data()[3:])
    resumed.finish_gossip()
    same(flat(other), flat(net))


def check_buffers_are_those_of_all_samples():
    """Ranks saw batches with different means and sizes: as if one had seen all of them."""
    generator = torch.Generator().manual_seed(7)
    batches = [torch.randn(4 + 2 * r, 3, generator=generator) + 5 * r for r in range(hvd.size())]
    norm = torch.nn.BatchNorm1d(3, momentum=None, affine=False)
    net = torch.nn.Sequential(norm, torch.nn.Linear(3, 1))
    net.register_buffer("level", torch.tensor(float(hvd.rank())))
    mine = batches[hvd.rank()]
    for _ in range(hvd.rank() + 1):
        net(mine)
    norm.running_var.mul_((len(mine) - 1) / len(mine))  # of the samples themselves
    hvd.average_buffers(net, samples=len(mine))
    everything = torch.cat(batches)
    close(norm.running_mean, everything.mean(0), 1e-4)
    close(norm.running_var, everything.var(0, unbiased=False), 1e-4)
    assert norm.num_batches_tracked == hvd.size()
    sizes = torch.tensor([float(len(b)) for b in batches])
    close(net.level, (torch.arange(hvd.size()) * sizes).sum() / sizes.sum())


def check_gossipers():
    size, me = hvd.size(), hvd.rank()
    x = torch.full((5,), float(me))
    star = horon.gossip.PushSum(topology.Star(size))
    for _ in range(40):
        x = star.mix(x)
    close(star.estimate(x), torch.full((5,), (size - 1) / 2), 1e-4)
    assert size <= 2 or star.weight.item() != 1
    assert star.round == 40
    mine = torch.full((5,), float(me))
    pull = horon.gossip.PushPull("ring")
    heard = pull.mix(mine, residual=True)
    want = sum(w * s for s, to, w in topology.Ring(size).edges() if to == me != s)
    close(heard, torch.full((5,), float(want)))
    if size in (1, 2, 4):
        pairs, x = horon.gossip.BilatPushPull(), mine
        for _ in range(pairs.graph.period):
            x = pairs.mix(x)
        close(x, torch.full((5,), (size - 1) / 2))
    if size > 2:
        with raises(ValueError, words=["more than pairs"]):
            horon.gossip.BilatPushPull("ring")
        with raises(ValueError, words=["or PushSum"]):
            horon.gossip.PushPull("star", mixing.Push())
