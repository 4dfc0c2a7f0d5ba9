"""Check on real data what a front with errors claims, and whether choosing from it is better.

Every seed draws its own validation and test rows from the pooled rows of a task, and trains one
population. All selection rules are applied to the same trained models. One file for each task and
seed holds what is needed for the tables, so a rerun resumes and skips what exists.

Run it with ``python benchmarks/honesty.py``; ``--quick`` is a test on tiny networks.
"""

import argparse
import gzip
import json
import math
import os
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

import mopbt
from mopbt.compare.measures import value_of_choosing
from mopbt.estimate import normal_quantile
from mopbt.metrics import own_reference
from mopbt.objectives import signed
from mopbt.tasks.paper import TASKS as PAPER_TASKS
from mopbt.uncertainty import corrected_claims

TASKS = [name for name, task in PAPER_TASKS.items() if task.build.__name__ == "build_tabular"]
CONFIDENCE = 0.9
RESAMPLES = 2000
RULES = ("observed", "honest")


def redrawn_task(name, scale, seed):
    """Return a task whose validation and test rows are drawn from both parts together."""
    import torch

    paper = PAPER_TASKS[name]
    size = paper.scales[scale]
    task = paper.build(paper, replace(size, validation=0, test=0))
    pooled = [torch.cat(pair) for pair in zip(task.validation, task.test, strict=True)]
    order = np.random.default_rng([seed, len(pooled[0])]).permutation(len(pooled[0]))
    # At a small scale, the rows that are not needed for validation are the test rows.
    split = size.validation or len(task.validation[0])
    parts = [[x[torch.from_numpy(rows)] for x in pooled] for rows in np.split(order, [split])]
    validation, test = (tuple(part) for part in parts)
    return replace(task, validation=validation, test=test)


def record(name, scale, seed):
    """Train a population, measure both of its fronts on test rows, and return the numbers."""
    task = redrawn_task(name, scale, seed)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        results = mopbt.run(task, out=Path(folder) / "run", seed=seed, progress=False)
        trained = time.perf_counter() - begin
        fronts = {"observed": results.front(observed=True), "honest": results.front()}
        models = sorted({point.model for front in fronts.values() for point in front})
        tests = {e.model: e for e in results.evaluate("test", models)}
        begin = time.perf_counter()
        results.claims()
        warning = results.noise_warning()
        checked = time.perf_counter() - begin
        reports = results.history.reports
        finite = np.flatnonzero(np.isfinite(reports.objectives()).all(axis=1))
        jobs = reports.jobs()[finite].tolist()
        names = [o.name for o in results.problem.objectives]
        return {
            "objectives": names,
            "reference": results.problem.reference,
            "values": reports.objectives()[finite].tolist(),
            "stderr": reports.stderrs()[finite].tolist(),
            "bounds": reports.bounds()[finite].tolist(),
            "rows": {k: [jobs.index(p.model) for p in front] for k, front in fronts.items()},
            "models": [jobs.index(model) for model in models],
            "test": [signed(results.problem.objectives, tests[m].scores) for m in models],
            "test_stderr": [[_stderr(tests[m], n) for n in names] for m in models],
            "seconds": {"run": trained, "claims and warning": checked},
            "warning": warning,
        }


def _stderr(evaluation, name):
    bar = evaluation.errors.get(name)
    return math.nan if bar is None else bar.stderr


def collect(folder, names, seeds, scale):
    """Read the records of tasks and seeds; make those that are missing."""
    records = {}
    for seed, name in product(range(seeds), names):
        file = folder / f"{name}-{seed}.json.gz"
        if not file.exists():
            print(f"{name}, seed {seed}", flush=True)
            part = file.with_suffix(".part")
            text = json.dumps(rounded(record(name, scale, seed)))
            part.write_bytes(gzip.compress(text.encode(), mtime=0))
            part.replace(file)
        records[name, seed] = json.loads(gzip.decompress(file.read_bytes()))
    return records


