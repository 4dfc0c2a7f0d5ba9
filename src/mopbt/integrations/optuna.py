"""Export a run as an Optuna study, and start a run from a study."""

import datetime
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mopbt.errors import MissingExtra
from mopbt.metrics import non_dominated
from mopbt.objectives import Direction
from mopbt.results import Results
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal


def to_optuna(results: Results, storage: Any = None, *, name: str | None = None) -> Any:
    """Write a run into a new study and return it; its best trials are the run's front.

    Every evaluation of the run becomes a trial of the study. Hyperparameters become parameters,
    and objectives become values in their original direction. User attributes of a trial hold its
    model id and trial in the run, its step, all its metrics, and the number of the trial (`parent`)
    that its weights came from.

    Args:
        results: The run.
        storage: Where Optuna keeps the study: a URL such as ``sqlite:///study.db``, a storage
            object, or None for memory.
        name: Name of the study. The default is the name of the run's directory, or of its task.
    """
    optuna = _import_optuna()
    study = _create_study(optuna, results, storage, name)
    settings = results.settings
    study.set_user_attr("task", settings.problem.name)
    study.set_user_attr("algorithm", dict(settings.algorithm))
    study.set_user_attr("seed", settings.seed)
    records = results.records()
    numbers = {record["model"]: number for number, record in enumerate(records)}
    started = datetime.datetime.now() - datetime.timedelta(seconds=results.seconds)
    study.add_trials(
        [_create_trial(optuna, results, record, numbers, started) for record in records]
    )
    return study


@dataclass(frozen=True)
class ImportedStudy:
    """What a run can take over from an Optuna study.

    Attributes:
        space: The hyperparameters that all trials of the study have, by name.
        objectives: The objectives and their directions.
        initial: The hyperparameters of its best trials, best first, for ``run(initial=...)``.
    """

    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    initial: tuple[Mapping[str, Any], ...]


def from_optuna(
    storage: Any, *, name: str | None = None, most: int = 8, objectives: Sequence[str] = ()
) -> ImportedStudy:
    """Read the space, the objectives and the best trials of an Optuna study.

    Use them as ``run(train, space=study.space, objectives=study.objectives,
    initial=study.initial)``. Models are not part of a study, so the run trains its own.

    Args:
        storage: Where Optuna keeps the study: a URL such as ``sqlite:///study.db``, a storage
            object, or a study.
        name: Name of the study. It may be left out if the storage has one study only.
        most: How many trials to take over: those that no other one dominates, then those that only
            they dominate, and so on.
        objectives: The names of the objectives, if the study has none or others.
    """
    optuna = _import_optuna()
    study = storage
    if not isinstance(storage, optuna.Study):
        study = optuna.load_study(study_name=_study_name(optuna, storage, name), storage=storage)
    trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    shared = optuna.search_space.intersection_search_space(trials)
    if not shared:
        raise ValueError(
            f"the study {study.study_name!r} has no hyperparameter that all of its "
            f"{len(trials)} complete trials share; run some trials with one search space"
        )
    directions = [direction.name.lower() for direction in study.directions]
    names = _objective_names(study, objectives)
    signs = [1.0 if direction == "maximize" else -1.0 for direction in directions]
    values = np.array([trial.values for trial in trials], dtype=float) * np.array(signs)
    return ImportedStudy(
        {key: domain_of(distribution) for key, distribution in shared.items()},
        {n: "max" if sign > 0 else "min" for n, sign in zip(names, signs, strict=True)},
        tuple({key: trials[i].params[key] for key in shared} for i in _best_first(values)[:most]),
    )


def domain_of(distribution: Any) -> Domain:
    """Return the domain for a distribution of Optuna."""
    distributions = _import_optuna().distributions
    if isinstance(distribution, distributions.CategoricalDistribution):
        return Categorical(distribution.choices)
    low = distribution.low
    high = distribution.high
    if isinstance(distribution, distributions.IntDistribution):
        if distribution.step == 1:
            return Int(low, high, log=distribution.log)
        return Ordinal(list(range(low, high + 1, distribution.step)))
    if distribution.step is None:
        return Float(low, high, log=distribution.log)
    return Grid(low, high, round((high - low) / distribution.step) + 1)


def _study_name(optuna: Any, storage: Any, name: str | None) -> str:
    """Return the name of the study to read, or raise ValueError with all names."""
    known = optuna.get_all_study_names(storage=storage)
    if name is None and len(known) == 1:
        return str(known[0])
    if name not in known:
        listed = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"`name` must be a study of the storage ({listed}), got {name!r}")
    return str(name)


