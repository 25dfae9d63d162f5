"""GossipGraD as a communication hook of DistributedDataParallel.

    state = GossipGraDState(topology=Topology.DISSEMINATION)
    model.register_comm_hook(state, gossip_grad_hook)

In each step a rank averages its gradients with one peer; whom, changes from step to step. Steps are
counted for each gradient by itself, so any number of modules and buckets will do.

Source: Daily et al., GossipGraD: Scalable Deep Learning using Gossip Communication based
Asynchronous Gradient Descent, 2018.
"""

import enum
import warnings

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.gossip import Gossip
from horon.process_sets import global_process_set
from horon.runtime import local_size, size
from horon.torch.futures import future_of
from horon.torch.hooks import Reduce
from horon.torch.parameter_gossip import DRIFT


class Topology(enum.Enum):
    """Whom a participant meets: in CUBE the one whose number differs in one bit (if there is one),
    in DISSEMINATION it sends 1, 2, 4, ... further on and hears those as far before."""

    CUBE = "one_peer_hypercube"
    DISSEMINATION = "one_peer_exponential"


class GossipGraDState:
    """What gossip_grad_hook is to do. One for each model; the same on all ranks.

    proc_per_node: ranks that average among each other first and take part as one: all of a node,
    or 1 (None: where all are on one node). random_seed: the participants' order changes by it after
    each period; None: it stays. named_parameters: names make messages readable. num_modules:
    accepted for programs that count modules; nothing depends on it.
    """

    def __init__(self, num_modules=1, topology=None, proc_per_node=None, random_seed=2403,
                 named_parameters=(), process_set=global_process_set):
        if not isinstance(num_modules, int) or num_modules < 1:
            raise HoronInvalidArgument(f"num_modules is {num_modules!r}: it counts from 1")
        self.topology = Topology.DISSEMINATION if topology is None else topology
        if not isinstance(self.topology, Topology):
            raise HoronInvalidArgument(
                f"topology is {topology!r}: use Topology.CUBE or Topology.DISSEMINATION")
        several = size() > local_size()
        inside = (local_size() if several else 1) if proc_per_node is None else proc_per_node
        if inside not in (1, local_size()):
            raise HoronUnsupported(f"proc_per_node={inside}: use 1, or the {local_size()} ranks of "
                                   "a node; HORON_LOCAL_SIZE pretends other nodes")
        graph = self.topology.value
        if random_seed is not None:
            graph += f",rotate=1,seed={int(random_seed)}"
        op = Gossip("gossipgrad", topology=graph, hierarchical=inside > 1)
        self.reduce = Reduce(op, named_parameters=named_parameters, process_set=process_set)
        warnings.warn(DRIFT, stacklevel=2)


def gossip_grad_hook(state: GossipGraDState, bucket):
    """A DDP communication hook."""
    if not hasattr(bucket, "gradients"):
        raise HoronUnsupported("gossip_grad_hook is for DistributedDataParallel; with FSDP every "
                               "rank must get the same gradient")
    return future_of(state.reduce.start(bucket))


def get_num_modules(module) -> int:
    """Modules with parameters of their own in `module`."""
    return sum(any(True for _ in m.parameters(recurse=False)) for m in module.modules())
