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

import csv
import gzip
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.golden import learner

import mopbt
from mopbt.algorithms import algorithm_of
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import run_job, save, train
from mopbt.engines.simulated import Lognormal, PerStep, SimulatedEngine
from mopbt.problem import problem_of
from mopbt.results import Results
from mopbt.session import Budget
from mopbt.state import Job, State, required_checkpoints, with_jobs
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.synthetic import Annealing, ThreeSkills
from mopbt.tasks.toy import FailingToy, ToyTask

# --- tasks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learner:
    """The golden learner as a task."""

    options: learner.Options = field(default_factory=learner.Options)
    limits: tuple[str, ...] = ()
    interval: int = 1
    steps: int = 4
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

    def train(self, model, hp, begin, end, seed):
        """Train one learner."""
        return learner.trained(self.options, model, hp, begin, end, seed)

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
    lengths = {"interval": described["interval"], "steps": described["steps"]}
    if "toy" in described:
        return TOYS[described["toy"]](**lengths)
    if "torch" in described:
        return TORCH_TASKS[described["torch"]](**lengths)
    options = learner.Options(**described["learner"])
    return Learner(options, tuple(described["limits"]), **lengths)


# PyTorch, comparisons and reports are imported where they are needed: other runs and their workers
# need not load them.


def _network(drops):
    """Return a small network with tuned dropout, or with batch statistics."""
    from torch import nn

    from mopbt.torch import Dropout

    middle = Dropout("dropout") if drops else nn.BatchNorm1d(8)
    return nn.Sequential(nn.Linear(5, 8), middle, nn.Tanh(), nn.Linear(8, 2))


def _network_with_dropout():
    return _network(True)


def _network_with_statistics():
    return _network(False)


def _rows(n, seed):
    """Return inputs and labels of exact numbers."""
    import torch

    x = torch.tensor([[learner.draw(seed, i, k) - 0.5 for k in range(5)] for i in range(n)])
    return x, (x[:, 0] * x[:, 1] + 0.2 * x[:, 2] > 0).long()


def _weighted_loss(model, batch, hp):
    import torch
    from torch.nn.functional import cross_entropy

    weight = torch.stack([torch.ones_like(hp["balance"]), hp["balance"]])
    return cross_entropy(model(batch[0]), batch[1], weight=weight)


def _measures(outputs, y):
    from torch.nn.functional import cross_entropy

    chosen = outputs.argmax(-1)
    return {
        "recall": (chosen[y == 1] == 1).float().mean(),
        "misses": (chosen[y == 0] == 1).float().mean(),
        "entropy": cross_entropy(outputs, y),
    }


def _torch_task(model, optimizer, **options):
    from mopbt.torch import TorchTask

    return TorchTask(
        model,
        loss=_weighted_loss,
        objectives={"recall": "max", "misses": "min"},
        optimizer=optimizer,
        metrics=_measures,
        validation=_rows(40, 2),
        device="cpu",
        **options,
    )


def _task_with_dropout(**lengths):
    from mopbt.torch import AdamW, Batches

    space = {
        "lr": mopbt.LogGrid(0.003, 0.3, 6),
        "decay": mopbt.LogGrid(0.001, 0.1, 5),
        "dropout": mopbt.Grid(0, 0.8, 5),
        "balance": mopbt.LogGrid(0.25, 4, 5),
    }
    optimizer = AdamW(lr="lr", weight_decay="decay")
    data = Batches(*_rows(64, 1), batch_size=16)
    options = {"space": space, "data": data, "clip": 0.2, "test": _rows(24, 3)}
    return _torch_task(_network_with_dropout, optimizer, **options, **lengths)


