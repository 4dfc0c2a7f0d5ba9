"""The only module of the golden tests that knows mopbt's names.

It builds tasks, algorithms and engines from the neutral descriptions in `cases`, runs them, and
returns what happened as plain JSON under neutral keys. Golden files hold these keys alone. Where
mopbt renames a class, a module, an option or a key of the journal, this module changes and no
golden file does.

A journal becomes a list of lines:

    {"case": ..., "space": {name: values or [low, high, log]}, "scores": [names]}
    {"jobs": [[id, trial, positions, start, begin, end], ...]}           ordered together
    {"reports": [[job, objectives, scores, violation, seconds], ...]}    received together
    {"stopped": {"done": ..., "seconds": ...}}                           end of a session
    {"end": {...}}                                                       what the run returned

Objectives are larger-is-better, scores stand in the order of the first line. A job that failed has
the text of its error in place of the objectives. Seconds are there where the clock is virtual.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.golden import learner

import mopbt
from mopbt.algorithms import algorithm_of
from mopbt.engines.base import Warm, Work, perform
from mopbt.engines.simulated import Lognormal, PerStep, SimulatedEngine
from mopbt.results import Results
from mopbt.session import Budget
from mopbt.state import State, needed, ordered
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.task import problem_of
from mopbt.testing import FailingToy, ToyTask

# --- tasks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learner:
    """The golden learner as a task."""

    options: learner.Options = field(default_factory=learner.Options)
    limits: tuple[str, ...] = ()
    interval: int = 1
    max_step: int = 4
    name: str = "learner"

    @property
    def space(self):
        """Return two grids, or one domain of each kind."""
        grids = {"mix": mopbt.Grid(0, 1, 11), "rate": mopbt.LogGrid(0.05, 1, 7)}
        if not self.options.mixed:
            return grids
        return grids | {
            "kind": mopbt.Categorical(list(learner.KINDS)),
            "level": mopbt.Ordinal(list(learner.LEVELS)),
            "decay": mopbt.Float(0.001, 1.0, log=True),
            "depth": mopbt.Int(1, 6),
        }

    @property
    def objectives(self):
        """Return objectives of both directions."""
        three = {"reach": "max"} if self.options.goals == 3 else {}
        return {"gain": "max", "loss": "min"} | three

    @property
    def constraints(self):
        """Return the limits on scores."""
        return self.limits

    def init(self, seed):
        """Return an untrained learner."""
        return learner.fresh(self.options, seed)

    def train(self, model, values, begin, end, seed):
        """Train one learner."""
        return learner.trained(self.options, model, values, begin, end, seed)

    def evaluate(self, model):
        """Measure one learner."""
        return learner.measured(self.options, model)

    def train_many(self, models, values, begins, seeds):
        """Train a stack of learners."""
        members = zip(models, values, begins, seeds, strict=True)
        return [self.train(m, hp, b, b + self.interval, seed) for m, hp, b, seed in members]

    def evaluate_many(self, models):
        """Measure a stack of learners."""
        return [self.evaluate(model) for model in models]

    def dump(self, model):
        """Return a learner as bytes."""
        return mopbt.dumps(model | {"place": np.array(model["place"])})

    def load(self, data):
        """Read a learner back."""
        model = mopbt.loads(data)
        return model | {"place": model["place"].tolist()}


TOYS = {"plain": ToyTask, "failing": FailingToy}


def make_task(described):
    """Return the task of a case."""
    lengths = {"interval": described["interval"], "max_step": described["steps"]}
    if "toy" in described:
        return TOYS[described["toy"]](**lengths)
    options = learner.Options(**described["learner"])
    return Learner(options, tuple(described["limits"]), **lengths)


# --- algorithms and engines ------------------------------------------------------------------

ALGORITHMS = {  # neutral names are those of the command line
    name: name
    for name in (
        "mo-pbt",
        "random-search",
        "pbt",
        "pbt-random-scalarization",
        "pbt-max-scalarization",
        "mo-asha",
        "bo-mo-asha",
        "qnehvi",
        "parego",
        "nsga2",
    )
}
OPTIONS = {"authors_variant": "published"}  # all others have their neutral names
BUDGETS = {"jobs": "jobs", "seconds": "seconds"}


def make_algorithm(case):
    """Return the algorithm of a case."""
    options = {OPTIONS.get(name, name): value for name, value in case["options"].items()}
    return algorithm_of({"name": ALGORITHMS[case["algorithm"]], **options})


def make_engine(described):
    """Return an engine of a kind: local, pool, vectorized or simulated."""
    kind = described["kind"]
    if kind == "local":
        return mopbt.LocalEngine()
    if kind == "pool":
        return mopbt.PoolEngine(2)
    if kind == "vectorized":
        return mopbt.VectorisedEngine(1, stack=3)
    cost = PerStep()
    if "per_step" in described:
        cost = PerStep(*described["per_step"])
    if "lognormal" in described:
        cost = Lognormal(*described["lognormal"])
    names = ("speeds", "deaths", "retries", "restart")
    options = {name: described[name] for name in names if name in described}
    trainer = make_engine(described["on"]) if "on" in described else None
    return SimulatedEngine(described["workers"], cost, **options, engine=trainer)


# --- runs ------------------------------------------------------------------------------------


@dataclass
class Finished:
    """A run that has ended, and what it said on the way."""

    case: dict
    path: Path
    results: Results
    progress: list


def execute(case, path, *, engine=None, budget=None):
    """Start or resume the run of a case in a directory, on its own engine or on another one."""
    said = []
    limits = case["budget"] if budget is None else budget
    results = mopbt.run(
        make_task(case["task"]),
        out=path,
        algorithm=make_algorithm(case),
        seed=case["seed"],
        engine=make_engine(engine or case["engine"]),
        budget=Budget(**{BUDGETS[name]: value for name, value in limits.items()}),
        progress=said.append,
    )
    return Finished(case, Path(path), results, said)


def journal(run):
    """Return the lines of a run's journal, with what the run returned as the last one."""
    is_virtual = run.case["engine"]["kind"] == "simulated"
    names = []
    lines = []
    for exchange in _exchanges(run.path):
        if exchange.jobs:
            lines.append({"jobs": [_job(job) for job in exchange.jobs]})
        if exchange.reports:
            names = names or [list(r.scores) for r in exchange.reports if not r.error][0:1]
            reports = [_report(report, is_virtual) for report in exchange.reports]
            lines.append({"reports": reports})
        if exchange.stopped or exchange.done:
            seconds = {"seconds": exchange.stopped} if is_virtual else {}
            lines.append({"stopped": {"done": exchange.done} | seconds})
    head = {"case": run.case, "space": _space(run.results), "scores": names[0]}
    return [head, *lines, {"end": _end(run)}]


