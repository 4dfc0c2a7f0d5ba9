"""Search for an algorithm that is better than MO-PBT on data that no selection used.

``python experiments/research/better.py screening`` executes the runs of a stage of `better.toml`
that are missing, and appends a line per run to ``results/better/screening.jsonl``. Stop it at any
time and rerun it to resume. Several processes may share a stage: ``--part 0 --parts 2`` takes
every second run. With ``--table``, it prints the differences from MO-PBT and random search of all
runs in the file.
"""

import argparse
import json
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from ideas import Idea
from stacks import InProcessStacks

import mopbt
from mopbt.algorithms import algorithm_of
from mopbt.compare.measures import value_of_choosing
from mopbt.estimate import Estimate
from mopbt.metrics import hypervolume
from mopbt.objectives import signed
from mopbt.space import Grid, LogGrid
from mopbt.tasks import paper, registry
from mopbt.tasks.synthetic import PROBLEMS

HERE = Path(__file__).parent
SETTINGS = tomllib.loads((HERE / "better.toml").read_text())
FILE = HERE.parents[1] / "results" / "better" / "screening.jsonl"
SYNTHETIC = {problem.name: problem for problem in PROBLEMS}
KINDS = ("observed", "honest")
RIVALS = ("MO-PBT", "random search", "MO-PBT, EMA", "random search, EMA")


@dataclass(frozen=True)
class Run:
    """One run of a stage; `size` is the number of validation rows, or the noise of a problem."""

    task: str
    size: float
    variant: str
    seed: int


def runs_of(stage: str) -> Iterator[Run]:
    """Iterate over the runs of a stage, all variants of a seed before the next seed."""
    options = SETTINGS["stages"][stage]
    variants = options.get("variants", list(SETTINGS["variants"]))
    # Synthetic problems have no weights to average and no rows to draw.
    plain = [v for v in variants if not {"ema", "fresh_rows"} & SETTINGS["variants"][v].keys()]
    for seed in options["seeds"]:
        problems = product(options.get("synthetic", ()), options.get("noise", ()), plain)
        tasks = product(options["tasks"], options["validation"], variants)
        for task, size, variant in (*problems, *tasks):
            yield Run(task, size, variant, seed)


@cache
def encoded_parts(name: str) -> list[list[Any]]:
    """Return training, validation and test rows of a task, with one column per category."""
    import torch

    task = paper.TASKS[name]
    table = registry.load_tabular(task.dataset)
    parts = []
    for part in (table.train, table.validation, table.test):
        columns = [part.numeric]
        for j, codes in enumerate(table.cardinalities):
            columns.append(np.eye(codes, dtype=np.float32)[part.categorical[:, j]][:, 1:])
        arrays = [np.concatenate(columns, axis=1), part.target]
        if "dsp" in task.objectives:
            arrays.append(part.sensitive)
        parts.append([torch.from_numpy(array) for array in arrays])
    return parts


def mlp_task(name: str, validation: int, seed: int) -> Any:
    """Return the cheap version of a tabular task, with rows drawn by the seed.

    Validation rows are drawn from those of the paper's validation and test parts together. All
    others are test rows.
    """
    import torch

    from mopbt.torch import AdamW, Batches, TorchTask

    settings = SETTINGS["mlp"]
    task = paper.TASKS[name]
    train_rows, *others = encoded_parts(name)
    rng = np.random.default_rng([seed, len(train_rows[0])])
    drawn = torch.from_numpy(rng.choice(len(train_rows[0]), settings["rows"], replace=False))
    batches = Batches(*(column[drawn] for column in train_rows), batch_size=settings["batch"])
    pooled = [torch.cat(pair) for pair in zip(*others, strict=True)]
    order = torch.from_numpy(rng.permutation(len(pooled[0])))
    n = validation or len(others[0][0])
    is_fairness = "dsp" in task.objectives
    weight = paper.FAIRNESS_WEIGHT if is_fairness else paper.CLASS_WEIGHT
    space = {
        "weight_decay": LogGrid(1e-6, 0.1, 10, zero=True),
        "first_dropout": Grid(0, 0.8, 10),
        "second_dropout": Grid(0, 0.8, 10),
    }
    return TorchTask(
        partial(make_mlp, train_rows[0].shape[1], settings["width"]),
        loss=paper.fairness_loss if is_fairness else paper.precision_recall_loss,
        data=batches,
        optimizer=AdamW(lr=settings["lr"], weight_decay="weight_decay"),
        metrics=paper._fairness if is_fairness else paper._precision_recall,
        validation=tuple(column[order[:n]] for column in pooled),
        test=tuple(column[order[n:]] for column in pooled),
        name=name,
        space=space | weight,
        objectives=task.objectives,
        reference=task.reference,
        steps=settings["steps"],
        population=settings["population"],
    )


