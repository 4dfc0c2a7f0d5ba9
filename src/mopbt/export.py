"""A model taken home from a run: its weights as one file, what made it as JSON, and a card for people in Markdown."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt import tree
from mopbt.errors import StoreError
from mopbt.function import visible
from mopbt.results import Choice, Point, Results
from mopbt.spelling import counted
from mopbt.version import __version__


@dataclass(frozen=True)
class Exported:
    """The files of an exported model."""

    weights: Path
    about: Path
    card: Path


def export(results: Results, point: Point | int, file: Path | str) -> Exported:
    """Write a model's weights into `file`, its making into a .json and a card into a .md of the same name.

    The weights of PyTorch models are a plain safetensors file of the `state_dict`; other tasks give what their checkpoint holds.
    """
    file = Path(file)
    if file.suffix in (".json", ".md"):
        raise ValueError(f"the weights need a file name of their own, such as model.safetensors, got {file.name!r}")
    check_place(file)
    found = point if isinstance(point, Point) else results.point(point)
    data, kind = weights_of(results.checkpoint(found))
    about = about_model(results, found) | {"weights": file.name, "format": kind}
    exported = Exported(file, file.with_suffix(".json"), file.with_suffix(".md"))
    file.write_bytes(data)
    exported.about.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    exported.card.write_text(model_card(about), encoding="utf-8")
    return exported


def check_place(file: Path) -> None:
    """Raise an error where a file cannot be written: its directory is not there, or it is one itself."""
    if file.is_dir():
        raise ValueError(f"an export needs the name of a file, such as {file / 'model.safetensors'}, got the directory {file}")
    if not file.parent.is_dir():
        raise StoreError(f"there is no directory {file.parent} to export into; make it first, or name one that is there")


def weights_of(data: bytes) -> tuple[bytes, str]:
    """Return a checkpoint without what only training needs, and what it then is."""
    try:
        state = visible(tree.loads(data))
    except ValueError:
        return data, "the task's own: load it with the task's `load`"
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        return tree.dumps(state["model"]), "safetensors: a state_dict"
    return tree.dumps(state), "safetensors: the tracked state"


def about_model(results: Results, point: Point) -> dict[str, Any]:
    """Return all there is to say of a model, as JSON has it."""
    settings, front, test = results.settings, results.front(), "test/"
    lacks = front.shortfall(point)
    scores = {name: _plain(value) for name, value in point.scores.items()}
    return {
        "model": point.job,
        "task": settings.problem.name,
        "origin": settings.origin,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "validation": {name: value for name, value in scores.items() if not name.startswith(test)},
        "test": {name.removeprefix(test): value for name, value in scores.items() if name.startswith(test)},
        "violation": _plain(point.violation),
        "why": point.why if isinstance(point, Choice) else f"Model {point.job}: {lacks}." if lacks else "",
        "steps": point.step,
        "values": dict(point.values),
        "schedule": [{"begin": begin, "end": end, "values": dict(values)} for begin, end, values in results.schedule(point)],
        "trials": [a.trial for a in results.lineage(point)],
        "run": results.path.name if results.path is not None else "",
        "algorithm": dict(settings.algorithm),
        "seed": settings.seed,
        "front": len(front),
        "mopbt": __version__,
    }


def model_card(about: Mapping[str, Any]) -> str:
    """Return the card of a model: what it is, how good it is, how it was made, how to load it."""
    names = list(about["values"])
    changes = sum(a != b for a, b in zip(about["trials"], about["trials"][1:], strict=False))
    scores = [
        f"| {name} | {_direction(about, name)} | {_number(value)} | {_number(about['test'].get(name))} |"
        for name, value in about["validation"].items()
    ]
    schedule = [f"| {s['begin']}-{s['end']} | {' | '.join(_number(s['values'][n]) for n in names)} |" for s in about["schedule"]]
    front = f"Its run has {counted(about['front'], 'model')} on the front."
    ways = f"{about['algorithm']['name']} (seed {about['seed']}, run `{about['run']}`)"
    return "\n".join(
        [
            f"# Model {about['model']} of {about['task']}",
            "",
            about["why"] or front,
            "",
            "| score | | validation | test |",
            "|---|---|---|---|",
            *scores,
            "",
            *_limits(about),
            "## How it was made",
            "",
            f"Trained for {about['steps']} steps by {ways} with mopbt {about['mopbt']}; its weights went through {changes + 1} "
            f"member{'s' if changes else ''} of the population.{'' if about['violation'] else f' {front}'}",
            "",
            f"| steps | {' | '.join(names)} |",
            "|" + "---|" * (len(names) + 1),
            *schedule,
            "",
            "## How to load it",
            "",
            *_loading(about),
        ]
    )


def _loading(about: Mapping[str, Any]) -> list[str]:
    if about["format"].endswith("state_dict"):
        lines = ["from safetensors.torch import load_file", "", f'model.load_state_dict(load_file("{about["weights"]}"))']
    elif about["format"].startswith("safetensors"):
        lines = [
            "from pathlib import Path",
            "",
            "import mopbt",
            "",
            f'state = mopbt.loads(Path("{about["weights"]}").read_bytes())',
        ]
    else:
        lines = ["from pathlib import Path", "", f'model = task.load(Path("{about["weights"]}").read_bytes())']
    return ["```python", *lines, "```", ""]


def _limits(about: Mapping[str, Any]) -> list[str]:
    if not about["constraints"]:
        return []
    lacks = ", which it does not satisfy" if about["violation"] else ""
    return [f"It was trained under {' and '.join(about['constraints'])}{lacks}.", ""]


def _direction(about: Mapping[str, Any], name: str) -> str:
    return {"max": "larger is better", "min": "smaller is better"}.get(about["objectives"].get(name, ""), "")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _plain(value: float) -> Any:
    return value if math.isfinite(value) else repr(value)
