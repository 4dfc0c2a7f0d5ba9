import csv
import gzip
import io
import itertools
import math
import re
from dataclasses import replace

import moocore
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from mopbt import metrics
from mopbt.compare import Comparison, Experiment, PlannedRun, RunData, significance
from mopbt.compare.collect import compressed
from mopbt.compare.measures import (
    MeasuredRun,
    MeasuredTask,
    baseline_of,
    keep_fronts,
    measure,
    measuring_times,
    rows_once_on_front,
)
from mopbt.compare.significance import (
    EXACT,
    average_ranks,
    holm,
    paired_differences,
    sign_flip_test,
)
from mopbt.compare.table_formats import (
    caption,
    runs_to_csv,
    tasks_to_csv,
    to_csv,
    to_latex,
    to_markdown,
)
from mopbt.compare.tables import LEVEL, build_table, build_tables
from mopbt.problem import make_problem
from mopbt.rng import stream
from mopbt.space import Grid

MAX_MAX = {"gain": "max", "speed": "max"}
integers = st.lists(st.integers(-4, 4), min_size=1, max_size=9)


def run_of(
    task,
    label,
    seed,
    objectives,
    *,
    test=None,
    seconds=None,
    scores=None,
    steps=None,
    trials=None,
    variables=1,
):
    """Return a run with one evaluation a second, unless told otherwise."""
    objectives = np.asarray(objectives, dtype=float)
    n = len(objectives)
    return RunData(
        task=task,
        algorithm=label,
        seed=seed,
        objectives=objectives,
        test=None if test is None else np.asarray(test, dtype=float),
        seconds=np.arange(1.0, n + 1) if seconds is None else np.asarray(seconds, dtype=float),
        steps=np.arange(1, n + 1) if steps is None else np.asarray(steps),
        violations=np.zeros(n),
        positions=np.zeros((n, variables)),
        scores=scores or {},
        jobs=np.arange(n),
        trials=np.arange(n) if trials is None else np.asarray(trials),
        duration=np.ones(n),
        errors={},
    )


def problem_of(task, objectives=None, *, constraints=(), variables=1):
    space = {f"x{i}": Grid(0, 1, 3) for i in range(variables)}
    return make_problem(
        name=task,
        space=space,
        objectives=objectives or MAX_MAX,
        constraints=constraints,
        interval=1,
        steps=10,
    )


def comparison_of(runs, algorithms=None, *, problems=None, **fields):
    """Return a comparison of runs; algorithms are MO-PBT's under several labels, if nothing else is said."""
    tasks = tuple(dict.fromkeys(run.task for run in runs))
    labels = dict.fromkeys(run.algorithm for run in runs)
    algorithms = algorithms or {label: {"name": "mo-pbt"} for label in labels}
    experiment = Experiment(name="test", tasks=tasks, algorithms=algorithms, seeds=20, **fields)
    return Comparison(
        experiment, problems or {task: problem_of(task) for task in tasks}, tuple(runs)
    )


def table_of(values, name="hypervolume", *, only=None, first=None):
    """Return the table of values by task, label and seed.

    `only`: a label's tasks; `first`: a score of a task's first model, to which the seed is added.
    """
    labels = dict.fromkeys(label for of_task in values.values() for label in of_task)
    algorithms = {
        label: {"name": "mo-pbt", "tasks": (only or {}).get(label, [])} for label in labels
    }
    experiment = Experiment(name="test", tasks=tuple(values), algorithms=algorithms)
    scores = {
        task: lambda seed, score=score: {"accuracy": np.array([score + seed])}
        for task, score in (first or {}).items()
    }
    measured = [
        MeasuredTask(
            name=task,
            problem=problem_of(task),
            reference=np.zeros(2),
            best=1.0,
            best_test=None,
            times=np.ones(1),
            runs={
                label: tuple(
                    MeasuredRun(
                        run_of(
                            task,
                            label,
                            seed,
                            [[0, 0]],
                            scores=scores[task](seed) if task in scores else None,
                        ),
                        np.array([0]),
                        np.array([value]),
                        None,
                        None,
                    )
                    for seed, value in by_seed.items()
                )
                for label, by_seed in of_task.items()
            },
            entries=experiment.entries,
        )
        for task, of_task in values.items()
    ]
    return build_table(name, "A measure × 100", measured, lambda run: run.hypervolumes[-1])