def make_mlp(inputs: int, width: int) -> Any:
    """Build a perceptron with two hidden layers and tuned dropout."""
    from torch import nn

    from mopbt.torch import Dropout

    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        Dropout("first_dropout"),
        nn.Linear(width, width),
        nn.ReLU(),
        Dropout("second_dropout"),
        nn.Linear(width, 2),
    )


def noisy_problem(name: str, noise: float) -> Any:
    """Return a synthetic problem whose metrics have the error that their noise gives them."""

    class Noisy(SYNTHETIC[name]):
        def evaluate(self, model):
            scores = super().evaluate(model)
            if self.noise:
                for objective in self.objectives:
                    scores[objective] = Estimate(scores[objective], stderr=self.noise)
            return scores

    return Noisy(noise=noise)


def execute(run: Run) -> dict[str, Any]:
    """Execute a run and measure it; all numbers are larger-is-better."""
    options = SETTINGS["variants"][run.variant]
    has_idea = "idea" in options
    algorithm = Idea(**options) if has_idea else algorithm_of({"name": "mo-pbt", **options})
    if run.task in SYNTHETIC:
        task = noisy_problem(run.task, run.size)
    else:
        task = mlp_task(run.task, int(run.size), run.seed)
    begin = time.process_time()
    # The name of the task is part of the seed, so that tasks do not share configurations.
    seed = mopbt.rng.derived_seed(run.seed, "better", run.task)
    engine = InProcessStacks()
    results = mopbt.run(
        task, algorithm=algorithm, seed=seed, engine=engine, out=None, progress=False
    )
    measured = measure(results, run.task in SYNTHETIC)
    return {**vars(run), **measured, "cpu": round(time.process_time() - begin, 2)}


def measure(results: Any, is_synthetic: bool) -> dict[str, float]:
    """Return the hypervolume and the value of choosing of both fronts on test data."""
    objectives = results.problem.objectives
    names = [objective.name for objective in objectives]
    reference = np.array(results.problem.reference)
    top = dict.fromkeys(names, 1.0) if is_synthetic else SETTINGS["ideal"]
    ideal = np.array(signed(objectives, {name: top[name] for name in names}))
    found = {}
    tests = {} if is_synthetic else {e.model: e.scores for e in results.evaluate("test")}
    for kind in KINDS:
        front = results.front(observed=kind == "observed")
        if is_synthetic:
            scores = [{name: p.scores[f"test/{name}"] for name in names} for p in front]
        else:
            missing = [p.model for p in front if p.model not in tests]
            if missing:
                tests |= {e.model: e.scores for e in results.evaluate("test", missing)}
            scores = [tests[p.model] for p in front]
        test = np.array([signed(objectives, own) for own in scores])
        shown = np.array([compared_values(p, objectives, kind) for p in front])
        choice = value_of_choosing(shown, test, reference, ideal)
        found[f"{kind}/size"] = len(front)
        found[f"{kind}/test"] = round(hypervolume(test, reference), 7)
        found[f"{kind}/claimed"] = round(choice.claimed, 7)
        found[f"{kind}/actual"] = round(choice.actual, 7)
    observed = results.front(observed=True)
    values = np.array([signed(objectives, p.scores) for p in observed])
    return found | {"validation": round(hypervolume(values, reference), 7)}


