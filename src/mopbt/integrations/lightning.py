"""`LightningTask`: tune a `LightningModule` while a Lightning `Trainer` trains it.

Each interval has three parts:

1. Build the module with the member's own hyperparameters.
2. Let the Trainer restore weights, optimizers, schedules, callbacks and loops.
3. Reapply all settings that were built differently than in the restored checkpoint.

Without the third part, a member that copies a donor would keep the donor's learning rate, because
Lightning restores it from the checkpoint.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from mopbt.engines.seeding import global_seeds
from mopbt.errors import MissingExtra, TaskError
from mopbt.objectives import Constraint, Direction
from mopbt.serialization import dumps, loads
from mopbt.space import Domain
from mopbt.tracked_objects import hyperparameters_of, is_plain, merge_hyperparameters

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.plugins.io import CheckpointIO
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
        steps: Epochs of training in all. To shorten an epoch, set `limit_train_batches` in
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
        reserved = [name for name in RESERVED_OPTIONS if name in self.trainer]
        if reserved:
            if reserved[0] == "callbacks":
                remedy = "use `callbacks=`"
            else:
                remedy = "leave it out, because the run controls intervals and checkpoints"
            raise ValueError(f"`trainer` must not set {reserved[0]!r}; {remedy}")
        every = self.trainer.get("check_val_every_n_epoch", 1) or self.interval
        if self.interval % every:
            raise ValueError(
                f"`check_val_every_n_epoch` must divide `interval` ({self.interval}), got {every}; "
                f"otherwise the metrics would be those of an earlier model than the saved one"
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
        checkpoint = _InMemoryCheckpoint(model)
        is_trained = "lightning" in model
        last_epoch = model["lightning"]["epoch"] + end - begin if is_trained else end
        with _silence_trainer():
            trainer = self._build_trainer(checkpoint, last_epoch)
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint.path if is_trained else None)
            if trainer.current_epoch != last_epoch:
                raise TaskError(
                    f"the Trainer stopped after epoch {trainer.current_epoch}, but the interval "
                    f"ends at epoch {last_epoch}; remove callbacks that stop training, such as "
                    f"EarlyStopping"
                )
            trainer.save_checkpoint(checkpoint.path)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
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

    def _build_trainer(self, checkpoint: "_InMemoryCheckpoint", last_epoch: int) -> Trainer:
        plugins = self.trainer.get("plugins") or []
        if not isinstance(plugins, list):
            plugins = [plugins]
        options = {**DEFAULT_OPTIONS, **self.trainer, "plugins": [checkpoint, *plugins]}
        return Trainer(
            **options,
            max_epochs=last_epoch,
            callbacks=[_ReapplySettings(), *self.callbacks()],
            enable_checkpointing=False,
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
