"""Prints the numbers that docs/results.md tells beside its tables. Run it with ``python results/findings.py``.

Most come from the committed files. Shares of all evaluations need evaluations.csv.gz, which `mopbt compare` writes.
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
IMAGES = [
    TABULAR.with_name(f"tables-5-7-images{part}") for part in ("", "-2")
]  # in two parts, on two machines
QNEHVI = TABULAR.with_name("figure-14-qnehvi-tabular")
CONSTRAINTS = TABULAR.with_name("figure-18-constraints")
CONSTANT = {
    "adult": 0.7592,
    "celeba": 0.5201,
    "cifar10": 0.1,
    "cifar100": 0.01,
}  # accuracy of the same answer for everybody
Row = Mapping[str, str]
Key = tuple[str, str, str]  # task, algorithm, seed


def rows(file: Path) -> Iterator[Row]:
    """Go through the rows of a CSV file, which may be compressed."""
    with (
        gzip.open(file, "rt", newline="")
        if file.suffix == ".gz"
        else open(file, newline="") as lines
    ):
        yield from csv.DictReader(lines)


def key(row: Row) -> Key:
    """Return the run that a row belongs to."""
    return row["task"], row["algorithm"], row["seed"]


def by_run(file: Path) -> dict[Key, list[Row]]:
    """Return the rows of each run."""
    return {run: list(of_run) for run, of_run in groupby(rows(file), key)}


def references(folder: Path) -> dict[str, dict[str, float]]:
    """Return the reference point of each task, by objective."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows(folder / "tasks.csv"):
        found[row["task"]][row["objective"]] = float(row["reference"])
    return found


MINIMISED = {"dsp", "deo"}  # the other objectives of the paper's tasks are maximized


def hypervolume(
    models: Iterable[Row], reference: Mapping[str, float], prefixes: Mapping[str, str] | str = ""
) -> float:
    """Return the hypervolume of models in per cent, by their scores on validation rows, or on test rows with the prefix "test/"."""
    of = dict.fromkeys(reference, prefixes) if isinstance(prefixes, str) else prefixes
    points = np.array(
        [[float(model[f"score.{of[name]}{name}"]) for name in reference] for model in models]
    )
    maximize = [name not in MINIMISED for name in reference]
    return (
        100 * float(moocore.hypervolume(points, ref=[*reference.values()], maximise=maximize))
        if len(points)
        else 0.0
    )


def leads() -> None:
    """Print MO-PBT's lead over random search: with all seeds and without seed 0, on validation and on test rows."""
    values: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in rows(TABULAR / "runs.csv"):
        for measure in ("hypervolume", "test_hypervolume"):
            values[row["task"], row["algorithm"], measure][row["seed"]] = float(row[measure])
    print("lead of MO-PBT over random search, %: all seeds, without seed 0; the same on test rows")
    for task in dict.fromkeys(task for task, *_ in values):
        cells = []
        for measure in ("hypervolume", "test_hypervolume"):
            ours, theirs = (values[task, label, measure] for label in ("MO-PBT", "random search"))
            for seeds in (list(ours), [seed for seed in ours if seed != "0"]):
                cells.append(
                    100
                    * (np.mean([ours[s] for s in seeds]) / np.mean([theirs[s] for s in seeds]) - 1)
                )
        print(f"  {task:<24}" + "".join(f"{cell:8.2f}" for cell in cells))


def without_the_seed_of_the_sizes(folder: Path) -> None:
    """Print the p over all tasks without seed 0 of Adult's tasks, by which the sizes of `small` were chosen."""
    print(f"{folder.name}: p over all tasks without seed 0 of Adult, after Holm's correction")
    over_all(
        row
        for row in rows(folder / "runs.csv")
        if row["seed"] != "0" or not row["task"].startswith("adult")
    )


def over_image_tasks() -> None:
    """Print the p over all image tasks, which were run in two parts, with the pairs of runs in which MO-PBT is ahead."""
    for measure in ("hypervolume", "test_hypervolume"):
        print(
            f"image tasks, {measure}: p over all of them, after Holm's correction, and the pairs in which MO-PBT is ahead"
        )
        over_all(
            chain.from_iterable(
                rows(folder / "runs.csv") for folder in IMAGES if (folder / "runs.csv").exists()
            ),
            measure,
        )


