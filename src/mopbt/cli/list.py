"""What there is to choose from: `mopbt algorithms` and `mopbt tasks`."""

from typing import Any

from rich.padding import Padding

from mopbt.algorithms import ALGORITHMS, options_with_defaults
from mopbt.cli.app import JsonOption, app
from mopbt.cli.output import as_text, out, print_json
from mopbt.registry import registered


@app.command("algorithms")
def list_algorithms(as_json: JsonOption = False) -> None:
    """List the algorithms with their options and defaults, and where the paper has them."""
    listed = [
        {
            "name": name,
            "about": str(kind.__doc__).partition("\n")[0],
            "section": kind.section,
            "options": options_with_defaults(kind),
        }
        for name, kind in ALGORITHMS.items()
    ]
    if as_json:
        print_json(listed)
        return
    for entry in listed:
        out.print(f"[bold]{entry['name']}[/bold]  (paper: {entry['section']})")
        out.print(Padding(entry["about"], (0, 0, 0, 4), expand=False), markup=False)
        options = "  ".join(
            f"{key}={_option_text(value)}" for key, value in entry["options"].items()
        )
        out.print(Padding(options, (0, 0, 0, 4), expand=False), style="dim", markup=False)
    out.print(
        "Choose one with --algorithm NAME, and options with -o KEY=VALUE, as in: mopbt run toy --algorithm mo-asha -o eta=2"
    )


@app.command("tasks")
def list_tasks(as_json: JsonOption = False) -> None:
    """List the registered tasks with their objectives, hyperparameters, scales, and whether their data are here."""
    listed = [_task_row(name, point) for name, point in registered().items()]
    if as_json:
        print_json(listed)
        return
    for row in listed:
        scales = f", scales {', '.join(row['scales'])}" if row["scales"] else ""
        out.print(f"[bold]{row['name']}[/bold]  {row['about']}{scales}")
        directions = ", ".join(
            f"{name} {direction}" for name, direction in row["objectives"].items()
        )
        out.print(
            Padding(f"{directions}; tunes {', '.join(row['space'])}", (0, 0, 0, 4), expand=False),
            style="dim",
            markup=False,
        )
        if row["data"]:
            out.print(
                Padding(f"data {row['data']}", (0, 0, 0, 4), expand=False),
                style="dim",
                markup=False,
            )
    out.print("Run one with: mopbt run NAME --scale small --out runs/mine")


def _task_row(name: str, point: Any) -> dict[str, Any]:
    """Return what there is to say of a registered task without loading its data."""
    try:
        task = point.load()
        task = task() if isinstance(task, type) else task
    except Exception as error:  # of somebody's package: the others can still be listed
        return {
            "name": name,
            "about": f"cannot be loaded: {error}",
            "objectives": {},
            "space": [],
            "scales": [],
            "data": "",
        }
    about = getattr(task, "about", "") or str(type(task).__doc__).partition("\n")[0]
    data = getattr(task, "data_state", lambda: "")()
    return {
        "name": name,
        "about": about,
        "objectives": dict(task.objectives),
        "space": list(task.space),
        "scales": list(getattr(task, "scales", ())),
        "data": data,
    }


def _option_text(value: Any) -> str:
    if value is None:
        return "none"
    return as_text(value).lower() if isinstance(value, bool) else as_text(value)
