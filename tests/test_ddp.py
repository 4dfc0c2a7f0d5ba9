"""A member that trains in two processes, and what happens when one of them dies."""

import json
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
    """Train as the example does, and disturb members with a large rate in their first interval."""
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
                disturb(others[0].pid)
            yield step

    ddp_member.start_rank = start_and_remember
    m.steps = steps_with_a_disturbance
    try:
        ddp_member.train(m)
    finally:
        ddp_member.start_rank = start


def disturb(other):
    """Send a signal to the other rank or to this one, only once if there is a file for it."""
    victim, number = json.loads(os.environ["DISTURBANCE"])
    once = Path(os.environ["OWNER"]) / "disturbed"
    if victim == "other" and number == signal.SIGKILL:
        os.kill(other, number)
    elif number and not once.exists():
        once.touch()
        os.kill(other if victim == "other" else os.getpid(), number)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that trains a population whose ranks are disturbed."""
    sys.path.insert(0, EXAMPLES)
    try:
        from ddp_member import task
    finally:
        sys.path.remove(EXAMPLES)

    def run_disturbed(victim, number, timeout=300):
        folder = tmp_path / f"{victim}-{int(number)}"
        folder.mkdir()
        monkeypatch.setenv("DISTURBANCE", json.dumps([victim, int(number)]))
        monkeypatch.setenv("OWNER", str(folder))
        results = mopbt.run(
            train,
            space=task.space,
            objectives=task.objectives,
            interval=2,
            steps=4,
            out=folder / "run",
            population=2,
            seed=2,
            engine=mopbt.PoolEngine(1, timeout=timeout),
            progress=False,
        )
        assert (results.outcome, len(results)) == ("done", 4)
        assert processes_with(f"OWNER={folder}") == []
        return results

    return run_disturbed


def metrics(results):
    return {point.model: point.scores for point in results.points()}


def test_an_interval_whose_rank_dies_fails_and_the_run_continues(run):
    results = run("other", signal.SIGKILL)
    first = [record for record in results.records() if record["begin"] == 0]
    disturbed = {record["model"] for record in first if record["hp.lr"] > 0.5}
    assert disturbed == set(results.failures)
    assert len(disturbed) == 1
    assert all("RuntimeError" in error for error in results.failures.values())
    assert len(results.front()) > 0


def test_an_interval_whose_rank_hangs_or_whose_worker_dies_is_repeated(run):
    """The repetition trains as an undisturbed run does."""
    undisturbed = run("other", 0)
    expected = metrics(undisturbed)
    assert len(expected) == 4
    # The limit is far above the time of an undisturbed interval on this machine.
    limit = max(20, 5 * max(point.duration for point in undisturbed.points()))
    hung = run("other", signal.SIGSTOP, timeout=limit)
    assert (hung.failures, metrics(hung)) == ({}, expected)
    died = run("worker", signal.SIGKILL)
    assert (died.failures, metrics(died)) == ({}, expected)


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
