"""How many workers share a device and how many members they stack: a pure policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

# A stack, or another worker on a device, must give so many times the speed to be chosen.
WORTH = 1.2
# Gradients of a stack and of a loop may differ by this much, relative to the largest.
AGREEMENT = 1e-3
# The share of free memory that training may take.
USABLE = 0.8
# Memory that each process takes on a device before it has computed anything.
CONTEXT_BYTES = 2**29
# At most so many workers share a device.
MOST_SHARING = 4


@dataclass(frozen=True)
class DeviceTrial:
    """What a short trial on one device measured.

    Attributes:
        updates: Seconds of an update of a member alone in its worker, by the number of workers
            that share the device and train at the same time.
        bytes_alone: Memory on the device of a member alone in its worker.
        stacked: Seconds per update of a member in a stack; infinity if there are no stacks.
        bytes_stacked: Memory on the device of each member of a stack.
        no_stack: Why there are no stacks; empty if there are.
    """

    updates: Mapping[int, float]
    bytes_alone: float
    stacked: float = math.inf
    bytes_stacked: float = 0.0
    no_stack: str = ""


@dataclass(frozen=True)
class Placement:
    """How a population uses its devices: workers per device, members per stack, why."""

    workers_per_device: int
    stack: int
    why: str


def choose_placement(
    trial: DeviceTrial, *, devices: int, free: float, cores: int, population: int
) -> Placement:
    """Choose stacks if they pay and fit into memory, otherwise several workers.

    Args:
        trial: What was measured on one of the devices.
        devices: The number of devices.
        free: Free memory of the fullest device, in bytes.
        cores: The cores of the machine; each worker needs one.
        population: The number of members that train at the same time.
    """
    members = math.ceil(population / devices)
    most = most_sharing(trial, devices=devices, free=free, cores=cores, population=population)
    sharing = _choose_sharing(trial.updates, most)
    speed = sharing / trial.updates[sharing]
    gain = 1 / trial.stacked / speed
    fitting = int((USABLE * free - CONTEXT_BYTES) // max(trial.bytes_stacked, 1.0))
    stack = _even(members, min(fitting, members))
    if gain >= WORTH and stack >= 2:
        why = f"a stack on a device trains {gain:.2f} times as fast as separate members"
        return Placement(1, stack, why)
    why = _explain_no_stack(trial, gain, members, fitting)
    if trial.bytes_alone + CONTEXT_BYTES > free:
        need = (trial.bytes_alone + CONTEXT_BYTES) / 2**30
        have = f"a device has {free / 2**30:.1f} GiB free"
        return Placement(1, 1, f"{why}; one member needs about {need:.1f} GiB, but {have}")
    if sharing > 1:
        gained = speed * trial.updates[1]
        why += f"; {sharing} workers on a device train {gained:.2f} times as fast as one"
    return Placement(sharing, 1, why)


def most_sharing(
    trial: DeviceTrial, *, devices: int, free: float, cores: int, population: int
) -> int:
    """Return how many workers may share a device.

    The memory, the cores and the population limit them.
    """
    fitting = int(USABLE * free // (trial.bytes_alone + CONTEXT_BYTES))
    members = math.ceil(population / devices)
    return max(min(fitting, cores // devices, members, MOST_SHARING), 1)


def is_worth_sharing(updates: Mapping[int, float], fewer: int, more: int) -> bool:
    """Return whether `more` workers on a device train enough faster than `fewer`."""
    return more / updates[more] >= WORTH * fewer / updates[fewer]


def _choose_sharing(updates: Mapping[int, float], most: int) -> int:
    chosen = 1
    for sharing in sorted(updates):
        if 1 < sharing <= most and is_worth_sharing(updates, chosen, sharing):
            chosen = sharing
    return chosen


def _even(members: int, largest: int) -> int:
    """Return the size of equal stacks of at most `largest` members; 0 if none fits."""
    if largest < 1:
        return 0
    return math.ceil(members / math.ceil(members / largest))


def _explain_no_stack(trial: DeviceTrial, gain: float, members: int, fitting: int) -> str:
    if members < 2:
        return "there is one member for each device"
    if trial.no_stack:
        return trial.no_stack
    if gain < WORTH:
        return f"a stack trains only {gain:.2f} times as fast as separate members"
    need = f"{trial.bytes_stacked / 2**30:.1f} GiB"
    return f"a stack has no room for two members of {need} on a device"
