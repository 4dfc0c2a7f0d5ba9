"""Search spaces: domains that sample, decode and move a position, and never let it leave.

A *configuration* is a tuple of positions, one for each hyperparameter; *values* are what the positions stand for. A position
is an index for the ordered lists and categories, and the value itself for `Float` and `Int`.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.random import Generator

from mopbt.messages import did_you_mean

Position = int | float
Config = tuple[Position, ...]
Value = float | int | str | bool

REACH = 3  # Alg. 3: a local move shifts by at most three values ...
STEPS = 9  # ... of a list that has ten of them, as in the paper; continuous domains move by the same share of their range


@runtime_checkable
class Domain(Protocol):
    """The values that one hyperparameter may take."""

    def sample(self, rng: Generator) -> Position:
        """Draw a position uniformly."""

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions that are spread evenly over the domain, in random order."""

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Move a position locally, clipped to the domain (Alg. 3, the local perturbation)."""

    def decode(self, position: Position) -> Any:
        """Return the value at a position."""

    def encode(self, value: Any) -> Position:
        """Return the position of a value, or raise ValueError saying what is allowed."""

    def contains(self, position: Any) -> bool:
        """Tell whether this is a position of the domain."""

    def to_unit(self, position: Position) -> float:
        """Return where in [0, 1] a position lies on the domain's scale."""

    def from_unit(self, share: float) -> Position:
        """Return the position at a share of the scale, which is clipped to [0, 1]; uniform shares give uniform positions."""


class _Listed:
    """What the domains with a finite list of values share: a position is an index."""

    values: tuple[Any, ...]

    def sample(self, rng: Generator) -> Position:
        return int(rng.integers(len(self.values)))

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        # The authors' way: concatenated random permutations of all values.
        rounds = math.ceil(n / len(self.values))
        drawn = [int(i) for _ in range(rounds) for i in rng.permutation(len(self.values))]
        return list(drawn[:n])

    def nearby(self, position: Position, rng: Generator) -> Position:
        shift = int(rng.integers(REACH + 1))  # Alg. 3, line 6
        if rng.random() < 0.5:  # Alg. 3, line 7
            shift = -shift
        return min(
            max(int(position) + shift, 0), len(self.values) - 1
        )  # the paper is silent on the ends; clipped

    def decode(self, position: Position) -> Any:
        return self.values[int(position)]

    def encode(self, value: Any) -> Position:
        for same in (_equal, _close):  # the value itself first: others may be close to it
            for index, allowed in enumerate(self.values):
                if same(allowed, value):
                    return index
        raise ValueError(f"must be one of {_listing(self.values)}, got {value!r}")

    def contains(self, position: Any) -> bool:
        return (
            isinstance(position, int)
            and not isinstance(position, bool)
            and 0 <= position < len(self.values)
        )

    def to_unit(self, position: Position) -> float:
        return (int(position) + 0.5) / len(
            self.values
        )  # the center of the cell that the position owns

    def from_unit(self, share: float) -> Position:
        return min(max(math.floor(share * len(self.values)), 0), len(self.values) - 1)


class _Ranged:
    """What the domains with two ends share: a position is a value, and moves happen on the scale of the range."""

    lo: Any
    hi: Any
    log: bool

    def sample(self, rng: Generator) -> Position:
        return self._at(float(rng.random()))

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        # A Latin hypercube: one draw in each of n equal cells.
        return [self._at((int(cell) + float(rng.random())) / n) for cell in rng.permutation(n)]

    def nearby(self, position: Position, rng: Generator) -> Position:
        return self._at(self._share(position) + float(rng.uniform(-REACH, REACH)) / STEPS)

    def decode(self, position: Position) -> Any:
        return position

    def to_unit(self, position: Position) -> float:
        return min(
            max(self._share(position), 0.0), 1.0
        )  # by rounding a logarithm may fall beside the ends

    def from_unit(self, share: float) -> Position:
        return self._at(share)

    def _at(self, share: float) -> Position:
        return self._scaled(share, float(self.lo), float(self.hi))

    def _share(self, position: Position) -> float:
        if self.log:
            return math.log(position / self.lo) / math.log(self.hi / self.lo)
        return float((position - self.lo) / (self.hi - self.lo))

    def _scaled(self, share: float, lo: float, hi: float) -> float:
        share = min(max(share, 0.0), 1.0)
        value = lo * (hi / lo) ** share if self.log else lo + (hi - lo) * share
        return min(max(value, lo), hi)


