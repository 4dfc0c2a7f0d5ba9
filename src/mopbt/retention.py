"""Which models of a front keep their weights on disk, if their number is limited."""

from mopbt.archive import Archive, Entry
from mopbt.history import History
from mopbt.ranking import scattered_order
from mopbt.stores.base import Checkpoints


class Retention:
    """The models of a front that keep their weights, at most `keep` of them.

    They follow from the reports in the order of the journal, so a resumed run keeps the same. A
    report that enters a full selection displaces the model that the scattered order puts last.
    What was displaced does not return, because its weights may be gone.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._archive = Archive()
        self._kept: list[Entry] = []
        self._read = 0

    def follow(self, history: History) -> frozenset[int]:
        """Read new reports, and return the jobs whose models keep their weights."""
        reports = history.reports
        for row in range(self._read, len(reports)):
            if history.is_finite(row):
                entry = Entry(reports.job(row), reports.bounds_of(row), reports.violation(row))
                self._enter(entry)
        self._read = len(reports)
        return frozenset(entry.job for entry in self._kept)

    def _enter(self, entry: Entry) -> None:
        before = self._archive.front
        self._archive.enter(entry)
        front = self._archive.front
        if front is before:
            return
        on_front = {member.job for member in front}
        kept = [member for member in (*self._kept, entry) if member.job in on_front]
        if len(kept) > self._keep:
            # Scaled, because the ranges of objectives may differ by orders of magnitude.
            order = scattered_order([member.objectives for member in kept], scale=True)
            del kept[order[-1]]
        self._kept = kept


def models_with_weights(history: History, keep: int | None) -> frozenset[int]:
    """Return the jobs of a front whose models keep their weights.

    All do if `keep` is None.
    """
    if keep is not None:
        return Retention(keep).follow(history)
    return frozenset(entry.job for entry in (*history.front, *history.pessimistic_front))


def models_without_weights(
    history: History, keep: int | None, checkpoints: Checkpoints
) -> frozenset[int]:
    """Return the models that should keep their weights, but lost them before a repair.

    If the report of a model was lost, those that it had displaced from the front are back on it,
    and their weights may have been removed.
    """
    if not history.has_lost_reports:
        return frozenset()
    return models_with_weights(history, keep) - checkpoints.kept()
