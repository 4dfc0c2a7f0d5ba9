"""Execute the missing runs of a comparison, each as soon as its time is known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, cast

from mopbt.compare.collect import Comparison, collect, wants_parquet, write_evaluations
from mopbt.compare.directory import (
    Marker,
    Record,
    check_directory,
    check_runs_exist,
    finished_runs,
    locked,
    problem_differences,
    recorded_scale,
    write_experiment,
)
from mopbt.compare.plan import (
    ComparisonPlan,
    Experiment,
    PlannedRun,
    normalize_scale,
    plan_comparison,
    task_seed,
)
from mopbt.compare.progress import ProgressView
from mopbt.compare.resources import Resources, check_stack, find_resources
from mopbt.compare.reuse import ReusableRuns
from mopbt.compare.worker import Answer, RunSpec
from mopbt.engines.pool import THREADS
from mopbt.engines.supervisor import Supervisor, WorkerProcess
from mopbt.errors import RunMismatch, StoreError, TaskFailed, all_errors
from mopbt.run_config import RunConfig

# Seconds added to a time budget. Sums of costs are inexact, which must not cut off an interval.
SLACK = 1e-6


def compare(
    experiment: Experiment | Path | str,
    *,
    out: Path | str,
    scale: str | None = None,
    tasks: Sequence[str] = (),
    jobs: int | None = None,
    engine: str = "auto",
    engine_options: Mapping[str, Any] | None = None,
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
        jobs: Number of parallel runs. The default is one for each accelerator, or for each core if
            there is none. On Ray it is 1.
        engine: Where the runs train: "auto" for this machine, or "ray" for a Ray cluster.
        engine_options: For "auto" `devices` and `workers_per_device`. For "ray" `workers` of each
            run, `address`, `num_cpus` and `num_gpus`. For both `timeout`, and `stack`, the number
            of members in a stack.
        progress: Whether to show progress on standard error.
        parquet: Whether to write the table as Parquet too. This needs pyarrow.
        reuse: Directories with other comparisons in or below them. Their runs that are identical
            to ours are not repeated.
    """
    resources = find_resources(engine, engine_options or {}, jobs)
    out = Path(out).absolute()
    parquet = wants_parquet(out, parquet)
    plan = plan_comparison(_read(experiment), out, scale, tasks, resources.jobs)
    check_stack(resources, plan.scaled.engine)
    check_directory(out, plan.experiment, plan.scale)
    check_runs_exist(out)
    places = [Path(place) for place in reuse]
    finished, failures = _execute_missing(plan, resources, places, progress=progress)
    comparison = replace(collect(out, plan.scaled, finished), failures=failures)
    # The figures and the description may have changed.
    write_experiment(out, plan.experiment)
    write_evaluations(comparison, out, parquet=parquet)
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
    parquet = wants_parquet(out, parquet)
    check_directory(out, experiment, scale)
    comparison = replace(Comparison.open(out), experiment=experiment.at(scale))
    if not comparison.runs:
        raise StoreError(
            f"{out} has no finished runs to compute from; rerun the same command without "
            f"--only-report to execute them"
        )
    write_experiment(out, experiment)
    write_evaluations(comparison, out, parquet=parquet)
    return comparison


def _read(experiment: Experiment | Path | str) -> Experiment:
    return experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)


@dataclass(frozen=True)
class _PreparedAlgorithm:
    """An algorithm on a task, as a worker has prepared it.

    Attributes:
        settings: Settings of its runs, except for their seeds and engine.
        max_parallel: How many jobs it can run at once.
        needs_budget: Whether it does not end by itself.
        may_stack: Whether members of the task may be trained as a stack.
    """

    settings: RunConfig
    max_parallel: int
    needs_budget: bool
    may_stack: bool


# The algorithms of each task by label.
_Prepared = Mapping[str, Mapping[str, _PreparedAlgorithm]]


def _execute_missing(
    plan: ComparisonPlan, resources: Resources, reuse: Sequence[Path], *, progress: bool
) -> tuple[Mapping[PlannedRun, Marker], Mapping[PlannedRun, str]]:
    """Execute the runs of a plan that are not finished.

    Returns all finished runs of the experiment, and those that failed, with the reasons.
    """
    out = plan.out
    finished = finished_runs(out, plan.scaled.plan())
    missing = dict.fromkeys(run.task for run in plan.runs if run not in finished)
    if not missing:
        return finished, {}
    reusable = None
    if reuse:
        reusable = ReusableRuns.below(reuse, out, plan.scale, with_models=plan.scaled.keep_models)
    with WorkerPool(resources) as pool:
        prepared = {task: _prepare(pool, plan, task) for task in missing}
        with locked(out):
            # Another process may have changed the directory before it was locked.
            check_directory(out, plan.experiment, plan.scale)
            finished = finished_runs(out, plan.scaled.plan())
            _check_unchanged(out, finished, prepared)
            record = Record(plan, finished)
            # This file makes the directory a comparison, so it is written last.
            write_experiment(out, plan.experiment)
            with ProgressView(plan, finished, shown=progress) as view:
                execution = _Execution(plan, prepared, finished, reusable, record, view, pool)
                return finished, execution.execute()