@dataclass(frozen=True)
class Grid(_Listed):
    """`n` values spaced evenly from `lo` to `hi`, both included.

    >>> Grid(0.1, 0.9, 5).values
    (0.1, 0.3, 0.5, 0.7, 0.9)
    """

    lo: float
    hi: float
    n: int

    def __post_init__(self) -> None:
        _check_range("Grid", self.lo, self.hi)
        _check_count("Grid", self.n, 2)
        _check_distinct("Grid", self.values)

    @cached_property
    def values(self) -> tuple[float, ...]:  # type: ignore[override]
        """All values, in order."""
        return _spaced(np.linspace(self.lo, self.hi, self.n), self.lo, self.hi)


@dataclass(frozen=True)
class LogGrid(_Listed):
    """`n` values spaced evenly in the logarithm from `lo` to `hi`; with `zero` the first of the `n` is an exact 0.

    >>> LogGrid(0.01, 10, 5, zero=True).values
    (0.0, 0.01, 0.1, 1.0, 10.0)
    """

    lo: float
    hi: float
    n: int
    zero: bool = False

    def __post_init__(self) -> None:
        _check_flag("LogGrid", "zero", self.zero)
        _check_range("LogGrid", self.lo, self.hi, log=True)
        _check_count("LogGrid", self.n, 3 if self.zero else 2)
        _check_distinct("LogGrid", self.values)

    @cached_property
    def values(self) -> tuple[float, ...]:  # type: ignore[override]
        """All values, in order."""
        return (0.0,) * self.zero + _spaced(
            np.geomspace(self.lo, self.hi, self.n - self.zero), self.lo, self.hi
        )


@dataclass(frozen=True)
class Ordinal(_Listed):
    """A list of values in a meaningful order, for example ``Ordinal([16, 32, 64])``."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        object.__setattr__(self, "values", _check_values("Ordinal", values))


@dataclass(frozen=True)
class Categorical(_Listed):
    """Values without an order: a local move keeps them, a resample changes them."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        object.__setattr__(self, "values", _check_values("Categorical", values))

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Stay: a category has no vicinity."""
        return position


@dataclass(frozen=True)
class Float(_Ranged):
    """A real number from `lo` to `hi`, uniform, or uniform in the logarithm."""

    lo: float
    hi: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_flag("Float", "log", self.log)
        _check_range("Float", self.lo, self.hi, log=self.log)

    def encode(self, value: Any) -> Position:
        """Return the value itself, if it lies in the range."""
        if not self.contains(value):
            raise ValueError(f"must be a number in [{self.lo!r}, {self.hi!r}], got {value!r}")
        return float(value)

    def contains(self, position: Any) -> bool:
        """Tell whether this is a number of the range."""
        return (
            isinstance(position, Real)
            and not isinstance(position, bool)
            and self.lo <= float(position) <= self.hi
        )


@dataclass(frozen=True)
class Int(_Ranged):
    """A whole number from `lo` to `hi`, both included, uniform, or uniform in the logarithm."""

    lo: int
    hi: int
    log: bool = False

    def __post_init__(self) -> None:
        for end in (self.lo, self.hi):
            if not isinstance(end, int) or isinstance(end, bool):
                raise ValueError(
                    f"Int: `lo` and `hi` must be whole numbers, got {end!r}; use Float for real numbers"
                )
            if abs(end) > 2**53:
                raise ValueError(
                    f"Int: `lo` and `hi` must be within ±2**53, where every whole number can be drawn, got {end!r}"
                )
        _check_flag("Int", "log", self.log)
        _check_range("Int", self.lo, self.hi, log=self.log)

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        """Draw evenly: every value equally often where there are fewer values than draws, else one draw a cell."""
        if self.log or self.hi - self.lo + 1 > n:
            return super().stratified(n, rng)
        return [self.lo + i for i in Ordinal(range(self.hi - self.lo + 1)).stratified(n, rng)]

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Move as on an ordered list where the range is short, else by a share of the range."""
        if self.log or self.hi - self.lo > STEPS:
            return super().nearby(position, rng)
        return self.lo + Ordinal(range(self.hi - self.lo + 1)).nearby(position - self.lo, rng)

    def encode(self, value: Any) -> Position:
        """Return the value itself, if it is a whole number of the range."""
        if not self.contains(value):
            raise ValueError(f"must be a whole number in [{self.lo}, {self.hi}], got {value!r}")
        return int(value)

    def contains(self, position: Any) -> bool:
        """Tell whether this is a whole number of the range."""
        return (
            isinstance(position, Integral)
            and not isinstance(position, bool)
            and self.lo <= int(position) <= self.hi
        )

    def _at(self, share: float) -> Position:
        # Each value owns a cell of equal width (in the logarithm: from half a unit below to half a unit above it).
        return min(
            max(math.floor(self._scaled(share, self.lo - 0.5, self.hi + 0.5) + 0.5), self.lo),
            self.hi,
        )

    def _share(self, position: Position) -> float:
        lo, hi = self.lo - 0.5, self.hi + 0.5
        if self.log:
            return math.log(position / lo) / math.log(hi / lo)
        return (position - lo) / (hi - lo)


