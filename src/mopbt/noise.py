"""What noise means for a front: a warning, and claims that account for luck."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mopbt.estimate import Estimate
from mopbt.history import History
from mopbt.messages import counted
from mopbt.objectives import Objective
from mopbt.rng import stream
from mopbt.uncertainty import (
    InheritanceTest,
    SpanTest,
    corrected_claims,
    inheritance_test,
    span_test,
)

# How many of the newest evaluations are tested for inheritance.
MOST_TESTED = 50_000
# Sets of true values that estimate the probability of being on the front.
DRAWS = 200

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Claim:
    """What can be claimed about a model of the front, corrected for selection.

    Attributes:
        model: The model id.
        scores: The objectives that have an error, with their corrected values and errors.
        probability: How likely no other evaluated model is truly better in all objectives.
    """

    model: int
    scores: Mapping[str, Estimate]
    probability: float


def noise_warning(history: History) -> str:
    """Return a sentence if noise alone could explain the front, else ``""``."""
    rows = _feasible_rows(history)
    objectives = history.problem.objectives
    if history.has_errors:
        values = history.reports.objectives()[rows]
        stderrs = history.reports.stderrs()[rows]
        spans = span_test(values, stderrs, stream(0, "spans", len(rows)))
        if spans is not None and spans.is_noise:
            return _describe_spans(objectives, spans)
    inheritance = _test_inheritance(history)
    if inheritance is not None and inheritance.is_noise:
        return _describe_inheritance(objectives, inheritance)
    return ""


def claims_of(history: History, models: Sequence[int]) -> list[Claim]:
    """Return what can be claimed about models that were selected from a run."""
    rows = _feasible_rows(history)
    place = {model: i for i, model in enumerate(history.reports.jobs()[rows].tolist())}
    known = [model for model in models if model in place]
    if not known:
        return []
    found = corrected_claims(
        history.reports.objectives()[rows],
        history.reports.stderrs()[rows],
        [place[model] for model in known],
        stream(0, "claims", len(rows)),
        draws=DRAWS,
    )
    claims = []
    for i, model in enumerate(known):
        scores = {}
        for k, objective in enumerate(history.problem.objectives):
            if found.stderr[i, k] > 0:
                mean = objective.sign * float(found.mean[i, k])
                scores[objective.name] = Estimate(mean, float(found.stderr[i, k]))
        claims.append(Claim(model, scores, float(found.probability[i])))
    return claims


def _feasible_rows(history: History) -> Ints:
    finite = np.isfinite(history.reports.objectives()).all(axis=1)
    return np.flatnonzero(finite & (history.reports.violations() == 0))


def _test_inheritance(history: History) -> InheritanceTest | None:
    """Test whether the models of a run resemble those that they continue from."""
    objectives = history.reports.objectives()
    rows = np.flatnonzero(np.isfinite(objectives).all(axis=1))[-MOST_TESTED:]
    if not len(rows):
        return None
    jobs = history.reports.jobs()[rows]
    starts = history.jobs.start_ids()[jobs]
    place = {job: i for i, job in enumerate(jobs.tolist())}
    parents = [place.get(start, -1) for start in starts.tolist()]
    return inheritance_test(objectives[rows], parents, history.jobs.ends()[jobs])


def _describe_spans(objectives: Sequence[Objective], found: SpanTest) -> str:
    noisy = [k for k in range(len(objectives)) if math.isfinite(found.by_luck[k])]
    spans = " and ".join(f"{found.spans[k]:.2g} in {objectives[k].name}" for k in noisy)
    luck = " and ".join(f"{found.by_luck[k]:.2g}" for k in noisy)
    return (
        f"Noise alone could have produced this front: its models differ by {spans}, and "
        f"{counted(found.evaluations, 'evaluation')} of equally good models would differ by up to "
        f"{luck}."
    )


def _describe_inheritance(objectives: Sequence[Objective], found: InheritanceTest) -> str:
    known = [k for k in range(len(objectives)) if math.isfinite(found.correlation[k])]
    numbers = " and ".join(f"{found.correlation[k]:.2f} in {objectives[k].name}" for k in known)
    luck = max(found.by_luck[k] for k in known)
    return (
        f"Noise alone could have produced this front: models do not resemble the models that they "
        f"continue from (rank correlation {numbers}; chance gives up to {luck:.2f})."
    )
