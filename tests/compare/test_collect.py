"""Collecting the evaluations of a comparison."""

import csv
import gzip
import io
import math
import shutil
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import mopbt
from compare.helpers import by_run, changed, experiment, task
from mopbt import Results
from mopbt.cli import app
from mopbt.compare import (
    PlannedRun,
    collect,
    compare,
    recompute,
)
from mopbt.compare.measures import measure
from mopbt.compare.report import draw, write_report
from mopbt.errors import (
    MissingExtra,
    StoreError,
)
from mopbt.metrics import hypervolume
from mopbt.stores.journal import read_journal


def table_of(out):
    with gzip.open(out / "evaluations.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def as_text(value):
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def test_the_table_has_what_the_runs_have(small):
    comparison, out = small
    rows = table_of(out)
    expected = {}
    for run in by_run(comparison):
        for record in Results.open(out / run.directory).records():
            failed = bool(record["error"])
            row = {
                "task": run.task,
                "algorithm": run.algorithm,
                "seed": run.seed,
                "job": record["model"],
                "step": record["end"],
            }
            row |= {key: record[key] for key in ("trial", "seconds", "duration", "error")}
            row |= {"violation": math.inf if failed else record["violation"]}
            row |= {
                key: value for key, value in record.items() if key.startswith(("score.", "hp."))
            }
            expected[run.task, run.algorithm, run.seed, record["model"]] = row
    columns = list(rows[0])
    assert len(rows) == len(expected) == sum(map(len, comparison.runs))
    assert any(row["error"] for row in rows)
    assert any(row["hp.kind"] == "with, comma" for row in rows)
    for row in rows:
        want = expected[row["task"], row["algorithm"], int(row["seed"]), int(row["job"])]
        assert row == {column: as_text(want.get(column)) for column in columns}
    assert columns[:10] == [
        "task",
        "algorithm",
        "seed",
        "job",
        "trial",
        "step",
        "seconds",
        "duration",
        "violation",
        "error",
    ]
    assert columns[10:12] == ["score.first", "score.second"]
    assert columns[-3:] == ["hp.rate", "hp.kind", "hp.n"]


def test_columns_are_those_of_the_table(small):
    comparison, out = small
    columns, rows = comparison.evaluations(), table_of(out)
    assert list(columns) == list(rows[0])
    for name, column in columns.items():
        texts = [as_text(value) for value in column.tolist()]
        assert (texts if name != "hp.n" else [text.removesuffix(".0") for text in texts]) == [
            row[name] for row in rows
        ]
    assert columns["hp.n"].dtype == float  # with NaN for the other task


def test_arrays_are_larger_is_better_and_in_the_order_of_completion(small, place):
    comparison, out = small
    runs = by_run(comparison)
    for seed, label in product((0, 1), comparison.algorithms):
        planned = PlannedRun(task(place, "Mixed"), label, seed)
        run, results = runs[planned], Results.open(out / planned.directory)
        exchanges, _ = read_journal(out / planned.directory / "journal.jsonl")
        assert run.jobs.tolist() == [
            report.job for exchange in exchanges for report in exchange.reports
        ]
        assert (np.diff(run.seconds) >= 0).all()
        up, down = run.scores["up"], run.scores["down"]
        np.testing.assert_array_equal(run.objectives, np.column_stack([up, -down]))
        np.testing.assert_array_equal(
            run.test, np.column_stack([run.scores["test/up"], -run.scores["test/down"]])
        )
        assert {run.jobs[row]: error for row, error in run.errors.items()} == results.failures
        assert np.isinf(run.violations).nonzero()[0].tolist() == list(run.errors)
        assert np.isnan(run.objectives[list(run.errors)]).all()
        positions = dict(zip(run.jobs.tolist(), run.positions.tolist(), strict=True))
        for point in results.points():
            assert results.problem.space.encode(point.hp) == tuple(positions[point.model])
    assert any(run.errors for run in comparison.runs)
    assert any(
        (np.isnan(run.objectives).any(axis=1) & np.isfinite(run.violations)).any()
        for run in comparison.runs
    )  # diverged


def test_without_test_scores_there_is_no_test(place, tmp_path):
    only = experiment(
        place, "quick", seeds=1, time_of=None, algorithms={"A": {"name": "mo-pbt", "population": 2}}
    )
    (run,) = compare(only, out=tmp_path / "out", jobs=1, progress=False).runs
    assert run.test is None
    assert run.steps.tolist() == [2, 2, 4, 4, 6, 6]


def test_the_same_evaluations_make_the_same_file_also_from_the_journals_alone(small, place):
    comparison, out = small
    before = (out / "evaluations.csv.gz").read_bytes()
    (out / "evaluations.csv.gz").unlink()
    again = recompute(experiment(place, "short", "Mixed"), out=out)
    assert (out / "evaluations.csv.gz").read_bytes() == before
    assert len(again.runs) == len(comparison.runs)


cells = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.floats()), min_size=1
)


