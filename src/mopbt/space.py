"""Search spaces: domains that sample, decode and perturb hyperparameters.

A *configuration* is a tuple of positions, one per hyperparameter. A position is an index for lists
of values (`Grid`, `LogGrid`, `Ordinal`, `Categorical`), and the value itself for `Float` and `Int`.
No operation leaves the domain.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.random import Generator

from mopbt.limits import DOMAIN_VALUES
from mopbt.messages import did_you_mean

Position = int | float
Config = tuple[Position, ...]
Value = float | int | str | bool
_Number = TypeVar("_Number", int, float)

# Alg. 3 shifts a value by at most three places. The paper's lists have ten values, nine places from
# end to end; continuous domains move by the same share of their range.
REACH = 3
STEPS = 9


@runtime_checkable
class Domain(Protocol):
    """The values that one hyperparameter may take."""

    def sample(self, rng: Generator) -> Position:
        """Draw a position uniformly."""

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions spread evenly over the domain, in random order."""

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Perturb a position locally, clipped to the domain (Alg. 3)."""

    def decode(self, position: Position) -> Any:
        """Return the value at a position."""

    def encode(self, value: Any) -> Position:
        """Return the position of a value; raise ValueError if it is not allowed."""

    def contains(self, position: Any) -> bool:
        """Check whether this is a position of the domain."""

    def to_unit(self, position: Position) -> float:
        """Map a position to [0, 1] on the scale of the domain."""

    def from_unit(self, share: float) -> Position:
        """Map a number, clipped to [0, 1], to a position.

        Uniform numbers give uniform positions.
        """


class _Listed:
    """A domain with a finite list of values, in which a position is an index."""

    values: tuple[Any, ...]

    def sample(self, rng: Generator) -> Position:
        return int(rng.integers(len(self.values)))

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        # The authors' code concatenates random permutations of all values.
        rounds = math.ceil(n / len(self.values))
        drawn: list[Position] = []
        for _ in range(rounds):
            drawn += [int(i) for i in rng.permutation(len(self.values))]
        return drawn[:n]

    def nearby(self, position: Position, rng: Generator) -> Position:
        # Alg. 3, lines 6 and 7. The paper does not say what happens at the ends; here they clip.
        shift = int(rng.integers(REACH + 1))
        if rng.random() < 0.5:
            shift = -shift
        return _clip(int(position) + shift, 0, len(self.values) - 1)

    def decode(self, position: Position) -> Any:
        return self.values[int(position)]

    def encode(self, value: Any) -> Position:
        # Equality comes first, because several values may be close to the one that is equal.
        for matches in (_is_equal, _is_close):
            for index, allowed in enumerate(self.values):
                if matches(allowed, value):
                    return index
        shown = ", ".join(map(repr, self.values[:12])) + ", ..." * (len(self.values) > 12)
        raise ValueError(f"must be one of {shown}, got {value!r}")

    def contains(self, position: Any) -> bool:
        is_index = isinstance(position, int) and not isinstance(position, bool)
        return is_index and 0 <= position < len(self.values)

    def to_unit(self, position: Position) -> float:
        # Each position owns a cell of equal width and maps to its center.
        return (int(position) + 0.5) / len(self.values)

    def from_unit(self, share: float) -> Position:
        return _clip(math.floor(share * len(self.values)), 0, len(self.values) - 1)


class _Ranged:
    """A domain with two ends, in which a position is a value on a scale."""

    lo: Any
    hi: Any
    log: bool

    def sample(self, rng: Generator) -> Position:
        return self._position_at(float(rng.random()))

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        # A Latin hypercube: one draw in each of n equal cells.
        cells = rng.permutation(n)
        return [self._position_at((int(cell) + float(rng.random())) / n) for cell in cells]

    def nearby(self, position: Position, rng: Generator) -> Position:
        shift = float(rng.uniform(-REACH, REACH)) / STEPS
        return self._position_at(self._share_of(position) + shift)

    def decode(self, position: Position) -> Any:
        return position

    def to_unit(self, position: Position) -> float:
        # Rounding can push a logarithm just past the ends.
        return _clip(self._share_of(position), 0.0, 1.0)

    def from_unit(self, share: float) -> Position:
        return self._position_at(share)

    def _position_at(self, share: float) -> Position:
        return self._interpolate(share, float(self.lo), float(self.hi))

    def _share_of(self, position: Position) -> float:
        if self.log:
            return math.log(position / self.lo) / math.log(self.hi / self.lo)
        return float((position - self.lo) / (self.hi - self.lo))

    def _interpolate(self, share: float, lo: float, hi: float) -> float:
        share = _clip(share, 0.0, 1.0)
        value = lo * (hi / lo) ** share if self.log else lo + (hi - lo) * share
        return _clip(value, lo, hi)


@dataclass(frozen=True)
class Grid(_Listed):
    """`n` evenly spaced values from `lo` to `hi`, both included.

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
        """The values in ascending order."""
        return _round_inner(np.linspace(self.lo, self.hi, self.n), self.lo, self.hi)


