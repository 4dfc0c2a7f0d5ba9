"""TensorBoard, MLflow and Weights & Biases as trackers: what they are told is `mopbt.trackers.base`'s."""

import hashlib
import importlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt.errors import MissingExtra
from mopbt.results import Results
from mopbt.trackers.base import Evaluation, Standing, follow, track

__all__ = [
    "MLflow",
    "TensorBoard",
    "WandB",
    "follow",
    "to_mlflow",
    "to_tensorboard",
    "to_wandb",
    "track",
]

OPEN = 64  # files that are open at a time
MARK = (
    "mopbt.json"  # beside logs in a directory: of which run they are, and how much of it they hold
)


class TensorBoard:
    """Writes scalars for TensorBoard below a directory: ``population``, and each branch as a run of its own."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._writers: OrderedDict[str, Any] = OrderedDict()

    def begin(self, results: Results) -> int:
        """Open the log of a run."""
        self._make = _tensorboard_writer()
        self._mark = _Mark.read(self._directory, results)
        self._since = time.time() - results.seconds
        return self._mark.logged

    def write(self, evaluations: Sequence[Evaluation], standings: Sequence[Standing]) -> None:
        """Add scalars; a fork begins with the donor's scores."""
        for evaluation in evaluations:
            self._write_one(evaluation)
        for standing in standings:
            for name, value in standing.measures.items():
                self._scalar("population", name, value, standing.reports, standing.seconds)
        for writer in self._writers.values():
            writer.flush()
        self._mark = self._mark.grown(len(evaluations))

    def end(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write_one(self, e: Evaluation) -> None:
        run = e.branch.name
        if e.first:
            fork = e.branch.fork
            self._writer(run).add_text("origin", e.branch.origin, e.step, self._since + e.seconds)
            for name, score in fork.scores.items() if fork else ():
                self._scalar(run, f"scores/{name}", score, fork.step, fork.seconds)  # type: ignore[union-attr]
        for name, score in e.scores.items():
            self._scalar(run, f"scores/{name}", score, e.step, e.seconds)
        for name, value in e.numbers.items():
            self._scalar(run, f"hyperparameters/{name}", value, e.step, e.seconds)
        texts = {
            f"hyperparameters/{name}": str(value)
            for name, value in e.hp.items()
            if name not in e.numbers
        }
        for name, text in (texts | ({"error": e.error} if e.error else {})).items():
            self._writer(run).add_text(name, text, e.step, self._since + e.seconds)

    def _scalar(self, run: str, name: str, value: float, step: int, seconds: float) -> None:
        self._writer(run).add_scalar(name, value, step, self._since + seconds)

    def _writer(self, run: str) -> Any:
        if run not in self._writers:
            self._writers[run] = self._make(str(self._directory / run))
        self._writers.move_to_end(run)
        if len(self._writers) > OPEN:
            self._writers.popitem(last=False)[1].close()
        return self._writers[run]


class WandB:
    """Writes runs of Weights & Biases: a group of one for the population and one for each branch.

    Offline (the default) they are files below a directory, which ``wandb sync`` sends. A fork names its donor in its configuration
    and begins at the donor's scores; W&B's own `fork_from` needs a server that is at hand.
    """

    def __init__(
        self, directory: Path | str, *, project: str = "mopbt", mode: str = "offline"
    ) -> None:
        self._directory, self._project, self._mode = Path(directory), project, mode
        self._runs: dict[int, Any] = {}  # of the branches that go on, by trial; -1: the population
        self._branches: dict[int, int] = {}

    def begin(self, results: Results) -> int:
        """Open the log of a run."""
        self._wandb = _imported("wandb", "wandb")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._mark = _Mark.read(self._directory, results)
        self._group = results.path.name if results.path else results.problem.name
        about = {
            "task": results.problem.name,
            "algorithm": dict(results.settings.algorithm),
            "seed": results.settings.seed,
        }
        self._runs[-1] = self._init("population", "population", about)
        return self._mark.logged

    def write(self, evaluations: Sequence[Evaluation], standings: Sequence[Standing]) -> None:
        """Add rows to the histories of the branches and of the population."""
        for evaluation in evaluations:
            run = self._run(evaluation)
            fork = evaluation.branch.fork if evaluation.first else None
            if fork:
                run.log(dict(fork.scores), step=fork.step)
            hyperparameters = {
                f"hyperparameters/{name}": value for name, value in evaluation.hp.items()
            }
            failed = {"error": evaluation.error} if evaluation.error else {}
            run.log(
                {**evaluation.scores, **hyperparameters, "seconds": evaluation.seconds, **failed},
                step=evaluation.step,
            )
        for standing in standings:
            self._runs[-1].log(
                {**standing.measures, "seconds": standing.seconds}, step=standing.reports
            )
        self._mark = self._mark.grown(len(evaluations))

    def end(self) -> None:
        """Finish all runs."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
        self._branches.clear()

    def _run(self, e: Evaluation) -> Any:
        """Return the run of a branch; the trial's branch before it is finished."""
        trial = e.branch.trial
        if self._branches.get(trial) != e.branch.id:
            if trial in self._runs:
                self._runs.pop(trial).finish()
            origin = {"trial": trial, "origin": e.branch.origin}
            if e.branch.fork:
                origin |= {
                    "forked_from": self._id(e.branch.fork.branch.name),
                    "forked_at_step": e.branch.fork.step,
                }
            self._runs[trial] = self._init(e.branch.name, "branch", dict(e.hp) | origin)
            self._branches[trial] = e.branch.id
        return self._runs[trial]

    def _id(self, name: str) -> str:
        return f"{self._mark.key}-{name}"

    def _init(self, name: str, kind: str, config: Mapping[str, Any]) -> Any:
        quiet = self._wandb.RunConfig(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
        )
        what = {
            "project": self._project,
            "group": self._group,
            "job_type": kind,
            "name": name,
            "id": self._id(name),
        }
        how = {
            "dir": str(self._directory),
            "mode": self._mode,
            "reinit": "create_new",
            "settings": quiet,
        }
        return self._wandb.init(
            **what, config=dict(config), resume="allow" if self._mode == "online" else None, **how
        )


class MLflow:
    """Writes runs of MLflow: one for the population, and below it one for each branch, tagged with the run it was forked from."""

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "mopbt") -> None:
        self._uri, self._experiment_name = tracking_uri, experiment
        self._children: dict[int, str] = {}  # run ids by branch

    def begin(self, results: Results) -> int:
        """Open the log of a run: a new one, or that of an earlier session."""
        mlflow = _imported("mlflow", "mlflow")
        self._entities = _imported("mlflow.entities", "mlflow")
        self._client = mlflow.MlflowClient(self._uri)
        found = self._client.get_experiment_by_name(self._experiment_name)
        self._experiment = (
            found.experiment_id if found else self._client.create_experiment(self._experiment_name)
        )
        self._since = time.time() - results.seconds
        key = _key(results)
        runs = self._client.search_runs([self._experiment], f"tags.`mopbt.run` = '{key}'")
        name = results.path.name if results.path else results.problem.name
        self._parent = (
            runs[0].info.run_id
            if runs
            else self._create(name, {"mopbt.run": key}, self._about(results))
        )
        self._client.update_run(self._parent, status="RUNNING")
        children = self._client.search_runs(
            [self._experiment], f"tags.`mlflow.parentRunId` = '{self._parent}'", max_results=50000
        )
        self._children = {int(run.data.tags["mopbt.branch"]): run.info.run_id for run in children}
        return int(runs[0].data.tags.get("mopbt.logged", 0)) if runs else 0

    def write(self, evaluations: Sequence[Evaluation], standings: Sequence[Standing]) -> None:
        """Add metrics, a batch for each branch."""
        batches: dict[str, list[Any]] = {}
        for e in evaluations:
            batches.setdefault(self._child(e), []).extend(self._metrics(e))
        batches[self._parent] = [
            self._metric(name, value, standing.seconds, standing.reports)
            for standing in standings
            for name, value in standing.measures.items()
        ]
        for run, metrics in batches.items():
            for some in _pieces(metrics, 1000):  # as many as MLflow takes at a time
                self._client.log_batch(run, metrics=some)
        logged = int(self._client.get_run(self._parent).data.tags.get("mopbt.logged", 0)) + len(
            evaluations
        )
        self._client.set_tag(self._parent, "mopbt.logged", str(logged))

    def end(self) -> None:
        """Mark all runs as finished."""
        for run in (self._parent, *self._children.values()):
            self._client.set_terminated(run)

    def _about(self, results: Results) -> dict[str, Any]:
        algorithm = {
            f"algorithm.{name}": value for name, value in results.settings.algorithm.items()
        }
        return {"task": results.problem.name, "seed": results.settings.seed} | algorithm

    def _child(self, e: Evaluation) -> str:
        branch = e.branch
        if branch.id not in self._children:
            tags = {
                "mlflow.parentRunId": self._parent,
                "mopbt.branch": str(branch.id),
                "mopbt.origin": branch.origin,
            }
            if branch.fork:
                tags |= {
                    "mopbt.forked_from": self._children[branch.fork.branch.id],
                    "mopbt.forked_at_step": str(branch.fork.step),
                }
            self._children[branch.id] = self._create(
                branch.name, tags, {"trial": branch.trial, **e.hp}
            )
        return self._children[branch.id]

    def _create(self, name: str, tags: Mapping[str, str], params: Mapping[str, Any]) -> str:
        run: str = self._client.create_run(
            self._experiment, run_name=name, tags=dict(tags)
        ).info.run_id
        self._client.log_batch(
            run,
            params=[self._entities.Param(_plain(key), str(value)) for key, value in params.items()],
        )
        return run

    def _metrics(self, e: Evaluation) -> Iterator[Any]:
        if e.first and e.branch.fork:
            for name, score in e.branch.fork.scores.items():
                yield self._metric(name, score, e.branch.fork.seconds, e.branch.fork.step)
        for name, value in {
            **e.scores,
            **{f"hyperparameters/{name}": value for name, value in e.numbers.items()},
        }.items():
            yield self._metric(name, value, e.seconds, e.step)

    def _metric(self, name: str, value: float, seconds: float, step: int) -> Any:
        return self._entities.Metric(
            _plain(name), float(value), int((self._since + seconds) * 1000), step
        )