def seeds(*values):
    return dict(enumerate(values))


class TestSignFlips:
    @given(integers)
    def test_p_is_the_share_of_all_patterns_of_signs_that_reach_as_far(self, differences):
        sums = [
            abs(sum(map(math.prod, zip(signs, differences, strict=True))))
            for signs in itertools.product((1, -1), repeat=len(differences))
        ]
        assert sign_flip_test(differences) == pytest.approx(
            np.mean(np.array(sums) >= abs(sum(differences)))
        )

    @pytest.mark.parametrize("seed", range(5))
    def test_agrees_with_scipys_permutation_test(self, seed):
        differences = np.random.default_rng(seed).normal(0.4, 1, size=8)
        test = scipy.stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip_test(differences) == pytest.approx(test.pvalue)

    @pytest.mark.parametrize("negative", [(), (1,), (2, 5), (1, 4, 7), (10,)])
    def test_agrees_with_wilcoxons_exact_test_where_differences_are_their_ranks(self, negative):
        differences = [-i if i in negative else i for i in range(1, 11)]
        assert sign_flip_test(differences) == pytest.approx(
            scipy.stats.wilcoxon(differences, method="exact").pvalue
        )

    def test_five_pairs_that_all_point_one_way_have_a_sixteenth(self):
        assert sign_flip_test([0.1, 0.2, 0.3, 0.15, 0.05]) == 2 / 32

    def test_sums_that_differ_by_rounding_alone_are_equal(self):
        """0.1 + 0.2 - 0.3 is not 0 in binary; without a tolerance the pattern seen would not count itself."""
        assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0
        assert sign_flip_test([0.3, 0.1, 0.2, -0.6]) == 1.0

    def test_no_difference_at_all_is_no_evidence(self):
        assert sign_flip_test(np.zeros(6)) == 1.0
        assert math.isnan(sign_flip_test([]))

    def test_many_pairs_are_sampled_close_to_the_truth_and_always_alike(self):
        differences = np.array([-i if i % 3 == 0 else i for i in range(1, EXACT + 11)])
        exact = scipy.stats.wilcoxon(differences, method="exact").pvalue
        assert sign_flip_test(differences) == pytest.approx(exact, abs=0.005)
        assert sign_flip_test(differences) == sign_flip_test(differences)

    def test_a_sampled_p_is_never_0(self):
        assert 0 < sign_flip_test(np.ones(60)) < 1e-4

    @pytest.mark.parametrize("wrong", [[[1.0]], [math.nan], [math.inf]])
    def test_what_is_no_list_of_finite_numbers_is_told(self, wrong):
        with pytest.raises(ValueError, match=r"`differences` must be finite and have shape \(n,\)"):
            sign_flip_test(wrong)

    def test_of_many_pairs_signs_are_drawn_in_parts_as_if_at_once(self):
        numbers = np.random.default_rng(0).normal(0.1, 1, size=EXACT + 3)
        drawn = 1 - 2 * stream(0, "sign flips", len(numbers)).integers(
            0, 2, size=(significance.FLIPS, len(numbers)), dtype=np.int8
        )
        as_far = (np.abs(drawn @ numbers) >= abs(numbers.sum()) - 1e-9).sum()
        assert sign_flip_test(numbers) == (1 + as_far) / (1 + significance.FLIPS)


class TestHolm:
    def test_a_worked_example(self):
        """By hand: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not fall below the one before it."""
        np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
    def test_rejects_what_the_step_down_procedure_rejects(self, p):
        rejected = set()
        for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - step) > LEVEL:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(holm(p)) if value <= LEVEL} == rejected
        assert (holm(p) >= p).all()
        assert (holm(p) <= 1).all()

    def test_what_was_not_tested_does_not_count(self):
        np.testing.assert_allclose(holm([math.nan, 0.02, 0.03]), [math.nan, 0.04, 0.04])
        assert holm([]).shape == (0,)


