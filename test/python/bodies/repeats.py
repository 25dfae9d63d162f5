"""Calls that come again take a shorter way (horon/torch/repeats.py): it must give what the long one
gives."""

import inspect
import pickle

import pytest
import torch

import horon.torch as hvd
from horon import _core


def total():
    """Of mine(), over all ranks."""
    return hvd.size() * (hvd.size() + 1) / 2


def mine(*shape, dtype=torch.float32):
    return torch.full(shape, hvd.rank() + 1, dtype=dtype)


def holds(result, value):
    assert torch.equal(result, torch.full_like(result, value)), result


def check_same_results_every_time():
    for step in range(5):
        tensor = mine(10)
        handle = hvd.allreduce_async_(tensor, name="r.async", op=hvd.Sum)
        assert isinstance(handle, _core.Started) == (step >= 2), step
        assert hvd.synchronize(handle) is tensor and hvd.poll(handle)
        holds(tensor, total())
        tensor = mine(10)
        assert hvd.allreduce_(tensor, name="r.run", op=hvd.Average) is tensor
        holds(tensor, total() / hvd.size())


def check_what_changes_takes_the_long_way():
    for turn in range(4):
        for value, arguments in [
            (total(), {"op": hvd.Sum}),
            (hvd.size(), {"op": hvd.Max}),
            (total() * 0.5, {"op": hvd.Sum, "prescale_factor": 1.0 / (2 + 0 * turn)}),
            (total() * 3, {"op": hvd.Sum, "postscale_factor": 3}),
            (total() / hvd.size(), {"average": True}),
        ]:
            for tensor in (mine(7), mine(2, 4), mine(7, dtype=torch.float64), mine(8)[::2],
                           mine(0)):
                again = tensor.clone() if tensor.is_contiguous() else mine(8)[::2]
                holds(hvd.allreduce_(tensor, name="r.changing", **arguments), value)
                handle = hvd.allreduce_async_(again, name="r.changing", **arguments)
                holds(hvd.synchronize(handle), value)


class Marked(torch.Tensor):
    """Without DLPack's table of its own."""


def check_other_kinds_of_tensors():
    for step in range(4):
        for kind in (lambda t: t, lambda t: t.as_subclass(Marked),
                     lambda t: torch.nn.Parameter(t, requires_grad=False)):
            tensor = kind(mine(6))
            handle = hvd.allreduce_async_(tensor, name="r.kind", op=hvd.Sum)
            assert hvd.synchronize(handle) is tensor
            holds(tensor, total())
        pair = [mine(3).as_subclass(Marked), mine(2)]
        for result in hvd.grouped_allreduce_(pair, name="r.kinds", op=hvd.Sum):
            holds(result, total())


def check_one_tensor_that_becomes_another():
    """Its object stays, what it is does not."""
    tensor = mine(6)
    for _ in range(3):
        for new in (mine(6), mine(2, 3), mine(3, 2).t(), mine(6, dtype=torch.float64),
                    mine(12)[::2], mine(1, 6), mine(0), mine(6)):
            tensor.data = new
            holds(hvd.allreduce_(tensor, name="r.becomes", op=hvd.Sum), total())
            assert tensor.shape == new.shape and tensor.dtype == new.dtype
    kept = mine(6)
    tensor.set_(kept)
    holds(hvd.allreduce_(tensor, name="r.becomes", op=hvd.Sum), total())
    holds(kept, total())
    tensor.resize_(3).fill_(hvd.rank() + 1)
    holds(hvd.allreduce_(tensor, name="r.becomes", op=hvd.Sum), total())


def check_errors_on_the_short_way():
    for _ in range(3):
        hvd.allreduce_(mine(4), name="r.error", op=hvd.Sum)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="r.error"):  # another shape on rank 0 alone
            hvd.allreduce_(mine(5 if hvd.rank() == 0 else 4), name="r.error", op=hvd.Sum)
    holds(hvd.allreduce_(mine(4), name="r.error", op=hvd.Sum), total())
    hvd.barrier()
    tensor = mine(4)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(tensor, name="r.late", op=hvd.Sum)
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="still pending"):
                hvd.allreduce_async_(mine(4), name="r.late", op=hvd.Sum)
    hvd.barrier()
    if hvd.rank() > 0:
        handle = hvd.allreduce_async_(tensor, name="r.late", op=hvd.Sum)
    holds(hvd.synchronize(handle), total())
    with pytest.raises((ValueError, TypeError, AttributeError)):
        hvd.allreduce_([1.0], name="r.error", op=hvd.Sum)