def compared_values(point: Any, objectives: Any, kind: str) -> tuple[float, ...]:
    """Return what a user compares: measured values, or their bounds."""
    if kind == "observed":
        return signed(objectives, point.scores)
    return mopbt.objectives.signed_bounds(objectives, point.scores, point.errors)


def finished() -> dict[Run, dict[str, Any]]:
    """Read the finished runs of all stages."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    records = [json.loads(line) for line in lines]
    return {Run(r["task"], r["size"], r["variant"], r["seed"]): r for r in records}


def execute_stage(stage: str, part: int, parts: int) -> None:
    """Execute the missing runs of a stage."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    done = finished()
    missing = [run for run in runs_of(stage) if run not in done]
    for run in missing[part::parts]:
        line = json.dumps(execute(run)) + "\n"
        with FILE.open("a") as file:
            file.write(line)
        print(line, end="", flush=True)


def best_kind(records: list[dict[str, Any]], measure_name: str) -> str:
    """Return the way to report a front that is better for an algorithm on average."""
    return max(KINDS, key=lambda kind: np.mean([r[f"{kind}/{measure_name}"] for r in records]))


def differences(
    done: dict[Run, dict[str, Any]], variant: str, rival: str, measure_name: str
) -> dict[tuple[str, float], np.ndarray]:
    """Return the differences of a variant from a rival for each task and size, paired by seed.

    Hypervolumes are in percent of the rival's mean. Both report the front that suits them better.
    """
    found = {}
    for task, size in dict.fromkeys((run.task, run.size) for run in done):
        pairs = []
        for run in done:
            own = Run(task, size, variant, run.seed)
            other = Run(task, size, rival, run.seed)
            if run == own and other in done:
                pairs.append((done[own], done[other]))
        if not pairs:
            continue
        numbers = []
        for side in zip(*pairs, strict=True):
            name = measure_name
            if measure_name != "validation":
                name = f"{best_kind(list(side), measure_name)}/{measure_name}"
            numbers.append(np.array([record[name] for record in side]))
        unit = 100 / numbers[1].mean() if measure_name != "actual" else 1.0
        found[task, size] = (numbers[0] - numbers[1]) * unit
    return found


def print_table(done: dict[Run, dict[str, Any]], rivals: tuple[str, ...] = RIVALS) -> None:
    """Print mean differences with standard errors over seeds, and the share of pairs won."""
    groups = defaultdict(list)
    for run in done:
        kind = "synthetic" if run.task in SYNTHETIC else "1,000 rows" if run.size else "all rows"
        groups[kind].append((run.task, run.size))
    for kind, members in groups.items():
        for rival in rivals:
            print(f"\n{kind}, against {rival}")
            for variant in SETTINGS["variants"]:
                cells = []
                for name in ("validation", "test", "actual"):
                    found = differences(done, variant, rival, name)
                    own = [found[key] for key in dict.fromkeys(members) if key in found]
                    if own:
                        cells.append(summary(own))
                if cells and variant != rival:
                    print(f"  {variant:36}", "  ".join(cells))


def summary(groups: list[np.ndarray]) -> str:
    """Return the mean over tasks, its standard error, and the pairs and tasks that were won."""
    mean = np.mean([group.mean() for group in groups])
    parts = [group.var(ddof=1) / len(group) if len(group) > 1 else np.nan for group in groups]
    error = np.sqrt(np.sum(parts)) / len(groups)
    values = np.concatenate(groups)
    tasks = sum(group.mean() > 0 for group in groups)
    won = f"{(values > 0).sum():3}/{len(values):3}; {tasks}/{len(groups)}"
    return f"{mean:+8.4f} ±{error:7.4f} [{won}]"


def main() -> None:
    """Execute a stage, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=list(SETTINGS["stages"]))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(finished())
        return
    import torch

    torch.set_num_threads(1)
    execute_stage(arguments.stage, arguments.part, arguments.parts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
