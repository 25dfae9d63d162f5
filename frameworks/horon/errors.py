"""The exceptions of Horon. All are HoronError; each is also what Horovod scripts catch.

Codes of the C API become classes here, once. Where a call fails matters to a script: what was wrong
with the call itself is a ValueError; what the ranks found out together is a HorovodInternalError.
"""

from horon import _core


class HoronError(Exception):
    """Any failure of Horon."""


class HorovodInternalError(RuntimeError):
    """Horovod's name for a collective that failed."""


class HoronInvalidArgument(HoronError, ValueError):
    """This call is wrong: unknown op, bad shape, a name that is already pending, ..."""


class HoronWrongOp(HoronInvalidArgument, RuntimeError):
    """reducescatter with an op that it does not have: Horovod's scripts catch a RuntimeError."""


class HoronMismatch(HorovodInternalError, HoronInvalidArgument):
    """The ranks disagree about a tensor; the sentence names both sides. The runtime goes on."""


class HoronUnsupported(HoronError, NotImplementedError, ValueError):
    """This build, device or element type cannot do it."""


class HoronMissing(HoronUnsupported, AttributeError):
    """A name of Horovod's that this version does not have: so hasattr() says no."""


class HoronUnsupportedWork(HorovodInternalError, HoronUnsupported):
    """A submitted tensor turned out to be unsupported."""


class HoronUnavailable(HoronError, HorovodInternalError):
    """A rank, or the wire to it, is gone: this runtime is finished."""


class HoronAborted(HoronError, HorovodInternalError):
    """Shut down while the tensor was pending, or used after fork."""


class HoronLate(HoronAborted):
    """A rank has not come to gossip within HORON_GOSSIP_TIMEOUT: this call fails on all ranks, also
    on the late ones. The runtime goes on."""


class HoronTimeout(HoronError, TimeoutError):
    """A wait on this rank took longer than it was given; the collective goes on."""


class HoronNotInitialized(HoronAborted, ValueError):
    """A call before init() or after shutdown()."""


class HoronRunError(HoronError, RuntimeError):
    """A job of horon.run has failed.

    rank: whose failure ended it; None when no rank is to blame. exceptions: what the function
    raised, by rank; each has the remote traceback as its cause. That of `rank` is the cause of
    this.
    """

    def __init__(self, sentence, rank=None, exceptions=None):
        super().__init__(sentence)
        self.rank = rank
        self.exceptions = dict(exceptions or {})


class HoronInternal(HoronError, HorovodInternalError):
    """A fault in Horon itself."""


_AT_SUBMIT = {
    1: HoronInvalidArgument,
    2: HoronUnsupported,
    3: HoronUnavailable,
    4: HoronAborted,
    5: HoronInternal,
    6: HoronLate,
}
_AT_WAIT = {**_AT_SUBMIT, 1: HoronMismatch, 2: HoronUnsupportedWork}

NOT_INITIALIZED = "Horon has not been initialized; use hvd.init()."


def _make_error(code, message, at_wait):
    """Called by _core with a failure's code and sentence."""
    if code == 4 and not at_wait and not _core.is_initialized():
        return HoronNotInitialized(message or NOT_INITIALIZED)
    return (_AT_WAIT if at_wait else _AT_SUBMIT).get(code, HoronInternal)(message)


_core.set_error_factory(_make_error)
