"""Topology.plot(): a graph's links on a circle, and its matrix beside them. Needs matplotlib."""

import math


def _places(n):
    angles = [math.pi / 2 - 2 * math.pi * i / n for i in range(n)]
    return [(math.cos(a), math.sin(a)) for a in angles]


def _draw_links(axes, topology, t):
    places = _places(topology.n)
    edges = {(s, r): w for s, r, w in topology.edges(t) if s != r}
    for (sender, to), weight in edges.items():
        both = (to, sender) in edges
        if both and sender > to:
            continue
        axes.annotate("", places[to], places[sender], zorder=1, arrowprops={
            "arrowstyle": "-" if both else "-|>", "lw": 0.6 + 2 * weight, "color": "tab:blue",
            "shrinkA": 8, "shrinkB": 8})
    axes.scatter(*zip(*places), s=190, color="white", edgecolors="black", zorder=2)
    for i, (x, y) in enumerate(places):
        axes.text(x, y, str(i), ha="center", va="center", fontsize=8, zorder=3)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", title=f"round {t}")
    axes.axis("off")


def _draw_matrix(axes, topology, t):
    image = axes.imshow(topology.matrix(t), cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="from", ylabel="to")
    return image


def plot(topology, rounds):
    from matplotlib.figure import Figure

    rounds = list(rounds)
    figure = Figure(figsize=(3 * len(rounds) + 1, 6.2), layout="constrained")
    axes = figure.subplots(2, len(rounds), squeeze=False)
    for column, t in enumerate(rounds):
        _draw_links(axes[0][column], topology, t)
        image = _draw_matrix(axes[1][column], topology, t)
    figure.colorbar(image, ax=list(axes[1]), label="weight")
    title = topology.links if len(topology.links) < 60 else topology.links[:57] + "..."
    repeats = f"period {topology.period}" if topology.period else "never repeats"
    figure.suptitle(f"{title}, n = {topology.n}, {repeats}")
    return figure
