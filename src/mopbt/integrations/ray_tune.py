"""MO-PBT and MO-ASHA as schedulers of Ray Tune, for those who have a `Trainable` or a training function already.

At the end of an interval a member is saved. Only then its report is written down beside the experiment, the same scheduler as in
`mopbt.run` decides, and the member goes on from the checkpoint and with the values that were decided. So after `Tuner.restore` the
journal tells all that Tune itself forgets, and a member that was under way repeats its interval. Between intervals a member keeps
its actor unless another one waits for the place: starting actors costs seconds.
"""

import json
import math
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
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

from mopbt import algorithms
from mopbt.algorithms import Algorithm, algorithm_of, options_of
from mopbt.archive import Archive, entry_of
from mopbt.errors import MissingExtra, RunMismatch, Stalled, TaskError
from mopbt.integrations.ray_tune_results import Experiment, Log
from mopbt.objectives import Constraint, Direction, signed, total_violation
from mopbt.problem import make_problem
from mopbt.run_config import RunConfig
from mopbt.schedulers.asha import Asha
from mopbt.schedulers.base import Scheduler
from mopbt.space import Domain
from mopbt.state import Job, Report, State, required_checkpoints, updated, with_jobs
from mopbt.stores.base import Exchange

__all__ = ["MOASHA", "MOPBT", "Experiment", "check_version"]

TESTED = ((2, 60), (2, 61))  # Ray from the first version up to, and without, the second
IDLE = 100  # rounds of Tune's loop in which nothing can go on before this counts as stalled


