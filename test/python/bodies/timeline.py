"""Timelines, read back by rank 0 after all ranks have left the job: OWN_LIFE."""

import json
import os
import re
import time
from collections import defaultdict
from contextlib import contextmanager

import torch
from common import close, raises, shared_folder

import horon.torch as hvd
from horon import timeline, topology
from horon.errors import HoronInvalidArgument

try:
    import horon.bluefog.torch as bf
except ImportError:
    print("timeline: BlueFog's names not checked, networkx is not installed")
    bf = None

OWN_LIFE = True
MOVED = {"rows": "ALLGATHER", "weights": "BROADCAST", "parts": "ALLTOALL",
         "shares": "REDUCE_SCATTER", "adasum": "ADASUM"}
PHASES = ["QUEUE", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "PACK", "WIRE", "UNPACK"]


def shared_path() -> str:
    """A file's name that all ranks know."""
    return os.path.join(shared_folder(), "t.json")


def recorded(path) -> list:
    """Its events, once every rank has left and so written all it had. Begins a new life."""
    hvd.shutdown()
    hvd.init()
    hvd.barrier()
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    hvd.barrier()  # the file goes with rank 0
    return events


def rows(events) -> dict:
    """Spans by rank and tensor, in time's order."""
    prefix = re.compile(r"^(allreduce|allgather|broadcast|alltoall|reducescatter)\.")
    names = {(e["pid"], e["tid"]): prefix.sub("", e["args"]["name"])
             for e in events if e["name"] == "thread_name"}
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], names[event["pid"], event["tid"]]].append(event)
    for of_row in spans.values():
        of_row.sort(key=lambda e: e["ts"])  # as they were written where a span takes no time
    return spans


def runs_recorded(spans, tensor) -> list:
    """Of each rank, which runs of the tensor were recorded."""
    return [[e["args"]["step"] for e in spans[rank, tensor] if e["name"] == "ALLREDUCE"]
            for rank in range(hvd.size())]


def stop_timeline_together():
    """Rank 0 stops it for all, also in what is not yet done there: so all come here first."""
    hvd.barrier()
    hvd.stop_timeline()


