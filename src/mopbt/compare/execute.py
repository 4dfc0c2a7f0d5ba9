"""Execute the missing runs of a comparison, each as soon as its time is known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from mopbt.algorithms import check_count, options_of
from mopbt.compare.collect import Comparison, parquet_writer, write_evaluations
from mopbt.compare.directory import (
    Marker,
    check_directory,
    finished_runs,
    locked,
    problem_differences,
    recorded_scale,
)
from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.compare.prepare import (
    ComparisonPlan,
    PreparedTask,
    normalize_scale,
    plan_comparison,
    prepare_task,
)
from mopbt.compare.progress import ProgressView, Record
from mopbt.compare.reuse import ReusableRuns
from mopbt.compare.single_run import RunSpec
from mopbt.compare.workers import Answer, WorkerPool
from mopbt.engines.pool import available_cores
from mopbt.errors import RunMismatch, StoreError, TaskFailed
from mopbt.filesystem import write_atomically
from mopbt.problem import Problem
from mopbt.registry import task_fingerprint
from mopbt.run_directory import read_run_config

# Seconds added to a time budget. Sums of costs are inexact, which must not cut off an interval.
SLACK = 1e-6


def compare(
    experiment: Experiment | Path | str,
    *,
    out: Path | str,
    scale: str | None = None,
    tasks: Sequence[str] = (),
    jobs: int | None = None,
    progress: bool = True,
    parquet: bool = False,
    reuse: Sequence[Path | str] = (),
) -> Comparison:
    """Execute the missing runs of an experiment, and tabulate all evaluations.

    Args:
        experiment: The experiment or its file.
        out: Directory of the comparison. The same call resumes an interrupted comparison.
        scale: Size of the tasks that have several, such as "small".
        tasks: Tasks of the experiment to run now. Only their data are needed. The others stay
            missing. Empty means all.
        jobs: Number of parallel runs. The default is one for each core.
        progress: Whether to show progress on standard error.
        parquet: Whether to write the table as Parquet too. This needs pyarrow.
        reuse: Directories with other comparisons in or below them. Their runs that are identical
            to ours are not repeated.
    """
    experiment = _read(experiment)
    jobs = available_cores() if jobs is None else jobs
    check_count("jobs", jobs, 1)
    out = Path(out).absolute()
    parquet = _wants_parquet(out, parquet)
    plan = plan_comparison(experiment, out, scale, tasks)
    failures = _execute_missing(plan, jobs, [Path(place) for place in reuse], progress=progress)
    comparison = replace(Comparison.open(out), experiment=plan.scaled, failures=failures)
    changed = _changed_tasks(out, plan.scaled, comparison.mixed)
    comparison = replace(comparison, changed=changed)
    _write(comparison, experiment, out, parquet=parquet)
    return comparison


def recompute(
    experiment: Experiment | Path | str,
    *,
    out: Path | str,
    scale: str | None = None,
    parquet: bool = False,
) -> Comparison:
    """Tabulate all evaluations again from the journals, without running anything."""
    experiment = _read(experiment)
    out = Path(out)
    scale = recorded_scale(out) if scale is None else normalize_scale(experiment, scale)
    parquet = _wants_parquet(out, parquet)
    check_directory(out, experiment, scale)
    comparison = replace(Comparison.open(out), experiment=experiment.at(scale))
    if not comparison.runs:
        raise StoreError(
            f"{out} has no finished runs to compute from; rerun the same command without "
            f"--only-report to execute them"
        )
    _write(comparison, experiment, out, parquet=parquet)
    return comparison


def _read(experiment: Experiment | Path | str) -> Experiment:
    return experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)


def _wants_parquet(out: Path, asked: bool) -> bool:
    """Return whether to write Parquet: if asked, or if the file already exists."""
    wanted = asked or (out / "evaluations.parquet").exists()
    if wanted:
        # A missing package must be an error before any run, not after the last.
        parquet_writer()
    return wanted


def _write(comparison: Comparison, experiment: Experiment, out: Path, *, parquet: bool) -> None:
    """Write the table of evaluations, and the experiment with its new description."""
    write_atomically(out / "experiment.toml", experiment.to_toml().encode())
    write_evaluations(comparison, out, parquet=parquet)


def _changed_tasks(out: Path, experiment: Experiment, mixed: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks whose file has changed since all of their runs."""
    directories = {run.task: run.directory for run in finished_runs(out, experiment.plan())}
    changed = []
    for task, directory in directories.items():
        is_file = Path(task.rpartition(":")[0]).is_file()
        if task in mixed or not is_file:
            continue
        recorded = read_run_config(out / directory).task_fingerprint
        if recorded not in ("", task_fingerprint(task)):
            changed.append(task)
    return tuple(changed)


