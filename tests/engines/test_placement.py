"""The policy of placement, over machines and models that this machine does not have."""

import itertools
import math

import pytest

from mopbt.engines.placement import (
    CONTEXT_BYTES,
    MOST_SHARING,
    USABLE,
    DeviceTrial,
    choose_placement,
    most_sharing,
)

GIB = 2**30


def trial_of(parameters, **options):
    """Return what a trial would measure on a GPU with 10 Tflop/s whose kernels take 2 ms.

    An update of 64 rows costs 6 flops per parameter and row. The state is 4 numbers of 4 bytes per
    parameter. Kernels of a small model leave most of the GPU idle.
    """
    busy = 6 * 64 * parameters / 1e13
    alone = max(0.002, busy)
    updates = {n: max(alone, n * busy) for n in (1, 2, 4)}
    stacked = max(0.002 / 16, busy)
    size = 16 * parameters + 50e6
    return DeviceTrial(**{"updates": updates, "bytes_alone": size, "stacked": stacked} | options)


def place(parameters, *, devices=1, cores=16, free=80 * GIB, population=32, **options):
    trial = trial_of(parameters, bytes_stacked=16 * parameters + 50e6)
    size = {"devices": devices, "cores": cores, "free": free, "population": population}
    placement = choose_placement(trial, **size | options)
    return placement.workers_per_device, placement.stack


@pytest.mark.parametrize("cores", [8, 32, 128])
@pytest.mark.parametrize(
    ("parameters", "on_1", "on_4", "on_8"),
    [
        # Small models: one stack on each GPU, which holds its share of the population.
        (1e4, (1, 32), (1, 8), (1, 4)),
        (1e5, (1, 32), (1, 8), (1, 4)),
        (1e6, (1, 32), (1, 8), (1, 4)),
        (1e7, (1, 32), (1, 8), (1, 4)),
        # Large models keep a GPU busy alone.
        (1e8, (1, 1), (1, 1), (1, 1)),
        (1e9, (1, 1), (1, 1), (1, 1)),
    ],
)
def test_small_models_are_stacked_and_large_ones_have_a_gpu_of_their_own(
    parameters, on_1, on_4, on_8, cores
):
    chosen = [place(parameters, devices=devices, cores=cores) for devices in (1, 4, 8)]
    assert chosen == [on_1, on_4, on_8]


def place_unstackable(parameters, *, devices=1, cores=16, free=80 * GIB, population=32):
    size = {"devices": devices, "cores": cores, "free": free, "population": population}
    trial = trial_of(parameters, stacked=math.inf, no_stack="the model cannot be stacked")
    placement = choose_placement(trial, **size)
    assert placement.stack == 1
    return placement.workers_per_device


@pytest.mark.parametrize(
    ("parameters", "devices", "cores", "workers"),
    [
        # 2 ms of kernels leave room for others, up to the cores of each GPU.
        (1e5, 1, 8, 4),
        (1e5, 1, 128, 4),
        (1e5, 4, 8, 2),
        (1e5, 4, 128, 4),
        (1e5, 8, 8, 1),
        (1e5, 8, 16, 2),
        (1e5, 8, 128, 4),
        # Two of these fill a GPU.
        (2.6e7, 1, 8, 2),
        (2.6e7, 1, 128, 2),
        (2.6e7, 8, 8, 1),
        # One of these does.
        (1e8, 1, 128, 1),
        (1e9, 8, 128, 1),
    ],
)
def test_models_without_stacks_share_a_gpu_as_far_as_it_pays(parameters, devices, cores, workers):
    assert place_unstackable(parameters, devices=devices, cores=cores) == workers


def machines():
    for devices, cores, free, population in itertools.product(
        (1, 4, 8), (8, 16, 64, 128), (1 * GIB, 8 * GIB, 80 * GIB), (1, 8, 32, 500)
    ):
        yield {"devices": devices, "cores": cores, "free": free, "population": population}


@pytest.mark.parametrize("parameters", [1e4, 1e5, 1e6, 1e7, 1e8, 1e9])
def test_no_placement_has_more_workers_than_cores_or_more_members_than_memory(parameters):
    for size in machines():
        check_limits(parameters, **size)


def check_limits(parameters, *, devices, cores, free, population):
    size = {"devices": devices, "cores": cores, "free": free, "population": population}
    workers = place_unstackable(parameters, **size)
    bytes_alone = 16 * parameters + 50e6 + CONTEXT_BYTES
    assert 1 <= workers <= MOST_SHARING
    assert workers == 1 or workers * devices <= cores
    assert workers == 1 or workers * bytes_alone <= USABLE * free
    assert workers <= max(math.ceil(population / devices), 1)
    one, stack = place(parameters, **size)
    if stack > 1:
        assert one == 1
        assert stack * (16 * parameters + 50e6) + CONTEXT_BYTES <= USABLE * free
        assert stack <= math.ceil(population / devices)


def test_a_stack_that_does_not_fit_is_divided_evenly():
    trial = DeviceTrial({1: 1.0}, GIB, stacked=0.1, bytes_stacked=GIB)
    size = {"devices": 1, "cores": 8, "population": 32}
    # 0.8 * 16 GiB less the context hold 12 members, so 32 are divided into 3 stacks.
    assert choose_placement(trial, free=16 * GIB, **size).stack == 11
    assert choose_placement(trial, free=1000 * GIB, **size).stack == 32
    nothing_fits = choose_placement(trial, free=2 * GIB, **size)
    assert (nothing_fits.stack, nothing_fits.workers_per_device) == (1, 1)
    assert "no room for two members of 1.0 GiB" in nothing_fits.why


def test_a_stack_must_beat_the_workers_that_would_share_the_device():
    size = {"devices": 1, "cores": 8, "free": 80 * GIB, "population": 32}
    trial = DeviceTrial({1: 1.0, 2: 1.0, 4: 1.0}, GIB, stacked=0.3, bytes_stacked=GIB)
    placement = choose_placement(trial, **size)
    assert (placement.workers_per_device, placement.stack) == (4, 1)
    assert placement.why == (
        "a stack trains only 0.83 times as fast as separate members; "
        "4 workers on a device train 4.00 times as fast as one"
    )


def test_a_member_that_does_not_fit_is_said():
    trial = DeviceTrial({1: 1.0}, 30 * GIB)
    size = {"devices": 4, "free": 24 * GIB, "cores": 16, "population": 4}
    placement = choose_placement(trial, **size)
    assert placement.workers_per_device == most_sharing(trial, **size) == 1
    assert "one member needs about 30.5 GiB, but a device has 24.0 GiB free" in placement.why
