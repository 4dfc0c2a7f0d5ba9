"""Any one line of a journal may be damaged: the run resumes and keeps its models."""

import shutil
from dataclasses import replace

import pytest

from mopbt import MOPBT, Budget, Results, run
from mopbt.engines.simulated import SimulatedEngine
from mopbt.errors import CorruptJournal, RunMismatch
from mopbt.evaluations import read_evaluations
from mopbt.history import LOST_REPORT, History
from mopbt.problem import problem_of
from mopbt.repair import repair_journal
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run_config
from mopbt.runner import execute_run
from mopbt.stores.journal import read_damaged
from mopbt.tasks.toy import ToyTask
from mopbt.verify import verify

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


class RowsToy(ToyTask):
    """A toy with test rows, on which the front is measured at the end of a run."""

    @property
    def rows(self):
        return ("test",)

    def evaluate_rows(self, model, hp, step, rows, seed):
        return self.evaluate(model)


def damage(out, place):
    journal = out / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[place] = lines[place].replace(b'"', b"?", 1)
    journal.write_bytes(b"".join(lines))


def repair(task, out, algorithm, engine="local", progress=False):
    settings = read_run_config(out)
    options = {"engine": engine, "progress": progress, "budget": Budget()}
    return execute_run(task, algorithm, settings, out=out, repair=True, **options)


def test_jobs_start_from_models_whose_reports_were_lost(tmp_path):
    """Before, all of them failed, because nothing recorded the checksums of these models."""
    algorithm = MOPBT(population=5)
    options = {"algorithm": algorithm, "engine": SimulatedEngine(5), "progress": False}
    run(TASK, out=tmp_path, budget=Budget(seconds=5), **options)
    lines = read_damaged(tmp_path / "journal.jsonl")
    assert [len(line.jobs) or -len(line.reports) for line in lines] == [5, -5, 5, -5, 5, 0]
    damage(tmp_path, 3)
    results = repair(TASK, tmp_path, algorithm, SimulatedEngine(5))
    assert results.done
    assert sorted(results.history.reports.failures().values()) == [LOST_REPORT] * 5
    # The checksums are recorded, so that a model that is damaged later is noticed.
    repaired = read_damaged(tmp_path / "journal.jsonl")[3].reports
    assert [r.checksum for r in repaired] == [r.checksum for r in lines[3].reports]
    assert verify(tmp_path).findings == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "measured"
    algorithm = MOPBT(population=4)
    options = {"algorithm": algorithm, "engine": "local", "progress": False}
    return run(RowsToy(steps=6), out=out, **options), algorithm


def test_a_model_that_a_lost_report_had_displaced_may_be_without_weights(
    measured, tmp_path, capsys
):
    """Before, the run could never be completed: its last evaluation always failed."""
    results, algorithm = measured
    places = [n for n, line in enumerate(read_damaged(results.path / "journal.jsonl")) if n % 2]
    for place in places[:-1]:
        out = tmp_path / str(place)
        shutil.copytree(results.path, out)
        damage(out, place)
        again = repair(RowsToy(steps=6), out, algorithm, progress=True)
        assert again.done
        printed = capsys.readouterr().err
        lost = again.lost_models()
        on_front = {point.model for point in again.front()}
        assert again.models_with_weights() == on_front - lost
        assert {e.model for e in read_evaluations(out)} >= on_front - lost
        verified = verify(out)
        assert verified.ok
        if lost:
            break
    assert f"model {min(lost)} is on the front again without weights" in str(verified.findings)
    assert f"no weights: of model {min(lost)}" in " ".join(printed.split())
    assert again.replay(min(lost), RowsToy(steps=6)).differences == {"near": 0.0, "far": 0.0}


def test_a_job_whose_start_was_removed_after_its_report_is_not_repeated(measured, tmp_path):
    """Before, it failed as if its checkpoint had been damaged."""
    results, algorithm = measured
    lines = read_damaged(results.path / "journal.jsonl")
    jobs = [job for line in lines for job in line.jobs]
    kept = results.checkpoints.kept()
    lost = next(job for job in jobs if job.end == 6 and job.start not in kept)
    place = next(n for n, line in enumerate(lines) if lost.id in [r.job for r in line.reports])
    shutil.copytree(results.path, tmp_path / "run")
    damage(tmp_path / "run", place)
    again = repair(RowsToy(steps=6), tmp_path / "run", algorithm)
    assert list(again.history.reports.failures().values()) == [LOST_REPORT]
    assert again.history.report(lost.id).checksum == results.history.report(lost.id).checksum


def test_without_checksums_all_checkpoints_count_as_stored(measured):
    results, algorithm = measured
    lines = read_damaged(results.path / "journal.jsonl")
    problem = problem_of(RowsToy(steps=6))
    scheduler = algorithm.scheduler(problem)
    damaged = [*lines[:-3], None, *lines[-2:]]
    assert repair_journal(damaged, problem, scheduler, 0) == [*lines[:-3], *lines[-2:]]
    repaired = repair_journal(damaged, problem, scheduler, 0, checksum_of=lambda job: "")
    assert repaired[-3].reports[0].error == LOST_REPORT
    assert repair_journal(damaged, problem, scheduler, 0, checksum_of=str) == [
        *lines[:-3],
        *lines[-2:],
    ]
