"""Any one line of a journal may be damaged: the run resumes and keeps its models."""

import shutil
from dataclasses import replace

import pytest

from mopbt import MOPBT, Budget, Results, run
from mopbt.errors import CorruptJournal, RunMismatch
from mopbt.history import History
from mopbt.problem import problem_of
from mopbt.repair import repair_journal
from mopbt.run_config import RunConfig
from mopbt.runner import execute_run
from mopbt.stores.journal import read_damaged
from mopbt.tasks.toy import ToyTask

TASK = ToyTask(steps=8)


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def complete(request, tmp_path_factory):
    algorithm = MOPBT(population=5, asynchronous=request.param)
    return run(
        TASK,
        out=tmp_path_factory.mktemp("runs") / "complete",
        algorithm=algorithm,
        engine="local",
        progress=False,
    ), algorithm


def scheduler_of(algorithm):
    return algorithm.scheduler(problem_of(TASK))


def test_lost_jobs_are_asked_for_again_and_lost_reports_become_failures(complete):
    results, algorithm = complete
    lines = read_damaged(results.path / "journal.jsonl")
    for place in range(len(lines) - 1):
        damaged = [*lines[:place], None, *lines[place + 1 :]]
        repaired = repair_journal(damaged, problem_of(TASK), scheduler_of(algorithm), 0)
        if lines[place].jobs:
            assert repaired == lines
            continue
        assert [line for line in repaired if line not in lines] == (
            [repaired[place]] if len(repaired) == len(lines) else []
        )
        later = [job for line in lines[place + 1 :] for job in line.jobs]
        continued, starts = {job.trial for job in later}, {job.start for job in later}
        trials = {job.id: job.trial for line in lines for job in line.jobs}
        needed = {
            r.job for r in lines[place].reports if trials[r.job] in continued or r.job in starts
        }
        assert {
            report.job for line in repaired for report in line.reports if report.error
        } == needed


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_was_stopped_anywhere_can_be_read_after_its_repair(tmp_path, asynchronous):
    """Also if a lost report is that of a donor whose own trial has no later job."""
    algorithm = MOPBT(population=5, asynchronous=asynchronous)
    for jobs in range(5, 20, 2):
        out = tmp_path / str(jobs)
        run(
            TASK,
            out=out,
            algorithm=algorithm,
            engine="local",
            progress=False,
            budget=Budget(jobs=jobs),
        )
        lines = read_damaged(out / "journal.jsonl")
        for place in range(len(lines)):
            repaired = repair_journal(
                [*lines[:place], None, *lines[place + 1 :]],
                problem_of(TASK),
                scheduler_of(algorithm),
                0,
            )
            History(problem_of(TASK)).extend(line.to_json() for line in repaired)


def test_a_repair_with_another_task_touches_nothing(complete, tmp_path):
    results, algorithm = complete
    shutil.copytree(results.path, tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"', b"?", 1))
    before = journal.read_bytes()
    other = ToyTask(steps=10)
    settings = RunConfig.from_toml((results.path / "run.toml").read_text(), results.path)
    settings = replace(settings, problem=problem_of(other))
    with pytest.raises(RunMismatch, match="steps is 10, it was 8"):
        execute_run(
            other,
            algorithm,
            settings,
            out=tmp_path / "run",
            repair=True,
            engine="local",
            progress=False,
            budget=Budget(),
        )
    assert journal.read_bytes() == before
    assert not (tmp_path / "run" / "journal.damaged-1").exists()


def test_a_run_without_its_journal_does_not_restart(complete, tmp_path):
    results, algorithm = complete
    shutil.copytree(results.path, tmp_path / "run")
    (tmp_path / "run" / "journal.jsonl").unlink()
    with pytest.raises(
        CorruptJournal,
        match="run has a run.toml but no journal.jsonl; restore it, or use another directory",
    ):
        run(TASK, out=tmp_path / "run", algorithm=algorithm, engine="local", progress=False)


def test_several_lost_lines(complete):
    results, algorithm = complete
    lines = read_damaged(results.path / "journal.jsonl")
    damaged = [None if i in (3, 4, 11, 20, 21) else line for i, line in enumerate(lines)]
    repaired = repair_journal(damaged, problem_of(TASK), scheduler_of(algorithm), 0)
    jobs = sorted(job.id for line in repaired for job in line.jobs)
    reports = sorted(report.job for line in repaired for report in line.reports)
    assert jobs == list(range(20))
    assert len(reports) == len(set(reports))


def test_a_journal_with_too_many_lost_lines_is_an_error(complete):
    results, algorithm = complete
    lines = read_damaged(results.path / "journal.jsonl")
    with pytest.raises(
        CorruptJournal, match="line 1 of the journal does not follow .*too much is lost"
    ):
        repair_journal(lines[7:], problem_of(TASK), scheduler_of(algorithm), 0)


@pytest.mark.parametrize("place", [0, 1, 9, 20, 33])
def test_a_repaired_run_keeps_its_models_and_resumes(complete, tmp_path, place):
    results, algorithm = complete
    shutil.copytree(results.path, tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[place] = lines[place].replace(b'"', b"?", 1)
    journal.write_bytes(b"\n".join(lines))
    before = {point.model for point in results.front()}
    settings = RunConfig.from_toml((results.path / "run.toml").read_text(), results.path)
    options = {"engine": "local", "progress": False, "budget": Budget()}
    again = execute_run(TASK, algorithm, settings, out=tmp_path / "run", repair=True, **options)
    assert again.done
    assert len(again) == 20
    kept = {point.model for point in again.front()}
    # At most the model of the lost report.
    assert len(before - kept) <= 1
    for point in again.front():
        assert (
            again.checkpoint(point) == results.checkpoint(point.model) or point.model not in before
        )
    assert isinstance(Results.open(tmp_path / "run"), Results)
