"""`TrainerTask`: tune a model while Hugging Face's `Trainer` trains it.

The Trainer, with its model and its data, is built once in each process. An interval has four parts:

1. Load the weights of the member into that model. A new member has the weights of the start.
2. Write the hyperparameters into the Trainer's arguments.
3. Train for the steps of the interval. A callback gives the new optimizer the member's state, and
   keeps the settings that it was built with: a member that copies a donor has its own learning
   rate.
4. Copy the weights and the state of the optimizer.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from mopbt.engines.seeding import global_seeds
from mopbt.errors import MissingExtra, MissingScore, TaskError, UnknownHyperparameter
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction
from mopbt.serialization import dumps, loads
from mopbt.space import Domain

try:
    from torch.utils.data import IterableDataset
    from transformers import (
        PrinterCallback,
        ProgressCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )
except ImportError:
    raise MissingExtra(
        "TrainerTask needs transformers: pip install 'mopbt[transformers]'"
    ) from None

# A trained member has "model" (a state_dict) and "optimizer". A new one has neither.
Member = dict[str, Any]

# Arguments of the Trainer that the run controls.
RESERVED = (
    "data_seed",
    "lr_scheduler_type",
    "max_steps",
    "num_train_epochs",
    "output_dir",
    "seed",
    "warmup_ratio",
    "warmup_steps",
)
# Metrics of the machine, not of the model.
TIMES = ("_runtime", "_per_second", "_preparation_time")


@dataclass(frozen=True, eq=False)
class TrainerTask:
    """A Trainer as a task; a step is an update of the optimizer.

    Args:
        trainer: A function that builds the Trainer. It is called once in each process, so a
            pretrained model is loaded once. Set ``lr_scheduler_type="constant"``: the run sets
            the learning rate of each interval.
        space: The tuned hyperparameters. Those with the name of a training argument, such as
            ``learning_rate`` or ``weight_decay``, are written there; `apply` needs to read others.
        objectives: The metrics of `Trainer.evaluate` to optimize, such as
            ``{"eval_accuracy": "max", "eval_loss": "min"}``.
        steps: Total updates of the optimizer.
        interval: Updates between two decisions.
        apply: A function of the Trainer and the hyperparameters that applies those that are no
            training arguments, at the start of an interval.
        constraints: Limits on metrics, such as ``["eval_accuracy >= 0.7"]``.
        reference: The reference point of the hypervolume.
        name: The name of the task.
    """

    trainer: Callable[[], Trainer]
    _: KW_ONLY
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int
    apply: Callable[[Trainer, Mapping[str, Any]], None] | None = None
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    name: str = "trainer"

    # Training does not change the member that it starts from.
    functional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.trainer, Trainer | type) or not callable(self.trainer):
            raise TypeError(
                f"`trainer` must be a function without arguments that builds a Trainer, got "
                f"{self.trainer!r}; each process calls it once: `def build(): return Trainer(...)`"
            )
        reserved = [name for name in RESERVED if name in self.space]
        if reserved:
            raise ValueError(
                f"`space` must not tune {reserved[0]!r}, which the run controls; leave it out"
            )
        unknown = [name for name in self.space if name not in argument_names()]
        if unknown and self.apply is None:
            raise ValueError(
                f"{unknown[0]!r} is not a training argument of transformers"
                f"{did_you_mean(unknown[0], argument_names())}; use the name of one, such as "
                "'learning_rate', or give `apply`, a function of the Trainer and the "
                "hyperparameters that applies it"
            )
        if self.apply is not None and not callable(self.apply):
            raise TypeError(
                f"`apply` must be a function of the Trainer and the hyperparameters, got "
                f"{self.apply!r}"
            )

    def init(self, seed: int) -> Member:
        """Return a member without weights.

        It starts with those that the Trainer was built with.
        """
        return {}

    def train(
        self, model: Member, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Member:
        """Continue training from the member's weights with these hyperparameters."""
        trainer, initial = self._open()
        trainer.model.load_state_dict(model.get("model", initial))
        self._apply(trainer, hp)
        trainer.args.max_steps = end - begin
        trainer.args.seed = trainer.args.data_seed = seed % 2**31
        # The order of rows follows from this copy of the seed, which was made with the Trainer.
        trainer.accelerator.dataloader_config.data_seed = trainer.args.seed
        # The Trainer builds them with the new arguments.
        trainer.optimizer = None
        trainer.lr_scheduler = None
        restore = _RestoreOptimizer(model.get("optimizer"))
        trainer.add_callback(restore)
        try:
            with _silence_trainer():
                trainer.train()
        finally:
            trainer.remove_callback(restore)
        if trainer.state.global_step != end - begin:
            raise TaskError(
                f"the Trainer stopped after {trainer.state.global_step} steps of an interval of "
                f"{end - begin}; remove callbacks that stop training, such as EarlyStoppingCallback"
            )
        trained = {
            "model": trainer.model.state_dict(),
            "optimizer": {"state": trainer.optimizer.state_dict()["state"]},
        }
        # The Trainer continues to use these tensors, so copy them.
        copied: Member = loads(dumps(trained))
        return copied

    def evaluate(self, model: Member) -> Mapping[str, float]:
        """Return the metrics of `Trainer.evaluate` that are numbers, without its times."""
        trainer, initial = self._open()
        trainer.model.load_state_dict(model.get("model", initial))
        with _silence_trainer():
            metrics = trainer.evaluate()
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and name != "epoch" and not name.endswith(TIMES)
        }
        for name in self.objectives:
            if name not in numbers:
                raise MissingScore(
                    f"the Trainer did not measure the objective {name!r}; it measured "
                    f"{', '.join(map(repr, numbers))}{did_you_mean(name, numbers)}; return it from "
                    "`compute_metrics`, without the prefix 'eval_', which the Trainer adds"
                )
        return numbers

    def dump(self, model: Member) -> bytes:
        """Encode the weights and the state of the optimizer as a safetensors file."""
        return dumps(model)

    def load(self, data: bytes) -> Member:
        """Decode a member; ``["model"]`` is the state_dict of the model."""
        loaded: Member = loads(data)
        return loaded

    def _open(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the Trainer of this process and its first weights; build it if needed."""
        if self not in _TRAINERS:
            # All processes must start from the same weights.
            with global_seeds(0):
                built = self.trainer()
            if not isinstance(built, Trainer):
                raise TaskError(
                    f"`trainer` must return a Trainer, got an object of type "
                    f"{type(built).__name__}; end the function with `return Trainer(...)`"
                )
            check_arguments(built)
            trainer: Any = built
            for callback in (ProgressCallback, PrinterCallback):
                trainer.remove_callback(callback)
            initial = loads(dumps({"model": trainer.model.state_dict()}))["model"]
            _TRAINERS[self] = trainer, initial
        return _TRAINERS[self]

    def _apply(self, trainer: Trainer, hp: Mapping[str, Any]) -> None:
        unread = []
        for name, value in hp.items():
            if name in argument_names():
                setattr(trainer.args, name, value)
            else:
                unread.append(name)
        if self.apply is not None:
            read = _ReadValues(hp)
            self.apply(trainer, read)
            unread = [name for name in unread if name not in read.names]
        if unread:
            raise TaskError(
                f"`apply` does not read the hyperparameter {unread[0]!r}, so it changes nothing; "
                "apply it there, or leave it out of the space"
            )


# The Trainers of this process, and the weights that they started with.
_TRAINERS: "WeakKeyDictionary[TrainerTask, tuple[Any, Mapping[str, Any]]]" = WeakKeyDictionary()


class _ReadValues(dict[str, Any]):
    """Hyperparameters that remember which of them were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(repr, self))
        raise UnknownHyperparameter(
            f"`apply` reads the unknown hyperparameter {name!r}; the space has {known}: add it "
            "there, or correct the name"
        )


