"""Repair a damaged journal: reconstruct lost lines from the lines around them.

A scheduler is pure, so lost jobs are the jobs that it asks for again. Lost reports become failures,
because their metrics cannot be recovered. If their checkpoints are still stored, later jobs can
start from them. All other lines stay as they are.
"""

from collections.abc import Callable, Sequence

from mopbt.errors import CorruptJournal
from mopbt.history import LOST_REPORT, History
from mopbt.problem import Problem
from mopbt.schedulers.base import Scheduler, extend_scheduler
from mopbt.state import Job, Report, State
from mopbt.stores.base import Exchange

ChecksumOf = Callable[[int], str]


def repair_journal(
    lines: Sequence[Exchange | None],
    problem: Problem,
    scheduler: Scheduler,
    seed: int,
    *,
    checksum_of: ChecksumOf | None = None,
) -> list[Exchange]:
    """Replace the damaged lines of a journal (None) by what they must have held.

    `checksum_of` returns the checksum of a checkpoint as it is stored, or an empty string. Without
    it, all checkpoints count as stored, and those of lost reports are not used.
    """
    history = History(problem)
    repaired = []
    for number, line in enumerate(lines, 1):
        exchange = line
        if exchange is None:
            current = extend_scheduler(scheduler, history.extension)
            state = history.state(current, seed)
            later = [known for known in lines[number:] if known is not None]
            exchange = _lost_jobs(state, later, current)
            exchange = exchange or _lost_reports(state, later, checksum_of)
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


def _lost_reports(
    state: State, later: Sequence[Exchange], checksum_of: ChecksumOf | None
) -> Exchange:
    """Return failures for the outstanding jobs that must have reported in a lost line.

    These have no later report, but a later job of the same trial, or one that starts from them, or
    they cannot be repeated, because what they started from was removed after they had reported.
    """
    reported = {report.job for exchange in later for report in exchange.reports}
    continued = {job.trial for exchange in later for job in exchange.jobs}
    starts = {start for exchange in later for job in exchange.jobs for start in job.starts}
    failures = []
    for job in state.outstanding.values():
        if job.id in reported:
            continue
        is_followed = job.trial in continued or job.id in starts
        if is_followed or not _can_be_repeated(job, checksum_of):
            checksum = "" if checksum_of is None else checksum_of(job.id)
            failures.append(Report(job.id, checksum=checksum, error=LOST_REPORT))
    return Exchange(reports=tuple(failures))


def _can_be_repeated(job: Job, checksum_of: ChecksumOf | None) -> bool:
    return checksum_of is None or all(map(checksum_of, job.starts))
