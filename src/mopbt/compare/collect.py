"""The finished runs of a comparison, as arrays and as one tidy table."""

import csv
import gzip
import importlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.errors import CorruptJournal, MissingExtra, RunMismatch, StoreError
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config
from mopbt.space import Float
from mopbt.state import Report
from mopbt.stores.base import Exchange
from mopbt.stores.directory import write_atomically
from mopbt.stores.journal import read_journal

TEXTS = (
    "task",
    "algorithm",
    "error",
)  # columns of the tidy table that are texts in every comparison
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ANEW = "put back a copy of it, or remove that directory, and the same command without --only-report runs it anew"
Marker = Mapping[str, Any]  # what the directory of a finished run says of it


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, a row for each of its n evaluations in the order in which they ended; K objectives, d hyperparameters.

    The rows of evaluations that failed are NaN in `objectives`, `test` and `scores`, and infinite in `violations`.
    """

    task: str  # as the experiment names it
    algorithm: str  # its label in the experiment
    seed: int  # as the experiment has it, without the algorithm's `seed_offset`: runs of the same seed are pairs
    objectives: Floats  # (n, K), larger is better
    test: (
        Floats | None
    )  # (n, K), the same objectives on test data, larger is better; None: the task does not measure them
    seconds: Floats  # (n,), when the evaluation was over, by the virtual clock
    steps: Ints  # (n,), of training that the evaluated model has behind it
    violations: Floats  # (n,), of the constraints; 0: feasible
    positions: Floats  # (n, d), of the last interval's hyperparameters, as `Space` has them; the columns are in its order
    scores: Mapping[str, Floats]  # each (n,): all that was measured, in its own sense, by name
    jobs: Ints  # (n,)
    trials: Ints  # (n,)
    duration: Floats  # (n,), real seconds of training and evaluation
    errors: Mapping[int, str]  # of those rows that failed

    def __len__(self) -> int:
        """Return n, the number of evaluations."""
        return len(self.jobs)

    def only(self, rows: NDArray[np.intp]) -> "RunData":
        """Return the run with some of its rows (m,), in their order."""
        columns = (
            "objectives",
            "seconds",
            "steps",
            "violations",
            "positions",
            "jobs",
            "trials",
            "duration",
        )
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in columns},
            test=None if self.test is None else self.test[rows],
            scores={name: column[rows] for name, column in self.scores.items()},
            errors={
                place: self.errors[row]
                for place, row in enumerate(rows.tolist())
                if row in self.errors
            },
        )


@dataclass(frozen=True, eq=False)
class Comparison:
    """The finished runs of an experiment, in the order of its tasks, algorithms and seeds, and what is still missing."""

    experiment: "Experiment"
    problems: Mapping[str, Problem]  # by task, of those that have runs, in the experiment's order
    runs: tuple[RunData, ...]
    missing: tuple["PlannedRun", ...] = ()  # not finished yet
    failures: Mapping["PlannedRun", str] = field(
        default_factory=dict
    )  # those that failed in this session, with the reason
    mixed: tuple[str, ...] = ()  # tasks whose code changed between their runs
    changed: tuple[str, ...] = ()  # tasks whose file changed after all of their runs
    versions: tuple[str, ...] = ()  # of mopbt, by which the runs were made

    @staticmethod
    def open(out: Path | str) -> "Comparison":
        """Read a comparison from the journals of its runs; tasks and data are not needed."""
        out = Path(out)
        experiment = recorded_experiment(out)
        tasks, labels = list(experiment.tasks), list(experiment.algorithms)
        plan = sorted(
            experiment.plan(), key=lambda run: (tasks.index(run.task), labels.index(run.algorithm))
        )
        finished = finished_of(out, plan)
        problems: dict[str, Problem] = {}
        codes: dict[str, set[str]] = {}
        for run in finished:
            settings = read_run_config(out / run.directory)
            codes.setdefault(run.task, set()).add(settings.task_fingerprint)
            own = settings.problem
            alone = replace(
                own, constraints=problems.setdefault(run.task, own).constraints
            )  # a contender may have its own
            if alone != problems[run.task]:
                raise RunMismatch(
                    f"the runs of {run.task} in {out} are of different tasks: {out / run.directory} has another space, other "
                    f"objectives, or another number of steps than the first; remove the runs that are out of date, and go on"
                )
        runs = tuple(
            read_run(out / run.directory, run, problems[run.task], marker)
            for run, marker in finished.items()
        )
        missing = tuple(run for run in plan if run not in finished)
        mixed = tuple(task for task, made in codes.items() if len(made - {""}) > 1)
        versions = {
            json.loads(marker["order"])["version"]
            for marker in finished.values()
            if "order" in marker
        }
        return Comparison(
            experiment, problems, runs, missing, mixed=mixed, versions=tuple(sorted(versions))
        )

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the labels of those algorithms that have runs, in the experiment's order."""
        present = {run.algorithm for run in self.runs}
        return tuple(label for label in self.experiment.algorithms if label in present)

    def evaluations(self) -> dict[str, NDArray[Any]]:
        """Return the tidy table of all evaluations as columns (n,); NaN or, but for numbers, "" where a task has no such column."""
        tables = [_columns(run, self.problems[run.task]) for run in self.runs]
        return {name: _joined(name, tables) for name in _header(tables)}


