"""HoronGroup: torch.distributed's process group over a process set.

torch calls its methods on the program's thread (DDP: on autograd's), in the same order on every
rank. Horon matches by name: a name is made of the collective, the tensor's type and shape, and how
often that came before, so that a training step's names come back and what was agreed is remembered.
"""

import weakref
from collections import defaultdict

import torch
import torch.distributed as dist

from horon.errors import HoronInvalidArgument, HoronUnsupported
from horon.process_sets import form_process_set
from horon.runtime import init, rank, size
from horon.torch.calls import GroupCall, barrier_call, broadcast_call, reduce_call, rows_call
from horon.torch.distributed.names import spec_of_reduce_op
from horon.torch.distributed.work import Pending
from horon.torch.pairs import Pair

_SLOTS = 64  # calls of one kind in flight at once
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
        return self._start(f"allreduce.{spec}", tensors, [
            lambda name, t=t: reduce_call(name, spec, t, self._set, in_place=True)
            for t in tensors
        ], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        (tensor,) = _listed(tensors)
        spec = spec_of_reduce_op(opts.reduceOp)
        total = tensor if self.getRank() == opts.rootRank else torch.clone(tensor.detach())
        return self._start(f"reduce.{spec}", [tensor], [
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
        return self._start(f"reduce_scatter.uneven.{spec}", inputs, [
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
        return self._start(f"reduce_scatter.{spec}", rows, makers, list(outputs))

    def _reduced_part(self, name, spec, flat, begin, output):
        """Reduces all of it, and gives `output` what is its from `begin` on."""
        whole = flat.clone()
        return reduce_call(name, spec, whole, self._set, in_place=True).then(
            lambda _: output.copy_(whole[begin:begin + output.numel()].view(output.shape)))

    # --- moving

    def broadcast(self, tensors, opts):
        tensors = _listed(tensors)
        root = self._ranks[opts.rootRank]
        return self._start(f"broadcast.{root}", tensors, [
            lambda name, t=t: broadcast_call(name, root, t, self._set, in_place=True)
            for t in tensors
        ], tensors)

    def _allgather_base(self, output, input, opts=None):
        return self.allgather_into_tensor_coalesced([output], [input])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        inputs = [_flat(t) for t in inputs]
        return self._start("allgather", inputs, [
            lambda name, t=t, out=out: rows_call(name, "allgather", t, self._set,
                                                 finish=self._copy_to(out))
            for t, out in zip(inputs, outputs)
        ], list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(self, output_lists, inputs, opts=None):
        inputs = [_flat(t) for t in _listed(inputs)]
        sizes = [sum(out.numel() for out in outs) for outs in output_lists]  # inputs' may differ
        return self._start(f"allgather.of.{'.'.join(map(str, sizes))}", inputs, [
            lambda name, t=t, outs=outs: rows_call(name, "allgather", t, self._set,
                                                   finish=self._copy_to_each(outs))
            for t, outs in zip(inputs, output_lists)
        ], [out for outs in output_lists for out in outs], shaped=False)

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
        return self._start("alltoall_base", [input], [
            lambda name: rows_call(name, "alltoall", input, self._set, splits,
                                   finish=self._copy_to(output))
        ], [output], shaped=False)

    all_to_all_single = alltoall_base

    def _exchange(self, kind, sent, outputs):
        """`sent`: (group rank, tensor) in ascending order; `outputs` get what came, by sender."""
        splits = [0] * len(self._ranks)
        for to, tensor in sent:
            splits[to] = tensor.numel()
        of_type = [t for _, t in sent] or list(outputs)
        rows = torch.cat([_flat(t) for _, t in sent]) if sent else of_type[0].new_empty(0)
        return self._start(kind, [rows], [
            lambda name: rows_call(name, "alltoall", rows, self._set, tuple(splits),
                                   finish=self._copy_to_each(outputs))
        ], list(outputs), shaped=False)

    def barrier(self, opts=None):
        return self._start("barrier", [], [lambda name: barrier_call(name, self._set)], [])

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

    def _start(self, kind, sent, makers, tensors, shaped=True):
        """makers: what makes the call of a given name. One work for all of them."""
        marks = [f"{t.dtype}{list(t.shape) if shaped else ''}".removeprefix("torch.") for t in sent]
        name = self._next_name(f"{self._prefix}.{kind}.{'.'.join(marks)}")
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

    @staticmethod
    def _copy_to(output):
        return lambda result, _: output.copy_(result.reshape(output.shape))

    @staticmethod
    def _copy_to_each(outputs):
        def finish(result, _):
            for output, part in zip(outputs, result.split([o.numel() for o in outputs])):
                output.copy_(part.view(output.shape))

        return finish
