"""The data of a run's page as plain JSON.

They say what the run found, when and from where, and where it searched.

The data stays small however long the run is: dominated evaluations, curves and exploits are
sampled, and the way to a model is given in segments of unchanged hyperparameters. The front is
always complete. Metrics are in their original direction.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt.archive import Entry
from mopbt.errors import MissingExtra
from mopbt.evaluations import Evaluations
from mopbt.history import History
from mopbt.importance import Intervals, importance_of
from mopbt.metrics import coverage, coverage_units, non_dominated, own_reference
from mopbt.noise import noise_warning
from mopbt.objectives import Objective, unsigned
from mopbt.problem import Problem
from mopbt.results import Results, total_intervals
from mopbt.run_config import RunConfig
from mopbt.space import Domain, Float, Int

# Maximum number of dominated evaluations, and exploits, that are drawn.
MOST_DRAWN = 4000
# Maximum number of points of a hypervolume curve.
MOST_TIMES = 400
# Maximum number of rows of the lineage, besides those that led to the front.
MOST_TRIALS = 240
# Bins of a histogram along each axis.
BINS = 40
# Maximum number of values of a hyperparameter that are listed.
MOST_LEVELS = 20
# Maximum number of points of all learning curves.
MOST_MEASURED = 8000
# Maximum number of metrics with learning curves.
MOST_METRICS = 6
# Maximum number of kinds of failures that are listed.
MOST_FAILURES = 20
# Maximum number of characters of an error message.
MOST_CHARACTERS = 4000
# An axis shows this share of the evaluations, and the rest if that makes it at most this much
# longer: one member that diverged would otherwise squeeze all others into a corner.
SHOWN_SHARE = 0.95
LONGEST_STRETCH = 1.25

NO_IMPORTANCE: Mapping[str, Any] = {"objectives": [], "missing": ""}

Array = NDArray[np.float64]
# Pairs of seconds and hypervolume.
Curve = list[tuple[float, float]]


class Segment(NamedTuple):
    """Intervals of a trial with the same hyperparameters, up to `job`."""

    job: int
    # The segment that it continues, None for fresh weights.
    start: int | None
    trial: int
    begin: int
    end: int
    config: tuple[float, ...]


class RunData:
    """A run as its page shows it."""

    def __init__(
        self,
        settings: RunConfig,
        history: History,
        *,
        name: str,
        path: str,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._settings = settings
        self.history = history
        self.name = name
        self.path = path
        self.evaluations = Evaluations() if evaluations is None else evaluations
        # What `importance_data` returned for the run, perhaps some reports ago.
        self.importance = NO_IMPORTANCE

    def hide_places(self) -> None:
        """Leave out the folders above the run and above the file with its task."""
        reference = PurePath(self._settings.task_reference).name
        self._settings = replace(self._settings, task_reference=reference)
        self.path = self.name

    @property
    def settings(self) -> RunConfig:
        """Return the settings of the run, including its extension."""
        return self._settings.extended(self.history.extension)

    @property
    def total(self) -> int | None:
        """Return how many intervals the complete run has, if its algorithm knows."""
        return total_intervals(self.settings)

    @property
    def problem(self) -> Problem:
        """Return the problem of the run."""
        return self.settings.problem

    @property
    def front(self) -> list[Entry]:
        """Return the models to choose from with their measured objectives, best first.

        Where errors are known, it is the pessimistic front.
        """
        reports = self.history.reports
        front = []
        for entry in self.history.pessimistic_front:
            measured = reports.objectives_of(reports.row(entry.job))
            front.append(replace(entry, objectives=measured))
        return sorted(front, key=_best_first)

    @property
    def observed_front(self) -> list[Entry]:
        """Return the front of the measured values, best first in the first objective."""
        return sorted(self.history.front, key=_best_first)

    def points(self) -> Array:
        """Return the feasible points of the observed front (n, K), larger is better."""
        points = [entry.objectives for entry in self.observed_front if not entry.violation]
        return np.array(points, dtype=float).reshape(-1, len(self.problem.objectives))

    def hypervolume(self, reference: Array | None = None) -> float:
        """Return the hypervolume of the front above a reference point (K,)."""
        return self.history.hypervolume(reference)

    def curve(self, reference: Array | None = None) -> Curve:
        """Return the hypervolume over time, up to the last report, thinned."""
        curve = thinned(self.history.curve(reference), MOST_TIMES)
        if curve and self.history.seconds > curve[-1][0]:
            curve.append((self.history.seconds, curve[-1][1]))
        return curve

    def segments(self) -> list[Segment]:
        """Return how the models of the front were trained, in segments."""
        jobs = self.history.jobs
        ends = {entry.job for entry in self.history.pessimistic_front}
        seen = set(ends)
        pending = sorted(ends)
        while pending:
            job = pending.pop()
            parent = jobs.start(job)
            if parent is None:
                continue
            if self.history.is_exploit(job) or jobs.config(parent) != jobs.config(job):
                ends.add(parent)
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
        return [self._segment(job, ends) for job in sorted(ends)]

    def _segment(self, last: int, ends: set[int]) -> Segment:
        jobs = self.history.jobs
        first = last
        while (start := jobs.start(first)) is not None and start not in ends:
            first = start
        tail = self.history.job(last)
        return Segment(last, start, tail.trial, jobs.begin(first), tail.end, tail.config)

    def summary(self, *, driver: str = "", trouble: str = "") -> dict[str, Any]:
        """Return the run in one line: state, counters, hypervolume."""
        is_done = self.history.done or len(self.history.reports) == self.total
        state = "done" if is_done else "interrupted"
        return {
            "name": self.name,
            "path": self.path,
            "task": self.problem.name,
            "algorithm": str(self.settings.algorithm.get("name", "")),
            "seed": self.settings.seed,
            "state": "running" if driver else state,
            "driver": driver,
            "trouble": trouble,
            "objectives": [
                {"name": o.name, "direction": o.direction} for o in self.problem.objectives
            ],
            "intervals": len(self.history.reports),
            "total": self.total,
            "failed": self.history.failures,
            "diverged": self.history.diverged,
            "seconds": self.history.seconds,
            "models": len(self.history.pessimistic_front),
            "hypervolume": self.hypervolume(),
        }

    def data(self, *, driver: str = "", trouble: str = "") -> dict[str, Any]:
        """Return everything a page needs."""
        segments = self.segments()
        views = self._views()
        trials = self._shown_trials({segment.trial for segment in segments})
        exploits = self._exploits()
        reference = unsigned(self.problem.objectives, self.history.reference().tolist())
        return self.summary(driver=driver, trouble=trouble) | {
            "constraints": [str(constraint) for constraint in self.problem.constraints],
            "reference": reference,
            "virtual": self.settings.engine.get("name") == "simulated",
            "steps": self.problem.steps,
            "space": [domain_data(name, domain) for name, domain in self.problem.space.items()],
            "warning": "" if driver else noise_warning(self.history),
            "front": [self._point(entry) for entry in self.front],
            "observed": self._observed(),
            "confidence": self.settings.confidence,
            "stretches": [list(segment) for segment in segments],
            "others": self._dominated(views),
            "views": views,
            "curve": self.curve(),
            "trials": self._spans(trials),
            "exploits": self._edges(exploits, set(trials)),
            "exploited": len(exploits),
            "histograms": self._histograms(views),
            "visits": [visits.tolist() for visits in self._visits()],
            "learning": self._learning(trials),
            "importance": self.importance,
            "failures": self._failures(),
            "settings": setting_rows(self.settings),
            "loading": loading(self.path, self.settings.task_reference),
        }

    def _finite_rows(self) -> NDArray[np.int64]:
        objectives = self.history.reports.objectives()
        violations = self.history.reports.violations()
        return np.flatnonzero(np.isfinite(objectives).all(axis=1) & np.isfinite(violations))

    def _scores(self, rows: NDArray[np.int64]) -> Array:
        """Return the objectives of reports (n, K) in their original direction."""
        signs = np.array([o.sign for o in self.problem.objectives], dtype=float)
        return np.asarray(self.history.reports.objectives()[rows] * signs)

    def _point(self, entry: Entry) -> dict[str, Any]:
        job = self.history.job(entry.job)
        report = self.history.report(entry.job)
        measured, bars = self.evaluations.with_rows(job.id, report.scores, report.errors)
        scores = {
            name: score if math.isfinite(score) else repr(score) for name, score in measured.items()
        }
        errors = {name: list(bar) for name, bar in bars.items() if all(map(math.isfinite, bar))}
        return {
            "job": job.id,
            "trial": job.trial,
            "step": job.end,
            "seconds": report.seconds,
            "violation": entry.violation,
            "objectives": list(unsigned(self.problem.objectives, entry.objectives).values()),
            "scores": scores,
            "errors": errors,
        }

    def _observed(self) -> list[list[float]] | None:
        """Return the observed front if it is not the one to choose from."""
        if not self.history.has_errors:
            return None
        objectives = self.problem.objectives
        front = self.observed_front
        return [list(unsigned(objectives, entry.objectives).values()) for entry in front]

    def _dominated(self, views: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """Return the evaluations off the front as columns, as many as can be drawn."""
        rows = self._finite_rows()
        jobs = self.history.reports.jobs()[rows]
        beside = np.flatnonzero(
            ~np.isin(jobs, [entry.job for entry in self.history.pessimistic_front])
        )
        shown = beside[sample(jobs[beside], MOST_DRAWN)]
        scores = self._scores(rows)
        lowest, highest = np.array(views).T
        in_view = ((scores >= lowest) & (scores <= highest)).all(axis=1)
        violations = self.history.reports.violations()[rows]
        return {
            "of": len(beside),
            "outside": int((~in_view[beside]).sum()),
            "scores": [[float(f"{x:.6g}") for x in column] for column in scores[shown].T.tolist()],
            "steps": self.history.jobs.ends()[jobs[shown]].tolist(),
            "infeasible": (violations[shown] > 0).astype(int).tolist(),
        }

    def _views(self) -> list[tuple[float, float]]:
        """Return the range of each axis, with both fronts and the error bars in it."""
        scores = self._scores(self._finite_rows())
        both = [*self.history.front, *self.front]
        views = []
        for k, objective in enumerate(self.problem.objectives):
            values = [objective.sign * entry.objectives[k] for entry in both]
            required = np.array([*values, *self._bounds(objective.name)], dtype=float)
            views.append(view_of(objective, scores[:, k], required))
        return views

    def _bounds(self, name: str) -> list[float]:
        """Return the finite bounds of a metric of the models to choose from."""
        bars = [self.history.report(entry.job).errors.get(name) for entry in self.front]
        bounds = [bound for bar in bars if bar is not None for bound in (bar.lower, bar.upper)]
        return list(filter(math.isfinite, bounds))

    def _histograms(self, views: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
        """Return where evaluations fell, for each pair of up to three objectives."""
        scores = self._scores(self._finite_rows())
        histograms = []
        for x, y in combinations(range(min(len(views), 3)), 2):
            counts = np.histogram2d(
                scores[:, x], scores[:, y], bins=BINS, range=[views[x], views[y]]
            )[0].astype(int)
            cells = [[int(i), int(j), int(counts[i, j])] for i, j in np.argwhere(counts)]
            histograms.append({"x": x, "y": y, "bins": BINS, "cells": cells})
        return histograms

    def _visits(self) -> list[NDArray[np.int64]]:
        """Return how often each level of a hyperparameter was trained, by time."""
        steps = self.problem.steps
        interval = self.problem.interval
        columns = min(math.ceil(steps / interval), BINS)
        jobs = self.history.reports.jobs()
        at = np.clip((self.history.jobs.ends()[jobs] - 1) * columns // steps, 0, columns - 1)
        configs = self.history.jobs.configs()[jobs]
        visits = []
        for k, domain in enumerate(self.problem.space.values()):
            counts = np.zeros((columns, levels_of(domain)), dtype=np.int64)
            positions, inverse = np.unique(configs[:, k], return_inverse=True)
            levels = np.array([level_of(domain, p) for p in positions.tolist()], dtype=np.int64)
            if len(positions):
                np.add.at(counts, (at, levels[inverse]), 1)
            visits.append(counts)
        return visits

    def _shown_trials(self, needed: set[int]) -> list[int]:
        """Return the trials of the lineage that led to the front, and some others."""
        others = np.array(sorted(set(range(self.history.trials)) - needed), dtype=np.int64)
        return sorted(needed | set(others[sample(others, MOST_TRIALS)].tolist()))

    def _spans(self, trials: Sequence[int]) -> list[list[int]]:
        """Return the first and the last step of trials."""
        of = self.history.jobs.trials()
        begins = self.history.jobs.begins()
        ends = self.history.jobs.ends()
        known = of >= 0
        first = np.full(self.history.trials, np.iinfo(np.int64).max)
        last = np.zeros(self.history.trials, dtype=np.int64)
        np.minimum.at(first, of[known], begins[known])
        np.maximum.at(last, of[known], ends[known])
        return [[trial, int(first[trial]), int(last[trial])] for trial in trials]

    def _exploits(self) -> NDArray[np.int64]:
        """Return the jobs that start from another trial's checkpoint."""
        starts = self.history.jobs.start_ids()
        trials = self.history.jobs.trials()
        started = np.flatnonzero(starts >= 0)
        return np.asarray(started[trials[starts[started]] != trials[started]])

    def _edges(self, jobs: NDArray[np.int64], trials: set[int]) -> list[list[int]]:
        """Return exploits among trials: from trial, at its step, to trial, at its step."""
        edges = []
        columns = self.history.jobs
        for job in jobs[sample(jobs, MOST_DRAWN)].tolist():
            start = columns.start(job)
            assert start is not None, "an exploit starts from a checkpoint"
            donor = columns.trial(start)
            taker = columns.trial(job)
            if donor in trials and taker in trials:
                edges.append([donor, columns.end(start), taker, columns.begin(job)])
        return edges

    def _learning(self, trials: Sequence[int]) -> dict[str, Any]:
        """Return the metrics of trials over their steps, thinned where there are many.

        A curve is a trial with the jobs that trained it, whether they took other weights, and their
        metrics, each a list.
        """
        reports = self.history.reports
        jobs = np.sort(reports.jobs())
        owners = self.history.jobs.trials()[jobs]
        order = np.argsort(owners, kind="stable")
        begins = np.searchsorted(owners[order], list(trials))
        ends = np.searchsorted(owners[order], list(trials), side="right")
        names = self._metric_names()
        row_of = np.argsort(reports.jobs())
        columns = [reports.scores(name)[row_of] for name in names]
        most = max(20, MOST_MEASURED // max(1, len(trials)))
        curves = []
        for trial, begin, end in zip(trials, begins.tolist(), ends.tolist(), strict=True):
            kept = np.linspace(begin, end - 1, min(most, end - begin)).round().astype(int)
            own = order[kept]
            ids = jobs[own].tolist()
            curves.append(
                {
                    "trial": trial,
                    "jobs": ids,
                    "steps": self.history.jobs.ends()[ids].tolist(),
                    "taken": [int(self.history.is_exploit(job)) for job in ids],
                    "scores": [list(map(finite_or_none, column[own])) for column in columns],
                }
            )
        return {"metrics": names, "curves": curves}

    def _metric_names(self) -> list[str]:
        """Return the metrics with learning curves: objectives, each beside its namesakes."""
        names = []
        for objective in self.problem.objectives:
            names.append(objective.name)
            for name in self.history.reports.score_names():
                if name.endswith(f"/{objective.name}"):
                    names.append(name)
        return names[:MOST_METRICS]

    def _failures(self) -> list[dict[str, Any]]:
        """Return the most frequent failures, grouped by the last line of their errors."""
        kinds: dict[str, dict[str, Any]] = {}
        for row, error in self.history.reports.failures().items():
            text = error.strip()
            last = text.rpartition("\n")[2][:MOST_CHARACTERS]
            if last not in kinds and len(kinds) == MOST_FAILURES:
                continue
            new = {"message": last, "count": 0, "jobs": [], "text": text[-MOST_CHARACTERS:]}
            kind = kinds.setdefault(last, new)
            kind["count"] += 1
            kind["jobs"] = [*kind["jobs"], self.history.reports.job(row)][:5]
        return sorted(kinds.values(), key=lambda kind: -kind["count"])


def _best_first(entry: Entry) -> tuple[tuple[float, ...], int]:
    return tuple(-x for x in entry.objectives), entry.job


def compared(runs: Sequence[RunData]) -> dict[str, Any]:
    """Return runs of one problem next to each other, under one common reference point."""
    check_comparable(runs)
    objectives = runs[0].problem.objectives
    fronts = [run.points() for run in runs]
    reference = common_reference([run.problem for run in runs], fronts)
    joint = np.concatenate(fronts)
    best = joint[non_dominated(joint)]
    signs = np.array([o.sign for o in objectives], dtype=float)
    has_coverage = len(objectives) == 2
    units = coverage_units(joint, reference) if has_coverage else np.ones(2)
    rows = []
    for run, front in zip(runs, fronts, strict=True):
        share = coverage(front, reference, units=units) if has_coverage else None
        is_kept = (front[:, None, :] == best[None, :, :]).all(axis=2).any(axis=1)
        rows.append(
            {
                "hypervolume": run.hypervolume(reference),
                "coverage": share,
                "kept": int(is_kept.sum()),
                "of": len(front),
            }
        )
    columns = zip(objectives, (joint * signs).T, strict=True)
    return {
        "reference": unsigned(objectives, reference.tolist()),
        "views": [view_of(o, column, column) for o, column in columns],
        "curves": [run.curve(reference) for run in runs],
        "rows": rows,
    }


def check_comparable(runs: Sequence[RunData | Results]) -> None:
    """Raise ValueError unless all runs have the same objectives."""
    wanted = runs[0].problem.objectives
    for run in runs:
        if run.problem.objectives != wanted:
            mine, theirs = (
                ", ".join(f"{o.name} {o.direction}" for o in objectives)
                for objectives in (wanted, run.problem.objectives)
            )
            raise ValueError(
                f"{run.path} has the objectives {theirs}, and {runs[0].path} has {mine}; runs can "
                "be compared only if they have the same objectives: look at each of them alone"
            )


def common_reference(problems: Sequence[Problem], fronts: Sequence[Array]) -> Array:
    """Return one reference point (K,): the tasks', or the rule over all fronts."""
    given = {problem.reference for problem in problems}
    if len(given) == 1 and (reference := given.pop()) is not None:
        return np.array(reference)
    points = np.concatenate(fronts)
    return own_reference(points) if len(points) else np.zeros(points.shape[1])


def importance_data(intervals: Intervals) -> Mapping[str, Any]:
    """Return the importance of hyperparameters, or the package that is missing."""
    try:
        return {"objectives": [vars(found) for found in importance_of(intervals)], "missing": ""}
    except MissingExtra as error:
        return {"objectives": [], "missing": str(error)}


def finite_or_none(value: float) -> float | None:
    """Return a number with six digits, or None for what JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def sample(ids: NDArray[np.int64], most: int) -> NDArray[np.intp]:
    """Return the indices of at most `most` ids.

    A sample changes little as ids are added.
    """
    if len(ids) <= most:
        return np.arange(len(ids))
    # Multiplicative hashing spreads neighbors evenly, and always in the same way.
    hashes = (ids * 2654435761) % 2**32
    return np.sort(np.argpartition(hashes, most)[:most])


def thinned(pairs: Curve, most: int) -> Curve:
    """Return at most `most` of the pairs, with the first and the last."""
    if len(pairs) <= most:
        return pairs
    return [pairs[i] for i in np.linspace(0, len(pairs) - 1, most).round().astype(int).tolist()]


def view_of(objective: Objective, scores: Array, front: Array) -> tuple[float, float]:
    """Return the range of an axis.

    It covers the front and the scores (n,), without far-off bad ones.
    """
    if not len(scores):
        return 0.0, 1.0
    best_first = np.sort(objective.sign * scores)[::-1] * objective.sign
    most = np.concatenate([front, best_first[: max(1, round(len(scores) * SHOWN_SHARE))]])
    lo = float(most.min())
    hi = float(most.max())
    if float(np.ptp(scores)) <= LONGEST_STRETCH * (hi - lo):
        lo = min(lo, float(scores.min()))
        hi = max(hi, float(scores.max()))
    margin = 0.04 * (hi - lo) or 0.04 * abs(hi) or 1.0
    return lo - margin, hi + margin


def levels_of(domain: Domain) -> int:
    """Return how many levels a domain is divided into."""
    if isinstance(domain, Float):
        return MOST_LEVELS
    if isinstance(domain, Int):
        return min(domain.hi - domain.lo + 1, MOST_LEVELS)
    return min(len(domain.values), MOST_LEVELS)  # type: ignore[attr-defined]


def level_of(domain: Domain, position: float) -> int:
    """Return the level that a position of a domain falls into."""
    levels = levels_of(domain)
    exact = position if isinstance(domain, Float) else int(position)
    return min(int(domain.to_unit(exact) * levels), levels - 1)


def domain_data(name: str, domain: Domain) -> dict[str, Any]:
    """Return a hyperparameter with its values if they are listed, or its bounds."""
    levels = levels_of(domain)
    if isinstance(domain, Float | Int):
        return {
            "name": name,
            "lo": domain.lo,
            "hi": domain.hi,
            "log": domain.log,
            "levels": levels,
        }
    return {"name": name, "values": list(domain.values), "levels": levels}  # type: ignore[attr-defined]


def setting_rows(settings: RunConfig) -> list[tuple[str, str]]:
    """Return the settings of a run as names and texts."""
    problem = settings.problem
    rows = [("task", settings.task_reference or problem.name), ("seed", settings.seed)]
    rows += [
        ("algorithm" if key == "name" else key, value) for key, value in settings.algorithm.items()
    ]
    rows += [
        (f"engine {key}".removesuffix(" name"), value) for key, value in settings.engine.items()
    ]
    rows += [("steps", problem.steps), ("interval", problem.interval)]
    rows += [("constraint", constraint) for constraint in problem.constraints]
    rows += [(f"space: {name}", domain) for name, domain in problem.space.items()]
    return [(key, str(value)) for key, value in rows]


def loading(path: str, task_reference: str) -> Mapping[str, tuple[str, str]]:
    """Return how to load a model in Python and in the shell.

    These are the texts around its id.
    """
    lines = ["from mopbt import Results", ""]
    if task_reference:
        lines = ["from mopbt import Results", "from mopbt.registry import find_task", ""]
        lines += [f"task, _ = find_task({task_reference!r})"]
        lines += [f"results = Results.open({path!r}, task)"]
    else:
        lines += ["# add task=... if the task is an object with its own `load`"]
        lines += [f"results = Results.open({path!r})"]
    shell = (f"mopbt pick {shlex.quote(path)} --model ", " --export model.safetensors")
    return {"python": ("\n".join([*lines, "model = results.load("]), ")"), "shell": shell}