@given(integers)
def test_places_share_their_mean_as_in_scipy(values):
    np.testing.assert_array_equal(
        average_ranks(values), scipy.stats.rankdata([-value for value in values])
    )


def test_pairs_are_of_the_same_seed_and_of_those_that_both_have():
    assert paired_differences({3: 10.0, 1: 5.0, 7: 1.0}, {1: 1.0, 3: 2.0, 9: 0.0}) == {
        1: 4.0,
        3: 8.0,
    }


def test_runs_without_a_common_seed_are_paired_in_their_order():
    assert paired_differences({100: 5.0, 101: 7.0}, {1: 2.0, 0: 1.0, 2: 3.0}) == {0: 4.0, 1: 5.0}


class TestMeasures:
    @given(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)),
            min_size=1,
            max_size=12,
        ).map(lambda rows: sorted(rows, key=lambda row: row[2]))
    )
    def test_once_on_the_front_are_those_that_some_moment_saw_there(self, rows):
        """Equal points count once: the values that fronts had are the same with and without copies."""
        objectives, seconds = np.array(rows, dtype=float)[:, :2], np.array(rows, dtype=float)[:, 2]
        seen = set()
        for now in np.unique(seconds):
            there = objectives[seconds <= now]
            seen |= {
                tuple(p) for p in there if not any((q >= p).all() and (q > p).any() for q in there)
            }
        assert {tuple(p) for p in objectives[rows_once_on_front(objectives, seconds)]} == seen

    @settings(max_examples=25)
    @given(st.integers(0, 10**6), st.sampled_from([2, 3]), st.booleans())
    def test_all_measures_are_those_of_the_definition(self, seed, K, together):
        """Against the paper's words, taken one by one: fronts at all times, the reference point, HV*, hypervolume at each time."""
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

    @settings(max_examples=25)
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

    def test_failed_evaluations_count_for_nothing(self):
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
    def test_what_violates_a_constraint_of_the_task_counts_for_nothing(self, constraint, kept):
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

    @pytest.mark.parametrize("first", ["free", "bound"])
    def test_what_one_algorithm_alone_must_keep_does_not_count(self, first):
        """All are measured alike, whichever algorithm the problem was read from."""
        points, scores = [[1, 3], [3, 1]], {"gain": np.array([1.0, 3.0])}
        entries = {
            "free": {"name": "mo-pbt"},
            "bound": {"name": "mo-pbt", "constraints": ["gain >= 2"]},
        }
        labels = sorted(entries, key=lambda label: label != first)
        runs = [run_of("a", label, 0, points, scores=scores) for label in labels]
        problem = problem_of("a", constraints=["gain >= 2"] if first == "bound" else ())
        comparison = comparison_of(
            runs, {label: entries[label] for label in labels}, problems={"a": problem}
        )
        (task,) = measure(comparison)
        assert [len(task.runs[label][0].front) for label in entries] == [2, 2]
        assert not task.problem.constraints


def front_of(points):
    """Return the non-dominated points and which rows they are."""
    mask = np.array([not any((q >= p).all() and (q > p).any() for q in points) for p in points])
    return points[mask], mask


def volume(points, reference):
    return float(moocore.hypervolume(points, ref=reference, maximise=True)) if len(points) else 0.0


