"""A small learner of exact arithmetic that the golden runs train. It knows nothing of mopbt.

Sums and products of Python floats are the same on every machine, and all randomness comes from
hashed whole numbers. So the scores of a golden run depend on the library's decisions alone.

A learner is a point in K dimensions with momentum. Training pulls it towards a target that its
hyperparameters name. It also remembers a number drawn from its seed, so that a score shows which
seed an interval was trained with.
"""

import math
import random
from dataclasses import dataclass

import numpy as np

DIVERGING = 1.0  # the learning rate from which a learner diverges
KINDS = {"plain": 1.0, "bold": 1.25, "shy": 0.75}
LEVELS = (0.0, 0.1, 0.5, 2.0)
FAILURE = "this interval fails"


@dataclass(frozen=True)
class Options:
    """What a learner can be asked for.

    Args:
        goals: Number of objectives, 2 or 3.
        mixed: Read all six hyperparameters and not only `mix` and `rate`.
        failing: Probability that an interval raises an error.
        diverging: Turn NaN or infinite at the largest learning rate.
        lost: Probability that an interval turns a learner NaN or infinite.
        coarse: Measure objectives to one decimal, so that many are equal.
        stretch: Factor of the loss, so that objectives have other ranges.
        global_draws: Draw from the global generators of `random` and numpy as well.
        test: Measure the objectives on test data as well.
    """

    goals: int = 2
    mixed: bool = False
    failing: float = 0.0
    diverging: bool = False
    lost: float = 0.0
    coarse: bool = False
    stretch: float = 1.0
    global_draws: bool = False
    test: bool = False


def draw(*numbers):
    """Return a number in [0, 1) that is a hash of whole numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return (state >> 11) / 2**53


def fresh(options, seed):
    """Return an untrained learner."""
    place = [0.2 * (draw(seed, k) - 0.5) for k in range(options.goals)]
    return {"place": place, "speed": [0.0] * options.goals, "age": 0, "luck": draw(seed, 99)}


def trained(options, learner, hp, begin, end, seed):
    """Return a learner after some steps; the one it starts from stays as it is."""
    rate, target, decay = hp["rate"], _target(options, hp), _decay(options, hp)
    if draw(seed, 1000) < options.failing:
        raise ArithmeticError(FAILURE)
    place, speed = list(learner["place"]), list(learner["speed"])
    for step in range(begin, end):
        for k in range(options.goals):
            noise = 0.1 * (draw(seed, step, k) - 0.5)
            speed[k] = 0.5 * speed[k] + 0.5 * rate * (target[k] - place[k] + noise)
            place[k] = (1.0 - decay) * (place[k] + speed[k])
    luck = draw(seed, 2000)
    if options.global_draws:
        luck = 0.5 * luck + 0.25 * random.random() + 0.25 * np.random.random()  # noqa: NPY002
    if (options.diverging and rate >= DIVERGING) or draw(seed, 3000) < options.lost:
        place[0] = math.nan if luck < 0.7 else math.inf
    return {"place": place, "speed": speed, "age": learner["age"] + end - begin, "luck": luck}


def measured(options, learner):
    """Return the scores of a learner: `gain` is maximized, `loss` minimized, `reach` maximized."""
    place = learner["place"]
    scores = {"gain": place[0], "loss": options.stretch * (1.2 - place[1])}
    if options.goals == 3:
        scores["reach"] = place[2]
    if options.coarse:
        scores = {name: round(score, 1) for name, score in scores.items()}
    if options.test:
        scores |= {f"test/{name}": 0.9 * score + 0.01 for name, score in scores.items()}
    return scores | {"size": place[0] + place[1], "age": learner["age"], "luck": learner["luck"]}


def _target(options, hp):
    mix = hp["mix"]
    kind, level, depth = 1.0, 0.5, 3
    if options.mixed:
        kind, level, depth = KINDS[hp["kind"]], hp["level"], hp["depth"]
    rest = kind * (1.0 - mix) - 0.02 * (depth - 3) * (depth - 3)
    if options.goals == 2:
        return [kind * mix + 0.05 * level, rest]
    return [kind * mix + 0.05 * level, rest * (1.0 - 0.4 * level), 0.4 * level * rest + 0.1 * mix]


def _decay(options, hp):
    return 0.1 * hp["decay"] if options.mixed else 0.0
