"""`LightningTask`: tune a `LightningModule` while a Lightning `Trainer` trains it.

Each interval has three parts:

1. Build the module with the member's own hyperparameters.
2. Let the Trainer restore weights, optimizers, schedules, callbacks and loops.
3. Reapply all settings that were built differently than in the restored checkpoint.

Without the third part, a member that copies a donor would keep the donor's learning rate, because
Lightning restores it from the checkpoint.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from mopbt.engines.seeding import global_seeds
from mopbt.errors import MissingExtra, MissingScore, TaskError
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction
from mopbt.serialization import dumps, loads
from mopbt.space import Domain
from mopbt.tracked_objects import hyperparameters_of, is_plain, merge_hyperparameters

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.plugins.io import CheckpointIO
    from torch.nn.parameter import is_lazy
    from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR
except ImportError:
    raise MissingExtra("LightningTask needs Lightning: pip install 'mopbt[lightning]'") from None

# A trained member has "model" (a state_dict), "lightning" (the rest of the checkpoint) and
# "scores". A fresh one has only the "seed" of its weights.
Member = dict[str, Any]

# Options of the Trainer that the task sets itself.
RESERVED_OPTIONS = (
    "callbacks",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "enable_checkpointing",
    "fast_dev_run",
)
DEFAULT_OPTIONS = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "devices": 1,
}


@dataclass(frozen=True)
class LightningTask:
    """A `LightningModule` and its data as a task; a step is an epoch.

    Args:
        module: A function of the hyperparameters that builds the module. Learning rates, losses
            and dropout may depend on them; initial weights and shapes must not.
        data: A `LightningDataModule`, or a function of the hyperparameters that returns one.
        space: The tuned hyperparameters by name.
        objectives: The logged metrics to optimize, by name, and their directions, such as
            ``{"val_acc": "max", "val_gap": "min"}``.
        steps: Total epochs of training. To shorten an epoch, set `limit_train_batches` in
            `trainer`.
        interval: Epochs between two decisions.
        trainer: Options of the Trainer, such as
            ``{"accelerator": "cpu", "limit_train_batches": 20}``.
        callbacks: A function that returns new callbacks. Their states are part of checkpoints.
        constraints: Limits on logged metrics, such as ``["val_acc >= 0.7"]``.
        reference: The reference point of the hypervolume.
        name: The name of the task.
    """

    module: Callable[[Mapping[str, Any]], LightningModule]
    _: KW_ONLY
    data: LightningDataModule | Callable[[Mapping[str, Any]], LightningDataModule]
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int = 1
    trainer: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], Sequence[Callback]] = list
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    name: str = "lightning"

    # Training does not change the member that it starts from.
    functional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_types(self)
        reserved = [name for name in RESERVED_OPTIONS if name in self.trainer]
        if reserved:
            if reserved[0] == "callbacks":
                remedy = "use `callbacks=`"
            else:
                remedy = "leave it out, because the run controls intervals and checkpoints"
            raise ValueError(f"`trainer` must not set {reserved[0]!r}; {remedy}")
        known = inspect.signature(Trainer).parameters
        for name in self.trainer:
            if name not in known:
                raise ValueError(
                    f"`trainer` sets {name!r}, which is not an option of Lightning's Trainer"
                    f"{did_you_mean(name, known)}"
                )
        every = self.trainer.get("check_val_every_n_epoch", 1) or self.interval
        if not isinstance(every, int) or self.interval % every:
            raise ValueError(
                f"`check_val_every_n_epoch` must divide `interval` ({self.interval}), got {every!r}"
                f"; otherwise the metrics would be those of an earlier model than the saved one"
            )

    def init(self, seed: int) -> Member:
        """Return a member without weights; `train` builds them from this seed."""
        return {"seed": seed}

    def train(
        self, model: Member, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Member:
        """Continue training from the member's checkpoint with these hyperparameters."""
        # This seed is for the initial weights only. The interval has its own.
        with global_seeds(model.get("seed", 0)):
            module = self.module(hp)
        data = self.data if isinstance(self.data, LightningDataModule) else self.data(hp)
        _check_built(module, data)
        checkpoint = _InMemoryCheckpoint(model)
        is_trained = "lightning" in model
        if is_trained:
            _check_shapes(module, model["model"])
        last_epoch = model["lightning"]["epoch"] + end - begin if is_trained else end
        with _silence_trainer():
            trainer = self._build_trainer(checkpoint, last_epoch)
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint.path if is_trained else None)
            _check_optimized(trainer, module)
            if trainer.current_epoch != last_epoch:
                raise TaskError(
                    f"the Trainer stopped after epoch {trainer.current_epoch}, but the interval "
                    f"ends at epoch {last_epoch}; remove callbacks that stop training, such as "
                    f"EarlyStopping"
                )
            trainer.save_checkpoint(checkpoint.path)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self._check_logged(metrics, has_validation=bool(trainer.val_dataloaders))
        return {**checkpoint.saved_member(), "scores": metrics}

    def evaluate(self, model: Member) -> Mapping[str, float]:
        """Return the metrics that were logged for the last epoch of the interval."""
        metrics: Mapping[str, float] = model["scores"]
        return metrics

    def dump(self, model: Member) -> bytes:
        """Encode weights, Lightning's other states and metrics as a safetensors file."""
        return dumps(model)

    def load(self, data: bytes) -> Member:
        """Decode a member; ``["model"]`` is an ordinary state_dict."""
        loaded: Member = loads(data)
        return loaded

    def _check_logged(self, metrics: Mapping[str, float], *, has_validation: bool) -> None:
        missing = [name for name in self.objectives if name not in metrics]
        if not missing:
            return
        if has_validation:
            remedy = f"call `self.log({missing[0]!r}, value)` in `validation_step`, or correct "
            remedy += "the objective's name"
        else:
            remedy = "there are no validation rows: give the data module a `val_dataloader`"
        logged = ", ".join(map(repr, metrics)) or "nothing"
        raise MissingScore(
            f"the module did not log the objective {missing[0]!r}; it logged {logged}; {remedy}"
        )

    def _build_trainer(self, checkpoint: "_InMemoryCheckpoint", last_epoch: int) -> Trainer:
        plugins = self.trainer.get("plugins") or []
        if not isinstance(plugins, list):
            plugins = [plugins]
        options = {**DEFAULT_OPTIONS, **self.trainer, "plugins": [checkpoint, *plugins]}
        callbacks = self.callbacks()
        if not isinstance(callbacks, Sequence):
            raise TaskError(
                f"`callbacks` must return a list, got {_kind(callbacks)}; write "
                f"`callbacks=lambda: [...]`"
            )
        trainer = Trainer(
            **options,
            max_epochs=last_epoch,
            callbacks=[_ReapplySettings(), *callbacks],
            enable_checkpointing=False,
        )
        # Lightning would start the program again for every further device.
        if trainer.num_devices * trainer.num_nodes > 1:
            raise TaskError(
                f"a member trains on one device, but `trainer` asks for {trainer.num_devices} on "
                f"{trainer.num_nodes} node(s); leave out 'devices' and 'num_nodes', and give the "
                f"devices to the engine, which trains several members at a time"
            )
        return trainer


