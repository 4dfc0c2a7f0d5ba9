"""The report of a comparison: its files, and figures that hold for all kinds."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from compare.builders import LABELS, comparison_of, only, random_comparison, run_of
from mopbt import Budget, SimulatedEngine, run
from mopbt.algorithms import MOASHA, MOPBT, RandomSearch
from mopbt.compare import PlannedRun
from mopbt.compare.measures import measure
from mopbt.compare.plan import FIGURES as ALLOWED
from mopbt.compare.report import FIGURES, draw, write_report
from mopbt.errors import MissingExtra, StoreError
from mopbt.plots.style import (
    styled,
)
from mopbt.tasks.synthetic import TradeOff

TABLES = {"tables.md", "tables.tex", "tables.csv", "runs.csv", "tasks.csv", "fronts.csv.gz"}


class TestReport:
    @pytest.mark.slow
    def test_writes_tables_and_all_figures_that_make_sense(self, tmp_path):
        files = write_report(
            random_comparison(labels=LABELS[:2], about="What it is about"), tmp_path / "out"
        )
        names = {str(file.relative_to(tmp_path / "out")) for file in files}
        kinds = [
            "progress",
            "fronts",
            "searched-a",
            "attainment-a",
            "generalization",
            "transfer",
            "final",
        ]
        assert names == TABLES | {
            f"figures/{kind}.{ending}" for kind in kinds for ending in ("png", "pdf")
        }
        assert all(
            file.stat().st_size > (5000 if file.suffix in (".png", ".pdf") else 100)
            for file in files
        )
        text = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
        assert text.startswith("# test\n\nWhat it is about\n\n## Hypervolume")
        assert text.count("| MO-PBT |") == 5

    def test_the_experiment_chooses_figures(self, tmp_path):
        files = write_report(random_comparison(figures=("final",)), tmp_path)
        assert {file.name for file in files if file.parent.name == "figures"} == {
            "final.png",
            "final.pdf",
        }

    def test_figures_of_an_earlier_report_go_and_others_stay(self, tmp_path):
        folder = tmp_path / "figures"
        folder.mkdir()
        for name in (
            "final.png",
            "fronts.png",
            "searched-gone.pdf",
            "fronts.txt",
            "mine.png",
            "final-version.png",
        ):
            (folder / name).write_text("earlier", encoding="utf-8")
        write_report(random_comparison(figures=("final",)), tmp_path)
        assert {file.name for file in folder.iterdir()} == {
            "final.png",
            "final.pdf",
            "fronts.txt",
            "mine.png",
            "final-version.png",
        }
        assert (folder / "final.png").stat().st_size > 5000

    @pytest.mark.slow
    def test_the_same_comparison_gives_the_same_files(self, tmp_path):
        first, second = (
            write_report(random_comparison(figures=("progress",)), tmp_path / name)
            for name in ("one", "two")
        )
        for a, b in zip(first, second, strict=True):
            assert a.read_bytes() == b.read_bytes(), a.name

    def test_missing_runs_are_reported(self, tmp_path):
        comparison = replace(
            random_comparison(figures=("final",)), missing=(PlannedRun("a", "MO-ASHA", 7),)
        )
        write_report(comparison, tmp_path)
        assert "1 of 10 runs are not finished." in (tmp_path / "tables.md").read_text(
            encoding="utf-8"
        )

    def test_a_comparison_without_runs_has_empty_tables(self, tmp_path):
        files = write_report(replace(random_comparison(), runs=(), problems={}), tmp_path)
        assert {file.name for file in files} == TABLES

    @pytest.mark.slow
    def test_the_shortest_runs_can_be_drawn(self):
        measured = measure(random_comparison(seeds=1, n=1))
        figures = [figure for name in FIGURES for figure in draw(name, measured).values()]
        for figure in figures:
            figure.canvas.draw()
        assert len(figures) == 6

    def test_an_experiment_may_ask_for_just_these_figures(self):
        assert tuple(FIGURES) == ALLOWED

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "label", ["$a_$ variant", "cost $5 and $\\frac", "100 % \\alpha_{", "x^2 & ~"]
    )
    def test_labels_are_drawn_as_they_are(self, label, tmp_path):
        comparison = random_comparison(labels=("MO-PBT", label), figures=("progress", "final"))
        files = write_report(comparison, tmp_path)
        assert len([file for file in files if file.suffix == ".png"]) == 2
        with styled():
            figure = only(draw("progress", measure(comparison)))
            figure.canvas.draw()
        (drawn,) = (text for text in figure.legends[0].get_texts() if text.get_text() != "MO-PBT")
        assert (drawn.get_text(), drawn.get_parse_math()) == (label, False)

    @pytest.mark.parametrize(
        ("n", "seeds"),
        [
            (3, 1),
            pytest.param(40, 3, marks=pytest.mark.slow),
            pytest.param(3000, 2, marks=pytest.mark.slow),
        ],
    )
    def test_numbers_on_axes_are_plain(self, n, seeds):
        """Labels are plain text, even if they look like mathematics."""
        measured = measure(random_comparison(seeds=seeds, n=n))
        for figure in (figure for name in FIGURES for figure in draw(name, measured).values()):
            with styled():
                figure.canvas.draw()
            texts = [text.get_text() for text in figure.findobj(Text)]
            assert not [text for text in texts if "$" in text or "mathdefault" in text]

    def test_long_names_are_wrapped_and_many_labels_take_room_below(self):
        tasks = ("examples/of_a_long_directory/train_classifier.py:task_with_augmentation", "b")
        figures = {
            n: only(
                draw(
                    "progress",
                    measure(
                        random_comparison(
                            tasks, labels=[f"an algorithm, {i}" for i in range(n)], seeds=1
                        )
                    ),
                )
            )
            for n in (2, 16)
        }
        assert "\n" in figures[2].axes[0].get_title(loc="left")
        assert figures[16].get_figheight() > figures[2].get_figheight() + 0.3

    def test_runs_that_all_attain_the_same_can_be_drawn(self):
        runs = [run_of("a", label, seed, [[1, 1]]) for label in LABELS for seed in (0, 1)]
        figure = only(draw("attainment", measure(comparison_of(runs))))
        assert [text.get_text() for text in figure.axes[1].texts] == ["no difference"]

    def test_evaluations_that_do_not_count_are_reported(self, tmp_path):
        points = [[1, 2], [np.nan, 1], [2, 1]]
        runs = [run_of("a", "MO-PBT", 0, points), run_of("b", "MO-PBT", 0, [[np.nan, 1]] * 3)]
        write_report(comparison_of(runs, figures=("final",)), tmp_path)
        text = (tmp_path / "tables.md").read_text(encoding="utf-8")
        assert "4 of 6 intervals ended with an objective that is not finite." in text
        assert (
            "b: no evaluation counts; all of them failed, were not finite or violated a constraint."
            in text
        )

    def test_models_of_a_front_without_test_scores_are_reported(self, tmp_path):
        tests = [[1, 2], [np.nan, np.nan], [np.nan, np.nan]]
        runs = [
            run_of("a", "MO-PBT", 0, [[1, 2], [2, 1], [0, 0]], test=tests),
            run_of("a", "MO-ASHA", 0, [[1, 2]]),
        ]
        write_report(comparison_of(runs, figures=("final",)), tmp_path)
        text = (tmp_path / "tables.md").read_text(encoding="utf-8")
        assert (
            "1 models of the fronts have no test scores, so they do not count on test data." in text
        )

    def test_a_file_that_cannot_be_written_is_named_with_a_remedy(self, tmp_path):
        (tmp_path / "tables.csv").mkdir()
        with pytest.raises(
            StoreError,
            match=r"cannot write .*tables.csv: .*; nothing reported is lost: make it writable",
        ):
            write_report(random_comparison(), tmp_path)

    def test_an_unknown_figure_is_an_error(self):
        with pytest.raises(
            ValueError, match=r"`figures` must be one of 'progress', 'fronts', .*, got 'pie'"
        ):
            draw("pie", ())

    @pytest.mark.slow
    def test_letters_have_eight_points_and_the_sheet_fits_a_page(self):
        from matplotlib.text import Text

        measured = measure(random_comparison(("a", "longer")))
        for name in FIGURES:
            for figure in draw(name, measured).values():
                assert figure.get_size_inches()[0] <= 7
                figure.canvas.draw()
                sizes = {
                    text.get_fontsize()
                    for text in figure.findobj(Text)
                    if text.get_text() and text.get_visible()
                }
                assert min(sizes) >= 8, name

    def test_legends_fit_into_the_figure(self):
        """Long labels get fewer columns."""
        labels = ("MO-PBT", *(f"an algorithm with the long name number {i}" for i in range(5)))
        figure = only(draw("progress", measure(random_comparison(("a", "longer"), labels=labels))))
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width

    def test_without_matplotlib_the_tables_are_written_and_the_extra_is_named(
        self, tmp_path, monkeypatch
    ):
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + [
            "matplotlib"
        ]:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            MissingExtra,
            match=r"need matplotlib: pip install 'mopbt\[plot\]'; the tables are already written",
        ):
            write_report(random_comparison(), tmp_path)
        assert (tmp_path / "tables.md").exists()

    @pytest.mark.slow
    def test_matplotlib_is_imported_with_the_first_figure_and_keeps_its_settings(self):
        script = (
            "import sys; from mopbt.compare.report import draw; "
            "assert 'matplotlib' not in sys.modules; "
            "draw('progress', ()); import matplotlib; "
            "assert 'matplotlib.pyplot' not in sys.modules; "
            "assert matplotlib.rcParams['font.size'] == matplotlib.rcParamsDefault['font.size']"
        )
        assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.slow
def test_real_runs_make_a_whole_report(tmp_path):
    """MO-PBT leads on a problem made for it, and the table has the numbers of the runs."""
    algorithms = {
        "MO-PBT": MOPBT(population=8),
        "random search": RandomSearch(population=8),
        "MO-ASHA": MOASHA(),
    }
    entries = {"MO-PBT": {"name": "mo-pbt"}, "random search": {"name": "random-search"}}
    entries |= {"MO-ASHA": {"name": "mo-asha", "time_of": "MO-PBT"}}
    runs = []
    for label, seed in itertools.product(algorithms, range(5)):
        budget = Budget(seconds=40.0) if label == "MO-ASHA" else Budget()
        options = {
            "algorithm": algorithms[label],
            "seed": seed,
            "engine": SimulatedEngine(4),
            "budget": budget,
        }
        results = run(TradeOff(steps=20), out=None, progress=False, **options)
        points = sorted(results.points(), key=lambda point: (point.seconds, point.model))
        names = [objective.name for objective in results.problem.objectives]
        objectives = np.array([[point.scores[name] for name in names] for point in points])
        shape = {
            "seconds": [point.seconds for point in points],
            "variables": len(results.problem.space),
        }
        runs.append(run_of("trade-off", label, seed, objectives, **shape))
    figures = ("progress", "attainment")
    comparison = comparison_of(
        runs, entries, problems={"trade-off": results.problem}, figures=figures
    )
    files = write_report(comparison, tmp_path)
    (task,) = measure(comparison)
    final = {
        label: np.mean([r.hypervolumes[-1] for r in of_label])
        for label, of_label in task.runs.items()
    }
    assert max(final, key=final.get) == "MO-PBT"
    assert f"**{100 * final['MO-PBT']:.2f} ±" in (tmp_path / "tables.md").read_text(
        encoding="utf-8"
    )
    assert {"progress.png", "attainment-trade-off.png"} <= {file.name for file in files}
