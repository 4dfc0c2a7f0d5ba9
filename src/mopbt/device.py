"""The device that an engine assigned to this process.

Tasks that compute on accelerators use it.
"""

# A device belongs to a process, not to a run: a worker keeps it from its start to its end.
_assigned = [""]


def assign_device(name: str) -> None:
    """Set the device of this process, such as "cuda:0"; an empty string removes it."""
    _assigned[0] = name


def assigned_device() -> str:
    """Return the device that an engine assigned to this process, or an empty string.

    The name is valid in this process, whose environment may hide the other devices.
    """
    return _assigned[0]
