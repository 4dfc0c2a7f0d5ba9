"""Carrying out a comparison: what is missing of it, each run as soon as its time is known."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from mopbt.algorithms import POPULATION, check_choice, check_count, options_of
from mopbt.compare.collect import (
    Comparison,
    Marker,
    about_of,
    finished_of,
    parquet_writer,
    problem_differences,
    recorded_experiment,
    scale_of,
    write_evaluations,
)
from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.compare.progress import ProgressView, Record
from mopbt.compare.reuse import ReusableRuns
from mopbt.compare.workers import Order, WorkerPool, crew_of
from mopbt.engines.auto import check_stackable
from mopbt.engines.pool import available_cores
from mopbt.errors import CannotStack, DataMissing, RunMismatch, StoreError, TaskFailed
from mopbt.filesystem import cannot_write, write_atomically
from mopbt.messages import did_you_mean
from mopbt.problem import CheckedTask, ProbedTask, Problem, problem_of
from mopbt.registry import find_family, find_task, split_scale, task_fingerprint
from mopbt.run_directory import read_run_config
from mopbt.stores.directory import Lock

SLACK = 1e-6  # seconds: sums of costs are off in their last digits, and no last interval may be lost by that


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
    """Carry out what is missing of an experiment, write the table of all evaluations, and return the comparison.

    Args:
        experiment: The experiment or its file.
        out: The comparison's directory; the same call goes on with one that was stopped.
        scale: The size of those tasks that come in several, such as "small".
        tasks: Those to run now, of the experiment's, whose data alone must be there; none: all. The others stay missing.
        jobs: How many runs are carried out side by side (default: one for each core).
        progress: Whether to show progress on standard error.
        parquet: Whether to write the table as Parquet as well; needs pyarrow.
        reuse: Directories with other comparisons in or below them; their runs that are the same as ours are not repeated.
    """
    whole = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
    jobs = available_cores() if jobs is None else jobs
    check_count("jobs", jobs, 1)
    scale = _own_scale(whole, scale)
    out, here = Path(out).absolute(), whole.at(scale)
    parquet = _wants_parquet(out, parquet)
    _check_scale(whole, scale)
    for task in tasks:
        check_choice("tasks", task, here.tasks)
    check_same(out, whole, scale)
    _check_runs_are_there(out)
    finished = finished_of(out, here.plan())
    failures: dict[PlannedRun, str] = {}
    plan = [run for run in here.plan() if run.task in (tasks or here.tasks)]
    if not finished.keys() >= set(plan):
        subjects = {
            task: _subject(here, task, scale)
            for task in dict.fromkeys(run.task for run in plan if run not in finished)
        }
        others = ReusableRuns.below(
            [Path(place) for place in reuse], out, scale, with_models=here.keep_models
        )
        with _held(out):
            check_same(out, whole, scale)  # another process may have been first
            finished = finished_of(out, here.plan())
            for run in finished:
                if run.task in subjects:
                    _check_unchanged(
                        out / run.directory,
                        here.entries[run.algorithm].problem(subjects[run.task].problem),
                    )
            record = Record(out, whole.name, scale, jobs, finished)
            write_atomically(
                out / "experiment.toml", whole.to_toml().encode()
            )  # last: with it, this is a comparison
            with (
                ProgressView(whole.name, plan, finished, jobs, shown=progress) as board,
                crew_of(jobs) as crew,
            ):
                stage = _Stage(here, plan, out, subjects, dict(finished), board, record, others)
                stage.measure(crew)
                try:
                    failures = stage.execute_order(crew, jobs)
                finally:
                    record.write(out, stage.finished)
                if reuse:
                    board.note(
                        f"runs taken over from other comparisons: {sum(others.taken.values())}"
                    )
    comparison = Comparison.open(out)
    comparison = replace(
        comparison,
        experiment=here,
        failures=failures,
        changed=_changed(out, here, comparison.mixed),
    )
    _write(comparison, whole, out, parquet=parquet)
    return comparison


def recompute(
    experiment: Experiment | Path | str,
    *,
    out: Path | str,
    scale: str | None = None,
    parquet: bool = False,
) -> Comparison:
    """Read a comparison of this experiment from the journals of its finished runs, and write its table anew; nothing is run."""
    whole = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
    out, scale = Path(out), scale_of(Path(out)) if scale is None else _own_scale(whole, scale)
    parquet = _wants_parquet(out, parquet)
    check_same(out, whole, scale)
    comparison = replace(Comparison.open(out), experiment=whole.at(scale))
    if not comparison.runs:
        raise StoreError(
            f"{out} has no finished run, so there is nothing to compute from; without --only-report they are run"
        )
    _write(comparison, whole, out, parquet=parquet)
    return comparison


def _write(comparison: Comparison, experiment: Experiment, out: Path, *, parquet: bool) -> None:
    """Write the table of all evaluations, and the experiment as it is told now: its figures may have changed, its runs have not."""
    write_atomically(out / "experiment.toml", experiment.to_toml().encode())
    write_evaluations(comparison, out, parquet=parquet)


def _changed(out: Path, experiment: Experiment, mixed: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks in files that have changed since all their runs."""
    runs = {
        run.task: run.directory
        for run in finished_of(out, experiment.plan())
        if run.task not in mixed
    }
    files = {
        task: directory
        for task, directory in runs.items()
        if Path(task.rpartition(":")[0]).is_file()
    }
    return tuple(
        task
        for task, run in files.items()
        if read_run_config(out / run).task_fingerprint not in ("", task_fingerprint(task))
    )