class _RestoreOptimizer(TrainerCallback):
    """Give a new optimizer the state of the member.

    Its settings stay as they were built.
    """

    def __init__(self, saved: Mapping[str, Any] | None) -> None:
        self._saved = saved

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._saved is not None:
            optimizer = kwargs["optimizer"]
            built = optimizer.state_dict()
            built["state"] = loads(dumps(dict(self._saved)))["state"]
            optimizer.load_state_dict(built)


def argument_names() -> frozenset[str]:
    """Return the names of the training arguments."""
    return frozenset(argument.name for argument in fields(TrainingArguments))


def check_arguments(trainer: Trainer) -> None:
    """Raise TaskError if a Trainer would not do what the run expects."""
    schedule = str(trainer.args.lr_scheduler_type).rpartition(".")[2].lower()
    if schedule != "constant":
        raise TaskError(
            f"the Trainer has the schedule {schedule!r}, which would restart in every interval; "
            'use TrainingArguments(..., lr_scheduler_type="constant"): the run sets the learning '
            "rate of each interval"
        )
    if isinstance(trainer.train_dataset, IterableDataset):
        raise TaskError(
            f"`train_dataset` is iterable ({type(trainer.train_dataset).__name__}), so each "
            "interval would train on its first rows again; use a dataset with `__len__` and "
            "`__getitem__`"
        )
    strategies = {
        "save_strategy": trainer.args.save_strategy,
        "eval_strategy": trainer.args.eval_strategy,
    }
    for name, strategy in strategies.items():
        chosen = str(strategy).rpartition(".")[2].lower()
        if chosen != "no":
            raise TaskError(
                f"the Trainer has {name}={chosen!r}; use "
                f'TrainingArguments(..., {name}="no"): the run controls checkpoints and evaluations'
            )


@contextmanager
def _silence_trainer() -> Iterator[None]:
    """Hide what a Trainer logs in every interval, and that a CPU has no pinned memory."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*pin_memory.* no accelerator is found")
            yield
    finally:
        logger.setLevel(before)
