"""Learning curves for successive halving: MO-ASHA, Optuna's pruners and random search.

A configuration h of four numbers in [0, 1] has, for each objective k, the error

    error_k(t) = end_k(h) + (1 - end_k(h)) (1 + t)^-rate(h)

after t steps, where end_k(h) = 0.05 + 0.95 |h - o_k|² / 4, and o_k is drawn from [0.2, 0.8]⁴ for
each seed. Three kinds differ in what an early error says about a late one:

- `parallel`: all rates are 1, so the order of two configurations never changes.
- `crossing`: rate(h) = 0.25 + 1.25 h_0, and o_k has 0.2 as its first number: fast starters end
  worse.
- `noisy`: as parallel, and every measurement has an independent normal error of 0.05.
"""

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mopbt
from mopbt.algorithms import MOASHA, RandomSearch
from mopbt.metrics import hypervolume
from mopbt.rng import stream
from mopbt.serialization import dumps, loads
from mopbt.space import Domain, Float
from mopbt.tasks.synthetic import PROBLEMS

DIMENSION = 4
STEPS = 27
NOISE = 0.05
KINDS = ("parallel", "crossing", "noisy")
# All algorithms may train this many times `STEPS` steps.
TRAININGS = 40
# The population of random search on our own synthetic problems, as in the paper.
POPULATION = 32
SYNTHETIC = {problem.name: problem for problem in PROBLEMS}

SINGLE = {
    "MO-ASHA": MOASHA(),
    "MO-ASHA, promotion": MOASHA(kind="promotion"),
    "Optuna SuccessiveHalvingPruner": "SuccessiveHalvingPruner",
    "Optuna HyperbandPruner": "HyperbandPruner",
    "Optuna MedianPruner": "MedianPruner",
    "random search": "NopPruner",
}
PRUNER_OPTIONS: dict[str, dict[str, Any]] = {
    "SuccessiveHalvingPruner": {"min_resource": 1, "reduction_factor": 3},
    "HyperbandPruner": {"min_resource": 1, "max_resource": STEPS, "reduction_factor": 3},
}
MULTI = {"MO-ASHA": MOASHA(), "MO-ASHA, promotion": MOASHA(kind="promotion")}


@dataclass(frozen=True)
class Curves:
    """A task that follows the curves of one seed, and records what it measured.

    Args:
        kind: One of `KINDS`.
        seed: Where the optima come from.
        K: The number of objectives.
        log: The measured and the true errors of every evaluation.
    """

    kind: str
    seed: int
    K: int = 1
    log: list[tuple[list[float], list[float]]] = field(default_factory=list, compare=False)

    name = "curves"
    interval = 1
    steps = STEPS

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the four numbers."""
        return {f"h{i}": Float(0, 1) for i in range(DIMENSION)}

    @property
    def objectives(self) -> Mapping[str, Any]:
        """Return the errors, which are minimized."""
        return {f"error{k}": "min" for k in range(self.K)}

    @property
    def reference(self) -> Mapping[str, float]:
        """Return the errors of an untrained model."""
        return {f"error{k}": 1.0 for k in range(self.K)}

    def init(self, seed: int) -> dict[str, Any]:
        """Return an untrained model."""
        return {"h": [0.5] * DIMENSION, "step": 0, "seed": seed}

    def train(self, model: Any, hp: Mapping[str, Any], begin: int, end: int, seed: int) -> Any:
        """Move on along the curve."""
        return {"h": [hp[f"h{i}"] for i in range(DIMENSION)], "step": end, "seed": seed}

    def evaluate(self, model: dict[str, Any]) -> dict[str, float]:
        """Measure the errors."""
        true = self.true_errors(model["h"], model["step"])
        noise = NOISE if self.kind == "noisy" else 0.0
        measured = true + noise * stream(model["seed"], "curves").normal(size=self.K)
        self.log.append((measured.tolist(), true.tolist()))
        return {f"error{k}": float(error) for k, error in enumerate(measured)}

    def dump(self, model: dict[str, Any]) -> bytes:
        """Serialize a model."""
        return dumps(model)

    def load(self, data: bytes) -> Any:
        """Restore a model."""
        return loads(data)

    def true_errors(self, h: list[float], step: int) -> Any:
        """Return the errors (K,) of a configuration after some steps."""
        optima = stream(self.seed, "optima").uniform(0.2, 0.8, (self.K, DIMENSION))
        rate = 1.0
        if self.kind == "crossing":
            optima[:, 0] = 0.2
            rate = 0.25 + 1.25 * h[0]
        ends = 0.05 + 0.95 * np.sum((np.array(h) - optima) ** 2, axis=1) / DIMENSION
        return ends + (1 - ends) * (1 + step) ** -rate


def measure(key: dict[str, Any]) -> dict[str, Any]:
    """Run one algorithm on one problem and return its value.

    The value of one objective is the true error of the model with the best measured one. That of
    several objectives is the hypervolume of the true errors of all models.
    """
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = _value_of(key)
    return {"value": value, "cpu": round(time.process_time() - begin, 2)}


def _value_of(key: dict[str, Any]) -> float:
    name = key["algorithm"]
    if key["problem"] in SYNTHETIC:
        problem = SYNTHETIC[key["problem"]]()
        algorithm = MULTI.get(name, RandomSearch(population=POPULATION, start="iid"))
        results = _run(problem, algorithm, POPULATION * problem.steps, key["seed"])
        return float(results.hypervolume() / problem.best_hypervolume())
    curves = Curves(key["problem"], key["seed"], key["objectives"])
    if key["objectives"] > 1:
        algorithm = MULTI.get(name, RandomSearch(population=TRAININGS, start="iid"))
        _run(curves, algorithm, TRAININGS * STEPS, key["seed"])
        true = np.array([errors for _, errors in curves.log])
        return hypervolume(-true, [-1.0] * curves.K)
    if isinstance(SINGLE[name], str):
        _run_optuna(curves, SINGLE[name], TRAININGS * STEPS, key["seed"])
    else:
        _run(curves, SINGLE[name], TRAININGS * STEPS, key["seed"])
    _, true = min(curves.log)
    return float(true[0])


def _run(task: Any, algorithm: Any, total_steps: int, seed: int) -> Any:
    """Run one of our algorithms with one worker."""
    return mopbt.run(
        task,
        out=None,
        algorithm=algorithm,
        seed=seed,
        engine="local",
        budget=mopbt.Budget(total_steps=total_steps),
        progress=False,
    )


def _run_optuna(curves: Curves, pruner: Any, total_steps: int, seed: int) -> None:
    """Run Optuna's random sampler with a pruner, with one worker."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any) -> float:
        hp = {f"h{i}": trial.suggest_float(f"h{i}", 0, 1) for i in range(DIMENSION)}
        error = math.nan
        for step in range(1, STEPS + 1):
            if len(curves.log) >= total_steps:
                study.stop()
                raise optuna.TrialPruned
            noise = 1000 * trial.number + step
            error = curves.evaluate(curves.train(None, hp, step - 1, step, noise))["error0"]
            trial.report(error, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return error

    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=seed),
        pruner=getattr(optuna.pruners, pruner)(**PRUNER_OPTIONS.get(pruner, {})),
    )
    study.optimize(objective)