def _wants_parquet(out: Path, asked: bool) -> bool:
    """Tell whether to write Parquet: where it is asked for, or is there and would be out of date; fail before hours of work."""
    wanted = asked or (out / "evaluations.parquet").exists()
    if wanted:
        parquet_writer()
    return wanted


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Make a comparison's directory, and keep other processes from going on with it meanwhile."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = Lock(out / "lock", "--only-report and --reuse read a comparison while it goes on")
    except OSError as error:
        raise cannot_write(error, out) from error
    try:
        yield
    finally:
        lock.release()


def _check_unchanged(path: Path, problem: Problem) -> None:
    if differences := problem_differences(path, problem):
        raise RunMismatch(
            f"the task has changed since {path} was run: {'; '.join(differences)}; change it back, or use another directory"
        )


def check_same(out: Path, experiment: Experiment, scale: str | None) -> None:
    """Raise RunMismatch where a directory holds something else than this experiment in this scale."""
    if out.exists() and not out.is_dir():
        raise ValueError(
            f"`out` must be a directory, got the file {out}; name one that is new, empty, or a comparison"
        )
    if not (out / "experiment.toml").exists():
        names = [file.name for file in out.iterdir()] if out.is_dir() else []
        left = ("about.json", "lock")  # by a kill, as what ends in .tmp
        strange = [name for name in names if name not in left and not name.endswith(".tmp")]
        if strange:
            raise RunMismatch(
                f"{out} is not a comparison and not empty (it has {strange[0]!r}); use another directory for `out`"
            )
        return
    before = scale_of(out)
    if before != scale:
        raise RunMismatch(
            f"{out} was started in another scale: it is {scale}, it was {before}; use it again, or another directory"
        )
    differences = recorded_experiment(out).differences(experiment.at(scale))
    if differences:
        raise RunMismatch(
            f"{out} was started with another experiment: {'; '.join(differences)}; use it again, or another directory (with "
            f"--reuse {out}, runs that are the same are not repeated)"
        )


def _check_runs_are_there(out: Path) -> None:
    """Raise RunMismatch where a comparison is there without its runs: to go on would train all of them and replace its tables."""
    told = len(about_of(out).get("runs", {}))
    if told and (out / "fronts.csv.gz").exists() and not (out / "runs").exists():
        raise RunMismatch(
            f"{out} was published without its {told} runs: to go on would run all of them anew and replace its tables; use another "
            f"directory for `out`"
        )


@dataclass(frozen=True)
class _Subject:
    """A task as it is run."""

    reference: str  # by which other processes find it
    task_fingerprint: str
    problem: Problem
    population: int
    may_stack: bool
    needs_budget: frozenset[str]  # the labels that have no end of their own on it


