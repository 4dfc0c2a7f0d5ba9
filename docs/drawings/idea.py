"""Draw docs/explanation/idea.png: one step of MO-PBT, with the ranking of the library.

Run it with ``python docs/drawings/idea.py``.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from mopbt.ranking import non_dominated_sort, scattered_order

INK, FAINT = "#333333", "#9a9a9a"
# The colors of the fronts, best first (Okabe and Ito).
COLORS = ["#0072b2", "#56b4e9", "#e69f00", "#d55e00"]
POPULATION, QUARTER = 12, 3


def population():
    """Return twelve members (12, 2) in three or four fronts of two maximized objectives."""
    angles = [np.linspace(0.12, 1.45, n) for n in (5, 4, 3)]
    points = [
        r * np.c_[np.cos(a), np.sin(a)] for r, a in zip((1.0, 0.74, 0.5), angles, strict=True)
    ]
    return np.concatenate(points) * np.array([1.0, 0.92])


def rank(points):
    """Return the order of the members, best first, and the front of each member."""
    order, front_of = [], np.zeros(len(points), int)
    for number, front in enumerate(non_dominated_sort(points)):
        rows = np.asarray(front)
        front_of[rows] = number
        order += [int(i) for i in rows[scattered_order(points[rows])]]
    return order, front_of


def axes(ax, title):
    """Format plain axes of two objectives."""
    ax.set(xlim=(0, 1.2), ylim=(-0.12, 1.12), xticks=[], yticks=[])
    ax.set_xlabel("objective 1 →", color=INK)
    ax.set_ylabel("objective 2 →", color=INK)
    ax.set_title(title, fontsize=12, color=INK, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)


def note(ax, text):
    """Write a caption below the members."""
    ax.text(0.02, -0.09, text, fontsize=10, color=INK)


def members(ax, points, colors, labels=None, **style):
    """Draw members as circles with a label inside."""
    ax.scatter(*points.T, s=430, c=colors, edgecolors="white", linewidths=1.5, zorder=3, **style)
    for point, label in zip(points, labels or [], strict=False):
        ax.text(
            *point,
            label,
            ha="center",
            va="center",
            color="white",
            fontsize=11,
            weight="bold",
            zorder=4,
        )


def main():
    """Draw three panels: rank, exploit, explore."""
    points = population()
    order, front_of = rank(points)
    place = {member: i + 1 for i, member in enumerate(order)}
    colors = [COLORS[f] for f in front_of]
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 4.6), layout="constrained")

    axes(panels[0], "1  rank")
    for number in range(front_of.max() + 1):
        front = points[front_of == number]
        front = front[np.argsort(front[:, 0])]
        panels[0].plot(*front.T, color=COLORS[number], linewidth=1.4, alpha=0.6, zorder=1)
        panels[0].annotate(
            f"front {number + 1}", front[0] + (-0.02, 0.07), color=COLORS[number], fontsize=10
        )
    note(panels[0], "fronts by domination; in each, scattered first")
    members(panels[0], points, colors, [str(place[i]) for i in range(POPULATION)])

    best, worst = order[:QUARTER], order[-QUARTER:]
    axes(panels[1], "2  exploit")
    rest = [i for i in range(POPULATION) if i not in (*best, *worst)]
    members(panels[1], points[rest], "#d9d9d9")
    members(panels[1], points[best], [colors[i] for i in best], [str(place[i]) for i in best])
    members(panels[1], points[worst], [colors[i] for i in worst], [str(place[i]) for i in worst])
    for i, j in zip(best, worst, strict=True):
        style = {
            "arrowstyle": "-|>",
            "color": INK,
            "shrinkA": 11,
            "shrinkB": 11,
            "connectionstyle": "arc3,rad=0.12",
        }
        panels[1].annotate("", points[j], points[i], arrowprops=style, zorder=2)
    note(panels[1], "the worst quarter becomes copies of the best")

    axes(panels[2], "3  explore, and train on")
    rng = np.random.default_rng(3)
    moved = points.copy()
    moved[worst] = points[best]
    grown = moved * 1.1 + rng.normal(scale=0.02, size=moved.shape)
    grown[worst] += [(0.0, 0.09), (0.06, -0.1), (-0.1, 0.05)]
    for i in range(POPULATION):
        style = {"arrowstyle": "-|>", "color": FAINT, "shrinkA": 0, "shrinkB": 8, "linewidth": 1.0}
        panels[2].annotate("", grown[i], moved[i], arrowprops=style, zorder=5)
        panels[2].plot(*moved[i], ".", color=FAINT, markersize=4, zorder=1)
    kept = [i for i in range(POPULATION) if i not in worst]
    members(panels[2], grown[kept], [colors[i] for i in kept])
    members(panels[2], grown[worst], [colors[i] for i in best], ["±"] * QUARTER)
    note(panels[2], "±: copies, hyperparameters perturbed")
    figure.savefig(Path(__file__).parents[1] / "explanation" / "idea.png", dpi=130)


if __name__ == "__main__":
    main()
