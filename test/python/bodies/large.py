"""More than 2^31 elements, which a 32-bit count does not hold. Some GiB of memory a rank."""

import torch

import horon.torch as hvd

COUNT = (1 << 31) + 4099
PLACES = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, COUNT - 1]


def marked(rank):
    """Zeros but at some places around the limit."""
    tensor = torch.zeros(COUNT, dtype=torch.uint8)
    for number, place in enumerate(PLACES):
        tensor[place] = 10 * rank + number + 1
    return tensor


def only_marks(tensor, value_of):
    """Nothing but the marks, everywhere."""
    for number, place in enumerate(PLACES):
        assert tensor[place] == value_of(number), (place, tensor[place], value_of(number))
        tensor[place] = 0
    assert not tensor.any(), "something was written beside its place"


def check_allreduce():
    tensor = marked(hvd.rank())
    hvd.allreduce_(tensor, op=hvd.Sum, name="large")
    only_marks(tensor, lambda number: sum(10 * r + number + 1 for r in range(hvd.size())))


def check_broadcast():
    tensor = marked(hvd.rank())
    hvd.broadcast_(tensor, 1, name="large")
    only_marks(tensor, lambda number: 10 + number + 1)


def check_allgather():
    """Parts of 2^30 and more make 2^31 and more of them."""
    rows = (1 << 30) + 5 + hvd.rank()
    part = torch.zeros(rows, dtype=torch.uint8)
    part[0], part[-1] = 1 + hvd.rank(), 3 + hvd.rank()
    whole = hvd.allgather(part, name="large")
    del part
    first = (1 << 30) + 5
    assert whole.numel() == 2 * first + 1 > 1 << 31
    for place, value in ((0, 1), (first - 1, 3), (first, 2), (2 * first, 4)):
        assert whole[place] == value, (place, whole[place])
        whole[place] = 0
    assert not whole.any(), "something was written beside its place"


def check_alltoall():
    """Almost everything goes to the other rank; the marks of a whole tensor come from there."""
    own = 5
    splits = [COUNT - own, COUNT - own]
    splits[hvd.rank()] = own
    sent = torch.zeros(COUNT, dtype=torch.uint8)
    other = 1 - hvd.rank()
    begin = sum(splits[:other])
    for number, place in enumerate((0, (1 << 31) - 1, 1 << 31, COUNT - own - 1)):
        sent[begin + place] = 10 * hvd.rank() + number + 1
    got, came = hvd.alltoall(sent, splits, name="large")
    del sent
    assert came.tolist() == splits, came
    for number, place in enumerate((0, (1 << 31) - 1, 1 << 31, COUNT - own - 1)):
        at = sum(came.tolist()[:other]) + place
        assert got[at] == 10 * other + number + 1, (at, got[at])
        got[at] = 0
    assert not got.any(), "something was written beside its place"


def check_reducescatter():
    """Of an odd number of rows the first rank gets one more."""
    tensor = marked(hvd.rank())
    part = hvd.reducescatter(tensor, op=hvd.Sum, name="large")
    first = (COUNT + 1) // 2
    begin = 0 if hvd.rank() == 0 else first
    assert part.numel() == (first if hvd.rank() == 0 else COUNT - first), part.shape
    for number, place in enumerate(PLACES):
        if begin <= place < begin + part.numel():
            value = sum(10 * r + number + 1 for r in range(hvd.size()))
            assert part[place - begin] == value, (place, part[place - begin])
            part[place - begin] = 0
    assert not part.any(), "something was written beside its place"
