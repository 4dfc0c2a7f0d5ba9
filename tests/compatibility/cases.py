"""The recorded runs: the commands that make each one, and those that resume it.

Commands run in the directory that contains the tasks; a run has the name of its case.
Most runs are interrupted by a budget, so that later versions have jobs to resume.
"""

from dataclasses import dataclass

EXTENSIBLE = ("mo-pbt", "pbt", "pbt-max-scalarization", "pbt-random-scalarization", "random-search")
PBT = EXTENSIBLE[:-1]


@dataclass(frozen=True)
class Case:
    """A recorded run. `exact` says that a resumed run is the same on every machine."""

    record: tuple[str, ...]
    resume: tuple[str, ...]
    exact: bool = True


def case(
    name,
    task="recorded_tasks.py:plane",
    options="",
    *,
    algorithm="mo-pbt",
    engine="local",
    jobs=9,
    more=(),
    steps=7,
    exact=True,
):
    """Return a case: start a run, stop it after some jobs, and do `more` to it."""
    start = f"run {task} --out {name} --algorithm {algorithm} --quiet"
    if algorithm in EXTENSIBLE:
        start += " --population 4"
    start = f"{start} --engine {engine} --budget-jobs {jobs} {options}"
    resume = [f"resume {name} --engine {engine} --quiet"]
    if algorithm in EXTENSIBLE and steps:
        resume.append(f"{resume[0]} --steps {steps}")
    return Case((start, *more), tuple(resume), exact)


def _algorithms():
    for algorithm in EXTENSIBLE:
        yield algorithm, {"algorithm": algorithm}
    for algorithm in PBT:
        options = "-o asynchronous=true -o inherit_step=true"
        yield f"{algorithm}-async", {"algorithm": algorithm, "options": options}
    for algorithm in ("mo-asha", "bo-mo-asha"):
        yield algorithm, {"algorithm": algorithm, "options": "-o trials=12"}
        options = "-o trials=12 -o kind=promotion -o eta=2"
        yield f"{algorithm}-promotion", {"algorithm": algorithm, "options": options}
    options = "-o population=4 -o trainings=8"
    yield "nsga2", {"algorithm": "nsga2", "options": options, "jobs": 30}
    for name, algorithm, options in (
        ("qnehvi", "qnehvi", "-o trainings=5 -o batch=2"),
        ("qnehvi-async", "qnehvi", "-o trainings=5 -o batch=2 -o asynchronous=true"),
        ("parego", "parego", "-o trainings=4"),
    ):
        many = {"jobs": 15, "exact": False}
        yield name, {"algorithm": algorithm, "options": options, **many}


def _engines():
    for engine in ("pool --workers 1", "vectorized --workers 1 --stack 4"):
        yield engine.split()[0], {"engine": engine}
    yield "simulated", {"engine": "simulated --workers 3"}
    options = "-o asynchronous=true"
    yield "simulated-async", {"engine": "simulated --workers 3", "options": options}
    yield "pool-async", {"engine": "pool --workers 2", "options": options, "exact": False}
    yield "ray", {"engine": "ray --workers 1"}
    yield "ray-async", {"engine": "ray --workers 2", "options": options, "exact": False}


def _options():
    yield "every-domain", {"task": "recorded_tasks.py:every_domain"}
    yield "three-objectives", {"task": "recorded_tasks.py:three"}
    yield "diverging", {"task": "recorded_tasks.py:diverging"}
    yield "failing", {"task": "recorded_tasks.py:failing"}
    yield (
        "diverging-async",
        {"task": "recorded_tasks.py:diverging", "options": "-o asynchronous=true"},
    )
    yield "constraints", {"options": "--constraint 'near >= -0.3' --constraint 'size <= 1.2'"}
    yield "estimates", {"task": "recorded_tasks.py:noisy", "options": "--confidence 0.9"}
    noise = "-o margin=1.0 -o lineage=2 -o cooling=true -o sparse_donors=true"
    yield "noise-options", {"task": "recorded_tasks.py:noisy", "options": noise}
    yield (
        "pessimistic",
        {"task": "recorded_tasks.py:noisy", "options": "-o pessimistic=true -o within=crowded"},
    )
    other = "-o within=hypervolume -o explore=random -o start=iid -o fraction=0.5"
    yield "other-parts", {"options": other}
    yield "frequencies", {"options": "-o frequencies=[1,2]"}
    yield "interpolation", {"options": "-o interpolate=true -o candidates=2", "steps": None}
    yield "keep", {"options": "--keep 1"}
    yield "initial", {"options": "--initial initial.json"}
    yield "storage", {"options": "--storage stored"}
    yield "function", {"task": "recorded_tasks.py:function", "jobs": 6, "steps": 8}


def _changed_runs():
    """Runs that are complete, or were changed after their start."""
    for task in ("with_rows", "noisy_rows"):
        name = f"evaluated-{task.replace('_', '-')}"
        more = (f"evaluate {name} --rows test --repeats 2",)
        yield name, {"task": f"recorded_tasks.py:{task}", "jobs": 1000, "more": more}
    yield "complete", {"jobs": 1000}
    more = ("resume extended-steps --engine local --quiet --steps 8 --budget-jobs 26",)
    yield "extended-steps", {"jobs": 1000, "more": more, "steps": 9}
    more = ("resume extended-members --engine local --quiet --population 6 --budget-jobs 27",)
    yield "extended-members", {"jobs": 1000, "more": more}
    more = ("damage repaired", "resume repaired --engine local --quiet --repair --budget-jobs 9")
    yield "repaired", {"more": more}
    yield "extended-random", {"algorithm": "random-search", "jobs": 1000, "steps": 8}
    yield "warm-start", {"options": "--warm-start complete"}


def _networks():
    torch = {"exact": False, "jobs": 6, "steps": 5}
    yield "torch", {"task": "recorded_networks.py:net", **torch}
    yield (
        "torch-vectorized",
        {"task": "recorded_networks.py:net", "engine": "vectorized --workers 1", **torch},
    )
    yield "torch-averaged", {"task": "recorded_networks.py:averaged", **torch}
    yield "torch-bf16", {"task": "recorded_networks.py:bf16", **torch}
    yield (
        "torch-fresh-rows",
        {"task": "recorded_networks.py:net", "options": "-o fresh_rows=0.5", **torch},
    )
    yield (
        "torch-folds",
        {"task": "recorded_networks.py:net", "options": "-o folds=4 -o margin=1.0", **torch},
    )
    yield "torch-ema", {"task": "recorded_networks.py:net", "options": "-o ema=0.9", **torch}
    precision = {"options": "--keep-precision bf16", **torch}
    yield "torch-keep-precision", {"task": "recorded_networks.py:net", **precision}


CASES = {
    name: case(name, **options)
    for group in (_algorithms(), _engines(), _options(), _changed_runs(), _networks())
    for name, options in group
}
INITIAL = [{"weight": 0.5, "lr": 0.1}, {"weight": 0.2, "lr": 1.0}]
