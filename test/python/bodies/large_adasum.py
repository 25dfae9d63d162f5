"""Adasum of a bucket of more than 2^31 bytes: two tensors of half precision."""

import torch

import horon.torch as hvd

COUNT = (1 << 29) + 4099


def check_a_bucket_of_more_than_two_to_the_31_bytes():
    """What the ranks have is orthogonal, so it is added: marks at places of their own."""
    me, size = hvd.rank(), hvd.size()
    places = [0, 1 << 28, (1 << 29) - size, COUNT - size]
    tensors = [torch.zeros(COUNT, dtype=torch.float16) for _ in range(2)]
    for i, tensor in enumerate(tensors):
        for number, place in enumerate(places):
            tensor[place + me] = 10 * i + number + 1
    before = hvd.counters()["executor.buckets"]
    hvd.grouped_allreduce_(tensors, op=hvd.Adasum, name="large")
    assert hvd.counters()["executor.buckets"] - before == 1
    for i, tensor in enumerate(tensors):
        for number, place in enumerate(places):
            for rank in range(size):
                assert tensor[place + rank] == 10 * i + number + 1, (i, place, rank)
                tensor[place + rank] = 0
        assert not tensor.any(), "something was written beside its place"