class TestTables:
    VALUES = {
        "easy": {"MO-PBT": seeds(0.5, 0.7), "rival": seeds(0.4, 0.5), "slow": seeds(0.6, 0.6)},
        "hard": {"MO-PBT": seeds(0.2, 0.3), "rival": seeds(0.3, 0.5)},
    }

    def test_cells_have_mean_and_the_papers_deviation(self):
        cell = table_of(self.VALUES).cells["easy", "MO-PBT"]
        assert (cell.mean, cell.deviation) == (pytest.approx(0.6), pytest.approx(0.1))

    def test_equal_means_are_both_best_and_share_a_rank(self):
        table = table_of(self.VALUES)
        assert [table.is_best("easy", label) for label in table.algorithms] == [True, False, True]
        assert [table.cells["easy", label].rank for label in table.algorithms] == [1.5, 3, 1.5]

    def test_an_algorithm_that_is_not_on_all_tasks_has_no_average_rank(self):
        overall = table_of(self.VALUES, only={"slow": ["easy"]}).overall
        assert [overall[label].rank for label in ("MO-PBT", "rival")] == [1.75, 2]
        assert math.isnan(overall["slow"].rank)

    def test_tasks_that_are_not_finished_are_not_ranked(self):
        """Who is run first would have the first place on them."""
        table = table_of(
            {
                "done": {"MO-PBT": seeds(1, 1), "rival": seeds(2, 2)},
                "alone": {"MO-PBT": seeds(1, 1)},
            }
        )
        assert table.ranked == ("done",)
        assert {label: overall.rank for label, overall in table.overall.items()} == {
            "MO-PBT": 2,
            "rival": 1,
        }
        assert "over the tasks whose runs are complete (done)" in caption(table)
        half = {"MO-PBT": seeds(1, 1), "rival": seeds(2)}
        fewer = table_of({"done": half, "too": half})
        assert fewer.ranked == ()
        assert "(none yet)" in caption(fewer)
        assert "Average rank" not in caption(table_of({"done": half}))  # which has no such column

    def test_a_task_of_which_runs_are_missing_is_not_ranked_even_if_all_miss_as_many(self):
        runs = [
            run_of(task, label, 0, [[1, 2]]) for task in ("a", "b") for label in ("MO-PBT", "rival")
        ]
        comparison = replace(
            comparison_of(runs), missing=(PlannedRun("a", "MO-PBT", 1), PlannedRun("a", "rival", 1))
        )
        assert build_tables(measure(comparison))[0].ranked == ("b",)

    def test_few_runs_are_enough_where_a_task_has_few_rivals(self):
        six = seeds(*range(1, 7))
        values = {
            "a": {"MO-PBT": seeds(*[0] * 6), "x": six},
            "b": {"MO-PBT": seeds(*[0] * 6), "y": six, "z": six},
        }
        table = table_of(values, only={"x": ["a"], "y": ["b"], "z": ["b"]})
        assert table.cells["a", "x"].sign == "+"
        assert "no difference on a single task can be significant" not in caption(table)

    @pytest.mark.parametrize(
        ("mean", "head", "cell"),
        [(1.3e-7, "a (in 1e-7)", "1.30"), (1.3e11, "a (in 1e11)", "1.30"), (0.13, "a", "13.00")],
    )
    def test_very_small_and_large_numbers_are_told_with_their_power(self, mean, head, cell):
        table = table_of({"a": {"MO-PBT": seeds(mean, mean)}})
        lines = to_markdown(table).splitlines()
        assert lines[0] == f"|  | {head} |"
        assert f"**{cell} ± 0.00**" in lines[2]
        assert ("10^{" in to_latex(table)) == (head != "a")
        assert ("instead of times 100" in caption(table)) == (head != "a")

    def test_tasks_whose_runs_begin_alike_are_one_throw_of_chance(self):
        """Two tasks that train the same networks are no more evidence than one."""
        one = {"MO-PBT": seeds(0, 0, 0, 0), "rival": seeds(1, 2, -1, 3)}
        alone = table_of({"a": one})
        twice = table_of({"a": one, "b": one}, first={"a": 0.75, "b": 0.75})
        apart = table_of({"a": one, "b": one}, first={"a": 0.75, "b": 0.5})
        assert twice.related == {"a": "a", "b": "a"}
        assert twice.overall["rival"] == alone.overall["rival"]
        assert apart.related == {"a": "a", "b": "b"}
        assert apart.overall["rival"].p == pytest.approx(sign_flip_test([1, 2, -1, 3, 1, 2, -1, 3]))
        assert "The runs of a and b start from the same models" in caption(twice)
        assert "same models" not in caption(apart)
        failed = table_of({"a": one, "b": one}, first={"a": np.nan, "b": np.nan})
        assert failed.related == {"a": "a", "b": "b"}  # nothing tells

    def test_a_first_interval_that_failed_does_not_part_tasks_that_begin_alike(self):
        """One NaN among the seeds once made two of the same: p was 0.0005 where no less than 0.03 is possible."""
        firsts = {0: np.nan, 1: 0.75}
        runs = [
            run_of(task, "MO-PBT", seed, [[1, 2]], scores={"accuracy": np.array([firsts[seed]])})
            for task in "ab"
            for seed in firsts
        ]
        assert build_tables(measure(comparison_of(runs)))[0].related == {"a": "a", "b": "a"}

    @pytest.mark.parametrize(
        ("ours", "theirs", "alike"),
        [
            ({"accuracy": [0.5, 0.7]}, {"accuracy": [0.5, 0.7]}, True),
            ({"accuracy": [0.5, 0.7]}, {"accuracy": [0.5, 0.6]}, False),
            (
                {"accuracy": [0.5, 0.7], "size": [3, 3]},
                {"accuracy": [0.1, 0.2], "size": [3, 3]},
                False,
            ),
            (
                {"size": [3, 3], "a": [1, 2]},
                {"size": [3, 3], "b": [1, 2]},
                False,
            ),  # as many weights tell nothing
            (
                {"accuracy": [0.5, 0.7], "test": [0.4, 0.6]},
                {"accuracy": [0.5, 0.7], "test": [np.nan, np.nan]},
                True,
            ),  # not so soon
        ],
    )
    def test_what_tells_that_tasks_begin_alike(self, ours, theirs, alike):
        runs = [
            run_of(
                task,
                label,
                seed,
                [[1, 2]],
                scores={name: np.array([values[seed]]) for name, values in scores.items()},
            )
            for task, scores in (("a", ours), ("b", theirs))
            for label in ("MO-PBT", "rival")
            for seed in (0, 1)
        ]
        assert build_tables(measure(comparison_of(runs)))[0].related == {
            "a": "a",
            "b": "a" if alike else "b",
        }

    def test_unequal_times_are_told(self):
        ends = {"MO-PBT": 50.0, "rival": 33.5, "slower": 50.0}
        runs = [
            run_of(task, label, 0, [[1, 2]], seconds=[ends[label]])
            for task in "ab"
            for label in ends
            if task == "a" or label != "rival"
        ]
        (table,) = (
            table
            for table in build_tables(measure(comparison_of(runs)))
            if table.name == "hypervolume"
        )
        assert "Virtual seconds differ on a: MO-PBT 50, rival 33.5, slower 50." in caption(table)
        assert "on b" not in caption(table)
        assert "Virtual seconds differ on a" in to_latex(table)

    def test_who_was_not_run_on_all_tasks_has_no_average_rank_and_the_caption_says_so(self):
        values = {"a": {"MO-PBT": seeds(2), "rival": seeds(1)}, "b": {"rival": seeds(1)}}
        table = table_of(values, only={"MO-PBT": ["a"]})
        assert "An algorithm that was not run on all tasks has no average rank." in caption(table)
        assert "not run on all" not in caption(table_of({"a": values["a"], "b": values["a"]}))

    def test_a_task_without_rivals_does_not_hide_that_runs_are_too_few(self):
        five = seeds(1, 2, 3, 4, 5)
        table = table_of(
            {"a": dict.fromkeys(("MO-PBT", "x", "y", "z"), five), "b": {"MO-PBT": five}}
        )
        assert (
            "With 5 runs per algorithm, no difference on a single task can be significant."
            in caption(table)
        )

    def test_others_are_tested_against_mo_pbt_by_pairs(self):
        cells = table_of(self.VALUES).cells
        assert cells["easy", "rival"].difference == pytest.approx(-0.15)
        assert cells["easy", "rival"].p == sign_flip_test([-0.1, -0.2])
        assert cells["hard", "rival"].difference == pytest.approx(0.15)
        assert math.isnan(cells["easy", "MO-PBT"].p)
        assert math.isnan(cells["easy", "MO-PBT"].corrected)

    def test_p_is_corrected_over_the_algorithms_of_a_task(self):
        base = seeds(*np.linspace(0, 0.01, 8))
        values = {
            "a": {"MO-PBT": base}
            | {f"worse {i}": seeds(*(v - 0.1 - i / 100 for v in base.values())) for i in range(3)}
        }
        table = table_of(values)
        for i in range(3):
            cell = table.cells["a", f"worse {i}"]
            assert (cell.p, cell.corrected, cell.sign) == (2 / 256, 6 / 256, "−")

    def test_over_all_tasks_every_task_weighs_the_same(self):
        """The large numbers of one task do not outweigh the small ones of another."""
        values = {
            "large": {"MO-PBT": seeds(0, 0, 0), "rival": seeds(100, 100, -100)},
            "small": {"MO-PBT": seeds(0, 0, 0), "rival": seeds(-0.01, -0.01, -0.01)},
        }
        overall = table_of(values).overall["rival"]
        assert overall.p == pytest.approx(sign_flip_test([1, 1, -1, -1, -1, -1]))
        assert overall.difference == pytest.approx((1 / 3 - 1) / 2)

    def test_few_seeds_on_many_tasks_can_be_significant_together(self):
        values = {
            f"task {t}": {"MO-PBT": seeds(1, 1.1), "rival": seeds(0.9, 0.8)} for t in range(4)
        }
        table = table_of(values)
        assert all(cell.sign == "" for cell in table.cells.values())
        assert (table.overall["rival"].sign, table.overall["rival"].corrected) == ("−", 2 / 256)

    def test_the_baseline_is_mo_pbt_or_the_first(self):
        assert baseline_of(("a", "MO-PBT")) == "MO-PBT"
        assert baseline_of(("a", "b")) == "a"

    def test_algorithms_are_in_the_experiments_order(self):
        runs = [
            run_of(task, label, 0, [[1, 2]])
            for task, labels in {"a": "xz", "b": "xyz"}.items()
            for label in labels
        ]
        algorithms = {label: {"name": "mo-pbt"} for label in "xyz"}
        (table, _) = build_tables(measure(comparison_of(runs, algorithms)))
        assert table.algorithms == ("x", "y", "z")

    def test_there_is_a_table_for_each_measure_that_was_taken(self):
        two = run_of("a", "MO-PBT", 0, [[1, 2]])
        assert [t.name for t in build_tables(measure(comparison_of([two])))] == [
            "hypervolume",
            "coverage",
        ]
        three = run_of("a", "MO-PBT", 0, [[1, 2, 3]], test=[[1, 2, 3]])
        problems = {"a": problem_of("a", {"a": "max", "b": "max", "c": "max"})}
        assert [
            t.name for t in build_tables(measure(comparison_of([three], problems=problems)))
        ] == [
            "hypervolume",
            "test",
        ]
        assert build_tables(()) == ()


