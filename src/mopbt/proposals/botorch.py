"""Gaussian-process proposals with BoTorch (extra `bo`): qNEHVI and ParEGO.

See appendices D and E of the paper. A configuration is a point of the unit cube with one column per
hyperparameter. Objectives are rescaled so that the worst one seen is 0 and the best is 1. The
acquisition function is evaluated at configurations as they will be trained, with every integer,
listed value and category in place, and not at the continuous point that an optimizer reached.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.errors import MissingExtra
from mopbt.proposals.base import Trials
from mopbt.ranking import non_dominated_sort
from mopbt.scalarization import parego, simplex_weights
from mopbt.space import Categorical, Config, Float, Int, Space

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.kernels import Kernel
    from torch import Size, Tensor

# Objectives are clipped at this multiple of the range of the better half below the best.
STRETCH = 5

# Distance of the reference point from the worst objectives, as a share of the range. It is the
# value of the authors' code.
MARGIN = 0.1

# Samples of the posterior for two objectives, and for more. Each sample needs a box decomposition,
# which is slow beyond two objectives.
SAMPLES = 64
FEWER_SAMPLES = 16

# Configurations among which a search chooses its starts: over the entire space, and near the front.
WIDE = 192
NEAR = 64

# Spaces with at most this many configurations are enumerated instead of searched.
ENUMERABLE = WIDE + NEAR

# Configurations evaluated at once. With four objectives, more would need a gigabyte of memory.
CHUNK = 64

# The number of starts of a search, and its steps of gradient ascent and of local search.
STARTS = 8
ASCENT_STEPS = 25
CLIMB_STEPS = 8

# Optimizer steps when fitting a process. Processes with categories do not improve in the hundreds
# of steps that would follow.
FIT_STEPS = 100

# Builds the acquisition function, given the pending configurations.
Acquire = Callable[[list[Config]], "AcquisitionFunction"]


def check_installed() -> None:
    """Raise MissingExtra unless BoTorch is installed, without importing it."""
    if find_spec("botorch") is None:
        raise MissingExtra("qNEHVI and ParEGO need BoTorch: pip install 'mopbt[bo]'")


@dataclass(frozen=True, slots=True)
class QNEHVIProposal:
    """Propose by noisy expected hypervolume improvement (qNEHVI, log version).

    Each objective is modeled by a Gaussian process. The reference point lies below the worst
    objectives seen by a tenth of their range. A batch is chosen greedily: each configuration is
    conditioned on those before it and on the pending ones.

    Args:
        initial: The number of space-filling configurations before the first model. The default is
            2 (d + 1) for d hyperparameters.
    """

    initial: int | None = None

    def __post_init__(self) -> None:
        _check_initial(self.initial)

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations that are new, as far as the space has any."""
        return _propose(space, trials, n, rng, self.initial, _hypervolume_improvement)


