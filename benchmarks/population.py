"""How fast a population trains: stacked, one by one, and under other tools; what exploit, memory and size cost.

``python benchmarks/population.py [--repeats 3] [workload] [steps] [costs] [peers]`` measures what is named (all by default) and
prints ratios. All that is compared is measured in one run, in turns, two workers of one thread unless something else is said.
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
from dataclasses import dataclass
from pathlib import Path

import overhead
import torch
from measuring import Row, argument_parser, show
from torch import nn
from torch.nn.functional import cross_entropy

import mopbt
from mopbt.engines.choosing import planned
from mopbt.engines.worker import keep_memory
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.torch import AdamW, Batches, Dropout, TorchTask
from mopbt.torch.stack import Layout, Stack

HERE = str(Path(__file__).parent)


# The workloads.


class Block(nn.Module):
    """A block of an FT-Transformer: attention, then a feed-forward net with a gate."""

    def __init__(self, d, heads, dropout):
        super().__init__()
        self.heads, hidden = heads, d * 4 // 3
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * hidden), nn.Linear(hidden, d)
        self.drops = nn.ModuleList([dropout(), dropout()])

    def forward(self, x):
        """Mix tokens, then each for itself."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2).unbind(-3)
        weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        x = x + self.out((self.drops[0](weights) @ v).transpose(-3, -2).flatten(-2))
        a, b = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(self.drops[1](a * torch.relu(b)))


class Transformer(nn.Module):
    """A tiny FT-Transformer: a token for each of 14 features and one for the answer."""

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
    """A block of a wide residual net."""

    def __init__(self, of, to, stride):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(of), nn.BatchNorm2d(to)])
        self.convs = nn.ModuleList([nn.Conv2d(of, to, 3, stride, 1, bias=False), nn.Conv2d(to, to, 3, 1, 1, bias=False)])
        self.short = nn.Conv2d(of, to, 1, stride, bias=False) if of != to else nn.Identity()

    def forward(self, x):
        """Add two convolutions to a short cut."""
        first = torch.relu(self.norms[0](x))
        return self.short(x) + self.convs[1](torch.relu(self.norms[1](self.convs[0](first))))


def mlp(dropout):
    """Return the network of `overhead.py`."""
    hidden = (nn.Linear(14, 64), nn.ReLU(), dropout(), nn.Linear(64, 64), nn.ReLU(), dropout())
    return nn.Sequential(*hidden, nn.Linear(64, 2))


def wide_resnet(dropout):
    """Return WideResNet-10-1."""
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    tail = (nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(-3), nn.Linear(64, 2))
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *tail)


def images():
    """Return as many random pictures as an update or two needs."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(512, 3, 32, 32, generator=generator), torch.randint(2, (512,), generator=generator)


@dataclass(frozen=True)
class Workload:
    """Something to train: in steps of `updates` batches, `stack` members in each process."""

    title: str
    model: Callable[[Callable[[], nn.Module]], nn.Module]
    rows: Callable[[], tuple[torch.Tensor, ...]]
    batch: int
    updates: int
    stack: int
    tuned: tuple[str, ...] = tuple(overhead.SPACE)

    def task(self, *, interval=1, max_step=1000):
        """Return it as a task."""
        x, y = self.rows()
        validation = overhead.data()[2:] if x.dim() == 2 else (x, y)
        return TorchTask(
            lambda: self.model(lambda: Dropout("dropout")), loss=loss, metrics=scores, validation=validation,
            data=Batches(x, y, batch_size=self.batch, updates=self.updates), interval=interval, max_step=max_step,
            optimizer=AdamW(lr="lr", weight_decay="decay"), space={name: overhead.SPACE[name] for name in self.tuned},
            objectives={"precision": "max", "recall": "max"},
        )  # fmt: skip

    def values(self):
        """Return the hyperparameters of a member, the same for all: they cost nothing."""
        return {name: domain.values[4] for name, domain in overhead.SPACE.items() if name in self.tuned}


def loss(model, batch, hp):
    """Return the cross entropy with the tuned weight of the positive class."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels, weight=torch.stack([1 - hp["positive"], hp["positive"]]))


