"""Measure which share of a run's processor time is evaluation, and what errors add to it.

    python benchmarks/evaluation.py adult-fairness

One interval of the task's population at scale `small` is trained and evaluated, one member at a
time and as a stack, with the validation rows of the scale and with all of them. Times are those of
this process on one thread, so other processes do not disturb them.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mopbt.problem import Hyperparameters
from mopbt.rng import stream
from mopbt.tasks.paper import SCALES, TASKS
from mopbt.torch import evaluation

REPEATS = 5


def seconds(work: Callable[[], Any]) -> float:
    """Return the smallest CPU time of a few repetitions, in seconds, after one that warms up."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def draw_hp(task: Any, n: int) -> list[Hyperparameters]:
    """Draw the hyperparameters of some members."""
    found = []
    for i in range(n):
        rng = stream(i, "hp")
        drawn = {name: domain.decode(domain.sample(rng)) for name, domain in task.space.items()}
        found.append(Hyperparameters(drawn))
    return found


def measure(task: Any, members: int) -> None:
    """Print the times of one interval of some members."""
    hp = draw_hp(task, members)
    models = [task.init(i) for i in range(members)]
    steps = [0] * members
    seeds = list(range(members))
    interval = task.interval

    def alone() -> None:
        for model, own, seed in zip(models, hp, seeds, strict=True):
            task.train(model, own, 0, interval, seed)

    training = {
        "one by one": seconds(alone),
        "stacked": seconds(lambda: task.train_many(models, hp, steps, seeds)),
    }
    trained = task.train_many(models, hp, steps, seeds)
    plain = replace(task, errors=False)
    single = seconds(lambda: [plain.evaluate(model) for model in trained])
    default = evaluation.ROWS_TO_LOOP
    evaluation.ROWS_TO_LOOP = 10**9
    stacked = seconds(lambda: plain.evaluate_many(trained))
    evaluation.ROWS_TO_LOOP = default
    with_errors = seconds(lambda: [task.evaluate(model) for model in trained])
    rows = len(task.validation[0])
    print(f"{rows:,} validation rows, {members} members:")
    print(f"  evaluation {single:.3f} s one by one, {stacked:.3f} s as a stack")
    print(f"  errors add {100 * (with_errors / single - 1):.1f} %")
    for way, training_time in training.items():
        share = with_errors / (with_errors + training_time)
        print(f"  training {way} {training_time:.3f} s: evaluation is {100 * share:.0f} %")


def main() -> None:
    """Measure a task with the validation rows of its scale, and with all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[name for name in TASKS if "robustness" not in name])
    parser.add_argument("--members", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    described = TASKS[options.task]
    scale = SCALES[described.size]["small"]
    for validation in (scale.validation, 0):
        task = described.build(described, replace(scale, validation=validation))
        measure(task, options.members)


if __name__ == "__main__":
    main()
