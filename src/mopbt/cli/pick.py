"""Select, export and retrain models: `mopbt pick` and `mopbt replay`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mopbt.cli.application import (
    JsonOption,
    ModelArgument,
    PrivateOption,
    RunArgument,
    TrustOption,
    app,
    check_trusted,
)
from mopbt.cli.output import as_text, out, plain, point_json, print_json, table_of
from mopbt.export import Exported, check_export_path
from mopbt.front import Front, Point, score_text
from mopbt.messages import counted
from mopbt.registry import find_task, split_scale
from mopbt.results import Results
from mopbt.run_config import as_recorded

WhereOption = Annotated[
    list[str] | None,
    typer.Option(help="A limit on a metric, such as 'accuracy >= 0.85'; can be repeated."),
]
BestOption = Annotated[
    str | None,
    typer.Option(help="Select the model that is best in this objective.", show_default=False),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(help="The weight of an objective, such as accuracy=2; can be repeated."),
]
ModelOption = Annotated[
    int | None,
    typer.Option(
        metavar="MODEL",
        help="Select the model with this id, as listed by `mopbt front`.",
        show_default=False,
    ),
]
ExportOption = Annotated[
    Path | None,
    typer.Option(
        "--export",
        help="Write the weights to this .safetensors file, with a .json of their origin and a .md "
        "model card.",
        show_default=False,
    ),
]
HubOption = Annotated[
    Path | None,
    typer.Option(
        "--hub",
        metavar="DIR",
        help="Write a folder for the Hugging Face Hub: README.md, model.safetensors, config.json.",
        show_default=False,
    ),
]
LicenseOption = Annotated[
    str, typer.Option(help="License of the model, such as mit, for --hub.", show_default=False)
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        help="Train another task with the same hyperparameters, named as for `mopbt run`.",
        show_default=False,
    ),
]
ScaleOption = Annotated[
    str | None, typer.Option(help="Train the run's task at another size.", show_default=False)
]
AncestryOption = Annotated[
    bool,
    typer.Option(
        help="Follow the weights through every exploit, or only the trial's own schedule."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(help="Another random seed than that of the run.", show_default=False)
]


@app.command()
def pick(
    path: RunArgument,
    where: WhereOption = None,
    best: BestOption = None,
    weight: WeightOption = None,
    model: ModelOption = None,
    exported: ExportOption = None,
    hub: HubOption = None,
    license: LicenseOption = "",
    private: PrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Select a model from the front, and optionally export it.

    By default the knee is selected; --best, --weight and --model select another model.

    Example: mopbt pick runs/demo --where "accuracy >= 0.85" --best dsp --export model.safetensors
    """
    results = Results.open(path)
    if model is None:
        choice = _pick_by_rule(results.front(), where or [], best, weight or [])
    else:
        if where or best or weight:
            raise ValueError("--model selects the model: leave out --where, --best and --weight")
        choice = _pick_by_id(results, model)
    files = results.export(choice, exported, private=private) if exported else None
    if hub is not None:
        results.export_hub(choice, hub, license=license, private=private)
    if as_json:
        print_json(
            point_json(results, choice) | {"why": choice.why, "exported": _file_names(files)}
        )
        return
    out.print(choice.why, soft_wrap=True)
    _print_choice(results, choice)
    if hub is not None:
        out.print(f"Written for the Hugging Face Hub: {hub}", soft_wrap=True, markup=False)
    if files is not None:
        _print_exported(files)
    elif hub is None:
        _print_next_steps(path, results, choice)


@app.command("replay")
def replay_model(
    path: RunArgument,
    model: ModelArgument,
    task: TaskOption = None,
    scale: ScaleOption = None,
    ancestry: AncestryOption = True,
    seed: SeedOption = None,
    exported: ExportOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retrain a model along its schedule, and compare the metrics.

    Example: mopbt replay runs/demo 1203 --seed 1
    """
    results = Results.open(path)
    # A wrong path is reported before the training.
    if exported is not None:
        check_export_path(exported)
    reference = _task_reference(results, task, scale)
    check_trusted(path, reference, trust or task is not None)
    found, _ = find_task(reference, results.problem)
    found = as_recorded(found, results.settings)
    again = results.replay(model, found, ancestry=ancestry, seed=seed)
    files = again.export(exported) if exported else None
    if as_json:
        parts = {
            "original": again.original,
            "replayed": again.scores,
            "differences": again.differences,
            "exported": _file_names(files),
        }
        print_json({name: plain(dict(part)) for name, part in parts.items()})
        return
    table = table_of(["metric", "original", "replayed", "difference"])
    for name, value in again.scores.items():
        original = as_text(again.original.get(name, ""))
        difference = as_text(again.differences.get(name, ""))
        table.add_row(name, original, as_text(value), difference)
    out.print(table)
    out.print(str(again), soft_wrap=True)
    if files is not None:
        _print_exported(files)


def _parse_weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(
            f"--weight must read OBJECTIVE=NUMBER, as in accuracy=2, got {text!r}"
        ) from None


def _pick_by_rule(
    front: Front, where: Sequence[str], best: str | None, weight: Sequence[str]
) -> Point:
    if best is not None and weight:
        raise ValueError("--best and --weight exclude each other: leave out one of them")
    candidates = front.where(*where) if where else front
    if best is not None:
        return candidates.best(best)
    if weight:
        return candidates.weighted(dict(map(_parse_weight, weight)))
    return candidates.knee()


def _pick_by_id(results: Results, model: int) -> Point:
    point = results.point(model)
    lacks = results.front().shortfall(point)
    why = f"Model {model}, selected by its id" + (f": {lacks}" if lacks else "")
    return replace(point, why=f"{why}.")


def _task_reference(results: Results, task: str | None, scale: str | None) -> str:
    if task is not None:
        return task if scale is None else f"{task}@{scale}"
    own = results.settings.task_reference
    if not own:
        raise ValueError(
            f"{results.path} was started from a Python program, which holds its task: name it "
            f"with --task"
        )
    return own if scale is None else f"{split_scale(own)[0]}@{scale}"


def _print_choice(results: Results, choice: Point) -> None:
    choice = results.with_evaluations(choice)
    tested = any(name.startswith("test/") for name in choice.scores)
    columns = ["metric", "validation"]
    table = table_of([*columns, "test"] if tested else columns)
    for name in choice.scores:
        if name.startswith("test/"):
            continue
        cells = [name, score_text(choice, name)]
        if tested:
            test = f"test/{name}"
            cells.append(score_text(choice, test) if test in choice.scores else "")
        table.add_row(*cells)
    out.print(table)
    values = ", ".join(f"{name} {as_text(value)}" for name, value in choice.hp.items())
    parts = counted(len(results.schedule(choice)), "part")
    out.print(f"Last interval: {values}; its schedule has {parts}.", soft_wrap=True)


def _print_next_steps(path: Path, results: Results, choice: Point) -> None:
    if choice.model in results.checkpoints.kept():
        export_hint = "Export it with --export model.safetensors"
    else:
        export_hint = (
            f"Its checkpoint was not kept: `mopbt replay {path} {choice.model} --export "
            f"model.safetensors` retrains it"
        )
    out.print(
        f"{export_hint}; `mopbt lineage {path} {choice.model}` shows how it was trained.",
        soft_wrap=True,
    )


def _print_exported(files: Exported) -> None:
    out.print(
        f"Exported: {files.weights} (weights), {files.about} (origin), {files.card} (model card).",
        soft_wrap=True,
    )


def _file_names(files: Exported | None) -> dict[str, str]:
    return {} if files is None else {name: str(file) for name, file in vars(files).items()}
