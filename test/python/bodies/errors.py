"""Wrong calls: typed errors, the same on every rank, that name the tensor and both sides;
afterwards the runtime goes on."""

import inspect
import math
import re
import time

import every_call
import torch
from common import raises, same

import horon.torch as hvd
from horon.aggregation import aggregation
from horon.torch import hooks
from horon.torch.calls import reduce_call, rows_call

MISMATCH = (hvd.HoronMismatch, hvd.HoronError, hvd.HorovodInternalError, RuntimeError)

ASYNC = {
    "allreduce": hvd.allreduce_async,
    "allgather": hvd.allgather_async,
    "broadcast": lambda tensor, name: hvd.broadcast_async(tensor, 0, name),
    "alltoall": hvd.alltoall_async,
    "reducescatter": hvd.reducescatter_async,
}


def still_works():
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def odd():
    """Rank 1 does it differently."""
    return hvd.rank() == 1


def sides(usual, odd_one):
    """Pattern of both sides of a sentence; of the ranks on the usual side some may be missing."""
    others = r"(rank \[\d\] has|ranks \[\d(, \d)+\] have) "
    first, second = others + re.escape(usual), r"rank \[1\] has " + odd_one
    return rf"({first}, {second}|{second}, {first})\."


def all_sides(usual, odd_one):
    """The same where every rank has been heard."""
    others = [str(rank) for rank in range(hvd.size()) if rank != 1]
    have = "rank [0] has" if len(others) == 1 else f"ranks [{', '.join(others)}] have"
    return re.escape(f"{have} {usual}, rank [1] has {odd_one}.")


def said_of_shapes(op, name, usual, odd_one):
    said = f"Mismatched {op.upper()} tensor shapes for tensor '{op}.{name}': "
    return said + all_sides(f"shape {usual}", f"shape {odd_one}")


def check_mismatched_shape():
    if hvd.size() == 1:
        return
    with raises(*MISMATCH, sentence=said_of_shapes("allreduce", "shape", "[3]", "[2]")):
        hvd.allreduce(torch.ones(2 if odd() else 3), name="shape")
    with raises(*MISMATCH, sentence=said_of_shapes("broadcast", "shape", "[3]", "[2]")):
        hvd.broadcast(torch.ones(2 if odd() else 3), 0, name="shape")
    with raises(*MISMATCH, sentence=said_of_shapes("allgather", "shape", "[*, 3]", "[*, 2]")):
        hvd.allgather(torch.ones((2, 2) if odd() else (2, 3)), name="shape")
    dimensions = said_of_shapes("allgather", "dimensions", "[*, 2, 1]", "[*, 2]")
    with raises(*MISMATCH, sentence=dimensions):
        hvd.allgather(torch.ones((2, 2) if odd() else (2, 2, 1)), name="dimensions")
    with raises(*MISMATCH, sentence=said_of_shapes("reducescatter", "shape", "[3]", "[2]")):
        hvd.reducescatter(torch.ones(2 if odd() else 3), name="shape")
    rows = hvd.size()
    with raises(*MISMATCH, sentence=said_of_shapes("alltoall", "shape", "[*, 3]", "[*, 2]")):
        hvd.alltoall(torch.ones((rows, 2) if odd() else (rows, 3)), name="shape")
    dimensions = said_of_shapes("alltoall", "dimensions", "[*, 2, 1]", "[*, 2]")
    with raises(*MISMATCH, sentence=dimensions):
        hvd.alltoall(torch.ones((rows, 2) if odd() else (rows, 2, 1)), name="dimensions")
    with raises(*MISMATCH, sentence=said_of_shapes("allreduce", "adasum", "[3]", "[2]")):
        hvd.allreduce(torch.ones(2 if odd() else 3), op=hvd.Adasum, name="adasum")
    still_works()


def check_a_mismatch_is_heard_at_once():
    """By all ranks, which have waited for the last one to come. The clock is the machine's."""
    if hvd.size() == 1:
        return
    best = math.inf
    for attempt in range(5):
        hvd.barrier()
        if hvd.rank() == attempt % hvd.size():
            time.sleep(0.05)  # late; the others wait by then
        came = time.clock_gettime(time.CLOCK_MONOTONIC)
        with raises(*MISMATCH, sentence=said_of_shapes("allreduce", "timed", "[3]", "[2]")):
            hvd.allreduce(torch.ones(2 if odd() else 3), name="timed")
        heard = time.clock_gettime(time.CLOCK_MONOTONIC)
        times = hvd.allgather(torch.tensor([[came, heard]], dtype=torch.float64))
        last_came, last_heard = times.amax(0).tolist()
        best = min(best, last_heard - last_came)
    assert 0 < best < 0.1, best
    if hvd.rank() == 0:
        print(f"a mismatch is heard by all {1000 * best:.2f} ms after the last rank came")


