"""What Adasum is for: Sum, Average and Adasum beside each other as ranks are added.

    for n in 1 2 4 8; do horonrun -np $n python docs/examples/adasum_convergence.py; done
    python docs/examples/adasum_convergence.py --plot docs/images/adasum.png

Each rank keeps its batch size, and the learning rate is the best one of one rank; nothing is
scaled. All runs see the same number of examples, so that n ranks take 1/n of the steps, each of n
times the batch. The tasks are those of small_tasks.py. Each job adds its curves (accuracy, or bits
per character, on data never trained on) to a file, which must have none of other settings; --plot
draws them with mean and spread over the seeds, and prints two tables: the last points, and the
steps to a score that all could reach.

--simulate trains for several numbers of ranks in this one process, by the definition and with the
same data: for machines with fewer cores than ranks.
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

OPS = ("sum", "average", "adasum")
TASKS = (Digits, Language)
TARGETS = {"digits": 0.95, "language": 3.8}  # scores


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default="adasum_convergence.jsonl", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the examples of a full run")
    parser.add_argument("--points", type=int, default=10, help="of a curve (default 10)")
    parser.add_argument("--task", choices=[task.name for task in TASKS], help="only this one")
    parser.add_argument("--op", choices=OPS, help="only this one")
    parser.add_argument("--lr", type=float, help="in place of the tasks' own")
    parser.add_argument("--simulate", action="store_true", help="all ranks in one process")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N",
                        help="powers of two to simulate")
    parser.add_argument("--plot", metavar="PATH", help="draws FILE instead of training")
    options = parser.parse_args()
    if options.simulate and any(n < 1 or n & (n - 1) for n in options.ranks):
        parser.error("--simulate takes powers of two of ranks: use horonrun for others")
    if options.plot and not Path(options.results).is_file():
        parser.error(f"there is no {options.results} to draw: train first")
    return options


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


def steps_of(task, size, options) -> int:
    return max(options.points, int(task.examples * options.share) // (task.batch * size))


def curve(task, make_job, seed, options) -> list:
    """Scores at equally distant moments; the same on every rank."""
    torch.manual_seed(seed)
    job = make_job()
    generators = [batches_of(seed, rank) for rank in range(job.size)]
    steps = steps_of(task, job.size, options)
    scores = []
    for step in range(1, steps + 1):
        job.step([task.draw(generator) for generator in generators])
        if step * options.points // steps > len(scores):
            with torch.no_grad():
                scores.append(task.score(job.model))
    return scores


def record(options, task, op, size, seed, scores) -> None:
    print(f"{task.name} {op} on {size}, lr {task.lr}, seed {seed}: {scores[-1]:.3f} {task.unit}",
          flush=True)
    row = {"task": task.name, "op": op, "ranks": size, "seed": seed, "lr": task.lr,
           "share": options.share, "steps": steps_of(task, size, options), "scores": scores}
    with open(options.results, "a") as file:
        file.write(json.dumps(row) + "\n")


def tasks_of(options):
    for kind in TASKS:
        if options.task in (None, kind.name):
            task = kind()
            task.lr = options.lr or task.lr
            yield task


def train(options, task, size, make_job, writes=True) -> None:
    ops = [op for op in OPS if options.op in (None, op)]
    for op in ops if size > 1 else ("average",):
        for seed in range(options.seeds):
            scores = curve(task, lambda op=op: make_job(op), seed, options)
            if writes:
                record(options, task, op, size, seed, scores)


def simulate(options) -> None:
    for task in tasks_of(options):
        for size in options.ranks:
            train(options, task, size, lambda op, n=size, t=task: Simulation(t, op, n))


def run_job(options) -> None:
    import horon.torch as hvd

    hvd.init()
    for task in tasks_of(options):
        train(options, task, hvd.size(), lambda op, t=task: Job(t, op), hvd.rank() == 0)
    hvd.shutdown()


class Results:
    """The runs of a file: curves of mean, lowest and highest over the seeds."""

    def __init__(self, path):
        self._rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        for kind in TASKS:
            ways = {(row["lr"], row.get("share"), len(row["scores"]))
                    for row in self._rows if row["task"] == kind.name}
            if len(ways) > 1:
                raise SystemExit(f"{path} has runs of {kind.name} with different --lr, --share or "
                                 "--points: give each their own --results")
        self.sizes = sorted({row["ranks"] for row in self._rows})
        known = {row["task"] for row in self._rows}
        self.tasks = [task for task in TASKS if task.name in known]

    def _of(self, task, op, size):
        op = op if size > 1 else "average"  # alone, all are the same
        return [row for row in self._rows
                if (row["task"], row["op"], row["ranks"]) == (task.name, op, size)]

    def curves(self, task, op, size) -> list:
        worst = 0.0 if task.better == "higher" else 8.0
        curves = [[score if math.isfinite(score) else worst for score in row["scores"]]
                  for row in self._of(task, op, size)]
        if not curves:
            raise SystemExit(f"there is no run of {task.name} with {op} on {size} ranks yet")
        return [[f(point) for point in zip(*curves)] for f in (statistics.mean, min, max)]

    def steps(self, task, size) -> int:
        return self._of(task, OPS[0], size)[0]["steps"]

    def steps_to(self, task, op, size, target) -> list:
        """Of each seed; None where it was never reached."""
        return [steps_to(target, row["scores"], row["steps"], task.better)
                for row in self._of(task, op, size)]


def steps_to(target, scores, steps, better):
    """Of a curve, with straight lines between its points."""
    distance = [score - target if better == "higher" else target - score for score in scores]
    first = next((i for i, beyond in enumerate(distance) if beyond >= 0), None)
    if first is None:
        return None
    back = distance[first] / (distance[first] - distance[first - 1]) if first > 0 else 0
    return (first + 1 - back) * steps / len(scores)


def print_table(results) -> None:
    print("| task | ranks | batch in all | steps | " + " | ".join(OPS) + " |\n" + "|---" * 7 + "|")
    for task in results.tasks:
        for size in results.sizes:
            ends = [[f[-1] for f in results.curves(task, op, size)] for op in OPS]
            cells = ["{:.3f} ({:.3f}-{:.3f})".format(*end) for end in ends]
            if size == 1:
                cells[1:] = ["the same"] * 2
            row = [task.name, size, task.batch * size, results.steps(task, size), *cells]
            print("| " + " | ".join(map(str, row)) + " |")


def print_steps_to_target(results) -> None:
    print("| task | score | ranks | " + " | ".join(OPS) + " |\n" + "|---" * 6 + "|")
    for task in results.tasks:
        target = TARGETS[task.name]
        for size in results.sizes:
            cells = [cell_of(results.steps_to(task, op, size, target)) for op in OPS]
            if size == 1:
                cells[1:] = ["the same"] * 2
            print("| " + " | ".join(map(str, [task.name, target, size, *cells])) + " |")


def cell_of(steps) -> str:
    reached = [step for step in steps if step is not None]
    if len(reached) < len(steps):
        return f"reached by {len(reached)} of {len(steps)}"
    return f"{statistics.mean(reached):.0f} ({min(reached):.0f}-{max(reached):.0f})"


def draw_band(axis, places, curves, label) -> None:
    style = {"color": "0.5", "linestyle": "--"} if label == "one rank" else {}
    mean, low, high = curves
    line = axis.plot(places, mean, label=label, **style)[0]
    axis.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def draw_ends(axis, task, results) -> None:
    """The last scores by the batch of all ranks."""
    batches = [task.batch * size for size in results.sizes]
    for op in OPS:
        ends = [[f[-1] for f in results.curves(task, op, size)] for size in results.sizes]
        draw_band(axis, batches, list(zip(*ends)), op)
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.minorticks_off()
    axis.set_xlabel("batch of all ranks")
    axis.set_title(f"{task.name}, at the end")


def draw_course(axis, task, results, size) -> None:
    """Scores by the share of the examples that was seen, beside those of one rank."""
    for op, n in [*((op, size) for op in OPS), ("average", 1)]:
        curves = results.curves(task, op, n)
        points = len(curves[0])
        percent = [100 * (i + 1) / points for i in range(points)]
        draw_band(axis, percent, curves, "one rank" if n == 1 else op)
    axis.set_xlabel("% of the examples seen")
    axis.set_title(f"{task.name}, {size} ranks")


def draw_steps(axis, task, results) -> None:
    """Steps to the score of TARGETS by the number of ranks, where all seeds reached it; dotted: as
    many times fewer as there are ranks."""
    target = TARGETS[task.name]
    for op in OPS:
        found = {size: results.steps_to(task, op, size, target) for size in results.sizes}
        reached = {size: steps for size, steps in found.items() if None not in steps}
        bands = [[f(steps) for steps in reached.values()] for f in (statistics.mean, min, max)]
        draw_band(axis, list(reached), bands, op)
        if 1 in reached:
            alone = statistics.mean(reached[1])
            axis.plot(list(reached), [alone / size for size in reached], color="0.7", linestyle=":")
    axis.set_xscale("log", base=2)
    if any(axis_line.get_ydata().size for axis_line in axis.get_lines()):
        axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:.0f}")
    axis.set_xticks(results.sizes, list(map(str, results.sizes)))
    axis.minorticks_off()
    axis.set_xlabel("ranks")
    axis.set_ylabel("steps")
    axis.set_title(f"{task.name}, steps to {target}")


def draw(options) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = Results(options.results)
    print_table(results)
    print()
    print_steps_to_target(results)
    several = [size for size in results.sizes if size > 1]
    if not several:
        raise SystemExit(f"{options.results} has no run of several ranks to draw")
    sizes = sorted({several[0], several[len(several) // 2], several[-1]})
    columns = 2 + len(sizes)
    lines = len(results.tasks)
    figure, axes = plt.subplots(lines, columns, squeeze=False, layout="constrained",
                                figsize=(3.4 * columns, 0.6 + 2.7 * lines))
    for row, task in zip(axes, results.tasks):
        draw_ends(row[0], task, results)
        for axis, size in zip(row[1:], sizes):
            draw_course(axis, task, results, size)
        draw_steps(row[-1], task, results)
        for axis in row[:-1]:
            axis.set_ylim((0, 1) if task.better == "higher" else (2, 7))
            axis.set_ylabel(task.unit)
    bands, names = axes[0][-2].get_legend_handles_labels()
    figure.legend(bands, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(options.plot, dpi=90)


if __name__ == "__main__":
    arguments = parse_arguments()
    torch.set_num_threads(1)
    chosen = draw if arguments.plot else simulate if arguments.simulate else run_job
    chosen(arguments)
