"""Predict what a run will take: `mopbt plan`."""

from typing import Any

from mopbt.algorithms import algorithm_by_name
from mopbt.cli.application import JsonOption, app
from mopbt.cli.output import out, print_json
from mopbt.cli.run import (
    AddressOption,
    AlgorithmOption,
    AlgorithmOptionsOption,
    CostOption,
    CpusOption,
    DevicesOption,
    EngineOption,
    GpusOption,
    JobsOption,
    KeepOption,
    PartialDataOption,
    PopulationOption,
    ScaleOption,
    StackOption,
    TaskArgument,
    WorkersOption,
    WorkersPerDeviceOption,
    load_task,
    parse_devices,
    parse_options,
)
from mopbt.planning import plan as make_plan
from mopbt.problem import suggested_population
from mopbt.registry import with_scale
from mopbt.session import Budget


@app.command()
def plan(
    task: TaskArgument,
    scale: ScaleOption = None,
    allow_partial_data: PartialDataOption = False,
    algorithm: AlgorithmOption = "mo-pbt",
    population: PopulationOption = None,
    option: AlgorithmOptionsOption = None,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    address: AddressOption = None,
    devices: DevicesOption = None,
    workers_per_device: WorkersPerDeviceOption = None,
    stack: StackOption = None,
    num_cpus: CpusOption = None,
    num_gpus: GpusOption = None,
    keep: KeepOption = None,
    budget_jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a small part of a run of TASK, and predict its time, memory and disk space.

    Example: mopbt plan adult-fairness --scale small --keep 20
    """
    wanted = with_scale(task, scale, allow_partial_data=allow_partial_data)
    found, _ = load_task(wanted, quiet=as_json)
    options = parse_options(option or [])
    if population is not None:
        options["population"] = population
    sizes: dict[str, Any] = {"workers": workers, "cost": cost, "address": address, "stack": stack}
    sizes |= {"devices": parse_devices(devices), "workers_per_device": workers_per_device}
    sizes |= {"num_cpus": num_cpus, "num_gpus": num_gpus}
    predicted = make_plan(
        found,
        algorithm=algorithm_by_name(algorithm, suggested_population(found), **options),
        engine=engine,  # type: ignore[arg-type]
        engine_options=sizes,
        budget=Budget(jobs=budget_jobs),
        keep=keep,
    )
    if as_json:
        print_json(predicted.to_dict())
    else:
        out.print(str(predicted), soft_wrap=True, markup=False)
