"""Looks at the links between ranks, for horon.advice. For all ranks together; blocking.

Pairs of ranks inside a host, then one rank of each host with those of others, exchange more and
more until it takes long enough to be told from noise. How fast ranks go through their memory is
looked at while all do. What each rank saw is gathered, so that all ranks have the same numbers.
"""

import time
from statistics import median

import torch

from horon.advice import Job, Links
from horon.gossip import fail_when_late
from horon.process_sets import global_process_set
from horon.runtime import cross_rank, local_rank, local_size, rank, size
from horon.torch.calls import rows_call
from horon.torch.gossip import neighbor_allreduce
from horon.torch.meeting import meet
from horon.torch.reductions import allreduce

_SECONDS = 1.0  # for all of it, unless a single message takes longer
_LONG_ENOUGH_S = 0.04  # an exchange of which the bandwidth is read
_SMALLEST, _FACTOR, _LARGEST = 1 << 16, 4, 1 << 24  # bytes
_REPEATS = 7  # of small messages; of a function that computes a step, fewer
_STEPS = 3
_PAST_CACHES = 1 << 24  # bytes


def look(parameters, backward) -> tuple:
    """(Job, Links) for horon.advice.plan, the same on all ranks."""
    compute = _timed_steps(backward) if callable(backward) else float(backward)
    layout = _of_all_ranks([local_rank(), cross_rank(), local_size(), compute])
    hosts = _hosts(layout)
    job = Job(tuple(hosts), _bytes_of(parameters), tuple(seconds for *_, seconds in layout))
    return job, _Probe(hosts, layout).links(job.bytes)


def _bytes_of(parameters) -> int:
    if isinstance(parameters, (int, float)):
        return int(parameters)
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    return sum(p.numel() * p.element_size() for p in parameters)


def _timed_steps(step) -> float:
    taken = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return median(taken)


def _memory(bytes_) -> float:
    """Bytes a second of the median rank, as Links says; no more of them than pass the caches."""
    own, other, out = torch.zeros(3, max(1, min(bytes_, _PAST_CACHES) // 4))
    taken = []
    for _ in range(_REPEATS):
        meet()
        start = time.perf_counter()
        torch.sub(own, other, out=out)
        taken.append(time.perf_counter() - start)
    return 4 * len(own) / median(seconds for (seconds,) in _of_all_ranks([median(taken[1:])]))


def _of_all_ranks(numbers) -> list:
    row = torch.tensor([numbers], dtype=torch.float64)
    return rows_call("advice", fail_when_late("allgather"), row, global_process_set).run().tolist()


def _hosts(layout) -> list:
    """Of each rank the host's number, in the order of their first ranks. Its number across hosts
    is among those that have its local rank."""
    sizes = [each for local, _, each, _ in layout if local == 0]
    return [[host for host, each in enumerate(sizes) if each > local][int(cross)]
            for local, cross, *_ in layout]


class _Probe:
    def __init__(self, hosts, layout):
        self._hosts = hosts
        self._leaders = [r for r, (local, *_) in enumerate(layout) if local == 0]
        self._until = time.perf_counter() + _SECONDS

    def links(self, bytes_) -> Links:
        if size() == 1:
            return Links(0.0, 0.0)
        small = torch.zeros(2)
        after, before = (rank() + 1) % size(), (rank() - 1) % size()
        calls = (lambda: self._exchange(small, before, after),
                 lambda: allreduce(small, op=fail_when_late("sum"), name="advice.small"))
        exchange_s, allreduce_s = (max(row[i] for row in _of_all_ranks(
            [self._median(call) for call in calls])) for i in (0, 1))
        return Links(exchange_s, allreduce_s, self._inside(), self._outside(),
                     _memory(bytes_))

    def _median(self, call) -> float:
        taken = []
        for _ in range(_REPEATS):
            meet()
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        return median(taken[1:])

    def _exchange(self, tensor, source, destination):
        """None: this rank only agrees to the others' exchange."""
        neighbor_allreduce(tensor, src_weights=[] if source is None else [source],
                           dst_weights=[] if destination is None else [destination],
                           name=f"advice.{tensor.numel()}")

    def _inside(self) -> float:
        """All hosts' pairs of ranks at once, the slowest pair."""
        if len(self._leaders) == size():
            return float("inf")
        peer = rank() + (1 if local_rank() % 2 == 0 else -1)
        alone = peer >= size() or self._hosts[peer] != self._hosts[rank()]
        peer = None if alone else peer
        return min(self._bandwidths(peer, peer, _REPEATS))

    def _outside(self) -> tuple:
        """Each host's best exchange with another: a slow link shows at both of its ends, and what
        a host does with others tells whose it is."""
        hosts = len(self._leaders)
        best = [0.0] * hosts
        for shift in (1, 2)[:hosts - 1]:
            source = destination = None
            if local_rank() == 0:
                mine = self._hosts[rank()]
                source = self._leaders[(mine - shift) % hosts]
                destination = self._leaders[(mine + shift) % hosts]
            found = self._bandwidths(source, destination)
            best = [max(best[h], found[leader]) for h, leader in enumerate(self._leaders)]
        return tuple(best) if hosts > 1 else ()

    def _bandwidths(self, source, destination, repeats=1) -> list:
        """Of each rank; inf where it takes no part. The quickest of the repeats counts: memory that
        is touched for the first time takes longer than an exchange inside a host."""
        taken = []
        bytes_ = _SMALLEST
        while True:
            tensor = torch.zeros(bytes_ // 4)
            own = float("inf")
            for _ in range(repeats):
                meet()
                start = time.perf_counter()
                self._exchange(tensor, source, destination)
                own = min(own, time.perf_counter() - start)
            own = own if source is not None else 0.0
            late = time.perf_counter() > self._until
            taken.append((bytes_, own))
            worst = allreduce(torch.tensor([own, float(late)], dtype=torch.float64),
                              op=fail_when_late("max"), name="advice.worst").tolist()
            if len(taken) > 1 and (worst[0] > _LONG_ENOUGH_S or worst[1] or bytes_ >= _LARGEST):
                break
            bytes_ *= _FACTOR
        mine = float("inf") if source is None else _bandwidth(*taken[-2:])
        return [row[0] for row in _of_all_ranks([mine])]


def _bandwidth(smaller, larger) -> float:
    """Bytes a second of two exchanges, (bytes, seconds) each. What a message costs however small,
    and what a link lets pass at once, is in both; where that is nearly all, nobody knows how fast
    the rest went: a few times as fast is the most that is believed."""
    (fewer, before), (more, after) = smaller, larger
    least = more / after
    return min((more - fewer) / max(after - before, 1e-9), _FACTOR * least)
