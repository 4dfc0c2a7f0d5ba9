"""Optimize a function of several numbers with our proposals and with those of others.

All samplers have the same signature. Objectives are minimized, as COCO defines them.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mopbt.proposals.base import Propose, Trials
from mopbt.proposals.botorch import ParEGOProposal, QNEHVIProposal
from mopbt.proposals.nsga2 import NSGA2Proposal
from mopbt.proposals.tpe import Tpe
from mopbt.proposals.uniform import Uniform
from mopbt.rng import stream
from mopbt.space import Float, Space
from mopbt.state import Result

Evaluate = Callable[[Sequence[float]], Sequence[float]]
Sampler = Callable[[Space, Evaluate, int, int], None]

# The population of every NSGA-II. It is Optuna's default.
POPULATION = 50


def ours(propose: Propose, *, first: int | None = 1, batch: int | None = 1) -> Sampler:
    """Return a sampler that calls a proposal as `FullTraining` does.

    Args:
        propose: The proposal.
        first: The size of the first block; None: all evaluations.
        batch: The size of every later block.
    """

    def minimize(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
        configs: list[Any] = []
        results: list[Result] = []
        while len(configs) < budget:
            begin = len(configs)
            size = (batch if begin else first) or budget
            rng = stream(seed, "propose", begin) if begin else stream(seed, "population")
            trials = Trials(tuple(configs), tuple(results))
            for config in propose(space, trials, min(size, budget - begin), rng):
                values = evaluate(list(space.decode(config).values()))
                configs.append(config)
                results.append(Result(tuple(-value for value in values)))

    return minimize


def bayesian(propose: Propose) -> Sampler:
    """Return a sampler with an initial design of 2 (d + 1) points, then one at a time."""

    def minimize(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
        ours(propose, first=2 * (len(space) + 1))(space, evaluate, budget, seed)

    return minimize


def optuna_with(name: str, **options: Any) -> Sampler:
    """Return one of Optuna's samplers; grids are integers to it."""

    def minimize(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)

        def objective(trial: Any) -> tuple[float, ...]:
            return tuple(evaluate([suggest(trial, name, d) for name, d in space.items()]))

        with warnings.catch_warnings():
            # Several samplers and their options are marked as experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, name)(seed=seed, **options)
            study = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)
            study.optimize(objective, n_trials=budget)

    return minimize


def suggest(trial: Any, name: str, domain: Any) -> float:
    """Draw one number with Optuna."""
    if isinstance(domain, Float):
        return float(trial.suggest_float(name, domain.lo, domain.hi))
    return float(domain.decode(trial.suggest_int(name, 0, len(domain.values) - 1)))


def pymoo_nsga2(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Minimize with pymoo's NSGA-II: simulated binary crossover and polynomial mutation."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import ElementwiseProblem
    from pymoo.optimize import minimize

    class Box(ElementwiseProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            lower = [domain.lo for domain in space.values()]  # type: ignore[attr-defined]
            upper = [domain.hi for domain in space.values()]  # type: ignore[attr-defined]
            super().__init__(n_var=len(space), n_obj=2, xl=np.array(lower), xu=np.array(upper))

        def _evaluate(self, x: Any, out: dict[str, Any], *_: Any, **__: Any) -> None:
            out["F"] = list(evaluate(x.tolist()))

    minimize(Box(), NSGA2(pop_size=POPULATION), ("n_eval", budget), seed=seed)


def botorch_loop(space: Space, evaluate: Evaluate, budget: int, seed: int) -> None:
    """Minimize as in BoTorch's tutorial on qNEHVI, one point at a time.

    The tutorial's loop with its settings: processes on inputs in the unit cube and on
    standardized outputs, 128 samples, 10 restarts from 512 raw samples, and an initial design of
    2 (d + 1) Sobol points. The reference point, which the tutorial knows, is inferred with
    BoTorch's own rule. The acquisition function is qLogNEHVI, which BoTorch recommends.
    """
    import torch
    from botorch.acquisition.multi_objective import logei
    from botorch.utils.sampling import draw_sobol_samples

    # BoTorch would compile a faster version first, which takes a minute.
    logei._load_attempted = True
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    lower = np.array([domain.lo for domain in space.values()])  # type: ignore[attr-defined]
    span = np.array([domain.hi for domain in space.values()]) - lower  # type: ignore[attr-defined]
    cube = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, len(space))
    initial = min(2 * (len(space) + 1), budget)
    X = draw_sobol_samples(cube, initial, q=1, seed=seed)[:, 0]
    Y = torch.tensor([[-v for v in evaluate((lower + span * x).tolist())] for x in X.numpy()])
    Y = Y.double()
    while len(X) < budget:
        new = _botorch_candidate(X, Y, cube)
        values = evaluate((lower + span * new[0].numpy()).tolist())
        X = torch.cat([X, new])
        Y = torch.cat([Y, -torch.tensor([list(values)], dtype=torch.double)])


def _botorch_candidate(X: Any, Y: Any, cube: Any) -> Any:
    """Return the next point (1, d) for points (n, d) and maximized objectives (n, 2)."""
    import torch
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import ModelListGP, SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from botorch.utils.multi_objective.hypervolume import infer_reference_point
    from botorch.utils.multi_objective.pareto import is_non_dominated
    from gpytorch.mlls import SumMarginalLogLikelihood

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = [Y[:, k : k + 1] for k in range(2)]
        model = ModelListGP(
            *(SingleTaskGP(X, y, outcome_transform=Standardize(m=1)) for y in columns)
        )
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model=model,
            ref_point=infer_reference_point(Y[is_non_dominated(Y)]).tolist(),
            X_baseline=X,
            prune_baseline=True,
            sampler=SobolQMCNormalSampler(torch.Size([128])),
        )
        options = {"batch_limit": 5, "maxiter": 200}
        new, _ = optimize_acqf(
            acquisition, cube, q=1, num_restarts=10, raw_samples=512, options=options
        )
    return new.detach()


SAMPLERS: dict[str, Sampler] = {
    "random search": ours(Uniform(), first=None),
    "NSGA-II": ours(NSGA2Proposal(population=POPULATION), first=POPULATION, batch=POPULATION),
    "NSGA-II, index 20": ours(
        NSGA2Proposal(population=POPULATION, index=20), first=POPULATION, batch=POPULATION
    ),
    "Optuna NSGA-II": optuna_with("NSGAIISampler", population_size=POPULATION),
    "pymoo NSGA-II": pymoo_nsga2,
    "MO-TPE": ours(Tpe()),
    "MO-TPE, ordered": ours(Tpe(ordered=True)),
    "Optuna TPE": optuna_with("TPESampler"),
    "Optuna TPE, multivariate": optuna_with("TPESampler", multivariate=True),
    "qNEHVI": bayesian(QNEHVIProposal()),
    "ParEGO": bayesian(ParEGOProposal()),
    "BoTorch qLogNEHVI": botorch_loop,
    "Optuna GP": optuna_with("GPSampler"),
}
