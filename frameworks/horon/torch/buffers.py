"""Beside gossip: average_buffers, since only parameters are mixed, and consensus_distance, how far
apart the ranks are. Collective over the process set; HoronLate where a rank does not come within
HORON_GOSSIP_TIMEOUT.
"""

import torch

from horon.gossip import fail_when_late
from horon.process_sets import global_process_set
from horon.torch.marks import marked, show
from horon.torch.reductions import allreduce, grouped_allreduce


@torch.no_grad()
def average_buffers(model, samples=1.0, process_set=global_process_set) -> None:
    """Before a model is saved or evaluated, on all ranks: its buffers become those of all ranks.

    Running means are averaged with `samples` as this rank's weight; a running variance becomes that
    of all ranks' samples together, which has the distances of the ranks' means in it. Other
    floating-point buffers are averaged; of counters and the like the largest is taken.
    """
    squares = {}  # running_var by its running_mean
    for module in model.modules():
        mean, variance = (getattr(module, f"running_{what}", None) for what in ("mean", "var"))
        if mean is not None and variance is not None:
            squares[variance] = mean
    floats = [b for b in model.buffers() if b.is_floating_point()]
    counts = [b for b in model.buffers() if not b.is_floating_point() and b.dtype != torch.bool]
    sums = {b: b.double() + squares[b].double().square() if b in squares else b.double()
            for b in floats}
    rows = _one_vector([sums[b] for b in floats] + [torch.ones(1, dtype=torch.float64)])
    total = allreduce(rows.mul_(samples), op=fail_when_late("sum"), name="buffers",
                      process_set=process_set)
    parts = (total[:-1] / total[-1]).split([b.numel() for b in floats])
    means = {b: part.view(b.shape) for b, part in zip(floats, parts)}
    for buffer in floats:
        mean = means[buffer]
        if buffer in squares:
            mean = (mean - means[squares[buffer]].square()).clamp_(min=0)
        buffer.copy_(mean)
    if counts:
        largest = grouped_allreduce(counts, op=fail_when_late("max"), name="buffers.counts",
                                    process_set=process_set)
        for buffer, value in zip(counts, largest):
            buffer.copy_(value)


def _one_vector(tensors) -> torch.Tensor:
    """Where the first of them lies."""
    home = tensors[0].device
    return torch.cat([tensor.reshape(-1).to(home) for tensor in tensors])


@torch.no_grad()
def consensus_distance(tensors, process_set=global_process_set) -> float:
    """The root of the mean over the ranks of |x - mean of x|^2, x all of `tensors` as one vector:
    model.parameters(), or any floating-point tensors. 0: all ranks have the same."""
    with marked("gossip") as words:
        mine = _one_vector([tensor.detach().double() for tensor in tensors])
        mean = allreduce(mine, op=fail_when_late("average"), name="consensus.mean",
                         process_set=process_set)
        square = mine.sub_(mean).square().sum().reshape(1)
        total = allreduce(square, op=fail_when_late("average"), name="consensus",
                          process_set=process_set)
        distance = total.sqrt().item()
        words.append(f"consensus distance {distance:.6g}")
    show("gossip.consensus.nano", distance)
    return distance
