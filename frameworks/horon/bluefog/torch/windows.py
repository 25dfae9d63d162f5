"""BlueFog's windows, in terms of horon.torch.Window. On the thread that trains.

What win_get reads is what the other rank published with its own last win_... call of that window.
"""

from contextlib import contextmanager

from horon.bluefog.torch import state
from horon.errors import HoronInvalidArgument
from horon.runtime import rank
from horon.torch.calls import Handle, poll
from horon.torch.windows import Window

_windows = state.windows  # by name


class _Mode:
    push_sum = False


def _window(name) -> Window:
    if name not in _windows:
        raise HoronInvalidArgument(f"there is no window '{name}': call win_create() first")
    return _windows[name]


def turn_on_win_ops_with_associated_p() -> None:
    """From now on calls carry push-sum weights along, and win_create begins with zeros."""
    _Mode.push_sum = True


def turn_off_win_ops_with_associated_p() -> None:
    _Mode.push_sum = False


def win_create(tensor, name, zero_init=False) -> bool:
    """For all ranks. The tensor's own memory becomes the window. False: the name exists."""
    if name in _windows:
        return False
    _windows[name] = Window(tensor, name, state.rank_topology(),
                            zero_init=zero_init or _Mode.push_sum)
    return True


def win_free(name=None) -> bool:
    """For all ranks. None: all windows."""
    if name is not None and name not in _windows:
        return False
    for each in [name] if name is not None else sorted(_windows):
        _windows[each].free()
        del _windows[each]
    return True


def _reached(handle, tensor=None, self_weight=1.0) -> Handle:
    """True once all ranks were reached; the caller's own tensor is weighted like the window's."""
    first = handle._finish

    def finish(work, index):
        if tensor is not None and self_weight != 1.0:
            tensor.mul_(self_weight)
        return not first(work, index)

    handle._finish = finish
    return handle


def _give(act, tensor, name, self_weight, dst_weights, require_mutex):
    window = _window(name)
    own = 1.0 if self_weight is None else float(self_weight)
    other = tensor.data_ptr() != window.tensor.data_ptr()
    if other:
        window.tensor.copy_(tensor.detach())
    handle = act(window, dst_weights, own, _Mode.push_sum, require_mutex)
    return _reached(handle, tensor.detach() if other else None, own)


def win_put_nonblocking(tensor, name, self_weight=None, dst_weights=None, require_mutex=False):
    """dst_weights: {rank: weight}; None: 1 to every out-neighbor."""
    return _give(Window.put_async, tensor, name, self_weight, dst_weights, require_mutex)


def win_put(tensor, name, self_weight=None, dst_weights=None, require_mutex=False) -> bool:
    return win_wait(win_put_nonblocking(tensor, name, self_weight, dst_weights, require_mutex))


def win_accumulate_nonblocking(tensor, name, self_weight=None, dst_weights=None,
                               require_mutex=False):
    return _give(Window.accumulate_async, tensor, name, self_weight, dst_weights, require_mutex)


def win_accumulate(tensor, name, self_weight=None, dst_weights=None, require_mutex=False) -> bool:
    return win_wait(win_accumulate_nonblocking(tensor, name, self_weight, dst_weights,
                                               require_mutex))


def win_get_nonblocking(name, src_weights=None, require_mutex=False):
    return _reached(_window(name).get_async(src_weights, _Mode.push_sum, require_mutex))


def win_get(name, src_weights=None, require_mutex=False) -> bool:
    return win_wait(win_get_nonblocking(name, src_weights, require_mutex))


def win_wait(handle) -> bool:
    """Whether all ranks were reached."""
    return handle.wait()


def win_poll(handle) -> bool:
    return poll(handle)


def _topology_weights():
    me, edges = rank(), state.rank_topology().edges()
    return (next(w for s, to, w in edges if s == to == me),
            {s: w for s, to, w in edges if to == me and s != me})


def win_update(name, self_weight=None, neighbor_weights=None, reset=False, clone=False,
               require_mutex=False):
    """The mixed tensor. Weights: both or neither, then the topology's."""
    window = _window(name)
    if (self_weight is None) != (neighbor_weights is None):
        raise HoronInvalidArgument("win_update takes self_weight and neighbor_weights, or neither")
    if self_weight is None:
        self_weight, neighbor_weights = _topology_weights()
    out = window.tensor.clone() if clone else None
    window.update(self_weight, neighbor_weights, reset, _Mode.push_sum, require_mutex, out)
    return window.tensor if out is None else out


def win_update_then_collect(name, require_mutex=True):
    """The tensor plus all that was delivered, which is taken."""
    window = _window(name)
    window.collect(_Mode.push_sum, require_mutex)
    return window.tensor


@contextmanager
def win_mutex(name, for_self=False, ranks=None):
    """Holds the mutexes of the out-neighbors, or of `ranks`, or this rank's own."""
    window = _window(name)
    if ranks is None:
        ranks = [rank()] if for_self else window.destinations
    with window.mutex(ranks):
        yield


@contextmanager
def win_lock(name):
    """Around changes of the window's tensor by hand: what it holds at the end is what others get
    from then on. Nobody waits: deliveries do not touch the tensor, whoever is in win_lock."""
    window = _window(name)
    try:
        yield
    finally:
        window.publish()


def get_win_version(name) -> dict:
    """By in-neighbor: deliveries since the last update; 0: what is there was mixed in."""
    return _window(name).versions()


def get_current_created_window_names() -> list:
    return sorted(_windows)


def win_associated_p(name) -> float:
    return _window(name).push_sum_weight
