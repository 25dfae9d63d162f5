"""Horon: collectives for data-parallel training.

`import horon.torch as hvd` is what most programs want. This package alone imports no framework: it
starts and stops the runtime and says what it did (`counters()`, `knobs()`).
"""

try:
    from horon import _core
    from horon.errors import (
        HoronAborted,
        HoronError,
        HoronInternal,
        HoronInvalidArgument,
        HoronLate,
        HoronMismatch,
        HoronMissing,
        HoronNotInitialized,
        HoronRunError,
        HoronTimeout,
        HoronUnavailable,
        HoronUnsupported,
        HoronWrongOp,
        HorovodInternalError,
    )
    from horon.gossip import Gossip, advise
    from horon.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from horon.runner import run
    from horon.runtime import (
        controller,
        counter,
        counters,
        cross_rank,
        cross_size,
        describe,
        huge_page_bytes,
        init,
        is_homogeneous,
        is_initialized,
        join,
        knobs,
        local_rank,
        local_size,
        memory_bytes,
        mpi_available,
        rank,
        shutdown,
        size,
        transport,
    )
    from horon.specs import (
        AdaSum,
        Adasum,
        AdasumOp,
        Average,
        Dissemination,
        Max,
        Min,
        Op,
        Product,
        Sum,
        TopK,
    )

    from horon.timeline import start_timeline, stop_timeline

    __version__ = _core.version()
except ImportError as _error:
    # horonrun does without the library, and --check-build says what is wrong with it; everybody
    # else hears of it at the first name that is used.
    _why = _error

    def __getattr__(name: str) -> object:
        raise ImportError(f"Horon's library does not open: {_why}") from _why
else:
    _Module = type(_core)
    __all__ = [
        name
        for name in dir()
        if not name.startswith("_") and not isinstance(globals()[name], _Module)
    ]

    def __getattr__(name: str) -> object:
        """gossip_average, which needs torch."""
        if name == "gossip_average":
            from horon.torch.gossip import gossip_average

            return gossip_average
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
