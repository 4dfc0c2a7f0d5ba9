"""Test that batch operations equal Pillow's, and that members are augmented independently."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageEnhance, ImageOps
from torch import nn
from torch.nn import functional as F

import mopbt
from lanes import examples
from mopbt.problem import Hyperparameters
from mopbt.rng import stream
from mopbt.tasks import augment, image_ops
from mopbt.tasks.augment import SIDES, STRENGTHS, Augmentation, Cutout, PerOperation, RandAugment
from mopbt.tasks.image_ops import MOVES, OPERATIONS, apply_operations
from mopbt.torch import SGD, Batches, TorchTask

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Use one thread in every test."""


# Each operation against Pillow.


def by_pillow(name, pixels, strength):
    """Apply Pillow's operation to an image (H, W, 3)."""
    image = Image.fromarray(pixels)
    maps = {
        "shear_x": (1, strength, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, strength, 1, 0),
        "translate_x": (1, 0, strength, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, strength),
    }
    if name in ENHANCERS:
        done = ENHANCERS[name](image).enhance(strength)
    elif name in maps:
        done = image.transform(image.size, Image.Transform.AFFINE, maps[name])
    else:
        done = {
            "auto_contrast": lambda: ImageOps.autocontrast(image),
            "equalize": lambda: ImageOps.equalize(image),
            "invert": lambda: ImageOps.invert(image),
            "posterize": lambda: ImageOps.posterize(image, int(strength)),
            "solarize": lambda: ImageOps.solarize(image, int(strength)),
            "rotate": lambda: image.rotate(strength),
        }[name]()
    return np.asarray(done)


def strengths_of(name, n):
    """Return strengths (n,) that cycle through all magnitudes and both signs."""
    signs = (1, -1) if name in MOVES else (1,)
    return np.resize(
        [sign * strength for strength in STRENGTHS.get(name, (0,)) for sign in signs], n
    ).astype(float)


def tensor(pixels):
    """Return images (B, H, W, 3) as a tensor (B, 3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def pixels(images):
    """Return a tensor (B, 3, H, W) as images (B, H, W, 3)."""
    return images.permute(0, 2, 3, 1).numpy()


def applied(name, images, strengths):
    """Apply one operation to a batch of images."""
    return apply_operations(
        images,
        torch.full((len(images),), OPERATIONS.index(name)),
        torch.as_tensor(strengths, dtype=torch.float64),
    )


def assert_as_pillow(name, images, strengths):
    """Compare a batch, in which strengths differ, with Pillow's images level by level."""
    batch = tensor(images)
    before = batch.clone()
    got = applied(name, batch, strengths)
    assert got.dtype == torch.uint8
    assert torch.equal(batch, before)
    expected = np.stack(
        [
            by_pillow(name, image, strength)
            for image, strength in zip(images, strengths, strict=True)
        ]
    )
    apart = np.abs(pixels(got).astype(int) - expected)
    # Enhancers compute in floats, and fused operations may rarely differ by one level.
    if name in ENHANCERS:
        assert apart.max(initial=0) <= 1
        assert (apart > 0).mean() < 1e-3
    else:
        assert apart.max(initial=0) == 0


def generated():
    """Return difficult images: small, flat, of two levels, not square, of a narrow range."""
    rng = np.random.default_rng(0)
    flat = np.broadcast_to(rng.integers(0, 256, (40, 1, 1, 3)), (40, 32, 32, 3))
    two = np.where(
        rng.random((40, 32, 32, 3)) < 0.5,
        rng.integers(0, 256, (40, 1, 1, 3)),
        rng.integers(0, 256, (40, 1, 1, 3)),
    )
    ramp = np.broadcast_to(np.arange(32)[:, None, None] * np.array([8, 4, 1]), (40, 32, 32, 3))
    narrow = rng.integers(100, 109, (40, 39, 32, 3))
    sizes = [(1, 1), (2, 2), (2, 5), (3, 3), (7, 4), (33, 64)]
    noise = [rng.integers(0, 256, (40, *size, 3)) for size in sizes]
    return [batch.astype(np.uint8) for batch in (flat, two, ramp, narrow, *noise)]