def _task_with_statistics(**lengths):
    from mopbt.torch import SGD, Batches

    space = {
        "lr": mopbt.LogGrid(0.01, 0.3, 6),
        "momentum": mopbt.Ordinal([0.0, 0.5, 0.9]),
        "balance": mopbt.LogGrid(0.25, 4, 5),
    }
    optimizer = SGD(lr="lr", momentum="momentum", nesterov=True)
    data = Batches(*_rows(64, 1), batch_size=16, updates=3, shared=True)
    return _torch_task(_network_with_statistics, optimizer, space=space, data=data, **lengths)


TORCH_TASKS = {"dropout": _task_with_dropout, "statistics": _task_with_statistics}


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
OPTIONS: dict[str, str] = {}  # neutral name -> own name, where they differ
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
        return mopbt.VectorizedEngine(1, stack=3)
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
    """A run that has ended, and the progress that it reported."""

    case: dict
    path: Path
    results: Results
    progress: list


class Snapshots(mopbt.Callback):
    """Collects the progress of a run, at its start and after each report."""

    def __init__(self, snapshots):
        self.snapshots = snapshots

    def on_start(self, run):
        self.snapshots.append(run.progress)

    def on_report(self, run, reports):
        self.snapshots.append(run.progress)


def execute(case, path, *, engine=None, budget=None):
    """Start or resume the run of a case in a directory, on its own engine or on another one."""
    snapshots = []
    limits = case["budget"] if budget is None else budget
    results = mopbt.run(
        make_task(case["task"]),
        out=path,
        algorithm=make_algorithm(case),
        seed=case["seed"],
        engine=make_engine(engine or case["engine"]),
        budget=Budget(**{BUDGETS[name]: value for name, value in limits.items()}),
        progress=False,
        callbacks=[Snapshots(snapshots)],
    )
    return Finished(case, Path(path), results, snapshots)


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
    front = results.front(observed=True)
    return {
        "outcome": results.outcome,
        "done": results.done,
        "jobs": len(results),
        "jobs_in_all": last.total,
        "failed": last.failures,
        "diverged": last.diverged,
        "front": [point.model for point in front],
        "spread": [point.model for point in front.spread(3)],
        "best": front.best_values,
        "hypervolume": results.hypervolume(),
        "models": [_plain(results.load(point)) for point in front],
    }


def _plain(model):
    """Return the weights of a model as lists, or digests of them for a network."""
    if isinstance(model, dict) and "optimizer" in model:
        return digests(model)
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
    for part in ("front", "spread"):
        end[part] = [key[id] for id in end[part]]
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
            assert starts <= required_checkpoints(state), (
                "a job starts from a checkpoint that may be gone"
            )
            state = with_jobs(state, exchange.jobs)
        for report in exchange.reports:
            state = scheduler.tell(state, report)
    assert scheduler.done(state) == run.results.done or run.case["budget"]


def check_results(run):
    """Assert that each report is what its job gives where it is executed again, by itself."""
    task = make_task(run.case["task"])
    work = RunContext(task, problem_of(task), run.case["seed"], MemoryCheckpoints())
    exchanges = _exchanges(run.path)
    jobs = sorted((job for e in exchanges for job in e.jobs), key=lambda job: job.id)
    reports = {report.job: report for e in exchanges for report in e.reports}
    checksums = {}
    for job in jobs:
        again = run_job(work, job, checksums, ModelCache(0))
        checksums[job.id] = again.checksum
        recorded = reports[job.id]
        assert repr(_report(again, False)) == repr(_report(recorded, False))
        assert again.checksum == recorded.checksum, f"job {job.id} wrote other bytes"


def check_checkpoints(run):
    """Assert that all models of the front are kept, and no more others than a run may need."""
    kept = {int(file.stem) for file in (run.path / "checkpoints").glob("*.ckpt")}
    front = {point.model for point in run.results.front()}
    trials = {record["trial"] for record in run.results.records()}
    assert front <= kept
    assert len(kept - front) <= 2 * len(trials)


def known_algorithms():
    """Return the neutral names of all algorithms that mopbt has."""
    neutral = {name: own for own, name in ALGORITHMS.items()}
    return sorted(neutral.get(name, f"unknown: {name}") for name in mopbt.algorithms.ALGORITHMS)