def to_tensorboard(results: Results, directory: Path | str) -> None:
    """Write a run as TensorBoard's event files below a directory."""
    track(results, TensorBoard(directory))


def to_mlflow(
    results: Results, tracking_uri: str | None = None, *, experiment: str = "mopbt"
) -> None:
    """Write a run to MLflow, for example to ``sqlite:///mlflow.db``; None is where MLflow itself would write."""
    track(results, MLflow(tracking_uri, experiment=experiment))


def to_wandb(
    results: Results, directory: Path | str, *, project: str = "mopbt", mode: str = "offline"
) -> None:
    """Write a run as runs of Weights & Biases below a directory."""
    track(results, WandB(directory, project=project, mode=mode))


@dataclass(frozen=True)
class _Mark:
    """What a directory of logs says of itself."""

    directory: Path
    key: str  # of the run
    logged: int = 0

    @staticmethod
    def read(directory: Path, results: Results) -> "_Mark":
        """Read the mark of a directory, which must be the run's own, or new."""
        key, file = _key(results), directory / MARK
        if not file.is_file():
            return _Mark(directory, key)
        mark = _Mark(directory, **json.loads(file.read_text(encoding="utf-8")))
        if mark.key != key:
            raise ValueError(
                f"{directory} holds the log of another run; use a directory of its own for each run"
            )
        return mark

    def grown(self, n: int) -> "_Mark":
        """Return the mark after `n` more reports, and write it down."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / MARK).write_text(
            json.dumps({"key": self.key, "logged": self.logged + n}), encoding="utf-8"
        )
        return _Mark(self.directory, self.key, self.logged + n)


def _key(results: Results) -> str:
    """Return a short name of a run by which it is known again."""
    about = [results.path.name if results.path else "", results.problem.name, results.settings.seed]
    return hashlib.sha256(
        json.dumps([*about, sorted(results.settings.algorithm.items())], default=str).encode()
    ).hexdigest()[:10]


def _plain(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name)  # what MLflow takes for a name


def _pieces(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _tensorboard_writer() -> Callable[[str], Any]:
    _imported("tensorboard", "tensorboard")
    module = _imported("torch.utils.tensorboard", "tensorboard")
    writer: Callable[[str], Any] = module.SummaryWriter
    return writer


def _imported(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(
            f"this tracker needs {name.partition('.')[0]}: pip install 'mopbt[{extra}]'"
        ) from None
