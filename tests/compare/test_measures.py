"""Fronts, hypervolumes and coverage of the runs of a comparison."""

import math

import moocore
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.builders import MAX_MAX, comparison_of, problem_of, run_of
from lanes import examples
from mopbt import metrics
from mopbt.compare import AlgorithmEntry
from mopbt.compare.measures import (
    measure,
    measuring_times,
    rows_once_on_front,
)
from mopbt.problem import make_problem
from mopbt.space import Grid


class TestMeasures:
    @given(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)),
            min_size=1,
            max_size=12,
        ).map(lambda rows: sorted(rows, key=lambda row: row[2]))
    )
    def test_rows_once_on_the_front_are_those_of_the_fronts_at_all_times(self, rows):
        """Only the values are compared, because equal points count once."""
        objectives, seconds = np.array(rows, dtype=float)[:, :2], np.array(rows, dtype=float)[:, 2]
        seen = set()
        for now in np.unique(seconds):
            there = objectives[seconds <= now]
            seen |= {
                tuple(p) for p in there if not any((q >= p).all() and (q > p).any() for q in there)
            }
        assert {tuple(p) for p in objectives[rows_once_on_front(objectives, seconds)]} == seen

    @examples(25)
    @given(st.integers(0, 10**6), st.sampled_from([2, 3]), st.booleans())
    def test_all_measures_are_those_of_the_definition(self, seed, K, together):
        """The paper's definitions, one by one: fronts, reference point, HV* and hypervolumes."""
        rng = np.random.default_rng(seed)
        objectives = dict(list({**MAX_MAX, "fit": "max"}.items())[:K])
        seconds = np.repeat([1.0, 2.0, 5.0], 4) if together else np.arange(1.0, 13)
        runs = [
            run_of(
                "a",
                label,
                s,
                rng.integers(0, 9, (12, K)),
                test=rng.integers(0, 9, (12, K)),
                seconds=seconds,
            )
            for label in ("MO-PBT", "other")
            for s in range(2)
        ]
        (task,) = measure(comparison_of(runs, problems={"a": problem_of("a", objectives)}))
        times = np.unique(seconds)
        union = np.concatenate(
            [front_of(run.objectives[run.seconds <= t])[0] for run in runs for t in times]
        )
        low, high = union.min(axis=0), union.max(axis=0)
        np.testing.assert_allclose(task.reference, low - 0.1 * (high - low))
        np.testing.assert_array_equal(task.times, times)
        everything = np.concatenate([run.objectives for run in runs])
        assert task.best == pytest.approx(volume(everything, task.reference))
        for measured in (run for runs in task.runs.values() for run in runs):
            data = measured.data
            assert measured.hypervolumes == pytest.approx(
                [volume(data.objectives[data.seconds <= t], task.reference) for t in times]
            )
            assert measured.hypervolumes[-1] <= task.best + 1e-9
            assert (measured.test_hypervolumes <= task.best_test + 1e-9).all()
            if K == 2:
                assert measured.coverage == metrics.coverage(data.objectives, task.reference)

    @examples(25)
    @given(st.integers(0, 10**6))
    def test_the_test_hypervolume_is_that_of_the_validation_front(self, seed):
        rng = np.random.default_rng(seed)
        run = run_of("a", "MO-PBT", 0, rng.random((15, 2)), test=rng.random((15, 2)))
        (task,) = measure(comparison_of([run]))
        (measured,) = task.runs["MO-PBT"]
        expected = []
        for t in task.times:
            rows = run.seconds <= t
            _, on_front = front_of(run.objectives[rows])
            expected.append(volume(run.test[rows][on_front], task.reference))
        assert measured.test_hypervolumes == pytest.approx(expected)
        assert set(measured.front) == set(np.flatnonzero(front_of(run.objectives)[1]))

    def test_many_times_are_thinned_and_keep_both_ends(self):
        times = measuring_times([np.arange(1000.0), np.arange(0.5, 1000)])
        assert len(times) == 128
        assert (times[0], times[-1]) == (0, 999.5)
        assert (np.diff(times) > 0).all()

    def test_failed_evaluations_do_not_count(self):
        good, nothing = [[1, 2], [2, 1]], [[math.nan] * 2]
        with_failures = comparison_of(
            [run_of("a", "MO-PBT", 0, [*nothing, *good, *nothing]), run_of("a", "other", 0, good)]
        )
        (task,) = measure(with_failures)
        assert task.runs["MO-PBT"][0].hypervolumes[-1] == task.runs["other"][0].hypervolumes[-1] > 0

    def test_a_run_without_anything_has_a_hypervolume_of_0(self):
        comparison = comparison_of(
            [run_of("a", "MO-PBT", 0, [[math.nan] * 2]), run_of("a", "other", 0, [[1, 2], [2, 1]])]
        )
        (task,) = measure(comparison)
        (run,) = task.runs["MO-PBT"]
        assert (run.hypervolumes[-1], run.coverage) == (0, 0)

    def test_a_task_without_anything_is_left_out(self):
        runs = [run_of("a", "MO-PBT", 0, [[math.nan] * 2]), run_of("b", "MO-PBT", 0, [[1, 2]])]
        assert [task.name for task in measure(comparison_of(runs))] == ["b"]

    @pytest.mark.parametrize(
        ("constraint", "kept"),
        [("gain >= 2", [2, 3]), ("gain > 2", [3]), ("gain <= 2", [1, 2]), ("gain < 2", [1])],
    )
    def test_evaluations_that_violate_a_constraint_of_the_task_do_not_count(self, constraint, kept):
        runs = [
            run_of(
                "a",
                "MO-PBT",
                0,
                [[x, 4 - x] for x in (1, 2, 3)],
                scores={"gain": np.array([1.0, 2, 3])},
            )
        ]
        (task,) = measure(
            comparison_of(runs, problems={"a": problem_of("a", constraints=[constraint])})
        )
        front = task.runs["MO-PBT"][0].front
        assert runs[0].objectives[front, 0].tolist() == kept

    def test_the_reference_point_of_the_task_is_used(self):
        runs = [run_of("a", "MO-PBT", 0, [[1, 3], [3, 1]])]
        own = make_problem(
            name="a",
            space={"x0": Grid(0, 1, 3)},
            objectives={"gain": "max", "loss": "min"},
            constraints=(),
            interval=1,
            steps=10,
            reference={"gain": -1, "loss": 2},
        )
        (task,) = measure(comparison_of(runs, problems={"a": own}))
        assert task.reference.tolist() == [-1, -2]
        assert task.signs.tolist() == [1, -1]
        # Rectangles from (-1, -2) to (1, 3) and (3, 1), which overlap in 2 x 3.
        assert task.runs["MO-PBT"][0].hypervolumes[-1] == 2 * 5 + 4 * 3 - 2 * 3
        assert task.best == 16
        (free,) = measure(comparison_of(runs))
        assert free.reference.tolist() != [-1, -2]

    @pytest.mark.parametrize("first", ["free", "bound"])
    def test_constraints_of_a_single_algorithm_do_not_count(self, first):
        """All are measured alike, no matter which algorithm's problem is read."""
        points, scores = [[1, 3], [3, 1]], {"gain": np.array([1.0, 3.0])}
        entries = {
            "free": {"name": "mo-pbt"},
            "bound": {"name": "mo-pbt", "constraints": ["gain >= 2"]},
        }
        labels = sorted(entries, key=lambda label: label != first)
        runs = [run_of("a", label, 0, points, scores=scores) for label in labels]
        entry = AlgorithmEntry.of(first, entries[first])
        recorded = entry.problem(problem_of("a", constraints=["gain >= 1"]))
        assert len(recorded.constraints) == (2 if first == "bound" else 1)
        comparison = comparison_of(
            runs,
            {label: entries[label] for label in labels},
            problems={"a": entry.shared_problem(recorded)},
        )
        (task,) = measure(comparison)
        assert [len(task.runs[label][0].front) for label in entries] == [2, 2]
        assert list(map(str, task.problem.constraints)) == ["gain >= 1"]


def front_of(points):
    """Return the non-dominated points and which rows they are."""
    mask = np.array([not any((q >= p).all() and (q > p).any() for q in points) for p in points])
    return points[mask], mask


def volume(points, reference):
    return float(moocore.hypervolume(points, ref=reference, maximise=True)) if len(points) else 0.0
