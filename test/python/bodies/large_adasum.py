"""Adasum of a bucket of more than 2^31 elements of half precision, one tensor and a small one."""

import torch

import horon.torch as hvd

COUNTS = ((1 << 31) + 4099, 70_001)


def check_a_bucket_of_more_than_two_to_the_31_elements():
    """What the ranks have is orthogonal, so it is added: marks at places of their own."""
    me, size = hvd.rank(), hvd.size()
    places = [[0, 1 << 30, (1 << 31) - size, COUNTS[0] - size], [0, COUNTS[1] - size]]
    tensors = [torch.zeros(count, dtype=torch.float16) for count in COUNTS]
    for i, tensor in enumerate(tensors):
        for number, place in enumerate(places[i]):
            tensor[place + me] = 10 * i + number + 1
    before = hvd.counters()["executor.buckets"]
    hvd.grouped_allreduce_(tensors, op=hvd.Adasum, name="large")
    assert hvd.counters()["executor.buckets"] - before == 1
    for i, tensor in enumerate(tensors):
        for number, place in enumerate(places[i]):
            for rank in range(size):
                assert tensor[place + rank] == 10 * i + number + 1, (i, place, rank)
                tensor[place + rank] = 0
        assert not tensor.any(), "something was written beside its place"
