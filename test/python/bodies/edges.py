"""What happens around the calls: forks, exceptions, signals, many lives."""

import ctypes
import gc
import os
import signal
import statistics
import threading
import time
from contextlib import contextmanager, nullcontext, suppress

import torch
from common import raises, same, shared_folder

import horon.torch as hvd

OWN_LIFE = True
LIVES = 30


def works():
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


class Tries(torch.utils.data.Dataset):
    """Items are what a data loader's worker gets for using Horon."""

    def __len__(self):
        return 4

    def __init__(self, pending):
        self.pending = pending  # a handle of the parent, or None

    def __getitem__(self, index):
        heard = []
        calls = [hvd.rank, lambda: hvd.allreduce(torch.ones(2)), hvd.init, hvd.barrier]
        for call in calls + [self.wait] * (self.pending is not None):
            try:
                call()
                heard.append("nothing")
            except hvd.HoronAborted as error:
                heard.append(str(error))
        hvd.shutdown()  # harmless
        return [hvd.is_initialized(), *heard]

    def wait(self):
        """As a loop that polls does."""
        assert hvd.poll(self.pending), "it would be polled for ever"
        hvd.synchronize(self.pending)


def check_data_loader_workers():
    hvd.init()
    works()
    # Rank 0's is pending in its workers: the others submit theirs after the barrier.
    early = hvd.rank() == 0 and hvd.size() > 1

    def reduce():
        return hvd.allreduce_async(torch.ones(5), name="over the fork", op=hvd.Sum)

    pending = reduce() if early else None
    loader = torch.utils.data.DataLoader(
        Tries(pending), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    items = list(loader)
    assert len(items) == 4
    for initialized, *heard in items:
        assert not initialized
        assert len(heard) == 4 + early and "nothing" not in heard, heard
        assert all("forked" in sentence for sentence in heard[1:]), heard
    hvd.barrier()
    same(hvd.synchronize(pending or reduce()), torch.full((5,), float(hvd.size())))
    works()


def links():
    """What this process's descriptors are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def horons_sockets():
    """Descriptors of those to horonrun and, under MPI, of those that the node's first rank took."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        ours = {f"socket:[{line.split()[6]}]" for line in table if " @horon-" in line}
    found = {fd for fd, link in links().items() if link in ours}
    launcher = os.environ.get("HORON_LAUNCHER_FD")
    return found | ({int(launcher)} if launcher else set())


def check_forked_child_ends_in_peace():
    """It runs all that a process does at its end, and the job does not notice; nor has it the
    node's memory and sockets. What the user made with others it has, and may drop."""
    shared = hvd.shared_zeros(1000)
    shared += 3
    assert "/memfd:horon" in open("/proc/self/maps", encoding="ascii").read()
    sockets = horons_sockets()
    assert sockets or hvd.rank() > 0  # a plain mpirun's other ranks have sockets without a name
    assert any(link.startswith("/memfd:horon") for link in links().values())
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs ends, with another status
        maps = open("/proc/self/maps", encoding="ascii").read().splitlines()
        names = {line.split(maxsplit=5)[5] for line in maps if "/memfd:horon" in line}
        wrong = not all("shared memory" in name for name in names) or shared.sum() != 3000
        kept = links()
        wrong |= any(link.startswith("/memfd:horon") for link in kept.values())
        wrong |= any(fd in kept for fd in sockets)
        del shared
        ctypes.CDLL(None).exit(9 if wrong else 0)
    assert os.waitpid(child, 0)[1] == 0
    same(hvd.allreduce_(shared, op=hvd.Sum), torch.full((1000,), 3.0 * hvd.size()))
    works()


def check_exception_between_submit_and_wait():
    """Nobody waits, nobody holds the tensors: they are done all the same, and the name is free."""
    for _ in range(3):
        with raises(KeyError):
            hvd.allreduce_async(torch.ones(100_000), name="dropped")
            raise KeyError("in the user's program")
        gc.collect()
        works()  # moves behind it; a barrier may be over before


def check_python_handlers_run_during_a_wait():
    """Within 100 ms; the median of five, because the machine may be busy with other things. Rank 1
    comes when the handler of rank 0 has run."""
    delays = []
    folder = shared_folder()
    for turn in range(5):
        go = os.path.join(folder, f"go.{turn}")
        if hvd.rank() == 0:
            os.mkfifo(go)
        hvd.barrier()
        if hvd.rank() == 0:
            due = time.monotonic() + 0.2

            def run(number, frame, due=due, go=go):
                delays.append(time.monotonic() - due)
                os.close(os.open(go, os.O_WRONLY))

            signal.signal(signal.SIGALRM, run)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        elif hvd.rank() == 1:
            with open(go, encoding="ascii") as fifo:
                fifo.read()
        hvd.allreduce(torch.ones(2), name=f"late.{turn}")
    if hvd.rank() == 0:
        assert len(delays) == 5 and statistics.median(delays) < 0.1, delays
        print("handlers ran after", *(f"{1000 * delay:.1f}" for delay in sorted(delays)), "ms")
    hvd.shutdown()


@contextmanager
def on_alarm(run, seconds=0.2, within=None):
    """Calls `run` in a handler of a signal, after so many seconds; `within`: and once the main
    thread is in one of these functions."""
    def handle(number, frame):
        if within is None or frame.f_code in [function.__code__ for function in within]:
            run()
        else:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def open_fifo(path):
    os.close(os.open(path, os.O_WRONLY))


def late(rank, call, go, delays):
    """On all ranks; rank 1 comes when a handler has run on rank 0, which notes after how long."""
    due = time.monotonic() + 0.2

    def run():
        delays.append(time.monotonic() - due)
        open_fifo(go)

    if rank == 1:
        with open(go, encoding="ascii") as fifo:
            fifo.read()
    with on_alarm(run) if rank == 0 else nullcontext():
        return call()


def check_python_handlers_run_in_calls_of_all_ranks():
    hvd.init()
    rank, delays = hvd.rank(), []
    ways = [os.path.join(shared_folder(), name) for name in ("add", "remove", "shared", "init")]
    if rank == 0:
        for way in ways:
            os.mkfifo(way)
    hvd.barrier()
    made = late(rank, lambda: hvd.add_process_set([0]), ways[0], delays)
    late(rank, lambda: hvd.remove_process_set(made), ways[1], delays)
    late(rank, lambda: hvd.shared_zeros(1000), ways[2], delays)
    hvd.shutdown()
    late(rank, hvd.init, ways[3], delays)
    works()
    if rank == 0:
        assert len(delays) == 4 and statistics.median(delays) < 0.1, delays
        print("in calls of all ranks after", *(f"{1000 * delay:.1f}" for delay in delays), "ms")
    hvd.shutdown()


def check_queries_of_mpi_beside_init_and_shutdown():
    """Another thread's, which wait for these and must not keep handlers from running."""
    over = threading.Event()

    def ask():
        while not over.is_set():
            hvd.mpi_enabled()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    for _ in range(3):
        if os.environ.get("HORON_RANK") == "1":
            time.sleep(0.3)  # late, so that the others look for signals in init
        hvd.init()
        works()
        hvd.shutdown()
    over.set()
    asking.join()


def check_an_exception_of_a_handler_ends_a_call_of_all_ranks():
    """The set is there all the same when the others have come."""
    hvd.init()
    go = os.path.join(shared_folder(), "go")
    if hvd.rank() == 0:
        os.mkfifo(go)
    hvd.barrier()

    def interrupt():
        raise KeyboardInterrupt

    if hvd.rank() == 0:
        begun = time.monotonic()
        try:
            with on_alarm(interrupt):
                hvd.add_process_set([1])
            raise AssertionError("it was not broken off")
        except KeyboardInterrupt:
            assert time.monotonic() - begun < 5
        open_fifo(go)
    else:
        if hvd.rank() == 1:
            with open(go, encoding="ascii") as fifo:
                fifo.read()
        assert hvd.size() == 1 or hvd.add_process_set([1]).size() == 1
    works()
    again = hvd.add_process_set(list(range(hvd.size() - 1)))
    assert again.size() == hvd.size() - 1
    hvd.shutdown()


def check_many_lives():
    held = []
    for life in range(LIVES):
        hvd.init()
        works()
        held.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        hvd.shutdown()
    # Descriptors, threads. One of these may just be ending, by chance in more of the later lives:
    # but what each life, or each second one, leaves behind shows in all of the last ones.
    for counts in zip(*held, strict=True):
        early, last = counts[: LIVES // 2], counts[-(LIVES // 4) :]
        assert min(last) <= max(early), held
