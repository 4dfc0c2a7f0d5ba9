"""Conformance suites for custom schedulers, tasks, engines and stores.

A suite is a class with `test_` methods. Inherit it in a test module, override `make` so that it
returns the object under test, and run pytest.
"""

import io
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mopbt.engines.base import Engine, EvaluationJob, RunContext
from mopbt.engines.execution import check_scores
from mopbt.engines.seeding import global_seeds
from mopbt.errors import CorruptCheckpoint
from mopbt.objectives import signed
from mopbt.problem import (
    Hyperparameters,
    Problem,
    ReducibleTask,
    RowsTask,
    StreamingTask,
    Task,
    problem_of,
    rows_of,
)
from mopbt.rng import stream
from mopbt.schedulers.base import Scheduler, extend_scheduler, extendable_by
from mopbt.serialization import rewrite
from mopbt.state import Job, Report, State, required_checkpoints, with_jobs
from mopbt.stores.base import Exchange, Store, checksum_of
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.toy import FailingToy, RowsToy, ToyTask


class SchedulerConformance:
    """Check what a run relies on in every scheduler. Override `make`."""

    problem = problem_of(ToyTask(steps=6))

    def make(self) -> Scheduler:
        """Return the scheduler under test, for `self.problem`.

        Choose settings with which it finishes within 2,000 jobs.
        """
        raise AssertionError(f"{type(self).__name__} must override `make` to return a scheduler")

    def answer(self, job: Job, seed: int) -> Report:
        """Return a report of the job with random objectives."""
        values = stream(seed, "answer", job.id).random(len(self.problem.objectives))
        return Report(job.id, tuple(float(v) for v in values), checksum="0")

    def play(
        self, slots: int, *, seed: int = 0, fails: Iterable[int] = (), nans: Iterable[int] = ()
    ) -> list[State]:
        """Simulate a run with `slots` jobs at a time and check each step of it.

        Args:
            slots: How many jobs are outstanding at most.
            seed: Random seed of the run.
            fails: Ids of the jobs that fail.
            nans: Ids of the jobs that report NaN.

        Returns:
            All states of the run, the first one empty.
        """
        return self._play_on(self.make(), slots, State(seed), fails, nans)

    def _play_on(
        self,
        scheduler: Scheduler,
        slots: int,
        state: State,
        fails: Iterable[int],
        nans: Iterable[int],
    ) -> list[State]:
        seed = state.seed
        failing = set(fails)
        diverging = set(nans)
        states = [state]
        while not scheduler.done(state):
            free = slots - len(state.outstanding)
            jobs = scheduler.ask(state, free)
            self._check_jobs(state, jobs, free)
            assert jobs == scheduler.ask(state, free), (
                "`ask` returned other jobs for the same state"
            )
            assert jobs or state.outstanding, (
                "`ask` returned no jobs although none is outstanding and `done` is False"
            )
            state = with_jobs(state, jobs)
            job = next(iter(state.outstanding.values()))
            report = self.answer(job, seed)
            if job.id in failing:
                report = Report(job.id, error="simulated failure")
            elif job.id in diverging:
                report = replace(report, objectives=(float("nan"),) * len(self.problem.objectives))
            state = scheduler.tell(state, report)
            states.append(state)
            assert state.jobs < 2000, "the run did not finish within 2,000 jobs"
        return states

    def _check_jobs(self, state: State, jobs: tuple[Job, ...], slots: int) -> None:
        assert len(jobs) <= max(slots, 0), f"{len(jobs)} jobs for {slots} free slots"
        ids = [job.id for job in jobs]
        assert ids == list(range(state.jobs, state.jobs + len(jobs))), (
            f"job ids must count up from `state.jobs` = {state.jobs}, got {ids}"
        )
        busy = {job.trial for job in state.outstanding.values()}
        assert len({job.trial for job in jobs} | busy) == len(jobs) + len(busy), (
            "a trial has more than one outstanding job"
        )
        for job in jobs:
            missing = set(job.starts) - required_checkpoints(state)
            assert not missing, (
                f"job {job.id} starts from checkpoints {missing}, which may have been deleted"
            )
            # A job of no steps evaluates what it starts from.
            lengths = {self.problem.interval} if job.start is None else {0, self.problem.interval}
            assert job.end - job.begin in lengths, (
                f"job {job.id} is {job.end - job.begin} steps long, not one interval"
            )
            assert self.problem.space.contains(job.config), (
                f"job {job.id} has a value outside its domain: {job.config}"
            )

    def test_keeps_the_contract_with_one_and_with_many_slots(self) -> None:
        """Every job of a run is valid, whatever the number of slots."""
        for slots in (1, 3, 100):
            assert self.play(slots)[-1].jobs > 0

    def test_survives_failures_and_nan(self) -> None:
        """A run with failures and NaN finishes without using their checkpoints."""
        fails = set(range(0, 2000, 5))
        nans = set(range(1, 2000, 7))
        for state in self.play(4, fails=fails, nans=nans):
            assert not required_checkpoints(state) & fails
            starts = {t.checkpoint for t in state.trials if t.status == "ready" and t.step}
            assert not starts & nans - {None}, "a trial continues from a model with NaN metrics"

    def test_survives_when_everything_fails(self) -> None:
        """A run finishes even if all its jobs fail."""
        assert self.play(4, fails=range(2000))[-1].jobs > 0

    def test_is_pure_and_can_be_pickled(self) -> None:
        """Only the seed decides the course of a run, and settings survive pickling."""
        assert self.play(3) == self.play(3)
        assert self.play(3)[-1].trials != self.play(3, seed=1)[-1].trials
        assert pickle.loads(pickle.dumps(self.make())) == self.make()

    def test_an_extended_run_finishes(self) -> None:
        """A scheduler that can be extended continues a complete run from kept checkpoints."""
        scheduler = self.make()
        complete = self.play(3)[-1]
        for name in extendable_by(scheduler):
            more = {"steps": self.problem.steps + self.problem.interval}
            if name == "population":
                more = {"population": len(complete.trials) + 2}
            extended = extend_scheduler(scheduler, more)
            assert extend_scheduler(scheduler, more) == extended, "`extended` is not pure"
            states = self._play_on(extended, 3, State(0), (), ())
            assert extended.total_jobs is None or states[-1].jobs == extended.total_jobs
            assert states[-1].jobs > complete.jobs, f"more {name} did not give more jobs"

    def test_folding_the_exchanges_gives_the_same_state(self) -> None:
        """Folding the recorded jobs and reports rebuilds the state of the run."""
        scheduler = self.make()
        live = State(0)
        exchanges = []
        while not scheduler.done(live):
            jobs = scheduler.ask(live, 3 - len(live.outstanding))
            live = with_jobs(live, jobs)
            report = self.answer(next(iter(live.outstanding.values())), 0)
            live = scheduler.tell(live, report)
            exchanges += [Exchange(jobs=jobs), Exchange(reports=(report,))]
        folded = State(0)
        for exchange in exchanges:
            exchange = Exchange.from_json(exchange.to_json())
            folded = with_jobs(folded, exchange.jobs)
            for report in exchange.reports:
                folded = scheduler.tell(folded, report)
        assert folded == live