def over_all(runs: Iterable[Row], measure: str = "hypervolume") -> None:
    """Print the p of all algorithms against MO-PBT over all tasks; those that begin alike count as one."""
    values: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in runs:
        values[row["algorithm"]][row["task"], row["seed"]] = float(row[measure])
    ours, p, ahead = values.pop("MO-PBT"), {}, {}
    for label, theirs in values.items():
        together: dict[tuple[str, str], float] = defaultdict(float)
        for task in {task for task, _ in theirs}:
            differences = {
                seed: value - ours[place, seed]
                for (place, seed), value in theirs.items()
                if place == task
            }
            unit = sum(map(abs, differences.values())) or 1.0
            for seed, difference in differences.items():
                together[task.removesuffix("-3"), seed] += difference / unit
        p[label] = sign_flip_test([*together.values()])
        ahead[label] = (
            f"{sum(ours[pair] > value for pair, value in theirs.items())} of {len(theirs)}"
        )
    corrected = zip(p, holm([*p.values()]), strict=True)
    print("  " + "; ".join(f"{label} {number:.2g} ({ahead[label]})" for label, number in corrected))


def from_no_recall() -> None:
    """Print the leads on test rows above a reference point with a recall of 0, where the paper's rule has about -0.1."""
    points = {
        task: {o: max(v, 0.0) if o == "recall" else v for o, v in of.items()}
        for task, of in references(TABULAR).items()
    }
    for prefix in ("", "test/"):
        runs = [
            dict(zip(("task", "algorithm", "seed"), run, strict=True))
            | {"hypervolume": str(hypervolume(models, points[run[0]], prefix))}
            for run, models in by_run(TABULAR / "fronts.csv.gz").items()
        ]
        print(
            f"{prefix or 'validation'} rows above a recall of 0: p over all tasks, pairs; lead over random search, % and seeds"
        )
        over_all(runs)
        tell_leads(runs)


def tell_leads(runs: Iterable[Row], measure: str = "hypervolume") -> None:
    """Print for each task how much more MO-PBT has than random search and than PBT on objective 1, in % and in seeds."""
    values: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in runs:
        values[row["task"], row["algorithm"]][row["seed"]] = float(row[measure])
    for task in dict.fromkeys(task for task, _ in values):
        ours, cells = values[task, "MO-PBT"], []
        for label in ("random search", "PBT, objective 1"):
            theirs = values[task, label]
            lead = 100 * (np.mean([*ours.values()]) / np.mean([*theirs.values()]) - 1)
            cells.append(
                f"{label} {lead:+.1f} ({sum(ours[seed] > theirs[seed] for seed in theirs)} of {len(theirs)})"
            )
        print(f"  {task:<24}{'; '.join(cells)}")


def other_runs() -> None:
    """Print the leads of the MO-PBT runs of Figure 14, of another machine, over the algorithms of the tables."""
    points, others = references(TABULAR), by_run(QNEHVI / "fronts.csv.gz")
    for measure, prefix in {"hypervolume": "", "test_hypervolume": "test/"}.items():
        runs = [row for row in rows(TABULAR / "runs.csv") if row["algorithm"] != "MO-PBT"]
        for (task, label, seed), models in others.items():
            if label == "MO-PBT":
                value = str(hypervolume(models, points[task], prefix) / 100)
                runs.append({"task": task, "algorithm": label, "seed": seed, measure: value})
        print(
            f"{measure} of Figure 14's MO-PBT runs, above the tables' reference points: p over all tasks, pairs; leads"
        )
        over_all(runs, measure)
        tell_leads(runs, measure)


def by_seed(folder: Path, measure: str = "hypervolume") -> None:
    """Print for each task and seed how much more each algorithm has than MO-PBT, in %."""
    values = {key(row): float(row[measure]) for row in rows(folder / "runs.csv")}
    print(f"{folder.name}, {measure}: more than MO-PBT, %, by seed")
    for task, label in dict.fromkeys(
        (task, label) for task, label, _ in values if label != "MO-PBT"
    ):
        pairs = [
            (value, values[task, "MO-PBT", seed])
            for (t, a, seed), value in values.items()
            if (t, a) == (task, label)
        ]
        print(
            f"  {task:<24}{label:<28}"
            + "".join(f"{100 * (theirs / ours - 1):8.2f}" for theirs, ours in pairs)
        )