def _subject(experiment: Experiment, task: str, scale: str | None) -> _Subject:
    """Find a task, and make sure before anything is run that every algorithm can be run on it."""
    try:
        reference, population = _in_scale(experiment, task, scale)
        found, reference = find_task(reference)
    except ValueError as error:
        raise ValueError(f"`tasks` of {experiment.name!r}: {error}") from None
    except DataMissing as error:
        remedy = (
            "; or run other tasks first: `tasks`, or --task NAME"
            if len(experiment.tasks) > 1
            else ""
        )
        raise DataMissing(f"{error}{remedy}") from None
    problem, labels = (
        problem_of(found),
        [label for label in experiment.entries if experiment.has(task, label)],
    )
    if isinstance(found, CheckedTask):
        found.check()
    if experiment.engine == "vectorized":
        try:
            check_stackable(found)
        except CannotStack as error:
            why = str(error).split(";")[0]  # its remedy is one for single runs
            raise CannotStack(
                f"engine = 'vectorized' does not suit {task}: {why}; leave it out, or use 'auto'"
            ) from None
    needs_budget = frozenset(
        label for label in labels if _is_endless(experiment, task, label, problem, population)
    )
    for label in labels:
        _check_time(
            experiment,
            task,
            label,
            needs_budget,
            [other for other in labels if other not in needs_budget],
        )
    return _Subject(
        reference,
        task_fingerprint(reference),
        problem,
        population,
        isinstance(found, ProbedTask),
        needs_budget,
    )


def _in_scale(experiment: Experiment, task: str, scale: str | None) -> tuple[str, int]:
    """Return the reference of a task in a scale, which tasks of one size only have no use for, and the population there."""
    name, own = split_scale(task)
    family = find_family(name)
    sizes = getattr(family, "scales", {})
    is_experiments_alone = scale in experiment.scales and sizes and scale not in sizes
    wanted = own or (scale if hasattr(family, "at") and not is_experiments_alone else None)
    return f"{name}@{wanted}" if wanted else name, getattr(
        sizes.get(wanted), "population", POPULATION
    )


def _own_scale(experiment: Experiment, scale: str | None) -> str | None:
    """Return a scale as it is recorded: none for the paper's, in which everything is unless told otherwise."""
    return None if scale == "paper" and scale not in experiment.scales else scale


def _check_scale(experiment: Experiment, scale: str | None) -> None:
    """Raise ValueError where neither the experiment nor any of its tasks knows a scale, if some are known."""
    if scale is None or scale in experiment.scales:
        return
    families = [find_family(split_scale(task)[0]) for task in experiment.tasks]
    if any(hasattr(family, "at") and not hasattr(family, "scales") for family in families):
        return  # it will say itself
    sizes = list(
        dict.fromkeys(
            [
                "paper",
                *experiment.scales,
                *(size for family in families for size in getattr(family, "scales", ())),
            ]
        )
    )
    if scale not in sizes:
        raise ValueError(
            f"`scale` must be one of {', '.join(map(repr, sizes))}, or left out, got {scale!r}{did_you_mean(scale, sizes)}"
        )


def _is_endless(
    experiment: Experiment, task: str, label: str, problem: Problem, population: int
) -> bool:
    entry = experiment.entries[label]
    algorithm = entry.algorithm(population)
    if callable(check := getattr(algorithm, "check", None)):
        check()
    try:
        return algorithm.scheduler(entry.problem(problem)).needs_budget
    except ValueError as error:
        raise ValueError(f"{label!r} on {task}: {error}") from None


def _check_time(
    experiment: Experiment,
    task: str,
    label: str,
    needs_budget: frozenset[str],
    timers: Sequence[str],
) -> None:
    if label not in needs_budget and experiment.entries[label].time_of is not None:
        raise ValueError(f"{label!r} has an end of its own: leave out its `time_of`")
    if label in needs_budget and experiment.timer(label) not in timers:
        raise ValueError(
            f"{label!r} has no end of its own: `time_of` must name one that has, and is run on {task} "
            f"({', '.join(map(repr, timers)) or 'there is none'}), got {experiment.timer(label)!r}"
        )


