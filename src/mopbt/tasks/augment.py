"""Augment images by policies whose hyperparameters are tuned.

`Augmentation` is an argument of `Batches(..., augment=...)`. Its random draws depend only on the
batch, whose order depends only on a member's seed and step. They are therefore the same on every
engine, alone and in a stack, and after a resume.

Magnitudes go from 0 to 9, as in the paper's experiments. `STRENGTHS` maps them to strengths.
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
from mopbt.tasks.image_ops import MOVES, OPERATIONS, apply_operations, crop_and_flip, cut_out
from mopbt.torch.data import Batch

MAGNITUDES = range(10)
# Factors of enhancement. Magnitude 0 is a strong change: nearly black, gray, flat or smooth.
_FACTORS = tuple(0.01 + 1.99 * m / 9 for m in MAGNITUDES)
# In bits (posterize), degrees (rotate), shares of the distance (shear), the first inverted level
# (solarize) and pixels (translate).
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "brightness": _FACTORS,
    "color": _FACTORS,
    "contrast": _FACTORS,
    "posterize": tuple(8 - 6 * m // 9 for m in MAGNITUDES),
    "rotate": tuple(15 * m for m in MAGNITUDES),
    "sharpness": _FACTORS,
    "shear_x": tuple(0.99 * m / 9 for m in MAGNITUDES),
    "shear_y": tuple(0.99 * m / 9 for m in MAGNITUDES),
    "solarize": tuple(256 - 256 * m // 9 for m in MAGNITUDES),
    "translate_x": tuple(32 * m // 9 for m in MAGNITUDES),
    "translate_y": tuple(32 * m // 9 for m in MAGNITUDES),
}
# Sides of Cutout's squares in pixels.
SIDES = tuple(20 * m // 9 // 2 * 2 for m in MAGNITUDES)

_TABLE = np.array([STRENGTHS.get(name, (0,) * 10) for name in OPERATIONS], dtype=np.float64)
# Moves go in either direction with equal probability.
_BOTH_WAYS = np.array([name in MOVES for name in OPERATIONS])
_IN_PIXELS = np.array([name.startswith("translate") for name in OPERATIONS])
_NONE = -1

Integers = NDArray[np.int64]


class Plan(NamedTuple):
    """List the operations of B images in order and their magnitudes, both (B, slots).

    An operation is an index into `OPERATIONS`, or -1 for none.
    """

    operations: Integers
    magnitudes: Integers


class Policy(Protocol):
    """Choose the operations that are applied to images."""

    @property
    def space(self) -> dict[str, Domain]:
        """Return the policy's hyperparameters."""

    def plan(self, hp: Mapping[str, float], images: int, rng: Generator) -> Plan:
        """Draw operations; the number of random draws does not depend on `hp`."""