def click_tail() -> None:
    """Print what models of high precision, which call a handful of rows positive, add to the hypervolume on Click."""
    task, labels = "click-precision-recall", ("MO-PBT", "PBT, objective 1", "random search")
    reference = references(TABULAR)[task]
    fronts = {
        run: of_run for run, of_run in by_run(TABULAR / "fronts.csv.gz").items() if run[0] == task
    }
    print(
        f"{task}: hypervolume of models with a precision of at most so much, validation / test; seeds where MO-PBT is ahead"
    )
    for most in (0.4, 0.45, 0.5, 0.6, 1.0):
        cells = []
        for label in labels:
            kept = [
                [m for m in of_run if float(m["score.precision"]) <= most]
                for run, of_run in fronts.items()
                if run[1] == label
            ]
            cells.append(
                np.array(
                    [
                        [hypervolume(models, reference, prefix) for prefix in ("", "test/")]
                        for models in kept
                    ]
                )
            )
        text = "".join(
            f"  {label} {of_label[:, 0].mean():.2f} / {of_label[:, 1].mean():.2f}"
            for label, of_label in zip(labels, cells, strict=True)
        )
        print(f"  {most:.2f}{text}   over {labels[1]}: {(cells[0] > cells[1]).sum(axis=0)}")
    print(
        "  of what models with a precision above 0.4 add on validation rows, so much is left on test rows, %, by seed:"
    )
    for label in labels:
        shares = []
        for models in (of_run for run, of_run in fronts.items() if run[1] == label):
            rest = [model for model in models if float(model["score.precision"]) <= 0.4]
            added, left = (
                hypervolume(models, reference, of) - hypervolume(rest, reference, of)
                for of in ("", "test/")
            )
            shares.append(100 * left / added)
        print(f"  {label:<20}" + "".join(f"{share:5.0f}" for share in shares))


def gaps() -> None:
    """Print how small gaps on validation rows are on test rows."""
    print(
        "adult-fairness: models of the fronts with an accuracy above 0.8 and a gap below 0.005; their mean gap, validation and test"
    )
    for label in ("MO-PBT", "random search"):
        fronts = (
            row
            for row in rows(TABULAR / "fronts.csv.gz")
            if row["task"] == "adult-fairness" and row["algorithm"] == label
        )
        found = [
            row
            for row in fronts
            if float(row["score.accuracy"]) > 0.8 and float(row["score.dsp"]) < 0.005
        ]
        means = [
            np.mean([float(row[f"score.{name}"]) for row in found]) for name in ("dsp", "test/dsp")
        ]
        print(f"  {label:<16}{len(found):4} models  {means[0]:.4f}  {means[1]:.4f}")
    reference, runs = references(TABULAR)["adult-fairness"], by_run(TABULAR / "fronts.csv.gz")
    print(
        "adult-fairness: hypervolume with gaps / accuracies of test rows, and the other score of validation rows; all of test rows"
    )
    for label in ("MO-PBT", "random search"):
        models = [of_run for run, of_run in runs.items() if run[:2] == ("adult-fairness", label)]
        mixes = [
            {"accuracy": accuracy, "dsp": gap}
            for accuracy, gap in (("", ""), ("", "test/"), ("test/", ""), ("test/", "test/"))
        ]
        means = [
            np.mean([hypervolume(of_run, reference, mix) for of_run in models]) for mix in mixes
        ]
        print(f"  {label:<16}" + "".join(f"{mean:8.3f}" for mean in means))


def spaces() -> None:
    """Print the hypervolumes of both search spaces of Figure 9 above one reference point: the lower one of each objective."""
    folder = TABULAR.with_name("figure-9-search-space")
    points = [*references(folder).values()]
    reference = {name: min(point[name] for point in points) for name in points[0]}
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (task, label, _), models in by_run(folder / "fronts.csv.gz").items():
        found[task, label].append(hypervolume(models, reference))
    print(f"{folder.name}: hypervolume above {reference}, mean, deviation, and each seed")
    for (task, label), values in found.items():
        each = " ".join(f"{value:.2f}" for value in values)
        print(f"  {task:<24}{label:<10}{np.mean(values):6.2f}{np.std(values):6.2f}   {each}")