class TestChance:
    """What differs by chance alone is called significant no more often than the level says."""

    def test_one_algorithm_against_itself(self):
        rng = np.random.default_rng(1)
        p = np.array(
            [sign_flip_test(rng.gamma(2, size=7) - rng.gamma(2, size=7)) for _ in range(3000)]
        )
        assert (p <= LEVEL).mean() <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 3000)
        assert (p <= LEVEL).mean() >= 0.02  # and it does find what is there

    @pytest.mark.parametrize("tasks", [1, 2])
    def test_whole_tables_of_the_same_algorithm_under_other_seeds(self, tasks):
        rng, found, found_overall, repeats = np.random.default_rng(tasks), 0, 0, 400
        for _ in range(repeats):
            names = ("MO-PBT", "again", "and again", "once more")
            table = table_of(
                {
                    f"t{t}": {label: seeds(*rng.normal(size=8)) for label in names}
                    for t in range(tasks)
                }
            )
            found += any(table.cells["t0", label].sign for label in names)
            found_overall += any(table.overall[label].sign for label in names)
        most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repeats)
        assert found / repeats <= most
        assert found_overall / repeats <= most

    def test_tasks_that_train_the_same_networks(self):
        """The same luck on both: independent signs would call 17 tables of a hundred significant."""
        rng, repeats, found = np.random.default_rng(3), 1000, 0
        for _ in range(repeats):
            values = {label: seeds(*rng.normal(size=8)) for label in ("MO-PBT", "again")}
            found += bool(
                table_of({"a": values, "b": values}, first={"a": 0.5, "b": 0.5})
                .overall["again"]
                .sign
            )
        assert found / repeats <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repeats)

    def test_a_true_difference_is_found(self):
        rng = np.random.default_rng(0)
        values = {
            "a": {"MO-PBT": seeds(*rng.normal(1, 0.1, 10)), "worse": seeds(*rng.normal(0, 0.1, 10))}
        }
        assert table_of(values).cells["a", "worse"].sign == "−"