def _prepare(pool: "WorkerPool", plan: ComparisonPlan, task: str) -> dict[str, _PreparedAlgorithm]:
    answer = pool.prepare(plan.scaled, task, plan.scale)
    return {
        label: _PreparedAlgorithm(
            RunConfig.from_toml(found["settings"], Path(task)),
            found["max_parallel"],
            found["needs_budget"],
            answer["may_stack"],
        )
        for label, found in answer["algorithms"].items()
    }


def _check_unchanged(out: Path, finished: Mapping[PlannedRun, Marker], prepared: _Prepared) -> None:
    """Check that tasks are the same as when their finished runs were executed."""
    for run in finished:
        if run.task not in prepared:
            continue
        path = out / run.directory
        problem = prepared[run.task][run.algorithm].settings.problem
        if differences := problem_differences(path, problem):
            raise RunMismatch(
                f"the task has changed since {path} was run: {'; '.join(differences)}; change it "
                f"back, or use another directory"
            )


@dataclass
class _Execution:
    """Executes the missing runs of a plan in a locked directory."""

    plan: ComparisonPlan
    prepared: _Prepared
    finished: dict[PlannedRun, Marker]
    reusable: ReusableRuns | None
    record: Record
    view: ProgressView
    pool: "WorkerPool"
    failures: dict[PlannedRun, str] = field(default_factory=dict)

    def execute(self) -> Mapping[PlannedRun, str]:
        """Measure the tasks, execute all missing runs, and return those that failed.

        Runs that finish are added to `finished`.
        """
        self._measure_tasks()
        try:
            self._execute_runs()
        finally:
            self.record.write(self.finished)
        if self.reusable is not None:
            copies = sum(self.reusable.copies.values())
            self.view.note(f"runs reused from other comparisons: {copies}")
        return self.failures

    def _measure_tasks(self) -> None:
        """Record the cost of a step and the engine of each task, once."""
        for task in self.prepared:
            if task not in self.record.tasks:
                self.record.tasks[task] = self._measure(task)
                self.record.write(self.finished)
        for run, marker in self.finished.items():
            self._check_cost(run, json.loads(marker["order"])["cost"])

    def _measure(self, task: str) -> Mapping[str, Any]:
        """Return cost and engine: as set, as in a reusable comparison, or measured."""
        prepared = next(iter(self.prepared[task].values()))
        experiment = self.plan.scaled
        known: dict[str, Any] = {"cost": experiment.cost, "engine": experiment.engine}
        if known["engine"] == "auto" and not prepared.may_stack:
            known["engine"] = "local"
        if self.reusable is not None:
            # With another cost or engine, no run could be reused.
            fingerprint = prepared.settings.task_fingerprint
            known |= self.reusable.find_measured(task, fingerprint, known)
        if known["cost"] != "measured" and known["engine"] != "auto":
            return known
        self.view.note(f"measuring {task}")
        reference = prepared.settings.task_reference
        return self.pool.measure(reference, stack=experiment.workers, **known)

    def _check_cost(self, run: PlannedRun, cost: float) -> None:
        """Check that a finished run has the recorded cost of a step."""
        recorded = self.record.tasks.get(run.task, {}).get("cost", cost)
        if recorded != cost:
            raise RunMismatch(
                f"{self.plan.out / run.directory} was run with {cost} virtual seconds a step, but "
                f"about.json says {recorded}; restore that file, or use another directory"
            )

    def _execute_runs(self) -> None:
        waiting = [run for run in self.plan.runs if run not in self.finished]
        running: dict[str, PlannedRun] = {}
        while waiting or running:
            ready = [run for run in waiting if self._is_ready(run)][: self.plan.jobs - len(running)]
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
        marker = None
        if self.reusable is not None:
            problem = self.prepared[run.task][run.algorithm].settings.problem
            marker = self.reusable.copy(spec, problem, self.view.note)
        if marker is None or self.reusable is None:
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
        self.record.write(self.finished)

    def _give_up(self, waiting: Sequence[PlannedRun], why: str) -> None:
        for run in waiting:
            self.failures[run] = why.format(timer=self.plan.scaled.timer(run.algorithm))
            self.view.give_up(run, self.failures[run])

    def _timers(self, run: PlannedRun) -> list[PlannedRun]:
        """Return the runs that set the time of a run; none if it ends by itself."""
        if not self.prepared[run.task][run.algorithm].needs_budget:
            return []
        timer = cast(str, self.plan.scaled.timer(run.algorithm))
        planned = self.plan.scaled.plan()
        return [own for own in planned if (own.task, own.algorithm) == (run.task, timer)]

    def _is_ready(self, run: PlannedRun) -> bool:
        return all(timer in self.finished for timer in self._timers(run))

    def _spec(self, run: PlannedRun) -> RunSpec:
        experiment = self.plan.scaled
        entry = experiment.entries[run.algorithm]
        prepared = self.prepared[run.task][run.algorithm]
        measured = self.record.tasks[run.task]
        is_stacked = measured["engine"] == "vectorized"
        times = [self.finished[timer]["seconds"] for timer in self._timers(run)]
        resources = self.pool.resources
        stack = resources.stack or experiment.workers
        return RunSpec(
            path=str(self.plan.out / run.directory),
            task=prepared.settings.task_reference,
            algorithm=prepared.settings.algorithm,
            constraints=entry.constraints,
            seed=task_seed(run.seed + entry.seed_offset, prepared.settings.problem.name),
            workers=experiment.workers,
            cost=float(measured["cost"]),
            stack=min(stack, prepared.max_parallel) if is_stacked else 1,
            seconds=round(max(times) + SLACK, 6) if times else None,
            keep_models=experiment.keep_models,
            task_fingerprint=prepared.settings.task_fingerprint,
            timeout=resources.timeout,
            cluster=resources.cluster,
        )


