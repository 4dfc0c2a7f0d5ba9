import pytest
import torch
from tests.torch.nets import COLUMNS, cross_entropy, dropping_task, make_task
from torch import nn

import mopbt
from mopbt.engines import auto, worker
from mopbt.engines.auto import EngineSpec, engine_spec
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack
from mopbt.run_directory import read_run_config
from mopbt.tasks.toy import ToyTask
from mopbt.torch.probe import Probe
from mopbt.torch.task import TorchTask


class Probed(ToyTask):
    """A task whose probe returns a given result."""

    def __init__(self, probe):
        super().__init__()
        object.__setattr__(self, "answer", probe)

    def probe(self, members):
        object.__setattr__(self, "asked", members)
        return self.answer


def probe(**options):
    return Probe(
        **{"loop": 1.2, "stack": 0.4, "disagreement": 1e-7, "bytes_per_member": 1000} | options
    )


def item_loss(model, batch, hp):
    loss = cross_entropy(model, batch, hp)
    return loss * (1 + 0 * loss.item())


def test_takes_stacks_where_they_pay():
    plan = engine_spec("auto", Probed(probe()), 10, workers=2)
    assert (plan.name, plan.workers, plan.stack) == ("vectorized", 2, 5)
    assert plan.why == "a stack trains a member 3.00 times as fast as a loop"


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ({"stack": 1.1}, "1.09 times as fast as a loop, which is not worth it"),
        ({"stack": 12.0}, "0.10 times as fast"),
        ({"disagreement": 0.5}, "stacked and single gradients differ by 0.5"),
        ({"disagreement": float("nan")}, "differ by nan"),
        ({"bytes_per_member": 2**50}, "10 members need about 10485760.0 GiB"),
    ],
)
def test_takes_the_pool_where_they_do_not(measured, why):
    plan = engine_spec("auto", Probed(probe(**measured)), 10, workers=2)
    assert (plan.name, plan.workers) == ("pool", 2)
    assert why in plan.why


@pytest.mark.parametrize(("population", "workers"), [(2, 2), (3, 4), (2, None)])
def test_a_population_no_larger_than_the_cores_makes_no_stacks(population, workers, monkeypatch):
    monkeypatch.setattr(auto, "available_cores", lambda: 2)
    plan = engine_spec("auto", make_task(), population, workers)
    assert plan.name == "pool"
    assert "make no stacks" in plan.why


def test_a_real_probe_finds_that_loop_and_stack_agree():
    for model in (
        None,
        lambda: nn.Sequential(
            nn.Linear(COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
        ),
    ):
        measured = (make_task(model) if model else dropping_task()).probe(4)
        assert measured.disagreement < 1e-5
        assert measured.loop > 0 < measured.stack


def test_a_probe_of_one_member_takes_two():
    assert make_task().probe(1).stack > 0


def test_a_probe_measures_on_one_thread_with_a_workers_memory_and_puts_both_back(monkeypatch):
    threads, memory = [], []

    def loss(model, batch, hp):
        threads.append((torch.get_num_threads(), len(memory)))
        return cross_entropy(model, batch, hp)

    monkeypatch.setattr(worker, "_tune_malloc", memory.append)
    torch.set_num_threads(2)  # A fixture of this folder restores it.
    task = make_task(loss=loss)
    task.check_stack()
    threads.clear()
    monkeypatch.setattr(TorchTask, "check_stack", lambda self: None)
    task.probe(2)
    assert set(threads) == {(1, 1)}
    assert torch.get_num_threads() == 2
    assert memory == [worker._KEEP_BLOCKS, worker._USUAL]


def test_a_probe_that_fails_puts_threads_and_memory_back(monkeypatch):
    memory = []

    def loss(model, batch, hp):
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "_tune_malloc", memory.append)
    monkeypatch.setattr(TorchTask, "check_stack", lambda self: None)
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        make_task(loss=loss).probe(2)
    assert torch.get_num_threads() == 2
    assert memory == [worker._KEEP_BLOCKS, worker._USUAL]


@pytest.mark.parametrize("updates", [1, 2, None])
def test_a_probe_measures_more_than_the_first_update_however_short_a_step_is(updates, monkeypatch):
    sizes = []
    update = TorchTask._update
    monkeypatch.setattr(
        TorchTask,
        "_update",
        lambda self, stack, *rest: sizes.append(len(stack.updates)) or update(self, stack, *rest),
    )
    make_task(updates=updates).probe(4, seconds=0.01)
    assert sizes.count(1) >= 3 <= sizes.count(4)


