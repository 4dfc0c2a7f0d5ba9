"""A damaged journal made good: what a lost line said is worked out from the lines around it.

Jobs that were ordered are ordered again, as the scheduler is pure. Reports that are lost are entered as failures: their scores are
gone, but what came after them stands.
"""

from collections.abc import Sequence

from mopbt.errors import CorruptJournal
from mopbt.schedulers.base import Scheduler
from mopbt.state import Report, State, with_jobs
from mopbt.stores.base import Exchange


def repair_journal(
    lines: Sequence[Exchange | None], scheduler: Scheduler, seed: int
) -> list[Exchange]:
    """Return the exchanges of a journal, those that are lost (None) replaced by what must have stood there."""
    state, whole = State(seed), []
    for number, line in enumerate(lines, 1):
        later = [exchange for exchange in lines[number:] if exchange is not None]
        exchange = (
            line
            if line is not None
            else _jobs_lost(state, later, scheduler) or _reports_lost(state, later)
        )
        try:
            state = _folded(state, exchange, scheduler)
        except (KeyError, IndexError):
            raise CorruptJournal(
                f"line {number} of the journal does not fit those before it; too much is lost to go on"
            ) from None
        whole.append(exchange)
    return [exchange for exchange in whole if exchange != Exchange()]


def _jobs_lost(state: State, later: Sequence[Exchange], scheduler: Scheduler) -> Exchange | None:
    """Return the jobs whose numbers are missing, if the scheduler orders just these now."""
    ordered_later = [job.id for exchange in later for job in exchange.jobs]
    reported_later = [report.job for exchange in later for report in exchange.reports]
    next_known = min(ordered_later) if ordered_later else max(reported_later, default=-1) + 1
    missing = next_known - state.jobs
    jobs = scheduler.ask(state, missing) if missing > 0 else ()
    return Exchange(jobs=jobs) if jobs and len(jobs) == missing else None


def _reports_lost(state: State, later: Sequence[Exchange]) -> Exchange:
    """Return failures for the jobs that never report though their trials go on, or other jobs start from what they trained."""
    reported = {report.job for exchange in later for report in exchange.reports}
    goes_on = {job.trial for exchange in later for job in exchange.jobs}
    starts = {job.start for exchange in later for job in exchange.jobs}
    needed = [
        job.id for job in state.outstanding.values() if job.trial in goes_on or job.id in starts
    ]
    lost = [job for job in needed if job not in reported]
    return Exchange(
        reports=tuple(
            Report(job, error="its report stood in a damaged line of the journal") for job in lost
        )
    )


def _folded(state: State, exchange: Exchange, scheduler: Scheduler) -> State:
    state = with_jobs(state, exchange.jobs) if exchange.jobs else state
    for report in exchange.reports:
        state = scheduler.tell(state, report)
    return state