class _TuneScheduler(TrialScheduler):  # type: ignore[misc]
    """What both schedulers share: all but the algorithm."""

    _supports_buffered_results = False
    _algorithm: ClassVar[str]
    _count: ClassVar[str]  # the option of the algorithm that is Tune's `num_samples`

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
        limits: dict[str, Any] = {"interval": interval, "steps": max_t, "reference": reference}
        self._problem = make_problem(
            name="ray-tune", space=space, objectives=objectives, constraints=constraints, **limits
        )
        if self._count in options:
            raise ValueError(f"`{self._count}` is `num_samples` in TuneConfig; leave it out here")
        self._options = options
        self._seed = seed
        self._samples = 0
        self._settings(self._made(2))  # wrong options are told now
        self._log: Log | None = None
        self._members: dict[str, int] = {}  # Tune's ids of trials, and ours
        self._trials: dict[int, Trial] = {}  # those that Tune has in this session
        self._results: dict[int, Mapping[str, Any]] = {}  # of members that are being saved
        self._held: set[int] = set()  # members without an order that keep their actor
        self._orders: dict[int, Job] = {}
        self._paths: dict[
            int, str
        ] = {}  # of checkpoints, by job, seen from the experiment's folder
        self._obsolete: set[str] = set()
        self._archive = Archive()
        self._idle = 0

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Learn the size of the population; a metric or a mode in TuneConfig is refused, as `objectives` says both."""
        self._samples = spec.get("num_samples", 1)
        return metric is None and mode is None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Make a trial a member: a new one, one of a restored experiment, or one that Tune tries again."""
        if self._log is None:
            self._begin(tune_controller, trial)
        index = self._members.get(
            trial.trial_id, next(i for i in range(len(self._trials) + 1) if i not in self._trials)
        )
        if self._trials.get(index) is trial:
            self._retry(tune_controller, trial, index)
            return
        self._check_trial(trial, index)
        self._trials[index] = trial
        if self._members.get(trial.trial_id) != index:
            self._write(members={trial.trial_id: index})
        if not trial.is_finished():
            self._admit(trial, index)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let a member train on within its interval, and save it at the end; its scores must be there."""
        index = self._members[trial.trial_id]
        job = self._job(index)
        if job is None or result[TRAINING_ITERATION] < job.end:
            return str(TrialScheduler.CONTINUE)
        signed(self._problem.objectives, result)
        total_violation(self._problem.constraints, result)
        self._results[index] = result
        if self._somebody_waits():
            return str(TrialScheduler.PAUSE)
        if not result.get(SHOULD_CHECKPOINT):  # then Tune saves it by itself
            tune_controller._schedule_trial_save(trial, result=result)
        return str(TrialScheduler.NOOP)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Take leave of a member that Tune's own `stop` ended, or whose function returned."""
        index = self._members[trial.trial_id]
        job = self._job(index)
        if self._is_over(index):  # it was stopped here
            return
        if (
            job is not None
            and result.get(TRAINING_ITERATION, 0) == job.end
            and _iteration(trial) == job.end
        ):
            self._results[index] = result
            self._report(trial, index, job)
        self._leave(index, "Tune ended the trial before its interval was over and saved")

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Wait and see whether Tune tries it again."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Know it already: who is removed was stopped here."""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Take in the reports of those that are saved, decide, and return a member that can go on."""
        for index, trial in self._trials.items():
            if trial.status == Trial.ERROR and not self._is_over(index):
                self._leave(
                    index,
                    "the trial failed, and FailureConfig(max_failures=...) does not let it try again",
                )
        for index in [index for index in self._results if self._is_saved(self._trials[index])]:
            job = self._job(index)
            assert job is not None
            self._report(self._trials[index], index, job)
        self._stop_those_at_their_end(tune_controller)
        chosen = self._next(tune_controller)
        if chosen is None and self._somebody_waits():
            self._release(tune_controller)
        self._abort_if_all_failed(chosen)
        return chosen

    def debug_string(self) -> str:
        """Return where the experiment stands, for Tune's display."""
        name, front = type(self).__name__, len(self._archive.front)
        return f"{name}: {self._state.jobs if self._log else 0} intervals ordered, {front} models on the front"

    def _made(self, members: int) -> Algorithm:
        return algorithm_of({"name": self._algorithm, self._count: members, **self._options})

    def _until(self, step: int) -> int:
        """Return the next step at or after this one at which a member is saved and judged."""
        return step

    def _settings(self, algorithm: Algorithm) -> RunConfig:
        return RunConfig(self._problem, options_of(algorithm), self._seed)

    # Beginning, and going on after a restore.

    def _begin(self, controller: Any, trial: Trial) -> None:
        if isinstance(controller.search_alg, SearchGenerator):
            raise ValueError(
                f"{type(self).__name__} proposes configurations itself; leave `search_alg` out of TuneConfig"
            )
        log = Log(trial.storage.storage_filesystem, trial.storage.experiment_fs_path)
        recorded = log.settings()
        members = self._samples if recorded is None else _members_of(recorded)
        algorithm = self._made(members)
        if recorded is None:
            log.write("run.toml", self._settings(algorithm).to_toml())
        elif differences := recorded.differences(self._settings(algorithm)):
            raise RunMismatch(
                f"{log.folder} was started with other settings: {'; '.join(differences)}; use another `name`"
            )
        self._decider: Scheduler = algorithm.scheduler(self._problem)
        self._size = members
        self._state = State(self._seed)
        self._seconds = 0.0  # of the last report
        for record in log.read():
            self._fold(record)
        self._began = time.monotonic() - self._seconds
        self._log = log
        if self._members and trial.trial_id not in self._members:
            raise RunMismatch(
                f"{log.folder} belongs to another experiment; use Tuner.restore to go on with it, or another `name`"
            )

    def _check_trial(self, trial: Trial, index: int) -> None:
        if 0 <= self._size <= index:
            raise ValueError(
                f"the experiment has more than {self._size} trials; leave grid_search out of `param_space`"
            )
        if trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep is not None:
            raise ValueError(
                "leave `num_to_keep` out of CheckpointConfig: checkpoints go when neither front nor members need them"
            )
        given = [name for name in self._problem.space if name in trial.config]
        if given and trial.trial_id not in self._members:
            raise ValueError(
                f"{', '.join(map(repr, given))}: the space of {type(self).__name__} says this; leave it out of `param_space`"
            )

    def _admit(self, trial: Trial, index: int) -> None:
        """Give a member its order; who has none waits, as it did before a restore."""
        storage = trial.storage
        storage.current_checkpoint_index = max(
            storage.current_checkpoint_index, _last_index(storage)
        )  # overwrite nothing
        if index >= len(self._state.trials):
            jobs = self._decider.ask(self._state, len(self._state.trials) + 1)
            self._order(next(job for job in jobs if job.trial == index))
        job = self._job(index)
        if job is None:
            trial.set_status(Trial.PAUSED)
        else:
            self._equip(trial, job)

    def _retry(self, controller: Any, trial: Trial, index: int) -> None:
        """Let a trial that failed go on from its last checkpoint, with the same values, when it has an order."""
        self._results.pop(index, None)
        self._held.discard(index)
        if self._job(index) is None:
            controller._set_trial_status(trial, Trial.PAUSED)

    # Who does what.

    def _status(self, index: int) -> str:
        return self._state.trials[index].status if index < len(self._state.trials) else ""

    def _is_over(self, index: int) -> bool:
        return self._status(index) in ("finished", "stopped")

    def _is_saved(self, trial: Trial) -> bool:
        return trial.status == Trial.PAUSED or (
            trial.status == Trial.RUNNING and not trial.is_saving
        )

    def _somebody_waits(self) -> bool:
        """Tell whether a member waits for a place to train."""
        busy = {job.trial for job in self._state.outstanding.values()}
        for index, trial in self._trials.items():
            is_ready = index in busy or self._status(index) == "ready"
            if trial.status == Trial.PENDING or (
                trial.status == Trial.PAUSED and is_ready and index not in self._results
            ):
                return True
        return False

    def _release(self, controller: Any) -> None:
        """Let members that wait for others give up their places."""
        for index in self._held:
            controller.pause_trial(self._trials[index], should_checkpoint=False)
        self._held.clear()

    # Reports and orders.

    def _job(self, index: int) -> Job | None:
        return next((job for job in self._state.outstanding.values() if job.trial == index), None)

    def _report(self, trial: Trial, index: int, job: Job) -> None:
        """Enter what a member measured, now that it is saved."""
        result, where = self._results.pop(index), trial.checkpoint
        if where is None or _iteration(trial) != job.end:
            raise TaskError(
                f"trial {trial.trial_id} saved no checkpoint at iteration {job.end}, the end of its interval: a training function "
                f"must pass `checkpoint=` to tune.report whenever {self._problem.interval} more iterations are done"
            )
        names = [o.name for o in self._problem.objectives] + [
            c.name for c in self._problem.constraints
        ]
        report = Report(
            job.id,
            objectives=signed(self._problem.objectives, result),
            violation=total_violation(self._problem.constraints, result),
            scores={name: float(result[name]) for name in names},
            seconds=time.monotonic() - self._began,
        )
        path = posixpath.relpath(where.path, trial.storage.experiment_fs_path)
        if trial.status == Trial.RUNNING:
            self._held.add(index)
        self._write(exchanges=[Exchange(reports=(report,))], paths={job.id: path})
        self._drop()

    def _leave(self, index: int, why: str) -> None:
        """Take a member out of the population."""
        job = self._job(index)
        exchanges = [] if job is None else [Exchange(reports=(Report(job.id, error=why),))]
        self._results.pop(index, None)
        self._held.discard(index)
        self._write(exchanges=exchanges, left=[index])

    def _next(self, controller: Any) -> Trial | None:
        """Let members with an actor train on, and return one that needs a place."""
        waiting = {
            i: trial
            for i, trial in self._trials.items()
            if trial.status == Trial.PAUSED and i not in self._results
        }
        jobs = (
            self._decider.ask(self._state, len(self._state.trials) + 1)
            if waiting or self._held
            else ()
        )
        held = [job for job in jobs if job.trial in self._held]
        paused = [job for job in jobs if job.trial in waiting]
        for job in filter(self._goes_on, held):
            self._held.discard(job.trial)
            self._order(job)
            _train(controller, self._trials[job.trial])
        self._change_places(
            controller, [job for job in held if job.trial in self._held], may_wait=bool(paused)
        )
        for job in self._state.outstanding.values():  # those that Tune has not taken yet come first
            trial = self._trials.get(job.trial)
            if (
                trial is not None
                and trial.status == Trial.PAUSED
                and job.trial not in self._results
            ):
                return trial
        if not paused:
            return None
        self._equip(waiting[paused[0].trial], self._order(paused[0]))
        return waiting[paused[0].trial]

    def _change_places(self, controller: Any, jobs: Sequence[Job], *, may_wait: bool) -> None:
        """Let members give up their actors for orders that start elsewhere; Tune keeps an actor only if somebody waits for it."""
        wanted = any(trial.status == Trial.PENDING for trial in self._trials.values())
        for job in jobs if wanted else jobs[: not may_wait]:
            trial = self._trials[job.trial]
            self._held.discard(job.trial)
            controller.pause_trial(trial, should_checkpoint=False)
            self._equip(trial, self._order(job))

    def _goes_on(self, job: Job) -> bool:
        """Tell whether an order is what the member would do anyway: train on as it is."""
        if job.trial not in self._held or job.start is None:
            return False
        last = self._orders[job.start]
        return last.trial == job.trial and last.end == job.begin and last.config == job.config

    def _order(self, job: Job) -> Job:
        job = replace(job, id=self._state.jobs, end=self._until(job.end))
        self._write(exchanges=[Exchange(jobs=(job,))])
        return job

    def _stop_those_at_their_end(self, controller: Any) -> None:
        over = self._decider.done(self._state)
        for index, trial in self._trials.items():
            if (trial.status == Trial.PAUSED or index in self._held) and (
                over or self._is_over(index)
            ):
                self._held.discard(index)
                controller.stop_trial(trial)

    def _abort_if_all_failed(self, chosen: Trial | None) -> None:
        idle = [
            trial.status == Trial.PAUSED or i in self._held
            for i, trial in self._trials.items()
            if not trial.is_finished()
        ]
        self._idle = self._idle + 1 if chosen is None and idle and all(idle) else 0
        if self._idle > IDLE:
            raise Stalled(
                f"all {len(self._trials)} trials wait for the rest of a population of {self._size}, which Tune does not start; "
                f"leave `max_concurrent_trials` out of TuneConfig (resources limit how many train at a time)"
            )

    # The journal.

    def _write(self, **record: Any) -> None:
        """Write down what has happened, and only then take it in."""
        assert self._log is not None
        exchanges = [exchange.to_json() for exchange in record.get("exchanges", ())]
        plain = json.loads(json.dumps(record | {"exchanges": exchanges}))
        self._log.append(plain)
        self._fold(plain)

    def _fold(self, record: Mapping[str, Any]) -> None:
        self._members |= record.get("members", {})
        self._paths |= {int(job): path for job, path in record.get("paths", {}).items()}
        for exchange in map(Exchange.from_json, record["exchanges"]):
            self._orders |= {job.id: job for job in exchange.jobs}
            self._state = with_jobs(self._state, exchange.jobs) if exchange.jobs else self._state
            for report in exchange.reports:
                self._state = self._decider.tell(self._state, report)
                self._seconds = max(self._seconds, report.seconds)
                if (entry := entry_of(report)) is not None:
                    self._archive.enter(entry)
        rows = [
            self._state.trials[index]
            for index in record.get("left", ())
            if index < len(self._state.trials)
        ]
        self._state = updated(self._state, [replace(row, status="finished") for row in rows])

    def _drop(self) -> None:
        """Remove checkpoints that no member and no point of the front needs, one report after they are obsolete."""
        keep = {
            self._paths[job]
            for job in required_checkpoints(self._state) | {e.job for e in self._archive.front}
            if job in self._paths
        }
        seen: set[str] = set()
        for trial in self._trials.values():
            root = trial.storage.experiment_fs_path
            tracked = (
                trial.run_metadata.checkpoint_manager.best_checkpoint_results
            )  # all, in a list that is Tune's own
            for saved in [
                saved
                for saved in tracked
                if saved.checkpoint is not None and saved is not trial.latest_checkpoint_result
            ]:
                path = posixpath.relpath(saved.checkpoint.path, root)
                if path in keep or path == _latest_path(trial):
                    continue
                seen.add(path)
                if path in self._obsolete:
                    tracked.remove(saved)
                    with suppress(FileNotFoundError):  # dropped before a restore
                        saved.checkpoint.filesystem.delete_dir(saved.checkpoint.path)
        self._obsolete = seen

    # What has no public interface in Ray.

    def _equip(self, trial: Trial, job: Job) -> None:
        """Give a trial that does not run the values and the checkpoint of an order; its iterations count on from the order's."""
        values = self._problem.space.decode(job.config)
        trial.set_config({**trial.config, **values})
        trial.evaluated_params.update(values)
        manager = trial.run_metadata.checkpoint_manager
        if job.start is None:
            manager._latest_checkpoint_result = None
            return
        storage = trial.storage
        path = posixpath.join(storage.experiment_fs_path, self._paths[job.start])
        if (
            trial.checkpoint is None
            or trial.checkpoint.path != path
            or _iteration(trial) != job.begin
        ):
            metrics = {
                TRAINING_ITERATION: job.begin,
                TIME_TOTAL_S: (trial.last_result or {}).get(TIME_TOTAL_S, 0.0),
            }
            manager._latest_checkpoint_result = _TrainingResult(
                Checkpoint(path, storage.storage_filesystem), metrics
            )


