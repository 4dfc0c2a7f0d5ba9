"""Export a trained model: weights, origin as JSON, model card in Markdown."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from mopbt.errors import StoreError
from mopbt.front import Ancestor, Front, Point, schedule_of
from mopbt.member import visible
from mopbt.messages import counted, with_error
from mopbt.run_config import RunConfig
from mopbt.serialization import dumps, is_pickle, is_tensor, loads
from mopbt.version import __version__

_TEST = "test/"


@dataclass(frozen=True)
class Exported:
    """The files of an exported model.

    Attributes:
        weights: The weights.
        about: The metrics and the origin of the model, as JSON.
        card: The model card, in Markdown.
    """

    weights: Path
    about: Path
    card: Path


@dataclass(frozen=True)
class Origin:
    """The run that a model comes from: its settings, its front, and its name."""

    settings: RunConfig
    front: Front
    run: str


def export_model(
    file: Path, checkpoint: bytes, point: Point, lineage: Sequence[Ancestor], origin: Origin
) -> Exported:
    """Write the weights of a checkpoint to a file, with origin and card beside it.

    The origin is a .json and the card a .md file of the same name. The weights are a safetensors
    file: the `state_dict` of a PyTorch model, for other models all tracked state. A checkpoint in
    the task's own format is written unchanged, with the suffix .bin.
    """
    check_export_path(file)
    return _write(file, checkpoint, describe_model(point, lineage, origin))


def _write(file: Path, checkpoint: bytes, about: Mapping[str, Any]) -> Exported:
    data, kind = extract_weights(checkpoint)
    weights = file if kind.startswith("safetensors") else file.with_suffix(".bin")
    about = {**about, "weights": weights.name, "format": kind}
    exported = Exported(weights, file.with_suffix(".json"), file.with_suffix(".md"))
    contents = {
        exported.weights: data,
        exported.about: _as_json(about),
        exported.card: model_card(about).encode(),
    }
    for path, content in contents.items():
        _write_file(path, content)
    return exported


def export_hub(
    directory: Path,
    checkpoint: bytes,
    about: Mapping[str, Any],
    config: Mapping[str, Any],
    license: str,
) -> Path:
    """Write a model as a folder for the Hugging Face Hub, and return it."""
    data, kind = extract_weights(checkpoint)
    if not kind.startswith("safetensors"):
        raise ValueError(
            f"the Hub wants weights as safetensors, but the format of this checkpoint is {kind}; "
            "load the model, save it in a safe format, and upload that"
        )
    described = {**about, "weights": "model.safetensors", "format": kind}
    metadata = _hub_metadata(described, license)
    contents = {
        "model.safetensors": data,
        "config.json": _as_json({**config, "mopbt": described}),
        "README.md": f"---\n{metadata}---\n\n{model_card(described)}".encode(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        _write_file(directory / name, content)
    return directory


def _hub_metadata(about: Mapping[str, Any], license: str) -> str:
    """Return the metadata of a model card as YAML, of which JSON is a part."""
    name = f"{about['task']}-{about['model']}"
    results = []
    for rows in ("validation", "test"):
        metrics = [
            {"type": metric, "value": value, "name": f"{metric} ({rows})"}
            for metric, value in about[rows].items()
            if isinstance(value, int | float)
        ]
        if metrics:
            dataset = {"name": f"{about['task']} ({rows})", "type": about["task"]}
            task = {"type": "other", "name": about["task"]}
            results.append({"task": task, "dataset": dataset, "metrics": metrics})
    metadata: dict[str, Any] = {"tags": ["mopbt", "multi-objective", "pareto-front"]}
    metadata["model-index"] = [{"name": name, "results": results}]
    if about["format"].endswith("state_dict"):
        metadata["library_name"] = "pytorch"
    if license:
        metadata["license"] = license
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items())


def _as_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; export to a writable directory"
        ) from error


def check_hub_directory(directory: Path) -> None:
    """Raise an error unless a directory is new or empty.

    So nothing else is uploaded.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(
            f"a model for the Hub needs a new or empty directory, got {directory}; name another one"
        )


def check_export_path(file: Path) -> None:
    """Raise an error if a model cannot be exported to a file of this name."""
    if file.is_dir():
        raise ValueError(
            f"an export needs a file name, such as {file / 'model.safetensors'}, got the directory "
            f"{file}"
        )
    if not file.parent.is_dir():
        raise StoreError(
            f"cannot export to {file}: there is no directory {file.parent}; create it first, or "
            "use an existing one"
        )
    if file.suffix != ".safetensors":
        raise ValueError(
            "weights are exported as safetensors, to a file that ends in .safetensors, got "
            f"{file.name!r}; name it {file.with_suffix('.safetensors').name}"
        )


def extract_weights(data: bytes) -> tuple[bytes, str]:
    """Return a checkpoint without what only training needs, and its format in words."""
    try:
        state = visible(loads(data))
    except ValueError:
        if is_pickle(data):
            return data, "a pickle"
        return data, "the task's own: load it with the task's `load`"
    model = _find_model(state) if isinstance(state, dict) else None
    if model is None:
        return dumps(state), "safetensors: the tracked state"
    return dumps(model), "safetensors: a state_dict"