@cache
def real(file):
    path = SHARED / file
    if not path.is_file():
        pytest.skip(f"the real images are not at {path}")
    with np.load(path) as data:
        return data["x_train"][::50]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows_on_generated_images(name):
    for images in generated():
        assert_as_pillow(name, images, strengths_of(name, len(images)))


@pytest.mark.parametrize("file", ["cifar10_12k.npz", "celeba_15k_39x32.npz"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows_on_real_images(name, file):
    images = real(file)
    assert_as_pillow(name, images, strengths_of(name, len(images)))


@examples(150)
@given(st.data())
def test_an_operation_is_pillows_whatever_the_image_and_the_strength(data):
    name = data.draw(st.sampled_from(OPERATIONS))
    height, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    images = data.draw(arrays(np.uint8, (2, height, width, 3)))
    allowed = {
        "posterize": st.integers(1, 8),
        "solarize": st.integers(0, 256),
        "rotate": st.integers(-360, 360),
        "translate_x": st.integers(-40, 40),
        "translate_y": st.integers(-40, 40),
    }.get(name, st.integers(0, 3000).map(lambda n: n / 1000))
    strengths = np.array([data.draw(allowed), data.draw(allowed)], dtype=float)
    got, batch = applied(name, tensor(images), strengths), tensor(images)
    for i in range(2):
        expected = by_pillow(name, images[i], strengths[i])
        assert np.abs(pixels(got)[i].astype(int) - expected).max() <= (
            1 if name in ENHANCERS else 0
        )
        assert torch.equal(applied(name, batch[i : i + 1], strengths[i : i + 1])[0], got[i])


def test_each_image_of_a_batch_gets_its_own_operation():
    images = tensor(np.random.default_rng(1).integers(0, 256, (60, 9, 8, 3)).astype(np.uint8))
    chosen = torch.from_numpy(np.random.default_rng(2).integers(-1, 14, 60))
    strengths = torch.tensor(
        [
            strengths_of(OPERATIONS[n], 60)[i] if n >= 0 else 0.0
            for i, n in enumerate(chosen.tolist())
        ]
    )
    got = apply_operations(images, chosen, strengths.double())
    for i, number in enumerate(chosen.tolist()):
        one = images[i : i + 1]
        expected = one if number < 0 else applied(OPERATIONS[number], one, strengths[i : i + 1])
        assert torch.equal(got[i], expected[0])
    assert len(set(chosen.tolist())) == 15


def test_images_without_an_operation_stay():
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(
        apply_operations(images, torch.full((5,), -1), torch.ones(5, dtype=torch.float64)), images
    )


def test_strengths_are_those_of_the_papers_experiments():
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 14
    assert set(OPERATIONS) - set(STRENGTHS) == {"auto_contrast", "equalize", "invert"}
    assert STRENGTHS["rotate"] == (0, 15, 30, 45, 60, 75, 90, 105, 120, 135)
    assert STRENGTHS["posterize"] == (8, 8, 7, 6, 6, 5, 4, 4, 3, 2)
    assert STRENGTHS["solarize"] == (256, 228, 200, 171, 143, 114, 86, 57, 29, 0)
    for name in ("translate_x", "translate_y"):
        assert STRENGTHS[name] == (0, 3, 7, 10, 14, 17, 21, 24, 28, 32)
    for name in ("shear_x", "shear_y"):
        assert STRENGTHS[name] == pytest.approx(
            (0, 0.11, 0.22, 0.33, 0.44, 0.55, 0.66, 0.77, 0.88, 0.99)
        )
    for name in ENHANCERS:
        assert STRENGTHS[name] == pytest.approx(
            (0.01, 0.231, 0.452, 0.673, 0.894, 1.116, 1.337, 1.558, 1.779, 2.0), abs=1e-3
        )
    assert SIDES == (0, 2, 4, 6, 8, 10, 12, 14, 16, 20)


# Crops, mirror images, squares.


def test_crop_and_flip_are_pillows():
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (30, 9, 7, 3)).astype(np.uint8)
    shifts, flips = rng.integers(-4, 5, (30, 2)), rng.random(30) < 0.5
    got = pixels(
        image_ops.crop_and_flip(tensor(images), torch.from_numpy(shifts), torch.from_numpy(flips))
    )
    for i, (down, right) in enumerate(shifts.tolist()):
        left, top = 4 - right, 4 - down
        image = ImageOps.expand(Image.fromarray(images[i]), 4).crop((left, top, left + 7, top + 9))
        np.testing.assert_array_equal(
            got[i], np.asarray(ImageOps.mirror(image) if flips[i] else image)
        )


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from(SIDES),
)
def test_cut_out_puts_zeros_into_the_square_and_nothing_else(height, width, y, x, side):
    images, half = torch.ones(1, 3, height, width), side // 2
    got = image_ops.cut_out(images, torch.tensor([[y, x]]), torch.tensor([side]))
    expected = images.clone()
    expected[:, :, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 0
    assert torch.equal(got, expected)


# Policies.


def randaugment(count, magnitude, images=4000, seed=0):
    return RandAugment("n", "m").plan({"n": count, "m": magnitude}, images, stream(seed, "test"))


@pytest.mark.parametrize("count", range(5))
def test_randaugment_draws_so_many_different_operations_all_equally_often(count):
    plan = randaugment(count, 7)
    chosen = plan.operations
    assert ((chosen >= 0).sum(1) == count).all()
    assert (chosen[:, count:] == -1).all()
    assert (plan.magnitudes == 7).all()
    assert all(len(set(row[:count])) == count for row in chosen.tolist())
    for slot in range(count):
        np.testing.assert_allclose(
            np.bincount(chosen[:, slot], minlength=14) / len(chosen), 1 / 14, atol=0.015
        )


def test_more_operations_extend_fewer_ones():
    few, many = randaugment(2, 3).operations, randaugment(4, 9).operations
    np.testing.assert_array_equal(few[:, :2], many[:, :2])


def per_operation(images=20_000, **changed):
    space = PerOperation().space
    values = {name: domain.values[0] for name, domain in space.items()} | changed
    return PerOperation().plan(values, images, stream(0, "test"))


def test_per_operation_has_the_paper_number_of_variables():
    augmentation = Augmentation(PerOperation(), cutout=Cutout())
    # The weight of the loss is the 31st.
    assert len(augmentation.space) == 30
    assert all(len(domain.values) == 10 for domain in augmentation.space.values())
    assert [
        sum(name.endswith(part) for name in PerOperation().space)
        for part in ("_probability", "_magnitude")
    ] == [14, 11]
    assert list(augmentation.space["cutout_probability"].values) == pytest.approx(
        np.linspace(0, 1, 10)
    )
    assert len(Augmentation(RandAugment(), cutout=Cutout()).space) == 4


def test_per_operation_continues_with_the_probabilities_of_op():
    always = {f"{name}_probability": 1.0 for name in OPERATIONS}
    counts = (per_operation(op_1=0.8, op_2=0.5, op_3=0.25, **always).operations >= 0).sum(1)
    np.testing.assert_allclose(
        np.bincount(counts, minlength=4) / len(counts), [0.2, 0.4, 0.3, 0.1], atol=0.012
    )
    assert not (per_operation(op_1=0.0, op_2=1.0, op_3=1.0, **always).operations >= 0).any()


def test_per_operation_draws_from_all_and_applies_each_with_its_own_probability_and_magnitude():
    ops = {"op_1": 1.0, "op_2": 1.0, "op_3": 1.0}
    probabilities = {name: i / 13 for i, name in enumerate(OPERATIONS)}
    magnitudes = {
        f"{name}_magnitude": i % 10 for i, name in enumerate(OPERATIONS) if name in STRENGTHS
    }
    plan = per_operation(
        **ops, **magnitudes, **{f"{name}_probability": p for name, p in probabilities.items()}
    )
    for number, name in enumerate(OPERATIONS):
        here = plan.operations == number
        np.testing.assert_allclose(here.mean(0), probabilities[name] / 14, atol=0.006)
        assert set(plan.magnitudes[here]) <= {magnitudes.get(f"{name}_magnitude", 0)}
    twice = plan.operations[:, 0] == plan.operations[:, 1]
    # Operations are drawn with replacement.
    assert (twice & (plan.operations[:, 0] >= 0)).any()


def test_cutout_chooses_with_its_probability():
    sides = Cutout("p", "m").sides({"p": 0.3, "m": 9}, 20_000, stream(0, "test"))
    assert set(sides.tolist()) == {0, 20}
    assert (sides > 0).mean() == pytest.approx(0.3, abs=0.015)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"n": 5, "m": 1}, "'n' must be from 0 to 4, got 5"),
        ({"n": 1, "m": -1}, "'m' must be from 0 to 9"),
    ],
)
def test_values_outside_the_policys_range_are_errors(values, expected):
    with pytest.raises(ValueError, match=expected):
        RandAugment("n", "m").plan(values, 3, stream(0, "test"))


