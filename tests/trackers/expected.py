"""What a log must contain, computed from the records of a run."""

from collections import defaultdict

from mopbt.trackers.base import evaluations_of


def expected_curves(results, branch_name):
    """Return the metrics of a branch by step, and the donor's at the step of the fork."""
    curves = defaultdict(dict)
    for e in evaluations_of(results):
        if e.branch.name != branch_name:
            continue
        if e.is_first and e.branch.fork:
            for name, score in e.branch.fork.scores.items():
                curves[name][e.branch.fork.step] = score
        for name, score in e.scores.items():
            curves[name][e.step] = score
    return curves


def branches(results):
    return {e.branch.name: e.branch for e in evaluations_of(results)}
