"""The one way in which horonrun turns a mistake down."""

import errno
import resource

EXHAUSTED = {  # what this machine has too little of, by the number of the OSError
    errno.EMFILE: f"raise ulimit -n (it is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})",
    errno.ENFILE: "raise the system's fs.file-max",
    errno.ENOMEM: "raise ulimit -v, or the container's memory",
    errno.EAGAIN: "raise ulimit -u",
    errno.ENOSPC: "make room for what horonrun writes",
    errno.EDQUOT: "make room for what horonrun writes",
}

class Refusal(Exception):
    """A mistake of the user, or of a machine, said in one line; `details` are shown below it."""

    def __init__(self, sentence: str, exit_code: int = 2, details: list[str] | None = None) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.details = details or []
