"""Process sets: collectives among some of the ranks. Set 0 is all of them."""

import weakref
from collections.abc import Iterable

from horon import _core, names
from horon.errors import NOT_INITIALIZED, HoronInvalidArgument, HoronNotInitialized

_NO_RANKS = "a process set is a list of ranks; got {!r}"


class ProcessSet:
    """Some of the job's ranks. Of use once registered, by init() or add_process_set()."""

    process_set_id = None
    ranks = None
    mpi_comm = None  # Horovod's attribute; Horon makes no communicator of its own here

    def __init__(self, ranks_or_comm):
        if hasattr(ranks_or_comm, "Get_group"):
            ranks_or_comm = _world_ranks(ranks_or_comm)
        if not isinstance(ranks_or_comm, Iterable):
            raise HoronInvalidArgument(_NO_RANKS.format(ranks_or_comm))
        ranks = list(ranks_or_comm)
        for number in ranks:
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise HoronInvalidArgument(_NO_RANKS.format(number))
        self.ranks = sorted(int(number) for number in ranks)

    def _require_id(self) -> int:
        if self.process_set_id is None:
            raise HoronInvalidArgument(
                f"{self} is not registered; pass it to init() or add_process_set()"
            )
        if not _core.is_initialized():
            raise HoronNotInitialized(NOT_INITIALIZED)
        return self.process_set_id

    def size(self) -> int:
        """Number of ranks in the set."""
        return _core.process_set_size(self._require_id())

    def rank(self) -> int:
        """My number in the set; -1 if I am not in it."""
        return _core.process_set_rank(self._require_id())

    def included(self) -> bool:
        """Whether I am in the set."""
        return self.rank() >= 0

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self):
        pass

    @property
    def ranks(self):
        return list(range(_core.size())) if _core.is_initialized() else None


def _world_ranks(comm) -> list:
    """Ranks in MPI_COMM_WORLD of an mpi4py communicator's members."""
    from mpi4py import MPI

    members = comm.Get_group()
    numbers = list(range(members.Get_size()))
    return MPI.Group.Translate_ranks(members, numbers, MPI.COMM_WORLD.Get_group())


global_process_set = _GlobalProcessSet()
_registered = weakref.WeakSet()


def add_process_set(process_set) -> ProcessSet:
    """Registers a set (or a list of ranks) on all ranks; every rank of the job must call this with
    the same ranks. Blocks. Its id is the same everywhere.

    What a signal handler raises meanwhile ends the call here; the set is added all the same once
    the others have called, so do not call again."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise HoronInvalidArgument(f"{process_set} is registered already")
    for other in [global_process_set, *_registered]:
        if other.ranks == process_set.ranks:
            raise HoronInvalidArgument(f"a process set with ranks {other.ranks} exists: {other}")
    process_set.process_set_id = _core.add_process_set(tuple(process_set.ranks))
    names.forget(process_set.process_set_id)
    _registered.add(process_set)
    return process_set


def form_process_set(ranks, in_time=False) -> ProcessSet:
    """The set of these ranks, which all of them ask for, and nobody else: the others take no
    notice. Blocks until they have; with in_time it is HoronLate on all of them if some have not
    within HORON_GOSSIP_TIMEOUT. Of all ranks: the global set. It lasts as long as the job."""
    ranks = sorted(ranks)
    if len(ranks) == _core.size():
        return global_process_set
    process_set = ProcessSet(ranks)
    form = _core.form_process_set_in_time if in_time else _core.form_process_set
    process_set.process_set_id = form(tuple(ranks))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set on all ranks; every rank must call this. Blocks. False for the global set and
    for one that is not registered."""
    if not isinstance(process_set, ProcessSet):
        raise HoronInvalidArgument(
            f"a process set is what add_process_set gave; got {process_set!r}")
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    _core.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    _registered.discard(process_set)
    return True


def register_static(process_sets) -> None:
    """init()'s part: adds the given sets, but not those that are registered already."""
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet) or process_set.process_set_id is None:
            add_process_set(process_set)


def forget_all() -> None:
    """A new job: no set of the former one is registered any more."""
    for process_set in list(_registered):
        process_set.process_set_id = None
    _registered.clear()
    names.forget()