# --- checkpoints of networks -----------------------------------------------------------------


def train_networks(described, *, stacked):
    """Train four members for three intervals, alone or as one stack, and return their states.

    After the first interval, members start from each other's checkpoints. Each state has been
    written and read back.
    """
    task = make_task(described)
    problem = problem_of(task)
    interval, sizes = problem.interval, [len(domain.values) for domain in problem.space.values()]
    configs = [tuple((3 * i + k) % size for k, size in enumerate(sizes)) for i in range(4)]
    starts = [(None, None, None, None), (0, 0, 3, 1), (4, 5, 5, 7)]
    work, warm = RunContext(task, problem, 7, MemoryCheckpoints()), ModelCache(0)
    checksums, states = {}, []
    for turn, from_jobs in enumerate(starts):
        begin, stack = turn * interval, []
        for i, start in enumerate(from_jobs):
            config = configs[(i + turn) % 4]
            job = Job(4 * turn + i, i, config, start, begin, begin + interval)
            stack.append((job, dict(checksums)))
        parts = [stack] if stacked else [[item] for item in stack]
        for trained in (trained for part in parts for trained in train(work, part, warm)):
            assert not trained.error, trained.error
            checksums[trained.job.id] = save(work, trained).checksum
            data = work.checkpoints.load(trained.job.id, checksums[trained.job.id])
            member = task.load(data)
            states.append(member | {"scores": trained.scores | _on_other_rows(task, member)})
    return states


def _on_other_rows(task, member):
    """Return the scores of a network on rows that do not guide the search."""
    scores = {}
    for rows in task.rows:
        measured = task.evaluate_rows(member, {}, 0, rows, 0)
        scores |= {f"{rows}/{name}": float(score) for name, score in measured.items()}
    return scores


SLOTS = {  # of optimizers: mopbt's names to neutral ones
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "momentum_buffer": "velocity",
}


def digests(state):
    """Return digests of a network's tensors: its weights and buffers, and each optimizer slot."""
    slots = {SLOTS[name]: _digest(tensors) for name, tensors in state["optimizer"].items()}
    return {"weights": _digest(state["model"]), "updates": state["updates"]} | slots


def norms(state):
    """Return the sums of squares of a network's tensors, and its smooth score."""
    parts = {"weights": state["model"]}
    parts |= {SLOTS[name]: tensors for name, tensors in state["optimizer"].items()}
    found = {part: _sums_of_squares(tensors) for part, tensors in parts.items()}
    return found | {"entropy": state["scores"]["entropy"]}


def _sums_of_squares(tensors):
    return {name: float((tensor.double() ** 2).sum()) for name, tensor in tensors.items()}


def _digest(tensors):
    """Return a digest of tensors by name, type, shape and bytes, whatever file they were in."""
    hashed = hashlib.blake2b(digest_size=12)
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        hashed.update(f"{name} {array.dtype} {array.shape} ".encode())
        hashed.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return hashed.hexdigest()


# --- comparisons -----------------------------------------------------------------------------

compared_learner = Learner(
    learner.Options(mixed=True, failing=0.1, diverging=True, test=True),
    limits=("size <= 0.9",),
)


# The golden tables are above the paper's reference point, and a task's own would replace it.
class ReferencelessAnnealing(Annealing):
    reference = None


class ReferencelessSkills(ThreeSkills):
    reference = None


compared_annealing = ReferencelessAnnealing(steps=4)
compared_skills = ReferencelessSkills(interval=2, steps=8)
COMPARED = {  # by the names under which mopbt finds them
    "tests.golden.adapter:compared_learner": "learner",
    "tests.golden.adapter:compared_annealing": "annealing",
    "tests.golden.adapter:compared_skills": "three skills",
}
ENGINE_NAMES = {"local": "local", "vectorized": "vectorized"}


