"""The data of reports as they were: of runs with failures, NaN and constraints.

`page.jsonl` holds what a page about two runs shows: fronts, lineage, curves, histograms and
hyperparameter schedules of each, and how they compare. The other files hold what the results of
each run answer in Python: rows, front, choices, curve, ancestry and schedules.
"""

import pytest
from tests.golden import adapter
from tests.golden.cases import REPORTS
from tests.golden.recorded import check_sections


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_as_it_was(name, tmp_path):
    runs = {key: adapter.execute(case, tmp_path / key) for key, case in REPORTS[name].items()}
    pages, comparison = adapter.report([run.path for run in runs.values()])
    sections = {"comparison": comparison}
    for key, data in zip(runs, pages, strict=True):
        sections |= {f"{key}, {part}": value for part, value in data.items()}
    check_sections(f"report/{name}-page.jsonl", sections)
    for key, run in runs.items():
        check_sections(f"report/{name}-{key}.jsonl", adapter.results(run))