class WorkerPool:
    """Worker processes, each of which executes one run at a time.

    A worker that dies is replaced. Use the pool as a context manager.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._supervisor = Supervisor()
        self._idle: list[WorkerProcess] = []
        self._spawned = 0
        # The specification of a run, or None while a task is prepared or measured.
        self._busy: dict[WorkerProcess, RunSpec | None] = {}

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Nothing is lost, because all reports are in the journals.
        self._supervisor.close()

    def start(self, spec: RunSpec) -> None:
        """Start a run in an idle process, or in a new one if all are busy."""
        self._send({"run": asdict(spec)}, spec)

    def receive(self) -> tuple[str, Answer]:
        """Wait for the next answer, and return it with the path of its run.

        If a process dies, perhaps because of the code of its run, the run is repeated with its
        training isolated in another process.
        """
        while True:
            spec, answer = self._receive()
            assert spec is not None
            if "died" not in answer:
                return spec.path, answer
            if spec.isolated:
                return spec.path, _failed(answer)
            self.start(replace(spec, isolated=True))

    def prepare(self, experiment: Experiment, task: str, scale: str | None) -> Mapping[str, Any]:
        """Prepare a task in a process, see `prepare_task`; no run may be running.

        An error of the task is raised here.
        """
        message = {"experiment": experiment.to_dict(), "task": task, "scale": scale}
        answer = self._ask({"prepare": message})
        if "failed" in answer:
            _raise_error(answer, task)
        prepared: Mapping[str, Any] = answer["prepared"]
        return prepared

    def measure(self, task: str, **options: Any) -> Mapping[str, Any]:
        """Measure a task in a process, see `measure_task`; no run may be running."""
        answer = self._ask({"measure": {"task": task, **options}})
        if "failed" in answer:
            raise TaskFailed(f"{task} cannot be measured:", answer["failed"])
        measured: Mapping[str, Any] = answer["measured"]
        return measured

    def _ask(self, message: Mapping[str, Any]) -> Answer:
        self._send(message, None)
        answer = self._receive()[1]
        return _failed(answer) if "died" in answer else answer

    def _send(self, message: Mapping[str, Any], spec: RunSpec | None) -> None:
        if self._idle:
            worker = self._idle.pop()
        else:
            environment = dict.fromkeys(THREADS, "1") | self.resources.environment(self._spawned)
            self._spawned += 1
            worker = self._supervisor.spawn("mopbt.compare.worker:serve", environment)
        self._busy[worker] = spec
        worker.send(json.dumps(message).encode())

    def _receive(self) -> tuple[RunSpec | None, Answer]:
        """Wait for the next answer or the death of a busy process, and say of which run."""
        while True:
            event = self._supervisor.receive()
            assert event is not None
            worker, message = event
            if message is None:
                code = self._supervisor.reap(worker)
                if worker in self._busy:
                    return self._busy.pop(worker), {"died": code}
                self._idle.remove(worker)
                continue
            answer: Answer = json.loads(message)
            if "share" in answer:
                return self._busy[worker], answer
            self._idle.append(worker)
            return self._busy.pop(worker), answer


def _raise_error(answer: Answer, task: str) -> NoReturn:
    """Raise the error that a task had in a worker, if its class can be created here."""
    known: list[type[Exception]] = [ValueError, TypeError, *all_errors()]
    for kind in known:
        if kind.__name__ == answer.get("kind"):
            # The cause is shown with --traceback.
            raise kind(answer["failed"]) from TaskFailed(answer["trace"])
    raise TaskFailed(f"{task} cannot be loaded:", answer.get("trace", answer["failed"]))


def _failed(answer: Answer) -> Answer:
    return {"failed": f"its process died (exit code {answer['died']})"}