class TaskConformance:
    """Check what a run relies on in every task. Override `make`.

    Name in `conditional` the hyperparameters that take effect only for certain values of others.
    """

    conditional: frozenset[str] = frozenset()

    def make(self) -> Task[Any]:
        """Return the task under test."""
        raise AssertionError(f"{type(self).__name__} must override `make` to return a task")

    def _sample_hp(self, problem: Problem, seed: int = 0) -> dict[str, Any]:
        return problem.space.decode(problem.space.sample(stream(seed, "conformance")))

    def _init(self, task: Task[Any]) -> Any:
        with global_seeds(0):
            return task.init(0)

    def _train(self, task: Task[Any], model: Any, begin: int, seed: int = 7) -> Any:
        problem = problem_of(task)
        hp = Hyperparameters(self._sample_hp(problem))
        # A run seeds the global generators before each job as well.
        with global_seeds(seed):
            trained = task.train(model, hp, begin, begin + problem.interval, seed)
        return model if trained is None else trained

    def test_describes_a_problem(self) -> None:
        """Space, objectives and lengths are valid."""
        assert problem_of(self.make()).steps >= 1

    def test_reads_all_hyperparameters(self) -> None:
        """An interval of training reads every hyperparameter."""
        task = self.make()
        problem = problem_of(task)
        for seed in range(3):
            hp = Hyperparameters(self._sample_hp(problem, seed))
            task.train(self._init(task), hp, 0, problem.interval, 0)
            hp.check_read()

    def test_new_values_take_effect_after_a_restore(self) -> None:
        """Another value of any hyperparameter changes how a restored model trains.

        Those named in `conditional` are not checked.
        """
        task = self.make()
        problem = problem_of(task)
        hp = self._sample_hp(problem)
        data = task.dump(self._train(task, task.init(0), 0))
        usual = self._restore_and_train(task, data, hp)
        for name in problem.space.keys() - self.conditional:
            others = [self._sample_hp(problem, seed)[name] for seed in range(1, 40)]
            changed = [hp | {name: other} for other in others if other != hp[name]][:8]
            assert any(self._restore_and_train(task, data, new) != usual for new in changed), (
                f"hyperparameter {name!r} has no effect on a restored model"
            )

    def _restore_and_train(self, task: Task[Any], data: bytes, hp: Mapping[str, Any]) -> bytes:
        """Train a checkpoint of the first interval for another one."""
        interval = problem_of(task).interval
        model = task.load(data)
        trained = task.train(model, Hyperparameters(hp), interval, 2 * interval, 7)
        return task.dump(model if trained is None else trained)

    def test_measures_its_objectives(self) -> None:
        """`evaluate` returns a number for each objective."""
        task = self.make()
        scores = check_scores(task.evaluate(self._train(task, self._init(task), 0)))
        assert len(signed(problem_of(task).objectives, scores)) == len(problem_of(task).objectives)

    def test_same_seed_same_model(self) -> None:
        """Training twice from the same model with the same seed gives the same bytes."""
        task = self.make()
        first = self._train(task, self._init(task), 0)
        second = self._train(task, self._init(task), 0)
        assert task.dump(first) == task.dump(second)

    def test_a_checkpoint_is_complete(self) -> None:
        """A model restored from a checkpoint trains exactly like one kept in memory."""
        task = self.make()
        kept = self._train(task, self._init(task), 0)
        restored = task.load(task.dump(kept))
        assert task.dump(restored) == task.dump(kept)
        begin = problem_of(task).interval
        restored = self._train(task, restored, begin)
        kept = self._train(task, kept, begin)
        assert task.dump(restored) == task.dump(kept)

    def test_evaluating_changes_nothing(self) -> None:
        """`evaluate` does not change the model."""
        task = self.make()
        model = self._train(task, self._init(task), 0)
        before = task.dump(model)
        task.evaluate(model)
        assert task.dump(model) == before

    def test_streams_the_bytes_of_its_checkpoints(self) -> None:
        """A task that streams writes what `dump` returns, and reads it again."""
        task = self.make()
        if not isinstance(task, StreamingTask):
            return
        model = self._train(task, self._init(task), 0)
        file = io.BytesIO()
        task.dump_to(model, file)
        assert file.getvalue() == task.dump(model)
        file.seek(0)
        begin = problem_of(task).interval
        streamed = self._train(task, task.load_from(file), begin)
        kept = self._train(task, task.load(task.dump(model)), begin)
        assert task.dump(streamed) == task.dump(kept)

    def test_a_model_without_training_state_is_the_same_model(self) -> None:
        """A task whose checkpoints can be reduced measures a reduced one as before."""
        task = self.make()
        problem = problem_of(task)
        if not isinstance(task, ReducibleTask):
            return
        data = task.dump(self._train(task, self._init(task), 0))
        reduced = io.BytesIO()
        rewrite(io.BytesIO(data), reduced, task.without_training_state)
        assert len(reduced.getvalue()) <= len(data)
        hp = self._sample_hp(problem)
        for rows in rows_of(task):
            assert isinstance(task, RowsTask)
            measured = []
            for stored in (data, reduced.getvalue()):
                with global_seeds(3):
                    model = task.load(stored)
                    found = task.evaluate_rows(model, hp, problem.interval, rows, 3)
                measured.append(check_scores(found))
            assert measured[0] == measured[1]

    def test_evaluates_its_rows_and_changes_nothing(self) -> None:
        """A task that declares `rows` measures a model on each, repeatably."""
        task = self.make()
        problem = problem_of(task)
        model = self._train(task, self._init(task), 0)
        before = task.dump(model)
        hp = self._sample_hp(problem)
        for rows in rows_of(task):
            assert isinstance(task, RowsTask)
            measured = []
            for _ in range(2):
                with global_seeds(3):
                    restored = task.load(before)
                    found = task.evaluate_rows(restored, hp, problem.interval, rows, 3)
                measured.append(check_scores(found))
                assert task.dump(restored) == before
            assert measured[0] == measured[1]