@dataclass(frozen=True, slots=True)
class ParEGOProposal:
    """Propose by expected improvement of a random augmented Chebyshev score.

    The score is modeled by a Gaussian process, with new weights for every configuration. It is
    computed from the distances to the best value of each objective, as Knowles defines it.

    Args:
        initial: The number of space-filling configurations before the first model. The default is
            2 (d + 1) for d hyperparameters.
    """

    initial: int | None = None

    def __post_init__(self) -> None:
        _check_initial(self.initial)

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations that are new, as far as the space has any."""
        return _propose(space, trials, n, rng, self.initial, _scalarized_improvement)


def _check_initial(initial: int | None) -> None:
    if initial is None:
        return
    if not isinstance(initial, int) or isinstance(initial, bool) or initial < 1:
        raise ValueError(
            f"`initial` must be a whole number of at least 1, or None for 2 (d + 1), "
            f"got {initial!r}"
        )


# --- Proposals --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Data:
    """The finite trials, as the models are fitted to them.

    Args:
        space: The search space.
        configs: The configurations.
        objectives: Rescaled to [0, 1], (n, K).
        slack: Constraint values (n,), positive if violated; empty if no row violates any.
    """

    space: Space
    configs: list[Config]
    objectives: NDArray[np.float64]
    slack: list[NDArray[np.float64]]


def _propose(
    space: Space,
    trials: Trials,
    n: int,
    rng: Generator,
    initial: int | None,
    acquire: Callable[[_Data, Generator], Acquire],
) -> list[Config]:
    check_installed()
    if initial is None:
        initial = 2 * (len(space) + 1)
    with _isolate_torch(rng):
        if len(trials.configs) < initial or not trials.finite_rows:
            return _fill_space(space, trials, n, rng)
        try:
            return _choose_batch(space, trials, n, rng, acquire(_prepare(space, trials), rng))
        except _numerical_errors() as error:
            reason = f"{type(error).__name__}: {error}"
        configs = _fill_space(space, trials, n, rng)
    warnings.warn(
        f"the Gaussian process failed ({reason}); proposing space-filling configurations instead",
        stacklevel=3,
    )
    return configs


def _choose_batch(
    space: Space, trials: Trials, n: int, rng: Generator, acquire: Acquire
) -> list[Config]:
    """Choose configurations one by one, each conditioned on those before it.

    Failed trials count as pending. They carry no values, but keep proposals away from them.
    """
    results = zip(trials.configs, trials.results, strict=True)
    failed = [config for config, result in results if not result.is_finite]
    front = _front(trials)
    chosen: list[Config] = []
    for _ in range(n):
        taken = {*trials.configs, *trials.pending, *chosen}
        landscape = _Landscape(space, acquire([*trials.pending, *failed, *chosen]))
        starts = _start_candidates(space, front, taken, rng)
        chosen.append(_search(landscape, starts, taken, rng))
    return chosen


def _fill_space(space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
    """Return n space-filling configurations, new ones as long as the space has any."""
    taken = {*trials.configs, *trials.pending}
    # Some of the points may be taken, so more are drawn than requested.
    points = _sobol(space, n + ENUMERABLE, rng)
    listed = _enumerate(space) if _count_configs(space) <= ENUMERABLE else []
    new = [config for config in dict.fromkeys([*points, *listed]) if config not in taken]
    return [*new, *points][:n]


def _prepare(space: Space, trials: Trials) -> _Data:
    rows = trials.finite_rows
    return _Data(
        space,
        [trials.configs[i] for i in rows],
        _to_unit_range(trials.objectives(rows)),
        _constraint_slack(trials.violations(rows)),
    )


def _front(trials: Trials) -> list[Config]:
    rows = trials.finite_rows
    best = non_dominated_sort(trials.objectives(rows), trials.violations(rows))[0]
    return [trials.configs[rows[i]] for i in best]


def _to_unit_range(objectives: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rescale each column of (n, K) to [0, 1]; a constant one becomes 0.

    Values far below the others are clipped first. Next to a training that diverged, all others
    would look the same.
    """
    # Differences of the scaled values cannot overflow.
    scaled = objectives / (4 * STRETCH)
    best = scaled.max(axis=0)
    median = np.median(scaled, axis=0)
    clipped = np.maximum(scaled, best - STRETCH * (best - median))
    scaled = np.where(best > median, clipped, scaled)
    low = scaled.min(axis=0)
    span = np.ptp(scaled, axis=0)
    return np.asarray((scaled - low) / np.where(span > 0, span, 1.0))