@dataclass(frozen=True)
class LogGrid(_Listed):
    """`n` values evenly spaced in the logarithm from `lo` to `hi`.

    With `zero`, the first of the `n` values is an exact 0 and `lo` is the second.

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
        """The values in ascending order."""
        positive = np.geomspace(self.lo, self.hi, self.n - self.zero)
        return (0.0,) * self.zero + _round_inner(positive, self.lo, self.hi)


@dataclass(frozen=True)
class Ordinal(_Listed):
    """Values in a meaningful order, for example ``Ordinal([16, 32, 64])``."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        object.__setattr__(self, "values", _check_values("Ordinal", values))


@dataclass(frozen=True)
class Categorical(_Listed):
    """Values without an order: a local move keeps the value, resampling changes it."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        object.__setattr__(self, "values", _check_values("Categorical", values))

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Return the same position, because categories have no neighbors."""
        return position


@dataclass(frozen=True)
class Float(_Ranged):
    """A real number in [lo, hi], uniform, or uniform in the logarithm."""

    lo: float
    hi: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_flag("Float", "log", self.log)
        _check_range("Float", self.lo, self.hi, log=self.log)

    def encode(self, value: Any) -> Position:
        """Return the value as a float; raise ValueError if it is out of range."""
        if not self.contains(value):
            raise ValueError(f"must be a number in [{self.lo!r}, {self.hi!r}], got {value!r}")
        return float(value)

    def contains(self, position: Any) -> bool:
        """Check whether this is a number in the range."""
        is_real = isinstance(position, Real) and not isinstance(position, bool)
        return is_real and self.lo <= float(position) <= self.hi


@dataclass(frozen=True)
class Int(_Ranged):
    """A whole number in [lo, hi], uniform, or uniform in the logarithm."""

    lo: int
    hi: int
    log: bool = False

    def __post_init__(self) -> None:
        for end in (self.lo, self.hi):
            if not isinstance(end, int) or isinstance(end, bool):
                raise ValueError(
                    f"Int: `lo` and `hi` must be whole numbers, got {end!r}; use Float for real "
                    f"numbers"
                )
            if abs(end) > 2**53:
                raise ValueError(
                    f"Int: `lo` and `hi` must be within ±2**53, where floats represent every "
                    f"integer, got {end!r}"
                )
        _check_flag("Int", "log", self.log)
        _check_range("Int", self.lo, self.hi, log=self.log)

    def stratified(self, n: int, rng: Generator) -> list[Position]:
        """Draw each value equally often, or one per cell of a range larger than n."""
        if self.log or self.hi - self.lo + 1 > n:
            return super().stratified(n, rng)
        return [self.lo + i for i in self._offsets().stratified(n, rng)]

    def nearby(self, position: Position, rng: Generator) -> Position:
        """Move by list places in a short range, else by a share of the range."""
        if self.log or self.hi - self.lo > STEPS:
            return super().nearby(position, rng)
        return self.lo + self._offsets().nearby(position - self.lo, rng)

    def encode(self, value: Any) -> Position:
        """Return the value as an int; raise ValueError if it is not one in the range."""
        if not self.contains(value):
            raise ValueError(f"must be a whole number in [{self.lo}, {self.hi}], got {value!r}")
        return int(value)

    def contains(self, position: Any) -> bool:
        """Check whether this is a whole number in the range."""
        is_integer = isinstance(position, Integral) and not isinstance(position, bool)
        return is_integer and self.lo <= int(position) <= self.hi

    def _offsets(self) -> Ordinal:
        return Ordinal(range(self.hi - self.lo + 1))

    def _position_at(self, share: float) -> Position:
        # Each value owns the cell from half a unit below it to half a unit above it.
        point = self._interpolate(share, self.lo - 0.5, self.hi + 0.5)
        return _clip(math.floor(point + 0.5), self.lo, self.hi)

    def _share_of(self, position: Position) -> float:
        lo = self.lo - 0.5
        hi = self.hi + 0.5
        if self.log:
            return math.log(position / lo) / math.log(hi / lo)
        return (position - lo) / (hi - lo)


