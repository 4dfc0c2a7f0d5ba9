"""List what is available: `mopbt algorithms` and `mopbt tasks`."""

from importlib.metadata import EntryPoint
from typing import Any

from rich.padding import Padding
from rich.text import Text

from mopbt.algorithms import ALGORITHMS, options_with_defaults
from mopbt.cli.application import JsonOption, app
from mopbt.cli.output import as_text, out, print_json
from mopbt.objectives import parse_objectives
from mopbt.registry import TaskFamily, registered


@app.command("algorithms")
def list_algorithms(as_json: JsonOption = False) -> None:
    """List the algorithms and their options.

    For each algorithm: its section in the paper, and the defaults of its options.
    """
    rows = [
        {
            "name": name,
            "about": str(kind.__doc__).partition("\n")[0],
            "section": kind.section,
            "options": options_with_defaults(kind),
        }
        for name, kind in ALGORITHMS.items()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out.print(Text.assemble((row["name"], "bold"), f"  (paper: {row['section']})"))
        _print_indented(row["about"])
        options = [f"{key}={_option_text(value)}" for key, value in row["options"].items()]
        _print_indented("  ".join(options), style="dim")
    out.print(
        "Select one with --algorithm NAME and set options with -o KEY=VALUE, for example: "
        "mopbt run toy --algorithm mo-asha -o eta=2"
    )


@app.command("tasks")
def list_tasks(as_json: JsonOption = False) -> None:
    """List the registered tasks.

    For each task: objectives, hyperparameters, scales, and whether its data are present.
    """
    rows = [_describe_task(name, point) for name, point in registered().items()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out.print(Text.assemble((row["name"], "bold"), f"  {row['about']}"), soft_wrap=True)
        if not row["space"]:
            continue
        objectives = [f"{name} {direction}" for name, direction in row["objectives"].items()]
        _print_indented(f"{', '.join(objectives)}; tunes {', '.join(row['space'])}", style="dim")
        if row["scales"]:
            _print_indented(f"scales {', '.join(row['scales'])}", style="dim")
        if row["data"]:
            _print_indented(f"data {row['data']}", style="dim")
    out.print("Run one with: mopbt run NAME --out runs/mine, for a task with scales --scale small")


def _print_indented(text: str, style: str | None = None) -> None:
    out.print(Padding(text, (0, 0, 0, 4), expand=False), style=style, markup=False)


def _describe_task(name: str, point: EntryPoint) -> dict[str, Any]:
    """Describe a registered task without loading its data."""
    try:
        task = point.load()
        return _description(name, task() if isinstance(task, type) else task)
    except Exception as error:
        # A broken package must not hide the other tasks.
        return {
            "name": name,
            "about": f"cannot be loaded: {error}",
            "objectives": {},
            "space": [],
            "scales": [],
            "data": "",
        }


def _description(name: str, task: Any) -> dict[str, Any]:
    is_family = isinstance(task, TaskFamily)
    objectives = parse_objectives(task.objectives)
    return {
        "name": name,
        "about": task.about if is_family else str(type(task).__doc__).partition("\n")[0],
        "objectives": {objective.name: objective.direction for objective in objectives},
        "space": list(task.space),
        "scales": list(task.scales) if is_family else [],
        "data": task.data_state() if is_family else "",
    }


def _option_text(value: Any) -> str:
    if value is None:
        return "none"
    return as_text(value).lower() if isinstance(value, bool) else as_text(value)
