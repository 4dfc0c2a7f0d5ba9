"""Train two members of a model with 350 million parameters, and compare with its plan.

Run it with ``python benchmarks/large_model.py``; the exit code is 1 if all processes together take
more than 12 GB of memory, or checkpoints more disk space than `mopbt.plan` predicted. One worker
trains three intervals of both members with AdamW. ``--width`` and ``--layers`` change the size of
the model. Memory is the largest sum of the resident sizes of this process and all that it started,
which counts shared pages more than once.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from measuring import Row, argument_parser, show
from torch import nn
from torch.nn.functional import cross_entropy

import mopbt
from mopbt.torch import AdamW, Batches, TorchTask

MEMORY = 12e9
ROWS = 16


class Network(nn.Module):
    """Add wide layers one after the other."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def loss(model: nn.Module, batch: Any, hp: Any) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def metrics(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    said = outputs.argmax(1)
    return {
        "recall": said[labels == 1].double().mean(),
        "specificity": 1 - said[labels == 0].double().mean(),
    }


def task(width: int, layers: int) -> TorchTask:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * ROWS, width, generator=generator)
    y = torch.arange(2 * ROWS) % 2
    return TorchTask(
        lambda: Network(width, layers),
        loss=loss,
        metrics=metrics,
        errors=False,
        data=Batches(x[:ROWS], y[:ROWS], batch_size=ROWS // 2),
        validation=(x[ROWS:], y[ROWS:]),
        optimizer=AdamW(lr="lr"),
        space={"lr": mopbt.LogGrid(1e-5, 1e-3, 9)},
        objectives={"recall": "max", "specificity": "max"},
        steps=3,
        name=f"{layers} layers of {width}",
    )


OPTIONS: dict[str, Any] = {"population": 2, "engine": "pool", "keep": 1}


def predict(width: int, layers: int) -> dict[str, Any]:
    """Plan the run in a process of its own, whose memory is free at its end."""
    command = [sys.executable, __file__, "--plan", "--width", str(width), "--layers", str(layers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


class Watch(threading.Thread):
    """Notes the most memory of this process and its descendants, and the most disk space."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.memory = self.disk = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Look ten times per second."""
        while not self.is_over.wait(0.1):
            self.memory = max(self.memory, resident())
            sizes = 0
            for file in self.folder.rglob("*"):
                with suppress(FileNotFoundError):
                    sizes += file.stat().st_size
            self.disk = max(self.disk, sizes)


def resident() -> int:
    """Return the resident bytes of this process and its descendants."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, KeyError, ValueError):
            lines = (place / "status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            parents[int(place.name)] = int(fields["PPid"])
            sizes[int(place.name)] = 1024 * int(fields["VmRSS"].split()[0])
    ours = {os.getpid()}
    while True:
        children = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not children:
            return sum(sizes.get(pid, 0) for pid in ours)
        ours |= children


def measure(width: int, layers: int) -> list[Row]:
    """Plan and run."""
    plan = predict(width, layers)
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        watch = Watch(Path(folder))
        watch.start()
        began = time.perf_counter()
        options = {**OPTIONS, "engine": mopbt.PoolEngine(1)}
        results = mopbt.run(task(width, layers), out=Path(folder, "run"), progress=False, **options)
        seconds = time.perf_counter() - began
        watch.is_over.set()
        watch.join()
        left = sum(file.stat().st_size for file in Path(folder).rglob("*"))
        assert len(results.records()) == 6, results.failures
    parameters = sum(tensor.numel() for tensor in task(width, layers).init(0)["model"].values())
    gigabytes = watch.memory / 1e9
    detail = f"{parameters / 1e6:.0f} million parameters, {seconds:.0f} s"
    planned = f"planned {plan['memory_bytes'] / 1e9:.1f} per worker"
    size = f"checkpoint {plan['checkpoint_bytes'] / 1e9:.2f}, model {plan['model_bytes'] / 1e9:.2f}"
    ratio = watch.disk / plan["disk_bytes"]
    used = (
        f"{watch.disk / 1e9:.1f} of {plan['disk_bytes'] / 1e9:.1f} GB, {left / 1e9:.1f} at the end"
    )
    return [
        Row("memory, GB", gigabytes, "<= 12", watch.memory <= MEMORY, f"{detail}; {planned}"),
        Row("disk / plan", ratio, "<= 1", ratio <= 1, f"{used}; {size}"),
    ]


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=21)
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    arguments = parser.parse_args()
    if arguments.plan:
        subject = task(arguments.width, arguments.layers)
        plan = mopbt.plan(subject, engine_options={"workers": 1}, **OPTIONS)
        print(json.dumps(plan.to_dict()))
        return 0
    return show(measure(arguments.width, arguments.layers), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