class Space(Mapping[str, Domain]):
    """A named, ordered set of domains: ``Space({"lr": Float(1e-5, 0.1, log=True), "n": Ordinal([1, 2, 4])})``."""

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        if not isinstance(domains, Mapping):
            raise TypeError(
                f"`space` must be a mapping of names to domains, such as {{'lr': Float(1e-5, 0.1, log=True)}}, got {domains!r}"
            )
        if not domains:
            raise ValueError(
                "`space` must have at least one hyperparameter, such as {'lr': Float(1e-5, 0.1, log=True)}, got none"
            )
        for name, domain in domains.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"`space` must be keyed by names, got {name!r}")
            if not isinstance(domain, Grid | LogGrid | Ordinal | Categorical | Float | Int):
                raise ValueError(
                    f"`space[{name!r}]` must be a domain such as Float(1e-5, 0.1, log=True), Grid(0, 0.8, 10) or "
                    f"Categorical(['a', 'b']), got {domain!r}{_instead(domain)}"
                )
        self._domains = dict(domains)

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and list(self._domains.items()) == list(
            other._domains.items()
        )

    def __hash__(self) -> int:
        return hash(tuple(self._domains.items()))

    def __repr__(self) -> str:
        return f"Space({self._domains!r})"

    def sample(self, rng: Generator) -> Config:
        """Draw one configuration uniformly."""
        return tuple(domain.sample(rng) for domain in self.values())

    def stratified(self, n: int, rng: Generator) -> list[Config]:
        """Draw `n` configurations of which each hyperparameter is spread evenly over its domain."""
        columns = [domain.stratified(n, rng) for domain in self.values()]
        return list(zip(*columns, strict=True))

    def decode(self, config: Config) -> dict[str, Any]:
        """Return the values of a configuration by name."""
        return {
            name: domain.decode(p) for (name, domain), p in zip(self.items(), config, strict=True)
        }

    def encode(self, values: Mapping[str, Any]) -> Config:
        """Return the configuration of named values; unknown, missing and out-of-range ones are errors."""
        unknown, missing = (
            sorted(set(values) - set(self), key=repr),
            sorted(set(self) - set(values)),
        )
        if unknown or missing:
            wrong = " and ".join(
                f"{what} {', '.join(map(repr, names))}"
                for what, names in (("unknown", unknown), ("missing", missing))
                if names
            )
            near = did_you_mean(unknown[0], missing) if unknown else ""
            raise ValueError(
                f"a configuration must name exactly {', '.join(map(repr, self))}; {wrong}{near}"
            )
        return tuple(self._encode_one(name, values[name]) for name in self)

    def _encode_one(self, name: str, value: Any) -> Position:
        try:
            return self[name].encode(value)
        except ValueError as error:
            raise ValueError(f"{name!r} {error}") from None

    def contains(self, config: Sequence[Any]) -> bool:
        """Tell whether this is a configuration of the space."""
        return len(config) == len(self) and all(
            d.contains(p) for d, p in zip(self.values(), config, strict=True)
        )