def _objective_names(study: Any, given: Sequence[str]) -> list[str]:
    count = len(study.directions)
    names = list(given or study.metric_names or [])
    if len(names) != count:
        raise ValueError(
            f"the study {study.study_name!r} has {count} objectives, got the names {names}; name "
            "them in their order, as in objectives=['accuracy', 'loss']"
        )
    return names


def _best_first(values: Any) -> list[int]:
    """Return the rows of objectives (n, K), front by front."""
    rows = np.arange(len(values))
    order: list[int] = []
    while len(rows):
        front = non_dominated(values[rows])
        order += rows[front].tolist()
        rows = np.delete(rows, front)
    return order


def distribution_of(domain: Domain) -> Any:
    """Return the distribution for a domain; unevenly spaced values become categories."""
    distributions = _import_optuna().distributions
    match domain:
        case Float():
            return distributions.FloatDistribution(domain.lo, domain.hi, log=domain.log)
        case Grid():
            return distributions.FloatDistribution(domain.lo, domain.hi)
        case Int():
            return distributions.IntDistribution(domain.lo, domain.hi, log=domain.log)
        case LogGrid(zero=False):
            return distributions.FloatDistribution(domain.lo, domain.hi, log=True)
        case LogGrid() | Ordinal() | Categorical():
            return distributions.CategoricalDistribution(domain.values)
    raise ValueError(
        f"a domain must be one of Grid, LogGrid, Ordinal, Categorical, Float, Int, got {domain!r}"
    )


def _create_study(optuna: Any, results: Results, storage: Any, name: str | None) -> Any:
    """Create an empty study with the run's objectives."""
    objectives = results.problem.objectives
    study_name = name or (results.path.name if results.path else results.problem.name)
    try:
        study = optuna.create_study(
            study_name=study_name,
            storage=storage,
            directions=["maximize" if o.direction == "max" else "minimize" for o in objectives],
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise ValueError(
            f"the storage already has a study {study_name!r}; choose another `name` (--name on "
            f"the command line), or delete that study"
        ) from None
    with warnings.catch_warnings():
        # Optuna still marks names of objectives as experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([objective.name for objective in objectives])
    return study


def _create_trial(
    optuna: Any,
    results: Results,
    record: Mapping[str, Any],
    numbers: Mapping[int, int],
    started: datetime.datetime,
) -> Any:
    """Create the trial of one evaluation; `numbers` are trial numbers by model id."""
    problem = results.problem
    values = [record.get(f"score.{o.name}", math.nan) for o in problem.objectives]
    options: dict[str, Any] = {"state": optuna.trial.TrialState.FAIL}
    # Optuna accepts infinite values of a complete trial, but not NaN.
    if not any(map(math.isnan, values)):
        options = {"state": optuna.trial.TrialState.COMPLETE, "values": values}
        if problem.constraints:
            options["system_attrs"] = {"constraints": [record["violation"]]}
        # Optuna supports learning curves of a single objective only.
        if len(values) == 1:
            options["intermediate_values"] = _learning_curve(results, record)
    trial = optuna.trial.create_trial(
        params={name: record[f"hp.{name}"] for name in problem.space},
        distributions={name: distribution_of(domain) for name, domain in problem.space.items()},
        user_attrs=_user_attributes(record, numbers),
        **options,
    )
    trial.datetime_complete = started + datetime.timedelta(seconds=record["seconds"])
    trial.datetime_start = trial.datetime_complete - datetime.timedelta(seconds=record["duration"])
    return trial


def _user_attributes(record: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return those facts about an evaluation that Optuna has no field for."""
    attributes: dict[str, Any] = {
        "model": record["model"],
        "trial": record["trial"],
        "step": record["end"],
        "scores": {
            name.removeprefix("score."): str(value)
            for name, value in record.items()
            if name.startswith("score.")
        },
    }
    if record["start"] is not None:
        attributes["parent"] = numbers[record["start"]]
        attributes["exploited"] = record["parent"] != record["trial"]
    if record["error"]:
        attributes["error"] = record["error"]
    return attributes


def _learning_curve(results: Results, record: Mapping[str, Any]) -> dict[int, float]:
    """Return the only objective by step, along the lineage of a model."""
    (objective,) = results.problem.objectives
    curve = {}
    for ancestor in results.lineage(record["model"]):
        value = ancestor.scores.get(objective.name)
        # The value is missing if its line of the journal was lost.
        if value is not None:
            curve[ancestor.end] = value
    return curve


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtra(
            "to_optuna and from_optuna need Optuna: pip install 'mopbt[optuna]'"
        ) from None
    return optuna
