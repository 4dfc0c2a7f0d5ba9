"""Plans of PyTorch tasks, against counts by hand and a training."""

import pytest
import torch
from tests.torch.nets import COLUMNS, ROWS, make_task
from torch import nn

import mopbt


def linear():
    return nn.Linear(COLUMNS, 2, bias=False)


@pytest.mark.slow
def test_the_operations_of_a_linear_model_are_counted_as_by_hand():
    task = make_task(linear, batch_size=16, interval=2)
    plan = mopbt.plan(task, population=4, engine="local")
    per_row = 2 * COLUMNS * 2
    updates = 2 * (ROWS // 16)
    # A product forward and one for the gradient of the weights, and an evaluation of 64 rows.
    interval = updates * 16 * 2 * per_row + 64 * per_row
    assert plan.jobs == 8
    assert plan.flops == plan.jobs * interval
    trained = task.train(task.init(0), {"lr": 0.1}, 0, 2, 0)
    assert plan.checkpoint_bytes == len(task.dump(trained))
    assert 0 < plan.seconds_per_interval < 60


def test_many_rows_are_extrapolated_from_few(monkeypatch):
    rows = 2**15
    validation = (torch.randn(rows, COLUMNS), torch.arange(rows) % 2)
    task = make_task(linear, validation=validation)
    seen = []

    def count(module, arguments):
        seen.append(len(arguments[0]))

    hook = nn.modules.module.register_module_forward_pre_hook(count)
    measured = task.measure_interval(seconds=0.001)
    hook.remove()
    assert max(seen) < rows
    updates = (ROWS // 32) * 32 * 2
    assert measured.flops == (updates + rows) * 2 * COLUMNS * 2
    assert measured.evaluation > 0


@pytest.mark.slow
def test_a_metric_that_needs_more_rows_is_measured_on_all():
    def of_two_classes(outputs, y):
        if len(y.unique()) < 2 or len(y) < 64:
            raise ValueError("one class")
        return {"recall": 0.5, "specificity": 0.5}

    task = make_task(linear, metrics=of_two_classes)
    assert task.measure_interval().evaluation > 0
    task.check()


@pytest.mark.slow
def test_a_stack_is_planned_with_its_own_speed_and_memory():
    task = make_task()
    stacked = mopbt.plan(task, population=4, engine="vectorized", engine_options={"workers": 1})
    alone = mopbt.plan(task, population=4, engine="pool", engine_options={"workers": 1})
    assert (stacked.engine, stacked.stack, stacked.workers) == ("vectorized", 4, 1)
    assert (alone.engine, alone.stack) == ("pool", 1)
    assert stacked.memory_bytes > alone.memory_bytes
    assert stacked.flops == alone.flops


@pytest.mark.slow
def test_checkpoints_and_further_rows_are_part_of_the_plan():
    test = (torch.randn(640, COLUMNS), torch.arange(640) % 2)
    task = make_task(linear, test=test)
    measured = task.measure_interval()
    # There are ten test rows for each of the 64 validation rows.
    assert measured.other_rows == pytest.approx(10 * measured.evaluation)
    assert measured.saving > 0
    plan = mopbt.plan(task, population=4, engine="local")
    rest = plan.seconds - plan.jobs * plan.seconds_per_interval
    assert rest > 0
    assert plan.work_seconds == pytest.approx(plan.seconds)