def _instead(given: Any) -> str:
    """Return what somebody may have meant who wrote something else than a domain."""
    if isinstance(given, type):
        return (
            f"; a domain needs its values, as in {given.__name__}(...)"
            if given.__module__ == __name__
            else ""
        )
    if (
        isinstance(given, tuple | list)
        and len(given) == 2
        and all(isinstance(end, int | float) for end in given)
    ):
        return f"; write Float({given[0]!r}, {given[1]!r}) for the range, or Ordinal([{given[0]!r}, {given[1]!r}]) for the two values"
    if isinstance(given, tuple | list):
        return "; write Ordinal([...]) for values in an order, Categorical([...]) for others"
    if isinstance(given, int | float | str):
        return "; a constant is not tuned: use it in training, and leave it out here"
    return ""


def _spaced(values: np.ndarray, lo: float, hi: float) -> tuple[float, ...]:
    """Drop the last digits of rounding, so that 0.30000000000000004 reads 0.3; the ends stay what the user wrote."""
    return (float(lo), *(float(f"{v:.15g}") for v in values[1:-1]), float(hi))


def _check_distinct(kind: str, values: Sequence[float]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError(
            f"{kind}: `lo` and `hi` must be far enough apart for {len(values)} different values, got {values[0]} and {values[-1]}"
        )


def _equal(allowed: Any, value: Any) -> bool:
    kinds = (bool, np.bool_)
    return (
        isinstance(allowed, kinds) == isinstance(value, kinds)
        and np.ndim(value) == 0
        and bool(allowed == value)
    )


def _close(allowed: Any, value: Any) -> bool:
    """Tell whether two numbers differ by rounding only; whole numbers do not."""
    return (
        isinstance(allowed, float)
        and isinstance(value, float)
        and math.isclose(allowed, value, rel_tol=1e-9)
    )


def _listing(values: Sequence[Any]) -> str:
    shown = [repr(v) for v in values[:12]]
    return ", ".join(shown) + (", ..." if len(values) > 12 else "")


def _check_range(kind: str, lo: Any, hi: Any, *, log: bool = False) -> None:
    for name, end in (("lo", lo), ("hi", hi)):
        if (
            isinstance(end, bool)
            or not isinstance(end, int | float)
            or not abs(end) <= sys.float_info.max
        ):
            remedy = (
                ""
                if isinstance(end, int | float)
                else "; write it as a plain number, as in float(...)"
            )
            raise ValueError(f"{kind}: `{name}` must be a finite number, got {end!r}{remedy}")
    if not lo < hi:
        raise ValueError(
            f"{kind}: `lo` must be below `hi`, got {lo!r} and {hi!r}; the smaller end comes first"
        )
    if log and not lo > 0:
        remedy = (
            "give the smallest value above 0 (LogGrid(..., zero=True) has an exact 0 before it)"
        )
        remedy = remedy if lo == 0 else "use a linear domain"
        raise ValueError(
            f"{kind}: `lo` must be above 0 on a logarithmic scale, got {lo!r}; {remedy}"
        )
    if not math.isfinite(hi / lo if log else float(hi) - lo):
        raise ValueError(
            f"{kind}: `lo` and `hi` are too far apart to compute with, got {lo!r} and {hi!r}; use a smaller range"
        )


def _check_flag(kind: str, name: str, flag: Any) -> None:
    if not isinstance(flag, bool):
        raise ValueError(f"{kind}: `{name}` must be True or False, got {flag!r}")


def _check_count(kind: str, n: Any, least: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < least:
        raise ValueError(f"{kind}: `n` must be a whole number of at least {least}, got {n!r}")


def _check_values(kind: str, values: Any) -> tuple[Value, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(
            f"{kind}: `values` must be a list, such as ['a', 'b'] or [16, 32, 64], got {values!r}"
        )
    for value in values:
        if not isinstance(value, str | bool | int | float) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(
                f"{kind}: values must be finite numbers, strings or booleans, got {value!r}; give it a name, and look that up in "
                f"training"
            )
    if len(values) < 2:
        raise ValueError(
            f"{kind}: `values` must have at least two values, got {list(values)!r}; what is not tuned stays out"
        )
    if len({(type(v) is bool, v) for v in values}) < len(values):
        raise ValueError(f"{kind}: `values` must differ from each other, got {list(values)!r}")
    return tuple(values)
