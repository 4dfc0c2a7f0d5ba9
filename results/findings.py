"""Print the numbers that docs/results.md quotes outside its tables.

Run it with ``python results/findings.py``. Most numbers come from the committed files. Shares of
all evaluations need evaluations.csv.gz, which `mopbt compare` writes.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path

import moocore
import numpy as np

from mopbt.compare.significance import holm, sign_flip_test

TABULAR = Path(__file__).parent / "small" / "tables-5-7-tabular"
# The image tasks were run in two parts, on two machines.
IMAGES = [TABULAR.with_name("tables-5-7-images"), TABULAR.with_name("tables-5-7-images-2")]
QNEHVI = TABULAR.with_name("figure-14-qnehvi-tabular")
CONSTRAINTS = TABULAR.with_name("figure-18-constraints")
# The accuracy of predicting the same class for every row.
CONSTANT_ACCURACY = {"adult": 0.7592, "celeba": 0.5201, "cifar10": 0.1, "cifar100": 0.01}
# All other objectives of the paper's tasks are maximized.
MINIMIZED = {"dsp", "deo"}

Row = Mapping[str, str]
# Task, algorithm and seed.
Run = tuple[str, str, str]


def read_rows(file: Path) -> Iterator[Row]:
    """Read the rows of a CSV file, which may be compressed."""
    open_file = gzip.open if file.suffix == ".gz" else open
    with open_file(file, "rt", newline="") as lines:
        yield from csv.DictReader(lines)


def run_of(row: Row) -> Run:
    """Return the run that a row belongs to."""
    return row["task"], row["algorithm"], row["seed"]


def rows_by_run(file: Path) -> dict[Run, list[Row]]:
    """Return the rows of each run."""
    return {run: list(rows) for run, rows in groupby(read_rows(file), run_of)}


def references(folder: Path) -> dict[str, dict[str, float]]:
    """Return the reference point of each task by objective."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_rows(folder / "tasks.csv"):
        found[row["task"]][row["objective"]] = float(row["reference"])
    return found


def hypervolume(
    models: Iterable[Row], reference: Mapping[str, float], prefixes: Mapping[str, str] | str = ""
) -> float:
    """Return the hypervolume of models in percent.

    The prefix "test/", for all objectives or by objective, selects metrics on test rows.
    """
    if isinstance(prefixes, str):
        prefixes = dict.fromkeys(reference, prefixes)
    columns = [f"score.{prefixes[name]}{name}" for name in reference]
    points = np.array([[float(model[column]) for column in columns] for model in models])
    if not len(points):
        return 0.0
    maximize = [name not in MINIMIZED for name in reference]
    return 100 * float(moocore.hypervolume(points, ref=[*reference.values()], maximise=maximize))


def print_leads_without_seed_0() -> None:
    """Print MO-PBT's lead over random search with all seeds and without seed 0."""
    values: dict[Run, dict[str, float]] = defaultdict(dict)
    for row in read_rows(TABULAR / "runs.csv"):
        for measure in ("hypervolume", "test_hypervolume"):
            values[row["task"], row["algorithm"], measure][row["seed"]] = float(row[measure])
    print("lead of MO-PBT over random search, %: all seeds, without seed 0; the same on test rows")
    for task in dict.fromkeys(task for task, *_ in values):
        cells = []
        for measure in ("hypervolume", "test_hypervolume"):
            ours = values[task, "MO-PBT", measure]
            theirs = values[task, "random search", measure]
            for seeds in (list(ours), [seed for seed in ours if seed != "0"]):
                our_mean = np.mean([ours[seed] for seed in seeds])
                their_mean = np.mean([theirs[seed] for seed in seeds])
                cells.append(100 * (our_mean / their_mean - 1))
        print(f"  {task:<24}" + "".join(f"{cell:8.2f}" for cell in cells))


def print_p_without_seed_0(folder: Path) -> None:
    """Print p over all tasks without seed 0 of the Adult tasks.

    The sizes of `small` were chosen by that seed.
    """
    print(f"{folder.name}: p over all tasks without seed 0 of Adult, after Holm's correction")
    print_p_over_all_tasks(
        row
        for row in read_rows(folder / "runs.csv")
        if row["seed"] != "0" or not row["task"].startswith("adult")
    )


