"""What collectives may cost: no processor time for waiting, few messages, few roundings."""

import contextlib
import math
import re
import time
from pathlib import Path

import torch
from common import same

import horon.torch as hvd


def processor_share(do) -> tuple:
    """Seconds that `do` takes, and of them the share of one core that all threads of this process
    have used."""
    start, used = time.monotonic(), time.process_time()
    do()
    passed = time.monotonic() - start
    return passed, (time.process_time() - used) / passed


def wait_for_rank_0(late, wait, least, most):
    """All ranks call `wait`, rank 0 so many seconds late; the others, which take at least so many
    seconds then, sleep: they use at most this share of a core. Ranks that were held up themselves
    have waited less: then all do it again."""
    for _ in range(5):
        hvd.barrier()
        passed, share = least, 0.0
        if hvd.rank() == 0:
            time.sleep(late)
            wait()
        else:
            passed, share = processor_share(wait)
        if hvd.allreduce(torch.tensor(passed), op=hvd.Min, name="waited").item() >= least:
            assert share < most, share
            return
    raise AssertionError(f"measured too short, five times: {passed:.3f} s")


def reduce_each(tensors, name):
    handles = [hvd.allreduce_async(t, name=f"{name}.{i}") for i, t in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def sleeps(thread) -> int:
    status = (thread / "status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])


def wake_ups() -> int:
    """Of the runtime's threads, so far: how often they have gone to sleep."""
    count = seen = 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (thread / "comm").read_text().startswith("horon"):
                count += sleeps(thread)
                seen += 1
    assert seen > 0, "none is named as the runtime's are"
    return count


def check_idle_costs_nothing():
    """Half a per cent of a core; inside a node the threads sleep until somebody wakes them, an MPI
    is looked at 30 times a second."""
    hvd.barrier()
    time.sleep(0.5)  # until the last call's work is over
    seconds = 4.0
    before = wake_ups()
    _, share = processor_share(lambda: time.sleep(seconds))
    assert share < 0.005, share
    often = (wake_ups() - before) / seconds
    time.sleep(1.0)  # what comes next would wake ranks that are still counting
    assert often <= (40.0 if hvd.mpi_enabled() else 1.0), often


def metadata() -> int:
    """Messages that this rank has sent to agree with others, or to keep in step."""
    return sum(value for name, value in hvd.counters().items()
               if name.startswith(("negotiation.", "schedule.")) and name.endswith(".messages"))


def metadata_of_locked_steps(model, then=lambda: None) -> float:
    """The most of twenty training steps in a row, in many turns, whose tensors all ran in the
    locked schedule, as in the turns before and after, which most must be; each step has
    `then` behind it. Ranks that are kept waiting leave the schedule for a while, and say so at the
    end of a turn."""
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01),
                                         [(f"steady.{n}", p) for n, p in model.named_parameters()])
    data = torch.randn(16, 64)
    hvd.allreduce(torch.ones(1), name="agreed upon")
    assert metadata() > 0, hvd.counters()
    turns = []  # tensors that ran locked, and messages
    for _ in range(60):
        tensors, messages = hvd.counters().get("schedule.tensors", 0), metadata()
        for _ in range(20):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            then()
        turns.append((hvd.counters()["schedule.tensors"] - tensors, metadata() - messages))
    most = max(tensors for tensors, _ in turns)
    assert most >= 20 * len(list(model.parameters())), turns  # else none was locked throughout
    inner = [turns[i][1] for i in range(1, len(turns) - 1)
             if all(tensors == most for tensors, _ in turns[i - 1:i + 2])]
    assert len(inner) >= len(turns) / 2, turns  # three turns in a row were locked
    return max(inner)


def check_a_steady_step_negotiates_nothing():
    """A training step, once the schedule is locked: not one message. Between nodes the schedule's
    words travel before the sums' own bytes, of the first rank of each."""
    if hvd.size() == 1:
        return
    most = metadata_of_locked_steps(
        torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))))
    assert most == 0, most
    speaks = hvd.cross_size() > 1 and hvd.local_rank() == 0
    carried = hvd.counters().get("schedule.carried", 0)
    assert (carried > 0) == speaks, carried


def check_neither_does_one_that_moves_tensors():
    """Batches are normalised over the ranks, in layers without names; rows go all ways. Inside a
    node: not one message."""
    if hvd.size() == 1:
        return
    layers = [layer for _ in range(3)
              for layer in (torch.nn.Linear(64, 64), hvd.SyncBatchNorm(64))]
    rows = torch.ones(2 * hvd.size(), 2)

    def move():
        hvd.broadcast_(rows, 0, name="steady rows")
        hvd.allgather(rows[:1 + hvd.rank()], name="steady rows")
        hvd.alltoall(rows, name="steady rows")
        hvd.reducescatter(rows, name="steady rows")

    most = metadata_of_locked_steps(torch.nn.Sequential(*layers), move)
    # Between nodes what is no sum has a word sent before it, which goes around in so many messages:
    # the moves and what the three layers gather.
    words = 7 * math.ceil(math.log2(hvd.cross_size())) if hvd.local_rank() == 0 else 0
    assert most <= 20 * words, most


def of_blocking_calls(count) -> int:
    """The least that `count` says of 200 calls, of fifty turns: ranks that wait long for another
    one go to sleep."""
    x, least = torch.ones(1), math.inf
    for _ in range(50):
        hvd.barrier()
        before = count()
        for _ in range(200):
            hvd.allreduce_(x, name="awake", op=hvd.Average)
        least = min(least, count() - before)
    return least


