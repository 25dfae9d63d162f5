"""GossipGraD as a communication hook of DistributedDataParallel, and of FullyShardedDataParallel
that shards nothing.

    state = GossipGraDState(topology=Topology.DISSEMINATION)
    model.register_comm_hook(state, gossip_grad_hook)

    model = FullyShardedDataParallel(net, sharding_strategy=ShardingStrategy.NO_SHARD)
    model.register_comm_hook(GossipGraDState(get_num_modules(model)), gossip_grad_hook)

In each step a rank averages its gradients with one peer; whom, changes from step to step. Steps are
counted for each gradient by itself, so any number of buckets will do.

Gradients alone let the ranks' parameters drift apart, which costs of the loss. So let them be
averaged exactly now and then:

    state = GossipGraDState(global_average_every=16)
    ...
    optimizer.step()
    state.after_step(model)

A checkpoint has state.state_dict(), on each rank or on one: load_state_dict(), on all ranks, of a
state made with the same arguments goes on at that round. Or the state itself, pickled by torch.save
beside the hook, as torch's own states are.

Source: Daily et al., GossipGraD: Scalable Deep Learning using Gossip Communication based
Asynchronous Gradient Descent, 2018.
"""

import enum
import itertools
import warnings

import torch

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.gossip import Gossip
from horon.process_sets import global_process_set
from horon.runtime import is_homogeneous, local_size
from horon.torch.calls import GroupCall, reduce_call
from horon.torch.futures import future_of
from horon.torch.gossip_grad_groups import groups_for
from horon.torch.gradient_rounds import GradientRounds
from horon.torch.hooks import Reduce
from horon.torch.parameter_gossip import AVERAGE, DRIFT
from horon.torch.participants import count_nodes


_numbers = itertools.count()
_UNIT = "_fsdp_wrapped_module."  # in a parameter's name, once for each unit around it


class Topology(enum.Enum):
    """Whom a participant meets: in CUBE the one whose number differs in one bit (if there is one),
    in DISSEMINATION it sends 1, 2, 4, ... further on and hears those as far before."""

    CUBE = "one_peer_hypercube"
    DISSEMINATION = "one_peer_exponential"