def comparison_of(path: Path) -> Path | None:
    """Return the comparison that a run's directory belongs to; None if it stands alone."""
    above = path.absolute().parents
    return (
        above[3]
        if len(above) > 3 and above[2].name == "runs" and (above[3] / "experiment.toml").is_file()
        else None
    )


def finished_of(out: Path, plan: Iterable[PlannedRun]) -> dict[PlannedRun, Marker]:
    """Return the finished runs of a plan with what their directories say, or raise StoreError where one was changed since."""
    found = {
        run: read_marker(file)
        for run in plan
        if (file := out / run.directory / "finished.json").exists()
    }
    for run, marker in found.items():
        if wrong := what_is_wrong(out / run.directory, marker):
            raise StoreError(f"{out / run.directory} is not as its run left it: {wrong}; {ANEW}")
    return found


def read_marker(file: Path) -> Marker:
    """Read what marks a run as finished."""
    marker = read_json(file, remedy := "remove it, and the run goes on")
    if lacking := [key for key in ("seconds", "real", "evaluations") if key not in marker]:
        raise StoreError(f"{file} is damaged (it has no {lacking[0]!r}); {remedy}")
    return marker


def what_is_wrong(path: Path, marker: Marker) -> str:
    """Return what a finished run's directory lacks; nothing if it is whole. A journal is not read where its size tells."""
    for name in ("run.toml", "journal.jsonl"):
        if not (path / name).is_file():
            return f"it has no {name}"
    size = (path / "journal.jsonl").stat().st_size
    if "bytes" in marker:  # not in those of the first versions
        return (
            ""
            if size == marker["bytes"]
            else f"its journal has {size} bytes, and finished.json says {marker['bytes']}"
        )
    try:
        return _miscount(read_journal(path / "journal.jsonl")[0], marker)
    except CorruptJournal as error:
        return str(error)


def _miscount(exchanges: Iterable[Exchange], marker: Marker) -> str:
    found, told = sum(len(exchange.reports) for exchange in exchanges), marker["evaluations"]
    return (
        ""
        if found == told
        else f"it has {found} evaluations in its journal, and finished.json says {told}"
    )


def problem_differences(path: Path, problem: Problem) -> list[str]:
    """Return how a problem differs from that of a run's directory."""
    recorded = read_run_config(path)
    return recorded.differences(replace(recorded, problem=problem))


