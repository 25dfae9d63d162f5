"""Calls that come again: under the same name, with the same arguments, on tensors of the same kind.

They skip everything that was found out the first time. A call is remembered when it comes for the
second time, so that names that never return cost nothing; one that differs takes the long way.
Gradients have their own way (_core.GradientHook).
"""

import functools

from horon import _core

def repeated(blocking: bool):
    """For functions f(tensor, average, name, ...) that reduce a tensor, or a list, in place. They
    tell remember() what they submit; from the second call of a name on, equal calls no longer reach
    them."""
    return lambda function: functools.update_wrapper(_core.repeated(function, blocking), function)


def remember(function, name, call, given, process_set):
    """The call, which `function` is about to make for what it was given under the user's name."""
    if name is not None:
        if call.is_on(given):
            _core.remember(function, name, call.requests(), _tensors(call, given), call.group,
                           process_set)
        else:
            _core.forget(function, name)
    return call


def _tensors(call, given):
    """One for each of the call's requests."""
    return (given,) if call.group is None else given
