"""What a training loop does beside its steps: a learning rate that warms up, metrics of all ranks.

Horovod has these as callbacks for Keras, and as code to copy from its examples for PyTorch.
"""

from collections.abc import Mapping

import torch
from torch.optim.lr_scheduler import LambdaLR

from horon.errors import HoronInvalidArgument
from horon.process_sets import global_process_set
from horon.runtime import size
from horon.specs import Sum
from horon.torch.reductions import grouped_allreduce


class LearningRateWarmup(LambdaLR):
    """From the learning rate of one rank to that of all, which the optimizer has: lr / size grows
    evenly to lr during the first warmup_epochs epochs. step() after each batch.

    optimizer: with the learning rate of all ranks, lr * hvd.size() by the usual rule.
    """

    def __init__(self, optimizer, warmup_epochs=5, steps_per_epoch=1, last_epoch=-1):
        if warmup_epochs < 0 or steps_per_epoch < 1:
            raise HoronInvalidArgument(
                f"LearningRateWarmup: {warmup_epochs} epochs of {steps_per_epoch} steps: at least "
                "0 and 1"
            )
        ranks, steps = size(), warmup_epochs * steps_per_epoch

        def share(step):
            return 1.0 if step >= steps else (1 + step * (ranks - 1) / steps) / ranks

        super().__init__(optimizer, share, last_epoch)


def average_metrics(metrics, weight=1, process_set=global_process_set):
    """The means over the ranks of numbers or tensors of one element, as a dict of floats.

    weight: how much this rank's values count, such as the number of samples they are of; 0 for a
    rank that has seen none. All ranks give the same names, in any order.
    """
    if not isinstance(metrics, Mapping):
        raise HoronInvalidArgument(f"average_metrics takes a dict, not {type(metrics).__name__}")
    names = sorted(metrics)
    parts = [torch.tensor([float(weight)], dtype=torch.float64)]
    for name in names:
        value = float(metrics[name]) * weight if weight else 0.0  # of no samples it may be NaN
        parts.append(torch.tensor([value], dtype=torch.float64))
    called = f"metrics.{'.'.join(names)}"
    total, *sums = grouped_allreduce(parts, name=called, op=Sum, process_set=process_set)
    if total.item() == 0:
        raise HoronInvalidArgument("average_metrics: the weights of all ranks are 0")
    return {name: (value / total).item() for name, value in zip(names, sums)}


def metric_average(value, name, process_set=global_process_set):
    """The mean over the ranks of one number."""
    return average_metrics({name: value}, process_set=process_set)[name]
