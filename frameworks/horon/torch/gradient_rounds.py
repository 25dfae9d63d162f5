"""GradientRounds: which round of gossip gradients are at.

The runtime counts the rounds of each tensor by itself, but only as long as it runs. So the first
reduction of each gradient says which round it is, and so does the first one after a checkpoint was
loaded; what comes then is the next one. Used by whatever starts reductions, one thread at a time.
"""


class GradientRounds:
    """Of all gradients of a model: each has one reduction a round. Ranks say theirs alike, or all
    get an error that shows both."""

    def __init__(self):
        self.round = 0  # the one that is next, or under way
        self._told = set()  # tensors of which the runtime knows it

    def say(self, name) -> int:
        """Request::round of this tensor's reduction, which is about to start."""
        if name in self._told:
            return 0
        self._told.add(name)
        return self.round or -1

    def go_on_at(self, round_):
        """Whatever the runtime has counted."""
        self.round = round_
        self._told.clear()


class _NoRounds:
    def say(self, name) -> int:
        return 0


NO_ROUNDS = _NoRounds()  # of ops that have none