def execute_comparison(described, out, *, engine="local"):
    """Execute a comparison of the described algorithms on all three tasks, and write its report."""
    from mopbt.compare import Experiment, compare
    from mopbt.compare.report import write_report

    algorithms = {}
    for label, entry in described["algorithms"].items():
        own = {"name": ALGORITHMS[entry["algorithm"]], **entry["options"]}
        for name in ("constraints", "seed_offset"):
            own |= {name: entry[name]} if name in entry else {}
        if "tasks" in entry:
            own["tasks"] = [place for place, name in COMPARED.items() if name in entry["tasks"]]
        algorithms[label] = own
    experiment = Experiment(
        name="golden",
        tasks=tuple(COMPARED),
        algorithms=algorithms,
        seeds=described["seeds"],
        workers=described["workers"],
        cost=described["cost"],
        time_of=described["time_of"],
        engine=ENGINE_NAMES[engine],
    )
    comparison = compare(experiment, out=out, jobs=1, progress=False)
    assert not comparison.failures, comparison.failures
    write_report(comparison, out, figures=False)
    return comparison


TABLE_FILES = {
    "tables": "tables.csv",
    "runs": "runs.csv",
    "tasks": "tasks.csv",
    "evaluations": "evaluations.csv.gz",
    "fronts": "fronts.csv.gz",
}
COLUMNS = {  # mopbt's names to neutral ones; all others are the same, and None leaves a column out
    "p_holm": "corrected_p",
    "model": "job",
    "duration": None,
}
PREFIXES = {"score.": "score.", "hp.": "hp."}


def table(out, name):
    """Return the rows of a table that a comparison wrote, under neutral names of the columns."""
    data = (Path(out) / TABLE_FILES[name]).read_bytes()
    text = (gzip.decompress(data) if TABLE_FILES[name].endswith(".gz") else data).decode()
    rows = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        named = {_column(column): cell for column, cell in row.items()}
        named.pop(None, None)
        named["task"] = COMPARED.get(named["task"], named["task"])
        if named.get("error"):
            named["error"] = _failure(named["error"])
        rows.append({column: _cell(cell) for column, cell in named.items()})
    return rows


def _column(column):
    for own, neutral in PREFIXES.items():
        if column.startswith(own):
            return neutral + column.removeprefix(own)
    return COLUMNS.get(column, column)


def _cell(text):
    """Return a number where a cell is one that is not whole, so that it is rounded."""
    try:
        return float(text) if text and not text.lstrip("-").isdigit() else text
    except ValueError:
        return text


def measures(comparison):
    """Return what the runs of a comparison are measured by, and how they did over time."""
    from mopbt.compare.measures import measure

    lines = []
    for task in measure(comparison):
        own = {"task": COMPARED[task.name], "reference": task.reference.tolist()}
        own |= {"best": task.best, "best_test": task.best_test, "times": task.times.tolist()}
        lines.append(own | {"complete": task.complete, "scaled": task.scaled})
        for label, runs in task.runs.items():
            lines += [{"task": own["task"], "algorithm": label} | _measured_run(r) for r in runs]
    return lines


def _measured_run(run):
    tests = run.test_hypervolumes
    return {
        "seed": run.data.seed,
        "front": [int(run.data.jobs[row]) for row in run.front],
        "hypervolumes": run.hypervolumes.tolist(),
        "test_hypervolumes": None if tests is None else tests.tolist(),
        "coverage": run.coverage,
    }


# --- what a report shows ---------------------------------------------------------------------


def report(paths):
    """Return the data of a page about several runs."""
    from mopbt.html.report import payload, read_run_data

    runs = [read_run_data(Path(path)) for path in paths]
    data = payload(runs, [run.data() for run in runs])
    return [_run_data(run) for run in data["runs"]], _comparison_data(data["comparison"])


