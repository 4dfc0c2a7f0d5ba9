"""Weights & Biases as a tracker."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mopbt.results import Results
from mopbt.trackers.base import (
    PRIVATE,
    Evaluation,
    LogPosition,
    PopulationMetrics,
    Tracker,
    exception_name,
    import_package,
    run_name,
    track,
)

OFFLINE_RUNS = "offline-run-*"


class WandB(Tracker):
    """Writes a group of W&B runs: one for the population, one for each branch.

    In offline mode, the default, they are files below a directory; ``wandb sync`` uploads them. The
    config of a fork names its donor, and its history begins with the donor's metrics. W&B's own
    `fork_from` is not used, because it needs a server.

    W&B adds the name of the host and of the user. `private` replaces them, and leaves out the name
    of the run's directory and the tracebacks of failed intervals.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        project: str = "mopbt",
        mode: str = "offline",
        private: bool = False,
    ) -> None:
        self._private = private
        self._directory = Path(directory)
        self._project = project
        self._mode = mode
        self._population: Any = None
        # The open run of each trial, and the branch that it logs.
        self._runs: dict[int, Any] = {}
        self._branches: dict[int, int] = {}

    def begin(self, results: Results) -> int:
        """Open the log of a run and return the number of reports it already holds."""
        self._wandb = import_package("wandb", "wandb")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._position = LogPosition.read(self._directory, results)
        if self._position.pending:
            self._remove_pending()
        self._position = self._position.begin_write({"known": self._offline_runs()})
        self._written = 0
        self._is_writing = False
        self._group = results.problem.name if self._private else run_name(results)
        config = {
            "task": results.problem.name,
            "algorithm": dict(results.settings.algorithm),
            "seed": results.settings.seed,
        }
        self._population = self._init("population", "population", config)
        return self._position.logged

    def write(
        self, evaluations: Sequence[Evaluation], population: Sequence[PopulationMetrics]
    ) -> None:
        """Add rows to the histories of the branches and of the population."""
        self._is_writing = True
        for e in evaluations:
            run = self._open(e)
            fork = e.branch.fork
            if e.is_first and fork is not None:
                run.log(dict(fork.scores), step=fork.step)
            row: dict[str, Any] = dict(e.scores)
            row |= {f"hyperparameters/{name}": value for name, value in e.hp.items()}
            row["seconds"] = e.seconds
            if e.error:
                row["error"] = exception_name(e.error) if self._private else e.error
            run.log(row, step=e.step)
        for after in population:
            row = {**after.metrics, "seconds": after.seconds}
            self._population.log(row, step=after.reports)
        self._written += len(evaluations)
        self._is_writing = False

    def end(self) -> None:
        """Finish all runs."""
        for run in (self._population, *self._runs.values()):
            run.finish()
        # W&B writes to the disk at some later time, and everything only when a run is finished.
        if not self._is_writing:
            self._position = self._position.commit(self._written)
        self._runs.clear()
        self._branches.clear()

    def _offline_runs(self) -> list[str]:
        """Return the names of the directories that the offline mode has written."""
        return sorted(path.name for path in (self._directory / "wandb").glob(OFFLINE_RUNS))

    def _remove_pending(self) -> None:
        """Remove the runs of a session that died; the next one logs its reports again.

        Online, nothing is removed: W&B ignores rows at steps that a resumed run already has.
        """
        for name in set(self._offline_runs()) - set(self._position.pending["known"]):
            shutil.rmtree(self._directory / "wandb" / name)

    def _open(self, e: Evaluation) -> Any:
        """Return the run of a branch; finish the run of the trial's previous branch."""
        branch = e.branch
        if self._branches.get(branch.trial) != branch.id:
            if branch.trial in self._runs:
                self._runs.pop(branch.trial).finish()
            config = dict(e.hp) | {"trial": branch.trial, "origin": branch.origin}
            if branch.fork is not None:
                config["forked_from"] = self._run_id(branch.fork.branch.name)
                config["forked_at_step"] = branch.fork.step
            self._runs[branch.trial] = self._init(branch.name, "branch", config)
            self._branches[branch.trial] = branch.id
        return self._runs[branch.trial]

    def _run_id(self, name: str) -> str:
        return f"{self._position.key}-{name}"

    def _init(self, name: str, kind: str, config: Mapping[str, Any]) -> Any:
        quiet = self._wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
        )
        if self._private:
            hidden = {"host": PRIVATE, "username": PRIVATE, "x_disable_machine_info": True}
            quiet = quiet.model_copy(update={**hidden, "disable_code": True})
        return self._wandb.init(
            project=self._project,
            group=self._group,
            job_type=kind,
            name=name,
            id=self._run_id(name),
            config=dict(config),
            resume="allow" if self._mode == "online" else None,
            dir=str(self._directory),
            mode=self._mode,
            reinit="create_new",
            settings=quiet,
        )


def to_wandb(
    results: Results,
    directory: Path | str,
    *,
    project: str = "mopbt",
    mode: str = "offline",
    private: bool = False,
) -> None:
    """Write a run as W&B runs below a directory; the options are those of `WandB`."""
    track(results, WandB(directory, project=project, mode=mode, private=private))
