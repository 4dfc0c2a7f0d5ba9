"""`TorchTask`: a model, a loss, data, an optimizer and metrics make a task that trains members one by one or stacked.

A member is a tree of tensors, ``{"model": state_dict, "optimizer": {slot: {parameter: tensor}}, "updates": n}``. Training never
changes the tree it starts from, so that one tree can be the start of several members.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mopbt import serialization
from mopbt.engines.seeding import global_seeds
from mopbt.engines.worker import memory_kept
from mopbt.errors import CannotStack, MissingScore, MopbtError, TaskError
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction
from mopbt.problem import Values, problem_of
from mopbt.rng import stream
from mopbt.space import Domain
from mopbt.torch.data import Batch, Batches
from mopbt.torch.hyperparameters import StackedValues, TensorValues, cannot_stack, unstackable_named
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.optimizers import AdamW, Optimizer, clip_rows, resolved
from mopbt.torch.probe import Probe, one_thread, peak_memory
from mopbt.torch.stack import Layout, Stack, Tree, swap_parameters
from mopbt.torch.validation import check_parts, check_rows, named_numbers

Loss = Callable[[Callable[..., Any], Batch, Mapping[str, Any]], Tensor]
Metrics = Callable[..., Mapping[str, float]]
GradientsOf = Callable[
    [Batch, int | None], Tensor
]  # of a batch and the axis of the members in it: rows (N, P)
Way = Callable[
    [Stack, Sequence[Mapping[str, Any]]], GradientsOf
]  # how a stack with these hyperparameters is trained
ROWS_AT_A_TIME = 2**16  # rows times members in one evaluation
ROWS_ENOUGH = 1024  # with so many, members are evaluated one by one: a core is full, and copies for the stack cost a third more


@dataclass(frozen=True)
class TorchTask:
    """A PyTorch model that is trained step by step.

    Args:
        model: Builds the model; its structure must not depend on hyperparameters (`Tuned` and `Dropout` are for what may).
        loss: Of the model, a batch and the hyperparameters (as tensors without dimensions): a scalar.
        data: The training rows.
        space: The hyperparameters that are tuned, by name.
        objectives: The scores that count, by name, and their directions.
        steps: Steps of a whole training; a step goes once through the data unless the data say otherwise.
        interval: Steps between decisions.
        optimizer: The update rule; a field that is a string names a hyperparameter.
        metrics: Of the model's outputs and the targets: the scores by name.
        validation: Inputs and targets on which the objectives are measured.
        test: Inputs and targets that are measured beside them, as ``test/...``.
        evaluate_model: In place of metrics and validation: a function of the model in evaluation mode that returns the scores.
        constraints: Limits on scores, such as ``["accuracy >= 0.7"]``.
        reference: The reference point of the hypervolume.
        clip: The largest norm of a member's gradient.
        autocast: Compute the loss in this type (mixed precision), for example ``torch.bfloat16``.
        compile: Train members one by one with `torch.compile`; it pays for large models. Stacks are not compiled.
        device: Where to train; "auto" takes a GPU if there is one.
        population: How many members suit the task; a run has as many unless told otherwise.
        name: What the task is called.
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
    evaluate_model: Callable[[nn.Module], Mapping[str, float]] | None = None
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    clip: float | None = None
    autocast: torch.dtype | None = None
    compile: bool = False
    device: str = "auto"
    population: int | None = None
    name: str = "torch"

    functional: ClassVar[bool] = True  # training leaves the tree that it starts from as it is

    def __post_init__(self) -> None:
        given = [
            self.metrics is not None,
            self.validation is not None,
            self.evaluate_model is not None,
        ]
        if given not in ([True, True, False], [False, False, True]) or (
            self.test is not None and self.metrics is None
        ):
            names = [
                n
                for n in ("metrics", "validation", "test", "evaluate_model")
                if getattr(self, n) is not None
            ]
            raise ValueError(
                f"a TorchTask needs `metrics` and `validation` (and perhaps `test`), or `evaluate_model`, and not both, got "
                f"{' and '.join(f'`{name}`' for name in names) or 'none of them'}"
            )
        check_parts(self.model, self.loss, self.data, self.optimizer)
        for name, data in (("validation", self.validation), ("test", self.test)):
            check_rows(name, data)
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise ValueError(f"`clip` must be a number above 0, or None, got {self.clip!r}")
        for name, rate in self.optimizer.rates().items():
            if isinstance(rate, str) and rate not in self.space:
                raise ValueError(
                    f"the optimizer's `{name}` names {rate!r}; the space has {', '.join(map(repr, self.space))}: add it there, or "
                    f"correct the name{did_you_mean(rate, self.space)}"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was built from the fields: a worker builds its own."""
        return {
            name: value for name, value in self.__dict__.items() if not name.startswith("_built")
        }

    # One member at a time.

    def init(self, seed: int) -> Tree:
        """Return a fresh member."""
        with global_seeds(seed):
            state = {
                name: tensor.detach().clone() for name, tensor in self.model().state_dict().items()
            }
        return {"model": state, "optimizer": {}, "updates": 0}

    def train(self, model: Tree, hp: Mapping[str, Any], begin: int, end: int, seed: int) -> Tree:
        """Train one member: a plain loop over batches."""
        return self._train([model], [hp], [begin], [seed], end - begin, self._loop_gradients)[0]

    def evaluate(self, model: Tree) -> Mapping[str, float]:
        """Measure one member."""
        return self.evaluate_many([model])[0]

    def dump(self, model: Tree) -> bytes:
        """Return the member as a safetensors file."""
        return serialization.dumps(model)

    def load(self, data: bytes) -> Tree:
        """Return the member; ``["model"]`` is an ordinary state_dict."""
        loaded: Tree = serialization.loads(data)
        return loaded

    # Many members as one program.

    def train_many(
        self,
        models: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Tree]:
        """Train several members for one interval as one stacked program."""
        with self._stacking():
            return self._train(models, hp, begins, seeds, self.interval, self._stacked_gradients)

    def evaluate_many(self, models: Sequence[Tree]) -> list[Mapping[str, float]]:
        """Measure several members; their outputs are computed together."""
        stack = Stack.of(models, self._layout, (), self._device)
        with torch.no_grad():
            self._module.eval()
            if self.evaluate_model is not None:
                return [self._custom_scores(stack, i) for i in range(len(models))]
            assert self.validation is not None
            scores = self._scores(stack, self.validation, "")
            if self.test is not None:
                scores = [
                    a | b
                    for a, b in zip(scores, self._scores(stack, self.test, "test/"), strict=True)
                ]
            return list(scores)

    # What can be known before a population trains.

    def check(self) -> None:
        """Build a member, compute a loss and measure it: what is wrong shows now, and not in a worker."""
        (values,), problem = self._sampled(1), problem_of(self)
        with global_seeds(0):
            members, batch = (
                [self.init(0), self.init(1)],
                self._built_data.head(self.data.batch_size),
            )
            Stack.of(
                members, self._layout, (), self._device
            )  # do all members have the same shapes?
            stack = Stack.of(members[:1], self._layout, self.optimizer.slots, self._device)
            self._module.train()
            gradients = self._loop_gradients(stack, [values])(batch, None)
            self._update(stack, gradients, resolved(self.optimizer.rates(), [values]), [0.0])
            scores = self.evaluate(stack.members()[0])
        wanted = {
            "objectives": [o.name for o in problem.objectives],
            "constraints": [c.name for c in problem.constraints],
        }
        for role, names in wanted.items():
            if missing := [name for name in names if name not in scores]:
                given, near = (
                    ", ".join(map(repr, scores)) or "nothing",
                    did_you_mean(missing[0], scores),
                )
                raise MissingScore(
                    f"the metrics do not give {', '.join(map(repr, missing))}, which the {role} name; they give {given}: return it "
                    f"as well, or correct the name{near}"
                )

    def check_stack(self) -> None:
        """Train two members for an update as a stack, and measure them; raise CannotStack if that does not go."""
        values = self._sampled(2)
        try:
            with global_seeds(0):
                trees = [self.init(0), self.init(1)]
                with self._stacking():
                    self._probed(trees, values, self._stacked_gradients, least=1)
                self._module.eval()
                with torch.no_grad():
                    if self.validation is not None:
                        self._outputs(
                            Stack.of(trees, self._layout, (), self._device),
                            self.validation[0][:16].to(self._device),
                        )
        except MopbtError:
            raise
        except Exception as error:
            raise CannotStack(cannot_stack(f"{type(error).__name__}: {error}")) from error

    def probe(self, members: int, seconds: float = 1.0) -> Probe:
        """Train a few updates of up to `members` members one by one and stacked, as workers do, and compare gradients and times."""
        self.check_stack()
        with global_seeds(0), one_thread(), memory_kept():
            values = self._sampled(max(members, 2))
            one = self._probed(
                [self.init(0)], values[:1], self._loop_gradients, seconds=seconds / 10
            )
            members = max(
                2, min(members, round(seconds / one))
            )  # a stack is about as slow as its members together
            trees, values = [self.init(i) for i in range(members)], values[:members]
            before = peak_memory()
            with self._stacking():
                many = (
                    self._probed(trees, values, self._stacked_gradients, seconds=seconds / 5)
                    / members
                )
            grown = (peak_memory() - before) // members
            return Probe(one, many, self._disagreement(trees[:2], values[:2]), max(grown, 0))

    def _sampled(self, n: int) -> list[Values]:
        return [
            Values(
                {
                    name: d.decode(d.sample(stream(i, "probe", name)))
                    for name, d in self.space.items()
                }
            )
            for i in range(n)
        ]

    def _probed(
        self,
        trees: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        way: Way,
        *,
        least: int = 3,
        seconds: float = 0.0,
    ) -> float:
        """Return the time of one update, the median of at least so many, in about so many seconds."""
        stack, axis = (
            Stack.of(trees, self._layout, self.optimizer.slots, self._device),
            None if self.data.is_shared([0]) else 0,
        )
        rates, gradients_of = resolved(self.optimizer.rates(), hp), way(stack, hp)
        self._module.train()
        clock = (
            time.process_time if self._device.type == "cpu" else time.perf_counter
        )  # others may be busy on these cores
        times: list[float] = []
        for batch in self._endless(len(trees)):
            began = clock()
            self._update(stack, gradients_of(batch, axis), rates, [0.0] * len(trees))
            stack.updates.tolist()  # waits for a GPU
            times.append(clock() - began)
            if len(times) >= least and sum(times) >= seconds:
                return statistics.median(times)
        raise AssertionError("there is always a next batch")

    def _endless(self, members: int) -> Iterator[Batch]:
        """Go through the batches of step after step, as a step may have but one."""
        for step in itertools.count():
            yield from self._built_data.of_members(range(members), [step] * members)

    def _disagreement(self, trees: Sequence[Tree], hp: Sequence[Mapping[str, Any]]) -> float:
        """Return how far the first gradients of two members differ between loop and stack, with dropout and the like off."""
        batch = self._built_data.head(self.data.batch_size)
        self._module.eval()
        alone = []
        for member, own in zip(trees, hp, strict=True):
            stack = Stack.of([member], self._layout, (), self._device)
            alone.append(self._loop_gradients(stack, [own])(batch, None))
        stack = Stack.of(trees, self._layout, (), self._device)
        with self._stacking():
            together = self._stacked_gradients(stack, hp)(batch, None)
        apart = torch.cat(alone)
        return float((apart - together).abs().max() / (apart.abs().max() + 1e-12))

    # How both are done.

    @cached_property
    def _built_device(self) -> torch.device:
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(automatic if self.device == "auto" else self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise ValueError(
                f"`device` must be 'auto', or one that PyTorch has here, such as {automatic!r}, got {self.device!r}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        return device

    @cached_property
    def _built_module(self) -> nn.Module:
        with global_seeds(
            0
        ):  # it is built once, at no particular moment: no draw may come of it, or go into it
            module = self.model().to(self._device)
        for part in module.modules():
            if isinstance(part, Hyperparameter) and part.name not in self.space:
                raise TaskError(
                    f"the model is tuned by {part.name!r}; the space has {', '.join(map(repr, self.space))}: add it there, or "
                    f"correct the name{did_you_mean(part.name, self.space)}"
                )
        return module

    @cached_property
    def _built_call(self) -> Callable[..., Any]:
        return torch.compile(self._module) if self.compile else self._module

    @cached_property
    def _built_layout(self) -> Layout:
        return Layout.of(self._module)

    @cached_property
    def _built_data(self) -> Batches:
        return self.data.to(self._device)

    @property
    def _device(self) -> torch.device:
        return self._built_device

    @property
    def _module(self) -> nn.Module:
        return self._built_module

    @property
    def _layout(self) -> Layout:
        return self._built_layout

    def _train(
        self,
        models: Sequence[Tree],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
        steps: int,
        way: Way,
    ) -> list[Tree]:
        stack = Stack.of(models, self._layout, self.optimizer.slots, self._device)
        rates, gradients_of = resolved(self.optimizer.rates(), hp), way(stack, hp)
        self._module.train()
        for offset in range(steps):
            now = [begin + offset for begin in begins]
            axis = None if self.data.is_shared(now) else 0  # of the members in a batch
            for i, batch in enumerate(self._built_data.of_members(seeds, now)):
                gradients = gradients_of(batch, axis)
                if self.clip is not None:
                    clip_rows(gradients, self.clip)
                self._update(
                    stack,
                    gradients,
                    rates,
                    [(step + i / self.data.updates) / self.steps for step in now],
                )
        self._note_read(hp)
        return stack.members()

    def _note_read(self, hp: Sequence[Mapping[str, Any]]) -> None:
        """Read the hyperparameters of those modules that were called."""
        for part in self._module.modules():
            if isinstance(part, Hyperparameter) and part.was_read:
                for own in hp:
                    own[part.name]

    def _update(
        self,
        stack: Stack,
        gradients: Tensor,
        rates: Sequence[Mapping[str, float]],
        positions: Sequence[float],
    ) -> None:
        stack.updates.add_(1)
        for (row, slots, updates), gradient, own, position in zip(
            stack.rows, gradients.unbind(), rates, positions, strict=True
        ):
            now = {**own, "lr": own["lr"] * self.optimizer.schedule(position)}
            self.optimizer.update(row, gradient, slots, updates, now)

    def _loop_gradients(self, stack: Stack, values: Sequence[Mapping[str, Any]]) -> GradientsOf:
        """Return how to get the gradient (1, P) of the only member as PyTorch usually does."""
        gradients, hp = torch.zeros_like(stack.parameters), TensorValues(values[0], self._device)
        self._attach(stack, 0)
        parts = self._layout.by_parameter(self._module, gradients[0])
        for name, value in self._tuned(values).items():
            self._module.get_buffer(name).copy_(value[0])

        def gradients_of(batch: Batch, axis: int | None) -> Tensor:
            with self._precision():
                loss = self._loss_of(
                    self._built_call, batch if axis is None else tuple(t[0] for t in batch), hp
                )
            if not loss.requires_grad:
                raise TaskError(
                    "`loss` does not depend on any parameter of the model; compute it from what the model returns"
                )
            gradients.zero_()
            for parameter, part in parts:
                parameter.grad = part  # whatever the loss did to it, as attacks on the model do
            loss.backward()  # type: ignore[no-untyped-call]
            self._layout.keep_buffers(self._module, stack, 0)
            return gradients

        return gradients_of

    def _stacked_gradients(self, stack: Stack, hp: Sequence[Mapping[str, Any]]) -> GradientsOf:
        """Return how to get the gradients (N, P) of all members from one program over the stack."""
        reading, tuned = StackedValues(hp, self._device), self._tuned(hp)
        stack.others |= {name: tuned.pop(name) for name in stack.others if name in tuned}
        leaves = [
            part.detach().requires_grad_()
            for part in self._layout.by_name(stack.parameters).values()
        ]
        names = (*self._layout.places, *stack.others, *tuned)
        cells = self._layout.cells(self._module, names)
        kept = [cell for cell in cells if cell.name in stack.others][
            : len(stack.others)
        ]  # each but once, tied or not

        def loss_of_member(
            batch: Batch, numbers: Tensor, state: Sequence[Tensor]
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            with swap_parameters(cells, dict(zip(names, state, strict=True))):
                loss = self._loss_of(self._module, batch, reading.of_member(numbers))
                return loss, tuple(cell.holder[cell.leaf].detach() for cell in kept)

        def gradients_of(batch: Batch, axis: int | None) -> Tensor:
            state = (*leaves, *stack.others.values(), *tuned.values())
            stacked = vmap(loss_of_member, in_dims=(axis, 0, 0), randomness="different")
            with self._precision():
                losses, others = stacked(batch, reading.numbers, state)
            stack.others |= {
                name: other.contiguous() for name, other in zip(stack.others, others, strict=True)
            }
            parts = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
            rows = [
                torch.zeros_like(leaf) if part is None else part
                for leaf, part in zip(leaves, parts, strict=True)
            ]
            return torch.cat([row.reshape(len(hp), -1) for row in rows], dim=1)

        return gradients_of

    def _loss_of(self, model: Callable[..., Any], batch: Batch, hp: Mapping[str, Any]) -> Tensor:
        loss = self.loss(
            model, batch if self.data.augment is None else self.data.augment(batch, hp), hp
        )
        if not isinstance(loss, Tensor) or loss.dim():
            got = (
                f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            )
            raise TaskError(
                f"`loss` must return a tensor without dimensions, got {got}; take its mean or sum"
            )
        return loss

    def _tuned(self, hp: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the values (N,) of the hyperparameters inside the model, by the names of their buffers."""
        plain, tuned = [getattr(v, "plain", v) for v in hp], {}
        for place, part in self._module.named_modules():
            if isinstance(part, Hyperparameter):
                part.was_read = False
                numbers = [float(v[part.name]) for v in plain]
                tuned[f"{place}.value" if place else "value"] = torch.tensor(
                    numbers, device=self._device
                )
            elif (
                isinstance(part, Dropout) and part.p is None
            ):  # stacked too: masks differ also where members share their inputs
                tuned[f"{place}.constant" if place else "constant"] = part.constant.repeat(len(hp))
        return tuned

    def _attach(self, stack: Stack, member: int) -> None:
        self._layout.attach(self._module, stack, member)

    def _custom_scores(self, stack: Stack, member: int) -> Mapping[str, float]:
        assert self.evaluate_model is not None
        if stack.is_broken(member):
            return self._broken_scores()
        self._attach(stack, member)
        self._module.eval()  # each time: the function may have changed it
        return named_numbers(self.evaluate_model(self._module), "evaluate_model")

    def _scores(
        self, stack: Stack, data: tuple[Tensor, ...], prefix: str
    ) -> list[dict[str, float]]:
        assert self.metrics is not None
        inputs, targets = data[0].to(self._device), tuple(t.to(self._device) for t in data[1:])
        outputs = self._outputs(stack, inputs)
        scores = []
        for i, out in enumerate(outputs):
            own = (
                self._broken_scores()
                if stack.is_broken(i)
                else named_numbers(self.metrics(out, *targets), "metrics")
            )
            scores.append({prefix + name: score for name, score in own.items()})
        return scores

    def _broken_scores(self) -> dict[str, float]:
        """Return NaN for all that counts: of NaN, metrics such as accuracy make sound numbers, and others raise."""
        problem = problem_of(self)
        return dict.fromkeys(
            [*(o.name for o in problem.objectives), *(c.name for c in problem.constraints)],
            math.nan,
        )

    def _outputs(self, stack: Stack, inputs: Tensor) -> Sequence[Tensor]:
        n = len(stack.updates)
        if n == 1 or (self._device.type == "cpu" and len(inputs) >= ROWS_ENOUGH):
            return [self._outputs_of(stack, member, inputs) for member in range(n)]

        names = (*self._layout.places, *stack.others)
        cells = self._layout.cells(self._module, names)

        def outputs_of_member(state: Sequence[Tensor], x: Tensor) -> Any:
            with swap_parameters(cells, dict(zip(names, state, strict=True))):
                return self._module(x)

        state = (*self._layout.by_name(stack.parameters).values(), *stack.others.values())
        with self._stacking():
            stacked = vmap(outputs_of_member, in_dims=(0, None), randomness="different")
            outputs = [
                stacked(state, chunk) for chunk in torch.split(inputs, max(ROWS_AT_A_TIME // n, 1))
            ]
        return list(torch.cat(outputs, dim=1))

    def _outputs_of(self, stack: Stack, member: int, inputs: Tensor) -> Tensor:
        self._attach(stack, member)
        return torch.cat([self._module(chunk) for chunk in torch.split(inputs, ROWS_AT_A_TIME)])

    @contextmanager
    def _stacking(self) -> Iterator[None]:
        """Use those ways of computing attention that can be stacked, and name what cannot be."""
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        on_cpu = self._device.type == "cpu"
        try:
            with sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext(), unstackable_named():
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

    def _precision(self) -> AbstractContextManager[Any]:
        return (
            nullcontext()
            if self.autocast is None
            else torch.autocast(self._device.type, self.autocast)
        )