# The complete augmentation.

FULL = Augmentation(RandAugment(), cutout=Cutout())
STRONG = {
    "augment_count": 3,
    "augment_magnitude": 6,
    "cutout_probability": 0.5,
    "cutout_magnitude": 4,
}


def some_images(n=24, height=12, width=10, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (n, 3, height, width)).astype(np.uint8)
    )


def test_images_get_operations_then_crop_and_flip_then_numbers_then_squares():
    mean, deviation = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    augmentation = Augmentation(RandAugment(), cutout=Cutout(), mean=mean, deviation=deviation)
    images = some_images()
    draws = augmentation._draw(augment._key(images), list(STRONG.values()), images.shape)
    got, labels = augmentation((images, torch.arange(24)), STRONG)
    assert torch.equal(labels, torch.arange(24))
    for i in range(24):
        image = pixels(images)[i]
        for number, strength in zip(
            draws.operations[i].tolist(), draws.strengths[i].tolist(), strict=True
        ):
            image = by_pillow(OPERATIONS[number], image, strength) if number >= 0 else image
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        down, right = draws.shifts[i].tolist()
        image = padded[4 - down :, 4 - right :][:12, :10]
        image = image[:, ::-1] if draws.flips[i] else image
        numbers = (image / 255 - mean) / deviation
        (y, x), half = draws.centers[i].tolist(), int(draws.sides[i]) // 2
        numbers[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 0
        np.testing.assert_allclose(pixels(got)[i], numbers, atol=1e-5)
    assert draws.flips.any()
    assert not draws.flips.all()
    assert (draws.sides > 0).any()
    assert draws.shifts.min() == -4
    assert draws.shifts.max() == 4


def test_signs_are_drawn_for_moves_alone():
    images = some_images(400, 4, 4)
    values = {
        "augment_count": 4,
        "augment_magnitude": 6,
        "cutout_probability": 0,
        "cutout_magnitude": 0,
    }
    draws = FULL._draw(1, list(values.values()), images.shape)
    for number, name in enumerate(OPERATIONS):
        strengths = draws.strengths[draws.operations == number]
        expected = STRENGTHS.get(name, (0,) * 10)[6]
        assert set(strengths.tolist()) == ({expected, -expected} if name in MOVES else {expected})
        if name in MOVES:
            assert (strengths > 0).double().mean() == pytest.approx(0.5, abs=0.15)


def test_distances_shrink_with_the_images_and_nothing_else_does():
    shape, values = torch.Size([400, 3, 16, 16]), [4, 5, 1.0, 9]
    full, half = (replace(FULL, reach=reach)._draw(1, values, shape) for reach in (1.0, 0.5))
    assert torch.equal(half.operations, full.operations)
    moved = torch.isin(
        full.operations, torch.tensor([OPERATIONS.index(f"translate_{axis}") for axis in "xy"])
    )
    assert set(full.strengths[moved].tolist()) == {-17.0, 17.0}
    # 8.5 is rounded to even.
    assert set(half.strengths[moved].tolist()) == {-8.0, 8.0}
    assert torch.equal(half.strengths[~moved], full.strengths[~moved])
    assert (set(full.sides.tolist()), set(half.sides.tolist())) == ({20}, {10})
    assert sorted(set(half.shifts.flatten().tolist())) == list(range(-2, 3))
    with pytest.raises(
        ValueError,
        match=r"`reach` must be a positive number, such as 0.5 for images of 16 pixels, got 0",
    ):
        Augmentation(reach=0)


def test_without_a_policy_crop_flip_or_cutout_images_only_become_numbers():
    images = some_images()
    nothing = Augmentation(crop=0, flip=False)
    assert nothing.space == {}
    torch.testing.assert_close(nothing((images,), {})[0], images / 255, rtol=0, atol=1e-7)
    assert torch.equal(nothing((images,), {})[0], nothing.plain(images))
    still = Augmentation(RandAugment(), crop=0, flip=False, cutout=Cutout())
    off = {
        "augment_count": 0,
        "augment_magnitude": 9,
        "cutout_probability": 0.0,
        "cutout_magnitude": 9,
    }
    assert torch.equal(still((images,), off)[0], still.plain(images))
    mirrored = Augmentation(crop=0)((images,), {})[0]
    plain = nothing.plain(images)
    which = [
        (torch.equal(a, b), torch.equal(a, b.flip(-1)))
        for a, b in zip(mirrored, plain, strict=True)
    ]
    assert {(True, False), (False, True)} == set(which)


def test_floats_are_rounded_to_the_nearest_levels():
    images = some_images()
    for beside in (-0.4, 0.0, 0.4):
        assert torch.equal(FULL(((images + beside) / 255,), STRONG)[0], FULL((images,), STRONG)[0])


def test_places_are_drawn_from_the_whole_image_and_mirrors_only_where_asked():
    shape, values = torch.Size([500, 3, 12, 7]), [0, 0, 1.0, 9]
    draws = FULL._draw(1, values, shape)
    assert draws.centers.amin(0).tolist() == [0, 0]
    assert draws.centers.amax(0).tolist() == [11, 6]
    assert draws.flips.double().mean() == pytest.approx(0.5, abs=0.1)
    assert sorted(set(draws.shifts.flatten().tolist())) == list(range(-4, 5))
    other = Augmentation(RandAugment(), crop=2, flip=False, cutout=Cutout())._draw(1, values, shape)
    assert not other.flips.any()
    assert sorted(set(other.shifts.flatten().tolist())) == list(range(-2, 3))


def test_the_result_depends_only_on_the_batch_and_the_hyperparameters():
    images = some_images()
    first = FULL((images,), STRONG)[0]
    before = images.clone()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    state = torch.get_rng_state()
    assert torch.equal(FULL((images,), STRONG)[0], first)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(images, before)
    others = torch.cat([images[:12], some_images(12, seed=1)])
    assert not torch.equal(FULL((others,), STRONG)[0][:12], first[:12])
    swapped = images[[*range(12), *range(23, 11, -1)]]
    assert not torch.equal(FULL((swapped,), STRONG)[0][:12], first[:12])
    for name, value in {
        "augment_count": 1,
        "augment_magnitude": 2,
        "cutout_probability": 0.0,
        "cutout_magnitude": 9,
    }.items():
        assert not torch.equal(FULL((images,), STRONG | {name: value})[0], first), name


def test_mixed_precision_changes_nothing():
    images = some_images()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = FULL((images,), STRONG)[0]
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, FULL((images,), STRONG)[0])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("policy", [RandAugment(), PerOperation(), None])
def test_in_a_stack_each_member_gets_what_it_gets_alone(policy, shared):
    augmentation = Augmentation(policy, cutout=Cutout())
    values = [
        {n: float(d.decode(d.sample(stream(i, n)))) for n, d in augmentation.space.items()}
        for i in range(5)
    ]
    batches = [some_images(seed=0 if shared else i) for i in range(5)]
    stacked = {name: torch.tensor([v[name] for v in values]) for name in augmentation.space}
    images = batches[0] if shared else torch.stack(batches)
    of_member = torch.func.vmap(
        lambda x, hp: augmentation((x,), hp)[0], in_dims=(None if shared else 0, 0)
    )
    together = of_member(images, stacked)
    for own, batch, got in zip(values, batches, together, strict=True):
        assert torch.equal(augmentation((batch,), own)[0], got)
    assert len({got.sum().item() for got in together}) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"crop": -1}, "`crop` must be an integer of at least 0.*got -1"),
        ({"crop": 1.5}, "got 1.5"),
        ({"mean": (0, 0, 0)}, r"`mean` and `deviation` .* together, got \(0, 0, 0\) and None"),
    ],
)
def test_invalid_settings_are_errors(options, expected):
    with pytest.raises(ValueError, match=expected):
        Augmentation(**options)


