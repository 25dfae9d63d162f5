"""What Adasum shares a bucket with, and that its steps come to be known, as the counters tell it.
With HORON_CYCLE_TIME, so that tensors submitted one after the other are agreed in one go."""

import torch
from adasum import adasum_of, gradients, near
from common import same
from optimizers import batches, loss_of, make_model, sgd

import horon.torch as hvd

COUNT = 6


def since(before, *names):
    """How much these counters have grown, those of a way taken together."""
    def total(counters, name):
        return sum(value for key, value in counters.items()
                   if key == name or key.startswith("negotiation.") and key.endswith(f".{name}"))

    now = hvd.counters()
    return [total(now, name) - total(before, name) for name in names]


def run(ops, turn):
    """A tensor by each op in turn, all at once; buckets, and the results."""
    inputs = [gradients((40 + i,), torch.float32, seed=i) for i in range(len(ops))]
    before = hvd.counters()
    handles = [hvd.allreduce_async(each[hvd.rank()].clone(), op=op, name=f"{turn}.{i}")
               for i, (each, op) in enumerate(zip(inputs, ops))]
    results = [hvd.synchronize(handle) for handle in handles]
    buckets, tensors = since(before, "executor.buckets", "executor.tensors")
    assert tensors == len(ops), tensors
    return buckets, inputs, results


def check_adasum_is_fused_with_its_like_only():
    """Six of each op, in turn: a bucket for each op, and another one for another spec."""
    nodes = hvd.AdasumOp(local_op="sum")
    for turn, ops in enumerate([[hvd.Adasum], [hvd.Sum], [hvd.Adasum, hvd.Sum],
                                [hvd.Average, hvd.Adasum, hvd.Max], [nodes, hvd.Adasum]]):
        buckets, inputs, results = run(ops * COUNT, turn)
        assert buckets == len(ops), (ops, buckets)
        for i, (each, result) in enumerate(zip(inputs, results)):
            if ops[i % len(ops)] is hvd.Adasum:
                near(result, adasum_of(each))
        last = inputs[-1][hvd.rank()]
        same(results[-1], hvd.allreduce(last, op=ops[-1], name="alone"))


def check_steady_steps_are_not_asked_for_by_name():
    """Neither tensors nor an optimizer's steps, with what these agree on beside; each once."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
    tensors = [torch.ones(10 + i) for i in range(COUNT)]

    def step():
        for i, tensor in enumerate(tensors):
            hvd.allreduce_(tensor, op=hvd.Adasum, name=f"steady.{i}")
        optimizer.zero_grad()
        loss_of(model, batches(hvd.size())[0][hvd.rank()]).backward()
        optimizer.step()

    for _ in range(3):
        step()
    before = hvd.counters()
    for _ in range(5):
        step()
    requests, responses, bits, locked, ran = since(
        before, "requests", "responses", "bits", "schedule.tensors", "executor.tensors")
    assert requests == responses == 0, (requests, responses)
    assert ran == 5 * (COUNT + 4 + 1), ran
    assert bits + locked >= ran, (bits, locked, ran)