def check_phases_of_every_tensor_on_every_rank():
    hvd.init()
    path, n = shared_path(), hvd.size()
    name = 'layer "1"\\weight'
    hvd.start_timeline(path, mark_cycles=True)
    hvd.barrier()
    big = [torch.ones(300_000) for _ in range(3)]
    for _ in range(4):
        handles = [hvd.allreduce_async_(t, name=f"{name}.{i}") for i, t in enumerate(big)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allgather(torch.ones(3), name="rows")
        hvd.broadcast(torch.ones(300_000), 0, name="weights")
        hvd.alltoall(torch.ones(n * 1000), name="parts")
        hvd.reducescatter(torch.ones(n * 1000), name="shares")
        hvd.allreduce(torch.ones(100), op=hvd.Adasum, name="adasum")
    stop_timeline_together()
    spans = rows(events := recorded(path))
    for rank in range(n):
        for i in range(3):
            of_tensor = spans[rank, f"{name}.{i}"]
            runs = [e for e in of_tensor if e["name"] == "ALLREDUCE"]
            assert len(runs) == 4 and [e["args"]["step"] for e in runs] == [0, 1, 2, 3], runs
            assert runs[0]["args"]["bytes"] == 1_200_000 and runs[0]["args"]["dtype"] == "float32"
            assert runs[0]["args"]["shape"] == [300_000] and runs[0]["args"]["op"] == "average"
            expect_order(of_tensor, 4, n)
        for tensor, collective in MOVED.items():
            expect_order(spans[rank, tensor], 4, n, collective)
    assert any(e["name"] == "CYCLE_START" for e in events)
    assert not any(e["name"] == "DROPPED_EVENTS" for e in events)
    expect_clocks(events, spans, f"{name}.0")


def expect_order(spans, runs, size, collective="ALLREDUCE"):
    """The phases of each run one after the other, those of the wire inside its collective."""
    want = [phase.replace("ALLREDUCE", collective) for phase in PHASES]
    want = want if size > 1 or hvd.transport() != "self" else want[:3]
    for phase in want:
        assert sum(e["name"] == phase for e in spans) == runs, (phase, spans)
    kept = [e for e in spans if e["name"] in want]
    for at in range(0, len(kept), len(want)):
        run = kept[at : at + len(want)]
        assert [e["name"] for e in run] == want, run
        for before, after in zip(run, run[1:]):
            end = before["ts"] + (0 if before["name"] == collective else before["dur"])
            assert end <= after["ts"] + 0.002, (before, after)
        assert run[-1]["ts"] + run[-1]["dur"] <= run[2]["ts"] + run[2]["dur"] + 0.002, run


def expect_clocks(events, spans, tensor):
    """No rank ends a run before the last one has submitted to it: that would be a wrong clock."""
    clocks = {e["args"]["rank"]: e["args"] for e in events if e["name"] == "clock_offset"}
    assert set(clocks) == set(range(hvd.size())), clocks
    error = max(clock["error_us"] for clock in clocks.values())
    assert 0 <= error < 100_000, clocks
    for clock in clocks.values():  # one machine: the clocks are the same in truth
        assert abs(clock["offset_us"]) <= clock["error_us"] + 0.002, clock
    submitted, ended = defaultdict(list), defaultdict(list)
    for rank in range(hvd.size()):
        of_tensor = spans[rank, tensor]
        for run, queued in enumerate(e for e in of_tensor if e["name"] == "QUEUE"):
            submitted[run].append(queued["ts"])
        for run in (e for e in of_tensor if e["name"] == "ALLREDUCE"):
            ended[run["args"]["step"]].append(run["ts"] + run["dur"])
    for run, times in ended.items():
        assert min(times) >= max(submitted[run]) - 2 * error, (run, times, submitted[run])


def check_locked_schedules_say_so():
    path = shared_path()
    tensors = [torch.ones(1000) for _ in range(4)]

    def step():
        for handle in [hvd.allreduce_async_(t, name=f"g{i}") for i, t in enumerate(tensors)]:
            hvd.synchronize(handle)

    while True:  # together, until every rank has found the schedule
        step()
        locked = hvd.counter("schedule.tensors") > 0 or hvd.size() == 1
        if hvd.allreduce(torch.tensor(float(locked)), op=hvd.Min, name="locked").item():
            break
        for _ in range(20):
            step()
    for _ in range(30):
        step()
    hvd.start_timeline(path)
    for _ in range(20):
        step()
    stop_timeline_together()
    spans = rows(recorded(path))
    for rank in range(hvd.size()):
        names = [e["name"] for e in spans[rank, "g0"]]
        scheduled = [e for e in spans[rank, "g0"] if e["name"] == "SCHEDULE_ALLREDUCE"]
        assert names.count("ALLREDUCE") >= 19, names
        assert len(scheduled) >= 10 or hvd.size() == 1, names
        assert all(e["args"]["negotiated"] is False for e in scheduled)


def adasum_ways() -> dict:
    """For each call that check_which_way_adasum_took makes, the name of its way."""
    flat = {"halving": "recursive halving", "doubling": "recursive doubling",
            "tree": "binary tree", "ring": "rings", "auto": "recursive doubling",
            "average": "average", "sum": "sum", "large": "recursive halving"}
    size, local = hvd.size(), hvd.local_size()
    if local == size:
        return {**flat, "large": "halving through shared memory"}
    even = local * hvd.cross_size() == size
    if even and local == 1:  # nothing inside nodes
        return {**flat, "average": flat["auto"], "sum": flat["auto"]}
    between = {"average": "average inside nodes, then halving",
               "sum": "sum inside nodes, then halving"}
    if even and local & (local - 1) == 0:  # the tree over them is the same as without nodes
        return {**flat, **between}
    over = "halving inside nodes, then between them"
    return {**dict.fromkeys(("halving", "doubling", "auto", "large"), over), "ring": "rings",
            "tree": "tree inside nodes, then halving", **between}


def check_which_way_adasum_took():
    path = shared_path()
    hvd.start_timeline(path)
    hvd.barrier()
    small, large = torch.ones(100), torch.ones(100_000)
    for algorithm in ("halving", "doubling", "tree", "ring", "auto"):
        hvd.allreduce(small, name=algorithm, op=hvd.AdasumOp(algorithm=algorithm))
    for local_op in ("average", "sum"):
        hvd.allreduce(small, name=local_op, op=hvd.AdasumOp(local_op=local_op))
    hvd.allreduce(large, name="large", op=hvd.Adasum)
    stop_timeline_together()
    spans = rows(recorded(path))
    expected = adasum_ways()
    ways = {tensor: {e["args"]["algorithm"] for (_, t), row in spans.items() if t == tensor
                     for e in row if e["name"] == "ADASUM"}
            for tensor in expected}
    if hvd.size() > 1:
        assert ways == {name: {way} for name, way in expected.items()}, ways


def check_process_sets_without_rank_0():
    """Their tensors are in it, though rank 0, which says when to record, has none of them."""
    size = hvd.size()
    if size == 1:
        return
    path, members = shared_path(), list(range(1, size))
    aside = hvd.add_process_set(members)
    where = f"(process set {aside.process_set_id})"
    hvd.start_timeline(path)
    hvd.barrier()
    for _ in range(3):
        if aside.included():
            hvd.allreduce(torch.ones(1000), name="aside", process_set=aside)
            hvd.allgather(torch.ones(2), name="gathered", process_set=aside)
    hvd.barrier()
    hvd.stop_timeline()
    spans = rows(recorded(path))
    for rank in range(size):
        for tensor, name in (("aside", "ALLREDUCE"), ("gathered", "ALLGATHER")):
            runs = [e for e in spans[rank, f"{tensor} {where}"] if e["name"] == name]
            assert [e["args"]["step"] for e in runs] == [0, 1, 2] * (rank in members), (rank, runs)


def check_what_programs_note():
    hvd.init()
    path, n = shared_path(), hvd.size()
    assert not timeline.note("x", "nothing is recorded", 0, 1)
    hvd.barrier()
    hvd.start_timeline(path)
    hvd.barrier()
    begun = time.monotonic_ns()
    hvd.allreduce(torch.ones(5), name="x")
    assert timeline.note("x", 'my "mark"', begun, time.monotonic_ns())
    if bf is not None:
        assert bf.timeline_start_activity("y", "outer")
        with bf.timeline_context("y", "inner"):
            time.sleep(0.01)
        assert bf.timeline_end_activity("y") and not bf.timeline_end_activity("y")
    hvd.barrier()
    hvd.stop_timeline()
    spans = rows(recorded(path))
    for rank in range(n):
        mark, run = ([e for e in spans[rank, "x"] if e["name"] == name][0]
                     for name in ('my "mark"', "ALLREDUCE"))
        assert mark["ts"] <= run["ts"] + 0.002
        assert run["ts"] + run["dur"] <= mark["ts"] + mark["dur"] + 0.002
        if bf is not None:
            outer, inner = spans[rank, "y"]
            assert (outer["name"], inner["name"]) == ("outer", "inner")
            assert 10_000 <= inner["dur"] <= outer["dur"]


def check_windows_restarts_and_errors():
    first, second = shared_path(), shared_path()
    hvd.start_timeline(first, steps=(2, 4))
    for _ in range(6):
        hvd.allreduce(torch.ones(5), name="w")
    hvd.start_timeline(second)  # ends the first
    hvd.barrier()  # a rank in a locked schedule hears of it in its own time
    hvd.allreduce(torch.ones(5), name="w")
    stop_timeline_together()
    hvd.stop_timeline()  # nothing is recorded any more
    hvd.barrier()
    hvd.allreduce(torch.ones(5), name="w")
    with raises(ValueError, HoronInvalidArgument, words=["(first, end)"]):
        hvd.start_timeline(first, steps=(4, 2))
    if hvd.rank() == 0:
        with raises(ValueError, words=["/nowhere/t.json", "No such file"]):
            hvd.start_timeline("/nowhere/t.json")
    else:
        hvd.start_timeline("/nowhere/t.json")  # rank 0's call counts
    hvd.allreduce(torch.ones(5), name="after")

    spans = rows(recorded(first))
    assert runs_recorded(spans, "w") == [[2, 3]] * hvd.size(), spans
    with open(second, encoding="utf-8") as file:
        spans = rows(json.load(file))
    assert runs_recorded(spans, "w") == [[6]] * hvd.size(), spans
    hvd.shutdown()
    with raises(ValueError, words=["init"]):
        hvd.start_timeline(first)


@contextmanager
def life_with(**variables):
    """A membership in the job with these in the environment."""
    hvd.shutdown()
    os.environ.update(variables)
    try:
        hvd.init()
        yield
        hvd.shutdown()
    finally:
        for name in variables:
            del os.environ[name]


def check_the_variable_of_horovod():
    hvd.init()
    path = shared_path()
    with life_with(HOROVOD_TIMELINE=path, HOROVOD_TIMELINE_MARK_CYCLES="1"):
        hvd.allreduce(torch.ones(2), name="by_variable")
    spans = rows(events := recorded(path))
    assert runs_recorded(spans, "by_variable") == [[0]] * hvd.size(), spans
    assert any(e["name"] == "CYCLE_START" for e in events)


def check_dynamic_is_no_file_and_records_nothing_yet():
    hvd.init()
    path = shared_path()
    folder = os.getcwd()
    os.chdir(os.path.dirname(path))
    with life_with(HOROVOD_TIMELINE="DYNAMIC"):
        hvd.allreduce(torch.ones(2), name="before")
        hvd.start_timeline(path)
        hvd.barrier()
        hvd.allreduce(torch.ones(2), name="after")
        hvd.barrier()
        assert sorted(os.listdir()) == ["t.json"]
    os.chdir(folder)
    spans = rows(recorded(path))
    assert runs_recorded(spans, "after") == [[0]] * hvd.size(), spans
    assert runs_recorded(spans, "before") == [[]] * hvd.size(), spans


def check_a_window_of_steps_by_variable():
    hvd.init()
    path = shared_path()
    with life_with(HORON_TIMELINE=path, HORON_TIMELINE_STEPS="2:4"):
        for _ in range(6):
            hvd.allreduce(torch.ones(2), name="w")
        hvd.allreduce(torch.ones(2), name="once")
    spans = rows(recorded(path))
    assert runs_recorded(spans, "w") == [[2, 3]] * hvd.size(), spans
    assert runs_recorded(spans, "once") == [[]] * hvd.size(), spans


def check_gossip_is_there():
    """Each order to a window, who answered one, and what is found out about the ranks."""
    hvd.init()
    path, n, me = shared_path(), hvd.size(), hvd.rank()
    hvd.start_timeline(path)
    hvd.barrier()
    right, x = (me + 1) % n, torch.full((1000,), float(me))
    if n > 1:
        window = hvd.Window(x, "seen", topology.Ring(n))
        window.put()
        window.update()
        window.pair_async(right, 0.5).wait()
        window.step(torch.zeros(1000))
        window.free()
        mixed = hvd.Window(x, "mixed", topology.Ring(n), in_rounds=True)
        mixed.mix()
        mixed.free()
        hvd.neighbor_allreduce(x, topology=topology.Ring(n), name="negotiated")
        total = hvd.allreduce(x.double(), op=hvd.Sum, name="total").sum()
        x = torch.nn.Parameter(x)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=0.0), op=hvd.Gossip("osgp"))
        for _ in range(3):
            x.grad = torch.zeros_like(x)
            optimizer.step()
        optimizer.finish_gossip()
        values, weights = optimizer.gossip_mass()
        close(values.sum(), total, 1e-2)
        mass = f"mass: weights {weights:.12g}, sum {values.sum().item():.12g}"
        assert mass.startswith(f"mass: weights {n},"), mass
    distance = hvd.consensus_distance([x])
    assert hvd.counter("gossip.consensus.nano") == round(distance * 1e9)
    hvd.barrier()
    hvd.stop_timeline()
    events = recorded(path)
    spans = rows(events)
    tracks = {(e["pid"], e["name"]): e["args"] for e in events if e["ph"] == "C"}  # the last ones
    for rank in range(n):
        assert ([e["name"] for e in spans[rank, "gossip"] if e["name"].startswith("consensus")]
                == [f"consensus distance {distance:.6g}"])
        if n > 1:
            masses = [e["name"] for e in spans[rank, "gossip"] if e["name"].startswith("mass")]
            assert masses == [mass], masses
            near = ", ".join(map(str, sorted({(rank - 1) % n, (rank + 1) % n})))
            done = sorted(e["name"] for e in spans[rank, "window.seen"])
            assert done == sorted([f"PUT: {near}", f"UPDATE: {near}", f"PAIR: {(rank + 1) % n}",
                                   f"ANSWER: {(rank - 1) % n}", "STEP"]), done
            assert [e["name"] for e in spans[rank, "window.mixed"]] == ["ROUND"]
            taken = [e["name"] for e in spans[rank, "gossip"] if e["name"].startswith("taken in")]
            assert taken == ["taken in 1 steps after its start"] * 2 + [
                "taken in 0 steps after its start"], taken
            assert tracks[rank, "gossip.staleness"] == {"0": 1, "1": 2}, tracks
            assert tracks[rank, "gossip.bytes.to"][str((rank + 1) % n)] >= 4000, tracks
            assert tracks[rank, "peer.bytes.to"][str((rank + 1) % n)] >= 2 * 4000, tracks
