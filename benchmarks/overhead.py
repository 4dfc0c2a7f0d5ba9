"""What the engine costs: an interval that trains nothing, and a small PyTorch workload against a plain two-process loop.

The workload is the one by which peers were measured: an MLP 14-64-64-2 on 5,000 rows, four hyperparameters, precision and recall,
two epochs an interval, 32 members, 10 intervals, two workers of one thread. The floor is the same MO-PBT loop written by hand for
two processes, with models that stay in memory and no checkpoints, journal or seeds to keep.
"""

import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time
from functools import cache

import numpy as np
from measuring import Row, argument_parser, show

import mopbt
from mopbt.explore import Local
from mopbt.ranking import scattered_order

POPULATION, INTERVALS, EPOCHS, BATCH = 32, 10, 2, 256
SPACE = {
    "lr": mopbt.LogGrid(1e-4, 1e-2, 10),
    "decay": mopbt.LogGrid(1e-6, 0.1, 10, zero=True),
    "dropout": mopbt.Grid(0, 0.8, 10),
    "positive": mopbt.Grid(0.1, 0.9, 10),
}


@cache
def data():
    """Return inputs and labels for training and for validation."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 14, generator=generator)
    y = (x[:, :7].sum(1) + 1.5 * torch.randn(6000, generator=generator) > 2).long()
    return x[:5000], y[:5000], x[5000:], y[5000:]


def build(values):
    """Return a model and its optimizer."""
    import torch
    from torch import nn

    p = values["dropout"]
    model = nn.Sequential(
        nn.Linear(14, 64),
        nn.ReLU(),
        nn.Dropout(p),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(p),
        nn.Linear(64, 2),
    )
    return model, torch.optim.AdamW(
        model.parameters(), lr=values["lr"], weight_decay=values["decay"], fused=True
    )


def epoch(model, optimizer, values):
    """Train for one epoch."""
    import torch
    from torch.nn.functional import cross_entropy

    x, y, _, _ = data()
    weight = torch.tensor([1 - values["positive"], values["positive"]])
    model.train()
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows], weight).backward()
        optimizer.step()


def measure(model):
    """Return precision and recall on the validation rows."""
    import torch

    _, _, x, y = data()
    model.eval()
    with torch.no_grad():
        said = model(x).argmax(1)
    hits = float((said & y).sum())
    return {"precision": hits / max(float(said.sum()), 1), "recall": hits / float(y.sum())}


def apply(model, optimizer, values):
    """Set the hyperparameters of a model and its optimizer."""
    for group in optimizer.param_groups:
        group.update(lr=values["lr"], weight_decay=values["decay"])
    for module in model:
        if hasattr(module, "p"):
            module.p = values["dropout"]


# The floor: two processes that hold their members, and a parent that ranks.


def floor_worker(pipe, members):
    """Train the members of one process, as ordered."""
    held = {}
    while (message := pipe.recv()) is not None:
        taken, values = message
        for member in members:
            if member not in held:
                held[member] = build(values[member])
            if member in taken:
                weights, moments = pickle.loads(taken[member])
                held[member][0].load_state_dict(weights)
                held[member][1].load_state_dict(moments)
            apply(*held[member], values[member])
            for _ in range(EPOCHS):
                epoch(*held[member], values[member])
        pipe.send({m: measure(held[m][0]) for m in members})
        wanted = pipe.recv()  # sent as bytes, so that the parent need not import PyTorch
        pipe.send(
            {m: pickle.dumps((held[m][0].state_dict(), held[m][1].state_dict())) for m in wanted}
        )


def floor():
    """Run MO-PBT by hand on two processes."""
    space, rng, explore = mopbt.Space(SPACE), np.random.default_rng(0), Local()
    configs, taken = space.stratified(POPULATION, rng), {}
    shares = [list(range(0, POPULATION, 2)), list(range(1, POPULATION, 2))]
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = (
        "1"  # as the pool does for its workers
    )
    context = multiprocessing.get_context("spawn")
    pipes, crew = [], []
    for share in shares:
        mine, theirs = context.Pipe()
        crew.append(context.Process(target=floor_worker, args=(theirs, share)))
        crew[-1].start()
        pipes.append(mine)
    for _ in range(INTERVALS):
        values = {m: space.decode(c) for m, c in enumerate(configs)}
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send(({m: taken[m] for m in share if m in taken}, values))
        scores = {m: s for pipe in pipes for m, s in pipe.recv().items()}
        order = scattered_order(np.array([list(scores[m].values()) for m in range(POPULATION)]))
        donors = {int(loser): int(rng.choice(order[:8])) for loser in order[-8:]}
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send([m for m in share if m in donors.values()])
        states = {m: state for pipe in pipes for m, state in pipe.recv().items()}
        taken = {loser: states[donor] for loser, donor in donors.items()}
        configs = [
            explore(space, configs[donors[m]], rng) if m in donors else configs[m]
            for m in range(POPULATION)
        ]
    for pipe, process in zip(pipes, crew, strict=True):
        pipe.send(None)
        process.join()


# The same with mopbt.


class WorkloadTask:
    """The workload as a task object: the model stays warm in its worker where it can."""

    name = "workload"
    space = SPACE
    objectives = {"precision": "max", "recall": "max"}
    interval = EPOCHS
    steps = INTERVALS * EPOCHS

    def init(self, seed):
        """Return a fresh model and optimizer."""
        return build({"lr": 1e-3, "decay": 0.0, "dropout": 0.0})

    def train(self, model, hp, begin, end, seed):
        """Train from epoch to epoch."""
        apply(*model, hp)
        for _ in range(begin, end):
            epoch(*model, hp)

    def evaluate(self, model):
        """Measure the model."""
        return measure(model[0])

    def dump(self, model):
        """Return the state of model and optimizer."""
        return mopbt.dumps(
            {"model": dict(model[0].state_dict()), "optimizer": model[1].state_dict()}
        )

    def load(self, data):
        """Read them back."""
        model, optimizer = self.init(0)
        state = mopbt.loads(data)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return model, optimizer


def train(m):
    """Train one interval: the workload as a training function."""
    model, optimizer = build(m.hp)
    m.track(model=model, optimizer=optimizer)
    for _ in m.steps():
        epoch(model, optimizer, m.hp)
    m.report(**measure(model))


class EmptyTask:
    """A task that does nothing."""

    space = {"x": mopbt.Float(0, 1)}
    objectives = {"a": "max", "b": "max"}
    interval, steps = 1, 20

    def init(self, seed):
        """Return hardly anything."""
        return {"x": 0.0}

    def train(self, model, hp, begin, end, seed):
        """Do nothing."""
        model["x"] = hp["x"]

    def evaluate(self, model):
        """Measure nothing."""
        return {"a": model["x"], "b": -model["x"]}

    dump, load = staticmethod(mopbt.dumps), staticmethod(mopbt.loads)


def pooled(task, **options):
    """Run a task on the pool engine and return its results, with nothing left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        return mopbt.run(
            task,
            out=folder + "/run",
            engine=mopbt.PoolEngine(2),
            population=POPULATION,
            progress=False,
            **options,
        )


