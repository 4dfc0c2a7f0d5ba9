"""Augmentation of images by policies that are tuned.

`Augmentation` is what `Batches(..., augment=...)` takes. Draws are named by the batch, whose order belongs to a member's seed and
step; so they are the same on every engine, alone and in a stack, and after a resume.

Magnitudes of the operations go from 0 to 9, as the paper's experiments had them: to what strengths, `STRENGTHS` says.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from mopbt.rng import stream
from mopbt.space import Domain, Grid, Ordinal
from mopbt.tasks.image_ops import MOVES, OPERATIONS, crop_and_flip, cut_out, operated
from mopbt.torch.data import Batch

MAGNITUDES = range(10)
_FACTORS = tuple(
    0.01 + 1.99 * m / 9 for m in MAGNITUDES
)  # 0 is the strong end of these: nearly black, gray, flat or smooth
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "brightness": _FACTORS,
    "color": _FACTORS,
    "contrast": _FACTORS,
    "posterize": tuple(8 - 6 * m // 9 for m in MAGNITUDES),  # bits
    "rotate": tuple(15 * m for m in MAGNITUDES),  # degrees
    "sharpness": _FACTORS,
    "shear_x": tuple(0.99 * m / 9 for m in MAGNITUDES),  # share of the distance
    "shear_y": tuple(0.99 * m / 9 for m in MAGNITUDES),
    "solarize": tuple(256 - 256 * m // 9 for m in MAGNITUDES),  # the first level that is inverted
    "translate_x": tuple(32 * m // 9 for m in MAGNITUDES),  # pixels
    "translate_y": tuple(32 * m // 9 for m in MAGNITUDES),
}
SIDES = tuple(20 * m // 9 // 2 * 2 for m in MAGNITUDES)  # of Cutout, pixels

_TABLE = np.array([STRENGTHS.get(name, (0,) * 10) for name in OPERATIONS], dtype=np.float64)
_BOTH_WAYS = np.array([name in MOVES for name in OPERATIONS])  # either way with equal probability
_IN_PIXELS = np.array([name.startswith("translate") for name in OPERATIONS])
_NONE = -1

# Policies: which operations an image gets.

Integers = NDArray[np.int64]


class Plan(NamedTuple):
    """Operations of B images, one after the other, and their magnitudes, both (B, slots).

    An operation is its place in `OPERATIONS`; -1 is none.
    """

    operations: Integers
    magnitudes: Integers


class Policy(Protocol):
    """Decides which operations images get."""

    @property
    def space(self) -> dict[str, Domain]:
        """Return the policy's hyperparameters."""

    def plan(self, hp: Mapping[str, float], images: int, rng: Generator) -> Plan:
        """Draw the operations of some images; what is drawn does not depend on the values."""


@dataclass(frozen=True)
class RandAugment:
    """RandAugment (Cubuk et al. 2020): `count` different operations for each image, all of one magnitude.

    Args:
        count: The hyperparameter that says how many, from 0 to 4.
        magnitude: The hyperparameter that says how strong, from 0 to 9.
    """

    count: str = "augment_count"
    magnitude: str = "augment_magnitude"

    @property
    def space(self) -> dict[str, Domain]:
        """Return both hyperparameters."""
        return {self.count: Ordinal(range(5)), self.magnitude: Ordinal(MAGNITUDES)}

    def plan(self, hp: Mapping[str, float], images: int, rng: Generator) -> Plan:
        """Draw the operations of some images."""
        drawn = rng.random((images, len(OPERATIONS))).argsort(axis=1)[:, :4]
        operations = np.where(np.arange(4) < _whole(hp, self.count, 4), drawn, _NONE)
        return Plan(operations, np.full_like(operations, _whole(hp, self.magnitude, 9)))


