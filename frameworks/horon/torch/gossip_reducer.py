"""GossipReducer: GradientReducer for gradients that are mixed, with their round to be saved."""

from horon.torch.gradient_rounds import GradientRounds
from horon.torch.reducer import GradientReducer


class GossipReducer(GradientReducer):
    """Each synchronize() is a round of all gradients."""

    def __init__(self, param_groups, reduction, named_parameters, passes, groups):
        super().__init__(param_groups, reduction, named_parameters, passes, groups)
        self._rounds = reduction.rounds = GradientRounds()

    def _dense_anyway(self, parameter) -> bool:
        """A sparse gradient is refused, so nobody is asked, whom all would wait for."""
        return True

    @property
    def round(self) -> int:
        """The next one."""
        return self._rounds.round

    def go_on_at(self, round_) -> None:
        """On all ranks alike, with nothing under way."""
        self._rounds.go_on_at(round_)
        for hook in self._hooks.values():
            hook.forget()  # by itself it would say no round

    def synchronize(self) -> None:
        try:
            super().synchronize()
        finally:
            self._rounds.round += 1
