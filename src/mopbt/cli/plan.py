"""Predict what a run will take: `mopbt plan`."""

from mopbt.cli.application import JsonOption, app
from mopbt.cli.options import (
    EngineOptions,
    JobsOption,
    KeepOption,
    KeepPrecisionOption,
    PrecisionOption,
    ResourceOptions,
    TaskOptions,
    expand_options,
)
from mopbt.cli.output import out, print_json
from mopbt.planning import plan as make_plan
from mopbt.problem import with_precision
from mopbt.session import Budget


@app.command()
@expand_options
def plan(
    *,
    wanted: TaskOptions,
    engine: EngineOptions,
    resources: ResourceOptions,
    precision: PrecisionOption = None,
    keep: KeepOption = None,
    keep_precision: KeepPrecisionOption = None,
    budget_jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the time, memory and disk space of a run of TASK.

    A small part of the run is measured first.

    Example: mopbt plan adult-fairness --scale small --keep 20
    """
    found, _ = wanted.load_task(quiet=as_json)
    found = with_precision(found, precision)
    predicted = make_plan(
        found,
        algorithm=wanted.make_algorithm(found),
        engine=engine.name,
        engine_options=engine.settings(resources),
        budget=Budget(jobs=budget_jobs),
        keep=keep,
        keep_precision=keep_precision,
    )
    if as_json:
        print_json(predicted.to_dict())
    else:
        out.print(str(predicted), soft_wrap=True, markup=False)
