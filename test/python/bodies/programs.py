"""Random programs of collectives on random process sets, against what one process computes.

Every rank draws the same programs, from a seed that rank 0 chooses (HORON_TEST_SEED) and that is
printed when one fails; a failure is not shrunk, for which the ranks would have to agree on who
failed.
"""

import os
import random
import sys
import traceback

import torch
from common import close, same
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import horon.torch as hvd

DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16)
REDUCTIONS = {
    "sum": lambda stacked: stacked.sum(0), "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0), "product": lambda stacked: stacked.prod(0),
    # Whole numbers are cut off toward zero.
    "average": lambda stacked: stacked.double().sum(0) / len(stacked),
}
SETS = {}


def set_of(members):
    """The process set of these ranks. New ones are added where a program wants them first."""
    if len(members) == hvd.size():
        return hvd.global_process_set
    if members not in SETS:
        SETS[members] = hvd.add_process_set(list(members))
    return SETS[members]


step = st.fixed_dictionaries({
    "what": st.sampled_from([*REDUCTIONS, "allgather", "broadcast", "reducescatter", "alltoall"]),
    "which": st.sampled_from(["all", "any"]),
    "bits": st.integers(0, 2 ** 30),  # one for each rank
    "rows": st.integers(0, 5),
    "columns": st.integers(1, 40),
    "dtype": st.sampled_from(DTYPES),
    "name": st.sampled_from([None, "a", "b"]),
    "grouped": st.integers(0, 3),  # 0: alone; else with so many others
})
ending = st.fixed_dictionaries({"leaves": st.integers(0, 2 ** 30), "rounds": st.integers(0, 3)})


def members_of(step):
    """Any ranks, but not none."""
    if step["which"] == "all":
        return tuple(range(hvd.size()))
    subset = step["bits"] % (2 ** hvd.size() - 1) + 1
    return tuple(rank for rank in range(hvd.size()) if subset >> rank & 1)


def tensor_of(rank, step, number, rows):
    generator = torch.Generator().manual_seed(100 * number + rank)
    shape = (rows, step["columns"])
    # Products of four stay whole in 8 bits of a mantissa.
    limit = 4 if step["what"] == "product" else 9
    return torch.randint(0, limit, shape, generator=generator).to(step["dtype"])


def reduced(op, parts):
    return REDUCTIONS[op](torch.stack(parts)).to(parts[0].dtype)


def start(step, number, members, process_set):
    """A handle, and what it must give on this rank."""
    me = members.index(hvd.rank())
    name = step["name"] and f"program.{step['name']}.{number}"
    named = {"name": name, "process_set": process_set}
    rows, what = step["rows"], step["what"]
    if what == "allgather":
        parts = [tensor_of(r, step, number, rows + r) for r in members]
        return hvd.allgather_async(parts[me], **named), torch.cat(parts)
    if what == "alltoall":
        parts = [tensor_of(r, step, number, rows * len(members)) for r in members]
        want = [part[rows * me:rows * (me + 1)] for part in parts]
        return hvd.alltoall_async(parts[me], **named), torch.cat(want)
    parts = [tensor_of(r, step, number, rows) for r in members]
    if what == "broadcast":
        root = members[number % len(members)]
        return hvd.broadcast_async(parts[me], root, **named), parts[members.index(root)]
    if what == "reducescatter":
        counts = [rows // len(members) + (r < rows % len(members)) for r in range(len(members))]
        want = reduced("sum", parts).split(counts)[me]
        return hvd.reducescatter_async(parts[me], op=hvd.Sum, **named), want
    if not step["grouped"]:
        return hvd.allreduce_async(parts[me], op=what, **named), reduced(what, parts)
    more = [parts] + [[tensor_of(r, step, number + 1000 * i, rows + i) for r in members]
                      for i in range(1, step["grouped"] + 1)]
    handle = hvd.grouped_allreduce_async([parts[me] for parts in more], op=what, **named)
    return handle, [reduced(what, parts) for parts in more]


def expect(got, want):
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want):
            expect(one, other)
    elif want.dtype.is_floating_point:
        close(got, want, 1e-2 if want.dtype == torch.bfloat16 else 1e-5)
    else:
        same(got, want)


def leave_one_by_one(leaves, rounds):
    """One rank joins, while the others go on for some rounds; then all have."""
    leaver = leaves % hvd.size()
    for number in range(rounds if hvd.rank() != leaver else 0):
        others = [float(r + number) for r in range(hvd.size()) if r != leaver]
        mine = torch.full((3,), float(hvd.rank() + number))
        same(hvd.allreduce(mine, op=hvd.Sum, name=f"rounds.{number}"), torch.full_like(
            mine, sum(others)))
        same(hvd.allreduce(mine, op=hvd.Min), torch.full_like(mine, min(others)))
    last = hvd.join()
    same(hvd.allreduce(torch.tensor(last), op=hvd.Max), torch.tensor(last))


def run(steps, backwards, end):
    """All in flight at once; every other rank submits the named ones last to first."""
    chosen = []
    for number, one in enumerate(steps):
        members = members_of(one)
        process_set = set_of(members)
        if hvd.rank() in members:
            chosen.append((one, number, members, process_set))
    turn = backwards and hvd.rank() % 2 == 1
    named = [c for c in chosen if c[0]["name"]]
    others = [c for c in chosen if not c[0]["name"]]
    started = [start(*c) for c in (named[::-1] if turn else named) + others]
    for handle, want in started:
        expect(hvd.synchronize(handle), want)
    leave_one_by_one(end["leaves"], end["rounds"])


def check_random_programs():
    chosen = hvd.broadcast_object(int(os.environ.get("HORON_TEST_SEED") or
                                      random.SystemRandom().randrange(2 ** 32)))

    @seed(chosen)
    @settings(database=None, deadline=None, max_examples=40, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(st.lists(step, min_size=8, max_size=20), st.booleans(), ending)
    def programs(steps, backwards, end):
        try:
            run(steps, backwards, end)
        except Exception:
            # Hypothesis would run it again, which the other ranks do not.
            traceback.print_exc()
            print(f"rank {hvd.rank()}: failed: {steps}, {backwards}, {end}\n"
                  f"HORON_TEST_SEED={chosen} does it again", file=sys.stderr, flush=True)
            os._exit(1)

    programs()
    for process_set in SETS.values():
        hvd.remove_process_set(process_set)
    SETS.clear()
