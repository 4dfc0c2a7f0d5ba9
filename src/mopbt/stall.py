"""Decide when a run has stalled: its hypervolume grows by less than its error."""

from mopbt.history import History
from mopbt.metrics import hypervolume
from mopbt.rng import stream
from mopbt.uncertainty import hypervolume_error


def stalled_generations(history: History, generation: int) -> int:
    """Return for how many generations the hypervolume has not grown.

    Growth within its error does not count.

    It follows from the journal alone, so it is the same after a resume. A run does not stall before
    its hypervolume is positive.

    Args:
        history: The history of the run.
        generation: How many reports make a generation.
    """
    reports = history.reports
    last = len(reports) // generation
    if last < 2:
        return 0
    # Reports of an unfinished generation do not count.
    rows = history.milestones()
    rows = rows[rows < last * generation]
    values = reports.objectives()[rows]
    reference = history.reference()
    now = hypervolume(values, reference) if len(rows) else 0.0
    if now == 0:
        return 0
    rng = stream(0, "stall", last)
    error = hypervolume_error(values, reports.stderrs()[rows], reference, rng)
    stalled = 0
    while stalled < last - 1:
        before = values[rows < (last - stalled - 1) * generation]
        volume = hypervolume(before, reference) if len(before) else 0.0
        if now - volume > error:
            break
        stalled += 1
    return stalled
