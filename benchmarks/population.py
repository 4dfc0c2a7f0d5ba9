"""Measure how fast a population trains: stacked, one by one and with other tools.

``python benchmarks/population.py [--repeats 3] [workload] [steps] [variants] [costs] [peers]``
measures the named sections, all by default, and prints ratios. `variants` measures compiled
training, lower precision and channels last, `costs` exploit, memory and population size. Compared
ways take turns in one run, on two workers of one thread unless stated otherwise.
"""

import importlib.util
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import overhead
import torch
from measuring import Row, argument_parser, show
from torch import nn
from torch.nn.functional import cross_entropy

import mopbt
from mopbt.engines.auto import engine_spec
from mopbt.engines.worker import keep_memory
from mopbt.rng import stream
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.tasks.paper import TASKS
from mopbt.torch import AdamW, Batches, Dropout, TorchTask
from mopbt.torch.stack import Layout, Stack

HERE = str(Path(__file__).parent)


class Block(nn.Module):
    """Apply attention and a gated feed-forward network, as in an FT-Transformer."""

    def __init__(self, d, heads, dropout):
        super().__init__()
        self.heads = heads
        hidden = d * 4 // 3
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.up = nn.Linear(d, 2 * hidden)
        self.down = nn.Linear(hidden, d)
        self.drops = nn.ModuleList([dropout(), dropout()])

    def forward(self, x):
        """Transform tokens."""
        projected = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = projected.transpose(-4, -2).unbind(-3)
        weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        x = x + self.out((self.drops[0](weights) @ v).transpose(-3, -2).flatten(-2))
        a, b = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(self.drops[1](a * torch.relu(b)))


class Transformer(nn.Module):
    """Classify rows by a tiny FT-Transformer with 14 feature tokens and a class token."""

    def __init__(self, dropout, d=32, blocks=2, heads=4):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(n, d) * d**-0.5) for n in (14, 15))
        self.blocks = nn.Sequential(*(Block(d, heads, dropout) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 2))

    def forward(self, x):
        """Return the logits."""
        tokens = nn.functional.pad(x[..., None] * self.weight, (0, 0, 1, 0)) + self.bias
        return self.head(self.blocks(tokens)[..., 0, :])


class Residual(nn.Module):
    """Add two convolutions to a shortcut, as in a WideResNet."""

    def __init__(self, incoming, out, stride):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(incoming), nn.BatchNorm2d(out)])
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(incoming, out, 3, stride, 1, bias=False),
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
            ]
        )
        self.short = nn.Identity()
        if incoming != out:
            self.short = nn.Conv2d(incoming, out, 1, stride, bias=False)

    def forward(self, x):
        """Transform images."""
        first = torch.relu(self.norms[0](x))
        return self.short(x) + self.convs[1](torch.relu(self.norms[1](self.convs[0](first))))


def mlp(dropout):
    """Return the network of `overhead.py`."""
    hidden = (nn.Linear(14, 64), nn.ReLU(), dropout(), nn.Linear(64, 64), nn.ReLU(), dropout())
    return nn.Sequential(*hidden, nn.Linear(64, 2))


def wide_resnet(dropout):
    """Return WideResNet-10-1."""
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    tail = (
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(-3),
        nn.Linear(64, 2),
    )
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *tail)