def _run_data(data):
    """Return the data of one run on a page, under neutral keys."""
    return {
        "task": data["task"],
        "algorithm": data["algorithm"],
        "seed": data["seed"],
        "finished": data["state"] == "done",
        "objectives": [[o["name"], o["direction"]] for o in data["objectives"]],
        "constraints": data["constraints"],
        "steps": data["steps"],
        "jobs": data["intervals"],
        "jobs_in_all": data["total"],
        "failed": data["failed"],
        "diverged": data["diverged"],
        "seconds": data["seconds"],
        "front_size": data["models"],
        "hypervolume": data["hypervolume"],
        "reference": data["reference"],
        "space": [_hyperparameter(domain) for domain in data["space"]],
        "front": [_model(point) for point in data["front"]],
        "lineage": [list(stretch) for stretch in data["stretches"]],
        "dominated": {
            "number": data["others"]["of"],
            "out_of_view": data["others"]["outside"],
            "objectives": data["others"]["scores"],
            "steps": data["others"]["steps"],
            "infeasible": data["others"]["infeasible"],
        },
        "axes": [list(view) for view in data["views"]],
        "curve": [list(pair) for pair in data["curve"]],
        "trials": data["trials"],
        "exploits": data["exploits"],
        "exploits_in_all": data["exploited"],
        "histograms": [[h["x"], h["y"], h["bins"], h["cells"]] for h in data["histograms"]],
        "schedules": data["visits"],
        "failures": [[_failure(f["message"]), f["count"], f["jobs"]] for f in data["failures"]],
    }


def _hyperparameter(domain):
    if "values" in domain:
        return [domain["name"], domain["values"], domain["levels"]]
    return [domain["name"], [domain["lo"], domain["hi"], domain["log"]], domain["levels"]]


def _model(point):
    keys = ("job", "trial", "step", "seconds", "violation", "objectives", "scores")
    return [point[key] for key in keys]


def _comparison_data(data):
    return {
        "reference": data["reference"],
        "axes": [list(view) for view in data["views"]],
        "curves": [[list(pair) for pair in curve] for curve in data["curves"]],
        "rows": [[r["hypervolume"], r["coverage"], r["kept"], r["of"]] for r in data["rows"]],
    }


def results(run):
    """Return what a run's results answer: rows, front, curve, ancestry and choices."""
    found = Results.open(run.path, make_task(run.case["task"]))
    front = found.front()
    names = [objective.name for objective in found.problem.objectives]
    picks = {"knee": front.knee(), "weights": front.weighted({names[0]: 2, names[1]: 1})}
    picks |= {f"best {name}": front.best(name) for name in names}
    return {
        "rows": [_record(record) for record in found.records()],
        "front": [_point(point) for point in front],
        "front scores": front.scores.tolist(),
        "spread": [[point.model for point in front.spread(n)] for n in (1, 2, 3, 4)],
        "picks": {name: point.model for name, point in picks.items()},
        "hypervolume": found.hypervolume(),
        "hypervolume of a reference": found.hypervolume(run.case["reference"]),
        "curve": [list(pair) for pair in found.hypervolume_curve()],
        "failures": {str(job): _failure(error) for job, error in found.failures.items()},
        "ancestry": {str(p.model): [_ancestor(a) for a in found.lineage(p)] for p in front},
        "trial": {str(p.model): [a.model for a in found.trial_history(p)] for p in front},
        "schedules": {str(p.model): _schedule(found.schedule(p)) for p in front},
    }


def _record(record):
    row = {}
    for name, value in record.items():
        if name not in ("duration", "error"):
            row[_column(name)] = value
    return row | {"failed": bool(record["error"])}


def _point(point):
    hp, scores = list(point.hp.values()), list(point.scores.values())
    return [point.model, point.trial, point.step, hp, scores, point.violation, point.seconds]


def _schedule(schedule):
    return [[begin, end, list(hp.values())] for begin, end, hp in schedule]


def _ancestor(ancestor):
    return [ancestor.model, ancestor.trial, ancestor.begin, ancestor.end, ancestor.exploited]
