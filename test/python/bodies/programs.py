"""Random programs of collectives on random process sets, against what one process computes.

Every rank draws the same programs, because drawing is derandomized; a failure is not shrunk, for
which the ranks would have to agree on who failed.
"""

import torch
from common import close, same
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import horon.torch as hvd

DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16)
REDUCTIONS = {"sum": lambda s: s.sum(0), "min": lambda s: s.amin(0), "max": lambda s: s.amax(0)}
SETS = {}


def sets():
    """All ranks, and every way to leave one out."""
    if not SETS:
        SETS[tuple(range(hvd.size()))] = hvd.global_process_set
        for out in range(hvd.size()):
            members = tuple(r for r in range(hvd.size()) if r != out)
            if members:
                SETS[members] = hvd.add_process_set(list(members))
    return SETS


step = st.fixed_dictionaries({
    "what": st.sampled_from([*REDUCTIONS, "allgather", "broadcast", "reducescatter", "alltoall"]),
    "which": st.integers(0, 4),
    "rows": st.integers(0, 5),
    "columns": st.integers(1, 40),
    "dtype": st.sampled_from(DTYPES),
    "name": st.sampled_from([None, "a", "b"]),
})


def tensor_of(rank, step, number, rows):
    generator = torch.Generator().manual_seed(100 * number + rank)
    shape = (rows, step["columns"])
    return torch.randint(0, 9, shape, generator=generator).to(step["dtype"])


def start(step, number, members, process_set):
    """A handle, and what it must give on this rank."""
    me = members.index(hvd.rank())
    name = step["name"] and f"program.{step['name']}.{number}"
    named = {"name": name, "process_set": process_set}
    rows = step["rows"]
    if step["what"] == "allgather":
        parts = [tensor_of(r, step, number, rows + r) for r in members]
        return hvd.allgather_async(parts[me], **named), torch.cat(parts)
    if step["what"] == "alltoall":
        parts = [tensor_of(r, step, number, rows * len(members)) for r in members]
        want = [part[rows * me:rows * (me + 1)] for part in parts]
        return hvd.alltoall_async(parts[me], **named), torch.cat(want)
    parts = [tensor_of(r, step, number, rows) for r in members]
    if step["what"] == "broadcast":
        root = members[number % len(members)]
        return hvd.broadcast_async(parts[me], root, **named), parts[members.index(root)]
    stacked = torch.stack(parts)
    if step["what"] == "reducescatter":
        counts = [rows // len(members) + (r < rows % len(members)) for r in range(len(members))]
        want = REDUCTIONS["sum"](stacked).to(step["dtype"]).split(counts)[me]
        return hvd.reducescatter_async(parts[me], op=hvd.Sum, **named), want
    want = REDUCTIONS[step["what"]](stacked).to(step["dtype"])
    return hvd.allreduce_async(parts[me], op=step["what"], **named), want


@settings(derandomize=True, database=None, deadline=None, max_examples=40, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))
@given(st.lists(step, min_size=1, max_size=12), st.booleans())
def run(steps, backwards):
    """All in flight at once; every other rank submits the named ones last to first."""
    chosen = []
    for number, one in enumerate(steps):
        members = list(sets())[one["which"] % len(sets())]
        if hvd.rank() in members:
            chosen.append((one, number, members, sets()[members]))
    turn = backwards and hvd.rank() % 2 == 1
    named = [c for c in chosen if c[0]["name"]]
    others = [c for c in chosen if not c[0]["name"]]
    started = [start(*c) for c in (named[::-1] if turn else named) + others]
    for handle, want in started:
        got = hvd.synchronize(handle)
        (close if want.dtype.is_floating_point else same)(got, want)


def check_random_programs():
    run()
    for process_set in list(SETS.values())[1:]:
        hvd.remove_process_set(process_set)
    SETS.clear()
