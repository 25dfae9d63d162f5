"""Starting, stopping and asking the runtime of this process. No framework is involved."""

import atexit
import os
import sys

from horon import _core, names, process_sets as sets_of_ranks, whereabouts
from horon.errors import (
    NOT_INITIALIZED,
    HoronAborted,
    HoronInvalidArgument,
    HoronNotInitialized,
    HoronUnavailable,
    HoronUnsupported,
)
from horon.launcher.prefixes import python_prefixes

# Libraries from PyPI lie there; the runtime reads this when it looks for MPI, NCCL and cuBLAS.
os.environ.setdefault("HORON_PYTHON_PREFIX", python_prefixes())

_exit_registered = False
_when_left = []


def init(comm=None, process_sets=None) -> None:
    """Joins the job; blocks until all ranks have. Again while initialised: nothing happens.

    comm: None, or a list of ranks or an mpi4py communicator that holds every rank of the job.
    process_sets: sets to register at once, the same on all ranks, or "dynamic" (sets can always be
    added later, so this asks for nothing).
    """
    global _exit_registered
    static_sets = _static_sets(process_sets)
    first = not _core.is_initialized()
    if first:
        sets_of_ranks.forget_all()
    _core.init()
    whereabouts.start()
    if not _exit_registered:
        atexit.register(_leave)
        _exit_registered = True
    _watch_exceptions()
    try:
        _check_all_ranks(comm)
    except HoronUnsupported:
        if first:
            shutdown()
        raise
    sets_of_ranks.register_static(static_sets)


def join(device=-1) -> int:
    """This rank has no more tensors; blocks until all ranks have said so. The rank that joined
    last.

    Meanwhile the others' collectives run without this rank: it counts as zeros where Average
    divides by the number of ranks, and as no part of a minimum, a product, an Adasum; it gives no
    rows to allgather and alltoall; a broadcast from it is an error. What it has submitted before
    goes on.
    device: Horovod's argument; there is nothing to choose.
    """
    work = _core.join()
    work.wait()
    names.begin_era()
    return work.received_splits(0)[0]


def describe() -> None:
    """Prints to stderr what is pending here and what the ranks it waits for do. Returns at once.

    SIGUSR1 does the same where the program has no handler for it.
    """
    _core.describe()


def _watch_exceptions() -> None:
    """Whatever has taken the hook since."""
    if not getattr(sys.excepthook, "tells_others", False):
        sys.excepthook = _telling_others(sys.excepthook)


def _telling_others(hook):
    """An uncaught exception ends this process: the other ranks need not wait to find that out."""

    def tell(kind, value, traceback) -> None:
        if what := trouble(value):
            if _exit_registered:
                _core.abandon(what)
            else:  # the others may be in init, and wait
                _tell_horonrun(what)
        hook(kind, value, traceback)

    tell.tells_others = True
    return tell


def _tell_horonrun(what: str) -> None:
    """Says so on the socket that horonrun gave to the rank that it started; a program that the rank
    started has the variable, too, but not the socket."""
    import socket

    from horon.launcher.relay import short_packet

    try:
        with socket.socket(fileno=os.dup(int(os.environ["HORON_LAUNCHER_FD"]))) as launcher:
            maker = launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
            if int.from_bytes(maker, sys.byteorder) == os.getppid():
                launcher.send(short_packet(what))
    except (OSError, ValueError):
        pass  # horonrun is gone, or it is no socket


def trouble(error: BaseException) -> str:
    """What the other ranks are to be told of an exception that ends this one; "" if nothing."""
    # Errors of the runtime itself are known to the others, who have the same.
    if isinstance(error, (HoronUnavailable, HoronAborted, KeyboardInterrupt)):
        return ""
    lines = str(error).splitlines()
    return f"raised {type(error).__name__}{': ' + lines[0] if lines else ''}"


def _static_sets(process_sets) -> list:
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise HoronInvalidArgument(
                f"process_sets is {process_sets!r}: use a list of ProcessSet, or 'dynamic'"
            )
        return []
    return list(process_sets or [])


