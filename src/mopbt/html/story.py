"""The story of a run as plain JSON data, for a page that shows it: what it found, when, from where, and where it searched.

A story grows with the journal and stays small however long the run is: evaluations that are dominated, curves and exploits are
thinned, and the way to a model is told in stretches of unchanged values. The front is never thinned. Scores are in their own sense.
"""

import math
import shlex
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt import metrics
from mopbt.archive import Archive, Entry, entry_of, reference_of
from mopbt.objectives import Objective, unsigned
from mopbt.problem import Problem
from mopbt.results import Results, total_intervals
from mopbt.run_config import RunConfig
from mopbt.space import Domain, Float, Int
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange

DRAWN = 4000  # of the evaluations beside the front, and of the exploits
TIMES = 400  # of a hypervolume curve
ROWS = 240  # trials of the lineage, beside those that led to the front
BINS = 40  # of a histogram, along each axis
LEVELS = 20  # of a hyperparameter
KINDS = 20  # of failures
LETTERS = 4000  # of an error message
SHARE = 0.95  # of the evaluations are in view in any case ...
STRETCH = 1.25  # ... and the rest where the axis gets no longer than this: one that diverged would squeeze all into a corner

Array = NDArray[np.float64]
Curve = list[tuple[float, float]]  # seconds, hypervolume


class Stretch(NamedTuple):
    """A part of a model's way: intervals of one trial with the same hyperparameters, ending with `job`'s checkpoint."""

    job: int
    start: int | None  # the stretch that it went on from
    trial: int
    begin: int
    end: int
    config: tuple[float, ...]


class Failure:
    """A kind of failure: intervals whose errors end with the same line."""

    def __init__(self, error: str) -> None:
        self.text, self.count = error[-LETTERS:], 0
        self.jobs: list[int] = []

    def add(self, job: int) -> None:
        """Count one more."""
        self.count += 1
        self.jobs = [*self.jobs, job][:5]


