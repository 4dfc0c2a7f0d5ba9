"""`LightningTask`: a `LightningModule` whose hyperparameters are tuned while a Lightning `Trainer` trains it.

For each interval the module is built anew with the member's own hyperparameters; then the Trainer restores weights, optimizers,
schedules, callbacks and loops; and then what was built differently this time wins over what was restored. Without the last step
an heir would go on with its donor's learning rate, as Lightning takes the rates from the checkpoint.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from mopbt import serialization
from mopbt.engines.seeding import global_seeds
from mopbt.errors import MissingExtra, TaskError
from mopbt.function_task import hyperparameters_of, is_plain, merge_hyperparameters
from mopbt.objectives import Constraint, Direction
from mopbt.space import Domain

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.plugins.io import CheckpointIO
except ImportError:
    raise MissingExtra("LightningTask needs Lightning: pip install 'mopbt[lightning]'") from None

Member = dict[
    str, Any
]  # "model": a state_dict, "lightning": the rest of a checkpoint, "scores"; or the "seed" of fresh weights
OURS = (
    "callbacks",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "enable_checkpointing",
    "fast_dev_run",
)
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "devices": 1,
}


@dataclass(frozen=True)
class LightningTask:
    """A `LightningModule` and its data as a task; a step is an epoch of the Trainer.

    Args:
        module: Of the hyperparameters: the module. Weights and shapes must not depend on them; rates, losses and dropout may.
        data: A `LightningDataModule`, or a function of the hyperparameters that returns one.
        space: The hyperparameters that are tuned, by name.
        objectives: The logged metrics that count, by name, and their directions: ``{"val_acc": "max", "val_gap": "min"}``.
        steps: Epochs of a whole training; `limit_train_batches` among the `trainer` options makes an epoch shorter.
        interval: Epochs between decisions.
        trainer: Options for the Trainer, such as ``{"accelerator": "cpu", "limit_train_batches": 20}``.
        callbacks: Returns new callbacks for a Trainer; their states go through checkpoints.
        constraints: Limits on logged metrics, such as ``["val_acc >= 0.7"]``.
        reference: The reference point of the hypervolume.
        name: What the task is called.
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

    functional: ClassVar[bool] = True  # training leaves the member that it starts from as it is

    def __post_init__(self) -> None:
        if taken := [name for name in OURS if name in self.trainer]:
            remedy = (
                "use `callbacks=`"
                if taken[0] == "callbacks"
                else "leave it out: intervals and checkpoints are the run's"
            )
            raise ValueError(f"`trainer` must not set {taken[0]!r}; {remedy}")
        every = self.trainer.get("check_val_every_n_epoch", 1) or self.interval
        if self.interval % every:
            raise ValueError(
                f"`check_val_every_n_epoch` must divide `interval` ({self.interval}), got {every}: else the scores would be those "
                f"of an earlier model than the one that is kept"
            )

    def init(self, seed: int) -> Member:
        """Return a member without weights yet: a module is built where its hyperparameters are known."""
        return {"seed": seed}

    def train(
        self, model: Member, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Member:
        """Let a Trainer go on from the member's checkpoint for an interval, with these hyperparameters."""
        with global_seeds(
            model.get("seed", 0)
        ):  # for the weights alone: the interval has a seed of its own
            module = self.module(hp)
        data = self.data if isinstance(self.data, LightningDataModule) else self.data(hp)
        memory, begun = _Memory(model), "lightning" in model
        with _quiet():
            last = model["lightning"]["epoch"] + end - begin if begun else end
            trainer = self._trainer(memory, last)
            trainer.fit(module, datamodule=data, ckpt_path=_Memory.path if begun else None)
            if trainer.current_epoch != last:
                raise TaskError(
                    f"the Trainer stopped after epoch {trainer.current_epoch}, the interval ends at {last}: take out what stops it "
                    f"early, such as EarlyStopping"
                )
            trainer.save_checkpoint(_Memory.path)
        return memory.saved() | {
            "scores": {name: float(value) for name, value in trainer.callback_metrics.items()}
        }

    def evaluate(self, model: Member) -> Mapping[str, float]:
        """Return what was logged, at the end of the interval, for its last epoch."""
        scores: Mapping[str, float] = model["scores"]
        return scores

    def dump(self, model: Member) -> bytes:
        """Return the member as a safetensors file: weights as ``model``, Lightning's other states, and the scores."""
        return serialization.dumps(model)

    def load(self, data: bytes) -> Member:
        """Return the member; ``["model"]`` is an ordinary state_dict."""
        loaded: Member = serialization.loads(data)
        return loaded

    def _trainer(self, memory: "_Memory", last: int) -> Trainer:
        plugins = self.trainer.get("plugins") or []
        given = {
            **QUIET,
            **self.trainer,
            "plugins": [memory, *(plugins if isinstance(plugins, list) else [plugins])],
        }
        callbacks = [_OwnSettings(), *self.callbacks()]
        return Trainer(**given, max_epochs=last, callbacks=callbacks, enable_checkpointing=False)


class _Memory(CheckpointIO):
    """Hands a checkpoint to a Trainer and takes one from it, without a file."""

    path = "member.ckpt"  # a Trainer wants a name

    def __init__(self, member: Member) -> None:
        self._member = member
        self._saved: dict[str, Any] = {}

    def saved(self) -> Member:
        """Return what was saved: the weights, and the rest without the hyperparameters, which are the member's own."""
        hidden = ("state_dict", "hyper_parameters", "hparams_name", "hparams_type")
        rest = {
            name: value
            for name, value in self._saved.items()
            if not name.startswith(("datamodule_h", *hidden))
        }
        saved: Member = serialization.loads(
            serialization.dumps({"model": dict(self._saved["state_dict"]), "lightning": rest})
        )
        return saved  # copies: the module goes on with its tensors

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Keep what the Trainer saves."""
        self._saved = checkpoint

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Give the Trainer the member's checkpoint, as copies."""
        member = serialization.loads(serialization.dumps(self._member))
        return {**member["lightning"], "state_dict": member["model"]}

    def remove_checkpoint(self, path: Any) -> None:
        """Leave it: there is no file."""


class _OwnSettings(Callback):
    """Lets what the module built with its own hyperparameters win over what the Trainer restores of the donor's."""

    state_key = "mopbt"

    def __init__(self) -> None:
        self._now: dict[str, Any] = {}
        self._then: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Keep how optimizers and schedules were built, for the next interval to compare with."""
        return self._now

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take how they were built when the checkpoint was made."""
        self._then = state_dict

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note how they are built now, before their states are restored."""
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._now = {
            "optimizers": list(map(hyperparameters_of, trainer.optimizers)),
            "schedules": list(map(_made, schedules)),
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set, after restoring, what is built differently now; a schedule goes on where it stood."""
        if not self._then:
            return
        for optimizer, now, then in zip(
            trainer.optimizers, self._now["optimizers"], self._then["optimizers"], strict=True
        ):
            merge_hyperparameters(optimizer, now, then)
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        for schedule, now, then in zip(
            schedules, self._now["schedules"], self._then["schedules"], strict=True
        ):
            _make_again(schedule, now, then)
            merge_hyperparameters(schedule, now["settings"], then["settings"])


def _made(schedule: Any) -> dict[str, Any]:
    """Return what a learning rate schedule was made with, that of its parts included."""
    state = {
        name: value
        for name, value in schedule.state_dict().items()
        if is_plain(value) and name not in ("base_lrs", "_last_lr")
    }
    parts = [_made(part) for part in getattr(schedule, "_schedulers", ())]
    return {"state": state, "parts": parts, "settings": hyperparameters_of(schedule)}


def _make_again(schedule: Any, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Set what a schedule was made with differently this time, such as its factor."""
    for name, value in now["state"].items():
        if value != then["state"].get(name, value):
            setattr(schedule, name, value)
    for part, new, old in zip(
        getattr(schedule, "_schedulers", ()), now["parts"], then["parts"], strict=True
    ):
        _make_again(part, new, old)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep a Trainer from telling at every interval what it found and why it stopped."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
