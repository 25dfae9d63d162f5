"""Which algorithm and topology fits the network: what horon.advise() and horonrun --advise decide.

    advice = horon.advise(model.parameters(), backward=0.05)
    print(advice)                   # the choice, the reason, the table of candidates
    hvd.DistributedOptimizer(optimizer, op=advice.op)

Planning is pure: plan(Job, Links) needs no ranks. Measuring is horon/torch/link_probe.py's; all
ranks plan with the same numbers, and so choose alike. docs/gossip.md says what is assumed.
"""

import math
from dataclasses import dataclass
from statistics import median

from horon import topology
from horon.gossip import Gossip
from horon.pairing import pairs_graph
from horon.specs import Average

ALLREDUCE = "allreduce"
ASYNCHRONOUS = "pairs, nobody waits"
_EXACT_IS_WORTH = 1.15  # gossip must be faster than allreduce by more than this
_ALIKE = 1.05  # step times that differ by less are taken for the same
_STRAGGLER = 1.5  # waiting for nobody must be worth more than this
_LEFT = 1e-3  # of the disagreement, after the rounds that the table names
_EXACT_GRAPHS_UP_TO = 128
_PASSES = 3  # over the parameters, in a step that takes in what an exchange has changed


@dataclass(frozen=True)
class Job:
    """hosts: that of each rank, counted from 0. compute: of each rank, seconds of a step without
    communication."""

    hosts: tuple
    bytes: int
    compute: tuple

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def each(self) -> int:
        """Ranks on the fullest host."""
        return max(self.hosts.count(host) for host in set(self.hosts))


@dataclass(frozen=True)
class Links:
    """Seconds, and bytes a second that go both ways at once. outside: that of each host's link.
    memory: of a tensor that a rank subtracts from another into a third, while all ranks do."""

    exchange_s: float  # a call that exchanges a few bytes with a neighbor
    allreduce_s: float  # an allreduce of a few bytes
    inside: float = float("inf")
    outside: tuple = ()
    memory: float = float("inf")


@dataclass(frozen=True)
class Candidate:
    """rounds: steps until a thousandth of the ranks' disagreement is left, at most. arguments: of
    hvd.Gossip; None: op=hvd.Average."""

    name: str
    arguments: dict | None
    exchange_s: float
    step_s: float
    rounds: int

    @property
    def contraction(self) -> float:
        """What a step leaves of the disagreement, on the average of these rounds."""
        return 0.0 if self.arguments is None else _LEFT ** (1 / max(self.rounds, 1))

    @property
    def op(self):
        return Average if self.arguments is None else Gossip(**self.arguments)

    @property
    def spelled(self) -> str:
        """The op as a program has it."""
        if self.arguments is None:
            return "hvd.Average"
        given = [f"{key}={value!r}" for key, value in self.arguments.items()]
        return f"hvd.Gossip({', '.join(given)})"


@dataclass(frozen=True)
class Advice:
    job: Job
    links: Links
    candidates: tuple
    chosen: Candidate
    reason: str

    @property
    def op(self):
        return self.chosen.op

    def __str__(self) -> str:
        return "\n".join([_situation(self.job, self.links), "",
                          f"Advice: op={self.chosen.spelled}. {self.reason}", "",
                          *_table(self.candidates, self.chosen)])


def plan(job: Job, links: Links) -> Advice:
    """The same on all ranks that have the same numbers."""
    candidates = tuple(_candidates(job, links))
    return Advice(job, links, candidates, *_choose(candidates, job))


def _graphs(n: int):
    """(name, parameters) of the graphs that are tried among n participants."""
    yield "one-peer exponential", "one_peer_exponential"
    if n & (n - 1) and n <= _EXACT_GRAPHS_UP_TO:
        yield "base, one peer", "base"
        yield "base, two peers", "base,k=2"
    yield "static exponential", "static_exponential"
    yield "ring", "ring"


def _candidates(job, links):
    exact = _allreduce_s(job, links)
    yield Candidate(ALLREDUCE, None, exact, max(*job.compute, exact), 1)
    if job.size == 1:
        return
    for name, parameters in _graphs(job.size):
        graph = topology.Topology(job.size, f"graph={parameters}")
        seconds = links.exchange_s + _mean([max(r) for r in _seconds_by_host(graph, job, links)])
        yield _gossip(name, parameters, False, graph, seconds, job, links)
    hosts = len(set(job.hosts))
    if 1 < hosts and hosts * job.each == job.size > hosts:
        for name, parameters in _graphs(hosts):
            graph = topology.Topology(hosts, f"graph={parameters}")
            seconds = links.exchange_s + _inside_s(job, links) + _mean(
                [max(len(graph.peers(i, t)[0]) for i in range(hosts)) for t in graph.rounds()]
            ) * job.bytes / min(links.outside)
            yield _gossip(f"{name} of hosts", parameters, True, graph, seconds, job, links)
    yield _asynchronous(job, links)


def _gossip(name, parameters, hierarchical, graph, seconds, job, links) -> Candidate:
    arguments = {"algorithm": "osgp", "topology": parameters}
    if hierarchical:
        arguments["hierarchical"] = True
    step = max(*job.compute, seconds) + _taking_in_s(job, links)
    return Candidate(name, arguments, seconds, step, graph.rounds_for(_LEFT))


