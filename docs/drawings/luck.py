"""Draw docs/explanation/luck.png: what a front says, and what its models are worth.

Run it with ``python docs/drawings/luck.py``.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from mopbt.metrics import non_dominated
from mopbt.uncertainty import pessimistic_front

INK, FAINT, FRONT, TRUE = "#333333", "#b9c2cc", "#c8401f", "#0072b2"
MODELS = 400


def population():
    """Return true values, measured values and standard errors (400, 2) of simulated models."""
    rng = np.random.default_rng(4)
    angles = rng.uniform(0.15, np.pi / 2 - 0.15, MODELS)
    radii = 1 - np.abs(rng.normal(0, 0.08, MODELS))
    true = radii[:, None] * np.c_[np.cos(angles), np.sin(angles)]
    # A few models are measured on few rows.
    stderr = np.where(rng.random(MODELS) < 0.25, 0.1, 0.02)[:, None] * np.ones(2)
    return true, true + stderr * rng.standard_normal((MODELS, 2)), stderr


def draw_panel(ax, title, rows, true, measured):
    """Draw the models of a front, each with a line to what it is worth."""
    ax.plot(*measured.T, "o", ms=2.5, color=FAINT, mew=0)
    for claimed, worth in zip(measured[rows], true[rows], strict=True):
        ax.plot(*np.c_[claimed, worth], color=INK, lw=0.8, alpha=0.6)
    ax.plot(*true[rows].T, "o", ms=5, color=TRUE, mew=0, label="what the model is worth")
    ax.plot(*measured[rows].T, "o", ms=6, color=FRONT, mec="white", label="what the front says")
    ax.set_title(title, fontsize=10.5, loc="left", color=INK)
    ax.set_xlabel("one objective (better →)", fontsize=9, color=INK)
    ax.set(xlim=(0, 1.25), ylim=(0, 1.25), xticks=[], yticks=[])
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)


def main(file):
    """Draw both fronts of the same evaluations."""
    true, measured, stderr = population()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 4.1), layout="constrained")
    draw_panel(left, "observed front: the luckiest", non_dominated(measured), true, measured)
    rows = pessimistic_front(measured, stderr)
    draw_panel(right, "pessimistic front: the surest", rows, true, measured)
    left.set_ylabel("another objective (better →)", fontsize=9, color=INK)
    left.legend(frameon=False, fontsize=9, loc="lower left", labelcolor=INK)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main(Path(__file__).parents[1] / "explanation" / "luck.png")
