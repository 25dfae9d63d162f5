"""Two small tasks for experiments with algorithms, and a rank that learns one of them.

Digits: scikit-learn's handwritten digits. Language: the next character of the documentation that
ships with Python. `score` is for people, `loss` the cross entropy, both on what is never trained
on. Imported by adasum_convergence.py and gossip_convergence.py, one thread a process.
"""

import math

import torch
import torch.nn.functional as F

CONTEXT = 16  # characters that the language model sees


class Digits:
    name, unit, better = "digits", "accuracy", "higher"
    batch, examples, lr = 32, 14_000, 0.2

    def __init__(self):
        from sklearn.datasets import load_digits

        data = load_digits()
        images = torch.tensor(data.data, dtype=torch.float32) / 16
        labels = torch.tensor(data.target)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        self.test = images[order[:360]], labels[order[:360]]
        self.train = images[order[360:]], labels[order[360:]]

    def model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def draw(self, generator):
        chosen = torch.randint(len(self.train[1]), (self.batch,), generator=generator)
        return self.train[0][chosen], self.train[1][chosen]

    def score(self, model):
        inputs, labels = self.test
        return (model(inputs).argmax(1) == labels).float().mean().item()

    def loss(self, model):
        return F.cross_entropy(model(self.test[0]), self.test[1]).item()


class Language:
    name, unit, better = "language", "bits per character", "lower"
    batch, examples, lr = 32, 16_000, 0.03

    def __init__(self):
        from pydoc_data.topics import topics

        text = "\n".join(topics[key] for key in sorted(topics))
        letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(letters)}
        self.text = torch.tensor([number[letter] for letter in text])
        self.letters = len(letters)
        self.border = len(text) * 9 // 10  # what lies behind is for the test
        places = torch.Generator().manual_seed(0)
        last = len(text) - CONTEXT - 1
        self.test = self._windows(torch.randint(self.border, last, (2000,), generator=places))

    def _windows(self, starts):
        windows = self.text[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, -1]

    def model(self):
        return torch.nn.Sequential(
            torch.nn.Embedding(self.letters, 16), torch.nn.Flatten(),
            torch.nn.Linear(16 * CONTEXT, 128), torch.nn.Tanh(), torch.nn.Linear(128, self.letters),
        )

    def draw(self, generator):
        last = self.border - CONTEXT - 1
        return self._windows(torch.randint(last, (self.batch,), generator=generator))

    def score(self, model):
        return self.loss(model) / math.log(2)

    def loss(self, model):
        return F.cross_entropy(model(self.test[0]), self.test[1]).item()


def batches_of(seed: int, rank: int) -> torch.Generator:
    """What a rank draws its batches with: the same ones whatever the algorithm is."""
    return torch.Generator().manual_seed(1000 * seed + rank)


class Learner:
    """This process as one rank of a job; `rates` are torch.optim.SGD's."""

    def __init__(self, task, op, **rates):
        import horon.torch as hvd

        self.model = task.model()
        optimizer = torch.optim.SGD(self.model.parameters(), **rates)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters(), op=op)

    def learn(self, inputs, labels):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()
