"""MO-PBT and MO-ASHA as schedulers for Ray Tune.

Use them if you already have a `Trainable` or a training function.

A trial of Ray Tune is a member of the population. At the end of an interval the member is saved,
then its report is recorded beside the experiment, and only then the scheduler of `mopbt.run`
decides. The member continues with the checkpoint and the hyperparameters of that decision. After
`Tuner.restore`, `History` rebuilds from the journal what Ray Tune itself does not keep, and
unfinished intervals restart from their checkpoint. `ray_tune_results` says why the journal is not a
run directory.

Starting an actor takes seconds, so a member keeps its actor between two intervals unless another
member is waiting for resources.
"""

import math
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow.fs
import ray
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT, TIME_TOTAL_S, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import SearchGenerator

from mopbt.algorithms import MOASHA as _MOASHA
from mopbt.algorithms import MOPBT as _MOPBT
from mopbt.algorithms import Algorithm, algorithm_of, options_of
from mopbt.errors import MissingExtra, RunMismatch, Stalled, TaskError
from mopbt.history import advanced
from mopbt.integrations.ray_tune_results import Experiment, Journal
from mopbt.objectives import Constraint, Direction, signed, total_violation
from mopbt.problem import make_problem
from mopbt.run_config import RunConfig
from mopbt.run_directory import check_same_settings
from mopbt.schedulers.asha import Asha
from mopbt.schedulers.base import Scheduler
from mopbt.space import Domain
from mopbt.state import Job, Report, State, required_checkpoints
from mopbt.stores.base import Exchange

__all__ = ["MOASHA", "MOPBT", "Experiment", "check_version"]

# The first tested version of Ray, and the first one after the tested ones.
TESTED_VERSIONS = ((2, 60), (2, 61))
# After so many rounds of Ray Tune's loop without a trial to run, the run has stalled.
MAX_IDLE_ROUNDS = 100


