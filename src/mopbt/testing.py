"""For those who write a task, a scheduler, an engine or a store: a toy with a known front, and suites of what a run relies on.

A suite is a class with `test_` methods; inherit it in a test module, say how to make the thing under test, and run pytest.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mopbt import serialization
from mopbt.engines.base import Engine, RunContext
from mopbt.engines.execution import check_scores
from mopbt.engines.seeding import global_seeds
from mopbt.errors import CorruptCheckpoint
from mopbt.objectives import signed
from mopbt.problem import Hyperparameters, Problem, Task, problem_of
from mopbt.rng import stream
from mopbt.schedulers.base import Scheduler
from mopbt.space import Domain, Grid, LogGrid
from mopbt.state import Job, Report, State, required_checkpoints, with_jobs
from mopbt.stores.base import Exchange, Store, checksum_of
from mopbt.stores.memory import MemoryCheckpoints


@dataclass(frozen=True)
class ToyTask:
    """Two bowls that pull a point towards their own bottoms; trained by noisy gradient steps with momentum, in microseconds.

    `near` and `far` are 1 less the squared distance to (1, 0) and (0, 1). The best trade-offs lie on the segment between the two,
    so the front is sqrt(1 - near) + sqrt(1 - far) = sqrt(2), and `weight` says where on it a member ends.
    """

    name: str = "toy"
    interval: int = 2
    steps: int = 20
    noise: float = 0.05

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the weight of the two bowls and the learning rate."""
        return {"weight": Grid(0, 1, 11), "lr": LogGrid(0.001, 1, 10)}

    @property
    def objectives(self) -> Mapping[str, Any]:
        """Return the two objectives."""
        return {"near": "max", "far": "max"}

    def init(self, seed: int) -> dict[str, Any]:
        """Start at a random place near the origin."""
        rng = stream(seed, "toy")
        return {"place": rng.normal(0, 0.1, 2), "speed": np.zeros(2)}

    def train(
        self, model: dict[str, Any], hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> dict[str, Any]:
        """Take noisy gradient steps on the weighted sum of the two bowls."""
        rng = stream(seed, "toy")
        goal = hp["weight"] * np.array([1.0, 0.0]) + (1 - hp["weight"]) * np.array([0.0, 1.0])
        for _ in range(begin, end):
            downhill = goal - model["place"] + rng.normal(0, self.noise, 2)
            model["speed"] = 0.5 * model["speed"] + hp["lr"] * downhill
            model["place"] = model["place"] + model["speed"]
        return model

    def evaluate(self, model: dict[str, Any]) -> dict[str, float]:
        """Measure the height in both bowls."""
        x, y = model["place"]
        return {"near": 1 - float((x - 1) ** 2 + y**2), "far": 1 - float(x**2 + (y - 1) ** 2)}

    def dump(self, model: dict[str, Any]) -> bytes:
        """Return place and speed as bytes."""
        return serialization.dumps(model)

    def load(self, data: bytes) -> dict[str, Any]:
        """Read place and speed back."""
        loaded: dict[str, Any] = serialization.loads(data)
        return loaded

    @staticmethod
    def distance_to_front(scores: Mapping[str, float]) -> float:
        """Return how far scores are from the known front; 0 is on it."""
        return float(
            np.sqrt(max(1 - scores["near"], 0)) + np.sqrt(max(1 - scores["far"], 0)) - np.sqrt(2)
        )


class SchedulerConformance:
    """What a run relies on in every scheduler. Say how to make one in `make`."""

    problem = problem_of(ToyTask(steps=6))

    def make(self) -> Scheduler:
        """Return the scheduler under test, for `self.problem`, with settings that make it finish within 2,000 jobs."""
        raise AssertionError(
            f"{type(self).__name__} must say how to make a scheduler: override `make`"
        )

    def answer(self, job: Job, seed: int) -> Report:
        """Return an invented report of a job."""
        values = stream(seed, "answer", job.id).random(len(self.problem.objectives))
        return Report(job.id, tuple(float(v) for v in values), checksum="0")

    def play(
        self, slots: int, *, seed: int = 0, fails: Iterable[int] = (), nans: Iterable[int] = ()
    ) -> list[State]:
        """Play a whole run with `slots` jobs at a time and return all its states, checking the contract on the way."""
        scheduler, state, fails, nans = self.make(), State(seed), set(fails), set(nans)
        states = [state]
        while not scheduler.done(state):
            jobs = scheduler.ask(state, slots - len(state.outstanding))
            self._check_jobs(state, jobs, slots - len(state.outstanding))
            assert jobs == scheduler.ask(state, slots - len(state.outstanding)), (
                "asking twice must give the same jobs"
            )
            assert jobs or state.outstanding, (
                "no work is ordered, none is outstanding, and it is not done"
            )
            state = with_jobs(state, jobs)
            job = next(iter(state.outstanding.values()))
            report = self.answer(job, seed)
            if job.id in fails:
                report = Report(job.id, error="invented")
            elif job.id in nans:
                report = replace(report, objectives=(float("nan"),) * len(self.problem.objectives))
            state = scheduler.tell(state, report)
            states.append(state)
            assert state.jobs < 2000, "it does not end"
        return states

    def _check_jobs(self, state: State, jobs: tuple[Job, ...], slots: int) -> None:
        assert len(jobs) <= max(slots, 0), "more jobs than slots"
        assert [job.id for job in jobs] == list(range(state.jobs, state.jobs + len(jobs))), (
            "ids must go on from `state.jobs`"
        )
        busy = {job.trial for job in state.outstanding.values()}
        assert len({job.trial for job in jobs} | busy) == len(jobs) + len(busy), (
            "a trial can have one outstanding job only"
        )
        for job in jobs:
            assert job.start is None or job.start in required_checkpoints(state), (
                "it starts from a checkpoint that may be gone"
            )
            assert job.end - job.begin == self.problem.interval, "a job is one interval long"
            assert self.problem.space.contains(job.config), "a value left its domain"

    def test_plays_by_the_rules_with_one_and_with_many_slots(self) -> None:
        """The contract holds from the first job to the last."""
        for slots in (1, 3, 100):
            assert self.play(slots)[-1].jobs > 0

    def test_survives_failures_and_nan(self) -> None:
        """Failed and NaN reports end somewhere; no job starts from a failed job's checkpoint, as it wrote none."""
        fails, nans = set(range(0, 2000, 5)), set(range(1, 2000, 7))
        for state in self.play(4, fails=fails, nans=nans):
            assert not required_checkpoints(state) & fails
            starts = {t.checkpoint for t in state.trials if t.status == "ready" and t.step}
            assert not starts & nans - {None}, "a NaN result was taken over or kept"

    def test_survives_when_everything_fails(self) -> None:
        """A run in which nothing works comes to an end as well."""
        assert self.play(4, fails=range(2000))[-1].jobs > 0

    def test_is_pure_and_can_be_pickled(self) -> None:
        """The same seed gives the same run, another seed another one; settings survive pickling."""
        assert self.play(3) == self.play(3)
        assert self.play(3)[-1].trials != self.play(3, seed=1)[-1].trials
        assert pickle.loads(pickle.dumps(self.make())) == self.make()

    def test_folding_the_exchanges_gives_the_same_state(self) -> None:
        """What happened can be folded again from jobs and reports alone."""
        scheduler, live, exchanges = self.make(), State(0), []
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
    """What a run relies on in every task. Say how to make one in `make`."""

    sometimes: frozenset[str] = (
        frozenset()
    )  # hyperparameters that matter only together with certain others

    def make(self) -> Task[Any]:
        """Return the task under test."""
        raise AssertionError(f"{type(self).__name__} must say how to make a task: override `make`")

    def _values(self, problem: Problem, seed: int = 0) -> dict[str, Any]:
        return problem.space.decode(problem.space.sample(stream(seed, "conformance")))

    def _trained(self, task: Task[Any], model: Any, begin: int, seed: int = 7) -> Any:
        problem = problem_of(task)
        with global_seeds(seed):  # as a run does
            trained = task.train(
                model, Hyperparameters(self._values(problem)), begin, begin + problem.interval, seed
            )
        return model if trained is None else trained

    def _fresh(self, task: Task[Any]) -> Any:
        with global_seeds(0):
            return task.init(0)

    def test_describes_a_problem(self) -> None:
        """Space, objectives and lengths are sound."""
        assert problem_of(self.make()).steps >= 1

    def test_reads_all_hyperparameters(self) -> None:
        """An interval of training reads every hyperparameter."""
        task = self.make()
        problem = problem_of(task)
        for seed in range(3):
            values = Hyperparameters(self._values(problem, seed))
            task.train(self._fresh(task), values, 0, problem.interval, 0)
            values.check_read()

    def test_new_values_take_effect_after_a_restore(self) -> None:
        """A restored model trains differently with another value of any hyperparameter, except those named in `sometimes`."""
        task = self.make()
        problem, begin = problem_of(task), problem_of(task).interval
        values, data = self._values(problem), task.dump(self._trained(task, task.init(0), 0))
        usual = self._restored_and_trained(task, data, values, begin)
        for name in problem.space.keys() - self.sometimes:
            others = [self._values(problem, seed)[name] for seed in range(1, 40)]
            changed = [values | {name: other} for other in others if other != values[name]][:8]
            assert any(
                self._restored_and_trained(task, data, new, begin) != usual for new in changed
            ), f"{name!r} has no effect"

    def _restored_and_trained(
        self, task: Task[Any], data: bytes, hp: Mapping[str, Any], begin: int
    ) -> bytes:
        model = task.load(data)
        trained = task.train(
            model, Hyperparameters(hp), begin, begin + problem_of(task).interval, 7
        )
        return task.dump(model if trained is None else trained)

    def test_measures_its_objectives(self) -> None:
        """`evaluate` gives a number for each objective."""
        task = self.make()
        scores = check_scores(task.evaluate(self._trained(task, self._fresh(task), 0)))
        assert len(signed(problem_of(task).objectives, scores)) == len(problem_of(task).objectives)

    def test_same_seed_same_model(self) -> None:
        """Training again from the same start with the same seed gives the same bytes."""
        task = self.make()
        assert task.dump(self._trained(task, self._fresh(task), 0)) == task.dump(
            self._trained(task, self._fresh(task), 0)
        )

    def test_a_checkpoint_holds_all(self) -> None:
        """A model that went through a checkpoint trains on exactly as one that stayed in memory."""
        task = self.make()
        warm = self._trained(task, self._fresh(task), 0)
        loaded = task.load(task.dump(warm))
        assert task.dump(loaded) == task.dump(warm)
        begin = problem_of(task).interval
        assert task.dump(self._trained(task, loaded, begin)) == task.dump(
            self._trained(task, warm, begin)
        )

    def test_evaluating_changes_nothing(self) -> None:
        """`evaluate` leaves the model as it was."""
        task = self.make()
        model = self._trained(task, self._fresh(task), 0)
        before = task.dump(model)
        task.evaluate(model)
        assert task.dump(model) == before


class EngineConformance:
    """What a run relies on in every engine. Say how to make one in `make`."""

    def make(self) -> Engine:
        """Return the engine under test."""
        raise AssertionError(
            f"{type(self).__name__} must say how to make an engine: override `make`"
        )

    def checkpoints(self) -> Any:
        """Return checkpoints that the engine can use; override where they must be visible to other processes."""
        return MemoryCheckpoints()

    def execute(self, jobs: Iterable[Job], task: Task[Any] | None = None) -> dict[int, Report]:
        """Carry out jobs that do not depend on each other, and return their reports by job."""
        reports, _ = self._execute([list(jobs)], task or ToyTask())
        return reports

    def _execute(self, waves: list[list[Job]], task: Task[Any]) -> tuple[dict[int, Report], Any]:
        engine, checkpoints = self.make(), self.checkpoints()
        reports: dict[int, Report] = {}
        engine.start(RunContext(task, problem_of(task), 0, checkpoints))
        try:
            for wave in waves:
                engine.submit(wave, {job: report.checksum for job, report in reports.items()})
                while not {job.id for job in wave} <= set(reports):
                    for report in engine.collect():
                        assert report.job not in reports, "a job was reported twice"
                        assert report.objectives is None or report.job in checkpoints.kept(), (
                            "reported before it was saved"
                        )
                        reports[report.job] = report
        finally:
            engine.close()
        return reports, checkpoints

    def test_reports_every_job_once_and_after_its_checkpoint(self) -> None:
        """All jobs report, with scores, and their checkpoints are there."""
        reports = self.execute([Job(i, i, (i, 3), None, 0, 2) for i in range(5)])
        assert sorted(reports) == [0, 1, 2, 3, 4]
        assert all(
            set(r.scores) == {"near", "far"} and r.duration >= 0 and r.seconds >= 0
            for r in reports.values()
        )

    def test_result_depends_on_the_job_alone(self) -> None:
        """The same jobs give the same scores and bytes, in any company and on any engine."""
        jobs = [Job(i, i, (i, 3), None, 0, 2) for i in range(4)]
        together, alone = self.execute(jobs), self.execute(jobs[2:3])
        assert together[2].checksum == alone[2].checksum
        assert together[2].objectives == alone[2].objectives

    def test_goes_on_from_a_checkpoint(self) -> None:
        """Two members may start from one checkpoint, and neither disturbs the other."""
        first = [Job(0, 0, (2, 6), None, 0, 2)]
        second = [
            Job(1, 0, (2, 6), 0, 2, 4),
            Job(2, 1, (9, 6), 0, 2, 4),
            Job(3, 2, (2, 6), 0, 2, 4),
        ]
        reports, checkpoints = self._execute([first, second], ToyTask(noise=0.0))
        assert reports[1].checksum == reports[3].checksum != reports[2].checksum
        assert checksum_of(checkpoints.load(1, reports[1].checksum)) == reports[1].checksum

    def test_a_failure_is_a_report(self) -> None:
        """An exception in a task's code is reported with its traceback, and the next job is carried out."""
        reports = self.execute(
            [Job(0, 0, (10, 3), None, 0, 2), Job(1, 1, (0, 3), None, 0, 2)], FailingToy()
        )
        assert reports[0].objectives is None
        assert "ZeroDivisionError" in reports[0].error
        assert reports[1].objectives is not None

    def test_a_missing_checkpoint_is_a_report(self) -> None:
        """A job that cannot start because its checkpoint is gone fails, and nothing else."""
        reports = self.execute([Job(5, 0, (1, 3), 4, 2, 4), Job(6, 1, (0, 3), None, 0, 2)])
        assert reports[5].objectives is None
        assert "checkpoint" in reports[5].error
        assert reports[6].objectives is not None


@dataclass(frozen=True)
class FailingToy(ToyTask):
    """A toy that fails wherever the weight is 1."""

    def train(
        self, model: dict[str, Any], hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> dict[str, Any]:
        """Divide by zero at the end of the domain."""
        1 / (1 - hp["weight"])
        return super().train(model, hp, begin, end, seed)


class StoreConformance:
    """What a run relies on in every store. Say how to make one in `make`, and how to open it again in `reopen`."""

    def make(self) -> Store:
        """Return an empty store."""
        raise AssertionError(f"{type(self).__name__} must say how to make a store: override `make`")

    def reopen(self, store: Store) -> Store:
        """Return the same store as another process would find it."""
        return store

    def test_gives_back_what_was_appended(self) -> None:
        """Exchanges come back equal and in order, with NaN, infinities and any text in them."""
        report = Report(
            0, (float("inf"), -0.0, 0.1), 0.5, {"ü ∞": float("nan"), "f": 1 / 3}, "ab", 1.5, 0.25
        )
        exchanges = [Exchange(jobs=(Job(0, 0, (1, 0.1), None, 0, 2),)), Exchange(reports=(report,))]
        exchanges.append(Exchange(reports=(Report(1, error='Traceback "…"\n line'),)))
        store = self.make()
        for exchange in exchanges:
            store.append(exchange)
        again = self.reopen(store)
        assert repr(again.read()) == repr(tuple(exchanges))
        again.close()

    def test_takes_back_what_came_after_a_mark(self) -> None:
        """What was appended after it is gone, also for others, and what comes then stands in its place."""
        store, jobs = self.make(), [Exchange(jobs=(Job(i, i, (0,), None, 0, 2),)) for i in range(4)]
        store.append(jobs[0])
        mark = store.mark()
        store.append(jobs[1])
        store.append(jobs[2])
        store.rewind(mark)
        store.append(jobs[3])
        again = self.reopen(store)
        assert again.read() == (jobs[0], jobs[3])
        again.close()

    def test_keeps_and_drops_checkpoints(self) -> None:
        """Bytes come back whole until they are dropped; dropping what is not there is harmless."""
        store = self.make()
        first, second = store.checkpoints.save(0, b"zero"), store.checkpoints.save(11, b"")
        store = self.reopen(store)
        assert store.checkpoints.load(0, first) == b"zero"
        assert store.checkpoints.load(11, second) == b""
        assert store.checkpoints.kept() == {0, 11}
        store.checkpoints.drop([0, 99])
        assert store.checkpoints.kept() == {11}
        store.close()

    def test_notices_a_checkpoint_that_is_gone_or_another(self) -> None:
        """Loading checks what it gives back."""
        store = self.make()
        checksum = store.checkpoints.save(0, b"zero")
        store.checkpoints.save(1, b"one")
        for id in (1, 2):
            try:
                store.checkpoints.load(id, checksum)
            except CorruptCheckpoint:
                continue
            raise AssertionError(
                f"checkpoint {id} was given back though it is not what was asked for"
            )
        store.close()