@dataclass(frozen=True)
class PerOperation:
    """A policy like that of Population Based Augmentation (Ho et al. 2019): each operation has a probability and a magnitude.

    An image gets a first operation with the probability ``op_1``, then a second one with ``op_2`` and a third one with ``op_3``.
    Each is drawn from all operations, and then applied with its own probability, such as ``rotate_probability``.
    """

    @property
    def space(self) -> dict[str, Domain]:
        """Return the 28 hyperparameters: 14 probabilities of operations, 11 magnitudes, ``op_1`` to ``op_3``."""
        space: dict[str, Domain] = {}
        for name in sorted(OPERATIONS):
            space[f"{name}_probability"] = Grid(0, 1, 10)
            if name in STRENGTHS:
                space[f"{name}_magnitude"] = Ordinal(MAGNITUDES)
        return space | {f"op_{i}": Grid(0, 1, 10) for i in (1, 2, 3)}

    def plan(self, hp: Mapping[str, float], images: int, rng: Generator) -> Plan:
        """Draw the operations of some images."""
        going_on = rng.random((images, 3)) < [hp[f"op_{i}"] for i in (1, 2, 3)]
        drawn, chance = rng.integers(len(OPERATIONS), size=(images, 3)), rng.random((images, 3))
        probabilities = np.array([hp[f"{name}_probability"] for name in OPERATIONS])
        magnitudes = np.array(
            [_whole(hp, f"{n}_magnitude", 9) if n in STRENGTHS else 0 for n in OPERATIONS]
        )
        applied = np.logical_and.accumulate(going_on, axis=1) & (chance < probabilities[drawn])
        return Plan(np.where(applied, drawn, _NONE), magnitudes[drawn])


@dataclass(frozen=True)
class Cutout:
    """Cutout (DeVries and Taylor 2017): with some probability a square at a random place becomes 0.

    Args:
        probability: The hyperparameter that says how often.
        magnitude: The hyperparameter that says how large, from 0 to 9: see `SIDES`.
    """

    probability: str = "cutout_probability"
    magnitude: str = "cutout_magnitude"

    @property
    def space(self) -> dict[str, Domain]:
        """Return both hyperparameters."""
        return {self.probability: Grid(0, 1, 10), self.magnitude: Ordinal(MAGNITUDES)}

    def sides(self, hp: Mapping[str, float], images: int, rng: Generator) -> Integers:
        """Draw which images get a square, and return the sides (B,), which are 0 where there is none."""
        chosen = rng.random(images) < hp[self.probability]
        return np.where(chosen, SIDES[_whole(hp, self.magnitude, 9)], 0)


def _whole(hp: Mapping[str, float], name: str, most: int) -> int:
    number = round(hp[name])
    if not 0 <= number <= most:
        raise ValueError(f"the hyperparameter {name!r} must be from 0 to {most}, got {hp[name]:g}")
    return number


# A policy, with what every image gets, as a function of a batch.


