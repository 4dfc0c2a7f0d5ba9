"""A run as an Optuna study, for Optuna's plots and its dashboard: every evaluation of the run is a trial of the study."""

import datetime
import math
import warnings
from collections.abc import Mapping
from typing import Any

from mopbt.errors import MissingExtra
from mopbt.results import Results
from mopbt.space import Domain, Float, Grid, Int, LogGrid, _Listed


def to_optuna(results: Results, storage: Any = None, *, name: str | None = None) -> Any:
    """Write a run into a new study and return it; its best trials are the run's front.

    Hyperparameters are the study's parameters, objectives its values in their own sense. A trial's user attributes say which job
    and trial of the run it is, its step, all its scores, and from which trial of the study (`parent`) its weights came.

    Args:
        results: The run.
        storage: Where Optuna keeps the study, such as ``sqlite:///study.db``, or a storage object; None is memory.
        name: The study's name; by default the name of the run's directory, or of its task.
    """
    optuna = _optuna()
    chosen = name or (results.path.name if results.path else results.problem.name)
    directions = [
        "maximize" if objective.direction == "max" else "minimize"
        for objective in results.problem.objectives
    ]
    try:
        study = optuna.create_study(study_name=chosen, storage=storage, directions=directions)
    except optuna.exceptions.DuplicatedStudyError:
        raise ValueError(
            f"the storage has a study {chosen!r} already; give this one another `name` (--name on the command line), or delete "
            f"that one"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", optuna.exceptions.ExperimentalWarning
        )  # names of objectives are, for years
        study.set_metric_names([objective.name for objective in results.problem.objectives])
    settings = results.settings
    for key, value in {
        "task": settings.problem.name,
        "algorithm": dict(settings.algorithm),
        "seed": settings.seed,
    }.items():
        study.set_user_attr(key, value)
    records = results.records()
    numbers = {
        record["job"]: number for number, record in enumerate(records)
    }  # of the study's trials
    since = datetime.datetime.now() - datetime.timedelta(seconds=results.seconds)
    study.add_trials([_trial(optuna, results, record, numbers, since) for record in records])
    return study


def distribution_of(domain: Domain) -> Any:
    """Return Optuna's distribution for a domain; lists that are spaced in no way that it knows become choices."""
    kinds = _optuna().distributions
    match domain:
        case Float() | Grid():
            return kinds.FloatDistribution(domain.lo, domain.hi, log=getattr(domain, "log", False))
        case Int():
            return kinds.IntDistribution(domain.lo, domain.hi, log=domain.log)
        case LogGrid(zero=False):
            return kinds.FloatDistribution(domain.lo, domain.hi, log=True)
        case _Listed():
            return kinds.CategoricalDistribution(domain.values)
    raise ValueError(
        f"a domain must be one of Grid, LogGrid, Ordinal, Categorical, Float, Int, got {domain!r}"
    )


def _trial(
    optuna: Any,
    results: Results,
    record: Mapping[str, Any],
    numbers: Mapping[int, int],
    since: datetime.datetime,
) -> Any:
    values = [
        record.get(f"score.{objective.name}", math.nan) for objective in results.problem.objectives
    ]
    is_sound = not any(map(math.isnan, values))  # Optuna takes infinities, and no NaN
    trial = optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if is_sound else optuna.trial.TrialState.FAIL,
        values=values if is_sound else None,
        params={name: record[f"config.{name}"] for name in results.problem.space},
        distributions={
            name: distribution_of(domain) for name, domain in results.problem.space.items()
        },
        user_attrs=_about(record, numbers),
        system_attrs={"constraints": [record["violation"]]}
        if results.problem.constraints and is_sound
        else {},
        intermediate_values=_curve(results, record) if is_sound and len(values) == 1 else {},
    )
    trial.datetime_complete = since + datetime.timedelta(seconds=record["seconds"])
    trial.datetime_start = trial.datetime_complete - datetime.timedelta(seconds=record["duration"])
    return trial


def _about(record: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return what Optuna has no place of its own for."""
    scores = {
        name.removeprefix("score."): str(value)
        for name, value in record.items()
        if name.startswith("score.")
    }
    about = {
        "job": record["job"],
        "trial": record["trial"],
        "step": record["end"],
        "scores": scores,
    }
    if record["start"] is not None:
        about |= {
            "parent": numbers[record["start"]],
            "exploited": record["parent"] != record["trial"],
        }
    return about | ({"error": record["error"]} if record["error"] else {})


def _curve(results: Results, record: Mapping[str, Any]) -> dict[int, float]:
    """Return the objective over the steps of a model's lineage; Optuna knows such curves for one objective alone."""
    (objective,) = results.problem.objectives
    scores = {
        ancestor.end: ancestor.scores.get(objective.name)
        for ancestor in results.lineage(record["job"])
    }
    return {
        end: score for end, score in scores.items() if score is not None
    }  # one may be lost with a line of the journal


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("to_optuna needs Optuna: pip install 'mopbt[optuna]'") from None
    return optuna