def print_p_over_image_tasks() -> None:
    """Print p over all image tasks, and the pairs of runs in which MO-PBT leads."""
    files = [folder / "runs.csv" for folder in IMAGES if (folder / "runs.csv").exists()]
    for measure in ("hypervolume", "test_hypervolume"):
        print(
            f"image tasks, {measure}: p over all tasks, after Holm's correction, "
            "and the pairs in which MO-PBT leads"
        )
        print_p_over_all_tasks(chain.from_iterable(map(read_rows, files)), measure)


def print_p_over_all_tasks(runs: Iterable[Row], measure: str = "hypervolume") -> None:
    """Print p of each algorithm against MO-PBT over all tasks.

    Two tasks that start with the same configurations count as one.
    """
    values: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in runs:
        values[row["algorithm"]][row["task"], row["seed"]] = float(row[measure])
    ours = values.pop("MO-PBT")
    p = {}
    leads = {}
    for label, theirs in values.items():
        by_task: dict[str, dict[str, float]] = defaultdict(dict)
        for (task, seed), value in theirs.items():
            by_task[task][seed] = value - ours[task, seed]
        scaled: dict[tuple[str, str], float] = defaultdict(float)
        for task, differences in by_task.items():
            unit = sum(map(abs, differences.values())) or 1.0
            for seed, difference in differences.items():
                scaled[task.removesuffix("-3"), seed] += difference / unit
        p[label] = sign_flip_test([*scaled.values()])
        won = sum(ours[pair] > value for pair, value in theirs.items())
        leads[label] = f"{won} of {len(theirs)}"
    corrected = zip(p, holm([*p.values()]), strict=True)
    print("  " + "; ".join(f"{label} {number:.2g} ({leads[label]})" for label, number in corrected))


def print_leads_above_recall_0() -> None:
    """Print the leads above a recall of 0; the paper's rule gives about -0.1."""
    points = {
        task: {name: max(v, 0.0) if name == "recall" else v for name, v in reference.items()}
        for task, reference in references(TABULAR).items()
    }
    for prefix in ("", "test/"):
        runs = []
        for (task, label, seed), models in rows_by_run(TABULAR / "fronts.csv.gz").items():
            value = str(hypervolume(models, points[task], prefix))
            runs.append({"task": task, "algorithm": label, "seed": seed, "hypervolume": value})
        print(
            f"{prefix or 'validation'} rows above a recall of 0: p over all tasks, pairs; "
            "lead over random search, % and seeds"
        )
        print_p_over_all_tasks(runs)
        print_leads(runs)


def print_leads(runs: Iterable[Row], measure: str = "hypervolume") -> None:
    """Print MO-PBT's leads over random search and PBT on objective 1."""
    values: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in runs:
        values[row["task"], row["algorithm"]][row["seed"]] = float(row[measure])
    for task in dict.fromkeys(task for task, _ in values):
        ours = values[task, "MO-PBT"]
        cells = []
        for label in ("random search", "PBT, objective 1"):
            theirs = values[task, label]
            lead = 100 * (np.mean([*ours.values()]) / np.mean([*theirs.values()]) - 1)
            won = sum(ours[seed] > theirs[seed] for seed in theirs)
            cells.append(f"{label} {lead:+.1f} ({won} of {len(theirs)})")
        print(f"  {task:<24}{'; '.join(cells)}")


def print_leads_of_figure_14() -> None:
    """Print the leads of Figure 14's MO-PBT runs over the algorithms of the tables.

    They come from another machine.
    """
    points = references(TABULAR)
    fronts = rows_by_run(QNEHVI / "fronts.csv.gz")
    for measure, prefix in {"hypervolume": "", "test_hypervolume": "test/"}.items():
        runs = [row for row in read_rows(TABULAR / "runs.csv") if row["algorithm"] != "MO-PBT"]
        for (task, label, seed), models in fronts.items():
            if label == "MO-PBT":
                value = str(hypervolume(models, points[task], prefix) / 100)
                runs.append({"task": task, "algorithm": label, "seed": seed, measure: value})
        print(
            f"{measure} of Figure 14's MO-PBT runs, above the tables' reference points: "
            "p over all tasks, pairs; leads"
        )
        print_p_over_all_tasks(runs, measure)
        print_leads(runs, measure)


