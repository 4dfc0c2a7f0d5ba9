"""Choose the presets of the tabular tasks in the scale `small` by reasons, not by outcomes.

Random search trains each task for 3,200 updates with each learning rate, with a seed that is used
for nothing else. Three rules give the presets:

- The learning rate of a kind of task is the one with the largest hypervolume on validation rows,
  relative to the best of each task, averaged over its tasks.
- The training is the shortest of 800, 1,600 and 3,200 updates that has converged on most tasks of a
  kind: four fifths of it reach 99 % of its hypervolume.
- The grace period of MO-ASHA is the first interval after which at least half of the networks of
  every task are better than predicting one class for all rows.

``python experiments/research/presets.py`` executes the trainings that are missing, writes a line
for each to ``results/presets.jsonl``, and prints what the rules give.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stacks import InProcessStacks

import mopbt
from mopbt.metrics import hypervolume
from mopbt.objectives import signed
from mopbt.tasks.paper import SCALES, TASKS

FILE = Path(__file__).parents[2] / "results" / "presets.jsonl"
SEED = 9999
MEMBERS = 16
RATES = (1e-3, 3e-3, 1e-2)
LENGTHS = (800, 1600, 3200)
# Intervals of the longest training; the scale has 50 intervals whatever its length.
INTERVALS = 100
KINDS = ("tabular", "tabular, fair")


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
    for name, paper in TASKS.items():
        for rate in RATES:
            if paper.size in KINDS and (name, rate) not in done:
                done[name, rate] = measure(name, rate)
                with FILE.open("a") as file:
                    file.write(json.dumps(done[name, rate]) + "\n")
                print(name, rate, done[name, rate]["hypervolume"][::20], flush=True)
    return done


def has_converged(curve: list[float], updates: int) -> bool:
    """Return whether four fifths of a training reach 99 % of its hypervolume."""
    end = updates * INTERVALS // LENGTHS[-1]
    return curve[end * 4 // 5 - 1] >= 0.99 * curve[end - 1]


def main() -> None:
    """Print the presets that the rules give."""
    done = collect()
    assert set(KINDS) <= set(SCALES)
    for kind in KINDS:
        names = [name for name, paper in TASKS.items() if paper.size == kind]
        final = {key: record["hypervolume"][-1] for key, record in done.items()}
        shares = {
            rate: np.mean([final[n, rate] / max(final[n, r] for r in RATES) for n in names])
            for rate in RATES
        }
        rate = max(shares, key=shares.__getitem__)
        curves = [done[name, rate]["hypervolume"] for name in names]
        converged = {u: sum(has_converged(c, u) for c in curves) for u in LENGTHS}
        length = next((u for u in LENGTHS if 2 * converged[u] > len(names)), LENGTHS[-1])
        per_interval = length // 50
        graces = []
        for name in names:
            trivial = np.array(done[name, rate]["trivial"])
            first = int(np.argmax(2 * trivial <= MEMBERS)) + 1
            graces.append(-(-first * (LENGTHS[-1] // INTERVALS) // per_interval))
        print(f"{kind}: relative hypervolume by learning rate {shares}")
        print(f"  learning rate {rate}, converged tasks of {len(names)} by updates {converged}")
        print(f"  {length} updates, {per_interval} per interval; grace of each task {graces}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
