"""Start the first members of a run from the models of an earlier one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mopbt.errors import StoreError
from mopbt.filesystem import exists, make_directories
from mopbt.problem import Problem
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.run_directory import initial_checkpoints, read_run_config

DEFAULT_MEMBERS = 32


def with_warm_start(
    settings: RunConfig, source: Path | str | None, out: Path | str | None
) -> RunConfig:
    """Return settings whose first trials start from the front of an earlier run.

    They stay as they are if there is none.

    A scattered subset is used if the front has more models than the run has trials. A run that was
    started from this source keeps the models that it was started with.
    """
    if source is None:
        return settings
    if out is None:
        raise ValueError("`warm_start` needs a directory that keeps the models, got `out` None")
    place = str(Path(source).absolute())
    recorded = _recorded(Path(out))
    if recorded is not None and recorded.warm_start.get("run") == place:
        problem = replace(settings.problem, initial=recorded.problem.initial)
        return replace(settings, problem=problem, warm_start=recorded.warm_start)
    results = Results.open(Path(place))
    members = settings.algorithm.get("population") or settings.algorithm.get("trainings")
    kept = results.models_with_weights() & results.checkpoints.kept()
    front = results.front()
    chosen = front.spread(members or DEFAULT_MEMBERS) if front else ()
    points = [point for point in chosen if point.model in kept]
    if not points:
        raise ValueError(f"`warm_start`: {source} has no models with weights; train it first")
    problem = settings.problem
    configs = [_encode(problem, point.hp, source, point.model) for point in points]
    # Further given configurations follow those of the models.
    given = (*configs, *problem.initial)
    warm = {
        "run": place,
        "run_id": results.settings.run_id,
        "models": [point.model for point in points],
        "checksums": [results.stored_checksum(point.model) for point in points],
    }
    return replace(settings, problem=replace(problem, initial=given), warm_start=warm)


def copy_models(path: Path, warm: Mapping[str, Any]) -> None:
    """Copy the models that a run starts from into its directory, if missing."""
    if not warm:
        return
    initial = initial_checkpoints(path)
    missing = [place for place in range(len(warm["models"])) if place not in initial.kept()]
    if not missing:
        return
    make_directories(initial.path)
    source = Results.open(Path(warm["run"]))
    if source.settings.run_id != warm["run_id"]:
        raise StoreError(f"{warm['run']} is another run than the one that {path} starts from")
    for place in missing:
        initial.save(place, source.checkpoint(warm["models"][place]))


def _recorded(path: Path) -> RunConfig | None:
    return read_run_config(path) if exists(path / "run.toml") else None


def _encode(problem: Problem, hp: Mapping[str, Any], source: Path | str, model: int) -> Any:
    try:
        return problem.space.encode(hp)
    except ValueError as error:
        raise ValueError(
            f"`warm_start`: model {model} of {source} does not fit the space: {error}; use a space "
            "that has its hyperparameters, or pass configurations without weights in `initial`"
        ) from None
