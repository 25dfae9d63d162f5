"""What Adasum makes of two gradients that are parallel, at a right angle, and between.

    python docs/examples/adasum_cases.py --plot docs/images/adasum_cases.png

Draws a pair's sum, average and Adasum in the plane for the three cases, and how long each of them
is at every angle between the two. a and b have length 1.
"""

import argparse
import math

import matplotlib
import torch

from adasum_convergence import pair

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: only now, for machines without a display

CASES = {"parallel": 0, "orthogonal": 90, "between": 60}  # degrees from a to b
WAYS = {"sum": lambda a, b: a + b, "average": lambda a, b: (a + b) / 2, "adasum": pair}
COLORS = {"a": "0.25", "b": "0.6", "sum": "tab:blue", "average": "tab:orange",
          "adasum": "tab:green"}


def vectors(degrees) -> dict:
    turn = math.radians(degrees)
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([math.cos(turn), math.sin(turn)])
    return {"a": a, "b": b, **{way: combine(a, b) for way, combine in WAYS.items()}}


def draw_case(axis, name, degrees) -> None:
    """Arrows from the origin; those of one direction lie beside each other."""
    drawn = {}  # direction: how many
    for label, end in vectors(degrees).items():
        length = end.norm().item()
        along = end / length
        direction = tuple(round(part.item(), 3) for part in along)
        aside = -0.1 * drawn.get(direction, 0) * torch.tensor([-along[1], along[0]])
        drawn[direction] = drawn.get(direction, 0) + 1
        axis.annotate("", xy=(end + aside).tolist(), xytext=aside.tolist(), arrowprops={
            "arrowstyle": "-|>", "mutation_scale": 14, "color": COLORS[label], "linewidth": 2,
            "shrinkA": 0, "shrinkB": 0})
    axis.set_title(f"{name} ({degrees}°)")
    axis.set_xlim(-0.3, 2.2)
    axis.set_ylim(-0.6, 1.2)
    axis.set_aspect("equal")
    axis.grid(color="0.92")
    axis.set_axisbelow(True)


def draw_lengths(axis) -> None:
    angles = range(0, 181)
    for way in WAYS:
        axis.plot(angles, [vectors(angle)[way].norm().item() for angle in angles],
                  color=COLORS[way], linewidth=2)
    axis.set_title("length of the result")
    axis.set_xlabel("degrees from a to b")
    axis.set_xticks(range(0, 181, 45))
    axis.set_ylim(0, 2.1)
    axis.set_box_aspect(0.72)  # as the others
    axis.grid(color="0.92")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", required=True, metavar="PATH")
    figure, axes = plt.subplots(1, 4, figsize=(13, 3), layout="constrained")
    for axis, (name, degrees) in zip(axes, CASES.items()):
        draw_case(axis, name, degrees)
    draw_lengths(axes[3])
    lines = [plt.Line2D([], [], color=color, linewidth=2) for color in COLORS.values()]
    figure.legend(lines, COLORS, loc="outside lower center", ncols=len(COLORS), frameon=False)
    figure.savefig(parser.parse_args().plot, dpi=90)


if __name__ == "__main__":
    main()
