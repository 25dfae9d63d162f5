"""What of Horovod's elastic training needs no elastic job: a sampler that goes on where it was."""

import math
import random

from torch.utils.data import Sampler

from horon.errors import HoronInvalidArgument, HoronMissing
from horon.runtime import rank, size


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise HoronMissing(
        f"hvd.elastic.{name}: elastic jobs are not in this version; hvd.elastic.ElasticSampler is, "
        "and works with any restart of a job"
    )


class ElasticSampler(Sampler):
    """Deals a data set's indices out to the ranks, and knows which ones have been used.

    All ranks shuffle alike. What is left of the epoch is dealt anew after reset(), to as many ranks
    as there are then; so a job that starts again from state_dict() with another number of ranks
    uses every index once. Where they do not come out even, the first of the rest are dealt twice.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch):
        """Another order, and nothing of it used."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """A batch has been used, here and so on every rank. batch_idx is Horovod's argument."""
        if batch_size < 0:
            raise HoronInvalidArgument(f"record_batch: batch_size is {batch_size}: at least 0")
        used = self.processed_num + batch_size * self.num_replicas
        self.processed_num = min(used, len(self.dataset))

    def get_indices(self, batch_idx, batch_size):
        """Those of this rank's batch of that number, counted from the last reset()."""
        return self._mine()[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self):
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Deals what is left to the ranks that there are now."""
        self.num_replicas = size()
        self.rank = rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _mine(self):
        rest = self.remaining_indices
        times = math.ceil(self.total_size / max(1, len(rest)))
        return (rest * times)[: self.total_size][self.rank :: self.num_replicas]

    def __iter__(self):
        return iter(self._mine())

    def __len__(self):
        return self.num_samples
