"""What gossip's saved states hold, and who may go on from one.

A state is a dict. "weight": this rank's push-sum weight; "weights": one for each window. "kept":
what an algorithm remembers of its rank's gradients. "of": [the rank that saved it, how many there
were]. The rest (rounds, steps) is the same on all ranks.
"""

from horon.errors import HoronInvalidArgument
from horon.runtime import rank

_MEANS_NOTHING = 1e-9  # that a weight may differ from 1 by, after many sums

_OF_PUSH_SUM = (
    "this checkpoint has a push-sum weight of {weight:.9g}, and {op} on this graph keeps none, so "
    "what the weights say of the parameters would be lost. Load it with the algorithm and the "
    "graph that saved it and call optimizer.finish_gossip(average=True), after which all weights "
    "are 1, and save it again"
)
_OF_ANOTHER_RANK = (
    "this checkpoint was saved by rank {rank} of {size} and has what only that one can go on from: "
    "a push-sum weight, or what the algorithm remembers of its gradients. This is rank {me} of "
    "{now}. Save and load a file for each rank; or save after finish_gossip(average=True), which "
    "leaves neither; or give all ranks an optimizer's state by hvd.broadcast_optimizer_state(); or "
    "load it, on all ranks, without its 'horon_gossip' into a new optimizer, which begins with "
    "weights of 1 and remembers nothing"
)


def weights_for(state, windows) -> list:
    """Push-sum weights of so many windows; of a job of another kind the one weight for each."""
    weights = state.get("weights", [])
    return list(weights) if len(weights) == windows else [state.get("weight", 1.0)] * windows


def _telling_weight(state):
    """The weight that is farthest from 1; None where all are 1."""
    weights = state.get("weights") or [state.get("weight", 1.0)]
    weight = max(weights, key=lambda one: abs(one - 1))
    return weight if abs(weight - 1) > _MEANS_NOTHING else None


def place_in(process_set) -> list:
    """Of this rank, which a saved state tells as "of"."""
    return [rank(), process_set.size()]


def check_whose(state, here):
    """HoronInvalidArgument where another rank has saved it, or this one among others, and it has
    what no other can go on from: a push-sum weight, or what an algorithm remembers. `here`: this
    rank's place_in()."""
    saved = list(state.get("of", here))
    own = bool(state.get("kept")) or _telling_weight(state) is not None
    if own and saved != here:
        raise HoronInvalidArgument(_OF_ANOTHER_RANK.format(
            rank=saved[0], size=saved[1], me=here[0], now=here[1]))


def of_all_ranks(state) -> dict:
    """What of a rank's state all may go on from."""
    common = {name: value for name, value in state.items() if name not in ("kept", "of")}
    if "weight" in state:
        common["weight"] = 1.0
    if "weights" in state:
        common["weights"] = [1.0] * len(state["weights"])
    return common


def check_no_weights(op, state):
    """HoronInvalidArgument for a state with weights that say something."""
    weight = _telling_weight(state)
    if weight is not None:
        raise HoronInvalidArgument(_OF_PUSH_SUM.format(weight=weight, op=op.algorithm))
