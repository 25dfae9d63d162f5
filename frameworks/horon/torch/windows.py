"""Window: a tensor that its rank mixes with what its neighbors deliver, when each of them likes.

Making and freeing are for all ranks together; all else one rank does alone: nobody takes part, and
nobody is waited for longer than HORON_GOSSIP_TIMEOUT. docs/gossip.md says what to expect.
"""

import contextlib

import torch

from horon import _core
from horon.errors import HoronError, HoronInvalidArgument, HoronUnavailable
from horon.gossip import graph_of
from horon.runtime import rank, size, when_left
from horon.torch.calls import Handle
from horon.torch.tensors import dtype_and_device, stream_of, works_with

_PUT, _ACCUMULATE, _GET, _UPDATE, _LOCK, _UNLOCK, _PUBLISH, _PAIR, _STEP, _ROUND = range(10)

_lent = {}  # tensors of windows that were not freed, by name: others may still change them
when_left(_lent.clear)


def weighted(given, ranks, weight) -> dict:
    """{rank: weight}; of None: all of `ranks`, of a list: these, with `weight` each."""
    given = ranks if given is None else given
    if hasattr(given, "items"):
        return {int(r): float(w) for r, w in given.items()}
    return {int(r): float(weight) for r in given}


def _neighbors(name, topology, sources, destinations, in_rounds, push_sum, first_round) -> tuple:
    """(the spec of its rounds or "", sources, destinations)"""
    if not in_rounds and (push_sum or first_round):
        raise HoronInvalidArgument(f"window '{name}': push_sum and first_round are of rounds: give "
                                   "in_rounds=True, or push_sum=True to each call")
    if in_rounds and not (sources is destinations is None):
        raise HoronInvalidArgument(f"window '{name}': its rounds have neighbors of their own: give "
                                   "a topology alone")
    if in_rounds:
        return f"gossip:{graph_of(topology, size()).parameters}", (), ()
    if sources is None or destinations is None:
        destinations, sources = graph_of(topology, size()).peers(rank())
    return "", sources, destinations


def _unreached(work, index) -> tuple:
    return tuple(work.received_splits(index))


