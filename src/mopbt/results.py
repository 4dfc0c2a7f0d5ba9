"""The results of a run: evaluations, the front, its models and their training."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mopbt.algorithms import algorithm_of, as_trained_by
from mopbt.arguments import check_count
from mopbt.engines.base import Engine, RunContext
from mopbt.engines.local import LocalEngine
from mopbt.errors import CorruptCheckpoint, StoreError, TaskError
from mopbt.evaluations import (
    Evaluation,
    Evaluations,
    evaluate_missing,
    read_evaluations,
    wanted_keys,
)
from mopbt.export import (
    Exported,
    Origin,
    check_export_path,
    check_hub_directory,
    describe_model,
    export_hub,
    export_model,
)
from mopbt.filesystem import write_atomically
from mopbt.front import Ancestor, Front, FrontKind, Point, import_pandas, record_of, schedule_of
from mopbt.function_task import described_by
from mopbt.history import History, read_history
from mopbt.importance import Importance, importance_of, intervals_of
from mopbt.locking import holder_of
from mopbt.member import Snapshot, TrainingFunction, visible
from mopbt.messages import counted, did_you_mean
from mopbt.noise import Claim, claims_of, noise_warning
from mopbt.notebook import table_html
from mopbt.objectives import signed_reference
from mopbt.problem import Problem, Task, rows_of
from mopbt.progress import Outcome, Progress
from mopbt.replay import Replayed, replay_schedule
from mopbt.retention import models_with_weights, models_without_weights
from mopbt.run_config import RunConfig
from mopbt.run_directory import initial_models, open_run, read_run_config
from mopbt.serialization import is_pickle, loads
from mopbt.sizing import GENERATIONS, exploiting_population, interval_advice, size_advice
from mopbt.state import Job
from mopbt.stores.base import Checkpoints, ReducibleCheckpoints, load_model
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.stores.fsspec import RemoteCheckpoints, checkpoints_at
from mopbt.stores.journal import read_lines


@dataclass(eq=False, repr=False)
class Results:
    """The results of a run, also while it executes.

    ``Results.open("runs/adult")`` opens a run in any process, at any time.

    Attributes:
        settings: The settings that the run was started with.
        checkpoints: Where the models are kept.
        path: The directory of the run; None if it is only in memory.
        task: The task, if it is known.
        outcome: How the call of `run` ended that returned these results: "done", "complete" (the
            run was already complete, and nothing was trained), "budget" (exhausted) or "stopped"
            (by a callback). Callbacks may also see "interrupted" and "failed". None for a run that
            was opened.
        progress: The latest progress, for a run that this process has executed.
        history: What the journal says.
    """

    settings: RunConfig
    checkpoints: Checkpoints = field(repr=False)
    path: Path | None = None
    task: Task[Any] | None = None
    outcome: Outcome | None = None
    progress: Progress | None = field(default=None, init=False, repr=False)
    history: History = field(init=False, repr=False)
    # The warning about noise, and for how many reports it was computed.
    _warning: tuple[int, str] | None = field(default=None, init=False, repr=False)
    _population: int | None = field(default=None, init=False, repr=False)
    _interval_advice: str | None = field(default=None, init=False, repr=False)
    # What was measured outside of the search.
    evaluations: Evaluations = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.history = History(self.problem)
        self.evaluations = Evaluations()

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path is not None else ""
        intervals = counted(len(self), "interval")
        models = counted(len(self.history.front), "model")
        state = "done" if self.done else "not done"
        if self.outcome == "complete":
            state = "already complete, nothing was trained"
        name = self.problem.name
        return f"<Results of {name!r}{where}: {intervals}, {models} on the front, {state}>"

    def _repr_html_(self) -> str:
        """Return the state of the run and its front for a notebook."""
        front = self.front()
        total = self.intervals
        rows = [
            ["algorithm", f"{self.settings.algorithm['name']}, seed {self.settings.seed}"],
            ["intervals", f"{len(self)} of {total}" if total else str(len(self))],
            ["state", "done" if self.done else "not done"],
            ["hypervolume", f"{self.hypervolume():.5g}"],
        ]
        if self.path is not None:
            rows.append(["run", str(self.path)])
        title = f"Results of {self.problem.name}"
        return table_html(rows, title=title, header=False) + front._repr_html_()

    @staticmethod
    def open(path: Path | str, task: Task[Any] | TrainingFunction | None = None) -> "Results":
        """Open a run.

        The task, or the training function, is needed only to replay a model, and to load one whose
        task has its own `load`.
        """
        path = Path(path).absolute()
        settings = read_run_config(path)
        storage = settings.storage or path / "checkpoints"
        own = None if task is None else described_by(settings.problem, task)
        results = Results(settings, checkpoints_at(storage, make=False), path, own)
        results.refresh()
        return results

    def refresh(self) -> None:
        """Read what the run has reported since."""
        if self.path is not None:
            journal = self.path / "journal.jsonl"
            self.history = read_history(self.problem, read_lines(journal), journal)
            self.settings = self.settings.extended(self.history.extension)
            self.evaluations = read_evaluations(self.path)

    @property
    def problem(self) -> Problem:
        """Return the problem of the run."""
        return self.settings.problem

    @property
    def running(self) -> str:
        """Return which process is executing the run; empty if none is."""
        return holder_of(self.path) if self.path is not None else ""

    @property
    def seconds(self) -> float:
        """Return the seconds of work so far, over all sessions."""
        return self.history.seconds

    def __len__(self) -> int:
        """Return how many intervals have reported."""
        return len(self.history.reports)

    def points(self) -> Iterator[Point]:
        """Yield all evaluations that did not fail, ordered by model id."""
        return (self._point(job) for job in self._reported() if not self._failed(job))

    @property
    def intervals(self) -> int | None:
        """Return how many intervals the complete run has, if its algorithm knows."""
        return total_intervals(self.settings)

    @property
    def done(self) -> bool:
        """Return whether the run is complete: nothing is left to do within its budget."""
        return self.history.done or len(self) == self.intervals

    @property
    def failures(self) -> dict[int, str]:
        """Return the errors of failed jobs."""
        reports = self.history.reports
        errors = {reports.job(row): error for row, error in reports.failures().items()}
        return dict(sorted(errors.items()))

    def point(self, model: int) -> Point:
        """Return an evaluated model by its id."""
        return self._point(self._id_of(model))

    def front(self, *, observed: bool = False) -> Front:
        """Return the models that no other evaluation dominates. Each can be loaded.

        Where metrics have errors, objectives are compared at the bounds of their intervals, so a
        lucky measurement does not put a model on the front. `observed` compares the measurements
        themselves, as the paper does. `Front.kind` says which front it is.

        Metrics on rows that do not guide the search are beside the others, as ``test/accuracy``.
        """
        pessimistic = self.history.has_errors and not observed
        entries = self.history.pessimistic_front if pessimistic else self.history.front
        rows = self.history.reports
        jobs = [entry.job for entry in entries]
        jobs.sort(key=lambda job: ([-x for x in rows.objectives_of(rows.row(job))], job))
        kind: FrontKind = "pessimistic" if pessimistic else "observed"
        points = [self.with_evaluations(self._point(job)) for job in jobs]
        return Front(points, self.problem, kind=kind)

    def claims(self) -> list[Claim]:
        """Return what can be claimed about the models of the front.

        The best of many noisy measurements are too good on average. A claim corrects the values of
        a model for having been selected, and says how likely it is truly on the front. The list is
        empty if no metric has an error.
        """
        if not self.history.has_errors:
            return []
        return claims_of(self.history, [point.model for point in self.front()])

    def noise_warning(self) -> str:
        """Return a sentence if noise alone could have produced the front, else ``""``."""
        if self._warning is None or self._warning[0] != len(self):
            self._warning = len(self), noise_warning(self.history)
        return self._warning[1]

    def advice(self) -> list[str]:
        """Return a sentence for each size of the run that is too small to pay off.

        They are about the population, the number of intervals and, after the first generations,
        the length of an interval. Algorithms that never exploit need no advice.
        """
        if self._population is None:
            self._population = exploiting_population(self.problem, self.settings.algorithm)
        population = self._population
        if not population:
            return []
        if self._interval_advice is None and len(self) >= GENERATIONS * population:
            self._interval_advice = interval_advice(self.history, population)
        advice = size_advice(self.problem, population)
        return [*advice, self._interval_advice] if self._interval_advice else advice

    def hypervolume(self, reference: Mapping[str, float] | None = None) -> float:
        """Return the hypervolume of the front above a reference point.

        The point is given by name, in the objectives' original direction. By default, it is the
        task's, or the paper's rule over the first interval of each trial and the front: the worst
        value, less a tenth of the range.
        """
        if not len(self.history.feasible_front()):
            return 0.0
        return self.history.hypervolume(self._reference(reference))

    def hypervolume_curve(
        self, reference: Mapping[str, float] | None = None
    ) -> list[tuple[float, float]]:
        """Return when the hypervolume grew, as pairs of seconds and hypervolume."""
        if not len(self.history.feasible_front()):
            return []
        return self.history.curve(self._reference(reference))

    def lineage(self, point: Point | int) -> list[Ancestor]:
        """Return the intervals whose weights led to a model, through every exploit."""
        return [self._ancestor(job) for job in self.history.lineage(self._id_of(point))]

    def trial_history(self, point: Point | int) -> list[Ancestor]:
        """Return the intervals of a model's trial up to the model.

        They may have started from other trials.
        """
        last = self._id_of(point)
        trial = self.history.jobs.trial(last)
        jobs = (job for job in self._reported() if job <= last and not self._failed(job))
        return [self._ancestor(job) for job in jobs if self.history.jobs.trial(job) == trial]

    def schedule(self, point: Point | int) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Return the hyperparameter schedule of a model as (begin, end, hp).

        Equal intervals are merged.
        """
        return schedule_of(self.lineage(point))

    def load(self, point: Point | int) -> Any:
        """Load a trained model: from the task's `load`, or a function's tracked state."""
        data = self.checkpoint(point)
        if self.task is None:
            try:
                return visible(loads(data))
            except ValueError:
                hint = ""
                if is_pickle(data):
                    hint = (
                        "; its checkpoints are pickles: pickle.loads(results.checkpoint(point)) "
                        "reads one that you trust"
                    )
                raise StoreError(
                    f"only the task {self.problem.name!r} can load its models: use "
                    f"Results.open({str(self.path)!r}, task=...){hint}"
                ) from None
        model = self.task.load(data)
        return model.state if isinstance(model, Snapshot) else model

    def export(self, point: Point | int, file: Path | str, *, private: bool = False) -> Exported:
        """Write weights to a .safetensors file, with origin and card beside it.

        The origin is a .json and the card a .md file of the same name. The weights are the
        `state_dict` of a PyTorch model, for other models all tracked state. A checkpoint in the
        task's own format is written unchanged, with the suffix .bin.

        Origin and card contain the name of the run's directory and of the file with the task, but
        no path above them, unless `private` leaves both out.
        """
        check_export_path(Path(file))
        found = self.with_evaluations(self._found(point))
        origin = self._origin(private=private)
        return export_model(Path(file), self.checkpoint(found), found, self.lineage(found), origin)

    def export_hub(
        self,
        point: Point | int,
        directory: Path | str,
        *,
        config: Mapping[str, Any] | None = None,
        license: str = "",
        private: bool = False,
    ) -> Path:
        """Write a model as a folder that can be uploaded to the Hugging Face Hub.

        The folder has ``README.md``, a model card with metadata, ``model.safetensors`` and
        ``config.json``. Upload it with ``hf upload NAME DIRECTORY``.

        Args:
            point: The model, or its id.
            directory: A new or empty folder.
            config: What to build the model from, for ``config.json``, such as ``model.config`` of a
                model of transformers. The origin of the model is added under the key "mopbt".
            license: The identifier of a license, such as "mit".
            private: Leave out the name of the run's directory and of the file with the task.
        """
        check_hub_directory(Path(directory))
        found = self.with_evaluations(self._found(point))
        about = describe_model(found, self.lineage(found), self._origin(private=private))
        return export_hub(Path(directory), self.checkpoint(found), about, config or {}, license)

    def evaluate(
        self,
        rows: str | None = None,
        points: Iterable[Point | int] | None = None,
        *,
        seeds: Iterable[int] = (0,),
        engine: Engine | None = None,
    ) -> list[Evaluation]:
        """Measure models on rows that do not guide the search, where that is missing.

        Args:
            rows: The name of the rows, by default all that the task declares.
            points: The models, by default those on the front that have weights.
            seeds: The numbers of the repetitions, for tasks whose evaluation is random.
            engine: What evaluates the models; by default this process.

        Returns:
            The evaluations of these models, also those that were made before.
        """
        task = self._rows_task()
        names = _check_rows(rows, rows_of(task))
        kept = self.models_with_weights()
        models = [p.model for p in self.front() if p.model in kept]
        if points is not None:
            models = [self._id_of(point) for point in points]
        keys = wanted_keys(models, names, _check_seeds(seeds))
        run = None if self.path is None else open_run(self.path, self.settings)
        driver = engine or LocalEngine()
        try:
            if self.path is not None:
                self.evaluations.update(read_evaluations(self.path))
            seed = self.settings.seed
            confidence = self.settings.confidence
            context = RunContext(task, self.problem, seed, self.checkpoints, confidence)
            driver.start(context)
            try:
                evaluate_missing(driver, self.history, keys, self.evaluations, self.path)
            finally:
                driver.close()
        finally:
            if run is not None:
                run.close()
        return [self.evaluations[key] for key in keys]

    def _rows_task(self) -> Task[Any]:
        if self.task is None:
            raise TaskError(
                "an evaluation needs the task: open the run with Results.open(path, task=task)"
            )
        return self.task

    def replay(
        self,
        point: Point | int,
        task: Task[Any] | TrainingFunction | None = None,
        *,
        ancestry: bool = True,
        seed: int | None = None,
    ) -> Replayed:
        """Train a model again from scratch with its schedule, and compare the two.

        Args:
            point: The model to train again, or its id.
            task: The task or training function, if the run was opened without it, or to train
                another one, for example with other data. A task with a longer or shorter training
                stretches the schedule.
            ancestry: Follow the schedule of the weights through every exploit. If false, follow
                the schedule of the trial itself, as if it had never copied another member's
                weights.
            seed: Random seed. By default the run's: on the same task and machine, the replay gives
                the same model (up to rounding if the run trained it in a stack). Another seed shows
                what the schedule alone is worth.
        """
        if seed is not None:
            check_count("seed", seed, 0)
        trained = self.task if task is None else described_by(self.problem, task)
        if trained is None:
            raise TaskError(
                "a replay needs the task: results.replay(point, task), or "
                "Results.open(path, task=task)"
            )
        trained = as_trained_by(algorithm_of(dict(self.settings.algorithm)), trained)
        original = self._found(point)
        recorded = self.trial_history(original)
        if ancestry:
            recorded = [self._ancestor(job) for job in self.history.ancestors(original.model)]
        seed = self.settings.seed if seed is None else seed
        return replay_schedule(
            trained,
            original,
            recorded,
            self._origin(),
            seed,
            initial_models(self.path, self.settings),
        )

    def checkpoint(self, point: Point | int) -> bytes:
        """Return the bytes of a model's checkpoint, verified by its checksum.

        The checkpoint of a large model that only the front needs lacks the state of training.
        """
        model = self._id_of(point)
        checksum = self.history.reports.checksum(self.history.reports.row(model))
        try:
            return load_model(self.checkpoints, model, checksum)
        except CorruptCheckpoint:
            if self.settings.keep is None or model in self.models_with_weights():
                raise
            # A model that is only damaged has another remedy.
            if model in self.checkpoints.kept():
                raise
            raise CorruptCheckpoint(self._no_weights(model)) from None

    def stored_checksum(self, model: int) -> str:
        """Return the checksum of what is stored of a model."""
        reduced = ""
        if isinstance(self.checkpoints, ReducibleCheckpoints):
            reduced = self.checkpoints.reduced_checksum(model)
        return reduced or self.history.reports.checksum(self.history.reports.row(model))

    def models_with_weights(self) -> frozenset[int]:
        """Return the ids of the models on the front whose weights the run keeps.

        These are all, unless the run was started with a smaller `keep`, or was repaired.
        """
        return models_with_weights(self.history, self.settings.keep) - self.lost_models()

    def lost_models(self) -> frozenset[int]:
        """Return the models that a repair brought back to the front without weights."""
        return models_without_weights(self.history, self.settings.keep, self.checkpoints)

    def _no_weights(self, model: int) -> str:
        run = self.path or "RUN"
        return (
            f"model {model} has no weights: the run keeps those of at most {self.settings.keep} "
            f"models on its front (`keep`); train it again with `results.replay({model})` or "
            f"`mopbt replay {run} {model} --export model.safetensors`"
        )

    def checkpoint_file(self, point: Point | int) -> Path | str:
        """Return the file of a model's checkpoint, or its URL in remote storage."""
        if not isinstance(self.checkpoints, DirectoryCheckpoints | RemoteCheckpoints):
            raise StoreError(
                "this run is only in memory: give `out` a directory, or save what `load` returns"
            )
        model = self._id_of(point)
        if isinstance(self.checkpoints, DirectoryCheckpoints):
            return self.checkpoints.model_file(model)
        return self.checkpoints.file(model)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict per report, failed ones included, ordered by model id.

        Hyperparameters are under ``hp.<name>``, metrics under ``score.<name>``, and where a metric
        has an error ``stderr.<name>``, ``lower.<name>`` and ``upper.<name>``.
        """
        front = {entry.job for entry in self.history.pessimistic_front}
        failures = self.failures
        records = []
        for job in self._reported():
            error = failures.get(job, "")
            records.append(record_of(self._point(job), on_front=job in front, error=error))
        return records

    def plot_front(self, front: Front | None = None) -> Any:
        """Draw all evaluations and the front; return a matplotlib figure."""
        from mopbt.plots.front import front_figure

        return front_figure(self, front=front)

    def plot_progress(self) -> Any:
        """Draw the hypervolume and the best objectives over time.

        Returns a matplotlib figure.
        """
        from mopbt.plots.run import progress_figure

        return progress_figure(self)

    def plot_learning_curves(self, point: Point | int | None = None) -> Any:
        """Draw the metrics of all members by step; return a matplotlib figure.

        The lineage of a model stands out, by default that of the knee of the front.
        """
        from mopbt.plots.run import learning_curves_figure

        return learning_curves_figure(self, point)

    def plot_lineage(self, point: Point | int) -> Any:
        """Draw metrics and hyperparameters of a model's lineage.

        Returns a matplotlib figure.
        """
        from mopbt.plots.run import lineage_figure

        return lineage_figure(self, point)

    def plot_hyperparameters(self) -> Any:
        """Draw the hyperparameters of all members by step; return a matplotlib figure."""
        from mopbt.plots.run import hyperparameters_figure

        return hyperparameters_figure(self)

    def importance(self) -> list[Importance]:
        """Return which hyperparameters moved which objective, for each objective.

        It needs scikit-learn. The list is empty for runs of fewer than 40 intervals.
        """
        return importance_of(intervals_of(self.history))

    def plot_importance(self) -> Any:
        """Draw which hyperparameters moved which objective; return a matplotlib figure."""
        from mopbt.plots.run import importance_figure

        return importance_figure(self)

    def to_pandas(self) -> Any:
        """Return all reports as a pandas DataFrame."""
        return import_pandas().DataFrame(self.records())

    def to_csv(self, file: Path | str) -> None:
        """Write all reports as a CSV file with the columns of `records`."""
        file = Path(file)
        records = self.records()
        text = io.StringIO()
        if file.is_dir() or not file.parent.is_dir():
            raise ValueError(
                "the table must be a file in an existing directory, such as reports.csv, got "
                f"{file}"
            )
        columns = list(dict.fromkeys(chain.from_iterable(records)))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        write_atomically(file, text.getvalue().encode())

    def with_evaluations(self, point: Point) -> Point:
        """Return a model with its metrics on other rows added, as ``test/accuracy``."""
        scores, errors = self.evaluations.with_rows(point.model, point.scores, point.errors)
        return replace(point, scores=scores, errors=errors)

    def _found(self, point: Point | int) -> Point:
        return point if isinstance(point, Point) else self.point(point)

    def _origin(self, *, private: bool = False) -> Origin:
        name = self.path.name if self.path is not None and not private else ""
        settings = replace(self.settings, task_reference="") if private else self.settings
        return Origin(settings, self.front(), name)

    def _reported(self) -> list[int]:
        """Return the jobs that have reported, in ascending order."""
        return sorted(self.history.reports.jobs().tolist())

    def _failed(self, job: int) -> bool:
        return self.history.reports.failed(self.history.reports.row(job))

    def _reference(
        self, reference: Mapping[str, float] | None
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        if reference is None:
            return self.history.reference()
        return np.array(signed_reference(self.problem.objectives, reference))

    def _decode(self, job: Job) -> dict[str, Any]:
        return self.problem.space.decode(job.config)

    def _point(self, id: int) -> Point:
        job = self.history.job(id)
        report = self.history.report(id)
        return Point(
            model=id,
            trial=job.trial,
            step=job.end,
            hp=self._decode(job),
            scores=report.scores,
            violation=report.violation,
            seconds=report.seconds,
            begin=job.begin,
            start=job.start,
            parent=None if job.start is None else self.history.jobs.trial(job.start),
            duration=report.duration,
            errors=report.errors,
            source=self,
        )

    def _ancestor(self, id: int) -> Ancestor:
        job = self.history.job(id)
        scores = self.history.report(id).scores
        return Ancestor(
            id,
            job.trial,
            job.begin,
            job.end,
            self._decode(job),
            scores,
            self.history.is_exploit(id),
            job.weighted_starts,
        )

    def _id_of(self, point: Point | int) -> int:
        model = point.model if isinstance(point, Point) else point
        known = isinstance(model, Integral) and model in self.history.reports
        if not known or self._failed(model):
            entries = self.history.front
            front = ", ".join(str(entry.job) for entry in entries[:8])
            front += " ..." if len(entries) > 8 else ""
            raise ValueError(
                "a point must be the id of an evaluated model of this run, or one of "
                f"`results.front()`, got {model!r}; on the front are {front or 'none yet'}"
            )
        return model


def _check_rows(rows: str | None, declared: Sequence[str]) -> list[str]:
    """Return the rows to evaluate models on, or raise ValueError with the choices."""
    if not declared:
        raise ValueError(
            f"the task declares no `rows` to evaluate models on, got {rows!r}; declare them, as in "
            'rows=("test",), see docs/how-to/test-data.md'
        )
    if rows is not None and rows not in declared:
        raise ValueError(
            f"`rows` must be one of {', '.join(map(repr, declared))}, got {rows!r}"
            f"{did_you_mean(rows, declared)}"
        )
    return list(declared) if rows is None else [rows]


def _check_seeds(seeds: Iterable[int]) -> list[int]:
    if not isinstance(seeds, Iterable):
        raise TypeError(f"`seeds` must be a list of whole numbers, such as [0, 1], got {seeds!r}")
    numbers = list(seeds)
    for number in numbers:
        check_count("seeds", number, 0)
    return numbers


def total_intervals(settings: RunConfig) -> int | None:
    """Return how many intervals the complete run has, if its algorithm knows."""
    try:
        return algorithm_of(dict(settings.algorithm)).scheduler(settings.problem).total_jobs
    except ValueError:
        # The algorithm is not one of ours.
        return None
