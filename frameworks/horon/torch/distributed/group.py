"""HoronGroup: torch.distributed's process group over a process set.

torch calls its methods on the program's thread (DDP: on autograd's), in the same order on every
rank. Horon matches by name: a name is made of the collective and how often that came before, so
that ranks whose types, shapes, reductions or roots differ meet, and hear it at once. Names come
back, and what was agreed on one is remembered where the tensor is then the same.
"""

import weakref
from collections import defaultdict

import torch
import torch.distributed as dist

from horon.errors import HoronInvalidArgument, HoronMismatch, HoronUnsupported
from horon.process_sets import form_process_set
from horon.runtime import init, rank, size
from horon.torch.calls import GroupCall, barrier_call, broadcast_call, reduce_call, rows_call
from horon.torch.distributed.names import spec_of_reduce_op
from horon.torch.distributed.work import Pending
from horon.torch.pairs import Pair

# Calls of one kind in flight at once. A multiple of many numbers: of as many calls as one step makes,
# mostly, and then each name comes back with the same tensor.
_SLOTS = 240
_MESSAGES = 512  # the same of one direction and tag: all sends may come before the first recv


def make_group(options, _=None):
    """What torch calls for init_process_group and new_group, on the group's ranks."""
    init()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if len(ranks) > size() or max(ranks) >= size() or ranks[options.group_rank] != rank():
        raise HoronInvalidArgument(
            f"torch.distributed's group has ranks {ranks} and this is number {options.group_rank} "
            f"of them, but in the Horon job it is rank {rank()} of {size()}; start the program "
            "with horonrun (or mpirun, srun) and use init_method='horon://'"
        )
    if ranks != sorted(ranks):
        raise HoronUnsupported(f"a group of ranks {ranks}: they must be in ascending order")
    return HoronGroup(options.group_rank, ranks, options.group_id)


def _listed(tensors) -> list:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _flat(tensor):
    return tensor.detach().reshape(-1)


def _row(tensor):
    """Of which every rank has one, and all are equally long."""
    return tensor.detach().reshape(1, -1)


def _even(tensors) -> bool:
    return len({tensor.numel() for tensor in tensors}) == 1


