"""GossipGraD's participants where they are neither nodes nor single ranks, or in an order of the
user's: groups of ranks, each of which averages inside before its ranks gossip with those that have
the same place in the others.
"""

from horon import topology as topologies
from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.gossip import Gossip, fail_when_late
from horon.process_sets import form_process_set, global_process_set
from horon.runtime import is_homogeneous, local_size, rank, size
from horon.torch.hooks import Reduce
from horon.torch.parameter_gossip import AVERAGE


def groups_for(proc_per_node, virtual_topology, local_group, master_group, process_set):
    """What these arguments of GossipGraDState ask for; None: nodes or single ranks, in their own
    order. All ranks call, with equal arguments (but for the groups); blocking."""
    if local_group is not None or master_group is not None:
        if local_group is None or master_group is None:
            raise HoronInvalidArgument("give local_group and master_group both, or none")
        return Groups(local_group, master_group, virtual_topology)
    if virtual_topology is None:
        if proc_per_node in (None, 1) or not is_homogeneous() or proc_per_node == local_size():
            return None
        inside = proc_per_node
    else:
        inside = process_set.size() // max(1, len(virtual_topology))
        if proc_per_node not in (None, inside):
            raise HoronInvalidArgument(f"proc_per_node={proc_per_node}, but virtual_topology has "
                                       f"{len(virtual_topology)} of {process_set.size()} ranks")
    if inside == 1:
        return Groups(None, process_set, virtual_topology)
    if process_set is not global_process_set:
        raise HoronUnsupported("groups of several ranks are groups of all ranks: leave process_set "
                               "out, or give local_group and master_group")
    return Groups(*_consecutive(inside), virtual_topology)


def _consecutive(inside) -> tuple:
    if not isinstance(inside, int) or inside < 1 or size() % inside != 0:
        raise HoronInvalidArgument(f"{size()} ranks are no groups of {inside}: see proc_per_node "
                                   "and virtual_topology")
    place = rank() % inside
    first = rank() - place
    return (form_process_set(range(first, first + inside), in_time=True),
            form_process_set(range(place, size(), inside), in_time=True))


class Groups:
    """local_group: the ranks that this one averages with, None: itself; master_group: those that it
    gossips with, one of each group."""

    def __init__(self, local_group, master_group, order):
        self.local_group, self.master_group = local_group, master_group
        for group in (local_group, master_group):
            if group is not None and not group.included():
                raise HoronInvalidArgument(f"rank {rank()} is not in its own group {group}")
        self._inside = 1 if local_group is None else local_group.size()
        self._order = order

    def reduce(self, graph, rotation, named_parameters, rounds):
        """A Reduce, or what does as one; `graph` by its name, rotated if there is no order."""
        topology = graph + rotation if self._order is None else self._in_order(graph)
        gossip = Reduce(Gossip("gossipgrad", topology=topology), named_parameters=named_parameters,
                        process_set=self.master_group, rounds=rounds)
        return gossip if self._inside == 1 else _TwoSteps(
            Reduce(fail_when_late("average"), process_set=self.local_group), gossip)

    def averages(self) -> list:
        """[(spec, process set), ...] of the mean over all groups: inside, then between them, as
        gradients go, so that a late rank's partners do not go on without it."""
        between = (AVERAGE, self.master_group)
        inside = (fail_when_late("average"), self.local_group)
        return [between] if self._inside == 1 else [inside, between]

    def _in_order(self, graph):
        """By the participants' lowest ranks."""
        n, inside = self.master_group.size(), self._inside
        if sorted(self._order) != list(range(0, n * inside, inside)):
            raise HoronInvalidArgument(
                f"virtual_topology={self._order!r}: it has the lowest rank of each of {n} groups "
                f"of {inside} once, {list(range(0, n * inside, inside))} in any order")
        at = [leader // inside for leader in self._order]
        plain = topologies.Topology(n, f"graph={graph}")
        return topologies.Custom(n, *([(at[sender], at[to], weight)
                                       for sender, to, weight in plain.edges(t)]
                                      for t in plain.rounds()))


class _TwoSteps:
    """Two Reduces, one after the other."""

    def __init__(self, first, then):
        self._first, self._then = first, then

    @property
    def failure(self):
        return self._first.failure or self._then.failure

    def start(self, bucket):
        wait = self._first.start(bucket)

        def finish():
            wait()
            return self._then.start(bucket)()

        return finish

    def run(self, name, tensor):
        self._first.run(name, tensor)
        self._then.run(name, tensor)