def _execute_missing(
    plan: ComparisonPlan, jobs: int, reuse: Sequence[Path], *, progress: bool
) -> dict[PlannedRun, str]:
    """Execute the runs of a plan that are not finished, and return those that failed."""
    out = plan.out
    experiment = plan.scaled
    finished = finished_runs(out, experiment.plan())
    missing = dict.fromkeys(run.task for run in plan.runs if run not in finished)
    if not missing:
        return {}
    tasks = {task: prepare_task(experiment, task, plan.scale) for task in missing}
    reusable = ReusableRuns.below(reuse, out, plan.scale, with_models=experiment.keep_models)
    with locked(out):
        # Another process may have changed the directory before it was locked.
        check_directory(out, plan.experiment, plan.scale)
        finished = finished_runs(out, experiment.plan())
        for run in finished:
            if run.task in tasks:
                problem = experiment.entries[run.algorithm].problem(tasks[run.task].problem)
                _check_unchanged(out / run.directory, problem)
        record = Record(out, experiment.name, plan.scale, jobs, finished)
        # This file makes the directory a comparison, so it is written last.
        write_atomically(out / "experiment.toml", plan.experiment.to_toml().encode())
        with (
            ProgressView(experiment.name, plan.runs, finished, jobs, shown=progress) as view,
            WorkerPool() as pool,
        ):
            execution = _Execution(plan, tasks, jobs, finished, reusable, record, view, pool)
            execution.measure_tasks()
            try:
                execution.execute_runs()
            finally:
                record.write(out, execution.finished)
            if reuse:
                view.note(f"runs reused from other comparisons: {sum(reusable.copies.values())}")
    return execution.failures


def _check_unchanged(path: Path, problem: Problem) -> None:
    if differences := problem_differences(path, problem):
        raise RunMismatch(
            f"the task has changed since {path} was run: {'; '.join(differences)}; change it back, "
            f"or use another directory"
        )


