"""A comparison as it was: the tables that it writes as CSV, and hypervolumes over time.

Three tasks (two of mopbt's synthetic ones, and the golden learner with test scores, failures and a
constraint), three algorithms on simulated workers, and one with a constraint of its own.
"""

import pytest
from tests.golden import adapter, recorded
from tests.golden.cases import COMPARISON
from tests.golden.recorded import assert_same, check_lines, check_table, writing


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return adapter.execute_comparison(COMPARISON, out), out


@pytest.mark.parametrize("name", adapter.TABLE_FILES)
def test_a_table_is_as_it_was(name, comparison):
    check_table(f"comparison/{name}.csv", adapter.table(comparison[1], name))


def test_measures_over_time_are_as_they_were(comparison):
    check_lines("comparison/measures.jsonl", adapter.measures(comparison[0]))


@pytest.mark.slow
@pytest.mark.skipif(writing(), reason="it compares with what another engine writes")
def test_stacks_give_the_same_evaluations(tmp_path):
    label = "MO-PBT"
    own = {"algorithms": {label: COMPARISON["algorithms"][label]}, "seeds": 1}
    adapter.execute_comparison(COMPARISON | own, tmp_path, engine="vectorized")
    then = recorded.read_table("comparison/evaluations.csv")
    then = [row for row in then if (row["algorithm"], row["seed"]) == (label, 0)]
    made = recorded.as_table(adapter.table(tmp_path, "evaluations"))
    assert_same(then, made, "the evaluations in stacks")
