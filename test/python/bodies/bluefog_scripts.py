"""Scripts as they are written for BlueFog, after its documentation, with the import changed:
averages by one peer a round inside and between machines, in pairs, by windows, with marks in the
timeline."""

import torch
from common import close

try:
    import networkx
except ImportError:
    print("bluefog_scripts: not checked, networkx is not installed")
    networkx = None

if networkx is not None:
    import horon.bluefog.torch as bf
    from horon.bluefog.common import topology_util

CHECKED = networkx is not None


def start(name):
    """A tensor of this rank's own, and the mean that all are after."""
    torch.manual_seed(bf.rank())
    x = torch.randn(50, dtype=torch.float64)
    return x, bf.allreduce(x, average=True, name=f"{name}.mean")


def apart(x, mean):
    return float((x - mean).norm() / mean.norm())


def check_one_peer_inside_and_outside():
    if not CHECKED:
        return
    bf.init()
    size, local = bf.size(), bf.local_size()
    assert bf.is_homogeneous()
    if local > 2:
        bf.set_topology(topology_util.InnerOuterExpo2Graph(size, local))
        turns = topology_util.GetInnerOuterExpo2DynamicSendRecvRanks(size, local, bf.rank())
    else:
        turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    x, mean = start("turns")
    for _ in range(60):
        to, sources = next(turns)
        part = 1 / (len(sources) + 1)
        with bf.timeline_context("x", "one peer"):
            x = bf.neighbor_allreduce(x, name="x", self_weight=part, dst_weights=to,
                                      src_weights=dict.fromkeys(sources, part),
                                      enable_topo_check=False)
    assert apart(x, mean) < 1e-6, apart(x, mean)


def check_machines_in_turns():
    if not CHECKED:
        return
    bf.init()
    turns = topology_util.GetExp2DynamicSendRecvMachineRanks(
        bf.size(), bf.local_size(), bf.rank(), bf.local_rank())
    x, mean = start("machines")
    for _ in range(40):
        to, sources = next(turns)
        x = bf.hierarchical_neighbor_allreduce(
            x, self_weight=1 / (len(sources) + 1), dst_machine_weights=to,
            src_machine_weights=dict.fromkeys(sources, 1 / (len(sources) + 1)), name="machines")
    assert apart(x, mean) < 1e-6, apart(x, mean)


def check_pairs_around_a_ring():
    """Even ranks with the next one, then with the one before; the last of an odd number rests."""
    if not CHECKED:
        return
    bf.init()
    size, rank = bf.size(), bf.rank()
    x, mean = start("pairs")
    for step in range(200):
        partner = rank + 1 if (rank + step) % 2 == 0 else rank - 1
        if 0 <= partner < size:
            handle = bf.pair_gossip_nonblocking(x, partner)
            x = bf.synchronize(handle)
    assert apart(x, mean) < 1e-6, apart(x, mean)


def check_windows_put_and_updated():
    if not CHECKED:
        return
    bf.init()
    bf.set_topology(topology_util.RingGraph(bf.size()))
    x, mean = start("windows")
    assert bf.win_create(x, "x", zero_init=True)
    for step in range(80):
        bf.timeline_start_activity("x", "put")
        bf.win_put(x, "x")
        bf.timeline_end_activity("x")
        bf.barrier()
        with bf.win_mutex("x", for_self=True):
            x = bf.win_update("x")
        bf.barrier()
    assert apart(x, mean) < 1e-6, apart(x, mean)
    with bf.win_lock("x"):
        x.fill_(float(bf.rank()))
    bf.barrier()
    bf.win_get("x")
    bf.barrier()
    heard = bf.in_neighbor_ranks()
    close(bf.win_update("x"), torch.full_like(x, (bf.rank() + sum(heard)) / (len(heard) + 1)))
    bf.barrier()
    bf.win_free("x")


def check_training_with_one_peer_a_step():
    """Linear least squares of all ranks' data, by an optimizer whose neighbors change."""
    if not CHECKED:
        return
    bf.init()
    bf.set_topology(topology_util.ExponentialTwoGraph(bf.size()))
    torch.manual_seed(bf.rank())
    inputs, truth = torch.randn(40, 3), torch.tensor([[1.0, -2.0, 0.5]])
    targets = inputs @ truth.T
    model = torch.nn.Linear(3, 1, bias=False)
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bf.DistributedAdaptThenCombineOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model=model,
        communication_type=bf.CommunicationType.neighbor_allreduce)
    turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    for _ in range(150):
        to, sources = next(turns)
        optimizer.dst_weights = to
        optimizer.src_weights = {r: 1 / (len(sources) + 1) for r in sources}
        optimizer.self_weight = 1 / (len(sources) + 1)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    bf.allreduce_parameters(model.named_parameters())
    close(model.weight.detach(), truth, 1e-3)
