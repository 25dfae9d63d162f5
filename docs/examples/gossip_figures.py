"""Figures and the table of gossip_convergence.py's logs.

    python docs/examples/gossip_figures.py gossip.csv --figure docs/images/gossip_loss.png

Left: the loss on data never trained on, over steps; lines are means over seeds, shades what lies
between seeds. Right: the best loss of a run over that of allreduce with the same seed.
"""

import argparse
import csv
import statistics
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import ScalarFormatter  # noqa: E402

BASE = "allreduce"
BOUND = 1.10  # of the ratio: what is asked of gossip
COLORS = matplotlib.colormaps["tab20"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", metavar="CSV")
    parser.add_argument("--figure", default="gossip.png", metavar="PNG")
    return parser.parse_args()


def read(paths) -> dict:
    """{task: {algorithm: {seed: {step: {field: number}}}}}; a later file wins."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                numbers = {key: float(row[key]) for key in row if key not in ("task", "algorithm")}
                runs = found[row["task"]][row["algorithm"]]
                runs[int(numbers["seed"])][int(numbers["step"])] = numbers
    return found


def best(run, field) -> float:
    return min(point[field] for point in run.values())


def ratios(runs, base, field="loss") -> list:
    """Best loss over the base's, for each seed that both have."""
    return [best(runs[seed], field) / best(base[seed], "loss") for seed in runs if seed in base]


def spread(values, digits) -> str:
    low, high = min(values), max(values)
    return f"{statistics.mean(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def print_table(found) -> None:
    columns = ("task", "algorithm", "best loss", f"over {BASE}'s", "of the mean model",
               "ranks' distance at the end")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for task, algorithms in found.items():
        for name, runs in algorithms.items():
            ends = [run[max(run)]["distance"] for run in runs.values()]
            cells = [task, name, spread([best(run, "loss") for run in runs.values()], 3),
                     spread(ratios(runs, algorithms[BASE]), 2),
                     spread(ratios(runs, algorithms[BASE], "mean_model"), 2),
                     f"{statistics.mean(ends):.3f}"]
            print("| " + " | ".join(cells) + " |")


def draw_curves(axis, task, algorithms) -> None:
    for number, (name, runs) in enumerate(algorithms.items()):
        steps = sorted(set.intersection(*(set(run) for run in runs.values())))
        points = [[run[step]["loss"] for run in runs.values()] for step in steps]
        style = {"color": "black"} if name == BASE else {"color": COLORS(number)}
        axis.plot(steps, [statistics.mean(point) for point in points], label=name, **style)
        axis.fill_between(steps, list(map(min, points)), list(map(max, points)), alpha=0.15,
                          **style)
    axis.set(title=task, xlabel="step", ylabel="loss on data never trained on", yscale="log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks(ScalarFormatter())
    axis.legend(fontsize=7)


def draw_ratios(axis, task, algorithms) -> None:
    names = [name for name in algorithms if name != BASE]
    lowest, highest = 0.9, BOUND
    for number, name in enumerate(names):
        values = ratios(algorithms[name], algorithms[BASE])
        lowest, highest = min(lowest, *values), max(highest, *values)
        color = COLORS(list(algorithms).index(name))
        axis.barh(number, statistics.mean(values), color=color, alpha=0.5)
        axis.plot(values, [number] * len(values), "o", color=color, markersize=4)
    axis.axvline(1, color="black", linewidth=1)
    axis.axvline(BOUND, color="red", linewidth=1, linestyle="--", label=f"{BOUND:.2f}")
    axis.set_yticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names], fontsize=7)
    axis.invert_yaxis()
    axis.set(title=task, xlabel=f"best loss over {BASE}'s, by seed")
    axis.set_xlim(lowest - 0.02, highest + 0.02)
    axis.legend(fontsize=7)


def draw(found, path) -> None:
    figure, axes = plt.subplots(len(found), 2, figsize=(10, 4.4 * len(found)), squeeze=False,
                                layout="constrained")
    for (left, right), (task, algorithms) in zip(axes, found.items()):
        draw_curves(left, task, algorithms)
        draw_ratios(right, task, algorithms)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    options = parse_arguments()
    found = read(options.logs)
    print_table(found)
    draw(found, options.figure)


if __name__ == "__main__":
    main()