def _asynchronous(job, links) -> Candidate:
    """The median rank's step, which waits for no exchange: one that is slow, or whose link is,
    delays none but itself. Where an exchange takes longer than a step, not every step has one."""
    graph = pairs_graph(job.size)
    by_host = [_mean([s for s in rounds if s > 0] or [0.0])  # in others it has no partner
               for rounds in zip(*_seconds_by_host(graph, job, links))]
    exchange = links.exchange_s + median(by_host[host] for host in job.hosts)
    step = median(job.compute) + _taking_in_s(job, links)
    steps_an_average = max(1.0, exchange / step) if step > 0 else 1.0
    return Candidate(ASYNCHRONOUS, {"algorithm": "adpsgd"}, exchange, step,
                     math.ceil(graph.rounds_for(_LEFT) * steps_an_average))


def _taking_in_s(job, links) -> float:
    """On the training thread, beside which the parameters cannot change."""
    return _PASSES * job.bytes / links.memory


def _mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def _inside_s(job, links) -> float:
    """Reduce-scatter and allgather among the ranks of a host."""
    return 2 * (job.each - 1) / job.each * job.bytes / links.inside


def _allreduce_s(job, links) -> float:
    hosts = len(set(job.hosts))
    outside = 2 * (hosts - 1) / hosts * job.bytes / min(links.outside) if hosts > 1 else 0.0
    return links.allreduce_s + _inside_s(job, links) + outside


def _seconds_by_host(graph, job, links) -> list:
    """For each round and host: how long what its ranks exchange takes, on its own links."""
    hosts = sorted(set(job.hosts))
    found = []
    for t in graph.rounds():
        given, got = dict.fromkeys(hosts, 0), dict.fromkeys(hosts, 0)
        near = dict.fromkeys(range(job.size), 0)
        for sender, to, _ in graph.edges(t):
            if sender != to and job.hosts[sender] == job.hosts[to]:
                near[to] += 1
            elif sender != to:
                given[job.hosts[sender]] += 1
                got[job.hosts[to]] += 1
        found.append([max(
            max(near[r] for r in near if job.hosts[r] == host) * job.bytes / links.inside,
            max(given[host], got[host]) * job.bytes / links.outside[host] if links.outside else 0.0,
        ) for host in hosts])
    return found


def _choose(candidates, job) -> tuple:
    """(the candidate, the reason)."""
    exact = candidates[0]
    if job.size == 1:
        return exact, "There is one rank, and nobody to average with."
    *synchronous, free = candidates[1:]
    fastest = min(c.step_s for c in synchronous)
    waiting = min(fastest, exact.step_s)
    averaged = max(free.step_s, free.exchange_s)  # a step and a whole exchange, as the others have
    if averaged * _STRAGGLER < waiting:
        return free, (f"One rank or link is slow: whoever waits for it takes {_time(waiting)} a "
                      f"step and exchange at best, the others alone {_time(averaged)}. In "
                      "averages of pairs nobody waits for it, and a step takes "
                      f"{_time(free.step_s)}.")
    if exact.step_s <= _EXACT_IS_WORTH * fastest:
        return exact, (f"With the exact mean a step takes {_time(exact.step_s)}, and no gossip is "
                       f"faster by more than {_EXACT_IS_WORTH - 1:.0%}: take what is exact.")
    near = [c for c in synchronous if c.step_s <= _ALIKE * fastest]
    best = min(near, key=lambda c: (c.rounds, c.exchange_s))
    gain = exact.step_s / best.step_s
    return best, (f"An exact allreduce takes {_time(exact.exchange_s)}, an exchange with neighbors "
                  f"{_time(best.exchange_s)}: a step of {_time(best.step_s)} in place of "
                  f"{_time(exact.step_s)}, {gain:.1f} times as fast. Of the graphs as "
                  f"fast as that it needs the fewest steps, {best.rounds}, until a thousandth of "
                  "the ranks' disagreement is left.")


def _time(seconds) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _rate(bytes_a_second) -> str:
    return f"{bytes_a_second / 1e6:.3g} MB/s"


def _situation(job, links) -> str:
    hosts = len(set(job.hosts))
    text = (f"{job.size} ranks on {hosts} host{'s' * (hosts > 1)}, {job.bytes / 1e6:.3g} MB of "
            f"parameters; a step computes for {_time(median(job.compute))}, on the slowest rank "
            f"{_time(max(job.compute))}. An exchange of a few bytes takes "
            f"{_time(links.exchange_s)}, an allreduce of them {_time(links.allreduce_s)}.")
    if job.each > 1:
        text += f" Ranks of a host exchange {_rate(links.inside)}."
    if hosts > 1:
        text += (f" Between hosts it is {_rate(median(links.outside))}, on the slowest link "
                 f"{_rate(min(links.outside))}.")
    return text


def _table(candidates, chosen) -> list:
    rows = [("", "candidate", "exchange", "step", "left a step", "steps to 1/1000")]
    rows += [(">" if c is chosen else "", c.name, _time(c.exchange_s), _time(c.step_s),
              f"{c.contraction:.3f}", str(c.rounds)) for c in candidates]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
