"""Choose the presets of the tabular tasks in the scale `small` by reasons, not by outcomes.

Random search trains each task for 3,200 updates with each learning rate, with a seed that is used
for nothing else. Three rules give the presets. They are the same for all five tasks, and no other
algorithm was run for them:

- The training is the shortest of 800, 1,600 and 3,200 updates with which random search reaches 95 %
  of the hypervolume that the longest training reaches with the best learning rate of a task,
  averaged over tasks.
- The learning rate is one of those within 1 % of the best one at that length: the one with which
  networks leave the trivial classifier first.
- The grace period of MO-ASHA on a task is the first interval after which half of the networks that
  are better than predicting one class for all rows at the end already are.

``python experiments/research/presets.py`` executes the trainings that are missing, writes a line
for each to ``results/presets.jsonl``, and prints what the rules give.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stacks import InProcessStacks

import mopbt
from mopbt.metrics import hypervolume
from mopbt.objectives import signed
from mopbt.tasks.paper import TASKS

FILE = Path(__file__).parents[2] / "results" / "presets.jsonl"
SEED = 9999
MEMBERS = 16
RATES = (1e-3, 3e-3, 1e-2)
LENGTHS = (800, 1600, 3200)
# Intervals of the longest training.
INTERVALS = 100
STEPS = 50
REACHED = 0.95
EQUAL = 0.01
NAMES = [name for name, paper in TASKS.items() if paper.size == "tabular"]


def is_trivial(labels: torch.Tensor, scores: dict[str, float]) -> bool:
    """Return whether a classifier is no better than predicting one class for all rows."""
    if "recall" in scores:
        return scores["recall"] == 0 or scores["precision"] <= float(labels.float().mean())
    return scores["accuracy"] <= float(torch.bincount(labels).max() / len(labels)) + 1e-9


def measure(name: str, rate: float) -> dict[str, Any]:
    """Train a random search, and return its hypervolume and its trivial networks over time."""
    paper = TASKS[name]
    scale = replace(
        paper.scales["small"],
        rows=2048,
        validation=0,
        batch=64,
        updates=LENGTHS[-1] // INTERVALS,
        steps=INTERVALS,
        lr=rate,
        population=MEMBERS,
    )
    task = replace(paper.build(paper, scale), test=None)
    results = mopbt.run(
        task,
        algorithm=mopbt.RandomSearch(population=MEMBERS),
        seed=SEED,
        engine=InProcessStacks(),
        out=None,
        progress=False,
    )
    objectives = results.problem.objectives
    curve = []
    trivial = []
    values: list[tuple[float, ...]] = []
    points = sorted(results.points(), key=lambda point: point.step)
    for step in range(1, INTERVALS + 1):
        own = [point for point in points if point.step == step]
        values += [signed(objectives, point.scores) for point in own]
        curve.append(round(hypervolume(np.array(values), results.problem.reference), 6))
        trivial.append(sum(is_trivial(task.validation[1], point.scores) for point in own))
    return {"task": name, "lr": rate, "hypervolume": curve, "trivial": trivial}


def collect() -> dict[tuple[str, float], dict[str, Any]]:
    """Read the finished trainings, and execute those that are missing."""
    FILE.parent.mkdir(exist_ok=True)
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    done = {(r["task"], r["lr"]): r for r in map(json.loads, lines)}
    for name, rate in product(NAMES, RATES):
        if (name, rate) not in done:
            done[name, rate] = measure(name, rate)
            with FILE.open("a") as file:
                file.write(json.dumps(done[name, rate]) + "\n")
            print(name, rate, done[name, rate]["hypervolume"][::20], flush=True)
    return done


def reached(done: dict[tuple[str, float], dict[str, Any]], updates: int, rate: float) -> float:
    """Return the share of the best hypervolume that a training reaches, averaged over tasks."""
    end = updates * INTERVALS // LENGTHS[-1]
    shares = []
    for name in NAMES:
        best = max(done[name, other]["hypervolume"][-1] for other in RATES)
        shares.append(done[name, rate]["hypervolume"][end - 1] / best)
    return float(np.mean(shares))


def grace_of(record: dict[str, Any], updates: int) -> int:
    """Return the first interval after which half of the useful networks are useful."""
    useful = MEMBERS - np.array(record["trivial"][: updates * INTERVALS // LENGTHS[-1]])
    first = int(np.argmax(2 * useful >= useful[-1])) + 1
    return -(-first * LENGTHS[-1] * STEPS // (INTERVALS * updates))


def main() -> None:
    """Print the presets that the rules give."""
    done = collect()
    table = {u: {rate: reached(done, u, rate) for rate in RATES} for u in LENGTHS}
    for updates, shares in table.items():
        print(updates, "updates:", {rate: round(share, 4) for rate, share in shares.items()})
    length = next(u for u in LENGTHS if max(table[u].values()) >= REACHED)
    best = max(table[length].values())
    equal = [rate for rate in RATES if table[length][rate] >= best - EQUAL]
    graces = {rate: [grace_of(done[name, rate], length) for name in NAMES] for rate in equal}
    rate = min(equal, key=lambda rate: sum(graces[rate]))
    print(f"{length} updates, learning rate {rate}")
    for name, grace in zip(NAMES, graces[rate], strict=True):
        print(f"grace on {name}: {grace}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
