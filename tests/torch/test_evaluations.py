"""Test rows of a PyTorch task, measured after a run whose members trained as stacks."""

import pytest
from tests.torch.nets import TestedTask, make_task, test_rows

import mopbt
from mopbt.engines.vectorized import VectorizedEngine


@pytest.mark.slow
def test_a_stacked_run_measures_its_front_on_test_rows(tmp_path):
    task = make_task(kind=TestedTask)
    results = mopbt.run(
        task,
        out=tmp_path / "run",
        population=6,
        engine=VectorizedEngine(1, stack=3),
        progress=False,
    )
    assert {e.model for e in results.evaluations} == {p.job for p in results.front()}
    reference = make_task(validation=test_rows())
    for evaluation in results.evaluations:
        measured = reference.evaluate(reference.load(results.checkpoint(evaluation.model)))
        assert evaluation.scores == pytest.approx({k: float(v) for k, v in measured.items()})
        assert evaluation.scores["loss"] != results.point(evaluation.model).scores["loss"]