def _constraint_slack(violations: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Compute the target of the constraint model: violations divided by their median.

    Feasible rows get -1. A violation says how far a row is from being feasible, but 0 does not say
    how far inside the feasible region a row is. One typical violation is a guess that separates
    the two kinds of rows.
    """
    violated = violations > 0
    if not violated.any():
        return []
    typical = np.median(violations[violated])
    amounts = STRETCH * (np.minimum(violations / STRETCH, typical) / typical)
    return [np.where(violated, amounts, -1.0)]


# --- Optimization of an acquisition function --------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Landscape:
    """An acquisition function over a space, with its values found so far."""

    space: Space
    acquisition: "AcquisitionFunction"
    values: dict[Config, float] = field(default_factory=dict)

    def evaluate(self, configs: Iterable[Config]) -> None:
        """Evaluate the configurations that have no value yet."""
        import torch

        new = [config for config in dict.fromkeys(configs) if config not in self.values]
        if not new:
            return
        chunks = torch.split(_encode(self.space, new)[:, None], CHUNK)
        with torch.no_grad():
            found = torch.cat([self.acquisition(points) for points in chunks])
        heights = np.nan_to_num(found.numpy(), nan=-np.inf).tolist()
        self.values.update(zip(new, heights, strict=True))

    def ascend(self, configs: Sequence[Config], columns: Sequence[int]) -> list[Config]:
        """Follow the gradient in some columns and round the end to a configuration."""
        from botorch.generation.gen import gen_candidates_scipy

        if not columns:
            return list(configs)
        start = _encode(self.space, configs)
        fixed = {i: start[:, i] for i in range(len(self.space)) if i not in columns}
        options = {"maxiter": ASCENT_STEPS, "max_optimization_problem_aggregation_size": 1}
        ends, _ = gen_candidates_scipy(
            start[:, None], self.acquisition, 0.0, 1.0, fixed_features=fixed, options=options
        )
        found = _decode(self.space, ends[:, 0])
        self.evaluate(found)
        return found

    def climb(self, configs: Sequence[Config]) -> list[Config]:
        """Move each configuration to its best neighbor until none is better."""
        here = list(configs)
        for _ in range(CLIMB_STEPS):
            around = [[config, *_neighbors(self.space, config)] for config in here]
            self.evaluate(config for configs in around for config in configs)
            higher = [max(configs, key=self.values.__getitem__) for configs in around]
            if higher == here:
                break
            here = higher
        return here

    def best(self, taken: set[Config]) -> Config:
        """Return the best configuration that is not taken, or the best of all."""
        free = [config for config in self.values if config not in taken]
        return max(free or self.values, key=self.values.__getitem__)


def _search(
    landscape: _Landscape, starts: list[Config], taken: set[Config], rng: Generator
) -> Config:
    space = landscape.space
    landscape.evaluate(starts)
    if _count_configs(space) > ENUMERABLE:
        domains = list(space.values())
        ordered = [i for i, domain in enumerate(domains) if not isinstance(domain, Categorical)]
        floats = [i for i, domain in enumerate(domains) if isinstance(domain, Float)]
        tops = landscape.ascend(_draw_starts(landscape.values, rng), ordered)
        if len(floats) < len(space):
            landscape.ascend(landscape.climb(tops), floats)
    return landscape.best(taken)


def _draw_starts(values: dict[Config, float], rng: Generator) -> list[Config]:
    """Draw the best configuration and a few others, better ones more likely.

    The best ones alone would often lie on the same hill.
    """
    configs = list(values)
    heights = np.array(list(values.values()))
    heights = np.maximum(heights, heights[np.isfinite(heights)].min(initial=0.0))
    chances = (heights - heights.mean()) / (heights.std() or 1.0) + rng.gumbel(size=len(heights))
    chances[heights.argmax()] = np.inf
    return [configs[i] for i in np.argsort(-chances)[:STARTS]]


def _start_candidates(
    space: Space, front: list[Config], taken: set[Config], rng: Generator
) -> list[Config]:
    """Return configurations over the entire space and near the front.

    A small space is enumerated. Only new configurations are returned if there are any.
    """
    if _count_configs(space) <= ENUMERABLE:
        configs = _enumerate(space)
    else:
        parents = [front[i] for i in rng.integers(len(front), size=NEAR)]
        configs = _sobol(space, WIDE, rng)
        configs += [_perturb(space, config, rng) for config in parents]
    return [config for config in configs if config not in taken] or configs


def _perturb(space: Space, config: Config, rng: Generator) -> Config:
    """Move about half of the hyperparameters locally."""
    moves = rng.random(len(space)) < 0.5
    return tuple(
        domain.nearby(position, rng) if move else position
        for domain, position, move in zip(space.values(), config, moves, strict=True)
    )


def _neighbors(space: Space, config: Config) -> Iterator[Config]:
    """Yield configurations that differ in one hyperparameter that is not real-valued."""
    for i, (domain, position) in enumerate(zip(space.values(), config, strict=True)):
        if isinstance(domain, Float):
            continue
        others: Iterable[Any] = (position - 1, position + 1)
        if isinstance(domain, Categorical):
            others = _positions(domain)
        for other in others:
            if other != position and domain.contains(other):
                yield (*config[:i], other, *config[i + 1 :])


def _positions(domain: Any) -> range:
    return range(domain.lo, domain.hi + 1) if isinstance(domain, Int) else range(len(domain.values))


def _count_configs(space: Space) -> float:
    if any(isinstance(domain, Float) for domain in space.values()):
        return math.inf
    return math.prod(float(len(_positions(domain))) for domain in space.values())


def _enumerate(space: Space) -> list[Config]:
    return list(product(*map(_positions, space.values())))


def _sobol(space: Space, n: int, rng: Generator) -> list[Config]:
    """Return n configurations at the points of a scrambled Sobol sequence."""
    import torch
    from botorch.utils.sampling import draw_sobol_samples

    cube = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, len(space))
    return _decode(space, draw_sobol_samples(cube, n, q=1, seed=_seed(rng))[:, 0])


def _encode(space: Space, configs: Sequence[Config]) -> "Tensor":
    """Map configurations to points (n, d) of the unit cube."""
    import torch

    rows = [
        [domain.to_unit(p) for domain, p in zip(space.values(), config, strict=True)]
        for config in configs
    ]
    return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(space))


def _decode(space: Space, points: "Tensor") -> list[Config]:
    """Map points (n, d) of the unit cube to configurations."""
    return [
        tuple(domain.from_unit(share) for domain, share in zip(space.values(), row, strict=True))
        for row in points.tolist()
    ]


# --- Models and acquisition functions ---------------------------------------------------------


def _hypervolume_improvement(data: _Data, rng: Generator) -> Acquire:
    from botorch.acquisition.multi_objective import logei
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.multi_objective.utils import get_default_partitioning_alpha

    K = data.objectives.shape[1]
    # In one dimension the hypervolume is a length.
    if K == 1:
        return _scalarized_improvement(data, rng)
    model = _fit_models(data, list(data.objectives.T))

    def acquire(pending: list[Config]) -> "AcquisitionFunction":
        return logei.qLogNoisyExpectedHypervolumeImprovement(
            model,
            ref_point=[-MARGIN] * K,
            objective=IdentityMCMultiOutputObjective(outcomes=list(range(K))),
            alpha=get_default_partitioning_alpha(K),
            **_common_options(data, pending, SAMPLES if K == 2 else FEWER_SAMPLES, rng),
        )

    return acquire


def _scalarized_improvement(data: _Data, rng: Generator) -> Acquire:
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.objective import GenericMCObjective

    def acquire(pending: list[Config]) -> "AcquisitionFunction":
        weights = simplex_weights(1, data.objectives.shape[1], rng)
        model = _fit_models(data, [parego(data.objectives - 1.0, weights)])
        return qLogNoisyExpectedImprovement(
            model,
            objective=GenericMCObjective(_first_outcome),
            **_common_options(data, pending, SAMPLES, rng),
        )

    return acquire


def _first_outcome(outcomes: "Tensor", X: "Tensor | None" = None) -> "Tensor":
    """Return the score; a second outcome (..., m) is the slack of the constraints."""
    return outcomes[..., 0]


def _common_options(
    data: _Data, pending: list[Config], samples: int, rng: Generator
) -> dict[str, Any]:
    """Return the options that both acquisition functions share."""
    import torch
    from botorch.sampling.normal import SobolQMCNormalSampler

    # The slack is the outcome of the last model, and negative values are feasible.
    constraints = [lambda outcomes: outcomes[..., -1]] if data.slack else None
    return {
        # Pending configurations are part of the baseline, with the values that the model expects.
        # Adding them to each evaluated batch would give the same result, but more slowly.
        "X_baseline": _encode(data.space, [*data.configs, *pending]),
        "sampler": SobolQMCNormalSampler(torch.Size([samples]), seed=_seed(rng)),
        "constraints": constraints,
        "prune_baseline": True,
    }


def _fit_models(data: _Data, targets: list[NDArray[np.float64]]) -> "ModelListGP":
    """Fit a Gaussian process to each target (n,), and a last one to the slack, if any."""
    from botorch.models.model_list_gp_regression import ModelListGP

    points = _encode(data.space, data.configs)
    return ModelListGP(
        *(_fit_process(data.space, points, target) for target in [*targets, *data.slack])
    )


def _fit_process(space: Space, points: "Tensor", target: NDArray[np.float64]) -> "SingleTaskGP":
    """Fit a Gaussian process and its noise to points (n, d) and target (n,)."""
    from botorch.exceptions.errors import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    process = _build_process(space, points, target)
    try:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(process.likelihood, process),
            optimizer_kwargs={"options": {"maxiter": FIT_STEPS}},
        )
    except ModelFittingError:
        # The process keeps the hyperparameters of its prior.
        process.eval()
    return process


def _build_process(space: Space, points: "Tensor", target: NDArray[np.float64]) -> "SingleTaskGP":
    """Build an unfitted process with a Matern-5/2 kernel, as in the authors' code.

    Categories have a kernel of their own.
    """
    import torch
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.gp_regression_mixed import MixedSingleTaskGP
    from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior

    values = torch.tensor(target, dtype=torch.double)[:, None]
    categories = [i for i, domain in enumerate(space.values()) if isinstance(domain, Categorical)]
    if categories:
        return MixedSingleTaskGP(points, values, categories, cont_kernel_factory=_matern)
    return SingleTaskGP(points, values, covar_module=get_matern_kernel_with_gamma_prior(len(space)))


def _matern(batch_shape: "Size", ard_num_dims: int, active_dims: list[int]) -> "Kernel":
    from gpytorch.kernels import MaternKernel
    from gpytorch.priors import GammaPrior

    prior = GammaPrior(3.0, 6.0)
    return MaternKernel(
        2.5,
        batch_shape=batch_shape,
        ard_num_dims=ard_num_dims,
        active_dims=active_dims,
        lengthscale_prior=prior,
    )


def _seed(rng: Generator) -> int:
    return int(rng.integers(2**31))


# --- Isolation from the rest of the process ---------------------------------------------------


@contextmanager
def _isolate_torch(rng: Generator) -> Iterator[None]:
    """Run BoTorch on one CPU thread with its own random numbers, without its warnings."""
    import torch

    threads = torch.get_num_threads()
    # Setting a default device slows every operation down by a quarter, even if it is the CPU.
    device = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with (
        _suppress_numerical_warnings(),
        _disable_compilation(),
        torch.random.fork_rng(devices=[]),
        device,
    ):
        torch.default_generator.manual_seed(_seed(rng))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _suppress_numerical_warnings() -> Iterator[None]:
    """Suppress warnings about numerical problems and pass all others on.

    Some of BoTorch's warnings bypass the filters, so they are recorded and sorted afterwards.
    """
    with warnings.catch_warnings(record=True) as recorded:
        # BoTorch's dependencies raise it when they are first imported.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        warnings.filterwarnings("ignore", "When all training points are infeasible")
        for kind in _numerical_warnings():
            warnings.simplefilter("ignore", kind)
        yield
    for warning in recorded:
        if not issubclass(warning.category, _numerical_warnings()):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextmanager
def _disable_compilation() -> Iterator[None]:
    """Keep BoTorch from compiling a faster qNEHVI at its first use.

    Compiling takes a minute, waits forever on a lock that a killed process left behind, and makes
    results depend on the compiler.
    """
    from botorch.acquisition.multi_objective import logei

    wanted = {"_load_attempted": True, "_C": None}
    # BoTorch before 0.18 does not compile and has neither attribute.
    before = {name: vars(logei)[name] for name in wanted if name in vars(logei)}
    try:
        for name in before:
            setattr(logei, name, wanted[name])
        yield
    finally:
        for name, value in before.items():
            setattr(logei, name, value)


def _numerical_warnings() -> tuple[type[Warning], ...]:
    from botorch.exceptions.warnings import InputDataWarning, NumericsWarning, OptimizationWarning
    from linear_operator.utils.warnings import NumericalWarning

    return InputDataWarning, NumericsWarning, OptimizationWarning, NumericalWarning


def _numerical_errors() -> tuple[type[Exception], ...]:
    from botorch.exceptions.errors import OptimizationGradientError
    from linear_operator.utils.errors import NanError, NotPSDError

    return OptimizationGradientError, NanError, NotPSDError