class HoronGroup(dist.ProcessGroup):
    def __init__(self, group_rank, ranks, group_id):
        super().__init__(group_rank, len(ranks))
        self._ranks = ranks
        self._set = form_process_set(ranks)
        self._prefix = f"pg.{group_id}"
        self._calls = defaultdict(int)
        self._last = weakref.WeakValueDictionary()  # by name
        self._pairs = {}  # by their two ranks
        self._group_name, self._group_description = str(group_id), ""

    # --- who it is

    def getBackendName(self):
        return "horon"

    def getRank(self):
        return self._ranks.index(rank())

    def getSize(self):
        return len(self._ranks)

    rank, size, name = getRank, getSize, getBackendName

    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    def getGroupDesc(self):
        return self._group_description

    def setGroupDesc(self, description):
        self._group_description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def shutdown(self):
        """The job goes on: horon.shutdown() ends it."""

    abort = shutdown

    # --- reductions

    def allreduce(self, tensors, opts=None):
        spec = spec_of_reduce_op(opts and opts.reduceOp)
        tensors = _listed(tensors)
        return self._start("allreduce", [
            lambda name, t=t: reduce_call(name, spec, t, self._set, in_place=True)
            for t in tensors
        ], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        (tensor,) = _listed(tensors)
        spec = spec_of_reduce_op(opts.reduceOp)
        total = tensor if self.getRank() == opts.rootRank else torch.clone(tensor.detach())
        return self._start("reduce", [
            lambda name: reduce_call(name, spec, total, self._set, in_place=True)
        ], [tensor])

    def _reduce_scatter_base(self, output, input, opts=None):
        return self._reduce_rows([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._reduce_rows(outputs, inputs, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter(self, outputs, input_lists, opts=None):
        inputs = [torch.cat([_flat(t) for t in tensors]) for tensors in input_lists]
        sizes = [[t.numel() for t in tensors] for tensors in input_lists]
        if all(len(set(parts)) == 1 for parts in sizes):
            return self._reduce_rows(outputs, inputs, opts)
        spec = spec_of_reduce_op(opts and opts.reduceOp)
        begins = [sum(parts[:self.getRank()]) for parts in sizes]
        return self._start("reduce_scatter", [
            lambda name, t=t, begin=begin, out=out: self._reduced_part(name, spec, t, begin, out)
            for t, begin, out in zip(inputs, begins, outputs)
        ], list(outputs))

    def _reduce_rows(self, outputs, inputs, opts):
        """Of each input, cut in as many parts as there are ranks, mine."""
        spec = spec_of_reduce_op(opts and opts.reduceOp)
        rows = [t.detach().reshape(len(self._ranks), -1) for t in inputs]
        if spec in ("sum", "average"):
            makers = [lambda name, r=r, out=out: rows_call(
                name, f"reduce_scatter:op={spec}", r, self._set, finish=self._copy_to(out))
                for r, out in zip(rows, outputs)]
        else:
            makers = [lambda name, r=r, out=out: self._reduced_part(
                name, spec, r.reshape(-1), self.getRank() * r.shape[1], out)
                      for r, out in zip(rows, outputs)]
        return self._start("reduce_scatter", makers, list(outputs))

    def _reduced_part(self, name, spec, flat, begin, output):
        """Reduces all of it, and gives `output` what is its from `begin` on."""
        whole = flat.clone()
        return reduce_call(name, spec, whole, self._set, in_place=True).then(
            lambda _: output.copy_(whole[begin:begin + output.numel()].view(output.shape)))

    # --- moving

    def broadcast(self, tensors, opts):
        tensors = _listed(tensors)
        root = self._ranks[opts.rootRank]
        return self._start("broadcast", [
            lambda name, t=t: broadcast_call(name, root, t, self._set, in_place=True)
            for t in tensors
        ], tensors)

    def _allgather_base(self, output, input, opts=None):
        return self.allgather_into_tensor_coalesced([output], [input])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._start("allgather", [
            lambda name, t=t, out=out: rows_call(name, "allgather", _row(t), self._set,
                                                 finish=self._copy_to(out))
            for t, out in zip(inputs, outputs)
        ], list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(self, output_lists, inputs, opts=None):
        return self._start("allgather", [
            lambda name, t=t, outs=outs: rows_call(
                name, "allgather", _row(t) if _even(outs) else _flat(t), self._set,
                finish=self._copy_to_each(outs))
            for t, outs in zip(_listed(inputs), output_lists)
        ], [out for outs in output_lists for out in outs])

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        # Here the outputs come by rank, then by input.
        return self.allgather([list(outs) for outs in zip(*output_lists)], inputs)

    def gather(self, output_lists, inputs, opts):
        (tensor,) = _listed(inputs)
        outputs = output_lists[0] if output_lists else []
        return self._exchange("gather", [(opts.rootRank, tensor)], outputs)

    def scatter(self, outputs, input_lists, opts):
        mine = input_lists[0] if input_lists else []
        return self._exchange("scatter", list(enumerate(mine)), _listed(outputs))

    def alltoall(self, outputs, inputs, opts=None):
        return self._exchange("alltoall", list(enumerate(inputs)), outputs)

    def alltoall_base(self, output, input, output_splits, input_splits, opts=None):
        splits = tuple(input_splits) if input_splits else None
        return self._start("alltoall_base", [
            lambda name: rows_call(name, "alltoall", input, self._set, splits,
                                   finish=self._copy_to(output))
        ], [output])

    all_to_all_single = alltoall_base

    def _exchange(self, kind, sent, outputs):
        """`sent`: (group rank, tensor) in ascending order; `outputs` get what came, by sender."""
        splits = [0] * len(self._ranks)
        for to, tensor in sent:
            splits[to] = tensor.numel()
        of_type = [t for _, t in sent] or list(outputs)
        rows = torch.cat([_flat(t) for _, t in sent]) if sent else of_type[0].new_empty(0)
        return self._start(kind, [
            lambda name: rows_call(name, "alltoall", rows, self._set, tuple(splits),
                                   finish=self._copy_to_each(outputs))
        ], list(outputs))

    def barrier(self, opts=None):
        return self._start("barrier", [lambda name: barrier_call(name, self._set)], [])

    def send(self, tensors, to, tag=0):
        (tensor,) = _listed(tensors)
        return self._message(self.getRank(), to, tag, tensor, to)

    def recv(self, tensors, sender, tag=0):
        (tensor,) = _listed(tensors)
        return self._message(sender, self.getRank(), tag, tensor, sender)

    def recv_anysource(self, *_):
        raise HoronUnsupported("the backend 'horon' cannot receive from any rank: name the sender")

    def _message(self, sender, to, tag, tensor, other):
        """All by ranks of the group. The n-th send of a tag meets the n-th recv."""
        ranks = tuple(sorted((self._ranks[other], rank())))
        pair = self._pairs.setdefault(ranks, Pair(ranks))
        root, dense = self._ranks[sender], _flat(tensor).contiguous()
        name = self._next_name(f"{self._prefix}.from.{sender}.to.{to}.tag.{tag}", _MESSAGES)

        def make(pair_set):
            call = broadcast_call(name, root, dense, pair_set, in_place=True)
            if to == self.getRank() and dense.data_ptr() != tensor.data_ptr():
                call = call.then(lambda _: tensor.detach().copy_(dense.view(tensor.shape)))
            return call.start()

        work = Pending(pair.start(make), [tensor])
        self._last[name] = work
        return work

    # --- how they start

    def _start(self, kind, makers, tensors):
        """makers: what makes the call of a given name. One work for all of them."""
        name = self._next_name(f"{self._prefix}.{kind}")
        if len(makers) == 1:
            handle = makers[0](name).start()
        else:
            calls = [make(f"{name}.{i}") for i, make in enumerate(makers)]
            handle = GroupCall(calls, name).start()
        work = Pending(handle, tensors)
        self._last[name] = work
        return work

    def _next_name(self, base, slots=_SLOTS):
        self._calls[base] += 1
        name = f"{base}.{self._calls[base] % slots}"
        earlier = self._last.get(name)
        if earlier is not None and not earlier.is_completed():
            earlier.wait()
        return name

    def _copy_to(self, output):
        def finish(result, received):
            if result.numel() != output.numel():
                raise self._unfit([output.numel()], received)
            output.copy_(result.reshape(output.shape))

        return finish

    def _copy_to_each(self, outputs):
        """What came from one rank after the other; nothing where there is nowhere to put it."""
        def finish(result, received):
            sizes = [output.numel() for output in outputs]
            came = [rows * result[:1].numel() for rows in received]
            if sizes != came and (outputs or any(came)) and len(outputs) == len(came):
                raise self._unfit(sizes, came)
            for output, part in zip(outputs, result.reshape(-1).split(sizes)):
                output.copy_(part.view(output.shape))

        return finish

    def _unfit(self, sizes, came):
        return HoronMismatch(
            f"the outputs of rank {rank()} have room for {sizes} elements, but ranks {self._ranks} "
            f"have sent {list(came)}"
        )
