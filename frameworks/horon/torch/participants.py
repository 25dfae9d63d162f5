"""Who takes part in gossip: the ranks of a process set, or the nodes that they are on.

All of the set's ranks must come to the same answer. What a rank knows of its node does not do for
that where nodes differ: cross_size() is the number of nodes that have this local rank.
"""

import torch

from horon.gossip import Gossip, fail_when_late
from horon.runtime import cross_size, is_homogeneous
from horon.torch.calls import reduce_call, set_id


def nodes_are_even(process_set) -> bool:
    """Whether all of its nodes are known to have equally many of its ranks."""
    return set_id(process_set) == 0 and is_homogeneous()


def count_nodes(process_set) -> int:
    """For all ranks of the set: how many nodes they are on. Blocking where these are not even."""
    if nodes_are_even(process_set):
        return cross_size()
    spec = fail_when_late(Gossip(topology="complete", hierarchical=True, local_op="sum").spec)
    ranks_a_node = reduce_call("gossip.nodes", spec, torch.ones(1, dtype=torch.float64),
                               process_set).run()
    return round(process_set.size() / ranks_a_node.item())


def count_participants(process_set, hierarchical) -> int:
    """For all ranks of the set; hierarchical: its nodes."""
    return count_nodes(process_set) if hierarchical else process_set.size()
