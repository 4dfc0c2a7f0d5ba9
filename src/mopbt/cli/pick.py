"""Taking a model home: `mopbt pick` and `mopbt replay`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mopbt.cli.app import JsonOption, RunArgument, app
from mopbt.cli.output import as_text, out, plain, point_json, print_json, table_of
from mopbt.export import Exported, check_place, export, export_again
from mopbt.messages import counted
from mopbt.registry import find_task, split_scale
from mopbt.replay import replay
from mopbt.results import Choice, Results

ExportOption = Annotated[
    Path | None,
    typer.Option(
        "--export",
        help="Write the weights into this .safetensors, with a .json of what made them and a .md card.",
        show_default=False,
    ),
]


@app.command()
def pick(
    path: RunArgument,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="A limit on a score, such as 'accuracy >= 0.85'; may be given several times."
        ),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(help="Take the model that is best in this objective.", show_default=False),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            help="How much an objective counts, such as accuracy=2; may be given several times."
        ),
    ] = None,
    job: Annotated[
        int | None,
        typer.Option(
            help="Take the model of this job, as `mopbt front` lists it.", show_default=False
        ),
    ] = None,
    exported: ExportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a model from the front: its knee, or --best within limits, or by --weight; and export it.

    Example: mopbt pick runs/demo --where "accuracy >= 0.85" --best dsp --export model.safetensors
    """
    results = Results.open(path)
    choice = (
        _by_job(results, job, where, best, weight)
        if job is not None
        else _by_rule(results, where, best, weight)
    )
    files = export(results, choice, exported) if exported else None
    if as_json:
        print_json(point_json(results, choice) | {"why": choice.why, "exported": _names(files)})
        return
    out.print(choice.why, soft_wrap=True)
    _print_choice(results, choice)
    _tell(path, results, choice, files)


@app.command("replay")
def train_again(
    path: RunArgument,
    job: Annotated[
        int,
        typer.Argument(
            metavar="POINT",
            help="The job of a model, as `mopbt front` lists it.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="Another task with the same hyperparameters, as for `mopbt run`.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Another size of the run's own task.", show_default=False)
    ] = None,
    ancestry: Annotated[
        bool,
        typer.Option(
            help="Follow the weights through every exploit, or only what the trial itself was set to."
        ),
    ] = True,
    seed: Annotated[
        int | None, typer.Option(help="Other randomness than the run's own.", show_default=False)
    ] = None,
    exported: ExportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model of the front again, from scratch, along the schedule that made it, and say how close it comes.

    Example: mopbt replay runs/demo 1203 --seed 1
    """
    results = Results.open(path)
    if exported is not None:
        check_place(exported)  # before the training
    found, _ = find_task(_reference(results, task, scale))
    again = replay(results, job, found, ancestry=ancestry, seed=seed)
    files = export_again(results, again, exported) if exported else None
    if as_json:
        parts = {
            "original": again.original,
            "replayed": again.scores,
            "differences": again.differences,
            "exported": _names(files),
        }
        print_json({name: plain(dict(part)) for name, part in parts.items()})
        return
    table = table_of(["score", "original", "replayed", "difference"])
    for name, value in again.scores.items():
        table.add_row(
            name,
            as_text(again.original.get(name, "")),
            as_text(value),
            as_text(again.differences.get(name, "")),
        )
    out.print(table)
    out.print(str(again), soft_wrap=True)
    if files is not None:
        _tell_exported(files)


def _by_rule(
    results: Results, where: list[str] | None, best: str | None, weight: list[str] | None
) -> Choice:
    how: Any = dict(map(_weight, weight or [])) or (None if best else "knee")
    return results.front().pick(how, where=where or [], best=best)


def _by_job(results: Results, job: int, *rules: Any) -> Choice:
    if any(rules):
        raise ValueError("--job names the model itself: leave out --where, --best and --weight")
    point = results.point(job)
    lacks = results.front().shortfall(point)
    return Choice(**vars(point), why=f"Model {job}, as asked for{lacks and ': '}{lacks}.")


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(
            f"--weight must read OBJECTIVE=NUMBER, as in accuracy=2, got {text!r}"
        ) from None


def _reference(results: Results, task: str | None, scale: str | None) -> str:
    if task is not None:
        return task if scale is None else f"{task}@{scale}"
    if not results.settings.task_reference:
        raise ValueError(
            f"{results.path} was started from a Python program, which holds its task: name it with --task"
        )
    own = results.settings.task_reference
    return own if scale is None else f"{split_scale(own)[0]}@{scale}"


def _print_choice(results: Results, choice: Choice) -> None:
    tested = any(name.startswith("test/") for name in choice.scores)
    table = table_of(["score", "validation", "test"] if tested else ["score", "validation"])
    for name, value in choice.scores.items():
        if not name.startswith("test/"):
            test = choice.scores.get(f"test/{name}")
            table.add_row(
                name, as_text(value), *(["" if test is None else as_text(test)] if tested else [])
            )
    out.print(table)
    values = ", ".join(f"{name} {as_text(value)}" for name, value in choice.hp.items())
    out.print(
        f"Last interval: {values}; schedule of {counted(len(results.schedule(choice)), 'part')}.",
        soft_wrap=True,
    )


def _tell(path: Path, results: Results, choice: Choice, files: Exported | None) -> None:
    if files is not None:
        _tell_exported(files)
        return
    kept = choice.job in results.checkpoints.kept()
    gone = f"It is not kept: `mopbt replay {path} {choice.job} --export model.safetensors` trains it again"
    take = "Take it with --export model.safetensors" if kept else gone
    out.print(f"{take}; `mopbt lineage {path} {choice.job}` shows what made it.", soft_wrap=True)


def _tell_exported(files: Exported) -> None:
    out.print(
        f"Exported: {files.weights} (weights), {files.about} (how it was made), {files.card} (its card).",
        soft_wrap=True,
    )


def _names(files: Exported | None) -> dict[str, str]:
    return {} if files is None else {name: str(file) for name, file in vars(files).items()}