def scores(outputs, labels):
    """Return precision and recall."""
    said = outputs.argmax(1)
    hits = (said & labels).sum()
    return {"precision": hits / said.sum().clamp(min=1), "recall": hits / labels.sum().clamp(min=1)}


WORKLOADS = {
    "L": Workload("MLP 14-64-64-2, 5,000 rows", mlp, lambda: overhead.data()[:2], 250, 20, 16),  # 20 updates, as the floor makes
    "W1": Workload("W1: MLP, batch 256", mlp, lambda: overhead.data()[:2], 256, 19, 16),
    "W2t": Workload("W2t: tiny FT-Transformer, batch 512", Transformer, lambda: overhead.data()[:2], 512, 2, 8),
    "W3": Workload("W3: WideResNet-10-1, batch 128", wide_resnet, images, 128, 1, 4, ("lr", "decay", "positive")),
}


# The whole workload, each way as a program of its own.


def program(call, **options):
    """Run a call as a program of its own and return what it prints; the last lines of its errors tell why it failed."""
    module = call.partition(".")[0]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}; {call}"], capture_output=True, text=True, env=environment, **options
    )
    if done.returncode:
        raise SystemExit(f"{call} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def whole(engine):
    """Run the workload with mopbt."""
    task = WORKLOADS["L"].task(interval=overhead.EPOCHS, max_step=overhead.INTERVALS * overhead.EPOCHS)
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(task, out=folder + "/run", engine=engine, population=overhead.POPULATION, progress=False)
        assert len(results.records()) == overhead.POPULATION * overhead.INTERVALS


def in_turns(ways, repeats):
    """Return the seconds of each way in each repeat, turn about, so that a busy moment of the machine hits all alike."""
    times = {way: [] for way in ways}
    for _ in range(repeats):
        for way, go in ways.items():
            times[way].append(overhead.timed(go))
    return times


def ratio(over, under):
    """Return the median of the ratios of measurements that were taken in the same repeat."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def workload(repeats):
    """Compare whole runs with the floor."""
    calls = {"floor": "overhead.floor()", "vectorised": "population.whole('vectorised')", "auto": "population.whole('auto')"}
    times = in_turns({way: lambda call=call: program(call) for way, call in calls.items()}, repeats)
    for way in ("vectorised", "auto"):
        against = ratio(times[way], times["floor"])
        seconds = f"{statistics.median(times[way]):.1f} s against {statistics.median(times['floor']):.1f} s"
        name = f"MLP, 32 x 10, whole process: {way} / floor"
        yield Row(name, against, "<= 0.45", against <= 0.45, seconds)


# Updates per second, in processes that stay.


def plain(work):
    """Return a step as a plain PyTorch loop does it: one member after the other, PyTorch's own layers and fused AdamW."""
    x, y = work.rows()
    values = work.values()
    weight = torch.tensor([1 - values["positive"], values["positive"]])
    members = []
    for _ in range(work.stack):
        model = work.model(lambda: nn.Dropout(values["dropout"]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=values["lr"], weight_decay=values["decay"], fused=True)
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
    """Return a step of one member after the other, as a worker of the pool does it."""
    task, values = work.task(), work.values()
    members = [task.init(i) for i in range(work.stack)]

    def step():
        members.append(task.train(members.pop(0), values, 0, 1, len(members)))
        return work.updates

    return step


def stacked(work):
    """Return a step of all members as one program, as a worker of the vectorised engine does it."""
    task, values = work.task(), [work.values()] * work.stack
    members = [task.init(i) for i in range(work.stack)]

    def step():
        members[:] = task.train_many(members, values, [0] * len(members), range(len(members)))
        return work.updates * len(members)

    return step


def serve(pipe, threads, ours):
    """Train as ordered, and say how many updates of members a second took."""
    torch.set_num_threads(threads)
    if ours:
        keep_memory()
    while (order := pipe.recv()) is not None:
        way, name, seconds = order
        step = way(WORKLOADS[name])
        step()
        pipe.send("ready")
        pipe.recv()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            done += step()
        pipe.send(done / (time.perf_counter() - began))


class Crew:
    """Processes that train side by side."""

    def __init__(self, processes, threads, *, ours=False):
        context = multiprocessing.get_context("spawn")
        self.pipes, theirs = zip(*(context.Pipe() for _ in range(processes)), strict=True)
        self.processes = [context.Process(target=serve, args=(pipe, threads, ours), daemon=True) for pipe in theirs]
        for process in self.processes:
            process.start()

    def rate(self, way, name, seconds):
        """Return the updates of members per second, of all processes together."""
        for order in ((way, name, seconds), "go"):
            for pipe in self.pipes:
                pipe.send(order)
            answers = [pipe.recv() for pipe in self.pipes]
        return sum(answers)

    def close(self):
        """Let the processes end."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def chosen(name):
    """Print which engine "auto" takes for a workload, and how much faster than a loop its trial found a stack."""
    task = WORKLOADS[name].task()
    trial = task.probe(WORKLOADS[name].stack)
    print(planned("auto", task, 2 * WORKLOADS[name].stack, 2).name, f"{trial.loop / trial.stack:.1f}")


def steps(repeats):
    """Compare updates per second."""
    ways = {"one": (Crew(1, 2), plain), "two": (Crew(2, 1), plain), "pool": (Crew(2, 1, ours=True), single)}
    ways["vectorised"] = (ways["pool"][0], stacked)
    for name, seconds in (("W1", 2.0), ("W2t", 2.5), ("W3", 4.0)):
        used = {way: crew for way, crew in ways.items() if way != "one" or name == "W1"}
        rates = {way: [] for way in used}
        for _ in range(repeats):
            for way, (crew, kind) in used.items():
                rates[way].append(crew.rate(kind, name, seconds))
        yield from _compared(name, rates)
    for crew in {crew for crew, _ in ways.values()}:
        crew.close()


def _compared(key, rates):
    title, many = WORKLOADS[key].title, {way: statistics.median(seen) for way, seen in rates.items()}
    if key == "W1":
        loop = max(("one", "two"), key=many.get)
        gain, seen = ratio(rates["vectorised"], rates[loop]), f"{many['vectorised']:.0f} against {many[loop]:.0f} a second"
        where = {"one": "one process, two threads", "two": "two processes"}[loop]
        name = f"{title}: stack / best plain loop"
        yield Row(name, gain, ">= 2.3", gain >= 2.3, f"{where}; {seen}")
    else:
        slower, seen = ratio(rates["two"], rates["pool"]), f"{many['pool']:.1f} against {many['two']:.1f} a second"
        yield Row(f"{title}: time of pool / of plain loop", slower, "<= 1.05", slower <= 1.05, seen)
    plan, gain = program(f"population.chosen({key!r})").split()
    other = "pool" if plan == "vectorised" else "vectorised"
    slower, label = ratio(rates[other], rates[plan]), f"{title}: time of auto's choice / of the other"
    detail = f"{plan}; {gain} times as fast by its trial"
    yield Row(label, slower, "<= 1.05", slower <= 1.05, detail)


# What exploit, memory and size cost.


def exploit(repeats):
    """Return the seconds of giving 8 members the state of others: in memory, and through the disk."""
    task, layout = WORKLOADS["L"].task(), Layout.of(mlp(lambda: nn.Dropout()))
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


def memory(name):
    """Print by how many bytes each further member of a stack raises the peak."""
    keep_memory()
    torch.set_num_threads(1)
    work = WORKLOADS[name]
    task, peaks = work.task(), []
    for n in (2, 2 + work.stack):
        task.train_many([task.init(i) for i in range(n)], [work.values()] * n, [0] * n, range(n))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print((peaks[1] - peaks[0]) / work.stack)


def member_interval(population, intervals):
    """Return the seconds per member-interval of one epoch on the vectorised engine, the first intervals left out."""
    task = WORKLOADS["L"].task(max_step=intervals)
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(task, out=folder + "/run", engine="vectorised", population=population, progress=False)
        seconds = sorted(record["seconds"] for record in results.records())
    return (seconds[-1] - seconds[population - 1]) / (len(seconds) - population)


def costs(repeats):
    """Measure exploit, memory, and how costs grow with the population."""
    times = exploit(repeats)
    seen = " against ".join(f"{1e3 * statistics.median(times[way]):.1f} ms" for way in ("disk", "memory"))
    name, against = "exploit of 8 of 32 MLPs: disk / memory", ratio(times["disk"], times["memory"])
    yield Row(name, against, detail=seen, better="lower")
    for name in ("W1", "W2t", "W3"):
        each = statistics.median(float(program(f"population.memory({name!r})")) for _ in range(repeats))
        title = f"{WORKLOADS[name].title}: memory of a further stacked member, MiB"
        yield Row(title, each / 2**20, better="lower")
    sizes = {8: 24, 32: 10, 128: 5, 512: 3}  # populations and intervals
    seconds = {n: [] for n in sizes}
    for _ in range(repeats):
        for n, intervals in sizes.items():
            seconds[n].append(member_interval(n, intervals))
    for n in sizes:
        growth, own = ratio(seconds[n], seconds[32]), f"{1e3 * statistics.median(seconds[n]):.2f} ms"
        target = ("<= 1.3", growth <= 1.3) if n == 512 else ("", None)
        better = "lower" if n > 32 else ""
        name = f"member-interval in a population of {n} / of 32"
        yield Row(name, growth, *target, detail=own, better=better)


# Other tools.


def peers(repeats):
    """Compare whole runs of the same workload with other tools."""
    calls = {"floor": "overhead.floor()", "vectorised": "population.whole('vectorised')"}
    needs = {"ray": ("ray[tune]", "ray", "pyarrow"), "syne": ("syne-tune[basic]", "syne_tune", "psutil")}
    for name, (install, *packages) in needs.items():
        if all(importlib.util.find_spec(package) for package in packages):
            calls[name] = f"peers.{name}()"
        else:
            print(f'{name}: skipped, not installed; pip install "{install}"', file=sys.stderr)
    if len(calls) == 2:
        return
    times = in_turns({way: lambda call=call: program(call) for way, call in calls.items()}, repeats)
    titles = {"ray": "Ray Tune PBT, reused actors", "syne": "Syne Tune PBT, polling 0.1 s", "vectorised": "mopbt, vectorised"}
    for way in list(calls)[1:]:
        seconds = f"{statistics.median(times[way]):.1f} s"
        better = "lower" if way == "vectorised" else ""
        against = ratio(times[way], times["floor"])
        yield Row(f"{titles[way]} / floor", against, detail=seconds, better=better)
    for way in list(calls)[2:]:
        gain = ratio(times[way], times["vectorised"])
        target = (">= 6", gain >= 6) if way == "ray" else ("", None)
        yield Row(f"{titles[way]} / mopbt, vectorised", gain, *target, better="higher")


SECTIONS = {"workload": workload, "steps": steps, "costs": costs, "peers": peers}


def main():
    """Print what was measured against its targets."""
    parser = argument_parser(__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # engines take a worker for each core
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    return show(sections(options.sections or SECTIONS, options.repeats), options.json)


def sections(names, repeats):
    """Measure sections one after the other."""
    for name in names:
        print(f"{name} (load {os.getloadavg()[0]:.1f} before)", flush=True)
        yield from SECTIONS[name](repeats)


if __name__ == "__main__":
    sys.exit(main())
