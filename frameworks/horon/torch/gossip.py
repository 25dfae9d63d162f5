"""Averages among neighbors, without training: neighbor_allreduce, neighbor_allgather, pair_average,
gossip_average and push_sum; beside them the names of gossipers.py and gossip_modules.py.

Neighbors are ranks of the process set. Every rank that takes part calls, with lists that agree: if
they do not, all get an error that shows both views.
"""

import torch

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.gossip import Gossip, fail_when_late, graph_of, rounds_differ
from horon.mixing import Natural, Push
from horon.names import full_name
from horon.process_sets import global_process_set
from horon.runtime import cross_rank
from horon.torch.calls import GroupCall, Handle, reduce_call, rows_call, set_id
from horon.torch.gossip_modules import (  # noqa: F401
    AllReduceDataParallel,
    BilatGossipDataParallel,
    GossipDataParallel,
    SimpleGossipDataParallel,
)
from horon.torch.gossipers import BilatPushPull, PushPull, PushSum  # noqa: F401
from horon.torch.parameter_gossip import divisor
from horon.torch.participants import count_participants, nodes_are_even

_MOST_EXACT = 128  # ranks whose automatic topology is exact whatever their number (spec.cc)


def _weights(given, weight=1.0) -> dict:
    """{rank: weight} of a mapping, or of a list of ranks that all get `weight`."""
    if given is None:
        return {}
    pairs = given.items() if hasattr(given, "items") else ((rank, weight) for rank in given)
    return {int(rank): float(value) for rank, value in pairs}


def _participant(process_set, hierarchical) -> int:
    if not hierarchical:
        return process_set.rank()
    if not nodes_are_even(process_set):
        raise HoronUnsupported("hierarchical needs all ranks, and equally many on every node")
    return cross_rank()


def _neighbor_call(tensor, self_weight, src_weights, dst_weights, topology, hierarchical, sums,
                   name, process_set, in_place):
    by_topology = src_weights is None and dst_weights is None
    spec = Gossip(topology=topology, hierarchical=hierarchical).spec if by_topology else ""
    if name is None and by_topology and rounds_differ(spec, process_set.size()):
        raise HoronInvalidArgument("each call is another round of this topology, and which one "
                                   "belongs to the tensor: give the tensor a name")
    name = full_name("neighbor_allreduce", name, set_id(process_set))
    if by_topology:
        if self_weight is not None or sums != "any":
            raise HoronInvalidArgument("self_weight and sums go with src_weights and dst_weights: "
                                       "without these the topology has the weights")
        return reduce_call(name, spec, tensor, process_set, in_place=in_place)
    if src_weights is None or dst_weights is None or topology is not None:
        raise HoronInvalidArgument(
            "neighbor_allreduce takes a topology, or src_weights and dst_weights both")
    uniform = 1.0 / (len(src_weights) + 1)
    sources, destinations = _weights(src_weights, uniform), _weights(dst_weights)
    own = uniform if self_weight is None else float(self_weight)
    spec = f"neighbor_allreduce:sums={sums}" + (",hierarchical=1" if hierarchical else "")
    splits = (_participant(process_set, hierarchical), len(sources), *sources, *destinations)
    weights = (own, *sources.values(), *destinations.values())
    return reduce_call(name, spec, tensor, process_set, in_place=in_place, splits=splits,
                       weights=weights)


def neighbor_allreduce(tensor, *, self_weight=None, src_weights=None, dst_weights=None,
                       topology=None, hierarchical=False, sums="any", name=None,
                       process_set=global_process_set):
    """self_weight * tensor + the sum over sources of src_weight * (their dst_weight for me) *
    theirs. Blocking; the result is new.

    src_weights, dst_weights: {rank: weight}, or lists of ranks (then 1 / (sources + 1), and 1).
    Without them: the next round of `topology` (None: an exact one) of the tensor of this name,
    which is needed where rounds differ. sums: "rows", "columns" or "both"
    claims that the weights everybody hears, or sends, sum to 1, and has it checked.
    hierarchical: the neighbors are nodes, whose ranks average first.
    """
    return _neighbor_call(tensor, self_weight, src_weights, dst_weights, topology, hierarchical,
                          sums, name, process_set, False).run()


def neighbor_allreduce_async(tensor, *, self_weight=None, src_weights=None, dst_weights=None,
                             topology=None, hierarchical=False, sums="any", name=None,
                             process_set=global_process_set) -> Handle:
    """neighbor_allreduce without waiting; synchronize(handle) gives the new tensor."""
    return _neighbor_call(tensor, self_weight, src_weights, dst_weights, topology, hierarchical,
                          sums, name, process_set, False).start()


def pair_average(tensor, peer, weight=0.5, name=None, process_set=global_process_set):
    """(1 - weight) * tensor + weight * the peer's. The peer calls with this rank. Blocking."""
    return neighbor_allreduce(tensor, self_weight=1 - weight, src_weights={peer: weight},
                              dst_weights=[peer], name=name, process_set=process_set)


def pair_average_async(tensor, peer, weight=0.5, name=None,
                       process_set=global_process_set) -> Handle:
    """pair_average without waiting; synchronize(handle) gives the new tensor."""
    return neighbor_allreduce_async(tensor, self_weight=1 - weight, src_weights={peer: weight},
                                    dst_weights=[peer], name=name, process_set=process_set)