def check_a_blocking_call_wakes_none_of_the_runtimes_threads():
    """Its own thread does all: at most one call in ten."""
    woken = of_blocking_calls(wake_ups)
    assert woken <= 20, woken


def check_waiting_costs_nothing():
    """In a blocking call and in synchronize(). An MPI is looked at less and less often
    meanwhile."""
    bounds = {"least": 0.5, "most": 0.05}
    wait_for_rank_0(1.0, lambda: hvd.allreduce(torch.ones(2), name="late"), **bounds)
    wait_for_rank_0(1.0, lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="late")),
                    **bounds)


def check_waiting_in_a_locked_schedule_costs_nothing():
    """Where nothing is agreed any more: what is waited for are the sums' own bytes. Rank 0 is late
    by less than what makes the others ask why, which leaves the schedule."""
    if hvd.size() == 1:
        return
    tensors = [torch.ones(1000) for _ in range(20)]
    share, waited, locked = 0.0, 0.0, 0
    for _ in range(20):
        for _ in range(100):
            reduce_each(tensors, "locked wait")
        before = hvd.counters().get("schedule.tensors", 0)
        if hvd.rank() == 0:
            time.sleep(0.4)
            reduce_each(tensors, "locked wait")
        else:
            waited, share = processor_share(lambda: reduce_each(tensors, "locked wait"))
        locked = hvd.counters().get("schedule.tensors", 0) - before
        least = torch.tensor([float(locked), waited if hvd.rank() > 0 else 1.0])
        locked, waited = hvd.allreduce(least, op=hvd.Min, name="locked wait, how").tolist()
        if locked == len(tensors) and waited >= 0.2:
            break
    assert locked == len(tensors) and waited >= 0.2, (locked, waited)
    assert share < 0.05, share


def check_waiting_after_a_burst_costs_nothing():
    """The queue may just be left to fill for a moment when the wait for rank 0 begins. To hand over
    a thousand tensors takes a part of the time."""
    tensors = [torch.ones(3) for _ in range(1000)]
    for _ in range(10):
        wait_for_rank_0(0.3, lambda: reduce_each(tensors, "burst"), least=0.2, most=0.3)


def requests_and_buckets():
    counters = hvd.counters()
    asked = sum(value for name, value in counters.items() if name.endswith(".requests"))
    return asked, counters["executor.buckets"]


def check_everything_is_remembered_and_broadcasts_are_fused():
    parameters = {f"p{i}": torch.full((3,), float(hvd.rank())) for i in range(300)}
    rows = torch.ones(2 * hvd.size(), 2)

    def step():
        hvd.broadcast_parameters(parameters, hvd.size() - 1)
        hvd.reducescatter(rows, name="again")
        hvd.alltoall(rows, name="again")
        hvd.allgather(rows, name="again")

    step()
    asked, buckets = requests_and_buckets()
    step()
    again, more = requests_and_buckets()
    assert again == asked, (asked, again)
    assert more - buckets < 150, more - buckets
    for tensor in parameters.values():
        same(tensor, torch.full((3,), hvd.size() - 1.0))


def check_sixteen_bits_are_rounded_once():
    """2048 + 1 is 2048 in fp16; 2048 + 1 + 1 + 1, added in fp32, is not."""
    for dtype, large in ((torch.float16, 2048), (torch.bfloat16, 256)):
        mine = torch.full((9,), large if hvd.rank() == 0 else 1).to(dtype)
        want = torch.full((9,), float(large + hvd.size() - 1)).to(dtype)
        same(hvd.allreduce(mine, op=hvd.Sum), want)


def negotiated():
    """Requests, messages and bytes that this rank has sent to agree."""
    counters = hvd.counters()
    return [sum(value for name, value in counters.items()
                if name.startswith("negotiation.") and name.endswith(what))
            for what in (".requests", ".messages", ".bytes")]


def check_the_coordinator_does_not_read_every_tensor_of_every_rank():
    """Steps of 200 tensors that come again: nothing is reported by name, and what is reported is
    less than a byte a tensor."""
    tensors = [torch.ones(3) for _ in range(200)]

    def steps(count):
        for _ in range(count):
            reduce_each(tensors, "many")

    steps(5)
    before = negotiated()
    steps(20)
    requests, messages, sent = (now - then for now, then in zip(negotiated(), before))
    assert requests == 0, requests
    # To a coordinator that has the others' reports, rank 0 answers each of them.
    assert sent < 20 * 200 * hvd.size(), sent
    assert messages < 20 * 200, messages


def check_negotiation_and_other_ops_go_on_beside_a_large_reduction():
    """A broadcast that is submitted later is agreed on and done while the reduction is under
    way."""
    large = torch.ones(1 << 23)
    overtaken = 0
    for attempt in range(16):  # the reduction of two idle cores may be through first, now and then
        hvd.barrier()
        slow = hvd.allreduce_async_(large, name="large", op=hvd.Max)
        hvd.broadcast(torch.ones(3), 0, name=f"small.{attempt}")
        overtaken += not hvd.poll(slow)
        hvd.synchronize(slow)
    best = hvd.allreduce(torch.tensor([overtaken]), op=hvd.Max)
    assert hvd.size() == 1 or best.item() > 0
