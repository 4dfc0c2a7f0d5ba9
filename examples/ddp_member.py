"""Train each member in two processes with PyTorch's DistributedDataParallel.

``python examples/ddp_member.py [population]`` uses gloo on the CPU. The worker is rank 0, and
starts the other rank for each interval with this file as its program. On GPUs, an actor with two
of them is the worker: ``engine=mopbt.RayEngine(num_gpus=2)``. Not tried on a GPU.
"""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import mopbt

RANKS = 2
FILE = str(Path(__file__).absolute())

generator = torch.Generator().manual_seed(0)
ROWS = torch.randn(1600, 8, generator=generator)
# One row in five is positive, and the classes overlap.
LABELS = (ROWS[:, 0] * ROWS[:, 1] + 0.7 * torch.randn(1600, generator=generator) > 1).long()
TRAIN = slice(0, 1200)
VALIDATION = slice(1200, 1600)


def build(lr):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(m):
    """Train an interval as rank 0, together with the other ranks."""
    model, optimizer = build(m.hp["lr"])
    m.track(model=model, optimizer=optimizer)
    interval = {"begin": m.begin, "end": m.end, "seed": m.seed, "device": m.device, **m.hp}
    # The ranks meet at a port that the system chooses.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    others = [start_rank(rank, store.port, interval) for rank in range(1, RANKS)]
    try:
        train_rank(0, store, interval, model, optimizer, m.steps())
    finally:
        # Rank 0 has the averaged gradients of the last batch, so the others have no work left.
        for process in others:
            process.kill()
            process.wait()
    m.report(**measure(model.cpu()))


def start_rank(rank, port, interval):
    """Start another rank. It ends with the worker, whatever happens."""
    command = [sys.executable, FILE, "rank", str(rank), str(port), json.dumps(interval)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def train_rank(rank, store, interval, model, optimizer, steps):
    """Train on this rank's share of each batch; gradients are averaged over all ranks."""
    kind = interval["device"].partition(":")[0]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    dist.init_process_group(
        "gloo" if kind == "cpu" else "nccl",
        store=store,
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=5),
    )
    distributed = None
    try:
        # All ranks start from the weights and the optimizer state of rank 0.
        distributed = DistributedDataParallel(model.to(device))
        state = [optimizer.state_dict()]
        dist.broadcast_object_list(state, src=0)
        optimizer.load_state_dict(state[0])
        weight = torch.tensor([1 - interval["positive"], interval["positive"]], device=device)
        for step in steps:
            order = torch.randperm(1200, generator=seeded(interval["seed"], step))
            for batch in order.split(100):
                rows = batch[rank::RANKS]
                logits = distributed(ROWS[rows].to(device))
                loss = cross_entropy(logits, LABELS[rows].to(device), weight=weight)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        dist.barrier()
    finally:
        # Gloo may wait forever if the model refers to the group after its end.
        distributed = None
        dist.destroy_process_group()


def seeded(seed, step):
    return torch.Generator().manual_seed((seed + step) % 2**63)


def measure(model):
    with torch.no_grad():
        predicted = model(ROWS[VALIDATION]).argmax(1)
    positive = LABELS[VALIDATION]
    hits = (predicted & positive).sum()
    precision = hits / predicted.sum().clamp(min=1)
    return {"precision": float(precision), "recall": float(hits / positive.sum())}


def run_rank(rank, port, interval):
    """Train as another rank than 0."""
    settings = json.loads(interval)
    model, optimizer = build(settings["lr"])
    steps = range(settings["begin"], settings["end"])
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    train_rank(int(rank), store, settings, model, optimizer, steps)


task = mopbt.FunctionTask(
    train,
    space={"lr": mopbt.LogGrid(0.01, 1.0, 8), "positive": mopbt.Grid(0.1, 0.9, 9)},
    objectives={"precision": "max", "recall": "max"},
    interval=2,
    steps=4,
    name="ddp",
)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(*sys.argv[2:])
        sys.exit()
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    results = mopbt.run(
        task, out=f"runs/ddp-{population}", population=population, engine="pool", timeout=120
    )
    print(results.front())