def check_forgotten_handles():
    """The runtime keeps the tensors; the name is free when it is done."""
    for step in range(20):
        hvd.allreduce_async_(mine(1000), name=f"r.dropped.{step % 2}", op=hvd.Sum)
        hvd.barrier()
        while True:
            try:
                holds(hvd.allreduce_(mine(1000), name=f"r.dropped.{step % 2}", op=hvd.Sum), total())
                break
            except ValueError as error:
                assert "still pending" in str(error)


def check_groups_that_come_again():
    for step in range(6):
        shapes = [(3,), (2, 4 if step != 4 else 5), (0,)]  # another shape: the long way
        tensors = [mine(*shape) for shape in shapes]
        handle = hvd.grouped_allreduce_async_(tensors, name="r.group", op=hvd.Sum)
        assert isinstance(handle, _core.Started) == (step in (2, 3)), step
        results = hvd.synchronize(handle)
        assert len(results) == 3 and all(r is t for r, t in zip(results, tensors))
        for result in results:
            holds(result, total())
        tensors = tuple(mine(*shape) for shape in shapes)
        for result in hvd.grouped_allreduce_(tensors, name="r.group.run", op=hvd.Average):
            holds(result, total() / hvd.size())


def check_a_group_fails_as_one():
    for _ in range(3):
        hvd.grouped_allreduce_([mine(4), mine(5)], name="r.group.error", op=hvd.Sum)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="r.group.error"):
            other = mine(6 if hvd.rank() == 0 else 5)
            hvd.grouped_allreduce_([mine(4), other], name="r.group.error",
                                   op=hvd.Sum)
    for result in hvd.grouped_allreduce_([mine(4), mine(5)], name="r.group.error", op=hvd.Sum):
        holds(result, total())


def check_other_ways_to_pass_arguments():
    for _ in range(4):
        holds(hvd.allreduce_(mine(3), None, "r.way", hvd.Sum), total())
        holds(hvd.allreduce_(mine(3), op=hvd.Max, name="r.way"), hvd.size())
        holds(hvd.allreduce_(mine(3), name="r.way", op=hvd.Sum), total())
        holds(hvd.allreduce_(tensor=mine(3), name="r.way", op=hvd.Sum), total())
        holds(hvd.allreduce_(mine(3), **{"name": "r." + "way", "op": hvd.Sum}), total())
        holds(hvd.allreduce_(mine(3), False, "r.way"), total())
        tensors = (mine(3) for _ in range(2))
        results = hvd.grouped_allreduce_(tensors, name="r.way.group", op=hvd.Sum)
        assert len(results) == 2
        with pytest.raises(TypeError):
            hvd.allreduce_(mine(3), name="r.way", nonsense=1)
        with pytest.raises(TypeError):
            hvd.allreduce_()


def check_they_are_functions():
    assert "postscale_factor" in inspect.signature(hvd.allreduce_).parameters
    assert hvd.allreduce_.__name__ == "allreduce_" and "blocking" in hvd.allreduce_.__doc__
    assert pickle.loads(pickle.dumps(hvd.allreduce_async_)) is hvd.allreduce_async_
    assert inspect.isroutine(hvd.grouped_allreduce_)


def check_a_set_made_anew():
    if hvd.size() == 1:
        return
    for _ in range(3):
        one = hvd.add_process_set([0])
        if hvd.rank() == 0:
            for _ in range(3):
                holds(hvd.allreduce_(mine(3), name="r.set", op=hvd.Sum, process_set=one), 1)
        hvd.remove_process_set(one)
        with pytest.raises(ValueError):
            hvd.allreduce_(mine(3), name="r.set", op=hvd.Sum, process_set=one)


def check_the_same_object_under_another_number():
    if hvd.size() == 1:
        return
    one, numbers = hvd.ProcessSet([0]), set()
    for _ in range(3):
        hvd.add_process_set(one)
        numbers.add(one.process_set_id)
        if hvd.rank() == 0:
            for _ in range(3):
                holds(hvd.allreduce_(mine(3), name="r.same", op=hvd.Sum, process_set=one), 1)
        hvd.remove_process_set(one)
    assert len(numbers) == 3
