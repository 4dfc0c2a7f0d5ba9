"""Define the paper's tasks at its size and at sizes for a laptop.

The tasks are precision/recall, accuracy/fairness and accuracy/robustness. `TASKS` has an entry for
each row of the paper's tables. ``TASKS["adult-fairness"].at("small")`` builds the task, as does
``mopbt run adult-fairness --scale small``. `SCALES` defines the scales.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from mopbt.errors import DataMissing, MissingExtra
from mopbt.messages import did_you_mean
from mopbt.objectives import Direction
from mopbt.space import Domain, Grid, LogGrid
from mopbt.tasks import registry
from mopbt.tasks.datasets import ImageRows, Images, Tabular, TabularRows, subset

ScaleName = Literal["paper", "medium", "small", "small-1000", "smoke"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Set the size of a task.

    Attributes:
        rows: Training rows, 0 for all.
        validation: Validation rows, 0 for all.
        test: Test rows, 0 for all. Only the models on the final front are measured on them.
        width: Size of a token of a transformer, or width factor of a WideResNet.
        depth: Blocks of a transformer, or layers of a WideResNet.
        side: Shorter side of an image in pixels.
        batch: Rows in a batch.
        updates: Weight updates in a step, 0 for an epoch.
        steps: Steps of training.
        interval: Steps between two decisions.
        lr: Learning rate.
        attack: Steps of the attack in training.
        evaluation_attack: Steps of the attack in evaluation.
        population: Members of the population.
    """

    rows: int = 0
    validation: int = 0
    test: int = 0
    width: int
    depth: int
    side: int = 32
    batch: int
    updates: int = 0
    steps: int
    interval: int
    lr: float
    attack: int = 10
    evaluation_attack: int = 20
    population: int = 32


# `paper` needs a GPU. `small` is for comparisons on two cores: it has fewer training rows, smaller
# networks and shorter intervals, but keeps 50 exploit steps (25 under attack), because with few of
# them MO-PBT and random search are equal. `small-1000` has 1,000 validation rows, `medium` all rows
# and a larger network. Rules that know nothing of other algorithms than random search gave learning
# rate and length of `small`, see experiments/research/presets.py. `smoke` only shows that
# everything works.
_SMALL = Scale(
    rows=2048, width=32, depth=1, batch=64, updates=32, steps=50, interval=1, lr=3e-3
)  # fmt: skip
_TABULAR = {
    "paper": Scale(width=192, depth=3, batch=512, steps=100, interval=2, lr=1e-5),
    "medium": replace(_SMALL, rows=0, width=64, depth=2, lr=1e-3),
    "small": _SMALL,
    "small-1000": replace(_SMALL, validation=1000),
    "smoke": Scale(
        rows=256, validation=200, test=200, width=8, depth=1, batch=64, updates=2, steps=3,
        interval=1, lr=1e-3, population=4,
    ),
}  # fmt: skip
_IMAGES = {
    "paper": Scale(width=2, depth=28, batch=128, steps=100, interval=2, lr=0.1),
    "small": Scale(
        rows=4096, validation=600, width=1, depth=10, side=16, batch=64, updates=6,
        steps=50, interval=1, lr=0.02, population=16,
    ),
    "smoke": Scale(
        rows=128, validation=64, test=64, width=1, depth=10, side=8, batch=32, updates=1, steps=3,
        interval=1, lr=0.05, population=4,
    ),
}  # fmt: skip
_ATTACKED = {
    "paper": _IMAGES["paper"],
    "small": Scale(
        rows=8192, validation=400, width=1, depth=10, side=8, batch=64, updates=20,
        steps=25, interval=1, lr=0.05, attack=2, evaluation_attack=3, population=16,
    ),
    "smoke": Scale(
        rows=128, validation=32, test=32, width=1, depth=10, side=8, batch=32, updates=1, steps=3,
        interval=1, lr=0.05, attack=2, evaluation_attack=2, population=4,
    ),
}  # fmt: skip
SCALES: dict[str, Mapping[str, Scale]] = {
    "tabular": _TABULAR,
    "images": _IMAGES,
    "images under attack": _ATTACKED,
}