def check_what_is_no_tensor():
    for call in (hvd.allreduce, hvd.allreduce_async, hvd.allreduce_, hvd.allgather, hvd.alltoall,
                 hvd.reducescatter, lambda rows: hvd.broadcast(rows, 0)):
        with raises(hvd.HoronInvalidArgument, ValueError, words=["is a list, not a tensor"]):
            call([1, 2])
    with raises(hvd.HoronInvalidArgument, ValueError, words=["is a list, not a tensor"]):
        hvd.allreduce([1, 2], compression=hvd.Compression.fp16)
    still_works()


def check_names_that_cannot_be_sent():
    for name in ("a\0b", "half \ud800"):
        with raises(ValueError, hvd.HoronError, words=["a tensor's name is text without NUL"]):
            hvd.allreduce(torch.ones(1), name=name)
        with raises(ValueError, hvd.HoronError, words=["window's name is text without NUL"]):
            hvd.Window(torch.ones(1), name)
        with raises(ValueError, hvd.HoronError, words=["name is text without NUL"]):
            hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], name=name)


def check_what_reduces_nothing():
    """Where it is said, and not in the first backward pass."""
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for op in ("broadcast:root=0", "barrier", "allgather", "neighbor_allgather"):
        sentence = f"'{op.partition(':')[0]}' is no reduction of whole tensors, and has a call"
        for use in (lambda op: hvd.DistributedOptimizer(sgd, op=op), hooks.Reduce,
                    lambda op: hvd.allreduce(torch.ones(2), op=op),
                    lambda op: hvd.grouped_allreduce_async_([torch.ones(2)], op=op),
                    lambda op: aggregation([torch.ones(2)], op)):
            with raises(hvd.HoronInvalidArgument, ValueError, words=[sentence, "average"]):
                use(op)
    with raises(hvd.HoronInvalidArgument, words=["did you mean 'average'?"]):
        hvd.DistributedOptimizer(sgd, op="averge")
    for op in (hvd.TopK, hvd.Dissemination, hvd.Gossip):
        for use in (lambda op: hvd.DistributedOptimizer(sgd, op=op),
                    lambda op: hvd.allreduce(torch.ones(2), op=op)):
            with raises(hvd.HoronInvalidArgument, words=[f"call it, {op.__name__}(...)"]):
                use(op)
    for wrong in ("fp16", hvd.Compression, None):
        for use in (lambda wrong: hvd.DistributedOptimizer(sgd, compression=wrong),
                    lambda wrong: hvd.allreduce(torch.ones(2), compression=wrong),
                    lambda wrong: hvd.grouped_allreduce([torch.ones(2)], compression=wrong),
                    lambda wrong: hvd.reducescatter(torch.ones(2), compression=wrong),
                    lambda wrong: hvd.grouped_reducescatter([torch.ones(2)], compression=wrong)):
            with raises(hvd.HoronInvalidArgument, ValueError, words=["hvd.Compression.none"]):
                use(wrong)
    still_works()


def check_ops_that_go_on_need_a_name():
    """One unnamed tensor is not the next."""
    for op in (hvd.TopK(0.1), hvd.Dissemination(), "topk:ratio=0.5"):
        for call in (lambda op: hvd.allreduce(torch.ones(3), op=op),
                     lambda op: hvd.allreduce_async_(torch.ones(3), op=op),
                     lambda op: hvd.grouped_allreduce([torch.ones(3)], op=op)):
            with raises(hvd.HoronInvalidArgument, ValueError, words=["give the tensor a name"]):
                call(op)
    still_works()


def check_mismatched_layout():
    if hvd.size() == 1:
        return
    tensor = torch.ones(2, 3, 4, 5)
    mine = tensor.to(memory_format=torch.channels_last) if odd() else tensor
    with raises(*MISMATCH, words=["'allreduce.layout'"]):
        hvd.allreduce_(mine, name="layout")
    still_works()


def check_mismatched_dtype():
    if hvd.size() == 1:
        return
    dtype = torch.float64 if odd() else torch.float32
    for op, start in ASYNC.items():
        said = f"Mismatched data types for tensor '{op}.dtype': " + all_sides("float32", "float64")
        with raises(*MISMATCH, sentence=said, of=op):
            hvd.synchronize(start(torch.ones(hvd.size(), dtype=dtype), name="dtype"))
    still_works()