@dataclass(frozen=True)
class Augmentation:
    """What is done to the images of a batch, its first tensor, in this order; for ``Batches(..., augment=...)``.

    Images are tensors (B, 3, H, W) of uint8, or of numbers in [0, 1], which are rounded to 256 levels. What comes out are numbers
    in [0, 1], normalized if `mean` and `deviation` are given; Cutout's squares are 0 after that.

    The same images in the same order, with the same hyperparameters, always come out the same; what an image gets changes with
    the images around it. A batch of one image would be the same in every pass.

    Args:
        policy: Which operations an image gets, if any.
        crop: By how many pixels, at most, an image moves at random in each direction; a crop of the image padded by as many.
        flip: Mirror every other image, at random.
        cutout: Whether there are squares cut out, and by which hyperparameters.
        mean: Of the channels, to normalize by.
        deviation: Of the channels.
        reach: What distances in pixels are multiplied by: those of translations, of `crop` and of Cutout's squares, which are meant
            for images of 32 pixels.
    """

    policy: Policy | None = None
    crop: int = 4
    flip: bool = True
    cutout: Cutout | None = None
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None
    reach: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.reach < np.inf:
            raise ValueError(
                f"`reach` must be a positive number, such as 0.5 for images of 16 pixels, got {self.reach!r}"
            )
        if not isinstance(self.crop, int) or self.crop < 0:
            raise ValueError(
                f"`crop` must be a whole number of pixels of at least 0, got {self.crop!r}"
            )
        if (self.mean is None) != (self.deviation is None):
            raise ValueError(
                f"`mean` and `deviation` go together, got {self.mean!r} and {self.deviation!r}"
            )

    @property
    def space(self) -> dict[str, Domain]:
        """Return the hyperparameters of policy and Cutout."""
        return {
            name: domain
            for part in (self.policy, self.cutout)
            if part is not None
            for name, domain in part.space.items()
        }

    @cached_property
    def _tuned(self) -> tuple[str, ...]:
        return tuple(self.space)

    def __call__(self, batch: Batch, hp: Mapping[str, Any]) -> Batch:
        """Augment the images of a member's batch by its hyperparameters."""
        images, *others = batch
        numbers = [torch.as_tensor(hp[name], dtype=torch.float32) for name in self._tuned]
        values = torch.stack(numbers) if numbers else torch.zeros(0)
        return (_Augmented.apply(images, values, self), *others)  # type: ignore[no-untyped-call]

    def plain(self, images: Tensor) -> Tensor:
        """Return images as evaluation sees them: numbers, normalized, and nothing else."""
        numbers = images.float().div_(255) if images.dtype == torch.uint8 else images
        if self.mean is None or self.deviation is None:
            return numbers
        mean, deviation = (
            numbers.new_tensor(part)[:, None, None] for part in (self.mean, self.deviation)
        )
        return (numbers - mean) / deviation

    def of_members(self, images: Tensor, values: Tensor) -> Tensor:
        """Return the images (N, B, 3, H, W) of N members by their hyperparameters (N, P), in the order of `space`.

        Images (B, 3, H, W) are the same for all members.
        """
        n, levels = len(values), _as_levels(images)
        shared = images.dim() == 4
        names = [_name(levels)] * n if shared else [_name(own) for own in levels]
        draws = [
            self._drawn(*args, levels.shape[-4:])
            for args in zip(names, values.tolist(), strict=True)
        ]
        joined = Draws(*(torch.cat(parts).to(images.device) for parts in zip(*draws, strict=True)))
        stacked = levels.expand(n, *levels.shape) if shared else levels
        return self._applied(stacked.flatten(0, 1), joined).view(stacked.shape)

    def _drawn(self, name: int, values: Sequence[float], shape: torch.Size) -> "Draws":
        """Draw all that happens to a member's images; how many numbers are drawn does not depend on its hyperparameters."""
        rng, own, (rows, _, height, width) = (
            stream(name, "augment"),
            dict(zip(self._tuned, values, strict=True)),
            shape,
        )
        plan = (
            Plan(*np.full((2, rows, 0), _NONE))
            if self.policy is None
            else self.policy.plan(own, rows, rng)
        )
        signs = np.where(rng.random(plan.operations.shape) < 0.5, -1, 1)
        strengths = _TABLE[plan.operations, plan.magnitudes] * np.where(
            _BOTH_WAYS[plan.operations], signs, 1
        )
        strengths = np.where(
            _IN_PIXELS[plan.operations], np.rint(strengths * self.reach), strengths
        )
        crop = round(self.crop * self.reach)
        shifts = rng.integers(-crop, crop + 1, size=(rows, 2))
        flips = (rng.random(rows) < 0.5) & self.flip
        centers = rng.integers((height, width), size=(rows, 2))
        sides = (
            np.zeros(rows, dtype=np.int64)
            if self.cutout is None
            else self.cutout.sides(own, rows, rng)
        )
        sides = (sides * self.reach).astype(np.int64) // 2 * 2
        return Draws(
            *map(torch.from_numpy, (plan.operations, strengths, shifts, flips, centers, sides))
        )

    def _applied(self, images: Tensor, draws: "Draws") -> Tensor:
        for operations, strengths in zip(draws.operations.T, draws.strengths.T, strict=True):
            images = operated(images, operations, strengths)
        if self.crop or self.flip:
            images = crop_and_flip(images, draws.shifts, draws.flips)
        numbers = self.plain(images)
        return numbers if self.cutout is None else cut_out(numbers, draws.centers, draws.sides)


class Draws(NamedTuple):
    """What happens to each of B images."""

    operations: Tensor  # (B, slots), numbers in OPERATIONS
    strengths: Tensor  # (B, slots)
    shifts: Tensor  # (B, 2), down and right
    flips: Tensor  # (B,)
    centers: Tensor  # (B, 2), y and x
    sides: Tensor  # (B,)


def _as_levels(images: Tensor) -> Tensor:
    return (
        images
        if images.dtype == torch.uint8
        else (images * 255).round().clamp(0, 255).to(torch.uint8)
    )


def _name(images: Tensor) -> int:
    """Return a number that stands for these images in this order."""
    return zlib.crc32(images.cpu().contiguous().numpy().data)


class _Augmented(torch.autograd.Function):
    """Augmentation that knows how to be stacked: below the stack all members' images are rows, and operations can choose theirs."""

    @staticmethod
    def forward(images: Tensor, values: Tensor, augmentation: Augmentation) -> Tensor:
        return augmentation.of_members(images, values[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, images: Tensor, values: Tensor, augmentation: Augmentation
    ) -> tuple[Tensor, int]:
        if in_dims[0] is not None:
            images = images.movedim(in_dims[0], 0)
        values = (
            values.expand(info.batch_size, -1)
            if in_dims[1] is None
            else values.movedim(in_dims[1], 0)
        )
        return augmentation.of_members(images, values), 0
