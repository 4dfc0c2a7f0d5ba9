"""A small program of a user, which `tools/release.py` checks with `mypy --strict`."""

from collections.abc import Sequence
from pathlib import Path

import mopbt
from mopbt.state import Report


def train(m: mopbt.Member) -> None:
    """Move a number toward a target."""
    state = {"x": 0.0}
    m.track(state=state)
    rate = float(m.hp["rate"])
    for _ in m.steps():
        state["x"] += rate * (float(m.hp["target"]) - state["x"])
    m.report(zero=abs(state["x"]), one=abs(state["x"] - 1))


class Stop(mopbt.Callback):
    """Stop after a number of reports."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_report(self, run: mopbt.Results, reports: Sequence[Report]) -> None:
        """Raise StopRun at the limit."""
        self.limit -= len(reports)
        if self.limit <= 0:
            raise mopbt.StopRun


def best(out: Path) -> dict[str, float]:
    """Train a population and return the metrics of the chosen model."""
    results: mopbt.Results = mopbt.run(
        train,
        space={"target": mopbt.Grid(0, 1, 11), "rate": mopbt.LogGrid(0.01, 1, 10)},
        objectives={"zero": "min", "one": "min"},
        algorithm=mopbt.MOPBT(population=8),
        steps=8,
        interval=2,
        out=out,
        callbacks=[Stop(100)],
    )
    point: mopbt.Point = results.front().where("zero <= 0.9").best("one")
    return dict(point.scores)


if __name__ == "__main__":
    print(best(Path("runs/typed")))