@dataclass
class _Stage:
    """The part of a plan that is still to be carried out."""

    experiment: Experiment
    plan: Sequence[PlannedRun]
    out: Path
    subjects: Mapping[str, _Subject]
    finished: dict[PlannedRun, Marker]
    board: "ProgressView"
    record: "Record"
    others: "ReusableRuns"
    failures: dict[PlannedRun, str] = field(default_factory=dict)

    def measure(self, crew: "WorkerPool") -> None:
        """Record what a step of each task costs and which engine trains it: as given, or measured once and for all."""
        for task, subject in self.subjects.items():
            if task in self.record.tasks:
                continue
            engine = (
                self.experiment.engine
                if subject.may_stack or self.experiment.engine == "vectorized"
                else "local"
            )
            known: Mapping[str, Any] = {"cost": self.experiment.cost, "engine": engine}
            taken = {
                key: self.others.measured(task, subject.task_fingerprint, key)
                for key in known
                if known[key] in ("measured", "auto")
            }
            known = {
                **known,
                **{key: value for key, value in taken.items() if value is not None},
            }  # so runs can be taken over, too
            if known["cost"] == "measured" or known["engine"] == "auto":
                self.board.note(f"measuring {task}")
                order = {"task": subject.reference, "stack": self.experiment.workers, **known}
                answer = crew.submit({"measure": order}).result()
                if "failed" in answer:
                    raise TaskFailed(f"{task} cannot be measured:", answer["failed"])
                known = answer["measured"]
            self.record.tasks[task] = known
            self.record.write(self.out, self.finished)
        for run, marker in self.finished.items():
            if "order" in marker:  # not in those of the first versions
                self._check_cost(run, json.loads(marker["order"])["cost"])

    def _check_cost(self, run: PlannedRun, cost: float) -> None:
        """Raise RunMismatch where a run that is there was made at another cost of a step: it would have had another time."""
        ours = self.record.tasks.get(run.task, {}).get("cost", cost)
        if ours != cost:
            raise RunMismatch(
                f"{self.out / run.directory} was run with {cost} virtual seconds a step, and about.json says {ours}; restore that "
                f"file, or use another directory"
            )

    def execute_order(self, crew: "WorkerPool", jobs: int) -> dict[PlannedRun, str]:
        """Carry out all runs that are missing, each as soon as its time is known, and return those that failed."""
        waiting = [run for run in self.plan if run not in self.finished]
        under_way: dict[Future[Mapping[str, Any]], PlannedRun] = {}
        while waiting or under_way:
            ready = [run for run in waiting if self._is_ready(run)][: jobs - len(under_way)]
            for run in ready:
                waiting.remove(run)
                self.board.begin(run)
                order = self._order(run)
                problem = self.experiment.entries[run.algorithm].problem(
                    self.subjects[run.task].problem
                )
                if marker := self.others.copied(order, problem, self.board.note):
                    self.record.taken(self.others.taken)
                    self._end(run, {"finished": marker})
                else:
                    under_way[
                        crew.submit({"order": asdict(order)}, partial(self.board.share, run))
                    ] = run
            if not under_way and not ready:
                self._give_up(waiting, "needs the time of {timer!r}, of which a run failed")
                break
            for future in wait(
                under_way, timeout=0 if ready else None, return_when=FIRST_COMPLETED
            ).done:
                self._end(under_way.pop(future), answer := future.result())
                if answer.get("stop"):
                    self._give_up(waiting, "not begun, as there is no space left")
                    waiting = []
        return self.failures

    def _end(self, run: PlannedRun, answer: Mapping[str, Any]) -> None:
        if "finished" in answer:
            self.finished[run] = answer["finished"]
        else:
            self.failures[run] = answer["failed"]
            self.record.failures[str(run)] = answer.get("trace", answer["failed"])
        self.board.end(run, answer)
        self.record.write(self.out, self.finished)

    def _give_up(self, waiting: Sequence[PlannedRun], why: str) -> None:
        for run in waiting:
            self.failures[run] = why.format(timer=self.experiment.timer(run.algorithm))
            self.board.give_up(run, self.failures[run])

    def _timers(self, run: PlannedRun) -> list[PlannedRun]:
        """Return the runs that say how long a run may take; none if it has an end of its own."""
        if run.algorithm not in self.subjects[run.task].needs_budget:
            return []
        timer = cast(str, self.experiment.timer(run.algorithm))
        return [PlannedRun(run.task, timer, seed) for seed in self.experiment.seeds]

    def _is_ready(self, run: PlannedRun) -> bool:
        return all(timer in self.finished for timer in self._timers(run))

    def _order(self, run: PlannedRun) -> Order:
        entry, subject = self.experiment.entries[run.algorithm], self.subjects[run.task]
        algorithm, measured = entry.algorithm(subject.population), self.record.tasks[run.task]
        times = [self.finished[timer]["seconds"] for timer in self._timers(run)]
        stack = (
            min(self.experiment.workers, algorithm.max_parallel)
            if measured["engine"] == "vectorized"
            else 1
        )
        return Order(
            path=str(self.out / run.directory),
            task=subject.reference,
            algorithm=options_of(algorithm),
            constraints=entry.constraints,
            seed=run.seed + entry.seed_offset,
            workers=self.experiment.workers,
            cost=float(measured["cost"]),
            stack=stack,
            seconds=round(max(times) + SLACK, 6) if times else None,
            keep_models=self.experiment.keep_models,
            task_fingerprint=subject.task_fingerprint,
        )
