"""hvd.Gossip: averages with neighbors instead of with everybody, as an op and as an optimizer's.

    hvd.allreduce_(tensor, name="x", op=hvd.Gossip(topology=horon.topology.Ring(8)))
    hvd.DistributedOptimizer(optimizer, op=hvd.Gossip(algorithm="sgp"))

The round belongs to the tensor: each call under a name is its next one, so give names.
"""

import functools

from horon import _core
from horon.errors import HoronInvalidArgument
from horon.mixing import Lazy, Mixing, Natural
from horon.runtime import cross_size, is_homogeneous
from horon.specs import Op, reduction_of
from horon.topology import Topology

# algorithm: what is gossiped, how it runs beside computing, whether push-sum weights go along; and
# on which graph, where that is part of the algorithm.
_ALGORITHMS = {
    "dpsgd": {"what": "parameters", "overlap": False, "push_sum": False},
    "sgp": {"what": "parameters", "overlap": False, "push_sum": True},
    "osgp": {"what": "parameters", "overlap": True, "push_sum": True},
    "gossipgrad": {"what": "gradients", "overlap": False, "push_sum": False,
                   "topology": "one_peer_exponential,rotate=1"},
    "adpsgd": {"what": "parameters", "overlap": True, "push_sum": False},
    "asgp": {"what": "parameters", "overlap": True, "push_sum": True},
    "gt": {"what": "parameters", "overlap": False, "push_sum": False},
    "exact_diffusion": {"what": "parameters", "overlap": False, "push_sum": False},
    "push_diging": {"what": "parameters", "overlap": False, "push_sum": True},
}
_WAITING_FOR_NOBODY = ("adpsgd", "asgp")
_WHAT = ("parameters", "gradients", "both")
_STYLES = ("atc", "cta")
_STYLED = ("dpsgd", "sgp")
_BETWEEN_PEERS = ("dpsgd", "sgp", "osgp")
_IN_A_CALL = ("dpsgd", "sgp", "gossipgrad")  # whose round is all that a collective has to do
# global_average_every, where nothing else pulls parameters together (docs/gossip.md has its gain).
_STEPS_OF_DRIFT = 16