def images():
    """Return random images and labels, enough for a few updates."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 3, 32, 32, generator=generator)
    return x, torch.randint(2, (512,), generator=generator)


@dataclass(frozen=True)
class Workload:
    """Train in steps of `updates` batches, with `stack` members in each process."""

    title: str
    model: Callable[[Callable[[], nn.Module]], nn.Module]
    rows: Callable[[], tuple[torch.Tensor, ...]]
    batch: int
    updates: int
    stack: int
    tuned: tuple[str, ...] = tuple(overhead.SPACE)

    def task(self, *, interval=1, steps=1000):
        """Return the workload as a task."""
        x, y = self.rows()
        validation = overhead.data()[2:] if x.dim() == 2 else (x, y)
        return TorchTask(
            lambda: self.model(lambda: Dropout("dropout")),
            loss=loss,
            metrics=metrics,
            validation=validation,
            data=Batches(x, y, batch_size=self.batch, updates=self.updates),
            interval=interval,
            steps=steps,
            optimizer=AdamW(lr="lr", weight_decay="decay"),
            space={name: overhead.SPACE[name] for name in self.tuned},
            objectives={"precision": "max", "recall": "max"},
        )

    def values(self):
        """Return the hyperparameters of all members; their values do not affect speed."""
        return {
            name: domain.values[4] for name, domain in overhead.SPACE.items() if name in self.tuned
        }


def loss(model, batch, hp):
    """Return the cross entropy with the tuned weight of the positive class."""
    inputs, labels = batch
    weight = torch.stack([1 - hp["positive"], hp["positive"]])
    return cross_entropy(model(inputs), labels, weight=weight)


def metrics(outputs, labels):
    """Return precision and recall."""
    predicted = outputs.argmax(1)
    hits = (predicted & labels).sum()
    return {
        "precision": hits / predicted.sum().clamp(min=1),
        "recall": hits / labels.sum().clamp(min=1),
    }


WORKLOADS = {
    # The floor makes 20 updates per epoch, too.
    "L": Workload("MLP 14-64-64-2, 5,000 rows", mlp, lambda: overhead.data()[:2], 250, 20, 16),
    "W1": Workload("W1: MLP, batch 256", mlp, lambda: overhead.data()[:2], 256, 19, 16),
    "W2t": Workload(
        "W2t: tiny FT-Transformer, batch 512", Transformer, lambda: overhead.data()[:2], 512, 2, 8
    ),
    "W3": Workload(
        "W3: WideResNet-10-1, batch 128",
        wide_resnet,
        images,
        128,
        1,
        4,
        ("lr", "decay", "positive"),
    ),
}


# The complete workload, each way in its own process.


def run_process(call, **options):
    """Run a call in a new Python process and return its output."""
    module = call.partition(".")[0]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}; {call}"],
        capture_output=True,
        text=True,
        env=environment,
        **options,
    )
    if done.returncode:
        raise SystemExit(f"{call} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_workload(engine):
    """Run the complete workload with mopbt."""
    task = WORKLOADS["L"].task(interval=overhead.EPOCHS, steps=overhead.INTERVALS * overhead.EPOCHS)
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(
            task, out=folder + "/run", engine=engine, population=overhead.POPULATION, progress=False
        )
        assert len(results.records()) == overhead.POPULATION * overhead.INTERVALS


def in_turns(ways, repeats):
    """Return the seconds of each way in each repeat.

    Ways take turns, so that a busy moment of the machine affects all of them.
    """
    times = {way: [] for way in ways}
    for _ in range(repeats):
        for way, function in ways.items():
            times[way].append(overhead.timed(function))
    return times


def time_calls(calls, repeats):
    """Return the seconds of each call in each repeat, every time in a new process."""
    ways = {way: lambda call=call: run_process(call) for way, call in calls.items()}
    return in_turns(ways, repeats)


def ratio(over, under):
    """Return the median ratio of measurements of the same repeat."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def workload(repeats):
    """Compare complete runs with the floor."""
    calls = {
        "floor": "overhead.floor()",
        "vectorized": "population.run_workload('vectorized')",
        "auto": "population.run_workload('auto')",
    }
    times = time_calls(calls, repeats)
    floor = statistics.median(times["floor"])
    for way in ("vectorized", "auto"):
        against = ratio(times[way], times["floor"])
        seconds = f"{statistics.median(times[way]):.1f} s against {floor:.1f} s"
        name = f"MLP, 32 x 10, whole process: {way} / floor"
        yield Row(name, against, "<= 0.55", against <= 0.55, seconds)


# Updates per second, in processes that are reused.


def plain(work):
    """Return a step of a plain PyTorch loop over members, with fused AdamW."""
    x, y = work.rows()
    values = work.values()
    weight = torch.tensor([1 - values["positive"], values["positive"]])
    members = []
    for _ in range(work.stack):
        model = work.model(lambda: nn.Dropout(values["dropout"]))
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=values["lr"], weight_decay=values["decay"], fused=True
        )
        members.append((model.train(), optimizer))

    def step():
        model, optimizer = members[0]
        members.append(members.pop(0))
        for rows in torch.randperm(len(x))[: work.updates * work.batch].split(work.batch):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows], weight).backward()
            optimizer.step()
        return work.updates

    return step