def empty_interval():
    """Return the seconds per member-interval of a task that does nothing, worker start-up left out."""
    seconds = sorted(record["seconds"] for record in pooled(EmptyTask()).records())
    return (seconds[-1] - seconds[POPULATION - 1]) / (len(seconds) - POPULATION)


def timed(function):
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main():
    """Print what was measured against its targets."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("repeats", nargs="?", type=int, default=3)
    options = parser.parse_args()
    return show(measured(options.repeats), options.json)


def measured(repeats):
    """Measure an empty interval, and the workload against the floor."""
    cost = 1e3 * statistics.median(empty_interval() for _ in range(repeats))
    yield Row("empty member-interval on the pool engine, ms", cost, "<= 10", cost <= 10)
    described = {
        "space": SPACE,
        "objectives": WorkloadTask.objectives,
        "steps": INTERVALS * EPOCHS,
        "interval": EPOCHS,
    }
    ways = {
        "floor": floor,
        "task": lambda: pooled(WorkloadTask()),
        "function": lambda: pooled(train, **described),
    }
    times = {way: [] for way in ways}
    for _ in range(repeats):  # turn about, so that a busy moment of the machine hits all alike
        for way, go in ways.items():
            times[way].append(timed(go))
    for way in ("task", "function"):
        ratio = statistics.median(b / a for a, b in zip(times["floor"], times[way], strict=True))
        seconds = f"{statistics.median(times[way]):.1f} s against {statistics.median(times['floor']):.1f} s"
        name = f"workload as a {way}, 32 x 10, whole process / floor"
        yield Row(name, ratio, "<= 1.10", ratio <= 1.10, seconds)


if __name__ == "__main__":
    sys.exit(main())
