"""The libraries under comparison: how a rank of each starts, and how it reduces a list of tensors.

Each class runs in a worker process; nothing here is imported by the parent.
"""

from __future__ import annotations

import os

import torch

from loops import InPlace, Mixed, MixedTo, Staged, Streamed, TwoPass


class Outputs:
    """Memory that a library writes to again and again, as a careful program would have it."""

    def __init__(self) -> None:
        self.kept: dict[tuple, torch.Tensor] = {}

    def of(self, kind: str, tensor: torch.Tensor, size: int) -> torch.Tensor:
        count = {"allgather": tensor.numel() * size, "alltoall": tensor.numel(),
                 "reducescatter": tensor.numel() // size}[kind]
        key = (kind, count, tensor.dtype)
        if key not in self.kept:
            self.kept[key] = torch.empty(count, dtype=tensor.dtype)
        return self.kept[key]


class Horon:
    """The public Python API, as a script uses it."""

    OP = "Sum"

    def __init__(self) -> None:
        import horon.torch as hvd

        hvd.init()
        self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        self.op = getattr(hvd, self.OP)
        self.names: dict[str, list[str]] = {}  # of a set's tensors, as an optimizer has them ready
        self.note = f"controller {hvd.controller()}, transport {hvd.transport()}"

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        hvd = self.hvd
        if len(tensors) == 1:
            hvd.allreduce_(tensors[0], op=self.op, name=name)
            return
        if name not in self.names:
            self.names[name] = [f"{name}.{i}" for i in range(len(tensors))]
        handles = [hvd.allreduce_async_(tensor, op=self.op, name=own)
                   for tensor, own in zip(tensors, self.names[name])]
        for handle in handles:
            hvd.synchronize(handle)

    def collective(self, kind: str, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if kind == "broadcast":
            return self.hvd.broadcast_(tensor, 0, name=name)
        if kind == "reducescatter":
            return self.hvd.reducescatter(tensor, op=self.hvd.Sum, name=name)
        return getattr(self.hvd, kind)(tensor, name=name)

    def stop(self) -> None:
        self.hvd.shutdown()


class Gossip(Horon):
    """One round of one-peer gossip in place of an allreduce; nodes of several ranks take part as
    one."""

    BY_NODES = True

    def __init__(self) -> None:
        super().__init__()
        from horon.topology import OnePeerExponential

        hvd = self.hvd
        several = self.BY_NODES and hvd.local_size() > 1
        self.graph = OnePeerExponential(hvd.cross_size() if several else hvd.size())
        self.each = hvd.local_size() if several else 1
        self.op = hvd.Gossip(topology=self.graph, hierarchical=several)
        self.rounds: dict[str, int] = {}

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.rounds[name] = self.rounds.get(name, 0) + 1
        self.hvd.grouped_allreduce_(tensors, op=self.op, name=name)

    def result(self, values: list[float], name: str) -> float:
        """Of the last call, where each rank came with its value."""
        parts = [values[i:i + self.each] for i in range(0, self.size, self.each)]
        row = self.graph.matrix(self.rounds[name] - 1)[self.rank // self.each]
        return sum(weight * sum(part) / self.each for weight, part in zip(row, parts))

    def collective(self, kind: str, tensor: torch.Tensor, name: str) -> torch.Tensor:
        raise TypeError(f"gossip is no {kind}")


class GossipOfRanks(Gossip):
    """The same among ranks, wherever they are."""

    BY_NODES = False


class HoronShared(Horon):
    """The same over tensors that lie in memory the ranks share, as gradients may."""

    def empty(self, shapes: list, dtype: torch.dtype) -> list[torch.Tensor]:
        from horon.torch.shared import SharedArena

        counts = [torch.Size(shape).numel() for shape in shapes]
        arena = SharedArena(sum(SharedArena.bytes_for(count, dtype) for count in counts))
        return [arena.take(count, dtype).view(shape) for count, shape in zip(counts, shapes)]


class HoronRegistered(Horon):
    """Sets as gradients of a DistributedOptimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Of a workload that is over."""
        self.tensors: list[torch.Tensor] | None = None
        self.registered = None

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        if self.tensors is not tensors:
            from registered import Registered

            self.tensors, self.registered = tensors, Registered(tensors, self.op, name)
        self.registered.submit()
        self.registered.wait()


class HoronViews(HoronRegistered):
    """Sets as gradients that a DistributedOptimizer keeps in memory which the ranks share."""

    made = 0

    def empty(self, shapes: list, dtype: torch.dtype) -> list[torch.Tensor]:
        from registered import Registered

        self.made += 1
        zeros = [torch.zeros(shape, dtype=dtype) for shape in shapes]
        self.registered = Registered(zeros, self.op, f"views.{self.made}",
                                     gradient_as_bucket_view=True)
        self.registered.submit()  # the first step makes them views
        self.registered.wait()
        self.tensors = self.registered.gradients
        return self.tensors


class HoronGrouped(Horon):
    """Sets in one call."""

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        self.hvd.grouped_allreduce_(tensors, op=self.op, name=name)


class Average(Horon):
    OP = "Average"

    def result(self, values: list[float], name: str) -> float:
        return sum(values) / len(values)


class Neighbors(Average):
    """Of two ranks, as a script of BlueFog's does it."""

    def __init__(self) -> None:
        super().__init__()
        import horon.bluefog.torch as bf

        bf.init()
        self.bf = bf

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        bf = self.bf
        handles = [bf.neighbor_allreduce_nonblocking(tensor, name=f"{name}.{i}")
                   for i, tensor in enumerate(tensors)]
        tensors[:] = [bf.synchronize(handle) for handle in handles]


class Adasum(Average):
    """Of vectors that are parallel, as these are, it makes the mean."""

    OP = "Adasum"


class Gloo:
    """torch.distributed on gloo, one call a tensor."""

    def __init__(self) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method="file://" + os.environ["BENCH_STORE"],
            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        self.dist, self.rank, self.size = dist, dist.get_rank(), dist.get_world_size()
        self.outputs = Outputs()
        self.note = "torch " + torch.__version__

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        if len(tensors) == 1:
            self.dist.all_reduce(tensors[0])
            return
        works = [self.dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    def collective(self, kind: str, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if kind == "broadcast":
            self.dist.broadcast(tensor, 0)
            return tensor
        output = self.outputs.of(kind, tensor, self.size)
        {"allgather": self.dist.all_gather_into_tensor, "alltoall": self.dist.all_to_all_single,
         "reducescatter": self.dist.reduce_scatter_tensor}[kind](output, tensor)
        return output

    def stop(self) -> None:
        self.dist.destroy_process_group()


class GlooBuckets(Gloo):
    """gloo as DistributedDataParallel uses it: copied into flat buckets of 25 MiB and out again."""

    BUCKET_BYTES = 25 << 20

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.tensors, self.buckets = None, []

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        if len(tensors) == 1:
            super().reduce(tensors, name)
            return
        if self.tensors is not tensors:
            self.tensors, self.buckets = tensors, self.plan(tensors)
        works = []
        for flat, views, members in self.buckets:
            torch._foreach_copy_(views, members)
            works.append(self.dist.all_reduce(flat, async_op=True))
        for work, (_, views, members) in zip(works, self.buckets):
            work.wait()
            torch._foreach_copy_(members, views)

    def plan(self, tensors: list[torch.Tensor]) -> list[tuple]:
        members: list[list[torch.Tensor]] = [[]]
        for tensor in tensors:
            held = sum(member.nbytes for member in members[-1])
            if members[-1] and held + tensor.nbytes > self.BUCKET_BYTES:
                members.append([])
            members[-1].append(tensor)
        buckets = []
        for group in members:
            flat = torch.empty(sum(member.numel() for member in group), dtype=group[0].dtype)
            pieces = flat.split([member.numel() for member in group])
            views = [piece.view_as(member) for piece, member in zip(pieces, group)]
            buckets.append((flat, views, group))
        return buckets


class GlooViews(GlooBuckets):
    """The same with gradient_as_bucket_view=True: the tensors lie in the buckets."""

    def empty(self, shapes: list, dtype: torch.dtype) -> list[torch.Tensor]:
        self.buckets = self.plan([torch.empty(shape, dtype=dtype) for shape in shapes])
        return [view for _, views, _ in self.buckets for view in views]

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        works = [self.dist.all_reduce(flat, async_op=True) for flat, _, _ in self.buckets]
        for work in works:
            work.wait()


class Mpi:
    """MPI_Allreduce in place through mpi4py, one blocking call a tensor."""

    TYPES = (torch.float32, torch.float64)  # MPI has no 16-bit floats

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.outputs = Outputs()
        self.note = MPI.Get_library_version().splitlines()[0].split(",")[0]

    def reduce(self, tensors: list[torch.Tensor], name: str) -> None:
        for tensor in tensors:
            if tensor.dtype not in self.TYPES:
                raise TypeError(f"MPI does not add {tensor.dtype}")
            self.comm.Allreduce(self.mpi.IN_PLACE, tensor.numpy())

    def collective(self, kind: str, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if kind == "broadcast":
            self.comm.Bcast(tensor.numpy(), 0)
            return tensor
        output = self.outputs.of(kind, tensor, self.size)
        {"allgather": self.comm.Allgather, "alltoall": self.comm.Alltoall,
         "reducescatter": self.comm.Reduce_scatter_block}[kind](tensor.numpy(), output.numpy())
        return output

    def stop(self) -> None:
        pass  # mpi4py finalises at exit


BY_NAME = {"horon": Horon, "horon-shared": HoronShared, "horon-registered": HoronRegistered,
           "horon-views": HoronViews, "horon-grouped": HoronGrouped, "gossip": Gossip,
           "gossip-of-ranks": GossipOfRanks, "neighbors": Neighbors, "average": Average,
           "adasum": Adasum, "gloo": Gloo, "gloo-buckets": GlooBuckets, "gloo-views": GlooViews,
           "mpi": Mpi, "mpi-other": Mpi, "mpi-tuned": Mpi, "streamed": Streamed, "staged": Staged,
           "in-place": InPlace, "two-pass": TwoPass, "mixed": Mixed, "mixed-to": MixedTo}