def _find_model(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tracked object named `model`, or else the only module.

    A module is recognized as a dict that holds nothing but tensors.
    """
    if isinstance(state.get("model"), dict):
        return dict(state["model"])
    dicts = [tracked for tracked in state.values() if isinstance(tracked, dict)]
    modules = [d for d in dicts if d and all(map(is_tensor, d.values()))]
    return modules[0] if len(modules) == 1 else None


def describe_model(point: Point, lineage: Sequence[Ancestor], origin: Origin) -> dict[str, Any]:
    """Collect the metrics and the origin of a model in a JSON object.

    `lineage` holds the intervals that trained the model.
    """
    settings = origin.settings
    shortfall = origin.front.shortfall(point)
    why = point.why or (f"Model {point.model}: {shortfall}." if shortfall else "")
    validation = {}
    test = {}
    for name, value in point.scores.items():
        if name.startswith(_TEST):
            test[name.removeprefix(_TEST)] = _to_json(value)
        else:
            validation[name] = _to_json(value)
    return {
        "model": point.model,
        "task": settings.problem.name,
        # The folders above the file of a task concern no reader of a card.
        "task_reference": PurePath(settings.task_reference).name,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "validation": validation,
        "test": test,
        "errors": {name: bar._asdict() for name, bar in point.errors.items()},
        "confidence": settings.confidence,
        "violation": _to_json(point.violation),
        "why": why,
        "steps": point.step,
        "hp": dict(point.hp),
        "schedule": [
            {"begin": begin, "end": end, "hp": dict(hp)} for begin, end, hp in schedule_of(lineage)
        ],
        "trials": [ancestor.trial for ancestor in lineage],
        "run": origin.run,
        "algorithm": dict(settings.algorithm),
        "seed": settings.seed,
        "front": len(origin.front),
        "mopbt": __version__,
    }


def model_card(about: Mapping[str, Any]) -> str:
    """Write the card of a model: its metrics, how it was trained, how to load it."""
    front = f"Its run has {counted(about['front'], 'model')} on the front."
    return "\n".join(
        [
            f"# Model {about['model']} of {about['task']}",
            "",
            about["why"] or front,
            "",
            *_metrics_table(about),
            "",
            *_constraints_note(about),
            "## How it was trained",
            "",
            _training_summary(about) + ("" if about["violation"] else f" {front}"),
            "",
            *_schedule_table(about),
            "",
            "## How to load it",
            "",
            *_loading_code(about),
        ]
    )


def _metrics_table(about: Mapping[str, Any]) -> list[str]:
    directions = {"max": "larger is better", "min": "smaller is better"}
    rows = ["| metric | | validation | test |", "|---|---|---|---|"]
    errors = about["errors"]
    for name, value in about["validation"].items():
        direction = directions.get(about["objectives"].get(name, ""), "")
        test = _format_measured(about["test"].get(name), errors.get(f"{_TEST}{name}"))
        measured = _format_measured(value, errors.get(name))
        rows.append(f"| {name} | {direction} | {measured} | {test} |")
    if errors:
        rows += ["", f"Intervals have a confidence of {about['confidence']:.0%}."]
    return rows


def _constraints_note(about: Mapping[str, Any]) -> list[str]:
    if not about["constraints"]:
        return []
    violated = ", which it does not satisfy" if about["violation"] else ""
    return [f"It was trained under {' and '.join(about['constraints'])}{violated}.", ""]


def _training_summary(about: Mapping[str, Any]) -> str:
    members = 1 + sum(a != b for a, b in pairwise(about["trials"]))
    run = f", run `{about['run']}`" if about["run"] else ""
    return (
        f"Trained for {about['steps']} steps by {about['algorithm']['name']} (seed "
        f"{about['seed']}{run}) with mopbt {about['mopbt']}; its weights passed "
        f"through {counted(members, 'member')} of the population."
    )


def _schedule_table(about: Mapping[str, Any]) -> list[str]:
    names = list(about["hp"])
    rows = [f"| steps | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for interval in about["schedule"]:
        values = " | ".join(_format_value(interval["hp"][name]) for name in names)
        rows.append(f"| {interval['begin']}-{interval['end']} | {values} |")
    return rows


def _loading_code(about: Mapping[str, Any]) -> list[str]:
    weights = about["weights"]
    if about["format"].endswith("state_dict"):
        lines = [
            "from safetensors.torch import load_file",
            "",
            f'model.load_state_dict(load_file("{weights}"))',
        ]
    elif about["format"].startswith("safetensors"):
        lines = [
            "from pathlib import Path",
            "",
            "import mopbt",
            "",
            f'state = mopbt.loads(Path("{weights}").read_bytes())',
        ]
    elif about["format"] == "a pickle":
        lines = [
            "import pickle",
            "from pathlib import Path",
            "",
            "# Loading a pickle runs the code in it: load only files that you trust.",
            f'model = pickle.loads(Path("{weights}").read_bytes())',
        ]
    else:
        lines = [
            "from pathlib import Path",
            "",
            f'model = task.load(Path("{weights}").read_bytes())',
        ]
    return ["```python", *lines, "```", ""]


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _format_measured(value: Any, error: Mapping[str, float] | None) -> str:
    """Format a metric with its standard error and its interval, if it has one."""
    if error is None:
        return _format_value(value)
    bounds = f"{error['lower']:.4g} to {error['upper']:.4g}"
    return f"{with_error(value, error['stderr'])} ({bounds})"


def _to_json(value: float) -> Any:
    """Return a number, or its text if JSON has no such number."""
    return value if math.isfinite(value) else repr(value)
