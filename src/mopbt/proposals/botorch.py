"""Gaussian-process proposals by BoTorch (extra `bo`): qNEHVI and ParEGO (paper, appendices D and E).

A configuration is a point of the unit cube with a column for each hyperparameter. Objectives are rescaled so that the worst seen
is 0 and the best is 1. Whatever is proposed was valued as it will be trained: with every whole number, listed value and category
in its place, and not as the point nearby that an optimizer ran to.
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
from mopbt.proposals.base import History
from mopbt.ranking import non_dominated_sort
from mopbt.scalarization import parego, simplex_weights
from mopbt.space import Categorical, Config, Float, Int, Space

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.kernels import Kernel
    from torch import Size, Tensor

STRETCH = (
    5  # times the range of the better half: what is further below the best counts as being there
)
MARGIN = 0.1  # of the range, from the worst objectives to the reference point (authors' code)
SAMPLES, FEWER = (
    64,
    16,
)  # of the posterior; each has boxes of its own to value a hypervolume by, slow beyond two objectives
WIDE, NEAR = (
    192,
    64,
)  # configurations among which a search looks for its starts: all over the space, and beside the front
AT_ONCE = 64  # configurations that are valued together; more take a gigabyte where there are four objectives
STARTS = 8
FIT = 100  # steps of fitting a process; those with categories gain nothing by the hundreds of steps that follow
ASCENT = 25  # steps of a gradient ascent
CLIMB = 8  # steps from neighbor to neighbor
FEW = WIDE + NEAR  # configurations of a space that is not searched but looked at as a whole

Acquire = Callable[[list[Config]], "AcquisitionFunction"]  # from the configurations on the way


def check_installed() -> None:
    """Raise MissingExtra unless BoTorch is installed; it is not imported yet."""
    if find_spec("botorch") is None:
        raise MissingExtra("qNEHVI and ParEGO need BoTorch: pip install 'mopbt[bo]'")


@dataclass(frozen=True, slots=True)
class QNEHVIProposal:
    """Propose what promises most hypervolume under one Gaussian process for each objective: qNEHVI, in logarithms.

    The reference point is below the worst objectives seen by a tenth of their range. A batch is chosen one by one, each
    configuration as if those before it, and those on the way, were trained already.

    Args:
        initial: How many configurations are tried before the first model, space-filling; by default 2 (d + 1) of d hyperparameters.
    """

    initial: int | None = None

    def __post_init__(self) -> None:
        _check_initial(self.initial)

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations, different from each other and from all before as far as that is possible."""
        return _proposed(space, history, n, rng, self.initial, _hypervolume_improvement)