def check_mismatched_operations_and_roots():
    if hvd.size() == 1:
        return
    two, everyone = torch.ones(2), hvd.global_process_set

    def said(name, usual, odd_one):
        return f"Mismatched operations for tensor '{name}': " + all_sides(usual, odd_one)

    with raises(*MISMATCH, sentence=said("allreduce.op", "sum", "max")):
        hvd.allreduce(two, op=hvd.Max if odd() else hvd.Sum, name="op")
    with raises(*MISMATCH, sentence=said("broadcast.root", "broadcast:root=0", "broadcast:root=1")):
        hvd.broadcast(two, 1 if odd() else 0, name="root")
    with raises(*MISMATCH, sentence=said("kind", "sum", "allgather")):
        call = rows_call if odd() else reduce_call
        call("kind", "allgather" if odd() else "sum", two, everyone).run()
    still_works()


def check_what_only_the_ranks_together_can_judge_is_said_when_waited_for():
    """On every rank, whoever is wrong."""
    n = hvd.size()
    rows = torch.ones(n)
    wrong = [
        ("root rank", lambda: hvd.broadcast_async(rows, n)),
        ("root rank", lambda: hvd.broadcast_async_(rows, n)),
        ("number of entries in splits", lambda: hvd.alltoall_async(rows, [1] * (n + 1))),
        ("the sum of splits", lambda: hvd.alltoall_async(rows, [2] * n)),
        ("a negative number", lambda: hvd.alltoall_async(rows, [-1] * n)),
    ]
    if n > 1:
        wrong += [
            ("not an even multiple", lambda: hvd.alltoall_async(torch.ones(n + 1))),
            ("on rank [1]: the sum of splits",
             lambda: hvd.alltoall_async(rows, [2 if odd() else 1] * n)),
        ]
    for words, start in wrong:
        handle = start()
        with raises(*MISMATCH, ValueError, words=[words]):
            hvd.synchronize(handle)
    still_works()


def check_mismatched_scale():
    if hvd.size() == 1:
        return
    said = "Mismatched prescale and/or postscale factors for tensor 'allreduce.scale': "
    with raises(*MISMATCH, sentence=said + all_sides("(1, 1)", "(0.3, 1)")):
        hvd.allreduce(torch.ones(2), prescale_factor=0.3 if odd() else 1.0, name="scale")
    with raises(*MISMATCH, sentence=said + all_sides("(2.5, 4)", "(2.5, 2)")):
        hvd.allreduce(torch.ones(2), prescale_factor=2.5, postscale_factor=2.0 if odd() else 4.0,
                      name="scale")
    still_works()


def check_group_fails_as_one():
    if hvd.size() == 1:
        return
    mine = [torch.ones(3 if odd() else 2), torch.ones(4), torch.ones(5)]
    with raises(*MISMATCH, words=["'grouped_allreduce.bad_1of3'"]):
        hvd.grouped_allreduce(mine, name="bad")
    still_works()


def check_mismatched_group():
    """One rank groups what the others submit alone."""
    if hvd.size() == 1:
        return
    from horon import _core
    from horon.torch.calls import Handle

    tensors = [torch.ones(2), torch.ones(2)]
    requests = [
        (f"grouping.{i}", "sum", 7, -1, (2,), t.data_ptr(), t.data_ptr(), 1.0, 1.0, 0, None, 0,
         None, 0)
        for i, t in enumerate(tensors)
    ]
    if odd():
        works = [_core.submit_group(requests, "grouping", tensors)]
    else:
        works = [_core.submit(request, tensors) for request in requests]
    group = r"group 'grouping' of 2 tensors \(their names hash to [0-9a-f]{16}\)"
    said = r"Mismatched groups for tensor 'grouping\.[01]': " + sides("no group", group)
    for work in works:
        with raises(*MISMATCH, sentence=said):
            Handle(work, lambda w, i: None).wait()
    still_works()


def check_duplicate_name():
    """Whoever submits a pending name again gets a ValueError at once; the first one goes on."""
    if hvd.size() == 1:
        return
    first = None
    if odd():
        first = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="pending")
        with raises(hvd.HoronInvalidArgument, ValueError, words=["'allreduce.pending'"]):
            hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="pending")
        with raises(hvd.HoronInvalidArgument, ValueError, words=["'allreduce.pending'"]):
            hvd.allreduce(torch.ones(2), op=hvd.Sum, name="pending")
    hvd.barrier()
    if first is None:
        first = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="pending")
    same(hvd.synchronize(first), torch.full((2,), float(hvd.size())))