class MOPBT(_TuneScheduler):
    """Multi-objective population based training of the `num_samples` trials of an experiment.

    A member is saved, judged and perhaps replaced every `interval` iterations, until `max_t`. `options` are those of `MOPBT`
    (`fraction`, `explore`, `resample`, `asynchronous`, `within`, ...).
    """

    _algorithm = algorithms.MOPBT.name
    _count = "population"


class MOASHA(_TuneScheduler):
    """Multi-objective asynchronous successive halving of the `num_samples` trials of an experiment.

    A trial is saved and judged after `grace` intervals, then after `eta` times as many each time, and at `max_t`. `options` are
    those of `MOASHA` (`eta`, `grace`, `kind`, `within`, `scale`).
    """

    _algorithm = algorithms.MOASHA.name
    _count = "trials"

    def _until(self, step: int) -> int:
        assert isinstance(self._decider, Asha)
        return min(
            (rung for rung in self._decider.rungs if rung >= step), default=self._problem.steps
        )


def check_version(version: str = ray.__version__) -> None:
    """Raise an error unless this is a version of Ray for which the schedulers are tested."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    first, end = TESTED
    if not first <= numbers < end:
        allowed = ",".join((f">={'.'.join(map(str, first))}", f"<{'.'.join(map(str, end))}"))
        raise MissingExtra(
            f"the schedulers for Ray Tune are tested with Ray {allowed}, got {version}: pip install 'ray[tune]{allowed}'"
        )


def _members_of(settings: RunConfig) -> int:
    algorithm = settings.algorithm
    return int(algorithm.get("population", algorithm.get("trials", -1)))


def _train(controller: Any, trial: Trial) -> None:
    """Let a trial that has an actor train on; what Tune gives to schedulers wraps what can do it, and would warn."""
    getattr(controller, "_tune_controller", controller)._schedule_trial_train(trial)


def _iteration(trial: Trial) -> float:
    saved = trial.latest_checkpoint_result
    return float(saved.metrics.get(TRAINING_ITERATION, math.nan)) if saved is not None else math.nan


def _latest_path(trial: Trial) -> str:
    return (
        posixpath.relpath(trial.checkpoint.path, trial.storage.experiment_fs_path)
        if trial.checkpoint is not None
        else ""
    )


def _last_index(storage: Any) -> int:
    """Return the number of the last checkpoint that a trial's folder holds."""
    if storage.trial_dir_name is None:  # it is new
        return -1
    found = storage.storage_filesystem.get_file_info(
        pyarrow.fs.FileSelector(storage.trial_fs_path, allow_not_found=True)
    )
    numbers = [re.fullmatch(r"checkpoint_(\d+)", info.base_name) for info in found]
    return max((int(number[1]) for number in numbers if number), default=-1)