def recorded_experiment(out: Path) -> Experiment:
    """Return the experiment of a comparison's directory, in its scale."""
    if not (out / "experiment.toml").is_file():
        raise StoreError(
            f"{out} is not a comparison: it has no experiment.toml; `mopbt compare EXPERIMENT --out {out}` makes one"
        )
    return Experiment.read(out / "experiment.toml").at(scale_of(out))


def scale_of(out: Path) -> str | None:
    """Return the scale of a comparison's directory."""
    scale: str | None = about_of(out).get("scale")
    return scale


def about_of(out: Path) -> dict[str, Any]:
    """Return what about.json says of a comparison; nothing if it is not there."""
    file = out / "about.json"
    return (
        read_json(file, "restore it, or use another directory with --reuse for this one")
        if file.exists()
        else {}
    )


def read_json(file: Path, remedy: str) -> dict[str, Any]:
    """Read what was written as JSON, or raise StoreError with the remedy where it is torn."""
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise StoreError(f"{file} is damaged ({error}); {remedy}") from None
    if not isinstance(data, dict):
        raise StoreError(f"{file} is damaged (it is no table of names and values); {remedy}")
    return data


def read_run(path: Path, run: PlannedRun, problem: Problem, marker: Marker) -> RunData:
    """Read the journal of a finished run."""
    try:
        exchanges, _ = read_journal(path / "journal.jsonl")
    except CorruptJournal as error:
        raise StoreError(f"{str(error).partition(';')[0]}; {ANEW}") from None
    if wrong := _miscount(exchanges, marker):
        raise StoreError(f"{path} is not as its run left it: {wrong}; {ANEW}")
    orders = {job.id: job for exchange in exchanges for job in exchange.jobs}
    reports = [report for exchange in exchanges for report in exchange.reports]
    jobs = [orders[report.job] for report in reports]
    scores = _scores(reports)
    tests = [f"test/{objective.name}" for objective in problem.objectives]
    signs = np.array([objective.sign for objective in problem.objectives])
    K, nothing = len(signs), (math.nan,) * len(signs)
    return RunData(
        task=run.task,
        algorithm=run.algorithm,
        seed=run.seed,
        objectives=np.array([report.objectives or nothing for report in reports]).reshape(-1, K),
        test=np.column_stack([scores[name] for name in tests]) * signs
        if set(tests) <= set(scores)
        else None,
        seconds=np.array([report.seconds for report in reports]),
        steps=np.array([job.end for job in jobs], dtype=np.int64),
        violations=np.array(
            [math.inf if report.objectives is None else report.violation for report in reports]
        ),
        positions=np.array([job.config for job in jobs], dtype=float).reshape(
            -1, len(problem.space)
        ),
        scores=scores,
        jobs=np.array([job.id for job in jobs], dtype=np.int64),
        trials=np.array([job.trial for job in jobs], dtype=np.int64),
        duration=np.array([report.duration for report in reports]),
        errors={
            row: report.error for row, report in enumerate(reports) if report.objectives is None
        },
    )


def _scores(reports: Sequence[Report]) -> dict[str, Floats]:
    names = dict.fromkeys(chain.from_iterable(report.scores for report in reports))
    return {
        name: np.array([report.scores.get(name, math.nan) for report in reports]) for name in names
    }


def write_evaluations(comparison: Comparison, out: Path, *, parquet: bool = False) -> None:
    """Write evaluations.csv.gz, and evaluations.parquet if it is asked for."""
    write_atomically(out / "evaluations.csv.gz", compressed(comparison))
    if parquet:
        columns = {name: _typed(name, column) for name, column in comparison.evaluations().items()}
        buffer = io.BytesIO()
        parquet_writer().write_table(importlib.import_module("pyarrow").table(columns), buffer)
        write_atomically(out / "evaluations.parquet", buffer.getvalue())