@pytest.mark.slow
def test_a_model_that_cannot_be_stacked_goes_to_the_pool_which_says_why(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(auto, "available_cores", lambda: 1)
    task = make_task(loss=item_loss, steps=2)
    plan = engine_spec("auto", task, 6, workers=2)
    assert plan.name == "pool"
    assert ".item()" in plan.why
    mopbt.run(task, out=tmp_path / "run", population=6, engine="auto")
    assert "engine: pool, as the model or its loss cannot be stacked" in " ".join(
        capsys.readouterr().err.split()
    )
    assert read_run_config(tmp_path / "run").engine["name"] == "pool"
    assert len(mopbt.Results.open(tmp_path / "run").front()) > 0
    with pytest.raises(CannotStack, match=r"\.item\(\).*use engine='pool'"):
        mopbt.run(task, out=tmp_path / "other", population=6, engine="vectorized", progress=False)
    assert not (tmp_path / "other").exists()


def test_a_task_that_knows_nothing_of_stacks_goes_to_the_pool():
    assert engine_spec("auto", ToyTask(), 8, workers=2) == EngineSpec("pool", 2)


def test_names_make_engines():
    task = make_task()
    assert isinstance(engine_spec("local", task, 8).engine(), LocalEngine)
    pool, stacks = (
        engine_spec("pool", task, 8, workers=2).engine(),
        engine_spec("vectorized", task, 9, workers=2).engine(),
    )
    assert type(pool) is PoolEngine
    assert isinstance(stacks, VectorizedEngine)
    assert (pool.workers, pool.stack, stacks.workers, stacks.stack) == (2, 1, 2, 5)
    assert engine_spec("pool", task, 2, workers=8).workers == 2


def test_a_pool_has_the_cores_of_the_machine_that_resumes_a_run(monkeypatch):
    recorded = engine_spec("auto", ToyTask(), 8).to_dict()
    monkeypatch.setattr("mopbt.engines.pool.available_cores", lambda: 5)
    assert EngineSpec.from_dict(recorded).engine().workers == 5
    asked = engine_spec("auto", ToyTask(), 8, workers=3).to_dict()
    assert EngineSpec.from_dict(asked).engine().workers == 3


def test_refuses_other_names_and_sizes():
    with pytest.raises(
        ValueError,
        match="`engine` must be one of 'auto', 'local', 'pool', 'vectorized', 'ray', 'simulated'",
    ):
        engine_spec("gpu", make_task(), 8)
    for name, workers in (("local", 2), ("pool", 0)):
        with pytest.raises(ValueError, match="`workers` must be at least 1"):
            engine_spec(name, make_task(), 8, workers)


def test_a_plan_survives_being_written_down():
    plan = EngineSpec("vectorized", 2, 5, why="so")
    assert EngineSpec.from_dict(plan.to_dict()) == plan
    simulated = EngineSpec("simulated", 16, cost="measured", on=plan)
    assert EngineSpec.from_dict(simulated.to_dict()) == simulated
    assert EngineSpec.from_dict(EngineSpec("local").to_dict()) == EngineSpec("local")


@pytest.mark.slow
def test_the_choice_is_recorded_and_a_resume_does_not_probe_again(tmp_path, monkeypatch):
    task = dropping_task(steps=3)
    forced = EngineSpec("vectorized", 1, 3, why="of a measurement")
    monkeypatch.setattr(auto, "_choose_by_probe", lambda *_: forced)
    first = mopbt.run(
        task, out=tmp_path / "run", population=6, budget=mopbt.Budget(jobs=6), progress=False
    )
    assert first.outcome == "budget"
    assert read_run_config(tmp_path / "run").engine == {
        "name": "vectorized",
        "workers": 1,
        "stack": 3,
        "why": "of a measurement",
    }

    def explode(*_):
        raise AssertionError("probed again")

    monkeypatch.setattr(auto, "_choose_by_probe", explode)
    monkeypatch.setattr("mopbt.torch.task.TorchTask.probe", explode)
    again = mopbt.run(task, out=tmp_path / "run", population=6, progress=False)
    assert (again.outcome, len(again)) == ("done", 18)
    assert not again.failures


@pytest.mark.slow
def test_a_recorded_choice_can_be_overruled(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "available_cores", lambda: 1)
    task = make_task(steps=2)
    mopbt.run(
        task,
        out=tmp_path / "run",
        population=4,
        engine="vectorized",
        budget=mopbt.Budget(jobs=4),
        progress=False,
    )
    assert read_run_config(tmp_path / "run").engine == {
        "name": "vectorized",
        "workers": 1,
        "stack": 4,
    }
    results = mopbt.run(task, out=tmp_path / "run", population=4, engine="local", progress=False)
    assert (results.outcome, len(results)) == ("done", 8)
    assert torch.isfinite(torch.tensor([p.scores["loss"] for p in results.points()])).all()


def test_an_update_of_one_member_is_measured_in_seconds_and_bytes():
    task = make_task(lambda: nn.Linear(COLUMNS, 1000))
    measured = task.measure_update(seconds=0.01)
    assert 0 < measured.seconds < 10
    weights = 4 * (COLUMNS + 1) * 1000
    data = sum(tensor.nbytes for tensor in task.data.tensors)
    # The member, its gradient and the program's own copy, besides the data and the outputs.
    assert 3 * weights + data < measured.bytes < 30 * (weights + data)