@given(cells)
@example([("\r", 0.0), ("a\nb", math.nan), ("", -0.0), ('"', math.inf), ("a,b", 5e-324)])
def test_cells_are_read_back_unchanged(rows):
    texts, numbers = (
        np.array([text for text, _ in rows], dtype=object),
        np.array([number for _, number in rows]),
    )
    lines = "".join(
        f"{line}\n"
        for line in map(
            ",".join, zip(collect._csv_cells(texts), collect._csv_cells(numbers), strict=True)
        )
    )
    back = list(csv.reader(io.StringIO(lines, newline="")))
    assert [text for text, _ in back] == texts.tolist()
    np.testing.assert_array_equal([float(number or "nan") for _, number in back], numbers)


def test_cells_that_are_equal_and_of_other_kinds_stay_apart():
    cells = np.array([1, True, 1.0, "1", 0, False, ""], dtype=object)
    assert collect._csv_cells(cells) == ["1", "True", "1.0", "1", "0", "False", ""]


@pytest.mark.parametrize(
    ("cells", "typed"),
    [
        (["b", "a", 3], ["b", "a", "3"]),
        ([0, 0.5, ""], [0.0, 0.5, math.nan]),
        ([True, False, ""], [True, False, None]),
        ([True, 0.5, ""], ["True", "0.5", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_a_column_of_mixed_values_has_one_type_where_types_are_known(cells, typed):
    column = collect._with_one_type("hp.x", np.array(cells, dtype=object))
    np.testing.assert_array_equal(column, np.array(typed, dtype=column.dtype))


def test_an_empty_text_column_stays_text():
    """An empty column of errors must be text, or the files of two comparisons cannot be joined."""
    assert collect._with_one_type("error", np.array(["", ""], dtype=object)).tolist() == ["", ""]


def test_a_column_that_not_all_tasks_have_keeps_its_kind():
    """Booleans must not become 1.0 and 0.0."""
    tables = [{"job": np.arange(2), "hp.on": np.array([True, False])}, {"job": np.arange(1)}]
    assert collect._join_column("hp.on", tables).tolist() == [True, False, ""]
    assert collect._join_column("hp.on", tables[:1]).dtype == bool


def test_parquet_has_the_same_table_or_names_what_it_needs(small, place):
    comparison, out = small
    try:
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(MissingExtra, match="Parquet needs pyarrow: pip install pyarrow"):
            compare(experiment(place, "short", "Mixed"), out=out, progress=False, parquet=True)
        return
    recompute(experiment(place, "short", "Mixed"), out=out, parquet=True)
    table = pyarrow.parquet.read_table(out / "evaluations.parquet")
    for name, column in comparison.evaluations().items():
        cells = table.column(name).to_pylist()
        assert [as_text(cell) for cell in cells] == [as_text(cell) for cell in column.tolist()], (
            name
        )
    assert table.schema.field("error").type == pyarrow.string()


def test_parquet_that_is_there_is_kept_up_to_date(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    (tmp_path / "out" / "evaluations.parquet").write_text("old")
    recompute(experiment(place, "short", "Mixed"), out=tmp_path / "out")
    assert (tmp_path / "out" / "evaluations.parquet").read_bytes()[:4] == b"PAR1"


@pytest.mark.parametrize(("name", "text"), [("about.json", "{"), ("finished.json", "")])
def test_a_damaged_file_is_named(small, place, tmp_path, name, text):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    folder = (
        tmp_path / "out" if name == "about.json" else tmp_path / "out" / usual.plan()[0].directory
    )
    (folder / name).write_text(text)
    with pytest.raises(StoreError, match=rf"{folder / name} is damaged \(.*\); re"):
        recompute(usual, out=tmp_path / "out")


def test_a_run_without_its_journal_is_an_error(small, place, tmp_path):
    """Otherwise it would count as a run of hypervolume 0."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    for name in ("journal.jsonl", "record.json.gz"):
        (tmp_path / "out" / usual.plan()[0].directory / name).unlink()
    with pytest.raises(
        StoreError,
        match=r"mo-pbt/0 has changed since its run finished: it has no journal.jsonl; restore it",
    ):
        recompute(usual, out=tmp_path / "out")


def test_a_marker_with_another_number_of_evaluations_is_an_error(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    changed(
        tmp_path / "out" / usual.plan()[0].directory,
        '"evaluations": 36',
        '"evaluations": 35',
        file="finished.json",
    )
    with pytest.raises(
        StoreError,
        match=r"mo-pbt/0 has changed .*has 36 evaluations, but finished.json says 35; restore",
    ):
        recompute(usual, out=tmp_path / "out")


def test_a_journal_that_cannot_be_read_has_a_remedy_that_does_not_spoil_the_comparison(
    small, place, tmp_path
):
    """`mopbt resume --repair` would add failed intervals, and train beyond the time of the run."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first = tmp_path / "out" / usual.plan()[0].directory
    text = (first / "journal.jsonl").read_text()
    (first / "journal.jsonl").write_text(text.replace("0", "1", 40))
    with pytest.raises(
        StoreError,
        match=r"(?s)remove that directory and rerun the same command without --only-report",
    ) as raised:
        recompute(usual, out=tmp_path / "out")
    assert "--repair" not in str(raised.value)
    refused = CliRunner().invoke(app, ["resume", str(first), "--repair"])
    assert "belongs to a comparison" in str(refused.exception)


@pytest.mark.parametrize("text", ["[]", "{}", '{"real": 1}'])
def test_an_incomplete_marker_is_named(small, place, tmp_path, text):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    mark = tmp_path / "out" / usual.plan()[0].directory / "finished.json"
    mark.write_text(text)
    with pytest.raises(
        StoreError, match=rf"{mark} is damaged \(it .*\); remove it and rerun to resume the run"
    ):
        recompute(usual, out=tmp_path / "out")


def test_a_comparison_is_not_mistaken_for_a_run(small):
    with pytest.raises(
        StoreError,
        match=r"small is not a run: .*it is a comparison: `mopbt compare .* --only-report`",
    ):
        Results.open(small[1])


def test_runs_of_two_versions_in_one_comparison_are_reported(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    mark = tmp_path / "out" / usual.plan()[0].directory
    changed(
        mark,
        f'\\"version\\": \\"{mopbt.__version__}\\"',
        '\\"version\\": \\"0.0.9\\"',
        file="finished.json",
    )
    mixed = recompute(usual, out=tmp_path / "out")
    assert mixed.versions == ("0.0.9", mopbt.__version__)
    write_report(mixed, tmp_path / "out", figures=False)
    assert (
        f"The runs were made by mopbt 0.0.9 and {mopbt.__version__}, which may make diff"
        in (tmp_path / "out/tables.md").read_text()
    )


def test_a_report_without_runs_changes_no_file(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out", ignore=shutil.ignore_patterns("runs"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(StoreError, match="has no finished runs to compute from"):
        recompute(experiment(place, "short", "Mixed", about="another word"), out=tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.slow
def test_final_fronts_are_measured_on_the_rows_of_a_task(place, tmp_path):
    made = experiment(place, "Tested", name="tested", seeds=1)
    comparison = compare(made, out=tmp_path / "out", jobs=1, progress=False)
    (measured,) = measure(comparison)
    for run in [run for runs in measured.runs.values() for run in runs]:
        data = run.data
        tested = np.isfinite(data.test).all(axis=1)
        assert set(run.front) <= set(np.flatnonzero(tested))
        assert tested.sum() < len(data)
        np.testing.assert_allclose(data.test[run.front], 0.9 * data.objectives[run.front])
        expected = hypervolume(0.9 * data.objectives[run.front], measured.reference)
        assert run.test_hypervolumes[-1] == pytest.approx(expected)
        # Models that left the front are not measured, so their hypervolume is not known.
        assert np.isnan(run.test_hypervolumes[0])
    assert not draw("generalization", [measured])
    columns = comparison.evaluations()
    assert np.isnan(columns["score.test/near"]).any()
    again = compare(made, out=tmp_path / "again", jobs=1, progress=False, reuse=[tmp_path / "out"])
    for run, copy in zip(comparison.runs, again.runs, strict=True):
        np.testing.assert_array_equal(run.test, copy.test)