@dataclass(frozen=True, slots=True)
class ParEGOProposal:
    """Propose what promises to improve a randomly weighted augmented Chebyshev score, modeled by a Gaussian process.

    Every configuration has weights of its own. Scores are distances from the best of each objective, as Knowles has them.

    Args:
        initial: How many configurations are tried before the first model, space-filling; by default 2 (d + 1) of d hyperparameters.
    """

    initial: int | None = None

    def __post_init__(self) -> None:
        _check_initial(self.initial)

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations, different from each other and from all before as far as that is possible."""
        return _proposed(space, history, n, rng, self.initial, _scalarized_improvement)


def _check_initial(initial: int | None) -> None:
    if initial is not None and (
        not isinstance(initial, int) or isinstance(initial, bool) or initial < 1
    ):
        raise ValueError(
            f"`initial` must be a whole number of at least 1, or None for 2 (d + 1), got {initial!r}"
        )


# --- proposals ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """What models are made of: the sound rows of a history."""

    space: Space
    configs: list[Config]
    objectives: NDArray[np.float64]  # (n, K) in [0, 1]
    slack: list[
        NDArray[np.float64]
    ]  # (n,) above 0 where a constraint is violated; none where no row violates any


def _proposed(
    space: Space,
    history: History,
    n: int,
    rng: Generator,
    initial: int | None,
    acquire: Callable[[_Seen, Generator], Acquire],
) -> list[Config]:
    check_installed()
    least = 2 * (len(space) + 1) if initial is None else initial
    with _isolated(rng):
        if len(history.configs) < least or not history.is_finite:
            return _spread(space, history, n, rng)
        try:
            return _greedy(space, history, n, rng, acquire(_seen(space, history), rng))
        except _numerical_errors() as error:
            trouble = f"{type(error).__name__}: {error}"
        configs = _spread(space, history, n, rng)
    warnings.warn(
        f"no configuration could be valued by a model ({trouble}); space-filling ones are proposed",
        stacklevel=3,
    )
    return configs


def _greedy(
    space: Space, history: History, n: int, rng: Generator, acquire: Acquire
) -> list[Config]:
    """Choose one by one, each as if those before it were trained already.

    Rows that failed are treated as if they were still on the way: they tell nothing, but nothing more is to be learned beside them.
    """
    failed = [
        config
        for config, result in zip(history.configs, history.results, strict=True)
        if not result.is_finite
    ]
    front = _front(history)
    chosen: list[Config] = []
    for _ in range(n):
        taken = {*history.configs, *history.pending, *chosen}
        landscape = _Landscape(space, acquire([*history.pending, *failed, *chosen]))
        chosen.append(_search(landscape, _starts(space, front, taken, rng), taken, rng))
    return chosen


def _spread(space: Space, history: History, n: int, rng: Generator) -> list[Config]:
    """Return n space-filling configurations, which are new as long as the space has any."""
    taken = {*history.configs, *history.pending}
    points = _sobol(space, n + FEW, rng)  # more than asked for, as some may be taken
    listed = _all(space) if _count(space) <= FEW else []
    new = [config for config in dict.fromkeys([*points, *listed]) if config not in taken]
    return [*new, *points][:n]


def _seen(space: Space, history: History) -> _Seen:
    rows = history.is_finite
    slack = _slack(history.violations(rows))
    return _Seen(
        space, [history.configs[i] for i in rows], _to_unit_range(history.objectives(rows)), slack
    )


def _front(history: History) -> list[Config]:
    rows = history.is_finite
    best = non_dominated_sort(history.objectives(rows), history.violations(rows))[0]
    return [history.configs[rows[i]] for i in best]


def _to_unit_range(objectives: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rescale each column of (n, K) to [0, 1]; what does not vary becomes 0.

    What is far below the rest is raised first: beside a training that diverged, all others would look the same.
    """
    parts = objectives / (4 * STRETCH)  # whose differences cannot overflow
    best, median = parts.max(axis=0), np.median(parts, axis=0)
    parts = np.where(best > median, np.maximum(parts, best - STRETCH * (best - median)), parts)
    low, span = parts.min(axis=0), np.ptp(parts, axis=0)
    return np.asarray((parts - low) / np.where(span > 0, span, 1.0))