class Gossip(Op):
    """One negotiated round of mixing a call, which has no more of the algorithm than its graph:
    what is more is HoronInvalidArgument there. With DistributedOptimizer, one of these algorithms
    (by default "dpsgd"):

    "dpsgd": parameters are mixed after each step. "sgp": the same with push-sum, so any weights
    whose columns sum to 1 will do. "osgp": sgp that travels while the next step is computed.
    "gossipgrad": gradients are mixed before each step. "adpsgd", "asgp": dpsgd by averages of
    pairs, and sgp, in which no rank waits for another (overlap=False: it waits until its own
    exchange is done).
    "gt" (gradient tracking), "exact_diffusion", "push_diging": reach the optimum of all ranks' data
    also where these differ, with a constant learning rate.

    topology: of horon.topology, a name ("ring"), or None: an exact graph, one peer a round where
    the number of ranks is a power of two ("gossipgrad": dissemination in another order of the ranks
    each time). "auto" and nothing else: DistributedOptimizer measures
    the links and the first steps, and chooses all (horon.advise).
    mixing: of horon.mixing; None: the topology's own.
    what: "parameters", "gradients" or "both". overlap: mix while the next step is computed (what
    is mixed is then one step old). sync_freq: with overlap, an exchange has so many steps more
    before it is waited for and the next one begins. global_average_every: every so many steps
    parameters are averaged exactly; None: every 16 where only gradients are mixed, because the
    ranks' parameters then drift apart, else (0) never. style, of dpsgd and sgp, whose results it
    does not change: "cta", combine then adapt: what a step sends is taken in by the next forward
    pass, each module's parameters right before it runs; "atc", adapt then combine a parameter at a
    time while backward goes on (no clipping, no GradScaler), taken in by step(), or with
    overlap=True as "cta" does.
    negotiated=False, of dpsgd, sgp and osgp: no round waits until all ranks are ready, each rank
    waits for its neighbors alone. hierarchical: nodes take part as one; local_op: "average" or
    "sum" (of gradients) inside.
    """

    __slots__ = ("algorithm", "style", "topology", "mixing", "what", "overlap", "push_sum",
                 "sync_freq", "global_average_every", "hierarchical", "local_op", "advised",
                 "negotiated", "_links")

    def __init__(self, algorithm=None, topology=None, mixing=None, what=None, overlap=None,
                 sync_freq=0, global_average_every=None, hierarchical=False, local_op="average",
                 style=None, negotiated=None):
        _check_kinds(topology, mixing)
        if isinstance(topology, Topology):
            topology = topology.as_run()
        self.advised = topology == "auto" and algorithm is None
        if self.advised and any((mixing, what, overlap, sync_freq, global_average_every,
                                 hierarchical, style, negotiated is not None)):
            raise HoronInvalidArgument("topology='auto' without an algorithm chooses all: leave "
                                       "the other arguments out, or name the algorithm")
        algorithm = "dpsgd" if algorithm is None else algorithm
        defaults = _ALGORITHMS[_choice("algorithm", algorithm, _ALGORITHMS)]
        self.algorithm = algorithm
        self.what = _choice("what", what or defaults["what"], _WHAT)
        self.overlap = defaults["overlap"] if overlap is None else bool(overlap)
        if self.what == "gradients" and self.overlap and not self.waits_for_nobody:
            raise HoronInvalidArgument("gradients are mixed before the step that uses them, so "
                                       "overlap, which is osgp's, is not for what='gradients': "
                                       "leave it out, or take what='both'")
        self.push_sum = defaults["push_sum"]
        self.sync_freq = int(sync_freq)
        if global_average_every is None:
            global_average_every = _STEPS_OF_DRIFT if self.what == "gradients" else 0
        self.global_average_every = int(global_average_every)
        self.style = style
        if style is not None:
            self._take_style(_choice("style", style, _STYLES))
        self.hierarchical = bool(hierarchical)
        self.negotiated = not self.waits_for_nobody if negotiated is None else bool(negotiated)
        self._check_negotiated()
        if algorithm == "exact_diffusion":
            topology = topology or "symmetric_exponential"
            mixing = Lazy(mixing or getattr(topology, "mixing", Natural()))
        if mixing is not None and mixing.matrices and topology is None:
            raise HoronInvalidArgument(
                f"{mixing!r} weighs the links of a topology: name that, or give topology="
                "horon.topology.from_matrix(...) without mixing")
        if mixing is not None and (mixing.matrices or isinstance(topology, Topology)):
            n = topology.n if isinstance(topology, Topology) else len(mixing.matrices[0])
            topology, mixing = graph_of(topology, n, mixing), None
        if topology is None:
            topology = defaults.get("topology")
        self.topology, self.mixing = topology, mixing
        self._links = _links(topology, mixing)
        if self.sync_freq < 0 or self.global_average_every < 0:
            raise HoronInvalidArgument("sync_freq and global_average_every count steps from 0 up")
        if self.sync_freq and not (self.overlap or self.waits_for_nobody):
            raise HoronInvalidArgument("sync_freq is how long an exchange may overlap with steps: "
                                       "give overlap=True, or leave it out")
        self.local_op = _choice("local_op", local_op, _INSIDE)
        if self.local_op != "average" and not self.hierarchical:
            raise HoronInvalidArgument("local_op is what the ranks of a node do first: give "
                                       "hierarchical=True, or leave it out")
        parts = [self._links]
        if self.hierarchical:
            parts += ["hierarchical=1", f"inside={self.local_op}"]
        parts = ",".join(filter(None, parts))
        super().__init__("gossip:" + parts if parts else "gossip")
        reduction_of(self)

    def _take_style(self, style):
        if self.algorithm not in _STYLED or self.what != "parameters":
            raise HoronInvalidArgument(f"style={style!r} is for {' and '.join(_STYLED)} of "
                                       "parameters: the other algorithms have their own order")
        if self.sync_freq:
            raise HoronInvalidArgument(f"style={style!r} ends before the next forward pass: leave "
                                       "sync_freq out")
        self.overlap = self.overlap or style == "cta"

    def _check_negotiated(self):
        if self.negotiated and self.waits_for_nobody:
            raise HoronInvalidArgument(f"{self.algorithm} never waits for all ranks: leave "
                                       "negotiated out")
        if self.negotiated or self.waits_for_nobody:
            return
        if (self.algorithm not in _BETWEEN_PEERS or self.what != "parameters"
                or self.style or self.hierarchical):
            raise HoronInvalidArgument(
                f"negotiated=False is for {', '.join(_BETWEEN_PEERS)} of parameters, of single "
                "ranks and without a style: leave it, or these, out")

    def __eq__(self, other) -> bool:
        return isinstance(other, Gossip) and (
            (self.words(), self.negotiated, self.advised)
            == (other.words(), other.negotiated, other.advised))

    __hash__ = Op.__hash__  # equal ones have one spec

    def words(self) -> str:
        """All that must be the same on all ranks of an optimizer."""
        usual = _ALGORITHMS[self.algorithm]
        more = [f"{name}={getattr(self, name)!r}" for name, default in (
            ("what", usual["what"]), ("overlap", usual["overlap"]), ("sync_freq", 0),
            ("global_average_every", 0), ("style", None)) if getattr(self, name) != default]
        return ", ".join([f"{self.algorithm} of {self.spec}", *more])

    @property
    def waits_for_nobody(self) -> bool:
        """With DistributedOptimizer: the ranks take part whenever each of them likes."""
        return self.algorithm in _WAITING_FOR_NOBODY

    def check_call(self) -> None:
        """HoronInvalidArgument where a collective by itself would do only a part of this op."""
        keeps_together = self.global_average_every if self.what == "parameters" else 0
        more = [said for said, given in (
            ("topology='auto'", self.advised),
            ("negotiated=False", not (self.negotiated or self.waits_for_nobody)),
            (f"algorithm={self.algorithm!r}", self.algorithm not in _IN_A_CALL),
            (f"style={self.style!r}", self.style), ("overlap=True", self.overlap),
            (f"global_average_every={keeps_together}", keeps_together)) if given]
        if more:
            raise HoronInvalidArgument(
                f"{more[0]} of hvd.Gossip is for DistributedOptimizer(op=...): a collective does "
                "one negotiated round of hvd.Gossip(topology=..., mixing=...). For a tensor of "
                "your own hvd.Window(tensor, name, topology, in_rounds=True) mixes between peers, "
                "its pair_async() and accumulate_async() without waiting, hvd.gossip_average to "
                "the mean")

    def graph(self, n: int) -> Topology:
        """The topology that this op has among n participants."""
        if isinstance(self.topology, Topology):
            return graph_of(self.topology, n)
        return Topology(n, self._links or "graph=auto")


