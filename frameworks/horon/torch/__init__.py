"""Horon for PyTorch. `import horon.torch as hvd` runs a script written for horovod.torch.

Signatures and semantics are Horovod's; beside them, op= also takes hvd.Dissemination(),
hvd.TopK(...) and any spec string. docs/api.md is the reference.
"""

from horon import *  # noqa: F403  errors, queries, process sets, ops
from horon.torch import callbacks, elastic
from horon.torch.builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horon.torch.buffers import average_buffers, consensus_distance
from horon.torch.calls import Handle, poll, synchronize
from horon.torch.compression import Compression
from horon.torch.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horon.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horon.torch.gossip import (
    gossip_average,
    gossip_average_async,
    neighbor_allgather,
    neighbor_allgather_async,
    neighbor_allreduce,
    neighbor_allreduce_async,
    pair_average,
    pair_average_async,
    push_sum,
    push_sum_async,
)
from horon.torch.optimizer import DistributedOptimizer
from horon.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from horon.torch.shared import shared_zeros
from horon.torch.sync_batch_norm import SyncBatchNorm
from horon.torch.windows import Window