def _slack(violations: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return what a model of the constraints learns: violations by their median, and -1 for every row that violates none.

    A violation says how far a row is from what is allowed, but 0 does not say how far inside another one is. One typical violation
    is the guess: it keeps the two kinds of rows apart.
    """
    broken = violations > 0
    if not broken.any():
        return []
    typical = np.median(violations[broken])
    return [np.where(broken, STRETCH * (np.minimum(violations / STRETCH, typical) / typical), -1.0)]


# --- the search for the best value of an acquisition function ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Landscape:
    """An acquisition function over the configurations of a space, and what it was found to be where."""

    space: Space
    acquisition: "AcquisitionFunction"
    values: dict[Config, float] = field(default_factory=dict)

    def value(self, configs: Iterable[Config]) -> None:
        """Value the configurations that were not valued yet."""
        import torch

        new = [config for config in dict.fromkeys(configs) if config not in self.values]
        if new:
            with torch.no_grad():
                found = torch.cat(
                    [
                        self.acquisition(points)
                        for points in torch.split(_encoded(self.space, new)[:, None], AT_ONCE)
                    ]
                )
            self.values.update(
                zip(new, np.nan_to_num(found.numpy(), nan=-np.inf).tolist(), strict=True)
            )

    def ascend(self, configs: Sequence[Config], columns: Sequence[int]) -> list[Config]:
        """Follow the gradient in some columns, from each configuration to the one nearest to where that ends."""
        from botorch.generation.gen import gen_candidates_scipy

        if not columns:
            return list(configs)
        start = _encoded(self.space, configs)
        fixed = {i: start[:, i] for i in range(len(self.space)) if i not in columns}
        options = {"maxiter": ASCENT, "max_optimization_problem_aggregation_size": 1}
        ends, _ = gen_candidates_scipy(
            start[:, None], self.acquisition, 0.0, 1.0, fixed_features=fixed, options=options
        )
        found = _decoded(self.space, ends[:, 0])
        self.value(found)
        return found

    def climb(self, configs: Sequence[Config]) -> list[Config]:
        """Go from each configuration to its best neighbor until none is better."""
        here = list(configs)
        for _ in range(CLIMB):
            around = [[config, *_neighbors(self.space, config)] for config in here]
            self.value(config for configs in around for config in configs)
            higher = [max(configs, key=self.values.__getitem__) for configs in around]
            if higher == here:
                break
            here = higher
        return here

    def best(self, taken: set[Config]) -> Config:
        """Return the best configuration that is not taken, or the best of all."""
        return max(
            [c for c in self.values if c not in taken] or self.values, key=self.values.__getitem__
        )


def _search(
    landscape: _Landscape, starts: list[Config], taken: set[Config], rng: Generator
) -> Config:
    space = landscape.space
    landscape.value(starts)
    if _count(space) > FEW:
        numbers = [
            i for i, domain in enumerate(space.values()) if not isinstance(domain, Categorical)
        ]
        floats = [i for i, domain in enumerate(space.values()) if isinstance(domain, Float)]
        tops = landscape.ascend(_promising(landscape.values, rng), numbers)
        if len(floats) < len(space):
            landscape.ascend(landscape.climb(tops), floats)
    return landscape.best(taken)


def _promising(values: dict[Config, float], rng: Generator) -> list[Config]:
    """Return the best configuration and a few others, the more likely the better they are: the best alone share one hill."""
    configs, heights = list(values), np.array(list(values.values()))
    heights = np.maximum(heights, heights[np.isfinite(heights)].min(initial=0.0))
    chances = (heights - heights.mean()) / (heights.std() or 1.0) + rng.gumbel(size=len(heights))
    chances[heights.argmax()] = np.inf
    return [configs[i] for i in np.argsort(-chances)[:STARTS]]


def _starts(space: Space, front: list[Config], taken: set[Config], rng: Generator) -> list[Config]:
    """Return configurations all over the space and beside the front, or all of a small space; new ones where there are any."""
    if _count(space) <= FEW:
        configs = _all(space)
    else:
        parents = [front[i] for i in rng.integers(len(front), size=NEAR)]
        configs = [*_sobol(space, WIDE, rng), *(_moved(space, config, rng) for config in parents)]
    return [config for config in configs if config not in taken] or configs


def _moved(space: Space, config: Config, rng: Generator) -> Config:
    moved = rng.random(len(space)) < 0.5
    return tuple(
        d.nearby(p, rng) if move else p
        for d, p, move in zip(space.values(), config, moved, strict=True)
    )


def _neighbors(space: Space, config: Config) -> Iterator[Config]:
    for i, (domain, position) in enumerate(zip(space.values(), config, strict=True)):
        if not isinstance(domain, Float):
            others = (
                _positions(domain)
                if isinstance(domain, Categorical)
                else (position - 1, position + 1)
            )
            yield from (
                (*config[:i], other, *config[i + 1 :])
                for other in others
                if other != position and domain.contains(other)
            )


def _positions(domain: Any) -> range:
    return range(domain.lo, domain.hi + 1) if isinstance(domain, Int) else range(len(domain.values))


def _count(space: Space) -> float:
    """Return how many configurations a space has."""
    return math.prod(
        math.inf if isinstance(domain, Float) else float(len(_positions(domain)))
        for domain in space.values()
    )


def _all(space: Space) -> list[Config]:
    return list(product(*map(_positions, space.values())))


def _sobol(space: Space, n: int, rng: Generator) -> list[Config]:
    """Return n configurations at the points of a scrambled Sobol sequence."""
    import torch
    from botorch.utils.sampling import draw_sobol_samples

    cube = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, len(space))
    return _decoded(space, draw_sobol_samples(cube, n, q=1, seed=_seed(rng))[:, 0])


def _encoded(space: Space, configs: Sequence[Config]) -> "Tensor":
    import torch

    rows = [
        [domain.to_unit(p) for domain, p in zip(space.values(), config, strict=True)]
        for config in configs
    ]
    return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(space))


def _decoded(space: Space, points: "Tensor") -> list[Config]:
    return [
        tuple(domain.from_unit(share) for domain, share in zip(space.values(), row, strict=True))
        for row in points.tolist()
    ]


# --- models and acquisition functions ----------------------------------------------------------------------------------------


def _hypervolume_improvement(seen: _Seen, rng: Generator) -> Acquire:
    from botorch.acquisition.multi_objective import logei
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.multi_objective.utils import get_default_partitioning_alpha

    K = seen.objectives.shape[1]
    if K == 1:
        return _scalarized_improvement(seen, rng)  # a hypervolume in one dimension is a length
    model = _model(seen, list(seen.objectives.T))

    def acquire(pending: list[Config]) -> "AcquisitionFunction":
        return logei.qLogNoisyExpectedHypervolumeImprovement(
            model,
            ref_point=[-MARGIN] * K,
            objective=IdentityMCMultiOutputObjective(outcomes=list(range(K))),
            alpha=get_default_partitioning_alpha(K),
            **_settings(seen, pending, SAMPLES if K == 2 else FEWER, rng),
        )

    return acquire


def _scalarized_improvement(seen: _Seen, rng: Generator) -> Acquire:
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.objective import GenericMCObjective

    def acquire(pending: list[Config]) -> "AcquisitionFunction":
        weights = simplex_weights(1, seen.objectives.shape[1], rng)
        model = _model(seen, [parego(seen.objectives - 1.0, weights)])
        return qLogNoisyExpectedImprovement(
            model, objective=GenericMCObjective(_score), **_settings(seen, pending, SAMPLES, rng)
        )

    return acquire


def _score(outcomes: "Tensor", X: "Tensor | None" = None) -> "Tensor":
    """Return the first of the outcomes (..., m), which a model may have beside the slack."""
    return outcomes[..., 0]


def _settings(seen: _Seen, pending: list[Config], samples: int, rng: Generator) -> dict[str, Any]:
    """Return what both acquisition functions are told."""
    import torch
    from botorch.sampling.normal import SobolQMCNormalSampler

    return {
        # Those on the way count as tried, with the values that the model expects of them, rather than as a part of each batch
        # that is valued: the same, but sooner done.
        "X_baseline": _encoded(seen.space, [*seen.configs, *pending]),
        "sampler": SobolQMCNormalSampler(torch.Size([samples]), seed=_seed(rng)),
        "constraints": [lambda outcomes: outcomes[..., -1]]
        if seen.slack
        else None,  # of the last model; below 0 is allowed
        "prune_baseline": True,
    }


def _model(seen: _Seen, targets: list[NDArray[np.float64]]) -> "ModelListGP":
    """Return a Gaussian process for each target (n,), and a last one for the slack where there is any."""
    from botorch.models.model_list_gp_regression import ModelListGP

    return ModelListGP(
        *(
            _fitted(seen.space, _encoded(seen.space, seen.configs), target)
            for target in [*targets, *seen.slack]
        )
    )


def _fitted(space: Space, points: "Tensor", target: NDArray[np.float64]) -> "SingleTaskGP":
    """Return a Gaussian process of points (n, d) and target (n,), whose noise is learned too."""
    from botorch.exceptions.errors import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    process = _process(space, points, target)
    try:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(process.likelihood, process),
            optimizer_kwargs={"options": {"maxiter": FIT}},
        )
    except ModelFittingError:
        process.eval()  # with the prior's hyperparameters
    return process


def _process(space: Space, points: "Tensor", target: NDArray[np.float64]) -> "SingleTaskGP":
    """Return a process that is not fitted yet, with a Matern-5/2 kernel as in the authors' code, and another one for categories."""
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


@contextmanager
def _isolated(rng: Generator) -> Iterator[None]:
    """Let BoTorch work on one thread, with random numbers of its own, and keep its warnings of numerical trouble to itself."""
    import torch

    threads, elsewhere = torch.get_num_threads(), torch.get_default_device().type != "cpu"
    # To name the device where it is the default already would make every operation slower by a quarter.
    with (
        _quiet(),
        _nothing_compiled(),
        torch.random.fork_rng(devices=[]),
        torch.device("cpu") if elsewhere else nullcontext(),
    ):
        torch.default_generator.manual_seed(_seed(rng))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of numerical trouble back, also those that BoTorch lets nobody ignore, and pass all others on."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.filterwarnings(
            "ignore", "`torch.jit", DeprecationWarning
        )  # at the first import of what BoTorch is built on
        warnings.filterwarnings("ignore", "When all training points are infeasible")
        for kind in _numerical_warnings():
            warnings.simplefilter("ignore", kind)
        yield
    for warning in heard:
        if not issubclass(warning.category, _numerical_warnings()):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Keep BoTorch from compiling a faster qNEHVI at its first use.

    That takes a minute, waits for ever on a lock which a killed process left behind, and rounds as the compiler of the day does.
    """
    from botorch.acquisition.multi_objective import logei

    wanted = {"_load_attempted": True, "_C": None}
    before = {
        name: getattr(logei, name) for name in wanted if hasattr(logei, name)
    }  # before 0.18 there was nothing to compile
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