# In a task.


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))


def make_task(augmentation, *, shared=False, space=None):
    images, labels = some_images(48, 8, 8), torch.arange(48) % 2
    return TorchTask(
        Small,
        loss=lambda model, batch, hp: F.cross_entropy(model(batch[0]), batch[1]),
        data=Batches(images, labels, batch_size=16, shared=shared, augment=augmentation),
        space=augmentation.space if space is None else space,
        objectives={"loss": "min"},
        optimizer=SGD(lr=0.1),
        metrics=lambda outputs, y: {"loss": F.cross_entropy(outputs, y)},
        validation=(augmentation.plain(images), labels),
        steps=4,
        interval=2,
        device="cpu",
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("policy", [RandAugment(), PerOperation()])
def test_loop_and_stack_train_the_same_members_and_read_every_hyperparameter(policy, shared):
    task = make_task(Augmentation(policy, cutout=Cutout()), shared=shared)
    task.check()
    task.check_stack()
    values = [
        {n: d.decode(d.sample(stream(i, n))) for n, d in task.space.items()} for i in range(3)
    ]
    members, seeds = [task.init(0)] * 3, [7, 8, 9]
    alone = [Hyperparameters(v) for v in values]
    one_by_one = [task.train(m, v, 2, 4, s) for m, v, s in zip(members, alone, seeds, strict=True)]
    together = [Hyperparameters(v) for v in values]
    stacked = task.train_many(members, together, [2] * 3, seeds)
    for read in (*alone, *together):
        read.check_read()
    for a, b in zip(one_by_one, stacked, strict=True):
        torch.testing.assert_close(a["model"], b["model"], rtol=1e-4, atol=2e-6)
    assert len({m["model"]["conv.weight"].sum().item() for m in stacked}) == 3


def test_a_policy_changes_what_a_member_learns():
    task = make_task(FULL)
    start = task.init(0)
    off = {
        "augment_count": 0,
        "augment_magnitude": 0,
        "cutout_probability": 0.0,
        "cutout_magnitude": 0,
    }
    calm, strong = task.train_many([start, start], [off, STRONG], [0, 0], [3, 3])
    assert not torch.allclose(
        calm["model"]["conv.weight"], strong["model"]["conv.weight"], atol=1e-4
    )


def test_a_hyperparameter_that_the_policy_does_not_read_is_an_error():
    task = make_task(FULL, space=FULL.space | {"beta": mopbt.Grid(0, 1, 3)})
    values = Hyperparameters(STRONG | {"beta": 0.5})
    task.train(task.init(0), values, 0, 2, 1)
    with pytest.raises(mopbt.errors.UnreadHyperparameter, match="beta"):
        values.check_read()