def print_differences_by_seed(folder: Path, measure: str = "hypervolume") -> None:
    """Print the difference of each algorithm from MO-PBT in percent, by task and seed."""
    values = {run_of(row): float(row[measure]) for row in read_rows(folder / "runs.csv")}
    print(f"{folder.name}, {measure}: difference from MO-PBT, %, by seed")
    cells: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (task, label, seed), value in values.items():
        if label != "MO-PBT":
            difference = 100 * (value / values[task, "MO-PBT", seed] - 1)
            cells[task, label].append(f"{difference:8.2f}")
    for (task, label), differences in cells.items():
        print(f"  {task:<24}{label:<28}" + "".join(differences))


def print_click_tail() -> None:
    """Print how much models of high precision, with few positives, add on Click."""
    task = "click-precision-recall"
    labels = ("MO-PBT", "PBT, objective 1", "random search")
    reference = references(TABULAR)[task]
    fronts: dict[str, list[list[Row]]] = defaultdict(list)
    for run, models in rows_by_run(TABULAR / "fronts.csv.gz").items():
        if run[0] == task:
            fronts[run[1]].append(models)
    print(
        f"{task}: hypervolume of models up to a precision, validation / test; "
        "seeds in which MO-PBT leads"
    )
    for most in (0.4, 0.45, 0.5, 0.6, 1.0):
        found = {}
        for label in labels:
            kept = [_up_to_precision(models, most) for models in fronts[label]]
            both = [[hypervolume(models, reference, of) for of in ("", "test/")] for models in kept]
            found[label] = np.array(both)
        text = "".join(
            f"  {label} {values[:, 0].mean():.2f} / {values[:, 1].mean():.2f}"
            for label, values in found.items()
        )
        won = (found[labels[0]] > found[labels[1]]).sum(axis=0)
        print(f"  {most:.2f}{text}   over {labels[1]}: {won}")
    print("  share of the gain of models above a precision of 0.4 that test rows keep, %, by seed:")
    for label in labels:
        shares = []
        for models in fronts[label]:
            rest = _up_to_precision(models, 0.4)
            added = hypervolume(models, reference) - hypervolume(rest, reference)
            test = hypervolume(models, reference, "test/") - hypervolume(rest, reference, "test/")
            shares.append(100 * test / added)
        print(f"  {label:<20}" + "".join(f"{share:5.0f}" for share in shares))


def _up_to_precision(models: list[Row], most: float) -> list[Row]:
    return [model for model in models if float(model["score.precision"]) <= most]


def print_gaps() -> None:
    """Print how large small gaps on validation rows are on test rows."""
    task = "adult-fairness"
    labels = ("MO-PBT", "random search")
    fronts: dict[str, list[list[Row]]] = defaultdict(list)
    for run, models in rows_by_run(TABULAR / "fronts.csv.gz").items():
        if run[0] == task:
            fronts[run[1]].append(models)
    print(
        f"{task}: models of the fronts with an accuracy above 0.8 and a gap below 0.005; "
        "their mean gap, validation and test"
    )
    for label in labels:
        accurate = [m for m in chain(*fronts[label]) if float(m["score.accuracy"]) > 0.8]
        found = [model for model in accurate if float(model["score.dsp"]) < 0.005]
        validation = np.mean([float(model["score.dsp"]) for model in found])
        test = np.mean([float(model["score.test/dsp"]) for model in found])
        print(f"  {label:<16}{len(found):4} models  {validation:.4f}  {test:.4f}")
    print(
        f"{task}: hypervolume on validation rows, with test gaps, with test accuracies, "
        "and on test rows"
    )
    reference = references(TABULAR)[task]
    mixes = [
        {"accuracy": accuracy, "dsp": gap}
        for accuracy, gap in (("", ""), ("", "test/"), ("test/", ""), ("test/", "test/"))
    ]
    for label in labels:
        means = [
            np.mean([hypervolume(models, reference, mix) for models in fronts[label]])
            for mix in mixes
        ]
        print(f"  {label:<16}" + "".join(f"{mean:8.3f}" for mean in means))


def print_search_spaces() -> None:
    """Print the hypervolumes of Figure 9's search spaces above one reference point.

    The reference point has the lower value of each objective.
    """
    folder = TABULAR.with_name("figure-9-search-space")
    points = [*references(folder).values()]
    reference = {name: min(point[name] for point in points) for name in points[0]}
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (task, label, _), models in rows_by_run(folder / "fronts.csv.gz").items():
        found[task, label].append(hypervolume(models, reference))
    print(f"{folder.name}: hypervolume above {reference}, mean, deviation, and each seed")
    for (task, label), values in found.items():
        each = " ".join(f"{value:.2f}" for value in values)
        print(f"  {task:<24}{label:<10}{np.mean(values):6.2f}{np.std(values):6.2f}   {each}")


