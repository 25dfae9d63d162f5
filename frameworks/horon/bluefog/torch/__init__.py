"""bluefog.torch's functions. Nonblocking calls give a handle for synchronize(), wait() or poll().

A machine is a node.
"""

import horon.torch as hvd
from horon.bluefog.common.topology_util import (
    ExponentialGraph,
    ExponentialTwoGraph,
    FullyConnectedGraph,
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
    GetRecvWeights,
    GetSendWeights,
    IsRegularGraph,
    IsTopologyEquivalent,
    MeshGrid2DGraph,
    RingGraph,
    StarGraph,
    SymmetricExponentialGraph,
)
from horon.bluefog.torch import state
from horon.bluefog.torch.activities import (
    timeline_context,
    timeline_end_activity,
    timeline_start_activity,
)
from horon.bluefog.torch.collectives import (
    allreduce,
    allreduce_,
    allreduce_nonblocking,
    allreduce_nonblocking_,
    hierarchical_neighbor_allreduce,
    hierarchical_neighbor_allreduce_nonblocking,
    neighbor_allgather,
    neighbor_allgather_nonblocking,
    neighbor_allreduce,
    neighbor_allreduce_nonblocking,
    pair_gossip,
    pair_gossip_nonblocking,
)
from horon.bluefog.torch.optimizers import (
    CommunicationType,
    DistributedAdaptThenCombineOptimizer,
    DistributedAdaptWithCombineOptimizer,
    DistributedAllreduceOptimizer,
    DistributedGradientAllreduceOptimizer,
    DistributedHierarchicalNeighborAllreduceOptimizer,
    DistributedNeighborAllreduceOptimizer,
    DistributedPullGetOptimizer,
    DistributedPushSumOptimizer,
    DistributedWinPutOptimizer,
)
from horon.bluefog.torch.state import (
    in_neighbor_machine_ranks,
    in_neighbor_ranks,
    is_machine_topo_weighted,
    is_topo_weighted,
    load_machine_topology,
    load_topology,
    machine_topology,
    out_neighbor_machine_ranks,
    out_neighbor_ranks,
    rank_topology,
    set_machine_topology,
    set_topology,
)
from horon.bluefog.torch.topology_util import (
    InferDestinationFromSourceRanks,
    InferSourceFromDestinationRanks,
)
from horon.bluefog.torch.windows import (
    get_current_created_window_names,
    get_win_version,
    turn_off_win_ops_with_associated_p,
    turn_on_win_ops_with_associated_p,
    win_accumulate,
    win_accumulate_nonblocking,
    win_associated_p,
    win_create,
    win_free,
    win_get,
    win_get_nonblocking,
    win_lock,
    win_mutex,
    win_poll,
    win_put,
    win_put_nonblocking,
    win_update,
    win_update_then_collect,
    win_wait,
)
from horon.torch import (
    allgather,
    allgather_async as allgather_nonblocking,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async as broadcast_nonblocking,
    broadcast_async_ as broadcast_nonblocking_,
    broadcast_optimizer_state,
    broadcast_parameters,
    cross_rank as machine_rank,
    cross_size as machine_size,
    is_homogeneous,
    local_rank,
    local_size,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    shutdown,
    size,
    synchronize,
    synchronize as wait,
)
from horon.torch.calls import wait_all


def init(topology_fn=None, is_weighted=False) -> None:
    """Joins the job; the topology is topology_fn(size), or the exponential graph."""
    if not hvd.is_initialized():
        state.windows.clear()  # those of a job that was left
    hvd.init()
    set_topology(None if topology_fn is None else topology_fn(size()), is_weighted)


def allreduce_parameters(params) -> None:
    """The parameters become their means over all ranks, in place; blocking. `params`:
    model.state_dict(), model.named_parameters(), or any tensors or (name, tensor) pairs."""
    pairs = sorted(params.items()) if isinstance(params, dict) else params
    pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in pairs]
    wait_all([allreduce_nonblocking_(tensor.detach(), name=name) for name, tensor in pairs])


def unified_mpi_window_model_supported() -> bool:
    """Whether what was delivered to a window is seen without further ado: always, whatever the
    MPI library's memory model, for windows are not MPI's here."""
    return True


def suspend() -> None:
    """Accepted for notebooks that call it between cells: a runtime that waits costs nothing."""


def resume() -> None:
    """After suspend(). Accepted, too."""


def set_skip_negotiate_stage(value) -> None:
    """Accepted for scripts that call it; what is agreed once costs no messages anyway."""
    state.skips_negotiation = bool(value)


def get_skip_negotiate_stage() -> bool:
    """What was set last; False at first."""
    return state.skips_negotiation
