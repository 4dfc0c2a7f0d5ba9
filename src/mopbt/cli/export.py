"""Handing a run on to other programs: `mopbt export`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mopbt.cli.app import RunArgument, app
from mopbt.cli.output import out
from mopbt.integrations.optuna import to_optuna
from mopbt.results import Results
from mopbt.trackers.services import to_mlflow, to_tensorboard, to_wandb

PLACES: dict[str, Callable[..., object]] = {
    "csv": Results.to_csv,
    "tensorboard": to_tensorboard,
    "mlflow": lambda results, place: to_mlflow(results, _url(place, "mlflow.db")),
    "wandb": to_wandb,
    "optuna": lambda results, place, **named: to_optuna(results, _url(place, "optuna.db"), **named),
}


@app.command("export")
def hand_on(
    path: RunArgument,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="A directory; for csv a file; for mlflow and optuna also a URL.",
            show_default=False,
        ),
    ],
    to: Annotated[str, typer.Option(help=f"One of {', '.join(PLACES)}.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(
            help="The name of Optuna's study [default: that of the run's directory].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run, as far as it has come, as a table, or for TensorBoard, MLflow, Weights & Biases (offline) or Optuna.

    Example: mopbt export runs/demo reports.csv --to csv
    """
    if to not in PLACES:
        raise ValueError(f"--to must be one of {', '.join(PLACES)}, got {to!r}")
    if name is not None and to != "optuna":
        raise ValueError(f"--name is for --to optuna, got it for {to}; leave it out")
    results = Results.open(path)
    PLACES[to](results, place, **({} if name is None else {"name": name}))
    out.print(
        f"written for {to}: {len(results)} reports of {path} in {place}",
        soft_wrap=True,
        markup=False,
    )


def _url(place: str, file: str) -> str:
    """Return the address of a database: as it is given, or of a file in a directory."""
    if "://" in place:
        return place
    Path(place).mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{Path(place).absolute() / file}"