DROPOUTS: dict[str, Domain] = {
    f"{where}_dropout": Grid(0, 0.8, 10) for where in ("attention", "ffn", "residual")
}
TABULAR_SPACE: dict[str, Domain] = {"weight_decay": LogGrid(1e-6, 0.1, 10, zero=True), **DROPOUTS}
CLASS_WEIGHT: dict[str, Domain] = {"class_weight": Grid(0.1, 0.9, 10)}
FAIRNESS_WEIGHT: dict[str, Domain] = {"fairness_weight": LogGrid(0.01, 10, 10, zero=True)}
ROBUSTNESS_WEIGHT: dict[str, Domain] = {"robustness_weight": LogGrid(0.1, 10, 10, zero=True)}

PRECISION_RECALL: dict[str, Direction] = {"precision": "max", "recall": "max"}
FAIRNESS: dict[str, Direction] = {"accuracy": "max", "dsp": "min"}
FAIRNESS_3: dict[str, Direction] = {**FAIRNESS, "deo": "min"}
ROBUSTNESS: dict[str, Direction] = {"accuracy": "max", "robust_accuracy": "max"}
# Reference points of the hypervolume that a run shows: about the metrics of a useless classifier.
# Comparisons compute their own.
REFERENCES = {
    "adult": {"precision": 0.0, "recall": 0.0, "accuracy": 0.75, "dsp": 0.25, "deo": 0.5},
    "higgs": {"precision": 0.0, "recall": 0.0},
    "click": {"precision": 0.0, "recall": 0.0},
    "celeba": {"accuracy": 0.5, "dsp": 0.5, "deo": 1.0},
    "cifar10": {"accuracy": 0.1, "robust_accuracy": 0.0},
    "cifar100": {"accuracy": 0.01, "robust_accuracy": 0.0},
}


