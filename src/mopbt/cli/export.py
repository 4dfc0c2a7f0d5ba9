"""Export a run to other programs: `mopbt export`."""

from collections.abc import Callable
from typing import Annotated

import typer

from mopbt.cli.application import PrivateOption, RunArgument, app
from mopbt.cli.output import database_url, out
from mopbt.integrations.optuna import to_optuna
from mopbt.results import Results
from mopbt.trackers import to_mlflow, to_tensorboard, to_wandb

EXPORTERS: dict[str, Callable[..., object]] = {
    "csv": Results.to_csv,
    "tensorboard": to_tensorboard,
    "mlflow": lambda results, place, **options: to_mlflow(
        results, database_url(place, "mlflow.db"), **options
    ),
    "wandb": to_wandb,
    "optuna": lambda results, place, **named: to_optuna(
        results, database_url(place, "optuna.db"), **named
    ),
}

# The formats that an option is for.
OPTIONS = {
    "name": ("optuna",),
    "models": ("mlflow",),
    "private": ("tensorboard", "mlflow", "wandb"),
}

DestinationArgument = Annotated[
    str,
    typer.Argument(
        metavar="DESTINATION",
        help="A directory; for csv a file; for mlflow and optuna also a URL.",
        show_default=False,
    ),
]
StudyOption = Annotated[
    str | None,
    typer.Option(
        help="Name of the Optuna study [default: name of the run's directory].",
        show_default=False,
    ),
]


ModelsOption = Annotated[
    bool, typer.Option("--models", help="Log the models of the front to MLflow too.")
]


@app.command("export")
def export_run(
    path: RunArgument,
    destination: DestinationArgument,
    to: Annotated[str, typer.Option(help=f"One of {', '.join(EXPORTERS)}.", show_default=False)],
    name: StudyOption = None,
    models: ModelsOption = False,
    private: PrivateOption = False,
) -> None:
    """Export a run, finished or not.

    The result is a CSV table, or data for TensorBoard, MLflow, Weights & Biases (offline) or
    Optuna.

    Example: mopbt export runs/demo reports.csv --to csv
    """
    if to not in EXPORTERS:
        raise ValueError(f"--to must be one of {', '.join(EXPORTERS)}, got {to!r}")
    options: dict[str, object] = {"name": name, "models": models, "private": private}
    given = {option: value for option, value in options.items() if value}
    for option in given:
        if to not in OPTIONS[option]:
            formats = ", ".join(OPTIONS[option])
            raise ValueError(f"--{option} is for --to {formats}, got it for {to}; leave it out")
    results = Results.open(path)
    EXPORTERS[to](results, destination, **given)
    out.print(
        f"Exported {len(results)} reports of {path} to {destination} (format: {to}).",
        soft_wrap=True,
        markup=False,
    )
