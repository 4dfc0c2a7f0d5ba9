"""`TorchTask`: a PyTorch model whose members train one by one or as a stack.

A member is a tree of tensors:
``{"model": state_dict, "optimizer": {slot: {parameter: tensor}}, "updates": n}``. Training copies
the tree it starts from, so several members can start from the same one.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import IO, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from mopbt.averaging import average_trees
from mopbt.engines.compilation import Compilation
from mopbt.engines.seeding import global_seeds
from mopbt.engines.worker import memory_kept
from mopbt.errors import MissingScore, MopbtError, TaskError
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction
from mopbt.problem import Hyperparameters, problem_of
from mopbt.rng import stream
from mopbt.serialization import dump_to, dumps, load_from, loads, size_of
from mopbt.space import Domain
from mopbt.stores.base import Hashing
from mopbt.torch.compilation import check_compile, compiled_method, try_compilation
from mopbt.torch.compiler import Compiler
from mopbt.torch.data import Batch, Batches
from mopbt.torch.device import find_device
from mopbt.torch.evaluation import (
    Metrics,
    compute_outputs,
    evaluate_models,
    evaluate_outputs,
)
from mopbt.torch.gradients import GradientMethod, LoopGradients, StackedGradients
from mopbt.torch.hyperparameters import TensorHyperparameters
from mopbt.torch.layers import Hyperparameter
from mopbt.torch.memory import live_bytes, map_members
from mopbt.torch.normalization import has_batch_statistics, measure_batch_statistics
from mopbt.torch.optimizers import AdamW, Optimizer, clip_rows, resolve_rates
from mopbt.torch.precision import Precision, check_precision, check_supported
from mopbt.torch.probe import FlopCounter, Interval, Probe, Update, one_thread
from mopbt.torch.program import Loss, Program
from mopbt.torch.rows import NO_PARTS, Parts, Rows, split_holdout
from mopbt.torch.stack import Layout, OwnedTree, Stack, Tree
from mopbt.torch.validation import (
    check_evaluation,
    check_folds,
    check_fresh_rows,
    check_holdout,
    check_parts,
    check_tensors,
)
from mopbt.torch.vectorize import cannot_stack, stacking

# The rows on which a model is measured before a run, to check that it can be.
CHECK_ROWS = 128
# A model of so many bytes is not kept in a process that does not train it.
LARGE_MODEL = 2**28
# The rows of each part on which a measurement begins.
FEW_ROWS = 8


@dataclass(frozen=True)
class TorchTask:
    """A PyTorch model that trains step by step.

    Args:
        model: Builds the model. Its architecture must not depend on hyperparameters; use
            `Hyperparameter` and `Dropout` for what may.
        loss: A function of the model, a batch and the hyperparameters (tensors without
            dimensions) that returns a scalar.
        data: The training data.
        space: The tuned hyperparameters by name.
        objectives: The metrics to optimize, by name, and their directions.
        steps: Total steps of training. By default a step is one pass over the data.
        interval: Steps between two decisions.
        optimizer: The update rule. A field that is a string names a hyperparameter.
        metrics: A function of the model's outputs and the targets that returns metrics by name.
        validation: Inputs and targets that the objectives are measured on.
        test: Inputs and targets of test rows. Only the models on the final front are measured on
            them; the metrics are in ``results.evaluations``.
        holdout: The share of the validation rows that guide no decision, such as 0.25, or separate
            tensors. Only the models on the final front are measured on them, like `test`.
        fresh_rows: The share of the validation rows by which members are compared at a decision,
            such as 0.5. It is drawn for each interval, the same for all members; the objectives are
            still measured on all rows. ``MOPBT(fresh_rows=0.5)`` sets it and decides by it.
        folds: Also measure on so many parts of the validation rows, such as 8, so that two models
            are compared on the same rows. ``MOPBT(margin=1, folds=8)`` sets it and decides by it.
        evaluate_model: Replaces `metrics`: a function of the model in evaluation mode that returns
            metrics by name. With `validation`, it also takes the tensors to measure the model on.
        errors: Report the errors of metrics: in closed form for those of `mopbt.rates`, else by
            computing `metrics` again without each of 20 groups of rows. `evaluate_model` has errors
            where it returns an `Estimate`.
        constraints: Limits on metrics, such as ``["accuracy >= 0.7"]``.
        reference: The reference point of the hypervolume.
        clip: The largest allowed norm of a member's gradient.
        ema: Decay per update of an exponential moving average of the weights, such as 0.98. The
            average is the model that is evaluated and kept. ``MOPBT(ema=0.98)`` sets it.
        precision: What training computes in: "fp32", "tf32" (float32 with faster matrix products on
            recent GPUs), or mixed precision in "bf16" or "fp16", whose losses are scaled for each
            member. Weights, checkpoints and evaluation stay in float32.
        compile: Compile the loss and its gradients, of single members and of stacks, with
            `torch.compile`. With "auto", a run measures whether that pays.
        device: Where to train; "auto" is the device that the engine assigned, or else a GPU if
            there is one.
        population: The default population size of a run.
        name: The name of the task.
    """

    model: Callable[[], nn.Module]
    _: KW_ONLY
    loss: Loss
    data: Batches
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int = 1
    optimizer: Optimizer = field(default_factory=AdamW)
    metrics: Metrics | None = None
    validation: tuple[Tensor, ...] | None = None
    test: tuple[Tensor, ...] | None = None
    holdout: float | tuple[Tensor, ...] | None = None
    fresh_rows: float | None = None
    folds: int | None = None
    evaluate_model: Callable[..., Mapping[str, float]] | None = None
    errors: bool = True
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    clip: float | None = None
    ema: float | None = None
    precision: Precision = "fp32"
    compile: bool | Literal["auto"] = False
    device: str = "auto"
    population: int | None = None
    name: str = "torch"

    # Training does not change the member that it starts from.
    functional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_evaluation(
            metrics=self.metrics,
            validation=self.validation,
            test=self.test,
            holdout=self.holdout,
            evaluate_model=self.evaluate_model,
        )
        check_parts(self.model, self.loss, self.data, self.optimizer)
        check_precision(self.precision)
        check_compile(self.compile)
        check_tensors("validation", self.validation)
        check_tensors("test", self.test)
        check_holdout(self.holdout, self.validation)
        check_fresh_rows(self.fresh_rows, self.validation, self.metrics)
        check_folds(self.folds, self.validation, self.metrics)
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise ValueError(f"`clip` must be a positive number or None, got {self.clip!r}")
        if self.ema is not None and not (isinstance(self.ema, float) and 0 < self.ema < 1):
            raise ValueError(f"`ema` must be between 0 and 1, or None, got {self.ema!r}")
        for name, rate in self.optimizer.rates().items():
            if isinstance(rate, str):
                self._check_number(f"the optimizer's `{name}`", rate, ValueError)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the built model and data: a worker builds its own."""
        return {
            name: value for name, value in self.__dict__.items() if not name.startswith("_built")
        }

    def adapted(
        self,
        *,
        ema: float | None = None,
        fresh_rows: float | None = None,
        folds: int | None = None,
    ) -> "TorchTask":
        """Return the task with options of an algorithm that it does not have yet."""
        asked: dict[str, Any] = {"ema": ema}
        # Parts of the rows need a function of outputs and targets.
        if self.metrics is not None:
            asked |= {"fresh_rows": fresh_rows, "folds": folds}
        own = {"ema": self.ema, "fresh_rows": self.fresh_rows, "folds": self.folds}
        return replace(self, **{key: v for key, v in asked.items() if own[key] is None})

    def with_precision(self, precision: str) -> "TorchTask":
        """Return the same task in another precision."""
        return replace(self, precision=precision)  # type: ignore[arg-type]

    def with_compile(self, compile: bool | Literal["auto"]) -> "TorchTask":
        """Return the same task, compiled or not."""
        return replace(self, compile=compile)

    def init(self, seed: int) -> Tree:
        """Build a member with random weights."""
        with global_seeds(seed):
            state = self.model().state_dict()
            weights = {name: tensor.detach().clone() for name, tensor in state.items()}
        return {"model": weights, "optimizer": {}, "updates": 0}

    def train(self, model: Tree, hp: Mapping[str, Any], begin: int, end: int, seed: int) -> Tree:
        """Train one member from step `begin` to step `end`."""
        return self._train([model], [hp], [begin], [seed], end - begin, LoopGradients)[0]

    def train_many(
        self,
        models: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Tree]:
        """Train several members for one interval, as one stack if it fits into memory."""
        program = self._program

        def train_part(part: slice) -> list[Tree]:
            with stacking(program.device):
                return self._train(
                    models[part],
                    hp[part],
                    begins[part],
                    seeds[part],
                    self.interval,
                    StackedGradients,
                )

        return map_members(
            train_part,
            len(models),
            module=program.module,
            device=program.device,
            measure=self._bytes_per_member,
        )

    def evaluate(self, model: Tree) -> Mapping[str, float]:
        """Measure one member."""
        return self.evaluate_many([model])[0]

    def evaluate_many(self, models: Sequence[Tree]) -> list[Mapping[str, float]]:
        """Measure several members, whose outputs are computed together."""
        rows = self._built_rows["validation"]
        parts = Parts(self.fresh_rows, self.folds)
        return list(self._measure(models, rows, parts))

    @property
    def rows(self) -> tuple[str, ...]:
        """Return the names of the rows that only the models on the front are measured on."""
        given = {"test": self.test, "holdout": self.holdout}
        return tuple(name for name, rows in given.items() if rows is not None)

    def evaluate_rows(
        self, model: Tree, hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> Mapping[str, float]:
        """Measure one member on named rows."""
        if rows not in self.rows:
            raise ValueError(
                f"`rows` must be one of {', '.join(map(repr, self.rows)) or 'none'}, got {rows!r}"
                f"{did_you_mean(rows, self.rows)}"
            )
        return self._measure([model], self._built_rows[rows])[0]

    def _measure(
        self, models: Sequence[Tree], data: Rows | None, parts: Parts = NO_PARTS
    ) -> list[dict[str, float]]:
        """Measure several members on the same rows."""
        stack = self._stack(models)
        program = self._program
        with torch.no_grad():
            program.module.eval()
            if self.evaluate_model is not None:
                return evaluate_models(
                    program,
                    stack,
                    self.evaluate_model,
                    data or (),
                    self._nan_metrics,
                    errors=self.errors,
                )
            assert self.metrics is not None
            assert data is not None
            return evaluate_outputs(
                program,
                stack,
                data,
                self.metrics,
                self._nan_metrics,
                errors=self.errors,
                parts=parts,
            )

    def dump(self, model: Tree) -> bytes:
        """Encode a member as a safetensors file."""
        return dumps(model)

    def load(self, data: bytes) -> Tree:
        """Decode a member; ``["model"]`` is an ordinary state_dict."""
        loaded: Tree = loads(data)
        return loaded

    def dump_to(self, model: Tree, file: IO[bytes]) -> None:
        """Write what `dump` returns to a file, one tensor after the other."""
        dump_to(model, file)

    def load_from(self, file: IO[bytes]) -> Tree:
        """Read a member from a file; `train` takes its memory."""
        return OwnedTree(load_from(file))

    def without_training_state(self, tree: Tree) -> Tree:
        """Return the model of a checkpoint, without optimizer state."""
        return {"model": tree["model"], "optimizer": {}, "updates": 0}

    def blend(
        self, models: Sequence[Tree], weights: Sequence[float], hp: Mapping[str, Any], seed: int
    ) -> Tree:
        """Average members: weights, optimizer state and moving averages.

        The statistics of normalization layers are not those of the averaged weights. They are
        measured again, on the batches of one step.
        """
        member: Tree = average_trees(models, weights)
        program = self._program
        if not has_batch_statistics(program.module):
            return member
        stack = self._stack([member])
        program.layout.attach(program.module, stack, 0)
        tensors = TensorHyperparameters(hp, program.device)
        with global_seeds(seed), torch.no_grad():
            inputs = []
            for batch in self._built_data.iter_batches([seed], [0]):
                own = batch if self.data.shared else tuple(t[0] for t in batch)
                inputs.append(program.augmented(own, tensors)[0])
            measure_batch_statistics(program.module, inputs)
        program.layout.keep_buffers(program.module, stack, 0)
        for name, stacked in stack.others.items():
            member["model"][name] = stacked[0]
        return member

    def check(self) -> None:
        """Train a member for one update and measure it, to find mistakes before a run."""
        hp = self._sample_hp(1)
        problem = problem_of(self)
        with global_seeds(0):
            members = [self.init(0), self.init(1)]
            batch = next(self._built_data.iter_batches([0], [0]))
            # Stacking the members checks that their shapes are equal.
            self._stack(members)
            start = OwnedTree(members[0])
            del members
            stack = self._stack_to_train([start], take=True)
            shared = self.data.is_shared([0])
            with self._program.training():
                gradients = LoopGradients(self._program, stack, hp)(batch, shared=shared)
            self._update(stack, gradients, resolve_rates(self.optimizer.rates(), hp), [0.0])
            member = stack.members()[0]
            del stack, gradients
            self._program.free_gradients()
            measured = self._measure_few_rows(member)
        self._release_large_model()
        for role, names in (
            ("objectives", [objective.name for objective in problem.objectives]),
            ("constraints", [constraint.name for constraint in problem.constraints]),
        ):
            missing = [name for name in names if name not in measured]
            if missing:
                raise MissingScore(
                    f"the {role} name {', '.join(map(repr, missing))}, but the task measures "
                    f"{', '.join(map(repr, measured)) or 'nothing'}; add the metric or correct "
                    f"the name{did_you_mean(missing[0], measured)}"
                )

    def _measure_few_rows(self, member: Tree) -> Mapping[str, float]:
        """Measure a member on few rows of each kind, or on all if few are not enough.

        Return the metrics on validation rows.
        """
        measured = []
        for data in self._built_rows.values():
            few = None if data is None else tuple(tensor[:CHECK_ROWS] for tensor in data)
            try:
                measured += self._measure([member], few)
            except Exception:
                # A metric may be undefined on few rows, for example if they are of one class.
                measured += self._measure([member], data)
        return measured[0]

    def check_stack(self) -> None:
        """Train two members for one update as a stack; raise CannotStack on failure."""
        hp = self._sample_hp(2)
        try:
            with global_seeds(0):
                members = [self.init(0), self.init(1)]
                with stacking(self._program.device):
                    self._time_update(members, hp, StackedGradients, min_updates=1)
                self._program.module.eval()
                rows = self._built_rows["validation"]
                if self.metrics is not None and rows is not None:
                    with torch.no_grad():
                        inputs = rows[0][:16]
                        compute_outputs(self._program, self._stack(members), inputs)
        except MopbtError:
            raise
        except Exception as error:
            raise cannot_stack(f"{type(error).__name__}: {error}") from error

    def probe(self, members: int, seconds: float = 1.0) -> Probe:
        """Compare a few updates of a single member and of a stack.

        The stack has up to `members` members. The measurement runs under the conditions of a
        worker and takes about `seconds`.
        """
        self.check_stack()
        with global_seeds(0), one_thread(), memory_kept():
            hp = self._sample_hp(max(members, 2))
            loop = self._time_update(
                [self.init(0)], hp[:1], LoopGradients, min_seconds=seconds / 10
            )
            # A stack takes at most about as long as its members one by one.
            size = max(2, min(members, round(seconds / loop)))
            trees = [self.init(i) for i in range(size)]
            with stacking(self._program.device):
                stacked = self._time_update(
                    trees, hp[:size], StackedGradients, min_seconds=seconds / 5
                )
            bytes_per_member = self._bytes_per_member()
            disagreement = self._compare_gradients(trees[:2], hp[:2])
            return Probe(loop, stacked / size, disagreement, bytes_per_member)

    def choose_compilation(
        self, members: int, intervals: float, seconds: float = math.inf
    ) -> Compilation:
        """Choose whether to compile the training of a run.

        A worker trains `intervals` intervals of stacks of `members` members, or of single ones, for
        at most `seconds`.
        """
        method = StackedGradients if members > 1 else LoopGradients
        task = self.with_compile(True)
        hp = self._sample_hp(members)
        models = [self.init(i) for i in range(members)]
        context = stacking(self._program.device) if members > 1 else nullcontext()
        with global_seeds(0), one_thread(), memory_kept(), context:
            return try_compilation(
                partial(self._time_update, models, hp, method),
                partial(task._time_update, models, hp, compiled_method(method)),
                task._program,
                updates=intervals * self.interval * self.data.updates,
                seconds=seconds,
                is_required=self.compile is True,
            )

    def measure_update(self, seconds: float = 1.0) -> Update:
        """Measure a few updates of a member that trains alone, for about `seconds`."""
        with global_seeds(0), one_thread(), memory_kept():
            hp = self._sample_hp(1)
            with live_bytes() as counted:
                self._time_update([self._fresh()], hp, LoopGradients, min_updates=1)
            taken = self._time_update([self._fresh()], hp, LoopGradients, min_seconds=seconds)
            kept = [*self._built_data.tensors, *self._program.module.state_dict().values()]
            return Update(taken, counted.peak + sum(tensor.nbytes for tensor in kept))

    def measure_interval(self, seconds: float = 1.0) -> Interval:
        """Measure updates and an evaluation of few rows, each for about `seconds`."""
        updates = self.interval * self.data.updates
        with global_seeds(0), one_thread(), memory_kept():
            hp = self._sample_hp(1)
            counter = FlopCounter()
            with live_bytes() as counted, counter:
                self._time_update([self._fresh()], hp, LoopGradients, min_updates=1)
            taken = self._time_update(
                [self._fresh()], hp, LoopGradients, min_updates=1, min_seconds=seconds
            )
            kept = [*self._built_data.tensors, *self._program.module.state_dict().values()]
            kept_bytes = sum(tensor.nbytes for tensor in kept)
            del kept
            member = self._stack_to_train([self._fresh()], take=True).members()[0]
            evaluation, evaluation_flops = self._measure_evaluation(member, seconds)
            begin = self._clock()
            checkpoint = Hashing(lambda data: None)
            self.dump_to(member, cast(IO[bytes], checkpoint))
            # Reading a checkpoint takes about as long.
            saving = 2 * (self._clock() - begin)
            self._release_large_model()
            return Interval(
                updates,
                taken,
                evaluation,
                updates * counter.flops + evaluation_flops,
                counted.peak + kept_bytes,
                checkpoint.size,
                saving,
                evaluation * self._other_rows,
                size_of(self.without_training_state(member)),
            )

    def _measure_evaluation(self, member: Tree, seconds: float) -> tuple[float, float]:
        """Return seconds and operations of an evaluation, extrapolated from few rows."""
        total = self._evaluated_rows
        try:
            few, flops = self._time_evaluation(member, FEW_ROWS)
        except Exception:
            total = None
        if total is None:
            return self._time_evaluation(member, None)
        fewest = min(FEW_ROWS, total)
        more = int(FEW_ROWS * min(seconds / max(few, 1e-6), 2**10))
        rows = min(more, total)
        if rows <= 2 * fewest:
            return few * total / fewest, flops * total / fewest
        longer, flops = self._time_evaluation(member, more)
        per_row = max(longer - few, 0.0) / (rows - fewest)
        return longer + per_row * (total - rows), flops * total / rows

    @property
    def _evaluated_rows(self) -> int | None:
        """Return how many rows a member is evaluated on; None if that is unknown."""
        data = self._built_rows["validation"]
        return None if data is None else len(data[0])

    @property
    def _other_rows(self) -> float:
        """Return how many rows besides those of validation there are for each of these."""
        total = self._evaluated_rows
        others = [data for name, data in self._built_rows.items() if name != "validation"]
        # A function that has its own data is taken to measure as many rows of each kind.
        return sum(len(data[0]) / total if data and total else 1.0 for data in others)

    def _time_evaluation(self, member: Tree, rows: int | None) -> tuple[float, float]:
        """Return the seconds and operations of an evaluation on the first rows, or on all."""
        data = self._built_rows["validation"]
        part = None if data is None else tuple(tensor[:rows] for tensor in data)
        counter = FlopCounter()
        with counter:
            self._measure([member], part)
        clock = self._clock
        begin = clock()
        self._measure([member], part)
        return clock() - begin, counter.flops

    @property
    def _clock(self) -> Callable[[], float]:
        # Other processes may use the same cores, so a CPU is measured in its own time.
        on_cpu = self._program.device.type == "cpu"
        return time.process_time if on_cpu else time.perf_counter

    def _bytes_per_member(self) -> int:
        """Return the memory in bytes that an update needs for each member of a stack."""
        hp = self._sample_hp(2)
        members = [self.init(0), self.init(1)]
        peaks = []
        with global_seeds(0), stacking(self._program.device):
            for n in (1, 2):
                with live_bytes() as counted:
                    self._time_update(members[:n], hp[:n], StackedGradients, min_updates=1)
                peaks.append(counted.peak)
        return max(peaks[1] - peaks[0], 1)

    @cached_property
    def _built_program(self) -> Program:
        device = find_device(self.device)
        check_supported(self.precision, device)
        # The model may be built at any moment, so it must not draw random numbers of the run.
        with global_seeds(0):
            module = self.model().to(device)
        for part in module.modules():
            if isinstance(part, Hyperparameter):
                self._check_number("the model", part.name, TaskError)
        return Program(
            module=module,
            layout=Layout.of(module),
            device=device,
            loss=self.loss,
            augment=self.data.augment,
            precision=self.precision,
            compiler=Compiler() if self.compile is True else None,
        )

    @cached_property
    def _built_data(self) -> Batches:
        return self.data.to(self._program.device)

    @cached_property
    def _built_rows(self) -> dict[str, Rows | None]:
        """Return the rows that models are measured on, by name."""
        if self.validation is None:
            return {"validation": None}
        validation, holdout = split_holdout(self.validation, self.holdout)
        found = {"validation": validation, "test": self.test, "holdout": holdout}
        return {name: rows for name, rows in found.items() if rows is not None}

    def _fresh(self) -> Tree:
        """Return a new member, whose memory a measurement takes."""
        return OwnedTree(self.init(0))

    def _release_large_model(self) -> None:
        """Forget a large model that was built for a measurement; a worker builds its own."""
        layout = self._program.layout
        if layout.size * layout.dtype.itemsize >= LARGE_MODEL:
            del self.__dict__["_built_program"]

    @property
    def _program(self) -> Program:
        return self._built_program

    def _stack(self, models: Sequence[Tree], slots: Sequence[str] = ()) -> Stack:
        return Stack.of(models, self._program.layout, slots, self._program.device)

    def _stack_to_train(self, models: Sequence[Tree], *, take: bool = False) -> Stack:
        return Stack.of(
            models,
            self._program.layout,
            self.optimizer.slots,
            self._program.device,
            averaged=self.ema is not None,
            scaled=self.precision == "fp16",
            take=take,
        )

    def _train(
        self,
        models: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
        n_steps: int,
        method: GradientMethod,
    ) -> list[Tree]:
        """Train members for `n_steps` with gradients computed by `method`."""
        # If a stack runs out of memory, it is divided and copied again.
        stack = self._stack_to_train(models, take=method is LoopGradients)
        rates = resolve_rates(self.optimizer.rates(), hp)
        if self._program.compiler is not None:
            method = compiled_method(method)
        gradients_of = method(self._program, stack, hp)
        with self._program.training():
            for offset in range(n_steps):
                steps = [begin + offset for begin in begins]
                shared = self.data.is_shared(steps)
                for i, batch in enumerate(self._built_data.iter_batches(seeds, steps)):
                    gradients = gradients_of(batch, shared=shared)
                    positions = [(step + i / self.data.updates) / self.steps for step in steps]
                    self._update(stack, gradients, rates, positions)
        self._program.record_reads(hp)
        self._program.free_gradients()
        return stack.members()

    def _update(
        self,
        stack: Stack,
        gradients: Tensor,
        rates: Sequence[Mapping[str, float]],
        positions: Sequence[float],
    ) -> None:
        """Update each member at its position in training, from 0 to 1.

        A member whose scaled gradient is not finite is not updated.
        """
        finite = None if stack.scaling is None else stack.scaling.unscale(gradients)
        if self.clip is not None:
            clip_rows(gradients, self.clip)
        stack.updates.add_(1 if finite is None else finite)
        skipped = [False] * len(stack) if finite is None else (~finite).tolist()
        for (row, slots, updates), gradient, own_rates, position, is_skipped in zip(
            stack.rows, gradients.unbind(), rates, positions, skipped, strict=True
        ):
            if is_skipped:
                continue
            lr = own_rates["lr"] * self.optimizer.schedule(position)
            self.optimizer.update(row, gradient, slots, updates, {**own_rates, "lr": lr})
        if self.ema is not None:
            stack.update_averages(self.ema, finite)

    def _nan_metrics(self) -> dict[str, float]:
        """Return NaN for all objectives and constraints."""
        problem = problem_of(self)
        names = [*(o.name for o in problem.objectives), *(c.name for c in problem.constraints)]
        return dict.fromkeys(names, math.nan)

    def _sample_hp(self, n: int) -> list[Hyperparameters]:
        """Draw the hyperparameters of `n` members for a check or a measurement."""
        return [
            Hyperparameters(
                {
                    name: domain.decode(domain.sample(stream(i, "probe", name)))
                    for name, domain in self.space.items()
                }
            )
            for i in range(n)
        ]

    def _time_update(
        self,
        models: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        method: GradientMethod,
        *,
        min_updates: int = 3,
        min_seconds: float = 0.0,
    ) -> float:
        """Measure the median seconds of an update of all members."""
        stack = self._stack_to_train(models, take=True)
        rates = resolve_rates(self.optimizer.rates(), hp)
        gradients_of = method(self._program, stack, hp)
        clock = self._clock
        times: list[float] = []
        with self._program.training():
            for batch in self._endless_batches(len(models)):
                begin = clock()
                gradients = gradients_of(batch, shared=self.data.shared)
                self._update(stack, gradients, rates, [0.0] * len(models))
                # Reading a value waits until a GPU has finished.
                stack.updates.tolist()
                times.append(clock() - begin)
                if len(times) >= min_updates and sum(times) >= min_seconds:
                    break
        self._program.free_gradients()
        return statistics.median(times)

    def _endless_batches(self, n_members: int) -> Iterator[Batch]:
        """Iterate over the batches of all steps, because a step may have only one."""
        for step in itertools.count():
            yield from self._built_data.iter_batches(range(n_members), [step] * n_members)

    def _compare_gradients(self, models: Sequence[Tree], hp: Sequence[Mapping[str, Any]]) -> float:
        """Return the largest relative difference between single and stacked gradients.

        The model is in evaluation mode, because random masks of dropout would differ, and computes
        in full precision, because rounding would hide a difference.
        """
        program = replace(self._program, precision="fp32")
        batch = self._built_data.head(self.data.batch_size)
        program.module.eval()
        single = []
        for model, own in zip(models, hp, strict=True):
            single.append(LoopGradients(program, self._stack([model]), [own])(batch, shared=True))
        expected = torch.cat(single)
        with stacking(program.device):
            stacked = StackedGradients(program, self._stack(models), hp)(batch, shared=True)
        return float((expected - stacked).abs().max() / (expected.abs().max() + 1e-12))

    def _check_number(self, user: str, name: str, error: type[Exception]) -> None:
        """Raise an error unless a hyperparameter is in the space and a number."""
        if name not in self.space:
            raise error(
                f"{user} uses the hyperparameter {name!r}, but the space has "
                f"{', '.join(map(repr, self.space))}; add it to the space or correct the name"
                f"{did_you_mean(name, self.space)}"
            )
        drawn = self.space[name].decode(self.space[name].sample(stream(0, "probe", name)))
        if not isinstance(drawn, int | float):
            raise error(
                f"{user} uses the hyperparameter {name!r}, which must be a number there, got "
                f"values such as {drawn!r}; number the categories, as in Categorical([0, 1]), or "
                f"read hp[{name!r}] in the loss and pass it to the model"
            )
