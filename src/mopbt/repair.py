"""Repair a damaged journal: reconstruct lost lines from the lines around them.

A scheduler is pure, so lost jobs are the jobs that it asks for again. Lost reports become failures,
because their metrics cannot be recovered. All other lines stay as they are.
"""

from collections.abc import Sequence

from mopbt.errors import CorruptJournal
from mopbt.history import History
from mopbt.problem import Problem
from mopbt.schedulers.base import Scheduler, extend_scheduler
from mopbt.state import Report, State
from mopbt.stores.base import Exchange


def repair_journal(
    lines: Sequence[Exchange | None], problem: Problem, scheduler: Scheduler, seed: int
) -> list[Exchange]:
    """Replace the damaged lines of a journal (None) by what they must have held."""
    history = History(problem)
    repaired = []
    for number, line in enumerate(lines, 1):
        exchange = line
        if exchange is None:
            current = extend_scheduler(scheduler, history.extension)
            state = history.state(current, seed)
            later = [known for known in lines[number:] if known is not None]
            exchange = _lost_jobs(state, later, current) or _lost_reports(state, later)
        if exchange == Exchange():
            continue
        try:
            history.append(exchange)
        except CorruptJournal:
            raise CorruptJournal(
                f"line {number} of the journal does not follow from the lines before it; too much "
                "is lost to repair the run: restore a copy of the journal, or start a new run"
            ) from None
        repaired.append(exchange)
    return repaired


def _lost_jobs(state: State, later: Sequence[Exchange], scheduler: Scheduler) -> Exchange | None:
    """Return the jobs with missing ids, if the scheduler asks for that many."""
    later_jobs = [job.id for exchange in later for job in exchange.jobs]
    later_reports = [report.job for exchange in later for report in exchange.reports]
    next_known = min(later_jobs) if later_jobs else max(later_reports, default=-1) + 1
    missing = next_known - state.jobs
    jobs = scheduler.ask(state, missing) if missing > 0 else ()
    return Exchange(jobs=jobs) if jobs and len(jobs) == missing else None


def _lost_reports(state: State, later: Sequence[Exchange]) -> Exchange:
    """Return failures for the outstanding jobs that must have reported in a lost line.

    These have no later report, but a later job of the same trial, or one that starts from them.
    """
    reported = {report.job for exchange in later for report in exchange.reports}
    continued = {job.trial for exchange in later for job in exchange.jobs}
    starts = {job.start for exchange in later for job in exchange.jobs}
    failures = []
    for job in state.outstanding.values():
        if job.id not in reported and (job.trial in continued or job.id in starts):
            failures.append(Report(job.id, error="its report was in a damaged line of the journal"))
    return Exchange(reports=tuple(failures))
