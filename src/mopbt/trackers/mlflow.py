"""MLflow as a tracker."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mopbt.front import Point
from mopbt.results import Results
from mopbt.trackers.base import (
    Evaluation,
    PopulationMetrics,
    Tracker,
    evaluations_of,
    import_package,
    run_key,
    run_name,
    track,
)

# Maximum number of metrics that MLflow accepts in one call.
BATCH = 1000
_SQLITE = "sqlite:///"
# Maximum number of results that MLflow returns in one search.
MAX_RUNS = 50000


class MLflow(Tracker):
    """Writes MLflow runs: one for the population, with a child run for each branch.

    The tag ``mopbt.forked_from`` of a branch holds the id of its donor's run.

    Args:
        tracking_uri: Where MLflow writes, such as ``sqlite:///mlflow.db``; None is MLflow's own
            default.
        experiment: The name of the experiment.
        models: Whether to log the models of the front when the run ends, each as a `LoggedModel`
            with its hyperparameters, metrics, weights and card. The tag ``mopbt.front`` of a model
            that later leaves the front becomes "false".
        private: Leave out the name of the run's directory, and where the task is.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "mopbt",
        models: bool = False,
        private: bool = False,
    ) -> None:
        self._uri = tracking_uri
        self._experiment_name = experiment
        self._models = models
        self._private = private
        # Run ids by branch.
        self._children: dict[int, str] = {}

    def begin(self, results: Results) -> int:
        """Open the log of a run and return the number of reports it already holds."""
        self._results = results
        self._entities = import_package("mlflow.entities", "mlflow")
        self._client = import_package("mlflow", "mlflow").MlflowClient(self._uri)
        self._experiment = self._find_experiment()
        tags = self._find_parent(results)
        # Timestamps do not depend on the session, so that a metric can be found again.
        self._started = float(tags["mopbt.started"])
        self._logged = int(tags["mopbt.logged"])
        self._pending = int(tags["mopbt.pending"])
        self._client.update_run(self._parent, status="RUNNING")
        children = self._search(f"tags.`mlflow.parentRunId` = '{self._parent}'")
        self._children = {int(run.data.tags["mopbt.branch"]): run.info.run_id for run in children}
        return self._logged

    def write(
        self, evaluations: Sequence[Evaluation], population: Sequence[PopulationMetrics]
    ) -> None:
        """Add metrics, in batches for each run."""
        # A process that died may have written some of the reports up to `mopbt.pending`.
        is_repeated = self._pending > self._logged
        end = self._logged + len(evaluations)
        self._set_tag("mopbt.pending", max(end, self._pending))
        by_run: dict[str, list[Any]] = {}
        for e in evaluations:
            by_run.setdefault(self._open_child(e), []).extend(self._metrics_of(e))
        by_run[self._parent] = []
        for row in population:
            for name, value in row.metrics.items():
                by_run[self._parent].append(self._metric(name, value, row.seconds, row.reports))
        for run, metrics in by_run.items():
            new = self._without_known(run, metrics) if is_repeated else metrics
            for batch in _batches(new, BATCH):
                self._client.log_batch(run, metrics=batch)
        self._set_tag("mopbt.logged", end)
        self._logged = end

    def end(self) -> None:
        """Log the models of the front, if wanted, and mark all runs as finished."""
        if self._models:
            self._log_models()
        for run in (self._parent, *self._children.values()):
            self._client.set_terminated(run)

    def _find_experiment(self) -> str:
        """Return the id of the experiment; create it if it does not exist."""
        experiment = self._client.get_experiment_by_name(self._experiment_name)
        if experiment:
            return str(experiment.experiment_id)
        # By default, MLflow would put models of a local database into the working directory.
        folder = None
        if self._uri is not None and self._uri.startswith(_SQLITE):
            database = Path(self._uri.removeprefix(_SQLITE)).absolute()
            folder = (database.parent / "mlflow-models").as_uri()
        return str(self._client.create_experiment(self._experiment_name, folder))

    def _find_parent(self, results: Results) -> dict[str, str]:
        """Find or create the run of the population and return its tags."""
        key = run_key(results)
        runs = self._search(f"tags.`mopbt.run` = '{key}'")
        if runs:
            self._parent = str(runs[0].info.run_id)
            tags: dict[str, str] = dict(runs[0].data.tags)
        else:
            started = time.time() - results.seconds
            tags = {"mopbt.run": key, "mopbt.started": repr(started)}
            tags |= {"mopbt.logged": "0", "mopbt.pending": "0"}
            name = results.problem.name if self._private else run_name(results)
            self._parent = self._create_run(name, tags)
        params = {"task": results.problem.name, "seed": results.settings.seed}
        for name, value in results.settings.algorithm.items():
            params[f"algorithm.{name}"] = value
        self._log_params(self._parent, params)
        return tags

    def _set_tag(self, name: str, value: int) -> None:
        self._client.set_tag(self._parent, name, str(value))

    def _without_known(self, run: str, metrics: Sequence[Any]) -> list[Any]:
        """Return the metrics that a run does not hold yet."""
        known = set()
        for key in {metric.key for metric in metrics}:
            for metric in self._client.get_metric_history(run, key):
                known.add((key, metric.step, metric.timestamp))
        return [m for m in metrics if (m.key, m.step, m.timestamp) not in known]

    def _search(self, query: str) -> Any:
        return self._client.search_runs([self._experiment], query, max_results=MAX_RUNS)

    def _open_child(self, e: Evaluation) -> str:
        """Return the id of a branch's run; create it if it does not exist."""
        branch = e.branch
        if branch.id not in self._children:
            tags = {
                "mlflow.parentRunId": self._parent,
                "mopbt.branch": str(branch.id),
                "mopbt.origin": branch.origin,
            }
            if branch.fork is not None:
                tags["mopbt.forked_from"] = self._children[branch.fork.branch.id]
                tags["mopbt.forked_at_step"] = str(branch.fork.step)
            self._children[branch.id] = self._create_run(branch.name, tags)
        if e.is_first:
            self._log_params(self._children[branch.id], {"trial": branch.trial, **e.hp})
        return self._children[branch.id]

    def _create_run(self, name: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def _log_params(self, run: str, params: Mapping[str, Any]) -> None:
        """Log parameters; the same ones may be logged again."""
        entities = [
            self._entities.Param(_replace_invalid(key), str(value)) for key, value in params.items()
        ]
        self._client.log_batch(run, params=entities)

    def _metrics_of(self, e: Evaluation) -> Iterator[Any]:
        fork = e.branch.fork
        if e.is_first and fork is not None:
            for name, value in fork.scores.items():
                yield self._metric(name, value, fork.seconds, fork.step)
        for name, value in e.scores.items():
            yield self._metric(name, value, e.seconds, e.step)
        for name, value in e.numeric_hp.items():
            yield self._metric(f"hyperparameters/{name}", value, e.seconds, e.step)

    def _metric(
        self, name: str, value: float, seconds: float, step: int, model: str | None = None
    ) -> Any:
        milliseconds = int((self._started + seconds) * 1000)
        key = _replace_invalid(name)
        return self._entities.Metric(key, float(value), milliseconds, step, model_id=model)

    def _log_models(self) -> None:
        """Log new models of the front, and mark those that left it."""
        kept = self._results.models_with_weights()
        front = {point.model: point for point in self._results.front() if point.model in kept}
        for logged in self._find_models():
            model = int(logged.tags["mopbt.model"])
            if str(logged.status) != "READY":
                # A process died while it logged this one.
                self._client.delete_logged_model(logged.model_id)
                continue
            is_on_front = str(model in front).lower()
            self._client.set_logged_model_tags(logged.model_id, {"mopbt.front": is_on_front})
            front.pop(model, None)
        branches = {e.model: e.branch.id for e in evaluations_of(self._results)}
        for point in front.values():
            self._log_model(point, self._children[branches[point.model]])

    def _find_models(self) -> list[Any]:
        query = f"tags.`mopbt.run` = '{run_key(self._results)}'"
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_logged_models([self._experiment], query, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _log_model(self, point: Point, run: str) -> None:
        params = {_replace_invalid(name): str(value) for name, value in point.hp.items()}
        tags = {"mopbt.run": run_key(self._results), "mopbt.model": str(point.model)}
        logged = self._client.create_logged_model(
            self._experiment,
            name=f"model-{point.model}",
            source_run_id=run,
            params=params | {"trial": str(point.trial), "step": str(point.step)},
            tags=tags | {"mopbt.front": "true"},
            model_type="mopbt",
        )
        metrics = []
        for name, value in point.scores.items():
            metrics.append(
                self._metric(name, value, point.seconds, point.step, model=logged.model_id)
            )
        self._client.log_batch(run, metrics=metrics)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            self._results.export(point, file, private=self._private)
            self._client.log_model_artifacts(logged.model_id, folder)
        self._client.finalize_logged_model(logged.model_id, "READY")


def _replace_invalid(name: str) -> str:
    """Replace the characters that MLflow does not accept in a name."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def to_mlflow(
    results: Results,
    tracking_uri: str | None = None,
    *,
    experiment: str = "mopbt",
    models: bool = False,
    private: bool = False,
) -> None:
    """Write a run to MLflow; the options are those of `MLflow`."""
    tracker = MLflow(tracking_uri, experiment=experiment, models=models, private=private)
    track(results, tracker)