def is_trivial(row: Row) -> bool:
    """Return whether a model is no better than predicting one class for all rows."""
    if row.get("score.recall"):
        return float(row["score.recall"]) in (0.0, 1.0)
    return float(row["score.accuracy"] or 0) <= CONSTANT_ACCURACY[row["task"].partition("-")[0]]


def print_trivial_models(folder: Path) -> None:
    """Print the share of trivial models over time, and how many trials continue."""
    found: dict[tuple[str, str], list[tuple[list[bool], ...]]] = defaultdict(list)
    trials: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (task, label, _), rows in rows_by_run(folder / "evaluations.csv.gz").items():
        end = max(float(row["seconds"]) for row in rows)
        parts = (
            [row for row in rows if row["step"] == "1"],
            [row for row in rows if row["step"] == "5"],
            [row for row in rows if float(row["seconds"]) > end / 2],
        )
        found[task, label].append(tuple([is_trivial(row) for row in part] for part in parts))
        continued = {row["trial"] for row in rows if row["step"] != "1"}
        trials[task, label].append((len({row["trial"] for row in rows}), len(continued)))
    print(
        "trivial models, %: after 1 and 5 intervals, in the second half of the time; "
        "trials of a run, and those past one interval"
    )
    for (task, label), runs in found.items():
        shares = [100 * np.mean(np.concatenate(part)) for part in zip(*runs, strict=True)]
        started, continuing = np.mean(trials[task, label], axis=0)
        text = "".join(f"{share:7.1f}" for share in shares)
        print(f"  {task:<24}{label:<28}{text}{started:8.0f}{continuing:6.0f}")


def print_final_models(folder: Path) -> None:
    """Print how many models each algorithm trains to the end, and their mean metrics."""
    every = list(read_rows(folder / "evaluations.csv.gz"))
    for task in dict.fromkeys(row["task"] for row in every):
        of_task = [row for row in every if row["task"] == task]
        last = max(int(row["step"]) for row in of_task)
        names = [row["objective"] for row in read_rows(folder / "tasks.csv") if row["task"] == task]
        print(f"{task}: models after {last} steps, and the means of their {' and '.join(names)}")
        for label in dict.fromkeys(row["algorithm"] for row in of_task):
            of_label = [row for row in of_task if row["algorithm"] == label]
            models = [row for row in of_label if row["step"] == str(last)]
            means = [np.mean([float(row[f"score.{name}"]) for row in models]) for name in names]
            print(f"  {label:<28}{len(models):4}" + "".join(f"{mean:7.3f}" for mean in means))


def main() -> None:
    """Print all numbers."""
    print_leads_without_seed_0()
    print_leads_above_recall_0()
    print_leads_of_figure_14()
    for name in (
        "tables-5-7-tabular",
        "figure-10-explore",
        "figure-11-tau",
        "figure-12-ranking",
        "figure-15-sequential",
    ):
        print_p_without_seed_0(TABULAR.parent / name)
    print_p_without_seed_0(QNEHVI)
    for measure in ("hypervolume", "test_hypervolume", "coverage"):
        print(f"{QNEHVI.name}, {measure}: p over all tasks, and the pairs in which MO-PBT leads")
        runs = (row for row in read_rows(QNEHVI / "runs.csv") if row[measure])
        print_p_over_all_tasks(runs, measure)
    print_click_tail()
    print_gaps()
    print_search_spaces()
    print_p_over_image_tasks()
    print_differences_by_seed(CONSTRAINTS)
    print_differences_by_seed(CONSTRAINTS, "test_hypervolume")
    for folder in (TABULAR, *IMAGES, CONSTRAINTS):
        if (folder / "evaluations.csv.gz").exists():
            print_trivial_models(folder)
        else:
            print(
                f"{folder.name}: shares of all models need evaluations.csv.gz, "
                "which is too large to publish"
            )
    for folder in IMAGES:
        if (folder / "evaluations.csv.gz").exists():
            print_final_models(folder)


if __name__ == "__main__":
    main()
