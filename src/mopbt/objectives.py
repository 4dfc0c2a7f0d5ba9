"""Objectives and constraints by name.

The only sign flip of the library is in this module: everything below it sees larger-is-better.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mopbt.errors import MissingScore
from mopbt.messages import did_you_mean
from mopbt.state import ErrorBar

Direction = Literal["max", "min", "maximize", "minimize"]

# The prefix of metrics on rows that were drawn for one interval.
FRESH = "fresh/"
# The prefix of metrics on one of several disjoint parts of the rows, as in "fold/0/accuracy".
FOLD = "fold/"

# Only the short form is stored.
_SHORT: dict[str, Direction] = {"max": "max", "maximize": "max", "min": "min", "minimize": "min"}

# The pattern of a name in a constraint. It rejects mistakes such as "a => 1" and "0 < a < 1".
_NAME = r"[^<>=\s]|[^<>\s][^<>]*[^<>=\s]"


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric to maximize or minimize.

    `direction` is "max" or "min"; "maximize" and "minimize" are accepted for them.
    """

    name: str
    direction: Direction

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"an objective's name must be a nonempty string, got {self.name!r}")
        if not isinstance(self.direction, str) or self.direction not in _SHORT:
            suggestion = did_you_mean(str(self.direction)[:3], ("max", "min"))
            raise ValueError(
                f"the direction of objective {self.name!r} must be 'max' or 'min' (or 'maximize' "
                f"or 'minimize'), got {self.direction!r}{suggestion}"
            )
        object.__setattr__(self, "direction", _SHORT[self.direction])

    @property
    def sign(self) -> int:
        """The factor that makes larger better: 1 for "max", -1 for "min"."""
        return 1 if self.direction == "max" else -1


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit on a metric, such as ``accuracy >= 0.7``.

    The metric need not be an objective.
    """

    name: str
    relation: Literal[">=", ">", "<=", "<"]
    bound: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(_NAME, self.name):
            raise ValueError(
                f"the name in a constraint must be that of a metric, without < and > and not "
                f"ending in =, got {self.name!r}"
            )
        if self.relation not in (">=", ">", "<=", "<"):
            raise ValueError(
                f"the relation of the constraint on {self.name!r} must be one of >=, >, <=, <, got "
                f"{self.relation!r}"
            )
        is_number = isinstance(self.bound, int | float) and not isinstance(self.bound, bool)
        if not is_number or not abs(self.bound) <= sys.float_info.max:
            raise ValueError(
                f"the bound of the constraint on {self.name!r} must be a finite number, got "
                f"{self.bound!r}"
            )

    @staticmethod
    def parse(text: str) -> "Constraint":
        """Parse a string such as ``"accuracy >= 0.7"``."""
        match = None
        if isinstance(text, str):
            match = re.fullmatch(rf"\s*({_NAME})\s*(>=|<=|>|<)\s*(\S+)\s*", text)
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if not match or not math.isfinite(bound):
            raise ValueError(
                f"a constraint must read like 'accuracy >= 0.7' (relations >=, >, <=, <), got "
                f"{text!r}{_suggest_constraint(text)}"
            )
        return Constraint(match[1], match[2], bound)  # type: ignore[arg-type]

    def __str__(self) -> str:
        # run.toml stores this text, so the bound keeps all its digits.
        return f"{self.name} {self.relation} {str(float(self.bound)).removesuffix('.0')}"

    def violation(self, score: float) -> float:
        """Compute by how much a metric misses the bound, relative to the bound.

        It is 0 if the constraint is satisfied, and infinity for NaN.
        """
        if math.isnan(score):
            return math.inf
        shortfall = self.bound - score if self.relation.startswith(">") else score - self.bound
        if shortfall < 0 or (shortfall == 0 and "=" in self.relation):
            return 0.0
        return max(shortfall / (abs(self.bound) or 1.0), sys.float_info.min)


def parse_objectives(
    objectives: Mapping[str, Direction] | Sequence[Objective],
) -> tuple[Objective, ...]:
    """Parse a mapping such as ``{"accuracy": "max", "dsp": "min"}``."""
    if isinstance(objectives, Mapping):
        parsed = tuple(Objective(name, direction) for name, direction in objectives.items())
    elif isinstance(objectives, Sequence) and all(isinstance(o, Objective) for o in objectives):
        parsed = tuple(objectives)
    else:
        raise ValueError(
            f"`objectives` must be a mapping like {{'accuracy': 'max', 'dsp': 'min'}}, got "
            f"{objectives!r}"
        )
    if not parsed:
        raise ValueError(
            "`objectives` must name at least one objective, as in {'accuracy': 'max'}, got none"
        )
    if len({o.name for o in parsed}) < len(parsed):
        raise ValueError(f"`objectives` must have distinct names, got {[o.name for o in parsed]}")
    return parsed


def parse_constraints(constraints: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """Parse a list such as ``["accuracy >= 0.7"]``."""
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise ValueError(
            f"`constraints` must be a list like ['accuracy >= 0.7'], got {constraints!r}"
        )
    return tuple(c if isinstance(c, Constraint) else Constraint.parse(c) for c in constraints)


def signed(objectives: Sequence[Objective], scores: Mapping[str, float]) -> tuple[float, ...]:
    """Return named metrics as a larger-is-better vector."""
    return tuple(o.sign * float(_get_score(scores, o.name, "objective")) for o in objectives)


def signed_bounds(
    objectives: Sequence[Objective],
    scores: Mapping[str, float],
    errors: Mapping[str, ErrorBar],
) -> tuple[float, ...]:
    """Return the bounds of metrics as a larger-is-better vector.

    That is the lower bound of a metric to maximize, the upper bound of one to minimize, and the
    metric itself if its error is unknown.
    """
    bounds = []
    for objective in objectives:
        bar = errors.get(objective.name)
        if bar is None:
            bounds.append(objective.sign * float(scores[objective.name]))
        else:
            bounds.append(bar.lower if objective.sign > 0 else -bar.upper)
    return tuple(bounds)


def fresh_metrics(
    scores: Mapping[str, float], errors: Mapping[str, ErrorBar]
) -> tuple[Mapping[str, float], Mapping[str, ErrorBar]]:
    """Return metrics and errors with those on fresh rows in place of all rows.

    A task reports the metric `accuracy` on the rows that it drew for an interval as
    `fresh/accuracy`. Without any, metrics and errors stay as they are.
    """
    size = len(FRESH)
    fresh = {name[size:]: score for name, score in scores.items() if name.startswith(FRESH)}
    if not fresh:
        return scores, errors
    bars = {name[size:]: bar for name, bar in errors.items() if name.startswith(FRESH)}
    kept = {n: bar for n, bar in errors.items() if n not in fresh and not n.startswith(FRESH)}
    return {**scores, **fresh}, {**kept, **bars}


def signed_folds(
    objectives: Sequence[Objective], scores: Mapping[str, float]
) -> tuple[tuple[float, ...], ...]:
    """Return the objectives on each fold, larger is better.

    They are empty without folds.

    A task reports the metric `accuracy` on the first fold as `fold/0/accuracy`.
    """
    folds: list[tuple[float, ...]] = []
    while all(f"{FOLD}{len(folds)}/{o.name}" in scores for o in objectives):
        prefix = f"{FOLD}{len(folds)}/"
        folds.append(tuple(o.sign * float(scores[prefix + o.name]) for o in objectives))
    return tuple(folds)


def unsigned(objectives: Sequence[Objective], vector: Sequence[float]) -> dict[str, float]:
    """Return a larger-is-better vector as named metrics in their original direction."""
    return {o.name: o.sign * value for o, value in zip(objectives, vector, strict=True)}


def signed_reference(
    objectives: Sequence[Objective], reference: Mapping[str, float]
) -> tuple[float, ...]:
    """Return a reference point as a larger-is-better vector.

    The reference point must name every objective, with values in their original direction.
    """
    names = [o.name for o in objectives]
    if not isinstance(reference, Mapping) or set(reference) != set(names):
        raise ValueError(
            f"`reference` must give a number for each of {', '.join(map(repr, names))}, got "
            f"{reference!r}"
        )
    for name, value in reference.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ValueError(f"`reference[{name!r}]` must be a finite number, got {value!r}")
    return tuple(o.sign * float(reference[o.name]) for o in objectives)


def total_violation(constraints: Sequence[Constraint], scores: Mapping[str, float]) -> float:
    """Sum the relative violations of all constraints; 0 means feasible."""
    violations = [c.violation(float(_get_score(scores, c.name, "constraint"))) for c in constraints]
    try:
        return math.fsum(violations)
    except OverflowError:
        # All violations are finite, but their sum is not.
        return math.inf


def _suggest_constraint(received: object) -> str:
    """Suggest how to write the constraint that was probably intended."""
    if callable(received):
        return "; a constraint is a string: report what the function computes, and limit that"
    if isinstance(received, str) and "=" in received and not re.search("<=|>=", received):
        return "; write >= or <=, because a metric rarely equals a number exactly"
    return ""


def _get_score(scores: Mapping[str, float], name: str, role: str) -> float:
    if name not in scores:
        raise MissingScore(
            f"the task did not measure the {role} {name!r}; it measured "
            f"{', '.join(map(repr, scores)) or 'nothing'}; return it from `evaluate` (or pass it "
            f"to `report`), or correct the {role}'s name{did_you_mean(name, scores)}"
        )
    return scores[name]