def parquet_writer() -> Any:
    """Return the module that writes Parquet, or raise MissingExtra."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install pyarrow (or use evaluations.csv.gz, and remove evaluations.parquet if it is there)"
        ) from None


def compressed(comparison: Comparison) -> bytes:
    """Return the tidy table of all evaluations as compressed CSV; the same evaluations give the same bytes."""
    tables = [_columns(run, comparison.problems[run.task]) for run in comparison.runs]
    header, buffer = _header(tables), io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=3, mtime=0) as file:
        file.write((",".join(map(_quoted, header)) + "\n").encode())
        for table in tables:
            texts = [_texts(table[name]) if name in table else repeat("") for name in header]
            file.write(
                "".join(f"{row}\n" for row in map(",".join, zip(*texts, strict=False))).encode()
            )
    return buffer.getvalue()


def _columns(run: RunData, problem: Problem) -> dict[str, NDArray[Any]]:
    """Return the columns (n,) of a run in the tidy table."""
    n = len(run)
    head = {
        "task": np.full(n, run.task, object),
        "algorithm": np.full(n, run.algorithm, object),
        "seed": np.full(n, run.seed),
    }
    head |= {
        "job": run.jobs,
        "trial": run.trials,
        "step": run.steps,
        "seconds": run.seconds,
        "duration": run.duration,
    }
    errors = np.full(n, "", object)
    errors[list(run.errors)] = list(run.errors.values())
    scores = {f"score.{name}": column for name, column in run.scores.items()}
    configs = {
        f"config.{name}": _values(problem, name, run.positions[:, i])
        for i, name in enumerate(problem.space)
    }
    return head | {"violation": run.violations, "error": errors} | scores | configs


def _values(problem: Problem, name: str, positions: Floats) -> NDArray[Any]:
    domain = problem.space[name]
    at, index = np.unique(positions, return_inverse=True)  # to decode each of them once
    values = [
        domain.decode(position if isinstance(domain, Float) else int(position))
        for position in at.tolist()
    ]
    is_mixed = len({type(value) for value in values}) > 1 or any(
        isinstance(value, str) for value in values
    )
    return np.array(values, dtype=object if is_mixed else None)[index]


def _header(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of all tables: what all have, then scores, then configurations."""
    names = dict.fromkeys(chain.from_iterable(tables))
    return sorted(names, key=lambda name: (name.startswith("config."), name.startswith("score.")))


def _joined(name: str, tables: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """Return a column of all tables, with NaN or "" for those that do not have it."""
    kinds = {table[name].dtype if name in table else None for table in tables}
    if np.dtype(object) in kinds or (np.dtype(bool) in kinds and len(kinds) > 1):
        return np.concatenate(
            [table.get(name, np.full(len(table["job"]), "")).astype(object) for table in tables]
        )
    return np.concatenate(
        [table.get(name, np.full(len(table["job"]), math.nan)) for table in tables]
    )


def _typed(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Return a column (n,) as a format can hold it that knows types: of one kind with gaps, or else of texts."""
    if column.dtype != object:
        return column
    values = column.tolist()
    present = [value for value in values if value != ""]
    if present and name not in TEXTS and all(isinstance(value, bool) for value in present):
        return np.array([None if value == "" else value for value in values], dtype=object)
    if (
        present
        and name not in TEXTS
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)
    ):
        return np.array([math.nan if value == "" else float(value) for value in values])
    return np.array([str(value) for value in values], dtype=object)


def _texts(column: NDArray[Any]) -> list[str]:
    """Return the cells of a column (n,) as they stand in a CSV file; NaN and "" are empty ones."""
    values = column.tolist()
    if column.dtype == float:
        texts = list(map(repr, values))
        return (
            ["" if text == "nan" else text for text in texts] if np.isnan(column).any() else texts
        )
    kinds = list(map(type, values))  # 1 and True are equal, and different
    cells = {
        (k, v): _quoted(v) if isinstance(v, str) and v else str(v)
        for k, v in set(zip(kinds, values, strict=True))
    }
    return [cells[cell] for cell in zip(kinds, values, strict=True)]


def _quoted(text: str) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow([text])  # what ends a line is quoted
    return buffer.getvalue()[:-2]