class Window:
    """A window over a contiguous floating-point tensor, whose memory it works on. Of one on a GPU
    each call copies the values to the host, behind the current stream, and brings back what it has
    changed. An _async call returns at once; whoever waits for it waits until the device has come to
    the copy, the stream alone for the way back; in a round the neighbors wait as well.

    Neighbors are those of `topology` in its round 0 (None: an exact one's), or `sources`, which
    deliver to this rank, and `destinations`. Slots begin as copies of the tensor, or as zeros,
    which calls with push_sum=True need, whose weights are given away and added with the values.
    gets=False, on all ranks: nobody gets from it, so no call takes time to publish.
    in_rounds=True: it mixes by mix() on the topology's rounds, from first_round on, and does
    nothing else; with push_sum the weights travel.
    Calls that end in _async give a handle for poll() and synchronize(); what calls give is the
    tuple of ranks whose part was left out, because they are gone or did not answer in time.
    """

    def __init__(self, tensor, name, topology=None, sources=None, destinations=None,
                 zero_init=False, gets=True, in_rounds=False, push_sum=False, first_round=0):
        try:
            spec, sources, destinations = _neighbors(name, topology, sources, destinations,
                                                     in_rounds, push_sum, first_round)
            self._kind = dtype, self._device = dtype_and_device(tensor, name)
            if not tensor.is_contiguous():
                raise HoronInvalidArgument(f"window '{name}': its tensor must be contiguous")
            works_with(tensor.device)
            self.sources, self.destinations = sorted(map(int, sources)), sorted(
                map(int, destinations))
            first_round = int(first_round)
        except Exception as error:
            with contextlib.suppress(HoronError):
                _core.refuse_window(name, str(error))  # to the others
            raise
        self.name, self.tensor = name, tensor.detach()
        self._counts_all = bool(zero_init)  # what slots hold was given away by somebody
        self._core = _core.Window(name, dtype, self._device, list(tensor.shape), tensor.data_ptr(),
                                  stream_of(self._device), self.sources, self.destinations,
                                  bool(zero_init), bool(gets), spec, first_round,
                                  bool(push_sum), self.tensor)
        _lent[name] = self.tensor

    def _start(self, act, weights=(), own=1.0, push_sum=False, reset=False, mutex=False,
               if_asked=False, input=None, output=None, waits=False, finish=_unreached) -> Handle:
        if push_sum and not self._counts_all:
            raise HoronInvalidArgument(
                f"window '{self.name}': its slots begin as copies of the tensor, which push-sum "
                "would count once more: make it with zero_init=True")
        addresses = [0 if t is None else self._address_of(t) for t in (input, output)]
        weights, stream = dict(weights), stream_of(self._device)
        work = self._core.start(act, list(weights), list(weights.values()), float(own), push_sum,
                                reset, mutex, if_asked, *addresses, stream, waits,
                                (self.tensor, input, output))
        return Handle(work, finish, lenders=((self._device, stream),))

    def _address_of(self, tensor) -> int:
        """Where a tensor lies that is like the window's own."""
        if (dtype_and_device(tensor, self.name) != self._kind
                or tensor.numel() != self.tensor.numel() or not tensor.is_contiguous()):
            raise HoronInvalidArgument(
                f"window '{self.name}': input and output are contiguous {self.tensor.dtype} of "
                f"{self.tensor.numel()} elements on {self.tensor.device}, as its tensor is, not "
                f"{tensor.dtype} of {tensor.numel()} on {tensor.device}")
        return tensor.data_ptr()

    def put_async(self, destinations=None, self_weight=1.0, push_sum=False, mutex=False) -> Handle:
        """Each destination's slot for this rank becomes weight * tensor; then the tensor is
        multiplied by self_weight. The tensor must not change meanwhile."""
        weights = weighted(destinations, self.destinations, 1.0)
        return self._start(_PUT, weights, self_weight, push_sum, mutex=mutex)

    def put(self, destinations=None, self_weight=1.0, push_sum=False, mutex=False) -> tuple:
        return self.put_async(destinations, self_weight, push_sum, mutex).wait()

    def accumulate_async(self, destinations=None, self_weight=1.0, push_sum=False,
                         mutex=False, if_asked=False) -> Handle:
        """put that adds to the slots. if_asked: only of destinations that ask(), once for each time
        that they do; what self_weight < 1 took from the tensor for the others stays in it."""
        weights = weighted(destinations, self.destinations, 1.0)
        return self._start(_ACCUMULATE, weights, self_weight, push_sum, mutex=mutex,
                           if_asked=if_asked)

    def accumulate(self, destinations=None, self_weight=1.0, push_sum=False, mutex=False,
                   if_asked=False) -> tuple:
        return self.accumulate_async(destinations, self_weight, push_sum, mutex, if_asked).wait()

    def ask(self, wanted=True) -> None:
        """Sources that give only if asked may give once more; they may at first. Does not block."""
        self._core.ask(wanted)

    def get_async(self, sources=None, push_sum=False, mutex=False) -> Handle:
        """This rank's slots become weight * what their ranks published: at their last call."""
        return self._start(_GET, weighted(sources, self.sources, 1.0), push_sum=push_sum,
                           mutex=mutex)

    def get(self, sources=None, push_sum=False, mutex=False) -> tuple:
        return self.get_async(sources, push_sum, mutex).wait()

    def update(self, self_weight=None, sources=None, reset=False, push_sum=False, mutex=False,
               out=None) -> tuple:
        """tensor <- self_weight * tensor + the sum of weight * slot, 1 / (sources + 1) each by
        default. reset empties the slots. out: another tensor for the result; slots stay."""
        uniform = 1.0 / (len(self.sources if sources is None else sources) + 1)
        own = uniform if self_weight is None else self_weight
        return self._start(_UPDATE, weighted(sources, self.sources, uniform), own, push_sum,
                           reset, mutex, output=out, waits=True).wait()

    def collect(self, push_sum=False, mutex=False) -> tuple:
        """Adds all slots to the tensor and empties them."""
        return self.update(1.0, dict.fromkeys(self.sources, 1.0), True, push_sum, mutex)

    def publish(self) -> None:
        """What others get from now on; every other call but versions() publishes, too."""
        self._start(_PUBLISH, waits=True).wait()

    @contextlib.contextmanager
    def mutex(self, ranks):
        """Holds the windows' mutexes of these ranks, which are advisory."""
        weights = dict.fromkeys(ranks, 1.0)
        missed = self._start(_LOCK, weights, waits=True).wait()
        try:
            if missed:
                raise HoronUnavailable(
                    f"window '{self.name}': the mutex of rank {missed[0]} was not had in time")
            yield
        finally:
            self._start(_UNLOCK, weights, waits=True).wait()

    def pair_async(self, peer, weight=0.5) -> Handle:
        """tensor += weight * (peer's - tensor), and the peer's the other way round, whatever the
        peer does meanwhile. The tensor, on the CPU, must then be changed and read through step()
        alone."""
        return self._start(_PAIR, {peer: weight})

    def step(self, change=None, out=None, weight=1.0) -> None:
        """tensor += weight * change, then out = tensor, with no average of a pair in between."""
        self._start(_STEP, own=weight, input=change, output=out, waits=True).wait()

    def mix_async(self, input=None) -> Handle:
        """The tensor, which first becomes `input` if that is given, is mixed in its next round with
        those of the round's in-neighbors; no others are waited for. It must not be used meanwhile.
        """
        return self._start(_ROUND, input=input)

    def mix(self, input=None) -> tuple:
        return self.mix_async(input).wait()

    @property
    def round(self) -> int:
        """The next one, of a window that mixes in rounds."""
        return self._core.round

    def versions(self) -> dict:
        """Deliveries by source since they were last taken."""
        return {source: self._core.deliveries(source) for source in self.sources}

    @property
    def push_sum_weight(self) -> float:
        """Of the tensor; the estimate of the mean is tensor / push_sum_weight."""
        return self._core.share

    @push_sum_weight.setter
    def push_sum_weight(self, weight):
        self._core.share = float(weight)

    def held(self) -> torch.Tensor:
        """The tensor and all that was delivered, added: over all ranks and nothing under way, the
        sum of it is what accumulate and collect keep."""
        out = torch.empty_like(self.tensor)
        self.update(1.0, dict.fromkeys(self.sources, 1.0), out=out)
        return out

    def free(self) -> None:
        """For all ranks together; an error on all of them where one has not waited for all."""
        self._core.free()
        _lent.pop(self.name, None)


def free_all(windows) -> None:
    """For all ranks together. What could not be freed stays in the list."""
    while windows:
        windows[0].free()
        windows.pop(0)