def check_duplicate_name_of_every_op():
    if hvd.size() == 1:
        return
    rows = torch.ones(hvd.size())
    for op, start in ASYNC.items():
        first = None
        if odd():
            first = start(rows, name="pending")
            with raises(hvd.HoronInvalidArgument, ValueError, words=[f"'{op}.pending'", "pending"],
                        of=op):
                start(rows, name="pending")
        hvd.barrier()
        hvd.synchronize(first or start(rows, name="pending"))
    still_works()


def check_group_with_a_pending_member_leaves_nothing():
    """Its other members can be used at once, and the pending one goes on."""
    if hvd.size() == 1:
        return
    first = None
    if odd():
        first = hvd.grouped_allreduce_async([torch.ones(2)] * 2, op=hvd.Sum, name="twice")
        with raises(hvd.HoronInvalidArgument, ValueError, words=["twice_1of2"]):
            hvd.grouped_allreduce_async([torch.ones(2)] * 2, op=hvd.Sum, name="twice")
    hvd.barrier()
    if first is None:
        first = hvd.grouped_allreduce_async([torch.ones(2)] * 2, op=hvd.Sum, name="twice")
    for result in hvd.synchronize(first):
        same(result, torch.full((2,), float(hvd.size())))
    for result in hvd.grouped_allreduce([torch.ones(2)] * 2, op=hvd.Sum, name="twice"):
        same(result, torch.full((2,), float(hvd.size())))


def check_unsupported_type():
    for dtype in (torch.complex64, torch.uint16, torch.float8_e5m2):
        for name, call in every_call.each(torch.ones(4).to(dtype)):
            if not dtype.is_complex and name.startswith("sparse"):
                continue  # PyTorch has no such tensors
            with raises(hvd.HoronUnsupported, hvd.HoronError, ValueError, words=[dtype], of=name):
                call()
    for name, call in every_call.each(torch.ones(4).to_sparse()):
        if name.startswith("sparse"):
            continue
        with raises(hvd.HoronError, ValueError, words=["sparse_allreduce_async"], of=name):
            call()
    with raises(hvd.HoronUnsupported, words=["'allreduce.odd'", "complex64"]):
        hvd.allreduce(torch.ones(4).to(torch.complex64), name="odd")
    with raises(hvd.HoronError, RuntimeError, words=["'allreduce.truths'", "bool"]):
        hvd.allreduce(torch.ones(2).bool(), op=hvd.Average, name="truths")
    still_works()


def check_unknown_op():
    for op in ("adasum:algo=star", "nonsense", "topk:ratio=7", "topk:what=1"):
        with raises(hvd.HoronInvalidArgument, ValueError, words=[getattr(op, "spec", op)[:4]]):
            hvd.allreduce_async(torch.ones(2), op=op, name="unknown")
    with raises(hvd.HoronInvalidArgument, ValueError):
        hvd.allreduce(torch.ones(2), op=17)
    with raises(ValueError, words=["supersedes"]):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    still_works()


# Where Horovod 0.28 raises what: rows of its table of errors that are no mismatch between ranks
# (those are tested above) and no end of a job (failures.py, lifecycle.py, join.py).
def calls_that_horovod_refuses():
    n, two = hvd.size(), torch.ones(2)
    splits = torch.ones(n, dtype=torch.int32)
    with_gradient = torch.ones(2, requires_grad=True)
    yield ValueError, "root", lambda: hvd.broadcast(two, n)
    yield ValueError, "not registered", lambda: hvd.allreduce(two, process_set=hvd.ProcessSet([0]))
    yield ValueError, "1D", lambda: hvd.alltoall(two, splits=splits.reshape(1, n))
    yield ValueError, "whole numbers", lambda: hvd.alltoall(two, splits=splits.float())
    yield ValueError, "splits", lambda: hvd.alltoall(torch.ones(n), splits=2 * splits)
    yield ValueError, "splits", lambda: hvd.alltoall(torch.ones(n + 1), splits=[1] * (n + 1))
    for op in (hvd.Max, hvd.Min, hvd.Product, hvd.Adasum):
        for tensor in (two, with_gradient):
            yield RuntimeError, "adds or averages", lambda: hvd.reducescatter(tensor, op=op)
            yield RuntimeError, "adds or averages", lambda: hvd.grouped_reducescatter([tensor],
                                                                                      op=op)
        yield RuntimeError, "adds or averages", lambda: hvd.reducescatter_async(two, op=op)
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        yield hvd.HorovodInternalError, "scalar", lambda: call(torch.tensor(1.0))