class _TuneScheduler(TrialScheduler):  # type: ignore[misc]
    """The part of both schedulers that does not depend on the algorithm."""

    _supports_buffered_results = False
    _algorithm: ClassVar[str]
    # The option of the algorithm that Ray Tune calls `num_samples`.
    _count: ClassVar[str]

    def __init__(
        self,
        *,
        space: Mapping[str, Domain],
        objectives: Mapping[str, Direction],
        max_t: int,
        interval: int = 1,
        constraints: Sequence[str | Constraint] = (),
        reference: Mapping[str, float] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_version()
        super().__init__()
        self._problem = make_problem(
            name="ray-tune",
            space=space,
            objectives=objectives,
            constraints=constraints,
            interval=interval,
            steps=max_t,
            reference=reference,
        )
        if self._count in options:
            raise ValueError(f"`{self._count}` is `num_samples` in TuneConfig; leave it out here")
        self._options = options
        self._seed = seed
        self._samples = 0
        # The number of members is not known yet, but wrong options are reported here.
        self._run_config(self._build_algorithm(2))
        self._is_open = False
        # The trials of this session by index.
        self._trials: dict[int, Trial] = {}
        # Results of members that are being saved.
        self._results: dict[int, Mapping[str, Any]] = {}
        # Members without a job that keep their actor.
        self._holding: set[int] = set()
        self._obsolete: set[str] = set()
        self._idle_rounds = 0

    # The interface of Ray Tune.

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Read `num_samples`; refuse a metric or a mode, because `objectives` gives both."""
        self._samples = spec.get("num_samples", 1)
        return metric is None and mode is None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial that is new, belongs to a restored experiment, or is retried."""
        if not self._is_open:
            self._open_journal(tune_controller, trial)
        free = next(i for i in range(len(self._trials) + 1) if i not in self._trials)
        index = self._journal.members.get(trial.trial_id, free)
        if self._trials.get(index) is trial:
            self._prepare_retry(tune_controller, trial, index)
            return
        self._check_trial(trial, index)
        self._trials[index] = trial
        if self._journal.members.get(trial.trial_id) != index:
            self._record(members={trial.trial_id: index})
        if not trial.is_finished():
            self._prepare_trial(trial, index)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Continue within an interval; at its end, check the metrics and save the member."""
        index = self._journal.members[trial.trial_id]
        job = self._find_job(index)
        if job is None or result[TRAINING_ITERATION] < job.end:
            return str(TrialScheduler.CONTINUE)
        signed(self._problem.objectives, result)
        total_violation(self._problem.constraints, result)
        self._results[index] = result
        if self._is_any_waiting():
            return str(TrialScheduler.PAUSE)
        # With this flag, Ray Tune saves the trial by itself.
        if not result.get(SHOULD_CHECKPOINT):
            tune_controller._schedule_trial_save(trial, result=result)
        return str(TrialScheduler.NOOP)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Handle a trial that Ray Tune stopped, or whose training function returned."""
        index = self._journal.members[trial.trial_id]
        # A trial that this scheduler stopped has finished already.
        if self._has_finished(index):
            return
        job = self._find_job(index)
        if job is not None:
            is_at_end = result.get(TRAINING_ITERATION, 0) == job.end
            if is_at_end and _saved_iteration(trial) == job.end:
                self._results[index] = result
                self._record_report(trial, index, job)
        self._remove_member(index, "Ray Tune ended the trial before its interval was saved")

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: Ray Tune may retry the trial."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: only trials that this scheduler stopped are removed."""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Record the reports of saved members, decide, and return a trial to run next."""
        for index, trial in self._trials.items():
            if trial.status == Trial.ERROR and not self._has_finished(index):
                self._remove_member(
                    index,
                    "the trial failed, and FailureConfig(max_failures=...) allows no retry",
                )
        for index in list(self._results):
            trial = self._trials[index]
            is_saved = trial.status == Trial.RUNNING and not trial.is_saving
            if is_saved or trial.status == Trial.PAUSED:
                job = self._find_job(index)
                assert job is not None
                self._record_report(trial, index, job)
        self._stop_finished_trials(tune_controller)
        chosen = self._assign_jobs(tune_controller)
        if chosen is None and self._is_any_waiting():
            self._release_actors(tune_controller)
        self._abort_if_stalled(chosen)
        return chosen

    def debug_string(self) -> str:
        """Return a line for Ray Tune's display."""
        if not self._is_open:
            return f"{type(self).__name__}: no intervals started"
        jobs = self._state.jobs
        front = len(self._journal.history.front)
        return f"{type(self).__name__}: {jobs} intervals started, {front} models on the front"

    # What depends on the algorithm.

    def _build_algorithm(self, members: int) -> Algorithm:
        return algorithm_of({"name": self._algorithm, self._count: members, **self._options})

    def _run_config(self, algorithm: Algorithm) -> RunConfig:
        return RunConfig(self._problem, options_of(algorithm), self._seed)

    def _end_of(self, job: Job) -> int:
        """Return the step at which a member is saved and evaluated next."""
        return job.end

    # Start and restore.

    def _open_journal(self, controller: Any, trial: Trial) -> None:
        """Start the journal of a new experiment, or rebuild the state of a restored one."""
        if isinstance(controller.search_alg, SearchGenerator):
            raise ValueError(
                f"{type(self).__name__} proposes configurations itself; leave `search_alg` out of "
                "TuneConfig"
            )
        place = (trial.storage.storage_filesystem, trial.storage.experiment_fs_path)
        journal = Journal.read(*place)
        self._size = self._samples
        if journal is not None:
            self._size = int(journal.settings.algorithm.get(self._count, -1))
        algorithm = self._build_algorithm(self._size)
        settings = self._run_config(algorithm)
        if journal is None:
            journal = Journal.start(*place, settings)
        check_same_settings(journal.folder, journal.settings, settings, "use another `name`")
        if journal.members and trial.trial_id not in journal.members:
            raise RunMismatch(
                f"{journal.folder} belongs to another experiment; resume it with Tuner.restore, or "
                "use another `name`"
            )
        self._journal = journal
        self._scheduler: Scheduler = algorithm.scheduler(self._problem)
        self._state: State = journal.history.state(self._scheduler, self._seed)
        self._started = time.monotonic() - journal.history.seconds
        self._is_open = True

    def _check_trial(self, trial: Trial, index: int) -> None:
        if 0 <= self._size <= index:
            raise ValueError(
                f"the experiment has more than {self._size} trials (`num_samples`); leave "
                "grid_search out of `param_space`"
            )
        num_to_keep = trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep
        if num_to_keep is not None:
            raise ValueError(
                f"leave `num_to_keep` out of CheckpointConfig, got {num_to_keep}: "
                f"{type(self).__name__} deletes the checkpoints that neither the front nor a "
                "member needs"
            )
        tuned = [name for name in self._problem.space if name in trial.config]
        if tuned and trial.trial_id not in self._journal.members:
            raise ValueError(
                f"{', '.join(map(repr, tuned))} is in the space of {type(self).__name__}; leave it "
                "out of `param_space`"
            )

    def _prepare_trial(self, trial: Trial, index: int) -> None:
        """Give a new member its first job; pause a restored one that has no job."""
        storage = trial.storage
        # A restored trial must not overwrite the checkpoints of the session before.
        last = _last_checkpoint_index(storage)
        storage.current_checkpoint_index = max(storage.current_checkpoint_index, last)
        if index >= len(self._state.trials):
            jobs = self._scheduler.ask(self._state, len(self._state.trials) + 1)
            self._start_job(next(job for job in jobs if job.trial == index))
        job = self._find_job(index)
        if job is None:
            trial.set_status(Trial.PAUSED)
        else:
            self._configure_trial(trial, job)

    def _prepare_retry(self, controller: Any, trial: Trial, index: int) -> None:
        """Let Ray Tune restart a failed trial from its last checkpoint if it has a job."""
        self._results.pop(index, None)
        self._holding.discard(index)
        if self._find_job(index) is None:
            controller._set_trial_status(trial, Trial.PAUSED)

    # Members.

    def _find_job(self, index: int) -> Job | None:
        """Return the unfinished job of a member, if it has one."""
        return next((job for job in self._state.outstanding.values() if job.trial == index), None)

    def _status(self, index: int) -> str:
        return self._state.trials[index].status if index < len(self._state.trials) else ""

    def _has_finished(self, index: int) -> bool:
        return self._status(index) in ("finished", "stopped")

    def _is_paused(self, index: int) -> bool:
        """Return whether a trial has no actor and its result has been recorded."""
        return self._trials[index].status == Trial.PAUSED and index not in self._results

    def _is_any_waiting(self) -> bool:
        """Return whether a member has work to do but no actor."""
        busy = {job.trial for job in self._state.outstanding.values()}
        for index, trial in self._trials.items():
            if trial.status == Trial.PENDING:
                return True
            has_work = index in busy or self._status(index) == "ready"
            if has_work and self._is_paused(index):
                return True
        return False

    def _release_actors(self, controller: Any) -> None:
        """Take the actors from members that wait for others."""
        for index in self._holding:
            controller.pause_trial(self._trials[index], should_checkpoint=False)
        self._holding.clear()

    def _stop_finished_trials(self, controller: Any) -> None:
        is_done = self._scheduler.done(self._state)
        for index, trial in self._trials.items():
            is_idle = trial.status == Trial.PAUSED or index in self._holding
            if is_idle and (is_done or self._has_finished(index)):
                self._holding.discard(index)
                controller.stop_trial(trial)

    def _abort_if_stalled(self, chosen: Trial | None) -> None:
        unfinished = [i for i, trial in self._trials.items() if not trial.is_finished()]
        are_idle = all(
            self._trials[i].status == Trial.PAUSED or i in self._holding for i in unfinished
        )
        if chosen is None and unfinished and are_idle:
            self._idle_rounds += 1
        else:
            self._idle_rounds = 0
        if self._idle_rounds > MAX_IDLE_ROUNDS:
            raise Stalled(
                f"all {len(self._trials)} trials wait for the rest of a population of "
                f"{self._size}, which Ray Tune does not start; leave `max_concurrent_trials` out "
                "of TuneConfig (resources limit how many trials run at a time)"
            )

    # Reports and jobs.

    def _record_report(self, trial: Trial, index: int, job: Job) -> None:
        """Record the metrics of a member that has been saved."""
        result = self._results.pop(index)
        checkpoint = trial.checkpoint
        if checkpoint is None or _saved_iteration(trial) != job.end:
            raise TaskError(
                f"trial {trial.trial_id} saved no checkpoint at iteration {job.end}, the end of "
                "its interval; a training function must pass `checkpoint=` to tune.report every "
                f"{self._problem.interval} iterations"
            )
        names = [objective.name for objective in self._problem.objectives]
        names += [constraint.name for constraint in self._problem.constraints]
        report = Report(
            job.id,
            objectives=signed(self._problem.objectives, result),
            violation=total_violation(self._problem.constraints, result),
            scores={name: float(result[name]) for name in names},
            seconds=time.monotonic() - self._started,
        )
        if trial.status == Trial.RUNNING:
            self._holding.add(index)
        paths = {job.id: _relative_path(trial, checkpoint)}
        self._record(Exchange(reports=(report,)), paths=paths)
        self._delete_obsolete_checkpoints()

    def _remove_member(self, index: int, reason: str) -> None:
        """Remove a member from the population; its unfinished job fails."""
        self._results.pop(index, None)
        self._holding.discard(index)
        # A trial that never had a job is not known to the scheduler.
        if index >= len(self._state.trials):
            return
        exchanges = [Exchange(left=(index,))]
        job = self._find_job(index)
        if job is not None:
            exchanges.insert(0, Exchange(reports=(Report(job.id, error=reason),)))
        self._record(*exchanges)

    def _assign_jobs(self, controller: Any) -> Trial | None:
        """Give jobs to members that have an actor, and return a trial that needs one."""
        jobs: tuple[Job, ...] = ()
        if self._holding or any(map(self._is_paused, self._trials)):
            jobs = self._scheduler.ask(self._state, len(self._state.trials) + 1)
        paused = [job for job in jobs if job.trial in self._trials and self._is_paused(job.trial)]
        elsewhere = []
        for job in jobs:
            if job.trial not in self._holding:
                continue
            if self._continues_member(job):
                self._holding.discard(job.trial)
                self._start_job(job)
                _continue_training(controller, self._trials[job.trial])
            else:
                elsewhere.append(job)
        self._pause_and_configure(controller, elsewhere, may_wait=bool(paused))
        # Trials that have a job, but that Ray Tune has not started yet, come first.
        for job in self._state.outstanding.values():
            if job.trial in self._trials and self._is_paused(job.trial):
                return self._trials[job.trial]
        if not paused:
            return None
        trial = self._trials[paused[0].trial]
        self._configure_trial(trial, self._start_job(paused[0]))
        return trial

    def _continues_member(self, job: Job) -> bool:
        """Return whether a job continues its member unchanged: same weights, same config."""
        if job.start is None:
            return False
        last = self._journal.history.job(job.start)
        return last.trial == job.trial and last.end == job.begin and last.config == job.config

    def _pause_and_configure(self, controller: Any, jobs: Sequence[Job], *, may_wait: bool) -> None:
        """Pause members whose jobs start from another checkpoint or config.

        Ray Tune reuses the actor of a paused trial only if another trial is waiting for one. If no
        trial is pending, one member is therefore paused at a time, and none if `may_wait`: then
        another paused trial has a job and runs first.
        """
        is_any_pending = any(trial.status == Trial.PENDING for trial in self._trials.values())
        if not is_any_pending:
            jobs = [] if may_wait else jobs[:1]
        for job in jobs:
            trial = self._trials[job.trial]
            self._holding.discard(job.trial)
            controller.pause_trial(trial, should_checkpoint=False)
            self._configure_trial(trial, self._start_job(job))

    def _start_job(self, job: Job) -> Job:
        """Record a job and return it with its id and its end."""
        job = replace(job, id=self._state.jobs, end=self._end_of(job))
        self._record(Exchange(jobs=(job,)))
        return job

    # The journal.

    def _record(
        self,
        *exchanges: Exchange,
        members: Mapping[str, int] | None = None,
        paths: Mapping[int, str] | None = None,
    ) -> None:
        """Write a record to the journal, then act on it."""
        self._journal.append(exchanges, members or {}, paths or {})
        for exchange in exchanges:
            self._state = advanced(self._state, self._scheduler, exchange)

    def _delete_obsolete_checkpoints(self) -> None:
        """Delete checkpoints that were not needed for two reports.

        A checkpoint is needed by a member or by the front.
        """
        front = {entry.job for entry in self._journal.history.front}
        paths = self._journal.paths
        keep = {paths[job] for job in required_checkpoints(self._state) | front if job in paths}
        obsolete = set()
        for trial in self._trials.values():
            for saved, path in _older_checkpoints(trial):
                if path in keep:
                    continue
                obsolete.add(path)
                if path in self._obsolete:
                    _delete_checkpoint(trial, saved)
        self._obsolete = obsolete

    # The internals of Ray.

    def _configure_trial(self, trial: Trial, job: Job) -> None:
        """Set the hyperparameters, checkpoint and iteration of a trial that has no actor."""
        hp = self._problem.space.decode(job.config)
        trial.set_config({**trial.config, **hp})
        trial.evaluated_params.update(hp)
        manager = trial.run_metadata.checkpoint_manager
        if job.start is None:
            manager._latest_checkpoint_result = None
            return
        storage = trial.storage
        path = posixpath.join(storage.experiment_fs_path, self._journal.paths[job.start])
        has_path = trial.checkpoint is not None and trial.checkpoint.path == path
        if has_path and _saved_iteration(trial) == job.begin:
            return
        metrics = {
            TRAINING_ITERATION: job.begin,
            TIME_TOTAL_S: (trial.last_result or {}).get(TIME_TOTAL_S, 0.0),
        }
        checkpoint = Checkpoint(path, storage.storage_filesystem)
        manager._latest_checkpoint_result = _TrainingResult(checkpoint, metrics)


class MOPBT(_TuneScheduler):
    """MO-PBT of the `num_samples` trials of an experiment.

    Every `interval` iterations, until `max_t`, a member is saved and evaluated, and may be replaced
    by a better one. `options` are those of `mopbt.MOPBT` (`fraction`, `explore`, `resample`,
    `asynchronous`, `within`, ...).
    """

    _algorithm = _MOPBT.name
    _count = "population"


class MOASHA(_TuneScheduler):
    """Multi-objective asynchronous successive halving of the `num_samples` trials.

    A trial is saved and evaluated after `grace` intervals, then after `eta` times as many each
    time, and at `max_t`. `options` are those of `mopbt.MOASHA` (`eta`, `grace`, `kind`, `within`,
    `scale`).
    """

    _algorithm = _MOASHA.name
    _count = "trials"

    def _end_of(self, job: Job) -> int:
        """Return the step of the next rung."""
        assert isinstance(self._scheduler, Asha)
        rungs = [rung for rung in self._scheduler.rungs if rung >= job.end]
        return min(rungs, default=self._problem.steps)


def check_version(version: str = ray.__version__) -> None:
    """Raise MissingExtra unless the schedulers are tested with this version of Ray."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    first, end = TESTED_VERSIONS
    if not first <= numbers < end:
        allowed = f">={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        raise MissingExtra(
            f"the schedulers for Ray Tune are tested with Ray {allowed}, got {version}: "
            f"pip install 'ray[tune]{allowed}'"
        )


def _continue_training(controller: Any, trial: Trial) -> None:
    """Continue training in the actor of a trial."""
    # Ray Tune gives schedulers a wrapper, which would warn about this call.
    getattr(controller, "_tune_controller", controller)._schedule_trial_train(trial)


def _saved_iteration(trial: Trial) -> float:
    """Return the iteration of the last checkpoint; NaN if there is none."""
    saved = trial.latest_checkpoint_result
    return float(saved.metrics.get(TRAINING_ITERATION, math.nan)) if saved is not None else math.nan


def _relative_path(trial: Trial, checkpoint: Checkpoint) -> str:
    return str(posixpath.relpath(checkpoint.path, trial.storage.experiment_fs_path))


def _older_checkpoints(trial: Trial) -> Iterator[tuple[Any, str]]:
    """Yield the earlier checkpoints of a trial with their paths."""
    latest = trial.checkpoint
    latest_path = "" if latest is None else _relative_path(trial, latest)
    # Without `num_to_keep`, the list of the best checkpoints holds all of them.
    for saved in list(trial.run_metadata.checkpoint_manager.best_checkpoint_results):
        if saved.checkpoint is None or saved is trial.latest_checkpoint_result:
            continue
        path = _relative_path(trial, saved.checkpoint)
        if path != latest_path:
            yield saved, path


def _delete_checkpoint(trial: Trial, saved: Any) -> None:
    trial.run_metadata.checkpoint_manager.best_checkpoint_results.remove(saved)
    # A session before a restore may have deleted it already.
    with suppress(FileNotFoundError):
        saved.checkpoint.filesystem.delete_dir(saved.checkpoint.path)


def _last_checkpoint_index(storage: Any) -> int:
    """Return the number of a trial's last checkpoint; -1 if it has none."""
    # A new trial has no folder.
    if storage.trial_dir_name is None:
        return -1
    selector = pyarrow.fs.FileSelector(storage.trial_fs_path, allow_not_found=True)
    files = storage.storage_filesystem.get_file_info(selector)
    matches = [re.fullmatch(r"checkpoint_(\d+)", file.base_name) for file in files]
    return max((int(match[1]) for match in matches if match), default=-1)