@dataclass(frozen=True)
class RandAugment:
    """Apply RandAugment (Cubuk et al. 2020): distinct operations of one magnitude.

    Args:
        count: Name of the hyperparameter for the number of operations per image, from 0 to 4.
        magnitude: Name of the hyperparameter for their magnitude, from 0 to 9.
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
        operations = np.where(np.arange(4) < _integer(hp, self.count, 4), drawn, _NONE)
        return Plan(operations, np.full_like(operations, _integer(hp, self.magnitude, 9)))


@dataclass(frozen=True)
class PerOperation:
    """Give each operation its own probability and magnitude.

    The policy resembles that of Population Based Augmentation (Ho et al. 2019). An image gets a
    first operation with the probability ``op_1``, then a second with ``op_2`` and a third with
    ``op_3``. Each is drawn from all operations and applied with its own probability, such as
    ``rotate_probability``.
    """

    @property
    def space(self) -> dict[str, Domain]:
        """Return the 28 hyperparameters: 14 probabilities, 11 magnitudes, 3 ``op_...``."""
        space: dict[str, Domain] = {}
        for name in sorted(OPERATIONS):
            space[f"{name}_probability"] = Grid(0, 1, 10)
            if name in STRENGTHS:
                space[f"{name}_magnitude"] = Ordinal(MAGNITUDES)
        return space | {f"op_{i}": Grid(0, 1, 10) for i in (1, 2, 3)}

    def plan(self, hp: Mapping[str, float], images: int, rng: Generator) -> Plan:
        """Draw the operations of some images."""
        continues = rng.random((images, 3)) < [hp[f"op_{i}"] for i in (1, 2, 3)]
        drawn = rng.integers(len(OPERATIONS), size=(images, 3))
        chance = rng.random((images, 3))
        probabilities = np.array([hp[f"{name}_probability"] for name in OPERATIONS])
        magnitudes = np.array(
            [_integer(hp, f"{n}_magnitude", 9) if n in STRENGTHS else 0 for n in OPERATIONS]
        )
        applied = np.logical_and.accumulate(continues, axis=1) & (chance < probabilities[drawn])
        return Plan(np.where(applied, drawn, _NONE), magnitudes[drawn])


@dataclass(frozen=True)
class Cutout:
    """Apply Cutout (DeVries and Taylor 2017): set a square at a random place to 0.

    Args:
        probability: Name of the hyperparameter for the probability of a square.
        magnitude: Name of the hyperparameter for its size, from 0 to 9, see `SIDES`.
    """

    probability: str = "cutout_probability"
    magnitude: str = "cutout_magnitude"

    @property
    def space(self) -> dict[str, Domain]:
        """Return both hyperparameters."""
        return {self.probability: Grid(0, 1, 10), self.magnitude: Ordinal(MAGNITUDES)}

    def sides(self, hp: Mapping[str, float], images: int, rng: Generator) -> Integers:
        """Draw the sides (B,) of the squares, 0 for images without one."""
        chosen = rng.random(images) < hp[self.probability]
        return np.where(chosen, SIDES[_integer(hp, self.magnitude, 9)], 0)


def _integer(hp: Mapping[str, float], name: str, most: int) -> int:
    number = round(hp[name])
    if not 0 <= number <= most:
        raise ValueError(f"hyperparameter {name!r} must be from 0 to {most}, got {hp[name]:g}")
    return number


@dataclass(frozen=True)
class Augmentation:
    """Augment the images of a batch, for ``Batches(..., augment=...)``.

    The images are the first tensor of the batch, (B, 3, H, W): uint8, or floats in [0, 1], which
    are rounded to 256 levels. The result is floats in [0, 1], normalized if `mean` and `deviation`
    are given. Cutout's squares are 0 after normalization. Operations, crop, flip, normalization
    and Cutout apply in this order.

    The result is a function of the images, their order and the hyperparameters. The augmentation
    of an image therefore depends on the other images of its batch, and batches of one image would
    be augmented in the same way in every epoch.

    Args:
        policy: Chooses the operations, if any.
        crop: Largest random shift in pixels, equivalent to a random crop of the padded image.
        flip: Mirror each image with probability 1/2.
        cutout: Sets random squares to 0, if given.
        mean: Means of the channels.
        deviation: Standard deviations of the channels.
        reach: Factor for distances in pixels: translations, `crop` and Cutout's squares, which are
            meant for images of 32 pixels.
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
                "`reach` must be a positive number, such as 0.5 for images of 16 pixels, "
                f"got {self.reach!r}"
            )
        if not isinstance(self.crop, int) or self.crop < 0:
            raise ValueError(
                f"`crop` must be an integer of at least 0, in pixels, got {self.crop!r}"
            )
        if (self.mean is None) != (self.deviation is None):
            raise ValueError(
                "`mean` and `deviation` must be given together, "
                f"got {self.mean!r} and {self.deviation!r}"
            )

    @property
    def space(self) -> dict[str, Domain]:
        """Return the hyperparameters of policy and Cutout."""
        space = {} if self.policy is None else self.policy.space
        return space if self.cutout is None else space | self.cutout.space

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.space)

    def __call__(self, batch: Batch, hp: Mapping[str, Any]) -> Batch:
        """Augment the images of a member's batch."""
        images, *others = batch
        scalars = [torch.as_tensor(hp[name], dtype=torch.float32) for name in self._names]
        values = torch.stack(scalars) if scalars else torch.zeros(0)
        return (_Augment.apply(images, values, self), *others)  # type: ignore[no-untyped-call]

    def plain(self, images: Tensor) -> Tensor:
        """Return images for evaluation: as floats, normalized, without augmentation."""
        floats = images.float().div_(255) if images.dtype == torch.uint8 else images
        if self.mean is None or self.deviation is None:
            return floats
        mean = floats.new_tensor(self.mean)[:, None, None]
        deviation = floats.new_tensor(self.deviation)[:, None, None]
        return (floats - mean) / deviation

    def of_members(self, images: Tensor, values: Tensor) -> Tensor:
        """Augment the images of N members by their hyperparameters (N, P).

        Hyperparameters are in the order of `space`. Images are (N, B, 3, H, W), or (B, 3, H, W) if
        all members share them. The result is (N, B, 3, H, W).
        """
        n = len(values)
        levels = _to_levels(images)
        if images.dim() == 4:
            keys = [_key(levels)] * n
            stacked = levels.expand(n, *levels.shape)
        else:
            keys = [_key(own) for own in levels]
            stacked = levels
        draws = [
            self._draw(key, own, levels.shape[-4:])
            for key, own in zip(keys, values.tolist(), strict=True)
        ]
        joined = Draws(*(torch.cat(parts).to(images.device) for parts in zip(*draws, strict=True)))
        return self._apply(stacked.flatten(0, 1), joined).view(stacked.shape)

    def _draw(self, key: int, values: Sequence[float], shape: torch.Size) -> "Draws":
        """Draw the augmentation of a member's images.

        The number of random draws does not depend on the hyperparameters.
        """
        rng = stream(key, "augment")
        hp = dict(zip(self._names, values, strict=True))
        rows, _, height, width = shape
        if self.policy is None:
            plan = Plan(*np.full((2, rows, 0), _NONE))
        else:
            plan = self.policy.plan(hp, rows, rng)
        signs = np.where(rng.random(plan.operations.shape) < 0.5, -1, 1)
        strengths = _TABLE[plan.operations, plan.magnitudes]
        strengths = strengths * np.where(_BOTH_WAYS[plan.operations], signs, 1)
        scaled = np.rint(strengths * self.reach)
        strengths = np.where(_IN_PIXELS[plan.operations], scaled, strengths)
        crop = round(self.crop * self.reach)
        shifts = rng.integers(-crop, crop + 1, size=(rows, 2))
        flips = (rng.random(rows) < 0.5) & self.flip
        centers = rng.integers((height, width), size=(rows, 2))
        sides = np.zeros(rows, dtype=np.int64)
        if self.cutout is not None:
            sides = self.cutout.sides(hp, rows, rng)
        sides = (sides * self.reach).astype(np.int64) // 2 * 2
        return Draws(
            *map(torch.from_numpy, (plan.operations, strengths, shifts, flips, centers, sides))
        )

    def _apply(self, images: Tensor, draws: "Draws") -> Tensor:
        for operations, strengths in zip(draws.operations.T, draws.strengths.T, strict=True):
            images = apply_operations(images, operations, strengths)
        if self.crop or self.flip:
            images = crop_and_flip(images, draws.shifts, draws.flips)
        floats = self.plain(images)
        return floats if self.cutout is None else cut_out(floats, draws.centers, draws.sides)


class Draws(NamedTuple):
    """Hold the random draws for B images.

    Attributes:
        operations: Shape (B, slots), indices into `OPERATIONS`.
        strengths: Shape (B, slots).
        shifts: Shape (B, 2), down and right.
        flips: Shape (B,), which images are mirrored.
        centers: Shape (B, 2), y and x of Cutout's squares.
        sides: Shape (B,), sides of Cutout's squares.
    """

    operations: Tensor
    strengths: Tensor
    shifts: Tensor
    flips: Tensor
    centers: Tensor
    sides: Tensor


def _to_levels(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    return (images * 255).round().clamp(0, 255).to(torch.uint8)


def _key(images: Tensor) -> int:
    """Return a checksum of these images in this order."""
    return zlib.crc32(images.cpu().contiguous().numpy().data)


class _Augment(torch.autograd.Function):
    """Augment images, also under `torch.vmap`.

    Its `vmap` rule flattens the images of all members into one batch, so that each operation can
    select its own images.
    """

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
        if in_dims[1] is None:
            values = values.expand(info.batch_size, -1)
        else:
            values = values.movedim(in_dims[1], 0)
        return augmentation.of_members(images, values), 0
