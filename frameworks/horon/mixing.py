"""Mixing weights: how much of each neighbor a participant takes, given a topology.

    topology = horon.topology.Star(8, mixing=horon.mixing.Push())

Rows of a mixing matrix are receivers. Where rows and columns sum to 1, gossip keeps the mean and
all participants approach it; where only columns do, push-sum finds it.
"""

from horon.errors import HoronInvalidArgument


class Mixing:
    """`parameters` is what the runtime reads; or weights are `matrices`, one a round."""

    parameters = ""
    matrices = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Natural(Mixing):
    """The topology's own weights: Metropolis-Hastings where links go both ways, else uniform."""


class Uniform(Mixing):
    """1 / (number of neighbors heard + 1) each: rows sum to 1."""

    parameters = "mixing=uniform"


class Push(Mixing):
    """1 / (number of neighbors sent to + 1) each: columns sum to 1, for push-sum."""

    parameters = "mixing=push"


class MetropolisHastings(Mixing):
    """1 / (1 + the larger degree of the two): symmetric, for links that go both ways."""

    parameters = "mixing=metropolis"


class Lazy(Mixing):
    """Half of everybody's own value stays: (I + W) / 2."""

    def __init__(self, inner: Mixing = Natural()):
        self.inner = inner
        self.matrices = [_half_stays(matrix) for matrix in inner.matrices]
        if not self.matrices:
            self.parameters = ",".join(filter(None, (inner.parameters, "lazy=1")))

    def __repr__(self) -> str:
        return f"Lazy({self.inner!r})"


def _half_stays(matrix) -> list:
    return [[(weight + (i == j)) / 2 for j, weight in enumerate(row)]
            for i, row in enumerate(matrix)]


class Custom(Mixing):
    """Weights of one's own: a matrix for each round of the topology's period, rows are receivers.

    Entries must be 0 where the topology has no link; rows or columns must sum to 1.
    """

    def __init__(self, *matrices):
        self.matrices = [[[float(weight) for weight in row] for row in m] for m in matrices]
        n = len(self.matrices[0]) if self.matrices else 0
        if n == 0 or any(len(m) != n or any(len(row) != n for row in m) for m in self.matrices):
            raise HoronInvalidArgument("give a matrix for each round, at least one: a list of as "
                                       "many rows as there are participants, all as long")

    def __repr__(self) -> str:
        return f"Custom({len(self.matrices)} rounds)"