def single(work):
    """Return a step of one member after the other, as in a worker of the pool."""
    task = work.task()
    values = work.values()
    members = [task.init(i) for i in range(work.stack)]

    def step():
        members.append(task.train(members.pop(0), values, 0, 1, len(members)))
        return work.updates

    return step


def stacked(work):
    """Return a step of a stack of members, as in a worker of the vectorized engine."""
    task = work.task()
    values = [work.values()] * work.stack
    members = [task.init(i) for i in range(work.stack)]

    def step():
        members[:] = task.train_many(members, values, [0] * len(members), range(len(members)))
        return work.updates * len(members)

    return step


def serve(pipe, threads, ours):
    """Train on request, and send the number of member updates per second."""
    torch.set_num_threads(threads)
    if ours:
        keep_memory()
    while (request := pipe.recv()) is not None:
        way, name, seconds = request
        step = way(WORKLOADS[name])
        step()
        pipe.send("ready")
        pipe.recv()
        done = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            done += step()
        pipe.send(done / (time.perf_counter() - began))


class WorkerPool:
    """Train in several processes side by side."""

    def __init__(self, processes, threads, *, ours=False):
        context = multiprocessing.get_context("spawn")
        self.pipes, theirs = zip(*(context.Pipe() for _ in range(processes)), strict=True)
        self.processes = [
            context.Process(target=serve, args=(pipe, threads, ours), daemon=True)
            for pipe in theirs
        ]
        for process in self.processes:
            process.start()

    def rate(self, way, name, seconds):
        """Return the member updates per second of all processes together."""
        for request in ((way, name, seconds), "go"):
            for pipe in self.pipes:
                pipe.send(request)
            answers = [pipe.recv() for pipe in self.pipes]
        return sum(answers)

    def close(self):
        """Stop all processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def print_auto_choice(name):
    """Print the engine that "auto" chooses, and the measured speedup of a stack."""
    task = WORKLOADS[name].task()
    trial = task.probe(WORKLOADS[name].stack)
    engine = engine_spec("auto", task, 2 * WORKLOADS[name].stack, 2).name
    print(engine, f"{trial.loop / trial.stack:.1f}")


def steps(repeats):
    """Compare updates per second."""
    ways = {
        "one": (WorkerPool(1, 2), plain),
        "two": (WorkerPool(2, 1), plain),
        "pool": (WorkerPool(2, 1, ours=True), single),
    }
    ways["vectorized"] = (ways["pool"][0], stacked)
    for name, seconds in (("W1", 2.0), ("W2t", 2.5), ("W3", 4.0)):
        used = {way: pair for way, pair in ways.items() if way != "one" or name == "W1"}
        rates = {way: [] for way in used}
        for _ in range(repeats):
            for way, (pool, kind) in used.items():
                rates[way].append(pool.rate(kind, name, seconds))
        yield from compare_rates(name, rates)
    for pool in {pool for pool, _ in ways.values()}:
        pool.close()


def compare_rates(name, rates):
    """Compare the updates per second of a workload."""
    title = WORKLOADS[name].title
    medians = {way: statistics.median(seen) for way, seen in rates.items()}
    if name == "W1":
        loop = max(("one", "two"), key=medians.get)
        gain = ratio(rates["vectorized"], rates[loop])
        where = {"one": "one process, two threads", "two": "two processes"}[loop]
        detail = f"{where}; {medians['vectorized']:.0f} against {medians[loop]:.0f} per second"
        yield Row(f"{title}: stack / best plain loop", gain, ">= 2.3", gain >= 2.3, detail)
    else:
        slower = ratio(rates["two"], rates["pool"])
        detail = f"{medians['pool']:.1f} against {medians['two']:.1f} per second"
        label = f"{title}: time of pool / of plain loop"
        yield Row(label, slower, "<= 1.05", slower <= 1.05, detail)
    engine, speedup = run_process(f"population.print_auto_choice({name!r})").split()
    other = "pool" if engine == "vectorized" else "vectorized"
    slower = ratio(rates[other], rates[engine])
    label = f"{title}: time of auto's choice / of the other"
    detail = f"{engine}; speedup of {speedup} measured by auto"
    yield Row(label, slower, "<= 1.05", slower <= 1.05, detail)


# Other programs for the same updates: compiled, in lower precision, with channels last in memory.


class ChannelsLast(nn.Module):
    """Store the channels of images last in memory, and call a network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        """Return the outputs of the network."""
        return self.network(x.movedim(1, -1).contiguous().movedim(-1, 1))