_INSIDE = ("average", "sum")


def _choice(what, given, choices):
    if given not in choices:
        raise HoronInvalidArgument(f"{what} is {given!r}: use one of {', '.join(choices)}")
    return given


def _links(topology, mixing) -> str:
    """The runtime's parameters; a Topology has its mixing in it."""
    if isinstance(topology, Topology):
        return topology.parameters
    parts = [f"graph={topology}" if topology else "", mixing.parameters if mixing else ""]
    return ",".join(filter(None, parts))


def fail_when_late(spec: str) -> str:
    """The spec of gossip whose round fails on all ranks, with an error that names the late one,
    where it would be left out: for what has nothing to keep."""
    return f"{spec}{',' if ':' in spec else ':'}late=fail"


def rounds_differ(spec: str, n: int) -> bool:
    """Whether each call of this spec among n ranks mixes by another round than the one before.
    Where nodes take part, who may differ, it is said of their number where they do not."""
    if spec.partition(":")[0] != "gossip":
        return False
    by_nodes = "hierarchical=1" in spec and is_homogeneous()
    return _rounds_differ(spec, cross_size() if by_nodes else n)


@functools.lru_cache(maxsize=256)
def _rounds_differ(spec: str, n: int) -> bool:
    parts = dict(part.partition("=")[::2] for part in spec.partition(":")[2].split(",") if part)
    links = ",".join(f"{key}={value}" for key, value in parts.items() if key not in _OF_A_CALL)
    try:
        graph = _core.Graph(":".join(filter(None, ("gossip", links))), int(parts.get("n", n)))
    except ValueError:
        return False  # the call will say what is wrong
    return graph.period != 1


_OF_A_CALL = ("hierarchical", "inside", "rounds", "late")  # of a spec, beside its graph


def _check_kinds(topology, mixing) -> None:
    """HoronInvalidArgument for what is taken for a topology, or for weights, by mistake."""
    if not (topology is None or isinstance(topology, (str, Topology))):
        name = getattr(topology, "__name__", "a topology")
        raise HoronInvalidArgument(
            f"topology is a {type(topology).__name__}: give its name ('ring'), or horon.topology's "
            + (f"{name}(n), called with the number of ranks" if callable(topology) else
               "objects, such as from_matrix(rows)"))
    if not (mixing is None or isinstance(mixing, Mixing)):
        raise HoronInvalidArgument(
            f"mixing is {mixing!r}: give one of horon.mixing's objects, such as "
            "horon.mixing.MetropolisHastings() or Push()")


def graph_of(topology, n: int, mixing=None) -> Topology:
    """A topology of n participants, as the runtime does it, from what a user may give: one, its
    name, or None."""
    _check_kinds(topology, mixing)
    if not isinstance(topology, Topology):
        return Topology(n, f"graph={topology or 'auto'}", mixing)
    if topology.n != n:
        raise HoronInvalidArgument(f"{topology!r} is for {topology.n} participants; there are {n}")
    return topology.as_run() if mixing is None else topology.with_mixing(mixing)


def advise(parameters, backward):
    """For all ranks: the horon.advice.Advice on what fits `parameters` (a number of bytes, or
    tensors) on these hosts.

    backward: seconds that a step computes on this rank, or a function that computes one, which is
    run three times and timed. Measuring the links takes at most about a second. Blocking.
    """
    from horon.advice import plan  # what it needs is not needed at `import horon`
    from horon.torch import link_probe

    return plan(*link_probe.look(parameters, backward))


def __getattr__(name):
    """PushSum, PushPull and BilatPushPull, which need torch."""
    if name in ("PushSum", "PushPull", "BilatPushPull"):
        from horon.torch import gossipers

        return getattr(gossipers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
