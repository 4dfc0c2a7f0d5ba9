"""Objectives and constraints by name. The only sign flip of the library is here: below this file, larger is better."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mopbt.errors import MissingScore
from mopbt.messages import did_you_mean

Direction = Literal["max", "min"]
_NAME = r"[^<>=\s]|[^<>\s][^<>]*[^<>=\s]"  # in a constraint; "a => 1" and "0 < a < 1" are mistakes, not names


@dataclass(frozen=True, slots=True)
class Objective:
    """A score that is to be maximized or minimized."""

    name: str
    direction: Direction

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                f"an objective's name must be a string that is not empty, got {self.name!r}"
            )
        if self.direction not in get_args(Direction):
            near = did_you_mean(str(self.direction)[:3], get_args(Direction))
            raise ValueError(
                f"objective {self.name!r} must have the direction 'max' or 'min', got {self.direction!r}{near}"
            )

    @property
    def sign(self) -> int:
        """Return 1 where larger scores are better and -1 where smaller ones are."""
        return 1 if self.direction == "max" else -1


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit on a score, such as ``accuracy >= 0.7``; the score need not be an objective."""

    name: str
    relation: Literal[">=", ">", "<=", "<"]
    bound: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(_NAME, self.name):
            raise ValueError(
                f"a constraint's name must be a score's name, without < and > and not ending in =, got {self.name!r}"
            )
        if self.relation not in (">=", ">", "<=", "<"):
            raise ValueError(
                f"the constraint on {self.name!r} must have a relation of >=, >, <=, <, got {self.relation!r}"
            )
        if (
            isinstance(self.bound, bool)
            or not isinstance(self.bound, int | float)
            or not abs(self.bound) <= sys.float_info.max
        ):
            raise ValueError(
                f"the constraint on {self.name!r} must have a finite number as its bound, got {self.bound!r}"
            )

    @staticmethod
    def parse(text: str) -> "Constraint":
        """Read a constraint from text such as ``"accuracy >= 0.7"``."""
        match = (
            re.fullmatch(rf"\s*({_NAME})\s*(>=|<=|>|<)\s*(\S+)\s*", text)
            if isinstance(text, str)
            else None
        )
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if not match or not math.isfinite(bound):
            raise ValueError(
                f"a constraint must read like 'accuracy >= 0.7' (relations >=, >, <=, <), got {text!r}{_instead(text)}"
            )
        return Constraint(match[1], match[2], bound)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {str(float(self.bound)).removesuffix('.0')}"  # all digits: it is read back

    def violation(self, score: float) -> float:
        """Return by how much a score misses the bound, relative to the bound; 0 where it is kept, infinity for NaN."""
        if math.isnan(score):
            return math.inf
        shortfall = self.bound - score if self.relation.startswith(">") else score - self.bound
        if shortfall < 0 or (shortfall == 0 and "=" in self.relation):
            return 0.0
        return max(shortfall / (abs(self.bound) or 1.0), sys.float_info.min)


def parse_objectives(
    objectives: Mapping[str, Direction] | Sequence[Objective],
) -> tuple[Objective, ...]:
    """Return the objectives of a mapping such as ``{"accuracy": "max", "dsp": "min"}``."""
    if isinstance(objectives, Mapping):
        parsed = tuple(Objective(name, direction) for name, direction in objectives.items())
    elif isinstance(objectives, Sequence) and all(isinstance(o, Objective) for o in objectives):
        parsed = tuple(objectives)
    else:
        raise ValueError(
            f"`objectives` must be a mapping like {{'accuracy': 'max', 'dsp': 'min'}}, got {objectives!r}"
        )
    if not parsed:
        raise ValueError(
            "`objectives` must name at least one objective, as in {'accuracy': 'max'}, got none"
        )
    if len({o.name for o in parsed}) < len(parsed):
        raise ValueError(
            f"`objectives` must have names that differ, got {[o.name for o in parsed]}"
        )
    return parsed


def parse_constraints(constraints: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints of a list such as ``["accuracy >= 0.7"]``."""
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise ValueError(
            f"`constraints` must be a list like ['accuracy >= 0.7'], got {constraints!r}"
        )
    return tuple(c if isinstance(c, Constraint) else Constraint.parse(c) for c in constraints)


def signed(objectives: Sequence[Objective], scores: Mapping[str, float]) -> tuple[float, ...]:
    """Return the larger-is-better vector of named scores."""
    return tuple(o.sign * float(_score(scores, o.name, "objective")) for o in objectives)


def unsigned(objectives: Sequence[Objective], vector: Sequence[float]) -> dict[str, float]:
    """Return the named scores of a larger-is-better vector, in their own sense."""
    return {o.name: o.sign * value for o, value in zip(objectives, vector, strict=True)}


def signed_reference(
    objectives: Sequence[Objective], reference: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the larger-is-better vector of a reference point that names every objective, in the scores' own sense."""
    names = [o.name for o in objectives]
    if not isinstance(reference, Mapping) or set(reference) != set(names):
        raise ValueError(
            f"`reference` must give a number for each of {', '.join(map(repr, names))}, got {reference!r}"
        )
    for name, value in reference.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ValueError(f"`reference[{name!r}]` must be a finite number, got {value!r}")
    return tuple(o.sign * float(reference[o.name]) for o in objectives)


def total_violation(constraints: Sequence[Constraint], scores: Mapping[str, float]) -> float:
    """Return the sum of all relative violations; 0 means feasible."""
    violations = [c.violation(float(_score(scores, c.name, "constraint"))) for c in constraints]
    try:
        return math.fsum(violations)
    except OverflowError:  # of finite violations, with an infinite sum
        return math.inf


def _instead(text: object) -> str:
    """Return what somebody may have meant who wrote something else than a constraint."""
    if callable(text):
        return (
            "; a constraint is a text: report what the function computes as a score, and limit that"
        )
    if isinstance(text, str) and "=" in text and not re.search("<=|>=", text):
        return "; write >= or <=, as a score hardly ever hits a number exactly"
    return ""


def _score(scores: Mapping[str, float], name: str, role: str) -> float:
    if name not in scores:
        raise MissingScore(
            f"the task did not measure the {role} {name!r}; it measured {', '.join(map(repr, scores)) or 'nothing'}; "
            f"return it from `evaluate` (or pass it to `report`), or correct the {role}'s name{did_you_mean(name, scores)}"
        )
    return scores[name]
