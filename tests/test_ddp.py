"""A member that trains in two processes, and what happens when one of them dies."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import mopbt

pytestmark = pytest.mark.slow
EXAMPLES = str(Path(__file__).parent.parent / "examples")


def train(m):
    """Train as the example does, and disturb the other rank of members with a large rate."""
    sys.path.insert(0, EXAMPLES)
    import ddp_member

    others = []
    start = ddp_member.start_rank
    steps = m.steps

    def start_and_remember(*arguments):
        others.append(start(*arguments))
        return others[-1]

    def steps_with_a_disturbance():
        for step in steps():
            if step == 1 and m.hp["lr"] > 0.5:
                others[0].send_signal(int(os.environ["DISTURBANCE"]))
            yield step

    ddp_member.start_rank = start_and_remember
    m.steps = steps_with_a_disturbance
    try:
        ddp_member.train(m)
    finally:
        ddp_member.start_rank = start


def run(tmp_path, timeout):
    sys.path.insert(0, EXAMPLES)
    try:
        from ddp_member import task
    finally:
        sys.path.remove(EXAMPLES)
    return mopbt.run(
        train,
        space=task.space,
        objectives=task.objectives,
        interval=2,
        steps=4,
        out=tmp_path / "run",
        population=4,
        seed=2,
        engine=mopbt.PoolEngine(1, timeout=timeout),
        progress=False,
    )


def disturbed(results):
    first = [record for record in results.records() if record["begin"] == 0]
    return {record["job"] for record in first if record["hp.lr"] > 0.5}


def test_an_interval_whose_rank_dies_fails_and_the_run_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTURBANCE", str(int(signal.SIGKILL)))
    monkeypatch.setenv("OWNER", str(tmp_path))
    results = run(tmp_path, 120)
    assert (results.outcome, len(results)) == ("done", 8)
    failures = results.failures
    assert disturbed(results) == set(failures)
    assert 0 < len(failures) < 8
    assert all("RuntimeError" in error for error in failures.values())
    assert len(results.front()) > 0
    assert processes_with(f"OWNER={tmp_path}") == []


def processes_with(variable):
    """Return the processes whose environment has a variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
    return found


def test_two_ranks_train_as_one_process_would():
    """Compare with the same training in one process, whose batches are whole."""
    import torch
    from torch.nn.functional import cross_entropy

    sys.path.insert(0, EXAMPLES)
    try:
        import ddp_member
    finally:
        sys.path.remove(EXAMPLES)
    hp = {"lr": 0.1, "positive": 0.5}
    torch.manual_seed(0)
    member = mopbt.Member(hp, 0, 2, 7, None)
    ddp_member.train(member)
    trained = member._tracked["model"]
    torch.manual_seed(0)
    model, optimizer = ddp_member.build(0.1)
    for step in range(2):
        order = torch.randperm(1200, generator=ddp_member.seeded(7, step))
        for batch in order.split(100):
            # Equal weights of both classes make the mean over ranks the mean over the batch.
            loss = cross_entropy(model(ddp_member.ROWS[batch]), ddp_member.LABELS[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
