"""The one way in which horonrun turns a mistake down."""


class Refusal(Exception):
    """A mistake of the user, or of a machine, said in one line; `details` are shown below it."""

    def __init__(self, sentence: str, exit_code: int = 2, details: list[str] | None = None) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.details = details or []