@dataclass
class _Execution:
    """Executes the missing runs of a plan in a locked directory."""

    plan: ComparisonPlan
    tasks: Mapping[str, PreparedTask]
    jobs: int
    finished: dict[PlannedRun, Marker]
    reusable: ReusableRuns
    record: Record
    view: ProgressView
    pool: WorkerPool
    failures: dict[PlannedRun, str] = field(default_factory=dict)

    def measure_tasks(self) -> None:
        """Record the cost of a step and the engine of each task, once."""
        for task in self.tasks:
            if task not in self.record.tasks:
                self.record.tasks[task] = self._measure(task)
                self.record.write(self.plan.out, self.finished)
        for run, marker in self.finished.items():
            # Markers of the first versions have no identity.
            if "order" in marker:
                self._check_cost(run, json.loads(marker["order"])["cost"])

    def _measure(self, task: str) -> Mapping[str, Any]:
        """Return cost and engine: as set, as in a reusable comparison, or measured."""
        prepared = self.tasks[task]
        experiment = self.plan.scaled
        known: dict[str, Any] = {"cost": experiment.cost, "engine": experiment.engine}
        if known["engine"] == "auto" and not prepared.may_stack:
            known["engine"] = "local"
        for key, value in known.items():
            if value in ("measured", "auto"):
                # With another cost or engine, no run could be reused.
                found = self.reusable.find_measured(task, prepared.task_fingerprint, key)
                known[key] = value if found is None else found
        if known["cost"] != "measured" and known["engine"] != "auto":
            return known
        self.view.note(f"measuring {task}")
        answer = self.pool.measure(task=prepared.reference, stack=experiment.workers, **known)
        if "failed" in answer:
            raise TaskFailed(f"{task} cannot be measured:", answer["failed"])
        return cast(Mapping[str, Any], answer["measured"])

    def _check_cost(self, run: PlannedRun, cost: float) -> None:
        """Check that a finished run has the recorded cost of a step."""
        recorded = self.record.tasks.get(run.task, {}).get("cost", cost)
        if recorded != cost:
            raise RunMismatch(
                f"{self.plan.out / run.directory} was run with {cost} virtual seconds a step, but "
                f"about.json says {recorded}; restore that file, or use another directory"
            )

    def execute_runs(self) -> None:
        """Execute all missing runs."""
        waiting = [run for run in self.plan.runs if run not in self.finished]
        running: dict[str, PlannedRun] = {}
        while waiting or running:
            ready = [run for run in waiting if self._is_ready(run)][: self.jobs - len(running)]
            for run in ready:
                waiting.remove(run)
                spec = self._spec(run)
                if not self._start(run, spec):
                    running[spec.path] = run
            if ready:
                # Runs that were copied are finished, so others may be ready.
                continue
            if not running:
                self._give_up(waiting, "needs the time of {timer!r}, of which a run failed")
                return
            path, answer = self.pool.receive()
            if "share" in answer:
                self.view.share(running[path], answer["share"])
                continue
            self._end(running.pop(path), answer)
            if answer.get("stop"):
                self._give_up(waiting, "not started, because there is no space left")
                waiting = []

    def _start(self, run: PlannedRun, spec: RunSpec) -> bool:
        """Reuse a run or else start it, and return whether it is already finished."""
        self.view.begin(run)
        entry = self.plan.scaled.entries[run.algorithm]
        problem = entry.problem(self.tasks[run.task].problem)
        marker = self.reusable.copy(spec, problem, self.view.note)
        if marker is None:
            self.pool.start(spec)
            return False
        self.record.record_copies(self.reusable.copies)
        self._end(run, {"finished": marker})
        return True

    def _end(self, run: PlannedRun, answer: Answer) -> None:
        if "finished" in answer:
            self.finished[run] = answer["finished"]
        else:
            self.failures[run] = answer["failed"]
            self.record.failures[str(run)] = answer.get("trace", answer["failed"])
        self.view.end(run, answer)
        self.record.write(self.plan.out, self.finished)

    def _give_up(self, waiting: Sequence[PlannedRun], why: str) -> None:
        for run in waiting:
            self.failures[run] = why.format(timer=self.plan.scaled.timer(run.algorithm))
            self.view.give_up(run, self.failures[run])

    def _timers(self, run: PlannedRun) -> list[PlannedRun]:
        """Return the runs that set the time of a run; none if it ends by itself."""
        if run.algorithm not in self.tasks[run.task].needs_budget:
            return []
        timer = cast(str, self.plan.scaled.timer(run.algorithm))
        return [PlannedRun(run.task, timer, seed) for seed in self.plan.scaled.seeds]

    def _is_ready(self, run: PlannedRun) -> bool:
        return all(timer in self.finished for timer in self._timers(run))

    def _spec(self, run: PlannedRun) -> RunSpec:
        experiment = self.plan.scaled
        entry = experiment.entries[run.algorithm]
        task = self.tasks[run.task]
        measured = self.record.tasks[run.task]
        algorithm = entry.algorithm(task.population)
        is_stacked = measured["engine"] == "vectorized"
        times = [self.finished[timer]["seconds"] for timer in self._timers(run)]
        return RunSpec(
            path=str(self.plan.out / run.directory),
            task=task.reference,
            algorithm=options_of(algorithm),
            constraints=entry.constraints,
            seed=run.seed + entry.seed_offset,
            workers=experiment.workers,
            cost=float(measured["cost"]),
            stack=min(experiment.workers, algorithm.max_parallel) if is_stacked else 1,
            seconds=round(max(times) + SLACK, 6) if times else None,
            keep_models=experiment.keep_models,
            task_fingerprint=task.task_fingerprint,
        )
