"""Measure the overhead of the pool engine, on an empty task and a small workload.

The workload, also used to measure peers, is an MLP 14-64-64-2 on 5,000 rows with four
hyperparameters, precision and recall, two epochs per interval, 32 members, 10 intervals and two
workers of one thread. The floor is the same MO-PBT loop written by hand for two processes. Its
models stay in memory, and it keeps no checkpoints, journal or seeds.
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
from measuring import EmptyTask, Row, argument_parser, show

import mopbt
from mopbt.explore import Local
from mopbt.ranking import scattered_order

POPULATION = 32
INTERVALS = 10
EPOCHS = 2
BATCH = 256
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
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=values["lr"], weight_decay=values["decay"], fused=True
    )
    return model, optimizer


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
        predicted = model(x).argmax(1)
    hits = float((predicted & y).sum())
    return {"precision": hits / max(float(predicted.sum()), 1), "recall": hits / float(y.sum())}


def apply(model, optimizer, values):
    """Set the hyperparameters of a model and its optimizer."""
    for group in optimizer.param_groups:
        group.update(lr=values["lr"], weight_decay=values["decay"])
    for module in model:
        if hasattr(module, "p"):
            module.p = values["dropout"]


# The floor: two processes that keep their members in memory, and a parent that ranks.


def floor_worker(pipe, members):
    """Train the members of one process, one interval per message."""
    held = {}
    while (message := pipe.recv()) is not None:
        copied, values = message
        for member in members:
            if member not in held:
                held[member] = build(values[member])
            model, optimizer = held[member]
            if member in copied:
                weights, moments = pickle.loads(copied[member])
                model.load_state_dict(weights)
                optimizer.load_state_dict(moments)
            apply(model, optimizer, values[member])
            for _ in range(EPOCHS):
                epoch(model, optimizer, values[member])
        pipe.send({member: measure(held[member][0]) for member in members})
        states = {}
        for donor in pipe.recv():
            model, optimizer = held[donor]
            # Bytes save the parent from importing PyTorch.
            states[donor] = pickle.dumps((model.state_dict(), optimizer.state_dict()))
        pipe.send(states)


def floor():
    """Run MO-PBT by hand on two processes."""
    space = mopbt.Space(SPACE)
    rng = np.random.default_rng(0)
    explore = Local()
    configs = space.stratified(POPULATION, rng)
    copied = {}
    shares = [list(range(0, POPULATION, 2)), list(range(1, POPULATION, 2))]
    # The pool engine sets the same for its workers.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    pipes = []
    workers = []
    for share in shares:
        mine, theirs = context.Pipe()
        workers.append(context.Process(target=floor_worker, args=(theirs, share)))
        workers[-1].start()
        pipes.append(mine)
    for _ in range(INTERVALS):
        values = {m: space.decode(c) for m, c in enumerate(configs)}
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send(({m: copied[m] for m in share if m in copied}, values))
        scores = {m: s for pipe in pipes for m, s in pipe.recv().items()}
        order = scattered_order(np.array([list(scores[m].values()) for m in range(POPULATION)]))
        donors = {int(loser): int(rng.choice(order[:8])) for loser in order[-8:]}
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send([m for m in share if m in donors.values()])
        states = {m: state for pipe in pipes for m, state in pipe.recv().items()}
        copied = {loser: states[donor] for loser, donor in donors.items()}
        configs = [
            explore(space, configs[donors[m]], rng) if m in donors else configs[m]
            for m in range(POPULATION)
        ]
    for pipe, process in zip(pipes, workers, strict=True):
        pipe.send(None)
        process.join()


# The same with mopbt.


class WorkloadTask:
    """Define the workload as a task, whose models can stay in a worker's memory."""

    name = "workload"
    space = SPACE
    objectives = {"precision": "max", "recall": "max"}
    interval = EPOCHS
    steps = INTERVALS * EPOCHS

    def init(self, seed):
        """Create a model and its optimizer."""
        return build({"lr": 1e-3, "decay": 0.0, "dropout": 0.0})

    def train(self, model, hp, begin, end, seed):
        """Train for the epochs from `begin` to `end`."""
        apply(*model, hp)
        for _ in range(begin, end):
            epoch(*model, hp)

    def evaluate(self, model):
        """Measure the model."""
        return measure(model[0])

    def dump(self, model):
        """Serialize model and optimizer."""
        return mopbt.dumps(
            {"model": dict(model[0].state_dict()), "optimizer": model[1].state_dict()}
        )

    def load(self, data):
        """Restore model and optimizer."""
        model, optimizer = self.init(0)
        state = mopbt.loads(data)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return model, optimizer


def train(m):
    """Train one interval; the workload as a training function."""
    model, optimizer = build(m.hp)
    m.track(model=model, optimizer=optimizer)
    for _ in m.steps():
        epoch(model, optimizer, m.hp)
    m.report(**measure(model))


def run_on_pool(task, **options):
    """Run a task on the pool engine in a temporary folder."""
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
    """Return the seconds per member-interval of the empty task, without startup."""
    seconds = sorted(record["seconds"] for record in run_on_pool(EmptyTask()).records())
    return (seconds[-1] - seconds[POPULATION - 1]) / (len(seconds) - POPULATION)


def timed(function):
    """Return the seconds of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main():
    """Print all rows."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("repeats", nargs="?", type=int, default=3)
    options = parser.parse_args()
    return show(rows(options.repeats), options.json)


def rows(repeats):
    """Measure an empty interval, and compare the workload with the floor."""
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
        "task": lambda: run_on_pool(WorkloadTask()),
        "function": lambda: run_on_pool(train, **described),
    }
    times = {way: [] for way in ways}
    # Ways take turns, so that a busy moment of the machine affects all of them.
    for _ in range(repeats):
        for way, function in ways.items():
            times[way].append(timed(function))
    for way in ("task", "function"):
        ratio = statistics.median(b / a for a, b in zip(times["floor"], times[way], strict=True))
        own = statistics.median(times[way])
        floor_time = statistics.median(times["floor"])
        seconds = f"{own:.1f} s against {floor_time:.1f} s"
        name = f"workload as a {way}, 32 x 10, whole process / floor"
        yield Row(name, ratio, "<= 1.10", ratio <= 1.10, seconds)


if __name__ == "__main__":
    sys.exit(main())