class Space(Mapping[str, Domain]):
    """An ordered mapping of hyperparameter names to domains.

    >>> Space({"lr": Float(1e-5, 0.1, log=True), "n": Ordinal([1, 2, 4])}).decode((0.1, 2))
    {'lr': 0.1, 'n': 4}
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        if not isinstance(domains, Mapping):
            raise TypeError(
                f"`space` must be a mapping of names to domains, such as "
                f"{{'lr': Float(1e-5, 0.1, log=True)}}, got {domains!r}"
            )
        if not domains:
            raise ValueError(
                "`space` must have at least one hyperparameter, such as "
                "{'lr': Float(1e-5, 0.1, log=True)}, got none"
            )
        for name, domain in domains.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"the keys of `space` must be names, got {name!r}")
            if not isinstance(domain, Grid | LogGrid | Ordinal | Categorical | Float | Int):
                raise ValueError(
                    f"`space[{name!r}]` must be a domain such as Float(1e-5, 0.1, log=True), "
                    f"Grid(0, 0.8, 10) or Categorical(['a', 'b']), got {domain!r}"
                    f"{_suggest_domain(domain)}"
                )
        self._domains = dict(domains)

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return False
        return list(self._domains.items()) == list(other._domains.items())

    def __hash__(self) -> int:
        return hash(tuple(self._domains.items()))

    def __repr__(self) -> str:
        return f"Space({self._domains!r})"

    def sample(self, rng: Generator) -> Config:
        """Draw one configuration uniformly."""
        return tuple(domain.sample(rng) for domain in self.values())

    def stratified(self, n: int, rng: Generator) -> list[Config]:
        """Draw `n` configurations that spread each hyperparameter evenly."""
        columns = [domain.stratified(n, rng) for domain in self.values()]
        return list(zip(*columns, strict=True))

    def decode(self, config: Config) -> dict[str, Any]:
        """Return the hyperparameters of a configuration by name."""
        return {
            name: domain.decode(p) for (name, domain), p in zip(self.items(), config, strict=True)
        }

    def encode(self, values: Mapping[str, Any]) -> Config:
        """Return the configuration of named hyperparameters.

        Unknown, missing and out-of-range ones raise ValueError.
        """
        unknown = sorted(set(values) - set(self), key=repr)
        missing = sorted(set(self) - set(values))
        if unknown or missing:
            problems = []
            if unknown:
                problems.append(f"unknown {', '.join(map(repr, unknown))}")
            if missing:
                problems.append(f"missing {', '.join(map(repr, missing))}")
            suggestion = did_you_mean(unknown[0], missing) if unknown else ""
            raise ValueError(
                f"a configuration must name exactly {', '.join(map(repr, self))}; "
                f"{' and '.join(problems)}{suggestion}"
            )
        return tuple(self._encode_one(name, values[name]) for name in self)

    def _encode_one(self, name: str, value: Any) -> Position:
        try:
            return self[name].encode(value)
        except ValueError as error:
            raise ValueError(f"{name!r} {error}") from None

    def contains(self, config: Sequence[Any]) -> bool:
        """Check whether this is a configuration of the space."""
        return len(config) == len(self) and all(
            domain.contains(p) for domain, p in zip(self.values(), config, strict=True)
        )


def _suggest_domain(received: Any) -> str:
    """Suggest the domain that was probably intended, for the end of a message."""
    if isinstance(received, type):
        is_domain = received.__module__ == __name__
        return f"; create an instance, as in {received.__name__}(...)" if is_domain else ""
    if isinstance(received, tuple | list):
        if len(received) == 2 and all(isinstance(end, int | float) for end in received):
            ends = f"{received[0]!r}, {received[1]!r}"
            return f"; write Float({ends}) for a range, or Ordinal([{ends}]) for two values"
        return "; write Ordinal([...]) for ordered values, Categorical([...]) for others"
    if isinstance(received, int | float | str):
        return "; a constant is not tuned: use it in training, and leave it out here"
    return ""


def _clip(number: _Number, lo: _Number, hi: _Number) -> _Number:
    return min(max(number, lo), hi)


def _round_inner(values: np.ndarray, lo: float, hi: float) -> tuple[float, ...]:
    """Round away noise such as 0.30000000000000004; the ends stay exact."""
    return (float(lo), *(float(f"{v:.15g}") for v in values[1:-1]), float(hi))


def _is_equal(allowed: Any, value: Any) -> bool:
    # True == 1, but a boolean is never the same value as a number.
    booleans = (bool, np.bool_)
    if isinstance(allowed, booleans) != isinstance(value, booleans):
        return False
    return np.ndim(value) == 0 and bool(allowed == value)


def _is_close(allowed: Any, value: Any) -> bool:
    """Check whether two floats differ only by rounding; integers must be equal."""
    are_floats = isinstance(allowed, float) and isinstance(value, float)
    return are_floats and math.isclose(allowed, value, rel_tol=1e-9)


def _check_distinct(kind: str, values: Sequence[float]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError(
            f"{kind}: `lo` and `hi` must be far enough apart for {len(values)} different values, "
            f"got {values[0]} and {values[-1]}"
        )


def _check_range(kind: str, lo: Any, hi: Any, *, log: bool = False) -> None:
    for name, end in (("lo", lo), ("hi", hi)):
        is_number = isinstance(end, int | float)
        if isinstance(end, bool) or not is_number or not abs(end) <= sys.float_info.max:
            remedy = "" if is_number else "; convert it, as in float(...)"
            raise ValueError(f"{kind}: `{name}` must be a finite number, got {end!r}{remedy}")
    if not lo < hi:
        raise ValueError(
            f"{kind}: `lo` must be below `hi`, got {lo!r} and {hi!r}; put the smaller end first"
        )
    if log and not lo > 0:
        remedy = "use a linear domain"
        if lo == 0:
            remedy = "use the smallest value above 0; LogGrid(..., zero=True) adds an exact 0"
        raise ValueError(
            f"{kind}: `lo` must be above 0 on a logarithmic scale, got {lo!r}; {remedy}"
        )
    if not math.isfinite(hi / lo if log else float(hi) - lo):
        raise ValueError(
            f"{kind}: the range from `lo` to `hi` overflows a float, got {lo!r} and {hi!r}; use a "
            f"smaller range"
        )


def _check_flag(kind: str, name: str, flag: Any) -> None:
    if not isinstance(flag, bool):
        raise ValueError(f"{kind}: `{name}` must be True or False, got {flag!r}")


def _check_count(kind: str, n: Any, least: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < least:
        raise ValueError(f"{kind}: `n` must be a whole number of at least {least}, got {n!r}")
    if n > DOMAIN_VALUES:
        raise ValueError(
            f"{kind}: `n` must be at most {DOMAIN_VALUES:,}, got {n!r}; use Float for a range"
        )


def _check_values(kind: str, values: Any) -> tuple[Value, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(
            f"{kind}: `values` must be a list, such as ['a', 'b'] or [16, 32, 64], got {values!r}"
        )
    for value in values:
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if not isinstance(value, str | bool | int | float) or is_infinite:
            raise ValueError(
                f"{kind}: values must be finite numbers, strings or booleans, got {value!r}; "
                f"use a string, and look up the object in training"
            )
    if len(values) < 2:
        raise ValueError(
            f"{kind}: `values` must have at least two values, got {list(values)!r}; leave out "
            f"what is not tuned"
        )
    if len({(type(v) is bool, v) for v in values}) < len(values):
        raise ValueError(f"{kind}: `values` must be distinct, got {list(values)!r}")
    return tuple(values)