class GossipGraDState:
    """What gossip_grad_hook is to do. One for each model; the same on all ranks.

    proc_per_node: ranks that average among each other first and take part as one: all of a node, or
    1 (None: where all are on one node), or any number that divides the ranks, consecutive ones then
    (state.groups has their process sets). virtual_topology: the lowest rank of each group, in the
    order in which they meet; it stays. local_group, master_group: other groups, as process sets of
    this rank: those that it averages with, and those that it gossips with. random_seed: the
    participants' order changes by it after each period; None: it stays. named_parameters: names
    make messages readable. num_modules: of FSDP, how many of its units have gradients
    (get_num_modules): in each backward pass they come in the same order, by which they are told
    apart. DDP does without. global_average_every: so many calls of after_step() apart parameters
    are averaged; None or 0: never, with a warning.
    """

    def __init__(self, num_modules=1, topology=None, proc_per_node=None, random_seed=2403,
                 named_parameters=(), process_set=global_process_set, virtual_topology=None,
                 local_group=None, master_group=None, global_average_every=None):
        if not isinstance(num_modules, int) or num_modules < 1:
            raise HoronInvalidArgument(f"num_modules is {num_modules!r}: it counts from 1")
        self._arguments = {  # but what is of this job
            "num_modules": num_modules, "topology": topology, "proc_per_node": proc_per_node,
            "random_seed": random_seed, "virtual_topology": virtual_topology,
            "global_average_every": global_average_every}
        self._has_own_sets = local_group is not None or process_set is not global_process_set
        self._every = int(global_average_every or 0)
        if self._every < 0:
            raise HoronInvalidArgument("global_average_every counts steps from 0 up")
        self.groups = groups_for(proc_per_node, virtual_topology, local_group, master_group,
                                 process_set)
        if self.groups is not None:
            proc_per_node, named_parameters = 1, list(named_parameters)
        self.topology = Topology.DISSEMINATION if topology is None else topology
        if not isinstance(self.topology, Topology):
            raise HoronInvalidArgument(
                f"topology is {topology!r}: use Topology.CUBE or Topology.DISSEMINATION")
        by_node = _by_node(proc_per_node, process_set)
        graph = self.topology.value
        if random_seed is not None:
            graph += f",rotate=1,seed={int(random_seed)}"
        op = Gossip("gossipgrad", topology=graph, hierarchical=by_node)
        self._rounds = GradientRounds()
        self.reduce = Reduce(op, named_parameters=named_parameters, process_set=process_set,
                             rounds=self._rounds)
        if self.groups is not None:
            name = self.topology.value
            self.reduce = self.groups.reduce(name, graph.removeprefix(name), named_parameters,
                                             self._rounds)
        self._units = itertools.cycle(range(num_modules))
        self._steps = self._passes = 0
        self._averages = [(AVERAGE, process_set)] if self.groups is None else self.groups.averages()
        self._name = f"gossipgrad.{next(_numbers)}"
        if not self._every:
            warnings.warn(DRIFT, stacklevel=2)

    @torch.no_grad()
    def after_step(self, model):
        """After each optimizer.step(), on all ranks, also where a GradScaler took none: every
        global_average_every calls the parameters become their means over all ranks. In place;
        blocking. Left out where a rank is later than HORON_GOSSIP_TIMEOUT; inside a group that
        averages first it is HoronLate then."""
        self._steps += 1
        if not self._every or self._steps % self._every != 0:
            return
        named = [(n, p.detach()) for n, p in model.named_parameters() if p.requires_grad]
        for spec, process_set in self._averages:
            GroupCall([reduce_call(f"{self._name}.{name}", spec, parameter, process_set,
                                   in_place=True) for name, parameter in named], self._name).run()

    def state_dict(self) -> dict:
        """Between two steps: the round, and the steps until parameters are averaged. The same on
        all ranks."""
        return {"round": self._passes, "steps": self._steps}

    def load_state_dict(self, state) -> None:
        """On all ranks, between two steps: the next backward pass is the round after the last one
        of `state`."""
        self._passes, self._steps = state["round"], state["steps"]
        self._rounds.go_on_at(self._passes)
        self._units = itertools.cycle(range(self._arguments["num_modules"]))

    def __getstate__(self):
        if self._has_own_sets:
            raise HoronUnsupported("process sets are of this job: save state.state_dict(), and "
                                   "load it into a GossipGraDState with process sets of that job")
        return {"arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, saved):
        """On all ranks."""
        self.__init__(**saved["arguments"])
        self.load_state_dict(saved["state"])

    def average_unit(self, gradient):
        """The gradient of the FSDP unit whose turn it is. In place; blocking."""
        unit = next(self._units)
        if unit == 0:
            self.pass_begins()
        self.reduce.run(f"unit.{unit}", gradient)

    def pass_begins(self):
        self._rounds.round = self._passes
        self._passes += 1
        if self._steps == 0 and self._passes == 2 * self._every:
            warnings.warn(f"after {self._passes} backward passes state.after_step(model) was not "
                          "called: parameters are not averaged, and drift apart", stacklevel=2)


def _by_node(proc_per_node, process_set) -> bool:
    """Whether nodes take part as one, which is the same on all ranks."""
    if proc_per_node is None:
        return 1 < count_nodes(process_set) < process_set.size()
    if proc_per_node != 1 and not is_homogeneous():
        raise HoronUnsupported(f"proc_per_node={proc_per_node}: the nodes have different numbers "
                               "of ranks; use None for all ranks of a node, or 1")
    if proc_per_node not in (1, local_size()):
        raise HoronUnsupported(f"proc_per_node={proc_per_node}: use 1, or the {local_size()} ranks "
                               "of a node; HORON_LOCAL_SIZE pretends other nodes")
    return proc_per_node > 1


def gossip_grad_hook(state: GossipGraDState, bucket, output=None):
    """A communication hook: a DDP bucket's future, or an FSDP unit's gradient averaged in place."""
    if output is not None:
        raise HoronUnsupported("gossip_grad_hook needs whole gradients: FullyShardedDataParallel "
                               "with ShardingStrategy.NO_SHARD, or DistributedDataParallel")
    if isinstance(bucket, torch.Tensor):
        return state.average_unit(bucket)
    if bucket.index() == 0:
        state.pass_begins()
    return future_of(state.reduce.start(bucket))


def get_num_modules(module) -> int:
    """FSDP units in `module` that have gradients of their own; without FSDP, modules with
    parameters of their own."""
    from torch.distributed.fsdp import FullyShardedDataParallel  # slow to import

    units = FullyShardedDataParallel.fsdp_modules(module)
    if not units:
        return sum(any(True for _ in m.parameters(recurse=False)) for m in module.modules())
    return sum(any(p.requires_grad and name.count(_UNIT) == 1
                   for name, p in unit.named_parameters()) for unit in units)
