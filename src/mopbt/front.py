"""The front of a run: its models, and how to choose one of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import numpy as np

from mopbt.arguments import check_count
from mopbt.errors import MissingExtra, StoreError
from mopbt.messages import column_texts, counted, did_you_mean, number, to_error, with_error
from mopbt.notebook import note_html, table_html
from mopbt.objectives import Constraint, parse_constraints, signed, signed_bounds, unsigned
from mopbt.problem import Problem
from mopbt.ranking import scattered_order
from mopbt.selection import Array, best, checked_weights, knee, scaled, trade, weighted, within
from mopbt.state import ErrorBar

FrontKind = Literal["pessimistic", "observed"]

# Maximum number of models that a printed front shows.
MOST_SHOWN = 12


class ModelSource(Protocol):
    """The run that a point belongs to, as `Results` implements it."""

    def load(self, point: Any) -> Any:
        """Load a trained model."""

    def export(self, point: Any, file: Path | str, *, private: bool = False) -> Any:
        """Write a trained model to files."""

    def noise_warning(self) -> str:
        """Return a sentence if noise alone could have produced the front, else ``""``."""

    def plot_front(self, front: Any) -> Any:
        """Draw all evaluations, and a front."""


@dataclass(frozen=True)
class Point:
    """An evaluated model: its id, its hyperparameters and its metrics.

    Attributes:
        model: The model id.
        trial: The trial that the model belongs to.
        step: Steps of training.
        hp: Hyperparameters of the last interval; `Results.schedule` returns all of them.
        scores: Metrics by name, in their original direction.
        violation: How far the model misses the constraints; 0 if it satisfies them.
        seconds: When the model was reported, in seconds of work.
        why: Why the model was chosen from a front.
        begin: The step at which its last interval began.
        start: The model whose weights that interval started from; None for fresh weights.
        parent: The trial of that model.
        duration: Seconds of work of the last interval.
        errors: The uncertainty of those metrics that have one.
        source: The run, if the point belongs to one.
    """

    model: int
    trial: int
    step: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]
    violation: float = 0.0
    seconds: float = 0.0
    why: str = ""
    begin: int = 0
    start: int | None = None
    parent: int | None = None
    duration: float = 0.0
    errors: Mapping[str, ErrorBar] = field(default_factory=dict)
    source: ModelSource | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the run: a pickled point is small."""
        return {**self.__dict__, "source": None}

    def _repr_html_(self) -> str:
        """Return the metrics and hyperparameters for a notebook."""
        rows = [[name, score_text(self, name)] for name in self.scores]
        rows += [[name, _text(value)] for name, value in self.hp.items()]
        title = f"Model {self.model} at step {self.step}"
        return table_html(rows, title=title, header=False) + note_html(self.why)

    def load(self) -> Any:
        """Load the trained model: from the task's `load`, or a function's tracked state."""
        return self._run("load").load(self)

    def export(self, file: Path | str, *, private: bool = False) -> Any:
        """Write the weights to a .safetensors file, with origin and card beside it.

        Returns the names of the files, as `Results.export` does. `private` leaves out the names of
        the run's directory and of the file with the task.
        """
        return self._run("export").export(self, file, private=private)

    def _run(self, method: str) -> ModelSource:
        if self.source is None:
            raise StoreError(
                f"model {self.model} is not connected to its run, because it was pickled or built "
                f"by hand; use results.{method}({self.model}, ...)"
            )
        return self.source


@dataclass(frozen=True)
class Ancestor:
    """One interval in the history of a model.

    `exploited` says whether it started from another trial's checkpoint. `starts` are the models
    that it started from, with their weights: one, or several whose mean it was.
    """

    model: int
    trial: int
    begin: int
    end: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]
    exploited: bool
    starts: tuple[tuple[int, float], ...] = ()