def is_trivial(row: Row) -> bool:
    """Tell whether a model answers the same for all validation rows, or no better than that."""
    if row.get("score.recall"):
        return float(row["score.recall"]) in (0.0, 1.0)
    return float(row["score.accuracy"] or 0) <= CONSTANT[row["task"].partition("-")[0]]


def trivial_models(folder: Path) -> None:
    """Print how many models are trivial at times, and what becomes of the trials of MO-ASHA."""
    found: dict[tuple[str, str], list[tuple[list[bool], ...]]] = defaultdict(list)
    trials: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (task, label, _), of_run in by_run(folder / "evaluations.csv.gz").items():
        end = max(float(row["seconds"]) for row in of_run)
        parts = ([r for r in of_run if r["step"] == "1"], [r for r in of_run if r["step"] == "5"])
        late = [row for row in of_run if float(row["seconds"]) > end / 2]
        found[task, label].append(
            tuple([is_trivial(row) for row in part] for part in (*parts, late))
        )
        gone_on = {row["trial"] for row in of_run if row["step"] != "1"}
        trials[task, label].append((len({row["trial"] for row in of_run}), len(gone_on)))
    print(
        "trivial models, %: after 1 and 5 intervals, in the second half of the time; trials of a run, and those past one interval"
    )
    for (task, label), of_runs in found.items():
        shares = [100 * np.mean(np.concatenate(part)) for part in zip(*of_runs, strict=True)]
        begun, gone_on = np.mean(trials[task, label], axis=0)
        print(
            f"  {task:<24}{label:<28}"
            + "".join(f"{share:7.1f}" for share in shares)
            + f"{begun:8.0f}{gone_on:6.0f}"
        )


def last_models(folder: Path) -> None:
    """Print how many models an algorithm trains to the end over all runs of a task, and their mean scores."""
    every = list(rows(folder / "evaluations.csv.gz"))
    for task in dict.fromkeys(row["task"] for row in every):
        last = max(int(row["step"]) for row in every if row["task"] == task)
        names = [row["objective"] for row in rows(folder / "tasks.csv") if row["task"] == task]
        print(f"{task}: models after {last} steps, and the means of their {' and '.join(names)}")
        for label in dict.fromkeys(row["algorithm"] for row in every if row["task"] == task):
            models = [
                row
                for row in every
                if (row["task"], row["algorithm"], row["step"]) == (task, label, str(last))
            ]
            means = [np.mean([float(row[f"score.{name}"]) for row in models]) for name in names]
            print(f"  {label:<28}{len(models):4}" + "".join(f"{mean:7.3f}" for mean in means))


if __name__ == "__main__":
    leads()
    from_no_recall()
    other_runs()
    for name in (
        "tables-5-7-tabular",
        "figure-10-explore",
        "figure-11-tau",
        "figure-12-ranking",
        "figure-15-sequential",
    ):
        without_the_seed_of_the_sizes(TABULAR.parent / name)
    without_the_seed_of_the_sizes(QNEHVI)
    for measure in ("hypervolume", "test_hypervolume", "coverage"):
        print(f"{QNEHVI.name}, {measure}: p over all tasks, and the pairs in which MO-PBT is ahead")
        over_all((row for row in rows(QNEHVI / "runs.csv") if row[measure]), measure)
    click_tail()
    gaps()
    spaces()
    over_image_tasks()
    by_seed(CONSTRAINTS)
    by_seed(CONSTRAINTS, "test_hypervolume")
    for folder in (TABULAR, *IMAGES, CONSTRAINTS):
        if (folder / "evaluations.csv.gz").exists():
            trivial_models(folder)
        else:
            print(
                f"{folder.name}: shares of all models need evaluations.csv.gz, which is too large to be published"
            )
    for folder in IMAGES:
        if (folder / "evaluations.csv.gz").exists():
            last_models(folder)