class Story:
    """A run, as far as its journal has been folded."""

    def __init__(self, settings: RunConfig, *, name: str, path: str) -> None:
        self.settings, self.name, self.path = settings, name, path
        self.problem = settings.problem
        self.total = total_intervals(settings)
        self.seconds, self._ended = 0.0, False
        self.diverged = self.failed = 0
        self._jobs: dict[int, Job] = {}
        self._reports: dict[int, Report] = {}
        self._first: dict[int, int] = {}  # the first job of each trial that reported
        self._spans: dict[int, tuple[int, int]] = {}  # the steps of each trial
        self._exploits: list[int] = []  # jobs that duration another trial's checkpoint over
        self._failures: dict[str, Failure] = {}
        self._archive = Archive()
        self._accepted: list[
            tuple[float, tuple[float, ...]]
        ] = []  # feasible ones that nothing before them dominated
        self._sound, self._steps, self._violations, self._vectors = (
            array("q"),
            array("q"),
            array("d"),
            array("d"),
        )
        self._visits = [
            np.zeros((self._columns, levels_of(domain)), dtype=np.int64)
            for domain in self.problem.space.values()
        ]
        self._curves: dict[
            bytes, tuple[int, Curve]
        ] = {}  # by reference point, for so many accepted

    def fold(self, exchanges: Iterable[Exchange]) -> None:
        """Take in what has come since."""
        for exchange in exchanges:
            for job in exchange.jobs:
                self._order(job)
            for report in sorted(exchange.reports, key=lambda report: (report.seconds, report.job)):
                self._enter(report, self._jobs[report.job])
            self.seconds, self._ended = max(self.seconds, exchange.stopped), exchange.done

    @property
    def front(self) -> list[Entry]:
        """Return the front, best first in the first objective."""
        return sorted(self._archive.front, key=lambda e: (tuple(-x for x in e.objectives), e.job))

    def points(self) -> Array:
        """Return the feasible points of the front, larger is better, (n, K)."""
        rows = [entry.objectives for entry in self.front if not entry.violation]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.problem.objectives))

    def reference(self) -> Array:
        """Return the reference point (K,) of the hypervolume: the task's, or the paper's rule over the first intervals."""
        if self.problem.reference is None and not self._archive.front:
            return np.zeros(len(self.problem.objectives))
        firsts = [entry_of(self._reports[job]) for job in self._first.values()]
        return reference_of(
            self.problem.reference,
            [e.objectives for e in firsts if e is not None],
            self._archive.front,
        )

    def hypervolume(self, reference: Array | None = None) -> float:
        """Return the hypervolume of the front above a reference point (K,)."""
        return metrics.hypervolume(
            self.points(), self.reference() if reference is None else reference
        )

    def curve(self, reference: Array | None = None) -> Curve:
        """Return when the front's hypervolume above a reference point (K,) grew, and to what; it ends at the present."""
        corner = self.reference() if reference is None else reference
        count, curve = self._curves.get(corner.tobytes(), (-1, []))
        if count != len(self._accepted):  # it is asked for far more often than the front grows
            rows = np.array([objectives for _, objectives in self._accepted]).reshape(
                -1, len(corner)
            )
            volumes = metrics.hypervolume_curve(rows, corner).tolist()
            times = [seconds for seconds, _ in self._accepted]
            curve = thinned(list(zip(times, volumes, strict=True)), TIMES)
            self._curves = {
                corner.tobytes(): (len(times), curve),
                **dict(list(self._curves.items())[:1]),
            }
        return [
            *curve,
            *((self.seconds, volume) for seconds, volume in curve[-1:] if self.seconds > seconds),
        ]

    def stretches(self) -> list[Stretch]:
        """Return the ways of all models of the front from their first intervals on, as stretches that start from one another."""
        ends = {entry.job for entry in self._archive.front}
        seen, pending = set(ends), sorted(ends)
        while pending:
            job = self._jobs[pending.pop()]
            parent = None if job.start is None else self._jobs[job.start]
            if parent is not None and (parent.trial != job.trial or parent.config != job.config):
                ends.add(parent.id)
            if parent is not None and parent.id not in seen:
                seen.add(parent.id)
                pending.append(parent.id)
        return [self._stretch(job, ends) for job in sorted(ends)]

    def summary(self, *, driver: str = "", trouble: str = "") -> dict[str, Any]:
        """Return what there is to say of the run in a line."""
        done = self._ended or len(self._reports) == self.total
        return {
            "name": self.name,
            "path": self.path,
            "task": self.problem.name,
            "algorithm": str(self.settings.algorithm.get("name", "")),
            "seed": self.settings.seed,
            "state": "running" if driver else "done" if done else "at rest",
            "driver": driver,
            "trouble": trouble,
            "objectives": [
                {"name": o.name, "direction": o.direction} for o in self.problem.objectives
            ],
            "intervals": len(self._reports),
            "total": self.total,
            "failed": self.failed,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "models": len(self._archive.front),
            "hypervolume": self.hypervolume(),
        }

    def data(self, *, driver: str = "", trouble: str = "") -> dict[str, Any]:
        """Return all that a page needs of the run, as JSON has it, told who drives it now and what is wrong with it."""
        stretches, views = self.stretches(), self._views()
        trials = self._rows({stretch.trial for stretch in stretches})
        return self.summary(driver=driver, trouble=trouble) | {
            "constraints": [str(constraint) for constraint in self.problem.constraints],
            "reference": unsigned(self.problem.objectives, self.reference().tolist()),
            "steps": self.problem.steps,
            "space": [domain_data(name, domain) for name, domain in self.problem.space.items()],
            "front": [self._point(entry) for entry in self.front],
            "stretches": [list(stretch) for stretch in stretches],
            "others": self._others(views),
            "views": views,
            "curve": self.curve(),
            "trials": [[trial, *self._spans[trial]] for trial in trials],
            "exploits": self._edges(set(trials)),
            "exploited": len(self._exploits),
            "histograms": self._histograms(views),
            "visits": [visits.tolist() for visits in self._visits],
            "failures": self._failure_data(),
            "settings": setting_rows(self.settings),
            "loading": loading(self.path, self.settings.task_reference),
        }

    @property
    def _columns(self) -> int:
        """Return how many columns the picture of a hyperparameter has: one for each interval, if they are not too many."""
        return min(math.ceil(self.problem.steps / self.problem.interval), BINS)

    def _order(self, job: Job) -> None:
        if job.id in self._jobs or not (job.start is None or job.start in self._jobs):
            raise ValueError(
                f"job {job.id!r} must be new and start from one that is known, got the start {job.start!r}"
            )
        self._jobs[job.id] = job
        begin, end = self._spans.get(job.trial, (job.begin, job.end))
        self._spans[job.trial] = min(begin, job.begin), max(end, job.end)
        if job.start is not None and self._jobs[job.start].trial != job.trial:
            self._exploits.append(job.id)

    def _enter(self, report: Report, job: Job) -> None:
        self._reports[report.job] = report
        self.seconds = max(self.seconds, report.seconds)
        self._first[job.trial] = min(self._first.get(job.trial, job.id), job.id)
        column = min(max((job.end - 1) * self._columns // self.problem.steps, 0), self._columns - 1)
        for visits, domain, position in zip(
            self._visits, self.problem.space.values(), job.config, strict=True
        ):
            visits[column, level_of(domain, position)] += 1
        entry = entry_of(report)
        if entry is not None:
            self._record(entry, job)
        elif report.objectives is None:
            self._fail(report)
        else:
            self.diverged += 1

    def _record(self, entry: Entry, job: Job) -> None:
        if len(entry.objectives) != len(self.problem.objectives):
            raise ValueError(
                f"job {job.id} must have {len(self.problem.objectives)} objectives, got {len(entry.objectives)}"
            )
        self._sound.append(entry.job)
        self._steps.append(job.end)
        self._violations.append(entry.violation)
        self._vectors.extend(entry.objectives)
        self._archive.enter(entry)
        if self._archive.front[-1] is entry and not entry.violation:
            self._accepted.append((self.seconds, entry.objectives))

    def _fail(self, report: Report) -> None:
        self.failed += 1
        last = report.error.strip().rpartition("\n")[2][:LETTERS]
        if last in self._failures or len(self._failures) < KINDS:
            self._failures.setdefault(last, Failure(report.error.strip())).add(report.job)

    def _stretch(self, last: int, ends: set[int]) -> Stretch:
        job = self._jobs[last]
        while job.start is not None and job.start not in ends:
            job = self._jobs[job.start]
        tail = self._jobs[last]
        return Stretch(last, job.start, tail.trial, job.begin, tail.end, tail.config)

    def _scores(self) -> Array:
        """Return the objectives of all sound evaluations in their own sense, (n, K)."""
        signs = np.array([o.sign for o in self.problem.objectives], dtype=float)
        return np.asarray(np.array(self._vectors, dtype=float).reshape(-1, len(signs)) * signs)

    def _point(self, entry: Entry) -> dict[str, Any]:
        job, report = self._jobs[entry.job], self._reports[entry.job]
        scores = {
            name: score if math.isfinite(score) else repr(score)
            for name, score in report.scores.items()
        }
        own = list(unsigned(self.problem.objectives, entry.objectives).values())
        head = {
            "job": job.id,
            "trial": job.trial,
            "step": job.end,
            "seconds": report.seconds,
            "violation": entry.violation,
        }
        return head | {"objectives": own, "scores": scores}

    def _others(self, views: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """Return the evaluations beside the front, or as many as can be drawn, by columns."""
        jobs = np.array(self._sound, dtype=np.int64)
        beside = np.flatnonzero(~np.isin(jobs, [entry.job for entry in self._archive.front]))
        rows, scores = beside[sample(jobs[beside], DRAWN)], self._scores()
        lowest, highest = np.array(views).T
        in_view = ((scores >= lowest) & (scores <= highest)).all(axis=1)
        return {
            "of": len(beside),
            "outside": int((~in_view[beside]).sum()),
            "scores": [[float(f"{x:.6g}") for x in column] for column in scores[rows].T.tolist()],
            "steps": np.array(self._steps)[rows].tolist(),
            "infeasible": (np.array(self._violations)[rows] > 0).astype(int).tolist(),
        }

    def _views(self) -> list[tuple[float, float]]:
        scores = self._scores()
        front = [
            list(unsigned(self.problem.objectives, e.objectives).values())
            for e in self._archive.front
        ]
        best = np.array(front, dtype=float).reshape(-1, scores.shape[1])
        return [view_of(o, scores[:, k], best[:, k]) for k, o in enumerate(self.problem.objectives)]

    def _histograms(self, views: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
        """Return how many evaluations fell where, for each pair of up to three objectives."""
        scores, made = self._scores(), []
        for x, y in combinations(range(min(len(views), 3)), 2):
            counts = np.histogram2d(
                scores[:, x], scores[:, y], bins=BINS, range=[views[x], views[y]]
            )[0].astype(int)
            cells = [[int(i), int(j), int(counts[i, j])] for i, j in np.argwhere(counts)]
            made.append({"x": x, "y": y, "bins": BINS, "cells": cells})
        return made

    def _rows(self, needed: set[int]) -> list[int]:
        """Return the trials of the lineage: those that led to the front, and as many others as can be drawn."""
        trials = np.array(sorted(self._spans.keys() - needed), dtype=np.int64)
        return sorted(needed | set(trials[sample(trials, ROWS)].tolist()))

    def _edges(self, trials: set[int]) -> list[list[int]]:
        """Return exploits among these trials: (from trial, at its step, to trial, at its step)."""
        jobs = np.array(self._exploits, dtype=np.int64)
        pairs = [
            (self._jobs[self._start(job)], self._jobs[job])
            for job in jobs[sample(jobs, DRAWN)].tolist()
        ]
        shown = [
            (donor, taker)
            for donor, taker in pairs
            if donor.trial in trials and taker.trial in trials
        ]
        return [[donor.trial, donor.end, taker.trial, taker.begin] for donor, taker in shown]

    def _start(self, job: int) -> int:
        start = self._jobs[job].start
        assert start is not None, "an exploit starts from a checkpoint"
        return start

    def _failure_data(self) -> list[dict[str, Any]]:
        kinds = sorted(self._failures.items(), key=lambda item: -item[1].count)
        return [
            {"message": last, "count": f.count, "jobs": f.jobs, "text": f.text} for last, f in kinds
        ]


def compared(stories: Sequence[Story]) -> dict[str, Any]:
    """Return what several runs of one problem are worth beside each other, as JSON has it, under one common reference point."""
    check_comparable(stories)
    objectives, fronts = stories[0].problem.objectives, [story.points() for story in stories]
    reference = common_reference([story.problem for story in stories], fronts)
    joint = np.concatenate(fronts)
    best = joint[metrics.non_dominated(joint)]
    signs = np.array([o.sign for o in objectives], dtype=float)
    units = metrics.coverage_units(joint, reference) if len(objectives) == 2 else np.ones(2)
    return {
        "reference": unsigned(objectives, reference.tolist()),
        "views": [
            view_of(o, column, column)
            for o, column in zip(objectives, (joint * signs).T, strict=True)
        ],
        "curves": [story.curve(reference) for story in stories],
        "rows": [
            {
                "hypervolume": story.hypervolume(reference),
                "coverage": metrics.coverage(front, reference, units=units)
                if len(objectives) == 2
                else None,
                "kept": int((front[:, None, :] == best[None, :, :]).all(axis=2).any(axis=1).sum()),
                "of": len(front),
            }
            for story, front in zip(stories, fronts, strict=True)
        ],
    }


def check_comparable(runs: Sequence[Story | Results]) -> None:
    """Raise ValueError unless all runs have the same objectives."""
    wanted = runs[0].problem.objectives
    for run in runs:
        if run.problem.objectives != wanted:
            mine, theirs = (
                ", ".join(f"{o.name} {o.direction}" for o in each)
                for each in (wanted, run.problem.objectives)
            )
            raise ValueError(
                f"{run.path} has the objectives {theirs}, and {runs[0].path} has {mine}; runs that are shown beside each other "
                "need the same: look at each by itself"
            )


def common_reference(problems: Sequence[Problem], fronts: Sequence[Array]) -> Array:
    """Return one reference point (K,) for all runs: the task's where they share it, else the paper's rule over all their fronts."""
    given = {problem.reference for problem in problems}
    if len(given) == 1 and (reference := given.pop()) is not None:
        return np.array(reference)
    points = np.concatenate(fronts)
    return metrics.own_reference(points) if len(points) else np.zeros(points.shape[1])


def sample(ids: NDArray[np.int64], most: int) -> NDArray[np.intp]:
    """Return the indices of at most `most` of these ids, in their order; what more ids leave of a choice stays in it."""
    if len(ids) <= most:
        return np.arange(len(ids))
    scattered = (
        ids * 2654435761
    ) % 2**32  # spreads neighbors evenly over the range, and is always the same
    return np.sort(np.argpartition(scattered, most)[:most])


def thinned(pairs: Curve, most: int) -> Curve:
    """Return at most `most` of the pairs, the first and the last among them."""
    if len(pairs) <= most:
        return pairs
    return [pairs[i] for i in np.linspace(0, len(pairs) - 1, most).round().astype(int).tolist()]


def view_of(objective: Objective, scores: Array, front: Array) -> tuple[float, float]:
    """Return the range that an axis shows: the front and all scores (n,), but not the worst of these where they are far off."""
    if not len(scores):
        return 0.0, 1.0
    best_first = np.sort(objective.sign * scores)[::-1] * objective.sign
    most = np.concatenate([front, best_first[: max(1, round(len(scores) * SHARE))]])
    lo, hi = float(most.min()), float(most.max())
    if float(np.ptp(scores)) <= STRETCH * (hi - lo):
        lo, hi = float(scores.min()), float(scores.max())
    margin = 0.04 * (hi - lo) or 0.04 * abs(hi) or 1.0
    return lo - margin, hi + margin


def levels_of(domain: Domain) -> int:
    """Return into how many levels the values of a domain are counted."""
    if isinstance(domain, Float):
        return LEVELS
    values = domain.hi - domain.lo + 1 if isinstance(domain, Int) else len(domain.values)  # type: ignore[attr-defined]
    return min(values, LEVELS)


def level_of(domain: Domain, position: float) -> int:
    """Return the level that a position of a domain falls into."""
    levels = levels_of(domain)
    return min(int(domain.to_unit(position) * levels), levels - 1)


def domain_data(name: str, domain: Domain) -> dict[str, Any]:
    """Return a hyperparameter as JSON has it: with its values if they are listed, else with its ends."""
    if isinstance(domain, Float | Int):
        return {
            "name": name,
            "lo": domain.lo,
            "hi": domain.hi,
            "log": domain.log,
            "levels": levels_of(domain),
        }
    return {"name": name, "values": list(domain.values), "levels": levels_of(domain)}  # type: ignore[attr-defined]


def setting_rows(settings: RunConfig) -> list[tuple[str, str]]:
    """Return what a run was started with, as names and texts."""
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


def loading(path: str, origin: str) -> Mapping[str, tuple[str, str]]:
    """Return how a model is loaded in Python, and followed on the command line, as the texts before and after its job."""
    lines = ["from mopbt import Results", ""]
    if origin:
        lines = ["from mopbt import Results", "from mopbt.registry import find_task", ""]
        lines += [f"task, _ = find_task({origin!r})", f"results = Results.open({path!r}, task)"]
    else:  # the program that started it has the task
        lines += [
            "# add task=... where the task is an object with a `load` of its own",
            f"results = Results.open({path!r})",
        ]
    shell = (f"mopbt pick {shlex.quote(path)} --job ", " --export model.safetensors")
    return {"python": ("\n".join([*lines, "model = results.load("]), ")"), "shell": shell}