def _kind(value: Any) -> str:
    """Name what was received: a class, or the type of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _check_types(task: LightningTask) -> None:
    """Raise TypeError for arguments of another type, with the remedy."""
    module = task.module
    data = task.data
    trainer = task.trainer
    is_module_class = isinstance(module, type) and issubclass(module, LightningModule)
    if is_module_class or isinstance(module, LightningModule) or not callable(module):
        raise TypeError(
            f"`module` must be a function of the hyperparameters that builds a LightningModule, "
            f"got {_kind(module)}; write `lambda hp: Net(hp['lr'])`, with your own names"
        )
    if isinstance(data, type) and issubclass(data, LightningDataModule):
        raise TypeError(
            f"`data` must be a LightningDataModule, or a function of the hyperparameters that "
            f"returns one, got {_kind(data)}; create an object: `data={data.__name__}()`"
        )
    if not isinstance(data, LightningDataModule) and not callable(data):
        raise TypeError(
            f"`data` must be a LightningDataModule, or a function of the hyperparameters that "
            f"returns one, got {_kind(data)}; write a data module, or call "
            f"`LightningDataModule.from_datasets(train, validation)`"
        )
    if not isinstance(trainer, Mapping):
        raise TypeError(
            f"`trainer` must be a mapping of options, such as {{'accelerator': 'cpu'}}, got "
            f"{_kind(trainer)}; pass the options alone, because each interval builds a Trainer"
        )
    if not callable(task.callbacks):
        raise TypeError(
            f"`callbacks` must be a function that returns new callbacks, got "
            f"{_kind(task.callbacks)}; write `callbacks=lambda: [...]`"
        )


def _check_built(module: Any, data: Any) -> None:
    """Raise TaskError unless a task returned a module and a data module."""
    if not isinstance(module, LightningModule):
        raise TaskError(
            f"`module` must return a LightningModule, got {_kind(module)}; return the module that "
            f"the Trainer is to train"
        )
    if not isinstance(data, LightningDataModule):
        raise TaskError(
            f"`data` must return a LightningDataModule, got {_kind(data)}; write a data module, or "
            f"call `LightningDataModule.from_datasets(train, validation)`"
        )


def _check_optimized(trainer: Trainer, module: LightningModule) -> None:
    """Raise TaskError unless an optimizer updates a parameter of the module."""
    own = {id(parameter) for parameter in module.parameters()}
    # Without an optimizer, Lightning uses one for a tensor of its own.
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            if any(id(parameter) in own for parameter in group["params"]):
                return
    raise TaskError(
        f"no optimizer updates a parameter of {type(module).__name__}; return one "
        f"from `configure_optimizers`, such as `AdamW(self.parameters(), lr=self.hparams.lr)`"
    )


def _check_shapes(module: LightningModule, weights: Mapping[str, Any]) -> None:
    """Raise TaskError if a module cannot take the weights of its parent."""
    for name, tensor in module.state_dict().items():
        # A lazy layer has no shape before its first batch.
        if name not in weights or is_lazy(tensor) or tensor.shape == weights[name].shape:
            continue
        raise TaskError(
            f"{name!r} has the shape {tuple(tensor.shape)} with these hyperparameters, but "
            f"{tuple(weights[name].shape)} in the member that training continues from; shapes "
            f"must not depend on hyperparameters"
        )


class _InMemoryCheckpoint(CheckpointIO):
    """Pass checkpoints to and from a Trainer without a file."""

    # The Trainer requires a path, although nothing is written to it.
    path = "member.ckpt"

    def __init__(self, member: Member) -> None:
        self._member = member
        self._saved: dict[str, Any] = {}

    def saved_member(self) -> Member:
        """Return the saved weights and states, without the module's own hyperparameters."""
        excluded = (
            "state_dict",
            "hyper_parameters",
            "hparams_name",
            "hparams_type",
            "datamodule_h",
        )
        rest = {name: value for name, value in self._saved.items() if not name.startswith(excluded)}
        # The module still uses the tensors of the checkpoint, so copy them.
        saved: Member = loads(dumps({"model": dict(self._saved["state_dict"]), "lightning": rest}))
        return saved

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Keep the checkpoint of the Trainer in memory."""
        self._saved = checkpoint

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Return a copy of the member's checkpoint."""
        member = loads(dumps(self._member))
        return {**member["lightning"], "state_dict": member["model"]}

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing, because there is no file."""


class _ReapplySettings(Callback):
    """Override restored settings by those of the member's own hyperparameters."""

    state_key = "mopbt"

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Save how optimizers and schedules were built, for the next interval."""
        return self._built

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load how they were built in the interval that wrote the checkpoint."""
        self._restored = state_dict

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record how optimizers and schedules were built, before they are restored."""
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._built = {
            "optimizers": [hyperparameters_of(optimizer) for optimizer in trainer.optimizers],
            "schedules": [_schedule_settings(schedule) for schedule in schedules],
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Apply all settings that changed; schedules keep their position."""
        if not self._restored:
            return
        for optimizer, new, old in zip(
            trainer.optimizers,
            self._built["optimizers"],
            self._restored["optimizers"],
            strict=True,
        ):
            merge_hyperparameters(optimizer, new, old)
        for config, new, old in zip(
            trainer.lr_scheduler_configs,
            self._built["schedules"],
            self._restored["schedules"],
            strict=True,
        ):
            _apply_changes(config.scheduler, new, old)
            merge_hyperparameters(config.scheduler, new["settings"], old["settings"])


def _schedule_settings(schedule: Any) -> dict[str, Any]:
    """Return the settings of a learning rate schedule and of its parts."""
    state = {
        name: value
        for name, value in schedule.state_dict().items()
        if is_plain(value) and name not in ("base_lrs", "_last_lr")
    }
    parts = [_schedule_settings(part) for part in _parts_of(schedule)]
    return {"state": state, "parts": parts, "settings": hyperparameters_of(schedule)}


def _apply_changes(schedule: Any, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Set the attributes of a schedule that were built with new values."""
    for name, value in new["state"].items():
        if value != old["state"].get(name, value):
            setattr(schedule, name, value)
    for part, new_part, old_part in zip(
        _parts_of(schedule), new["parts"], old["parts"], strict=True
    ):
        _apply_changes(part, new_part, old_part)


def _parts_of(schedule: Any) -> list[Any]:
    """Return the schedules that a schedule of PyTorch combines."""
    if isinstance(schedule, ChainedScheduler | SequentialLR):
        return list(schedule._schedulers)
    return []


@contextmanager
def _silence_trainer() -> Iterator[None]:
    """Hide what a Trainer logs at the start and end of every interval."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