class Front(Sequence[Point]):
    """The models that no other one dominates, best first in the first objective.

    With constraints, they are feasible. If no model is feasible yet, the front is the one model
    that comes closest.

    `kind` says how models were compared: "observed" by what they measured, "pessimistic" by the
    bounds of the intervals of their metrics. Choosing from a front compares models in the same way.

    Choose a model with ``front.knee()``, ``front.weighted({"accuracy": 2, "dsp": 1})`` or
    ``front.where("accuracy >= 0.8").best("dsp")``. Each returns a point that says `why`.
    """

    def __init__(
        self,
        points: Sequence[Point],
        problem: Problem,
        *,
        complete: "Front | None" = None,
        limits: Sequence[Constraint] = (),
        kind: FrontKind = "observed",
    ) -> None:
        self.kind = kind
        self._points = tuple(points)
        self._problem = problem
        # None stands for this front: a reference to itself would keep its run in memory.
        self._source = complete
        self._limits = tuple(limits)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        names = ", ".join(f"{o.name} ({o.direction})" for o in self._problem.objectives)
        front = "Pessimistic front" if self.kind == "pessimistic" else "Front"
        return f"<{front} of {counted(len(self), 'model')}: {names}>"

    @property
    def warning(self) -> str:
        """Return a sentence if noise alone could have produced the front, else ``""``."""
        source = self[0].source if len(self) else None
        return "" if source is None else source.noise_warning()

    def __str__(self) -> str:
        """Return the models as a table; of a large front, a selection spread over it."""
        title, rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows if len(self) else ():
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells))
        return "\n".join([title, *lines, *self._notes()])

    def _notes(self) -> list[str]:
        lacks = self.shortfall(self[0]) if len(self) else ""
        notes = [lacks and f"Model {self[0].model}: {lacks}.", self.warning]
        return list(filter(None, notes))

    def _repr_html_(self) -> str:
        """Return the table of `str` for a notebook."""
        title, rows = self._table()
        table = table_html(rows if len(self) else (), title=title)
        return table + "".join(map(note_html, self._notes()))

    def _table(self) -> tuple[str, list[list[str]]]:
        """Return the title and the cells of the front, or of a selection spread over it."""
        shown = self.spread(MOST_SHOWN) if len(self) > MOST_SHOWN else self
        names = metric_columns(self._problem, self)
        rows = [["model", "step", *names, *self._problem.space]]
        columns = [column_texts([p.hp[name] for p in shown]) for name in self._problem.space]
        for row, point in enumerate(shown):
            scores = [score_text(point, name) for name in names]
            values = [column[row] for column in columns]
            rows.append([str(point.model), str(point.step), *scores, *values])
        title = repr(self)[1:-1]
        if len(shown) < len(self):
            title += f", {len(shown)} of them"
        return title, rows

    @property
    def scores(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the objectives (n, K) in their original direction."""
        names = [o.name for o in self._problem.objectives]
        rows = [[point.scores[name] for name in names] for point in self]
        return np.array(rows).reshape(len(self), len(names))

    @property
    def best_values(self) -> dict[str, float]:
        """Return the best value of each objective."""
        if not len(self):
            return {}
        return unsigned(self._problem.objectives, self._objectives().max(axis=0).tolist())

    def spread(self, n: int) -> "Front":
        """Return the `n` models that are spread best over the front (Alg. 1, scaled)."""
        check_count("n", n, 1)
        chosen = scattered_order(self._objectives(), scale=True)[:n] if len(self) else ()
        return Front([self[int(i)] for i in sorted(chosen)], self._problem, kind=self.kind)

    def where(self, *limits: str | Constraint) -> "Front":
        """Return the models within limits on metrics: ``where("accuracy >= 0.8")``.

        On a pessimistic front, the bounds of a metric's interval must be within the limits.
        """
        parsed = parse_constraints(limits)
        scores = [point.scores for point in self._nonempty()]
        errors = [point.errors for point in self] if self.kind == "pessimistic" else None
        return Front(
            [self[row] for row in within(parsed, scores, errors)],
            self._problem,
            complete=self._complete,
            limits=(*self._limits, *parsed),
            kind=self.kind,
        )

    def knee(self) -> Point:
        """Return the model where giving up more of one objective stops paying off."""
        return self._explain(knee(self._scaled()), "the knee")

    def weighted(self, weights: Mapping[str, float]) -> Point:
        """Return the model that weights choose.

        Each objective is scaled to its range on the front.
        """
        if not isinstance(weights, Mapping):
            name = self._problem.objectives[0].name
            raise TypeError(f"weights must be a mapping such as {{{name!r}: 2}}, got {weights!r}")
        checked = checked_weights(self._problem.objectives, weights)
        names = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        return self._explain(
            weighted(self._scaled(), checked), f"the choice by the weights {names}"
        )

    def best(self, objective: str) -> Point:
        """Return the model that is best in one objective."""
        names = [o.name for o in self._problem.objectives]
        if objective not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(
                f"`best` must be an objective ({known}), got {objective!r}"
                f"{did_you_mean(objective, names)}"
            )
        row = best(self._scaled(), names.index(objective))
        return self._explain(row, f"the best in {objective}")

    def shortfall(self, point: Point) -> str:
        """Return how a model violates the constraints, as a clause.

        It is empty if the model satisfies them.
        """
        if not point.violation:
            return ""
        limits = " and ".join(map(str, self._problem.constraints))
        if any(other.violation < point.violation for other in self):
            return f"it does not satisfy {limits} (violation {point.violation:.2g})"
        return (
            f"no model satisfies {limits}; this one comes closest (violation {point.violation:.2g})"
        )

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict per model, with the columns of `Results.records`."""
        return [record_of(point, on_front=True) for point in self]

    def to_pandas(self) -> Any:
        """Return the front as a pandas DataFrame."""
        return import_pandas().DataFrame(self.records())

    def plot(self) -> Any:
        """Draw the front, with all evaluations of its run; return a matplotlib figure.

        Two objectives give one panel, three a panel for each pair, more parallel coordinates.
        """
        source = self._nonempty()[0].source
        return self.plot_parallel() if source is None else source.plot_front(self)

    def plot_parallel(self) -> Any:
        """Draw each model as a line over one axis per objective.

        Returns a matplotlib figure.
        """
        from mopbt.plots.run import parallel_figure

        return parallel_figure(self, self._problem)

    @property
    def _complete(self) -> "Front":
        """Return the front without limits, by whose range objectives are scaled."""
        return self if self._source is None else self._source

    def _objectives(self) -> Array:
        return np.array([signed(self._problem.objectives, point.scores) for point in self])

    def _compared(self) -> Array:
        """Return the objectives (n, K) as models were compared, larger is better."""
        if self.kind == "observed":
            return self._objectives()
        objectives = self._problem.objectives
        return np.array([signed_bounds(objectives, p.scores, p.errors) for p in self])

    def _compared_scores(self, point: Point) -> Mapping[str, float]:
        """Return the objectives of a model as compared, in their original direction."""
        if self.kind == "observed":
            return point.scores
        objectives = self._problem.objectives
        return unsigned(objectives, signed_bounds(objectives, point.scores, point.errors))

    def _nonempty(self) -> "Front":
        if not len(self):
            raise ValueError(
                "the front is empty: no interval has reported finite metrics yet; wait for the "
                "first one, or look at `results.records()` for what was measured and what failed"
            )
        return self

    def _scaled(self) -> Array:
        """Return objectives (n, K) from 0, the worst on the complete front, to 1."""
        complete = self._complete._nonempty()
        rows = scaled(complete._compared())
        place = {point.model: row for row, point in enumerate(complete)}
        kept: Array = rows[[place[point.model] for point in self._nonempty()]]
        return kept

    def _explain(self, row: int, rule: str) -> Point:
        """Return a model of the front with the reason why it was chosen."""
        point = self[row]
        if self._limits:
            limits = " and ".join(map(str, self._limits))
            one = f"the only model with {limits}"
            rule = one if len(self) == 1 else f"{rule} of the {len(self):,} models with {limits}"
        if shortfall := self._complete.shortfall(point):
            return replace(point, why=f"Model {point.model}: {shortfall}.")
        why = f"Model {point.model} is {rule}: {self._price(point)}.{self._certainty(point)}"
        return replace(point, why=why)

    def _certainty(self, point: Point) -> str:
        """Return at which bounds a model was compared, in a sentence; empty if at none."""
        if self.kind == "observed":
            return ""
        clauses = []
        for objective in self._problem.objectives:
            bar = point.errors.get(objective.name)
            if bar is not None:
                side = "lower" if objective.sign > 0 else "upper"
                bound = bar.lower if objective.sign > 0 else bar.upper
                text = to_error(bound, bar.stderr) if bar.stderr > 0 else f"{bound:.4g}"
                value = score_text(point, objective.name)
                clauses.append(f"{objective.name} {value} ({side} bound {text})")
        return f" Models are compared at their bounds: {', '.join(clauses)}." if clauses else ""

    def _price(self, point: Point) -> str:
        """Return what a model gives up compared with the leaders of the complete front."""
        objectives = self._problem.objectives
        complete = self._complete
        rows = complete._scaled()
        clauses = {}
        for k, objective in enumerate(objectives):
            leader = complete[best(rows, k)]
            if leader.model != point.model:
                pair = (self._compared_scores(p) for p in (point, leader))
                difference = trade(objectives, *pair)
                clauses[leader.model] = (
                    f"compared with the best in {objective.name} it {difference}"
                )
        return "; ".join(clauses.values()) or "no other model is better in any objective"


def metric_columns(problem: Problem, points: Sequence[Point]) -> list[str]:
    """Return the objectives, each followed by metrics such as ``test/accuracy``."""
    measured: dict[str, None] = {}
    for point in points:
        measured |= dict.fromkeys(point.scores)
    names = []
    for objective in problem.objectives:
        names.append(objective.name)
        names += [name for name in measured if name.endswith(f"/{objective.name}")]
    return names


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def score_text(point: Point, name: str) -> str:
    """Format a metric of a model, with its standard error if it has one.

    A missing metric is a dash.
    """
    if name not in point.scores:
        return "–"
    bar = point.errors.get(name)
    value = point.scores[name]
    return number(value) if bar is None else with_error(value, bar.stderr)


def record_of(point: Point, *, on_front: bool, error: str = "") -> dict[str, Any]:
    """Return an evaluation as a flat dict, the row of `records`."""
    record: dict[str, Any] = {"model": point.model, "trial": point.trial}
    record |= {"begin": point.begin, "end": point.step}
    record |= {"start": point.start, "parent": point.parent}
    record |= {f"hp.{name}": value for name, value in point.hp.items()}
    record |= {f"score.{name}": value for name, value in point.scores.items()}
    for name, bar in point.errors.items():
        record |= {f"{part}.{name}": value for part, value in bar._asdict().items()}
    record |= {"violation": point.violation, "front": on_front}
    return record | {"seconds": point.seconds, "duration": point.duration, "error": error}


def schedule_of(lineage: Iterable[Ancestor]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Return the hyperparameters of intervals: (begin, end, hp), merged where equal."""
    schedule: list[tuple[int, int, Mapping[str, Any]]] = []
    for ancestor in lineage:
        if schedule and schedule[-1][1] == ancestor.begin and schedule[-1][2] == ancestor.hp:
            schedule[-1] = (schedule[-1][0], ancestor.end, ancestor.hp)
        else:
            schedule.append((ancestor.begin, ancestor.end, ancestor.hp))
    return schedule


def import_pandas() -> Any:
    """Import pandas, or raise MissingExtra."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra(
            "to_pandas needs pandas: pip install 'mopbt[pandas]' (or use records())"
        ) from None
    return pandas