def variant_of(task, variant):
    """Return a task that computes the same updates in another way."""
    if variant == "compiled":
        return replace(task, compile=True)
    if variant == "channels last":
        return replace(task, model=lambda: ChannelsLast(task.model()))
    return replace(task, precision=variant)


def task_and_stack(name):
    """Return a task and the number of members in its stacks."""
    if name in WORKLOADS:
        return WORKLOADS[name].task(), WORKLOADS[name].stack
    return TASKS[name].at("small"), 16


def cpu_seconds():
    """Return the CPU seconds of this process and of the compilers that it has called."""
    return sum(os.times()[:4])


def interval_of(task, members):
    """Return a function that trains an interval of a stack, or of a single member."""
    hp = [
        {key: domain.decode(domain.sample(stream(i, key))) for key, domain in task.space.items()}
        for i in range(members)
    ]
    models = [task.init(i) for i in range(members)]
    if members == 1:
        return lambda: task.train(models[0], hp[0], 0, task.interval, 0)
    return lambda: task.train_many(models, hp, [0] * members, range(members))


def print_variant(name, variant, stacked, repeats):
    """Print the CPU seconds of the first interval of a variant, then both in turn."""
    torch.set_num_threads(1)
    keep_memory()
    task, stack = task_and_stack(name)
    members = stack if stacked else 1
    ways = [interval_of(task, members), interval_of(variant_of(task, variant), members)]
    ways[0]()
    began = cpu_seconds()
    ways[1]()
    print(cpu_seconds() - began)
    for _ in range(3 * repeats):
        for way in ways:
            began = cpu_seconds()
            way()
            print(cpu_seconds() - began)


def variants(repeats):
    """Compare compiled training, lower precision and channels last with the usual updates."""
    cases = [(name, "compiled", True) for name in ("W1", "W2t", "adult-fairness")]
    cases += [(name, "compiled", False) for name in ("W1", "W2t", "adult-fairness")]
    cases += [("W3", "channels last", False), ("W3", "channels last", True)]
    cases += [("W2t", "bf16", True), ("W3", "bf16", False)]
    for name, variant, stacked in cases:
        call = f"population.print_variant({name!r}, {variant!r}, {stacked}, {repeats})"
        first, *times = map(float, run_process(call).split())
        usual, changed = times[::2], times[1::2]
        title = WORKLOADS[name].title if name in WORKLOADS else f"{name}, small"
        where = "a stack" if stacked else "one member"
        detail = f"CPU time, {statistics.median(usual):.2f} s without"
        if variant == "compiled":
            detail += f"; the first interval takes {first:.0f} s"
        label = f"{title}, {where}: time {variant} / usual"
        yield Row(label, ratio(changed, usual), detail=detail, better="lower")


# Costs of exploit, memory and population size.


def exploit(repeats):
    """Return the seconds of copying 8 members' states in memory and through the disk."""
    task = WORKLOADS["L"].task()
    layout = Layout.of(mlp(lambda: nn.Dropout()))
    values = WORKLOADS["L"].values()
    donors = task.train_many([task.init(i) for i in range(8)], [values] * 8, [0] * 8, range(8))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = DirectoryCheckpoints(Path(folder))

        def through_disk():
            for i, donor in enumerate(donors):
                task.load(checkpoints.load(i, checkpoints.save(i, task.dump(donor))))

        def in_memory():
            Stack.of(donors, layout, task.optimizer.slots, torch.device("cpu"))

        return in_turns({"memory": in_memory, "disk": through_disk}, 5 * repeats)


def print_memory(name):
    """Print the bytes by which each further member of a stack raises the peak."""
    keep_memory()
    torch.set_num_threads(1)
    work = WORKLOADS[name]
    task = work.task()
    peaks = []
    for n in (2, 2 + work.stack):
        task.train_many([task.init(i) for i in range(n)], [work.values()] * n, [0] * n, range(n))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print((peaks[1] - peaks[0]) / work.stack)