class TestRenderings:
    HARD = "50 % a_b & {c} $ ^~\\ #1"

    def values(self):
        rng = np.random.default_rng(3)
        labels = ("MO-PBT", "rival", self.HARD)
        values = {
            f"task_{t}": {
                label: seeds(*rng.normal(1 - i, 0.1, 8)) for i, label in enumerate(labels)
            }
            for t in range(2)
        }
        del values["task_1"]["rival"]
        return values

    def test_markdown_says_the_numbers_bold_and_signs(self):
        table = table_of(self.values())
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        assert cells[0] == ["", "task_0", "task_1", "average rank", "p"]
        for row, label in zip(cells[2:], table.algorithms, strict=True):
            assert row[0] == label
            for text, task in zip(row[1:], table.tasks, strict=False):
                self.check(text, table, task, label, r"\*\*", "±", r"\((.)\)")
            assert float(row[3].strip("*")) == pytest.approx(table.overall[label].rank, abs=0.005)

    def test_latex_says_the_same_and_escapes_names(self):
        table = table_of(self.values())
        text = to_latex(table)
        lines = [line for line in text.splitlines() if line.endswith(r" \\")]
        cells = [re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines]
        assert [c.replace(r"\_", "_") for c in cells[0]] == [
            "",
            "task_0",
            "task_1",
            "average rank",
            "$p$",
        ]
        for row, label in zip(cells[1:], table.algorithms, strict=True):
            assert unescaped(row[0]) == label
            assert not re.search(r"(?<!\\)[&%$#_^~]", row[0])
            for cell, task in zip(row[1:], table.tasks, strict=False):
                self.check(cell, table, task, label, r"\\mathbf", r"\\pm", r"\^\{\((.)\)\}")
        assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [
            1,
            1,
            1,
        ]
        assert text.count("{") == text.count("}")
        assert text.isascii()

    def check(self, text, table, task, label, bold, plus_minus, sign):
        if (task, label) not in table.cells:
            assert text in ("–", "--")
            return
        cell = table.cells[task, label]
        mean, deviation = map(float, re.search(rf"(-?[\d.]+) {plus_minus} ([\d.]+)", text).groups())
        assert (mean, deviation) == (
            pytest.approx(100 * cell.mean, abs=0.005),
            pytest.approx(100 * cell.deviation, abs=0.005),
        )
        assert bool(re.search(bold, text)) == table.is_best(task, label)
        found = re.search(sign, text)
        assert (found[1].replace("-", "−") if found else "") == cell.sign

    def test_csv_gives_back_every_digit(self):
        table = table_of(self.values())
        rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
        assert {(row["task"], row["algorithm"]) for row in rows if row["task"]} == set(table.cells)
        for row in rows:
            if row["task"]:
                cell = table.cells[row["task"], row["algorithm"]]
                expected = (
                    cell.mean,
                    cell.deviation,
                    cell.rank,
                    cell.difference,
                    cell.p,
                    cell.corrected,
                )
                assert int(row["best"]) == table.is_best(row["task"], row["algorithm"])
                assert int(row["runs"]) == 8
            else:
                overall = table.overall[row["algorithm"]]
                expected = (
                    math.nan,
                    math.nan,
                    overall.rank,
                    overall.difference,
                    overall.p,
                    overall.corrected,
                )
            names = ("mean", "deviation", "rank", "difference", "p", "p_holm")
            np.testing.assert_array_equal([float(row[name] or "nan") for name in names], expected)

    def test_a_line_that_divides_columns_is_escaped(self):
        assert "a\\|b" in to_markdown(table_of({"t": {"MO-PBT": seeds(1.0), "a|b": seeds(2.0)}}))

    def test_cells_of_fewer_runs_say_so(self):
        table = table_of({"t": {"MO-PBT": seeds(1.0, 1.1, 1.2), "rival": seeds(1.0)}})
        text = to_markdown(table)
        assert "(1 run)" in text
        assert "3 runs (or the number given in the cell)" in text
        assert "(1 run)" in to_latex(table)

    @pytest.mark.parametrize(("runs", "said"), [(5, True), (6, False)])
    def test_too_few_runs_for_significance_are_told(self, runs, said):
        """Of six pairs the smallest p is 2/64 = 0.03; of five it is 0.06."""
        table = table_of({"t": {"MO-PBT": seeds(*range(runs)), "rival": seeds(*range(runs))}})
        assert ("no difference on a single task can be significant" in caption(table)) == said

    def test_one_algorithm_alone_is_not_tested(self):
        text = to_markdown(table_of({"t": {"MO-PBT": seeds(0.5, 0.6)}}))
        assert text.splitlines()[0] == "|  | t |"
        assert "p:" not in text

    def test_one_task_has_no_average_rank(self):
        assert to_markdown(table_of({"t": {"MO-PBT": seeds(0.5), "b": seeds(0.6)}})).startswith(
            "|  | t | p |"
        )

    def test_small_deviations_get_the_decimals_to_be_seen(self):
        text = to_markdown(table_of({"t": {"MO-PBT": seeds(0.00050, 0.00054)}}))
        assert "**0.052 ± 0.002**" in text

    def test_the_measures_of_all_runs_are_there_for_other_tests(self):
        run = run_of("a", "MO-PBT", 4, [[1, 2], [2, 1]], test=[[1, 1], [2, 2]])
        measured = measure(comparison_of([run]))
        (row,) = csv.DictReader(io.StringIO(runs_to_csv(measured)))
        of_run = measured[0].runs["MO-PBT"][0]
        assert (row["task"], row["algorithm"], row["seed"], row["evaluations"], row["seconds"]) == (
            "a",
            "MO-PBT",
            "4",
            "2",
            "2.0",
        )
        assert float(row["hypervolume"]) == of_run.hypervolumes[-1]
        assert float(row["test_hypervolume"]) == of_run.test_hypervolumes[-1]
        assert float(row["coverage"]) == of_run.coverage

    def test_references_are_in_the_sense_of_the_objectives(self):
        runs = [run_of("a", "MO-PBT", 0, [[1, -2], [2, -4], [0, -9]])]
        measured = measure(
            comparison_of(runs, problems={"a": problem_of("a", {"gain": "max", "size": "min"})})
        )
        rows = list(csv.DictReader(io.StringIO(tasks_to_csv(measured))))
        assert [row["direction"] for row in rows] == ["max", "min"]
        assert [float(row["reference"]) for row in rows] == pytest.approx([0.9, 4.2])
        assert {float(row["best_hypervolume"]) for row in rows} == {measured[0].best}

    def test_fronts_are_the_models_that_no_other_dominates(self):
        first = run_of("a", "MO-PBT", 0, [[1, 2], [0, 0], [2, 1]], test=[[1, 1], [3, 3], [2, 2]])
        second = run_of("a", "MO-ASHA", 0, [[math.nan, math.nan], [1, 1]])
        comparison = comparison_of([first, second])
        one, other = keep_fronts(comparison, measure(comparison)).runs
        assert one.objectives.tolist() == [[1, 2], [2, 1]]
        assert one.test.tolist() == [[1, 1], [2, 2]]
        assert one.jobs.tolist() == first.jobs[[0, 2]].tolist()
        assert other.objectives.tolist() == [[1, 1]]
        assert not other.errors

    def test_a_run_without_a_front_has_no_models(self):
        runs = [
            run_of("a", "MO-PBT", 0, [[1, 2]]),
            run_of("a", "MO-ASHA", 0, [[math.nan, math.nan]]),
        ]
        comparison = comparison_of(runs)
        lines = (
            gzip.decompress(compressed(keep_fronts(comparison, measure(comparison))))
            .decode()
            .splitlines()
        )
        assert len(lines) == 2


def unescaped(text):
    for command, sign in (
        (r"\textbackslash{}", "\0"),
        (r"\textasciitilde{}", "~"),
        (r"\textasciicircum{}", "^"),
    ):
        text = text.replace(command, sign)
    return re.sub(r"\\([&%$#_{}])", r"\1", text).replace("\0", "\\")
