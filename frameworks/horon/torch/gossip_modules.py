"""Modules that train with gossip by themselves, beside any optimizer: torch.nn.Module wrappers.

    model = hvd.gossip.GossipDataParallel(net, push_sum=True, overlap=True)    # OSGP

Each wraps a module like DistributedDataParallel does. What an optimizer has changed since the last
forward pass is mixed when the next one begins (AllReduceDataParallel: gradients, in backward).
Checkpoints: state_dict() of the wrapper, on all ranks; it holds the push-sum weight and the round.
On the thread that trains.

Sources: Assran et al., Stochastic Gradient Push, ICML 2019; Lian et al., Asynchronous Decentralized
Parallel SGD, ICML 2018. hvd.DistributedOptimizer(op=hvd.Gossip(...)) does it without wrapping.
"""

import torch

from horon.gossip import Gossip
from horon.process_sets import global_process_set
from horon.specs import Average
from horon.torch.compression import Compression
from horon.torch.functions import broadcast_parameters
from horon.torch.gossip_optimizer import make_gossip
from horon.torch.gossip_state import check_whose, place_in
from horon.torch.gradients import Reduction
from horon.torch.meeting import meet
from horon.torch.reducer import GradientReducer
from horon.torch.reductions import reduction_spec


class _Parallel(torch.nn.Module):
    """Wraps `module`, whose parameters and buffers become rank 0's. For all ranks of the set;
    HoronLate on all of them where one does not come, and all may try again."""

    def __init__(self, module, process_set):
        super().__init__()
        self.module = module
        meet(process_set)
        broadcast_parameters(module.state_dict(), 0, process_set)
        self._queued = False
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._queue)

    def _queue(self, parameter):
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_of_backward(self):
        self._queued = False
        self._after_backward()

    def forward(self, *inputs, **named):
        self._queued = False  # of a backward pass that failed
        self._before_forward()
        return self.module(*inputs, **named)


class AllReduceDataParallel(_Parallel):
    """Gradients are averaged over all ranks; when backward() returns they are there."""

    def __init__(self, module, op=Average, compression=Compression.none,
                 process_set=global_process_set):
        reduction_spec(op)  # refuses what is more than a collective
        super().__init__(module, process_set)
        groups = [{"params": [p for p in module.parameters() if p.requires_grad]}]
        reduction = Reduction(op, compression, 1.0, False, process_set)
        self._reducer = GradientReducer(groups, reduction, module.named_parameters(), 1, None)

    def _before_forward(self):
        pass

    def _after_backward(self):
        self._reducer.synchronize()


class GossipDataParallel(_Parallel):
    """Each rank trains by itself; parameters are mixed among neighbors, while the next step is
    computed with overlap.

    graph, mixing: of horon.topology and horon.mixing; None: an exact graph. push_sum: SGP, with
    overlap OSGP, else D-PSGD. synch_freq, global_average_every, hierarchical: as in hvd.Gossip.
    """

    def __init__(self, module, graph=None, mixing=None, push_sum=True, overlap=False, synch_freq=0,
                 global_average_every=0, hierarchical=False, process_set=global_process_set):
        algorithm = ("osgp" if overlap else "sgp") if push_sum else "dpsgd"
        op = Gossip(algorithm, graph, mixing, overlap=overlap, sync_freq=synch_freq,
                    global_average_every=global_average_every, hierarchical=hierarchical)
        super().__init__(module, process_set)
        self._begin(op, process_set)

    def _begin(self, op, process_set):
        groups = [{"params": list(self.module.parameters())}]
        self._gossip = make_gossip(op, groups, list(self.module.named_parameters()), process_set)
        self._place = place_in(process_set)
        self._biased = False
        self._seen = self._versions()

    def _versions(self) -> list:
        """They change with whatever an optimizer writes."""
        return [parameter._version for parameter in self.module.parameters()]

    def _after_backward(self):
        """The optimizer works on what the weight multiplies."""
        if not self._biased:
            stepped = self._versions() != self._seen
            self._gossip.bias()
            self._biased = True
            self._seen = None if stepped else self._versions()

    def _before_forward(self):
        if self._gossip.take_left():
            self._seen = self._versions()
        stepped = self._versions() != self._seen
        mixes = stepped and self.training and torch.is_grad_enabled()
        if self._biased or mixes:  # else parameters stay as they are, to the bit
            if not self._biased:
                self._gossip.bias()
            try:
                if mixes:
                    stepped = False
                    self._gossip.after_step()
            finally:
                self._gossip.debias()
                self._biased = False
                self._seen = None if stepped else self._versions()

    def finish_gossip(self, average=False, timeout=None) -> bool:
        """Mixes what the last step changed and takes in what is under way: before the model is
        saved or evaluated, on all ranks alike. average: then all have the exact mean. False, and
        a warning, as of DistributedOptimizer's."""
        with torch.enable_grad():
            training, self.training = self.training, True
            try:
                self._before_forward()
            finally:
                self.training = training
        finished = self._gossip.finish(average, timeout)
        self._seen = self._versions()
        return finished

    def close_gossip(self, timeout=None):
        """finish_gossip(), and gives back what gossip holds, on all ranks alike. HoronLate where
        one does not come; then all may try again."""
        self.finish_gossip()
        self._gossip.close(timeout)

    def get_extra_state(self):
        return {**self._gossip.state(), "of": self._place}

    def set_extra_state(self, state):
        """For all ranks, each its own; the module's parameters are loaded beside it."""
        check_whose(state, self._place)
        self._gossip.load(state)
        self._biased, self._seen = False, self._versions()

    def state_dict(self, *args, **kwargs):
        """For all ranks: it finishes the exchange under way first."""
        self.finish_gossip()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        loaded = super().load_state_dict(*args, **kwargs)
        self._seen = self._versions()
        return loaded


class SimpleGossipDataParallel(GossipDataParallel):
    """GossipDataParallel that waits for each exchange before it computes: SGP or D-PSGD."""

    def __init__(self, module, graph=None, mixing=None, push_sum=True,
                 process_set=global_process_set, **options):
        super().__init__(module, graph, mixing, push_sum, False, 0, process_set=process_set,
                         **options)


class BilatGossipDataParallel(GossipDataParallel):
    """AD-PSGD: pairs of ranks average, and no rank waits for another."""

    def __init__(self, module, graph=None, mixing=None, overlap=True,
                 process_set=global_process_set):
        op = Gossip("adpsgd", graph, mixing, overlap=overlap)
        _Parallel.__init__(self, module, process_set)
        self._begin(op, process_set)
