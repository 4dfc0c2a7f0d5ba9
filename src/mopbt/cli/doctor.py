"""Check the installation and the machine: `mopbt doctor`."""

import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mopbt.cli.application import JsonOption, app
from mopbt.cli.output import out, print_json
from mopbt.engines.devices import available_cores, discover
from mopbt.errors import MopbtError
from mopbt.stores.directory import DirectoryStore
from mopbt.version import __version__

LITTLE_SPACE = 2**30
# The package of each extra that says whether the extra is installed.
EXTRAS = {
    "bo": "botorch",
    "lightning": "lightning",
    "mlflow": "mlflow-skinny",
    "optuna": "optuna",
    "pandas": "pandas",
    "plot": "matplotlib",
    "ray": "ray",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "transformers": "transformers",
    "wandb": "wandb",
}

PlaceArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory that holds, or will hold, your runs.")
]


@app.command()
def doctor(directory: PlaceArgument = Path("runs"), as_json: JsonOption = False) -> None:
    """Check the installation, the devices and a directory for runs.

    Exits with 1 if a run could not be executed here.

    Example: mopbt doctor runs
    """
    found = {
        "mopbt": __version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "packages": {name: _version_of(name) for name in _requirements()},
        "extras": {extra: _version_of(package) for extra, package in EXTRAS.items()},
        "cores": available_cores(),
        "devices": [device.name for device in discover(refresh=True)] or ["cpu"],
        "directory": _check_directory(directory),
    }
    problems = _problems(found)
    if as_json:
        print_json(found | {"problems": problems})
    else:
        _print_findings(found)
        for problem in problems:
            out.print(problem, style="yellow", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _requirements() -> list[str]:
    """Return the names of the packages that mopbt cannot do without."""
    needed = [line for line in requires("mopbt") or [] if "extra ==" not in line]
    return sorted(line.partition(">")[0].partition("<")[0].strip() for line in needed)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_directory(directory: Path) -> dict[str, Any]:
    """Open and remove a new run's store in or above a directory, as a run would."""
    place = directory.absolute()
    while not place.is_dir():
        place = place.parent
    found: dict[str, Any] = {"path": str(directory.absolute()), "locks": False, "problem": ""}
    found["free_bytes"] = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryDirectory(prefix=".mopbt-doctor-", dir=place) as scratch:
            store = DirectoryStore(Path(scratch, "run"))
            found["locks"] = True
            store.close()
    except (MopbtError, OSError) as error:
        found["problem"] = str(error)
    return found


def _problems(found: dict[str, Any]) -> list[str]:
    problems = []
    missing = [name for name, known in found["packages"].items() if known is None]
    if missing:
        problems.append(f"missing: {', '.join(missing)}; pip install {' '.join(missing)}")
    place = found["directory"]
    if place["problem"]:
        problems.append(f"{place['path']} cannot hold runs: {place['problem']}")
    if place["free_bytes"] < LITTLE_SPACE:
        free = place["free_bytes"] / 2**20
        problems.append(
            f"{place['path']} has only {free:.0f} MiB left; free some space, or use another disk"
        )
    return problems


def _print_findings(found: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("mopbt", found["mopbt"])
    table.add_row("Python", found["python"])
    table.add_row("packages", ", ".join(f"{k} {v}" for k, v in found["packages"].items()))
    present = [f"{k} ({EXTRAS[k]} {v})" for k, v in found["extras"].items() if v]
    absent = [k for k, v in found["extras"].items() if not v]
    table.add_row("extras", ", ".join(present) or "none")
    if absent:
        table.add_row("not installed", f"{', '.join(absent)}: pip install 'mopbt[NAME]'")
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    table.add_row("cores", f"{found['cores']} (OMP_NUM_THREADS is {threads})")
    table.add_row("devices", ", ".join(found["devices"]))
    place = found["directory"]
    locks = "locks work" if place["locks"] else "no locks"
    table.add_row("runs", f"{place['path']}: {locks}, {place['free_bytes'] / 2**30:.1f} GiB free")
    out.print(table, markup=False)