def rounded(value):
    """Return JSON values with seven significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def hits_of(data, rule):
    """Return whether intervals contain the difference to test values, (m, K); NaN if unknown.

    Both standard errors count. The rule "corrected" takes the claims about the honest front.
    """
    rows = data["rows"]["honest" if rule == "corrected" else rule]
    places = [data["models"].index(row) for row in rows]
    values = np.array(data["values"])
    stderr = np.array(data["stderr"])
    mean = values[rows]
    error = stderr[rows]
    if rule == "corrected":
        claims = corrected_claims(values, stderr, rows, np.random.default_rng(0))
        mean = claims.mean
        error = claims.stderr
    test = np.array(data["test"])[places]
    width = np.hypot(error, np.array(data["test_stderr"])[places])
    hits = np.abs(mean - test) <= normal_quantile(CONFIDENCE) * width
    return np.where(np.isfinite(test) & np.isfinite(width), hits, np.nan)


def clustered_interval(clusters, rng):
    """Return the mean of values in clusters, and its 95 % bootstrap interval over clusters."""
    known = [c[np.isfinite(c)] for c in map(np.ravel, clusters)]
    sums = np.array([c.sum() for c in known])
    sizes = np.array([len(c) for c in known])
    if not sizes.sum():
        return math.nan, math.nan, math.nan
    draws = rng.integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[draws].sum(axis=1) / np.maximum(sizes[draws].sum(axis=1), 1)
    lower, upper = np.percentile(means, [2.5, 97.5])
    return float(sums.sum() / sizes.sum()), float(lower), float(upper)


def choice_of(data, rule, reference, ideal):
    """Return the utility of choosing from a front: by values, or by bounds from the honest one."""
    rows = data["rows"][rule]
    compared = np.array(data["values" if rule == "observed" else "bounds"])[rows]
    test = np.array(data["test"])[[data["models"].index(row) for row in rows]]
    return value_of_choosing(compared, test, reference, ideal)


def ranges_of(records):
    """Return the fixed reference and ideal points of a task, from all of its seeds."""
    fronts = [np.array(d["values"])[d["rows"]["observed"]] for d in records]
    given = records[0]["reference"]
    reference = own_reference(np.concatenate(fronts)) if given is None else np.array(given)
    return reference, np.concatenate(fronts).max(axis=0)


def print_calibration(records, names, seeds):
    rng = np.random.default_rng(0)
    print(f"\nCoverage of {CONFIDENCE:.0%} intervals, 95 % intervals clustered by seed")
    for rule in (*RULES, "corrected"):
        hits = {key: hits_of(data, rule) for key, data in records.items()}
        print(_coverage(f"{rule}, pooled", list(hits.values()), rng))
        for name in names:
            for k, objective in enumerate(records[name, 0]["objectives"]):
                clusters = [hits[name, seed][:, k] for seed in range(seeds)]
                print(_coverage(f"{rule}, {name}, {objective}", clusters, rng))


def _coverage(title, clusters, rng):
    mean, lower, upper = clustered_interval(clusters, rng)
    return f"  {title:<60} {mean:.3f} [{lower:.3f}, {upper:.3f}]"


def print_choosing(records, names, seeds):
    print("\nChoosing: utility claimed and on test rows, observed and honest front")
    for name in names:
        of_task = [records[name, seed] for seed in range(seeds)]
        reference, ideal = ranges_of(of_task)
        if not (ideal > reference).all():
            print(f"  {name}: no front is above the reference point")
            continue
        choices = {r: [choice_of(d, r, reference, ideal) for d in of_task] for r in RULES}
        pairs = list(zip(*(choices[rule] for rule in RULES), strict=True))
        pairs = [pair for pair in pairs if None not in pair]
        wins = sum(honest.actual > observed.actual for observed, honest in pairs)
        numbers = []
        for i, rule in enumerate(RULES):
            claimed = np.mean([pair[i].claimed for pair in pairs])
            actual = np.mean([pair[i].actual for pair in pairs])
            numbers.append(f"{rule} {claimed:.3f} and {actual:.3f}")
        print(f"  {name}: {', '.join(numbers)}; honest better in {wins} of {len(pairs)} seeds")


def noise(m):
    """Report metrics that have nothing to do with the model."""
    state = np.zeros(1)
    m.track(state=state)
    for _ in m.steps():
        state += m.hp["x"]
    draw = np.random.default_rng(m.seed)
    m.report(a=mopbt.Estimate(draw.normal(), 1.0), b=mopbt.Estimate(draw.normal(), 1.0))


def count_warnings(runs, population, steps):
    """Return in how many runs with random metrics the front comes with a warning."""
    warned = 0
    for seed in range(runs):
        results = mopbt.run(
            noise,
            space={"x": mopbt.Float(0.0, 1.0)},
            objectives={"a": "max", "b": "max"},
            population=population,
            steps=steps,
            interval=1,
            seed=seed,
            out=None,
            engine="local",
            progress=False,
        )
        warned += bool(results.front().warning)
    return warned


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", action="append", choices=TASKS, help="by default all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--scale", default="small", help="of the tasks, such as small-1000")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to test the script")
    parser.add_argument("--out", type=Path, default=Path("results/honesty"))
    options = parser.parse_args(arguments)
    names = options.task or TASKS
    scale = "smoke" if options.quick else options.scale
    folder = options.out / scale
    folder.mkdir(parents=True, exist_ok=True)
    records = collect(folder, names, options.seeds, scale)
    print_calibration(records, names, options.seeds)
    print_choosing(records, names, options.seeds)
    runs = 2 if options.quick else 100
    shape = (8, 10) if options.quick else (32, 50)
    warned = count_warnings(runs, *shape)
    print(f"\nRandom metrics: a warning in {warned} of {runs} runs")
    seconds = [data["seconds"] for data in records.values()]
    share = sum(s["claims and warning"] for s in seconds) / sum(s["run"] for s in seconds)
    print(f"Claims and warning took {share:.1%} of the time of the runs")


if __name__ == "__main__":
    os.nice(5)
    main()
