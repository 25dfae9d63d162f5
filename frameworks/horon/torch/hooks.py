"""DistributedDataParallel that reduces its gradients through Horon, with any op.

    model = torch.nn.parallel.DistributedDataParallel(net)     # any backend
    horon.torch.hooks.register(model, op=hvd.Adasum)

DDP's process group still broadcasts parameters and buffers; its ranks must be those of the process
set. Names come from the model's parameters, so that ops which remember something of a tensor
(residuals, rounds) find it again when DDP forms its buckets anew.
"""

import itertools

from horon.process_sets import global_process_set
from horon.specs import Average
from horon.torch.calls import GroupCall, reduce_call
from horon.torch.compression import Compression, checked
from horon.torch.futures import future_of
from horon.torch.gradient_rounds import NO_ROUNDS
from horon.torch.reductions import reduction_spec

_instances = itertools.count()
_ELEMENTWISE = ("sum", "average", "min", "max", "product")


class Reduce:
    """What reduce_hook is to do: its `state`. One for each model. rounds: GradientRounds of an op
    that has them, where somebody counts them."""

    def __init__(self, op=Average, compression=Compression.none, named_parameters=(),
                 prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set,
                 rounds=NO_ROUNDS):
        self._spec = reduction_spec(op)
        self._compression = checked(compression)
        self._names = {parameter: name for name, parameter in named_parameters}
        self._scales = (prescale_factor, postscale_factor)
        self._process_set = process_set
        self._rounds = rounds
        self._prefix = f"ddp.{next(_instances)}"
        self.failure = None  # the first error, with its type: torch passes on the sentence alone

    def start(self, bucket):
        """Starts on the bucket; a function that waits, and gives its buffer."""
        buffer = bucket.buffer()
        if self._spec in _ELEMENTWISE:
            places = [(f"{self._prefix}.bucket.{bucket.index()}", buffer)]
        else:  # the tensors of a bucket mean something to the op
            places = [(self._name(p), g) for p, g in zip(bucket.parameters(), bucket.gradients())]
        calls, memos = [], []
        for name, tensor in places:
            sent, memo = self._compression.compress(tensor)
            calls.append(self._call(name, sent))
            memos.append((tensor, sent, memo))
        handle = GroupCall(calls, f"{self._prefix}.{bucket.index()}").start()
        return lambda: self._finish(handle, memos, buffer)

    def run(self, name, tensor):
        """One tensor that is no bucket's, in place; blocking."""
        self._call(f"{self._prefix}.{name}", tensor).run()

    def _call(self, name, tensor):
        return reduce_call(name, self._spec, tensor, self._process_set, *self._scales,
                           in_place=True, round=self._rounds.say(name))

    def _finish(self, handle, memos, buffer):
        try:
            handle.wait()
        except Exception as error:
            self.failure = self.failure or error
            raise
        for tensor, sent, memo in memos:
            if sent is not tensor:
                tensor.copy_(self._compression.decompress(sent, memo))
        return buffer

    def _name(self, parameter):
        name = self._names.setdefault(parameter, f"noname.{len(self._names)}")
        return f"{self._prefix}.{name}"


def reduce_hook(state: Reduce, bucket):
    """A DDP communication hook."""
    return future_of(state.start(bucket))


def register(model, op=Average, compression=Compression.none, prescale_factor=1.0,
             postscale_factor=1.0, process_set=global_process_set) -> Reduce:
    """Lets a DistributedDataParallel model reduce its gradients with `op`; its Reduce."""
    state = Reduce(op, compression, model.module.named_parameters(), prescale_factor,
                   postscale_factor, process_set)
    model.register_comm_hook(state, reduce_hook)
    return state