def check_classes_are_those_that_scripts_for_horovod_catch():
    for kind, word, call in calls_that_horovod_refuses():
        with raises(hvd.HoronError, hvd.HoronInvalidArgument, kind, words=[word]):
            call()
    still_works()


def calls_on(process_set):
    """(name, call) of every collective that takes a set."""
    tensor = torch.ones(hvd.size())
    given = {"tensor": tensor, "tensors": [tensor, tensor], "root_rank": 0, "name": "set", "obj": 1,
             "params": {"tensor": tensor}, "optimizer": torch.optim.SGD([tensor], lr=1.0)}
    modules = {f"horon.torch.{name}" for name in ("exchanges", "reductions", "functions")}
    for name in sorted(vars(hvd)):
        function = getattr(hvd, name)
        if getattr(function, "__module__", "") not in modules:
            continue
        needed = [p.name for p in inspect.signature(function).parameters.values()
                  if p.default is p.empty]
        arguments = {name: given[name] for name in needed}
        if name.startswith("sparse"):
            arguments["tensor"] = every_call.sparse(tensor)
        yield name, lambda f=function, a=arguments: f(**a, process_set=process_set)


def check_who_is_no_member_hears_a_value_error():
    if hvd.size() == 1:
        return
    process_set = hvd.add_process_set([0])
    member = process_set.included()
    for name, call in () if member else calls_on(process_set):
        with raises(hvd.HoronInvalidArgument, ValueError, of=name,
                    words=[f"rank {hvd.rank()} is not a member"]):
            call()
    hvd.remove_process_set(process_set)
    for unknown in (process_set, hvd.ProcessSet([0])):
        for name, call in calls_on(unknown):
            with raises(hvd.HoronInvalidArgument, ValueError, words=["not registered"], of=name):
                call()
    still_works()


def check_wrong_arguments():
    with raises(hvd.HoronError, ValueError):
        hvd.broadcast(torch.ones(2), hvd.size())
    with raises(hvd.HoronError, ValueError):
        hvd.allgather(torch.tensor(1.0))
    with raises(hvd.HoronError, ValueError):
        hvd.alltoall(torch.ones(hvd.size()), splits=[1] * (hvd.size() + 1))
    with raises(hvd.HoronError, ValueError):
        hvd.alltoall(torch.ones(1), splits=[2] * hvd.size())
    for splits in (torch.ones(1, hvd.size(), dtype=torch.int32), torch.ones(hvd.size())):
        with raises(hvd.HoronError, ValueError, words=["1D"]):
            hvd.alltoall(torch.ones(hvd.size()), splits=splits)
    with raises(hvd.HoronError, ValueError, words=["each of splits is a whole number, not 1.5"]):
        hvd.alltoall(torch.ones(2 * hvd.size()), splits=[1.5] * hvd.size())
    with raises(hvd.HoronError, ValueError, words=["root_rank is a whole number, not 0.9"]):
        hvd.broadcast(torch.ones(2), 0.9)
    for sets in (hvd.ProcessSet, hvd.add_process_set):
        with raises(hvd.HoronError, ValueError, words=["is a list of ranks; got 0"]):
            sets(0)
    with raises(hvd.HoronError, ValueError, words=["add_process_set gave; got [0]"]):
        hvd.remove_process_set([0])
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    for factor in (0, float("nan")):
        with raises(ValueError, words=["gradient_predivide_factor cannot be"]):
            hvd.DistributedOptimizer(inner, gradient_predivide_factor=factor)
    for call in (hvd.alltoall, hvd.reducescatter):
        with raises(hvd.HoronError, ValueError, words=["scalar"]):
            call(torch.tensor(1.0))
    for call in (hvd.allreduce, hvd.reducescatter):
        for factor in ("prescale_factor", "postscale_factor"):
            with raises(hvd.HoronError, ValueError, words=["scale factor of 0"]):
                call(torch.ones(1), **{factor: 0.0})
    if hvd.size() > 1:
        with raises(hvd.HoronError, ValueError):
            hvd.alltoall(torch.ones(hvd.size() + 1))
    still_works()


def check_not_handles():
    for call in (hvd.synchronize, hvd.poll):
        with raises(hvd.HoronInvalidArgument, ValueError, words=["12345", "_async"]):
            call(12345)
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    for _ in range(2):  # one that is finished gives its result again
        same(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))
    assert hvd.poll(handle)