def _exchanges(path):
    return read_journal(path / "journal.jsonl")[0]


def _job(job):
    return [job.id, job.trial, list(job.config), job.start, job.begin, job.end]


def _report(report, is_virtual):
    seconds = [report.seconds] if is_virtual else []
    if report.objectives is None:
        return [report.job, _failure(report.error), *seconds]
    scores = list(report.scores.values())
    return [report.job, list(report.objectives), scores, report.violation, *seconds]


def _failure(error):
    """Return the error of a task, or that an engine lost the job."""
    last = error.strip().rpartition("\n")[2]
    return last if "Error: " in last else "lost by the engine"


def _space(results):
    described = {}
    for name, domain in results.problem.space.items():
        if isinstance(domain, mopbt.Float | mopbt.Int):
            described[name] = [domain.lo, domain.hi, domain.log]
        else:
            described[name] = list(domain.values)
    return described


def _end(run):
    results, last = run.results, run.progress[-1]
    front = results.front()
    return {
        "outcome": results.outcome,
        "done": results.done,
        "jobs": len(results),
        "jobs_in_all": last.total,
        "failed": last.failures,
        "diverged": last.diverged,
        "front": [point.job for point in front],
        "best": front.best(),
        "hypervolume": results.hypervolume(),
        "models": [_plain(results.load(point)) for point in front],
    }


def _plain(model):
    """Return the weights of a model as lists."""
    if isinstance(model, dict):
        return {name: _plain(part) for name, part in model.items()}
    return model.tolist() if isinstance(model, np.ndarray) else model


def meaning(lines):
    """Return what a journal means whatever order an engine trained in: jobs by trial and step."""
    jobs = {job[0]: job for line in lines for job in line.get("jobs", ())}
    reports = {report[0]: report for line in lines for report in line.get("reports", ())}
    key = {id: f"trial {trial}, step {end}" for id, (_, trial, *_, end) in jobs.items()}
    assert len(set(key.values())) == len(jobs), "a trial was trained twice to the same step"
    end = dict(lines[-1]["end"])
    end["front"] = [key[id] for id in end["front"]]
    meant = {}
    by_trial = sorted(jobs.values(), key=lambda job: (job[1], job[5]))
    for id, _, positions, start, begin, _ in by_trial:
        meant[key[id]] = {
            "positions": positions,
            "start": None if start is None else key[start],
            "begin": begin,
            "report": _measured(reports[id]),
        }
    return {"jobs": meant, "end": end}


def _measured(report):
    """Return a report without its job and its time."""
    return report[1:2] if isinstance(report[1], str) else report[1:4]


def check_decisions(run):
    """Assert that each recorded job is what the scheduler orders, given the table at that time."""
    scheduler = make_algorithm(run.case).scheduler(run.results.problem)
    state = State(run.case["seed"])
    for exchange in _exchanges(run.path):
        if exchange.jobs:
            asked = scheduler.ask(state, len(exchange.jobs))
            assert [_job(job) for job in asked] == [_job(job) for job in exchange.jobs]
            starts = {job.start for job in exchange.jobs} - {None}
            assert starts <= needed(state), "a job starts from a checkpoint that may be gone"
            state = ordered(state, exchange.jobs)
        for report in exchange.reports:
            state = scheduler.tell(state, report)
    assert scheduler.done(state) == run.results.done or run.case["budget"]


def check_results(run):
    """Assert that each report is what its job gives where it is executed again, by itself."""
    task = make_task(run.case["task"])
    work = Work(task, problem_of(task), run.case["seed"], MemoryCheckpoints())
    exchanges = _exchanges(run.path)
    jobs = sorted((job for e in exchanges for job in e.jobs), key=lambda job: job.id)
    reports = {report.job: report for e in exchanges for report in e.reports}
    checksums = {}
    for job in jobs:
        again = perform(work, job, checksums.get(job.start, ""), Warm(0))
        checksums[job.id] = again.checksum
        recorded = reports[job.id]
        assert repr(_report(again, False)) == repr(_report(recorded, False))
        assert again.checksum == recorded.checksum, f"job {job.id} wrote other bytes"


def check_checkpoints(run):
    """Assert that all models of the front are kept, and no more others than a run may need."""
    kept = {int(file.stem) for file in (run.path / "checkpoints").glob("*.ckpt")}
    front = {point.job for point in run.results.front()}
    trials = {record["trial"] for record in run.results.records()}
    assert front <= kept
    assert len(kept - front) <= 2 * len(trials)


def known_algorithms():
    """Return the neutral names of all algorithms that mopbt has."""
    neutral = {name: own for own, name in ALGORITHMS.items()}
    return sorted(neutral.get(name, f"unknown: {name}") for name in mopbt.algorithms.ALGORITHMS)
