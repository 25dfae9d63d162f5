"""Calls that come again: under the same name, with the same arguments, on a tensor of the same kind.

They skip everything that was found out the first time. A call is remembered when it comes for the
second time, so that names that never return cost nothing; one that differs takes the long way.
"""

from horon import _core

_MOST = 65536  # calls remembered in one place


class Repeats:
    """Calls by some key, with `arguments` that are compared by identity (numbers by value)."""

    __slots__ = ("_known",)

    def __init__(self):
        self._known = {}

    def start(self, key, tensor, *arguments):
        """A handle, or None: start a Call, and tell remember()."""
        repeat = self._known.get(key)
        return None if repeat is None else repeat.start(tensor, tensor, *arguments)

    def run(self, key, tensor, *arguments):
        """The tensor, reduced, or None."""
        repeat = self._known.get(key)
        return None if repeat is None else repeat.run(tensor, tensor, *arguments)

    def remember(self, key, call, tensor, *arguments) -> None:
        """`call` works on the tensor in place."""
        if len(self._known) >= _MOST:
            self._known.clear()
        again = key in self._known and call.is_on(tensor)
        self._known[key] = _core.repeat(call._request, tensor, arguments) if again else None