def _gather_call(tensor, src_ranks, dst_ranks, topology, round_, name, process_set):
    if (src_ranks is None) != (dst_ranks is None):
        raise HoronInvalidArgument("neighbor_allgather takes src_ranks and dst_ranks both, or none")
    if src_ranks is None:
        me = process_set.rank()
        dst_ranks, src_ranks = graph_of(topology, process_set.size()).peers(me, round_)
    name = full_name("neighbor_allgather", name, set_id(process_set))
    splits = (process_set.rank(), len(src_ranks), *map(int, src_ranks), *map(int, dst_ranks))
    return rows_call(name, "neighbor_allgather", tensor, process_set, splits)


def neighbor_allgather(tensor, *, src_ranks=None, dst_ranks=None, topology=None, round=0,
                       name=None, process_set=global_process_set):
    """The tensors of the sources, one below the other in the order of src_ranks; first dimensions
    may differ. Without ranks: those of the topology in this round, ascending. Blocking."""
    return _gather_call(tensor, src_ranks, dst_ranks, topology, round, name, process_set).run()


def neighbor_allgather_async(tensor, *, src_ranks=None, dst_ranks=None, topology=None, round=0,
                             name=None, process_set=global_process_set) -> Handle:
    """neighbor_allgather without waiting; synchronize(handle) gives the rows."""
    return _gather_call(tensor, src_ranks, dst_ranks, topology, round, name, process_set).start()


def _average_call(tensor, rounds, tol, topology, mixing, hierarchical, name, process_set):
    """All rounds as one op. A Call, or where push-sum weights go along a GroupCall."""
    graph = graph_of(topology, count_participants(process_set, hierarchical), mixing)
    if _is_automatic(topology) and rounds is None and tol is None:
        _check_exact(graph.n, mixing)
    rounds = _rounds_of(graph, rounds, tol, least=int(hierarchical))
    if not graph.columns_sum_to_one:
        raise HoronInvalidArgument(
            f"with {graph!r} gossip approaches a weighted mean: use mixing that conserves the sum, "
            "such as horon.mixing.Push() or MetropolisHastings()")
    uneven = hierarchical and not nodes_are_even(process_set)
    gossip = Gossip(topology=graph, hierarchical=hierarchical,
                    local_op="sum" if uneven else "average")
    spec = fail_when_late(f"{gossip.spec},rounds={rounds}")
    # Of uneven nodes each counts by its ranks: it begins with their sum, over a node's mean number.
    share = graph.n / process_set.size() if uneven else 1.0
    name = full_name("gossip_average", name, set_id(process_set))
    call = reduce_call(name, spec, tensor, process_set, share, round=-1)
    if graph.rows_sum_to_one:
        return call
    weight = torch.ones(1, dtype=torch.float64)
    weights = reduce_call(f"{name}.weight", spec, weight, process_set, share, round=-1)
    # Element types may differ, so each is its own bucket.
    return GroupCall([call, weights], name).then(
        lambda mixed: mixed[0].div_(divisor(mixed[1].item())))


def gossip_average(tensor, rounds=None, tol=None, topology=None, mixing=None, hierarchical=False,
                   name=None, process_set=global_process_set):
    """The mean over all ranks, as closely as `rounds` rounds of gossip bring it. Blocking.

    tol: as many rounds as leave at most so much of the ranks' disagreement. Neither: one period
    of the topology, and without a topology the mean itself, of at most 128 ranks or a power of two
    of them. Push-sum weights go along where the mixing needs them. All rounds are one op, which all
    ranks must ask for alike.
    """
    return _average_call(tensor, rounds, tol, topology, mixing, hierarchical, name,
                         process_set).run()


def gossip_average_async(tensor, rounds=None, tol=None, topology=None, mixing=None,
                         hierarchical=False, name=None, process_set=global_process_set) -> Handle:
    """gossip_average without waiting; synchronize(handle) gives the mean."""
    return _average_call(tensor, rounds, tol, topology, mixing, hierarchical, name,
                         process_set).start()


def _is_automatic(topology) -> bool:
    return topology is None or topology == "auto"


def _check_exact(n, mixing) -> None:
    """Whether a period of the automatic topology is the mean."""
    if mixing is not None and not isinstance(mixing, Natural):
        raise HoronInvalidArgument(
            f"with {mixing!r} a period of the automatic topology is not the mean: give rounds or "
            "tol, or leave mixing out")
    if n > _MOST_EXACT and n & (n - 1):
        raise HoronInvalidArgument(
            f"no topology of {n} ranks is chosen that finds the mean in few rounds: give rounds or "
            f"tol (which ends at so much of the disagreement), or a topology such as "
            f"horon.topology.Base({n})")


def _rounds_of(graph, rounds, tol, least) -> int:
    if rounds is not None and tol is not None:
        raise HoronInvalidArgument("give rounds or tol, not both")
    if tol is not None:
        return max(least, graph.rounds_for(tol))  # inside nodes ranks need one even so
    if rounds is None and graph.period == 0:
        raise HoronInvalidArgument(f"{graph!r} never repeats: give rounds or tol")
    return graph.period if rounds is None else int(rounds)


def push_sum(tensor, rounds=None, tol=None, topology=None, name=None,
             process_set=global_process_set):
    """gossip_average with weights that senders share out: right on any graph, also where ranks
    have different numbers of neighbors. Without a topology as gossip_average, whose senders share
    out all they have, too."""
    return gossip_average(tensor, rounds, tol, topology, _shared_out(topology), False, name,
                          process_set)


def _shared_out(topology):
    """The weights of the automatic topology are such, and make it exact."""
    return None if _is_automatic(topology) else Push()


def push_sum_async(tensor, rounds=None, tol=None, topology=None, name=None,
                   process_set=global_process_set) -> Handle:
    return gossip_average_async(tensor, rounds, tol, topology, _shared_out(topology), False, name,
                                process_set)