def _check_all_ranks(comm) -> None:
    if comm is None:
        return
    ranks = set(comm) if isinstance(comm, (list, tuple)) else set(range(comm.Get_size()))
    if ranks and ranks != set(range(_core.size())):
        raise HoronUnsupported(
            f"init(comm=...) names {len(ranks)} ranks, the job has {_core.size()}: "
            "init takes all ranks; use a ProcessSet for some of them"
        )


def shutdown() -> None:
    """Leaves the job; pending work fails on every rank. Harmless when not initialised."""
    _leave()
    sets_of_ranks.forget_all()


def when_left(call) -> None:
    """Whenever the job has been left, `call` is called: nothing of the runtime runs any more."""
    _when_left.append(call)


def _leave() -> None:
    _explain_alone()
    _core.shutdown()
    whereabouts.stop()
    for call in _when_left:
        call()


def _explain_alone() -> None:
    """HORON_EXPLAIN=1 without horonrun, which would hear of all ranks: rank 0 says where its own
    time went."""
    if not _core.is_initialized() or _core.rank() != 0 or "HORON_LAUNCHER_FD" in os.environ:
        return
    figures = {name.removeprefix("explain."): value for name, value in _core.counters().items()
               if name.startswith("explain.")}
    if figures:
        from horon.launcher import explain

        print(*(f"horon: {line}" for line in explain.report({0: figures}, 1)), sep="\n",
              file=sys.stderr, flush=True)


def is_initialized() -> bool:
    return _core.is_initialized()


def _require(value: int) -> int:
    if value < 0:
        raise HoronNotInitialized(NOT_INITIALIZED)
    return value


def rank() -> int:
    """This process's number in the job."""
    return _require(_core.rank())


def size() -> int:
    """Number of processes in the job."""
    return _require(_core.size())


def local_rank() -> int:
    """This process's number on its node."""
    return _require(_core.local_rank())


def local_size() -> int:
    """Number of processes on this node."""
    return _require(_core.local_size())


def cross_rank() -> int:
    """This node's number among the nodes that have this local rank."""
    return _require(_core.cross_rank())


def cross_size() -> int:
    """Number of nodes that have this local rank."""
    return _require(_core.cross_size())


def is_homogeneous() -> bool:
    """Whether all nodes have equally many ranks."""
    _require(_core.size())
    return _core.is_homogeneous()


def controller() -> str:
    """How the ranks negotiate: "shm", "mpi" or "self"; "" when not initialised."""
    return _core.controller()


def transport() -> str:
    """How tensors travel: "shm", "mpi", "shm+mpi" or "self"; "" when not initialised."""
    return _core.transport()


def mpi_available() -> bool:
    """Whether this installation can open MPI (which a one-host job does not need)."""
    return _core.mpi_available()


def counter(name: str) -> int:
    """A counter's value (docs/configuration.md lists them); 0 if nothing was counted."""
    return _core.counter(name)


def counters() -> dict:
    """All counters by name."""
    return _core.counters()


def knobs() -> list:
    """The configuration table: (name, whether HOROVOD_name works too, meaning)."""
    return _core.knobs()


def memory_bytes() -> int:
    """Bytes of memory that the runtime holds: buffers between steps, what this process made for
    ranks to share (`shared_zeros`, gradients as views, windows), and this rank's share of the
    node's segment. Of shared memory only pages that were touched count."""
    return _core.memory_bytes()


def huge_page_bytes() -> int:
    """Of the shared memory that memory_bytes counts, and of other ranks' that this process has
    mapped: bytes that the kernel has given it in huge pages, which Horon asks for and need not get
    (`horonrun --check-build` says why). Reads /proc/self/smaps, which takes milliseconds."""
    from horon.launcher import huge_pages

    return huge_pages.mapped(lambda fields: fields[-1].startswith("/memfd:horon "))


if "HORON_LAUNCHER_FD" in os.environ:  # also of what comes before init
    _watch_exceptions()