class EngineConformance:
    """Check what a run relies on in every engine. Override `make`."""

    def make(self) -> Engine:
        """Return the engine under test."""
        raise AssertionError(f"{type(self).__name__} must override `make` to return an engine")

    def checkpoints(self) -> Any:
        """Return the checkpoints that the engine uses.

        Override it if other processes must be able to read them.
        """
        return MemoryCheckpoints()

    def execute(self, jobs: Iterable[Job], task: Task[Any] | None = None) -> dict[int, Report]:
        """Execute independent jobs and return their reports by job id."""
        reports, _ = self._execute([list(jobs)], task or ToyTask())
        return reports

    def _execute(self, waves: list[list[Job]], task: Task[Any]) -> tuple[dict[int, Report], Any]:
        engine = self.make()
        checkpoints = self.checkpoints()
        reports: dict[int, Report] = {}
        engine.start(RunContext(task, problem_of(task), 0, checkpoints))
        try:
            for wave in waves:
                engine.submit(wave, {job: report.checksum for job, report in reports.items()})
                while not {job.id for job in wave} <= set(reports):
                    for report in engine.collect():
                        assert report.job not in reports, f"job {report.job} was reported twice"
                        assert not report.objectives or report.job in checkpoints.kept(), (
                            f"job {report.job} was reported before its checkpoint was saved"
                        )
                        reports[report.job] = report
        finally:
            engine.close()
        return reports, checkpoints

    def test_reports_every_job_once_and_after_its_checkpoint(self) -> None:
        """Every job reports metrics and durations, after its checkpoint is saved."""
        reports = self.execute([Job(i, i, (i, 3), None, 0, 2) for i in range(5)])
        assert sorted(reports) == [0, 1, 2, 3, 4]
        for report in reports.values():
            assert set(report.scores) == {"near", "far"}
            assert report.duration >= 0
            assert report.seconds >= 0

    def test_result_depends_on_the_job_alone(self) -> None:
        """A job gives the same metrics and bytes whichever jobs run beside it."""
        jobs = [Job(i, i, (i, 3), None, 0, 2) for i in range(4)]
        together = self.execute(jobs)
        alone = self.execute(jobs[2:3])
        assert together[2].checksum == alone[2].checksum
        assert together[2].objectives == alone[2].objectives

    def test_continues_from_a_checkpoint(self) -> None:
        """Several trials can start from one checkpoint without affecting each other."""
        first = [Job(0, 0, (2, 6), None, 0, 2)]
        second = [
            Job(1, 0, (2, 6), 0, 2, 4),
            Job(2, 1, (9, 6), 0, 2, 4),
            Job(3, 2, (2, 6), 0, 2, 4),
        ]
        reports, checkpoints = self._execute([first, second], ToyTask(noise=0.0))
        assert reports[1].checksum == reports[3].checksum != reports[2].checksum
        assert checksum_of(checkpoints.load(1, reports[1].checksum)) == reports[1].checksum

    def test_evaluates_a_checkpoint_on_other_rows(self) -> None:
        """An evaluation measures a checkpoint, alone or beside others, and saves nothing."""
        first = [Job(0, 0, (2, 6), None, 0, 2), Job(1, 1, (9, 6), None, 0, 2)]
        evaluations: list[Job] = []
        for id, (start, seed) in enumerate([(0, 0), (1, 0), (0, 1), (0, 0)], 2):
            config = first[start].config
            evaluations.append(
                EvaluationJob(id, start, config, start, 2, 2, rows="test", seed=seed)
            )
        reports, checkpoints = self._execute([first, evaluations], RowsToy())
        assert checkpoints.kept() >= {0, 1}
        assert not checkpoints.kept() & {2, 3, 4, 5}
        assert reports[2].scores == reports[5].scores
        assert reports[2].scores != reports[3].scores
        assert reports[2].scores != reports[4].scores
        assert reports[2].scores["step"] == 2

    def test_a_failure_is_a_report(self) -> None:
        """An exception is reported with its traceback, and other jobs still run."""
        reports = self.execute(
            [Job(0, 0, (10, 3), None, 0, 2), Job(1, 1, (0, 3), None, 0, 2)], FailingToy()
        )
        assert reports[0].objectives is None
        assert "ZeroDivisionError" in reports[0].error
        assert reports[1].objectives is not None

    def test_a_missing_checkpoint_is_a_report(self) -> None:
        """A job whose checkpoint is missing fails, and other jobs still run."""
        reports = self.execute([Job(5, 0, (1, 3), 4, 2, 4), Job(6, 1, (0, 3), None, 0, 2)])
        assert reports[5].objectives is None
        assert "checkpoint" in reports[5].error
        assert reports[6].objectives is not None


