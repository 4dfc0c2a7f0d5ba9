"""Measure models on other rows than those of the search: `mopbt evaluate`."""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import typer
from rich.table import Table

from mopbt.arguments import check_count
from mopbt.cli.application import JsonOption, RunArgument, TrustOption, app
from mopbt.cli.output import out, print_json
from mopbt.cli.run import find_task_of
from mopbt.engines.pool import PoolEngine
from mopbt.evaluations import Evaluation
from mopbt.results import Results
from mopbt.run_directory import read_run_config

RowsOption = Annotated[
    str | None,
    typer.Option(
        help="Name of the rows, such as test [default: all that the task declares].",
        show_default=False,
    ),
]
RepeatsOption = Annotated[
    int, typer.Option(help="Number of evaluations of each model, with different seeds.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Number of worker processes [default: this process].", show_default=False),
]


@app.command()
def evaluate(
    path: RunArgument,
    rows: RowsOption = None,
    repeats: RepeatsOption = 1,
    workers: WorkersOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the models on the front on test data.

    --rows names other rows that the task declares. Evaluations that were made before are
    not repeated.

    Example: mopbt evaluate runs/demo --rows test --repeats 5
    """
    check_count("--repeats", repeats, 1)
    task = find_task_of(path, read_run_config(path), trust=trust)
    results = Results.open(path, task)
    engine = None if workers is None else PoolEngine(workers)
    found = results.evaluate(rows, seeds=range(repeats), engine=engine)
    if as_json:
        print_json([evaluation.to_json() for evaluation in found])
    else:
        _print_table(found)


def _print_table(found: Sequence[Evaluation]) -> None:
    """Print the mean over all repetitions, one line for each model and rows."""
    groups: dict[tuple[int, str], list[Evaluation]] = {}
    for evaluation in found:
        groups.setdefault((evaluation.model, evaluation.rows), []).append(evaluation)
    names = list(dict.fromkeys(name for evaluation in found for name in evaluation.scores))
    table = Table("model", "rows", "evaluations", *names, box=None)
    for (model, rows), evaluations in groups.items():
        means = []
        for name in names:
            values = [e.scores[name] for e in evaluations if name in e.scores]
            means.append(f"{fmean(values):.6g}" if values else "")
        table.add_row(str(model), rows, str(len(evaluations)), *means)
    out.print(table)
