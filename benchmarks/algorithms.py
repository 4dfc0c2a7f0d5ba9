"""Compare all algorithms on the synthetic problems, for docs/explanation/algorithms.md.

Run it with ``python benchmarks/algorithms.py [--seeds 20]``; it needs the extras `bo` and `plot`.
The protocol is the paper's: 16 workers, a population of 32, 50 intervals, in virtual time.

- Population based training and random search train to their end.
- MO-ASHA, BO-MO-ASHA and qNEHVI get the time of MO-PBT.
- NSGA-II and ParEGO train 32 times to the end, and their time does not count.

Numbers are hypervolumes in percent of the best that any schedule of hyperparameters can reach,
which is known for these problems.
"""

import argparse
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from mopbt import Budget, SimulatedEngine, run
from mopbt.algorithms import (
    BOMOASHA,
    MOASHA,
    MOPBT,
    NSGA2,
    PBT,
    QNEHVI,
    Algorithm,
    MaxScalarizationPBT,
    ParEGO,
    RandomScalarizationPBT,
    RandomSearch,
)
from mopbt.problem import problem_of
from mopbt.tasks.synthetic import (
    Annealing,
    LateBloomers,
    Synthetic,
    ThreeSkills,
    TradeOff,
    TwoQuadratics,
)

DOCS = Path(__file__).parent.parent / "docs" / "explanation"
WORKERS = 16
# A population of 32 on 16 workers takes two seconds for each of the 50 steps.
SECONDS = 100.0
PROBLEMS: list[Synthetic] = [
    TwoQuadratics(),
    Annealing(),
    TradeOff(),
    ThreeSkills(),
    LateBloomers(),
]
ALGORITHMS: dict[str, Algorithm] = {
    "MO-PBT": MOPBT(),
    "random search": RandomSearch(),
    "PBT, objective 1": PBT(objective=0),
    "PBT, objective 2": PBT(objective=1),
    "PBT, random scalarization": RandomScalarizationPBT(),
    "PBT, max scalarization": MaxScalarizationPBT(),
    "MO-ASHA": MOASHA(),
    "BO-MO-ASHA": BOMOASHA(),
    "qNEHVI": QNEHVI(batch=WORKERS),
    "NSGA-II": NSGA2(),
    "ParEGO": ParEGO(),
}
BLUE = "#1d4f86"
INK = "#333333"
FAINT = "#bbbbbb"
BEGIN = "<!-- table: written by benchmarks/algorithms.py -->\n"
END = "<!-- end of table -->\n"

# Index of the problem, name of the algorithm and seed.
Run = tuple[int, str, int]


def share_of_best(problem: Synthetic, name: str, seed: int) -> float:
    """Return the hypervolume of one run in percent of the best."""
    algorithm = ALGORITHMS[name]
    needs_budget = algorithm.scheduler(problem_of(problem)).needs_budget
    budget = Budget(seconds=SECONDS) if needs_budget else Budget()
    results = run(
        problem,
        out=None,
        algorithm=algorithm,
        seed=seed,
        engine=SimulatedEngine(WORKERS),
        budget=budget,
        progress=False,
    )
    return 100 * results.hypervolume() / problem.best_hypervolume()


def execute(job: Run) -> tuple[Run, float]:
    """Execute one run; return its key and value."""
    warnings.simplefilter("ignore")
    return job, share_of_best(PROBLEMS[job[0]], job[1], job[2])


def execute_missing(seeds: int, file: Path) -> dict[Run, float]:
    """Execute the runs that the file lacks, and return the values of all runs."""
    known: dict[Run, float] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            *job, value = json.loads(line)
            known[tuple(job)] = value
    every = product(range(seeds), range(len(PROBLEMS)), ALGORITHMS)
    missing = [(p, a, s) for s, p, a in every if (p, a, s) not in known]
    with ProcessPoolExecutor() as pool, file.open("a") as lines:
        for job, value in pool.map(execute, missing):
            known[job] = value
            lines.write(json.dumps([*job, value]) + "\n")
            lines.flush()
    return known


def markdown_table(values: dict[tuple[int, str], list[float]]) -> str:
    """Return means and deviations as a Markdown table."""
    lines = [
        "| | " + " | ".join(f"`{type(p).__name__}`" for p in PROBLEMS) + " |",
        "|---|" + "---|" * len(PROBLEMS),
    ]
    best = [max(statistics.mean(values[i, a]) for a in ALGORITHMS) for i in range(len(PROBLEMS))]
    for algorithm in ALGORITHMS:
        cells = []
        for i in range(len(PROBLEMS)):
            mean = statistics.mean(values[i, algorithm])
            deviation = statistics.stdev(values[i, algorithm])
            cell = f"{mean:.1f} ± {deviation:.1f}"
            cells.append(f"**{cell}**" if mean == best[i] else cell)
        lines.append(f"| {algorithm} | " + " | ".join(cells) + " |")
    constant = [100 * p.best_hypervolume(constant=True) / p.best_hypervolume() for p in PROBLEMS]
    lines.append("| *best constants* | " + " | ".join(f"*{c:.1f}*" for c in constant) + " |")
    return "\n".join(lines) + "\n"


def draw(values: dict[tuple[int, str], list[float]], file: Path) -> None:
    """Draw mean, worst and best seed of each algorithm on each problem."""
    figure, axes = plt.subplots(
        1, len(PROBLEMS), figsize=(13, 4.2), sharey=True, layout="constrained"
    )
    names = list(ALGORITHMS)[::-1]
    for i, (ax, problem) in enumerate(zip(axes, PROBLEMS, strict=True)):
        for y, name in enumerate(names):
            seen = values[i, name]
            is_ours = name == "MO-PBT"
            bar = {"color": BLUE, "linewidth": 5} if is_ours else {"color": FAINT, "linewidth": 4}
            ax.plot([min(seen), max(seen)], [y, y], solid_capstyle="round", **bar)
            dot = BLUE if is_ours else INK
            ax.plot(statistics.mean(seen), y, "o", color=dot, markersize=6, zorder=3)
        constant = 100 * problem.best_hypervolume(constant=True) / problem.best_hypervolume()
        if constant < 99.9:
            ax.axvline(constant, color=INK, linewidth=0.8, linestyle=":")
        ax.set_title(type(problem).__name__, fontsize=11, color=INK)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(labelsize=9, colors=INK)
        ax.grid(axis="x", color="#eeeeee")
        ax.set_axisbelow(True)
    axes[0].set_yticks(range(len(names)), names)
    figure.supxlabel(
        "hypervolume, % of the best that any schedule reaches; dot: mean; "
        "bar: worst to best seed; dotted: best constants",
        fontsize=9,
    )
    figure.savefig(file, dpi=150)


def main() -> None:
    """Execute missing runs, print the table, and update the page and its figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("algorithms.jsonl"),
        help="file of the measured values; rerun the same command to resume",
    )
    arguments = parser.parse_args()
    runs = execute_missing(arguments.seeds, arguments.file)
    values = {
        (p, a): [runs[p, a, s] for s in range(arguments.seeds)]
        for p, a in product(range(len(PROBLEMS)), ALGORITHMS)
    }
    table = markdown_table(values)
    print(table)
    draw(values, DOCS / "algorithms.png")
    page = DOCS / "algorithms.md"
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(before + BEGIN + table + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
