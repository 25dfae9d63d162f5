"""GossipReducer: GradientReducer for gradients that are mixed, with their round to be saved."""

from horon.torch.gradient_rounds import GradientRounds
from horon.torch.meeting import meet
from horon.torch.parameters import name_added, names_of_its_own
from horon.torch.reducer import GradientReducer


class GossipReducer(GradientReducer):
    """Each synchronize() is a round of all gradients."""

    def __init__(self, param_groups, reduction, named_parameters, passes, groups):
        members = reduction.process_set
        if isinstance(groups, int) and groups and members.included() and members.size() > 1:
            meet(members)  # groups of equal size are made by all ranks together, who would wait
        super().__init__(param_groups, reduction, named_parameters, passes, groups)
        self._rounds = reduction.rounds = GradientRounds()

    def _dense_anyway(self, parameter) -> bool:
        """A sparse gradient is refused, so nobody is asked, whom all would wait for."""
        return True

    def _names_of(self, param_groups, named_parameters) -> dict:
        names = super()._names_of(param_groups, named_parameters)
        if not self.active:
            return names
        return names_of_its_own("gradients", names, param_groups, self.process_set)

    def _names_of_added(self) -> dict:
        return name_added(self._param_groups, self._names)

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