def member_interval(population, intervals):
    """Return the seconds per member-interval of one epoch on the vectorized engine.

    The first interval of each member is excluded, because workers start in it.
    """
    task = WORKLOADS["L"].task(steps=intervals)
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(
            task, out=folder + "/run", engine="vectorized", population=population, progress=False
        )
        seconds = sorted(record["seconds"] for record in results.records())
    return (seconds[-1] - seconds[population - 1]) / (len(seconds) - population)


def costs(repeats):
    """Measure exploit, memory, and the cost of larger populations."""
    times = exploit(repeats)
    disk, memory = (1e3 * statistics.median(times[way]) for way in ("disk", "memory"))
    against = ratio(times["disk"], times["memory"])
    detail = f"{disk:.1f} ms against {memory:.1f} ms"
    yield Row("exploit of 8 of 32 MLPs: disk / memory", against, detail=detail, better="lower")
    for name in ("W1", "W2t", "W3"):
        call = f"population.print_memory({name!r})"
        each = statistics.median(float(run_process(call)) for _ in range(repeats))
        title = f"{WORKLOADS[name].title}: memory of a further stacked member, MiB"
        yield Row(title, each / 2**20, better="lower")
    yield from growth(repeats)


def growth(repeats):
    """Compare the seconds per member-interval of populations of different sizes."""
    # Larger populations train for fewer intervals.
    sizes = {8: 24, 32: 10, 128: 5, 512: 3}
    seconds = {n: [] for n in sizes}
    for _ in range(repeats):
        for n, intervals in sizes.items():
            seconds[n].append(member_interval(n, intervals))
    for n in sizes:
        against = ratio(seconds[n], seconds[32])
        target = ("<= 1.3", against <= 1.3) if n == 512 else ("", None)
        better = "lower" if n > 32 else ""
        name = f"member-interval in a population of {n} / of 32"
        detail = f"{1e3 * statistics.median(seconds[n]):.2f} ms"
        yield Row(name, against, *target, detail=detail, better=better)


# Other tools.


def peers(repeats):
    """Compare complete runs of the workload with other tools."""
    calls = {"floor": "overhead.floor()", "vectorized": "population.run_workload('vectorized')"}
    needs = {
        "ray": ("ray[tune]", "ray", "pyarrow"),
        "syne": ("syne-tune[basic]", "syne_tune", "psutil"),
    }
    for name, (install, *packages) in needs.items():
        if all(importlib.util.find_spec(package) for package in packages):
            calls[name] = f"peers.{name}()"
        else:
            print(
                f'skipped {name}, which is not installed: pip install "{install}"', file=sys.stderr
            )
    if len(calls) == 2:
        return
    times = time_calls(calls, repeats)
    titles = {
        "ray": "Ray Tune PBT, reused actors",
        "syne": "Syne Tune PBT, polling 0.1 s",
        "vectorized": "mopbt, vectorized",
    }
    for way in list(calls)[1:]:
        seconds = f"{statistics.median(times[way]):.1f} s"
        better = "lower" if way == "vectorized" else ""
        against = ratio(times[way], times["floor"])
        yield Row(f"{titles[way]} / floor", against, detail=seconds, better=better)
    for way in list(calls)[2:]:
        gain = ratio(times[way], times["vectorized"])
        limit = {"ray": 6, "syne": 8}[way]
        yield Row(f"{titles[way]} / mopbt, vectorized", gain, f">= {limit}", gain >= limit)


SECTIONS = {
    "workload": workload,
    "steps": steps,
    "variants": variants,
    "costs": costs,
    "peers": peers,
}


def main():
    """Print the rows of the chosen sections."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "sections", nargs="*", choices=[*SECTIONS, []], metavar="section", help=", ".join(SECTIONS)
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    # Engines start a worker per core, and all ways are measured on two.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    return show(sections(options.sections or SECTIONS, options.repeats), options.json)


def sections(names, repeats):
    """Measure the named sections."""
    for name in names:
        print(f"{name} (load {os.getloadavg()[0]:.1f} before)", flush=True)
        yield from SECTIONS[name](repeats)


if __name__ == "__main__":
    sys.exit(main())
