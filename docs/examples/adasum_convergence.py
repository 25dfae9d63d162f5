"""What Adasum is for: Sum, Average and Adasum beside each other as ranks are added.

    for n in 1 2 4 8; do horonrun -np $n python docs/examples/adasum_convergence.py; done
    python docs/examples/adasum_convergence.py --plot docs/images/adasum.png

Each rank keeps its batch size, and the learning rate is the best one of one rank; nothing is
scaled. All runs see the same number of examples, so that n ranks take 1/n of the steps. The tasks
are those of small_tasks.py. Each job adds its curves (accuracy, or bits per character, on data
never trained on) to a file; --plot draws them with mean and spread over the seeds, and prints the
last points as a table.

--simulate trains for 1, 2, 4 and 8 ranks in this one process, by the definition and with the same
data: for machines with fewer cores than ranks.
"""

import argparse
import copy
import json
import math
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F

from small_tasks import Digits, Language, Learner, batches_of

POINTS = 10  # of a curve
OPS = ("sum", "average", "adasum")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default="adasum_convergence.jsonl", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the examples of a full run")
    parser.add_argument("--simulate", action="store_true", help="all ranks in one process")
    parser.add_argument("--plot", metavar="PATH", help="draws FILE instead of training")
    return parser.parse_args()


class Job(Learner):
    """This process as one rank of a job."""

    def __init__(self, task, op):
        import horon.torch as hvd

        super().__init__(task, op, lr=task.lr, momentum=0.9)
        self.size, self._rank = hvd.size(), hvd.rank()

    def step(self, draws):
        self.learn(*draws[self._rank])


class Simulation:
    """All ranks of a job, in turn. With Sum and Average they are one: only gradients differ."""

    def __init__(self, task, op, size):
        self.model, self.size, self._op = task.model(), size, op
        count = size if op == "adasum" else 1
        self._models = [self.model] + [copy.deepcopy(self.model) for _ in range(count - 1)]
        self._optimizers = [torch.optim.SGD(m.parameters(), lr=task.lr, momentum=0.9)
                            for m in self._models]

    def step(self, draws):
        starts = [parameter.detach().clone() for parameter in self.model.parameters()]
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        for rank, (inputs, labels) in enumerate(draws):
            model = self._models[rank % len(self._models)]
            loss = F.cross_entropy(model(inputs), labels)
            (loss / self.size if self._op == "average" else loss).backward()
        for optimizer in self._optimizers:
            optimizer.step()
        if self._op == "adasum":
            self._combine(starts)

    @torch.no_grad()
    def _combine(self, starts):
        for start, *ends in zip(starts, *(model.parameters() for model in self._models)):
            deltas = [end - start for end in ends]
            while len(deltas) > 1:  # neighbours, then neighbours of neighbours
                deltas = [pair(a, b) for a, b in zip(deltas[::2], deltas[1::2])]
            for end in ends:
                end.copy_(start + deltas[0])


def pair(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa > 0 else 1) * a + (1 - dot / (2 * bb) if bb > 0 else 1) * b


def curve(task, make_job, seed, share) -> list:
    """Scores at POINTS equally distant moments; the same on every rank."""
    torch.manual_seed(seed)
    job = make_job()
    generators = [batches_of(seed, rank) for rank in range(job.size)]
    steps = max(POINTS, int(task.examples * share) // (task.batch * job.size))
    scores = []
    for step in range(1, steps + 1):
        job.step([task.draw(generator) for generator in generators])
        if step * POINTS // steps > len(scores):
            with torch.no_grad():
                scores.append(task.score(job.model))
    return scores


def record(options, task, op, size, seed, scores) -> None:
    print(f"{task.name} {op} on {size}, seed {seed}: {scores[-1]:.3f} {task.unit}", flush=True)
    row = {"task": task.name, "op": op, "ranks": size, "seed": seed, "scores": scores}
    with open(options.results, "a") as file:
        file.write(json.dumps(row) + "\n")


def train(options, task, size, make_job, writes=True) -> None:
    for op in OPS if size > 1 else ("average",):
        for seed in range(options.seeds):
            scores = curve(task, lambda op=op: make_job(op), seed, options.share)
            if writes:
                record(options, task, op, size, seed, scores)


def simulate(options) -> None:
    for task in (Digits(), Language()):
        for size in (1, 2, 4, 8):
            train(options, task, size, lambda op, n=size, t=task: Simulation(t, op, n))


def run_job(options) -> None:
    import horon.torch as hvd

    hvd.init()
    for task in (Digits(), Language()):
        train(options, task, hvd.size(), lambda op, t=task: Job(t, op), hvd.rank() == 0)
    hvd.shutdown()


def finite(value, worst):
    return value if math.isfinite(value) else worst


def draw(options) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [json.loads(line) for line in Path(options.results).read_text().splitlines()]
    ranks = sorted({row["ranks"] for row in rows} - {1})
    figure, axes = plt.subplots(2, len(ranks), figsize=(3.6 * len(ranks), 6), squeeze=False)
    print("| task | ranks | " + " | ".join(OPS) + " | one rank |\n" + "|---" * 6 + "|")
    for line, task in enumerate((Digits, Language)):
        worst = 0.0 if task.better == "higher" else 8.0
        for column, size in enumerate(ranks):
            cells, axis = [], axes[line][column]
            for op, n in [(op, size) for op in OPS] + [("average", 1)]:
                curves = [[finite(score, worst) for score in row["scores"]] for row in rows
                          if (row["task"], row["op"], row["ranks"]) == (task.name, op, n)]
                mean = [statistics.mean(point) for point in zip(*curves)]
                low, high = ([f(point) for point in zip(*curves)] for f in (min, max))
                label = "one rank" if n == 1 else op
                style = {"color": "0.6", "linestyle": "--"} if n == 1 else {}
                examples = [task.examples * (i + 1) / POINTS for i in range(len(mean))]
                drawn = axis.plot(examples, mean, label=label, **style)[0]
                axis.fill_between(examples, low, high, color=drawn.get_color(), alpha=0.2)
                cells.append(f"{mean[-1]:.3f} ({low[-1]:.3f}-{high[-1]:.3f})")
            print(f"| {task.name} | {size} | " + " | ".join(cells) + " |")
            axis.set_title(f"{task.name}, {size} ranks")
            axis.set_ylim((0, 1) if task.better == "higher" else (2, 7))
            axis.set_xlabel("examples seen")
            axis.set_ylabel(task.unit)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(options.plot, dpi=90)


if __name__ == "__main__":
    arguments = parse_arguments()
    torch.set_num_threads(1)
    chosen = draw if arguments.plot else simulate if arguments.simulate else run_job
    chosen(arguments)