class StoreConformance:
    """Check what a run relies on in every store. Override `make` and `reopen`."""

    def make(self) -> Store:
        """Return an empty store."""
        raise AssertionError(f"{type(self).__name__} must override `make` to return a store")

    def reopen(self, store: Store) -> Store:
        """Open the store again, as another process would."""
        return store

    def test_reads_what_was_appended(self) -> None:
        """Exchanges are read back in order, including NaN, infinity and any text."""
        report = Report(
            0, (float("inf"), -0.0, 0.1), 0.5, {"ü ∞": float("nan"), "f": 1 / 3}, "ab", 1.5, 0.25
        )
        exchanges = [Exchange(jobs=(Job(0, 0, (1, 0.1), None, 0, 2),)), Exchange(reports=(report,))]
        exchanges.append(Exchange(reports=(Report(1, error='Traceback "…"\n line'),)))
        exchanges += [Exchange(extend={"steps": 8}), Exchange(left=(0, 2))]
        exchanges.append(Exchange(stopped=2.5, done=True))
        store = self.make()
        for exchange in exchanges:
            store.append(exchange)
        again = self.reopen(store)
        assert repr(again.read()) == repr(tuple(exchanges))
        again.close()

    def test_rewinds_to_a_mark(self) -> None:
        """Rewinding deletes or replaces what is after the mark; appending continues there."""
        store = self.make()
        jobs = [Exchange(jobs=(Job(i, i, (0,), None, 0, 2),)) for i in range(4)]
        store.append(jobs[0])
        mark = store.mark()
        store.append(jobs[1])
        store.append(jobs[2])
        store.rewind(mark)
        store.append(jobs[3])
        again = self.reopen(store)
        assert again.read() == (jobs[0], jobs[3])
        again.rewind(mark, jobs[1])
        again.append(jobs[2])
        again = self.reopen(again)
        assert again.read() == (jobs[0], jobs[1], jobs[2])
        again.close()

    def test_keeps_and_drops_checkpoints(self) -> None:
        """Checkpoints load until they are dropped; dropping a missing one is harmless."""
        store = self.make()
        first = store.checkpoints.save(0, b"zero")
        second = store.checkpoints.save(11, b"")
        store = self.reopen(store)
        assert store.checkpoints.load(0, first) == b"zero"
        assert store.checkpoints.load(11, second) == b""
        assert store.checkpoints.kept() == {0, 11}
        store.checkpoints.drop([0, 99])
        assert store.checkpoints.kept() == {11}
        store.close()

    def test_has_one_owner(self) -> None:
        """The first record of an owner stays until it is replaced, and is no checkpoint."""
        store = self.make()
        assert store.checkpoints.owner() is None
        store.checkpoints.record_owner(b"first")
        store = self.reopen(store)
        store.checkpoints.record_owner(b"second")
        assert store.checkpoints.owner() == b"first"
        store.checkpoints.record_owner(b"third", replace=True)
        assert store.checkpoints.owner() == b"third"
        assert store.checkpoints.kept() == frozenset()
        store.close()

    def test_detects_a_missing_or_wrong_checkpoint(self) -> None:
        """A missing checkpoint or a wrong checksum raises CorruptCheckpoint."""
        store = self.make()
        checksum = store.checkpoints.save(0, b"zero")
        store.checkpoints.save(1, b"one")
        for id in (1, 2):
            try:
                store.checkpoints.load(id, checksum)
            except CorruptCheckpoint:
                continue
            raise AssertionError(f"checkpoint {id} was loaded despite a wrong checksum")
        store.close()
