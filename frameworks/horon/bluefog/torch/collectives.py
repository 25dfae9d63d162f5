"""BlueFog's collectives in terms of horon.torch."""

import horon.torch as hvd
from horon.bluefog.torch import state
from horon.errors import HoronInvalidArgument
from horon.process_sets import form_process_set
from horon.runtime import cross_rank, rank, size, when_left
from horon.torch.pairs import Pair

_node_sets = {}  # this node's, by its first rank
_pairs = {}  # by their two ranks
when_left(_node_sets.clear)
when_left(_pairs.clear)


def _node_set(is_hierarchical_local):
    """The ranks of this node. They form it when they first call; HoronLate where one is late."""
    if not is_hierarchical_local:
        return hvd.global_process_set
    first = rank() - hvd.local_rank()
    if first not in _node_sets:
        node = range(first, first + hvd.local_size())
        _node_sets[first] = form_process_set(node, in_time=True)
    return _node_sets[first]


def _reduction(average, is_hierarchical_local, name):
    return {"name": name, "op": hvd.Average if average else hvd.Sum,
            "process_set": _node_set(is_hierarchical_local)}


def allreduce(tensor, average=True, is_hierarchical_local=False, name=None):
    return hvd.allreduce(tensor, **_reduction(average, is_hierarchical_local, name))


def allreduce_(tensor, average=True, is_hierarchical_local=False, name=None):
    return hvd.allreduce_(tensor, **_reduction(average, is_hierarchical_local, name))


def allreduce_nonblocking(tensor, average=True, is_hierarchical_local=False, name=None):
    return hvd.allreduce_async(tensor, **_reduction(average, is_hierarchical_local, name))


def allreduce_nonblocking_(tensor, average=True, is_hierarchical_local=False, name=None):
    return hvd.allreduce_async_(tensor, **_reduction(average, is_hierarchical_local, name))


def _arguments(self_weight, src_weights, dst_weights, topology_of, me, name):
    """Without weights the topology's; where only one list is given the other is the topology's."""
    if self_weight is None and src_weights is None and dst_weights is None:
        return {"topology": topology_of(), "name": name}
    if src_weights is None:
        edges = topology_of().edges()
        src_weights = {s: w for s, to, w in edges if to == me and s != me}
        own = next(w for s, to, w in edges if to == me and s == me)
        self_weight = own if self_weight is None else self_weight
    if dst_weights is None:
        dst_weights = topology_of().peers(me)[0]
    return {"self_weight": self_weight, "src_weights": src_weights, "dst_weights": dst_weights,
            "name": name}


def neighbor_allreduce(tensor, *, self_weight=None, src_weights=None, dst_weights=None,
                       enable_topo_check=True, name=None):
    """Lists are always checked: enable_topo_check changes nothing."""
    return hvd.neighbor_allreduce(tensor, **_arguments(self_weight, src_weights, dst_weights,
                                                       state.rank_topology, rank(), name))


def neighbor_allreduce_nonblocking(tensor, *, self_weight=None, src_weights=None, dst_weights=None,
                                   enable_topo_check=True, name=None):
    return hvd.neighbor_allreduce_async(tensor, **_arguments(
        self_weight, src_weights, dst_weights, state.rank_topology, rank(), name))


def _ranks_or_topology(src_ranks, dst_ranks):
    topology = state.rank_topology()
    out, heard = topology.peers(rank())
    return {"src_ranks": heard if src_ranks is None else src_ranks,
            "dst_ranks": out if dst_ranks is None else dst_ranks}


def neighbor_allgather(tensor, *, src_ranks=None, dst_ranks=None, enable_topo_check=True,
                       name=None):
    return hvd.neighbor_allgather(tensor, name=name, **_ranks_or_topology(src_ranks, dst_ranks))


def neighbor_allgather_nonblocking(tensor, *, src_ranks=None, dst_ranks=None,
                                   enable_topo_check=True, name=None):
    return hvd.neighbor_allgather_async(tensor, name=name,
                                        **_ranks_or_topology(src_ranks, dst_ranks))


def _between_machines(self_weight, src_machine_weights, dst_machine_weights, name):
    return {**_arguments(self_weight, src_machine_weights, dst_machine_weights,
                         state.machine_topology, cross_rank(), name), "hierarchical": True}


def hierarchical_neighbor_allreduce(tensor, *, self_weight=None, src_machine_weights=None,
                                    dst_machine_weights=None, enable_topo_check=False, name=None):
    return hvd.neighbor_allreduce(tensor, **_between_machines(self_weight, src_machine_weights,
                                                              dst_machine_weights, name))


def hierarchical_neighbor_allreduce_nonblocking(tensor, *, self_weight=None,
                                                src_machine_weights=None, dst_machine_weights=None,
                                                enable_topo_check=False, name=None):
    return hvd.neighbor_allreduce_async(tensor, **_between_machines(
        self_weight, src_machine_weights, dst_machine_weights, name))


def pair_gossip_nonblocking(tensor, target_rank, self_weight=None, pair_weight=None, name=None):
    """self_weight * tensor + pair_weight * the target's; half each by default. The target calls
    with this rank, in any order with its other pairs; the other ranks take no notice. The tensor
    must not change until synchronize(handle), which gives a new one."""
    me, target = rank(), int(target_rank)
    if target == me or not 0 <= target < size():
        raise HoronInvalidArgument(f"rank {me} of {size()} cannot meet rank {target_rank}")
    ranks = tuple(sorted((me, target)))
    pair = _pairs.setdefault(ranks, Pair(ranks))
    own = 0.5 if self_weight is None else self_weight
    theirs = 0.5 if pair_weight is None else pair_weight

    def make(pair_set):
        other = 1 - pair_set.rank()
        return hvd.neighbor_allreduce_async(tensor, self_weight=own, dst_weights=[other],
                                            src_weights={other: theirs}, name=name,
                                            process_set=pair_set)

    return pair.start(make)


def pair_gossip(tensor, target_rank, self_weight=None, pair_weight=None, name=None):
    """pair_gossip_nonblocking, and its result."""
    return hvd.synchronize(pair_gossip_nonblocking(tensor, target_rank, self_weight, pair_weight,
                                                   name))
