"""A model taken home from a run: its weights as one file, what made it as JSON, and a card for people in Markdown."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mopbt import serialization
from mopbt.errors import StoreError
from mopbt.front import Ancestor, Point
from mopbt.function_task import visible
from mopbt.messages import counted
from mopbt.replay import Replayed
from mopbt.results import Results, is_pickle, schedule_of
from mopbt.version import __version__


@dataclass(frozen=True)
class Exported:
    """The files of an exported model."""

    weights: Path
    about: Path
    card: Path


def export(results: Results, point: Point | int, file: Path | str) -> Exported:
    """Write a model's weights into `file`, its making into a .json and a card into a .md of the same name.

    The weights are a safetensors file: of a PyTorch model its `state_dict`, of others all that was tracked. A checkpoint in a
    format of the task's own is no such file, and becomes a .bin of the same name.
    """
    check_place(Path(file))
    found = point if isinstance(point, Point) else results.point(point)
    return _write(
        Path(file), results.checkpoint(found), about_model(results, found, results.lineage(found))
    )


def export_again(results: Results, again: Replayed, file: Path | str) -> Exported:
    """Write a model that was trained again in the same way as one of its run."""
    check_place(Path(file))
    lacks = results.front().shortfall(again.point)
    said = f"Model {again.point.job}, trained again along its schedule on {again.problem.name} with the seed {again.seed}"
    choice = replace(again.point, why=f"{said}{lacks and ': '}{lacks}. {again}")
    return _write(Path(file), again.data, about_model(results, choice, again.lineage))


def _write(file: Path, checkpoint: bytes, about: Mapping[str, Any]) -> Exported:
    data, kind = weights_of(checkpoint)
    weights = file if kind.startswith("safetensors") else file.with_suffix(".bin")
    about = {**about, "weights": weights.name, "format": kind}
    exported = Exported(weights, file.with_suffix(".json"), file.with_suffix(".md"))
    texts = {
        exported.about: json.dumps(about, indent=2, ensure_ascii=False) + "\n",
        exported.card: model_card(about),
    }
    for place, content in (
        {exported.weights: data} | {place: text.encode() for place, text in texts.items()}
    ).items():
        try:
            place.write_bytes(content)
        except OSError as error:
            raise StoreError(
                f"cannot write {place}: {error.strerror}; name a place that can be written"
            ) from error
    return exported


def check_place(file: Path) -> None:
    """Raise an error where a file cannot be written: it is a directory, or in none, or is named as what it will not be."""
    if file.is_dir():
        raise ValueError(
            f"an export needs the name of a file, such as {file / 'model.safetensors'}, got the directory {file}"
        )
    if not file.parent.is_dir():
        raise StoreError(
            f"there is no directory {file.parent} to export into; make it first, or name one that is there"
        )
    if file.suffix != ".safetensors":
        raise ValueError(
            f"weights are exported as safetensors, in a file that ends in .safetensors, got {file.name!r}; name it "
            f"{file.with_suffix('.safetensors').name}"
        )


def weights_of(data: bytes) -> tuple[bytes, str]:
    """Return a checkpoint without what only training needs, and what it then is."""
    try:
        state = visible(serialization.loads(data))
    except ValueError:
        return data, "a pickle" if is_pickle(
            data
        ) else "the task's own: load it with the task's `load`"
    model = _model_in(state) if isinstance(state, dict) else None
    if model is None:
        return serialization.dumps(state), "safetensors: the tracked state"
    return serialization.dumps(model), "safetensors: a state_dict"


def _model_in(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the model among what was tracked: what has that name, or else the only module (a dict of tensors alone)."""
    if isinstance(state.get("model"), dict):
        return dict(state["model"])
    modules = [
        s
        for s in state.values()
        if isinstance(s, dict) and s and all(map(serialization.is_tensor, s.values()))
    ]
    return modules[0] if len(modules) == 1 else None


def about_model(results: Results, point: Point, lineage: Sequence[Ancestor]) -> dict[str, Any]:
    """Return all there is to say of a model that these intervals made, as JSON has it."""
    settings, front, test = results.settings, results.front(), "test/"
    lacks = front.shortfall(point)
    scores = {name: _plain(value) for name, value in point.scores.items()}
    return {
        "model": point.job,
        "task": settings.problem.name,
        "task_reference": settings.task_reference,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "validation": {name: value for name, value in scores.items() if not name.startswith(test)},
        "test": {
            name.removeprefix(test): value
            for name, value in scores.items()
            if name.startswith(test)
        },
        "violation": _plain(point.violation),
        "why": point.why or (f"Model {point.job}: {lacks}." if lacks else ""),
        "steps": point.step,
        "hp": dict(point.hp),
        "schedule": [
            {"begin": begin, "end": end, "hp": dict(values)}
            for begin, end, values in schedule_of(lineage)
        ],
        "trials": [a.trial for a in lineage],
        "run": results.path.name if results.path is not None else "",
        "algorithm": dict(settings.algorithm),
        "seed": settings.seed,
        "front": len(front),
        "mopbt": __version__,
    }


def model_card(about: Mapping[str, Any]) -> str:
    """Return the card of a model: what it is, how good it is, how it was made, how to load it."""
    names = list(about["hp"])
    changes = sum(a != b for a, b in zip(about["trials"], about["trials"][1:], strict=False))
    scores = [
        f"| {name} | {_direction(about, name)} | {_number(value)} | {_number(about['test'].get(name))} |"
        for name, value in about["validation"].items()
    ]
    schedule = [
        f"| {s['begin']}-{s['end']} | {' | '.join(_number(s['hp'][n]) for n in names)} |"
        for s in about["schedule"]
    ]
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
        lines = [
            "from safetensors.torch import load_file",
            "",
            f'model.load_state_dict(load_file("{about["weights"]}"))',
        ]
    elif about["format"].startswith("safetensors"):
        lines = [
            "from pathlib import Path",
            "",
            "import mopbt",
            "",
            f'state = mopbt.loads(Path("{about["weights"]}").read_bytes())',
        ]
    elif about["format"] == "a pickle":
        lines = [
            "import pickle",
            "from pathlib import Path",
            "",
            "# Reading a pickle runs what is written in it: read only those that you trust.",
            f'model = pickle.loads(Path("{about["weights"]}").read_bytes())',
        ]
    else:
        lines = [
            "from pathlib import Path",
            "",
            f'model = task.load(Path("{about["weights"]}").read_bytes())',
        ]
    return ["```python", *lines, "```", ""]


def _limits(about: Mapping[str, Any]) -> list[str]:
    if not about["constraints"]:
        return []
    lacks = ", which it does not satisfy" if about["violation"] else ""
    return [f"It was trained under {' and '.join(about['constraints'])}{lacks}.", ""]


def _direction(about: Mapping[str, Any], name: str) -> str:
    return {"max": "larger is better", "min": "smaller is better"}.get(
        about["objectives"].get(name, ""), ""
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _plain(value: float) -> Any:
    return value if math.isfinite(value) else repr(value)