@dataclass(frozen=True)
class PaperTask:
    """Describe a row of the paper's tables, and build its task at a scale.

    Attributes:
        name: Name on the command line.
        about: Network and data set.
        dataset: Name of the data set.
        objectives: Objectives and their directions.
        size: Key of its scales in `SCALES`.
        build: Builds the task at a scale.
        policy: Augmentation policy of image tasks.
    """

    name: str
    about: str
    dataset: str
    objectives: Mapping[str, Direction]
    size: str
    build: Callable[["PaperTask", Scale], Any]
    policy: Literal["", "rand-augment", "per-operation"] = ""

    @property
    def scales(self) -> Mapping[str, Scale]:
        """Return the scales by name."""
        return SCALES[self.size]

    def at(self, scale: str = "paper", *, allow_partial_data: bool = False) -> Any:
        """Build the task at a scale and load its data.

        Raises:
            DataMissing: If the scale has all rows, and the data that is present is partial or
                substituted, unless that is allowed.
        """
        if scale not in self.scales:
            allowed = ", ".join(map(repr, self.scales))
            raise ValueError(
                f"`scale` of {self.name} must be one of {allowed}, "
                f"got {scale!r}{did_you_mean(scale, self.scales)}"
            )
        self._check_extras()
        lacks = self.partial_data(scale)
        if lacks and not allow_partial_data:
            raise DataMissing(
                f"{self.name} at scale {scale!r} needs the complete data, but {lacks}; "
                f"{registry.complete_data(self.dataset)}, use a smaller scale, or train on this "
                f"data with --allow-partial-data (allow_partial_data=True in Python)"
            )
        return self.build(self, self.scales[scale])

    def partial_data(self, scale: str) -> str:
        """Return which data at a scale are partial or substituted; empty if none are."""
        takes_all_rows = not self.scales[scale].rows
        return registry.partial_data(self.dataset) if takes_all_rows else ""

    def _check_extras(self) -> None:
        """Raise MissingExtra, with all extras of the task, if a package is missing."""
        extras = {"sklearn": "scikit-learn", "torch": "PyTorch"}
        if self.build is not build_tabular:
            del extras["sklearn"]
        missing = [package for name, package in extras.items() if find_spec(name) is None]
        if missing:
            raise MissingExtra(
                f"{self.name} needs {' and '.join(missing)}: "
                f"pip install 'mopbt[{','.join(extras)}]'"
            )

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the hyperparameters."""
        if "precision" in self.objectives:
            weight = CLASS_WEIGHT
        elif "robust_accuracy" in self.objectives:
            weight = ROBUSTNESS_WEIGHT
        else:
            weight = FAIRNESS_WEIGHT
        if self.build is build_tabular:
            return TABULAR_SPACE | weight
        self._check_extras()
        space: dict[str, Domain] = _augmentation(self.policy, {}).space
        return space | weight

    def data_state(self) -> str:
        """Return whether the data is present, and how to get it if not."""
        return f"{registry.state(self.dataset)}: {registry.explain(self.dataset)}"

    @property
    def reference(self) -> dict[str, float]:
        """Return the reference point of the hypervolume that a run shows."""
        return {name: REFERENCES[self.dataset][name] for name in self.objectives}


def _common_arguments(task: PaperTask, scale: Scale) -> dict[str, Any]:
    return {
        "name": task.name,
        "space": task.space,
        "objectives": task.objectives,
        "reference": task.reference,
        "steps": scale.steps,
        "interval": scale.interval,
        "population": scale.population,
    }


def build_tabular(task: PaperTask, scale: Scale) -> Any:
    """Build a task that trains an FT-Transformer on a table."""
    import torch

    from mopbt.tasks.networks import FTTransformer
    from mopbt.torch import AdamW, Batches, TorchTask

    table = registry.load_tabular(task.dataset)
    is_fairness = "dsp" in task.objectives
    train, validation, test = (
        tuple(map(torch.from_numpy, _columns(part, is_fairness))) for part in _parts(table, scale)
    )
    dropouts: dict[str, Any] = {name: name for name in DROPOUTS}
    network = partial(
        FTTransformer,
        table.train.numeric.shape[1],
        # The network adds an embedding for unknown categories itself.
        [codes - 1 for codes in table.cardinalities],
        blocks=scale.depth,
        width=scale.width,
        hidden=scale.width * 4 // 3,
        **dropouts,
    )
    return TorchTask(
        network,
        loss=fairness_loss if is_fairness else precision_recall_loss,
        data=Batches(*train, batch_size=scale.batch, updates=scale.updates or None),
        optimizer=AdamW(lr=scale.lr, weight_decay="weight_decay"),
        metrics=_fairness if is_fairness else _precision_recall,
        validation=validation,
        test=test,
        **_common_arguments(task, scale),
    )


def build_image_fairness(task: PaperTask, scale: Scale) -> Any:
    """Build a task that trains a WideResNet on faces."""
    import torch

    from mopbt.torch import Batches, TorchTask

    augmentation = _augmentation(
        task.policy,
        {
            "crop": 0,
            "flip": False,
            "mean": IMAGENET_MEAN,
            "deviation": IMAGENET_DEVIATION,
            "reach": scale.side / PAPER_SIDE,
        },
    )
    train, validation, test = (
        (torch.from_numpy(p.x), torch.from_numpy(p.y), torch.from_numpy(p.sensitive))
        for p in _image_parts(task, scale)
    )
    return TorchTask(
        _wide_resnet(scale, 2),
        loss=fairness_loss,
        data=Batches(
            *train, batch_size=scale.batch, updates=scale.updates or None, augment=augmentation
        ),
        optimizer=_sgd(scale),
        metrics=_fairness,
        validation=(augmentation.plain(validation[0]), *validation[1:]),
        test=(augmentation.plain(test[0]), *test[1:]),
        **_common_arguments(task, scale),
    )


def build_image_robustness(task: PaperTask, scale: Scale) -> Any:
    """Build a task that trains a WideResNet for accuracy with and without an attack."""
    import torch

    from mopbt.torch import Batches, TorchTask

    train, validation, test = _image_parts(task, scale)
    augmentation = _augmentation(task.policy, {"reach": scale.side / PAPER_SIDE})
    held_out = [
        (augmentation.plain(torch.from_numpy(p.x)), torch.from_numpy(p.y))
        for p in (validation, test)
    ]
    return TorchTask(
        _wide_resnet(scale, int(train.y.max()) + 1),
        loss=partial(robustness_loss, steps=scale.attack),
        data=Batches(
            torch.from_numpy(train.x),
            torch.from_numpy(train.y),
            batch_size=scale.batch,
            updates=scale.updates or None,
            augment=augmentation,
        ),
        optimizer=_sgd(scale),
        evaluate_model=partial(_robustness, steps=scale.evaluation_attack),
        validation=held_out[0],
        test=held_out[1],
        **_common_arguments(task, scale),
    )


def precision_recall_loss(model: Any, batch: Any, hp: Mapping[str, Any]) -> Any:
    """Return the weighted cross entropy."""
    from mopbt.tasks.losses import weighted_cross_entropy

    x, y = batch
    return weighted_cross_entropy(model(x), y, hp["class_weight"])


def fairness_loss(model: Any, batch: Any, hp: Mapping[str, Any]) -> Any:
    """Return the cross entropy plus the weighted gap between the groups."""
    from mopbt.tasks.losses import fair_cross_entropy

    x, y, sensitive = batch
    return fair_cross_entropy(model(x), y, sensitive, hp["fairness_weight"])


def robustness_loss(model: Any, batch: Any, hp: Mapping[str, Any], *, steps: int) -> Any:
    """Return the TRADES loss."""
    from mopbt.tasks.losses import trades

    x, y = batch
    return trades(model, x, y, hp["robustness_weight"], steps=steps, step=_step_size(steps, 10))


def _precision_recall(logits: Any, y: Any) -> dict[str, float]:
    from mopbt.tasks.metrics import precision_recall

    return precision_recall(logits, y)


def _fairness(logits: Any, y: Any, sensitive: Any) -> dict[str, float]:
    from mopbt.tasks.metrics import fairness

    return fairness(logits, y, sensitive)


def _robustness(model: Any, x: Any, y: Any, *, steps: int) -> dict[str, float]:
    from mopbt.tasks.metrics import robustness

    return robustness(model, x, y, steps=steps, step=_step_size(steps, 20))


def _step_size(steps: int, paper_steps: int) -> float:
    """Return the step size of an attack that covers the same distance in fewer steps."""
    from mopbt.tasks.losses import STEP

    return STEP * paper_steps / steps


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
# Shorter side of the paper's images in pixels. Distances of augmentations shrink with the images,
# so that their strength stays the same.
PAPER_SIDE = 32


def _augmentation(policy: str, options: Mapping[str, Any]) -> Any:
    from mopbt.tasks.augment import Augmentation, Cutout, PerOperation, RandAugment

    chosen = RandAugment() if policy == "rand-augment" else PerOperation()
    return Augmentation(chosen, cutout=Cutout(), **options)


def _wide_resnet(scale: Scale, classes: int) -> Any:
    from mopbt.tasks.networks import WideResNet

    return partial(WideResNet, scale.depth, scale.width, classes)


def _sgd(scale: Scale) -> Any:
    from mopbt.torch import SGD, Cosine

    return SGD(lr=scale.lr, momentum=0.9, nesterov=True, weight_decay=5e-4, schedule=Cosine())


def _parts(data: Tabular | Images, scale: Scale) -> list[Any]:
    """Return the training, validation and test rows, as many as the scale has."""
    parts = []
    complete: list[Any] = [data.train, data.validation, data.test]
    sizes = (scale.rows, scale.validation, scale.test)
    for part, n in zip(complete, sizes, strict=True):
        size = len(part.target if isinstance(part, TabularRows) else part.y)
        parts.append(subset(part, n, seed=0) if 0 < n < size else part)
    return parts


def _columns(part: TabularRows, with_groups: bool) -> list[Any]:
    """Return features (n, f), target (n,) and, on request, sensitive attribute (n,)."""
    import numpy as np

    features = np.concatenate([part.numeric, (part.categorical - 1).astype(np.float32)], axis=1)
    columns = [features, part.target]
    return [*columns, part.sensitive] if with_groups else columns


def _image_parts(task: PaperTask, scale: Scale) -> list[ImageRows]:
    loaded = registry.load_images(task.dataset)
    return [_downsample(part, scale.side) for part in _parts(loaded, scale)]


def _downsample(part: ImageRows, side: int) -> ImageRows:
    """Average pixels so that the shorter side of the images has at most `side` pixels."""
    import torch

    height, width = part.x.shape[2:]
    if min(height, width) <= side:
        return part
    factor = side / min(height, width)
    size = (round(height * factor), round(width * factor))
    x = torch.nn.functional.interpolate(torch.from_numpy(part.x).float(), size, mode="area")
    return ImageRows(x.round().to(torch.uint8).numpy(), part.y, part.sensitive)


_FT = "FT-Transformer on"
_WRN = "WideResNet on"
_FACES: Any = {"build": build_image_fairness, "policy": "rand-augment"}
_ATTACK: Any = {"build": build_image_robustness, "policy": "rand-augment"}

adult_precision_recall = PaperTask(
    "adult-precision-recall", f"{_FT} Adult", "adult", PRECISION_RECALL, "tabular", build_tabular
)
higgs_precision_recall = PaperTask(
    "higgs-precision-recall", f"{_FT} Higgs", "higgs", PRECISION_RECALL, "tabular", build_tabular
)
click_precision_recall = PaperTask(
    "click-precision-recall",
    f"{_FT} Click prediction",
    "click",
    PRECISION_RECALL,
    "tabular",
    build_tabular,
)
adult_fairness = PaperTask(
    "adult-fairness", f"{_FT} Adult, by sex", "adult", FAIRNESS, "tabular", build_tabular
)
adult_fairness_3 = PaperTask(
    "adult-fairness-3", f"{_FT} Adult, by sex", "adult", FAIRNESS_3, "tabular", build_tabular
)
celeba_fairness = PaperTask(
    "celeba-fairness", f"{_WRN} CelebA, by sex", "celeba", FAIRNESS, "images", **_FACES
)
celeba_fairness_3 = PaperTask(
    "celeba-fairness-3", f"{_WRN} CelebA, by sex", "celeba", FAIRNESS_3, "images", **_FACES
)
cifar10_robustness = PaperTask(
    "cifar10-robustness",
    f"{_WRN} CIFAR-10",
    "cifar10",
    ROBUSTNESS,
    "images under attack",
    **_ATTACK,
)
cifar100_robustness = PaperTask(
    "cifar100-robustness",
    f"{_WRN} CIFAR-100",
    "cifar100",
    ROBUSTNESS,
    "images under attack",
    **_ATTACK,
)
cifar10_robustness_31 = replace(
    cifar10_robustness,
    name="cifar10-robustness-31",
    about=f"{_WRN} CIFAR-10, 31 hyperparameters",
    policy="per-operation",
)

TASKS: dict[str, PaperTask] = {
    task.name: task for task in list(globals().values()) if isinstance(task, PaperTask)
}
