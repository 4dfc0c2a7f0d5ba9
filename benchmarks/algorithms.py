"""All ten algorithms on the synthetic problems, in virtual time: the table and the figure of docs/algorithms.md.

Run it with ``python benchmarks/algorithms.py [--seeds 20]``; it needs the extras `bo` and `plot`. The protocol is the paper's: 16
workers, a population of 32, 50 intervals. Population based training and random search train to their end; MO-ASHA, BO-MO-ASHA and
qNEHVI get the time of MO-PBT; NSGA-II and ParEGO train 32 times to the end, and their time does not count. Figures are hypervolumes
in per cent of the best that any schedule of hyperparameters can reach, which these problems know.
"""

import argparse
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
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
from mopbt.tasks.synthetic import (
    Annealing,
    LateBloomers,
    Synthetic,
    ThreeSkills,
    TradeOff,
    TwoQuadratics,
)

DOCS = Path(__file__).parent.parent / "docs"
WORKERS, SECONDS = (
    16,
    100.0,
)  # a population of 32 on 16 workers takes two seconds for each of the 50 steps
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
BLUE, INK, FAINT = "#1d4f86", "#333333", "#bbbbbb"
BEGIN, END = "<!-- table: written by benchmarks/algorithms.py -->\n", "<!-- end of table -->\n"


def share_of_best(problem: Synthetic, name: str, seed: int) -> float:
    """Return what one run reaches, in per cent of the best hypervolume."""
    algorithm = ALGORITHMS[name]
    budget = (
        Budget(seconds=SECONDS) if algorithm.scheduler(_problem(problem)).needs_budget else Budget()
    )
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


def _problem(task: Synthetic):
    from mopbt.problem import problem_of

    return problem_of(task)


def measured(job: tuple[int, str, int]) -> tuple[tuple[int, str, int], float]:
    warnings.simplefilter("ignore")
    return job, share_of_best(PROBLEMS[job[0]], job[1], job[2])


def all_runs(seeds: int, file: Path) -> dict[tuple[int, str, int], float]:
    """Run what is not in the file yet, and return everything."""
    known = {}
    if file.exists():
        known = {
            (p, a, s): value for p, a, s, value in map(json.loads, file.read_text().splitlines())
        }
    jobs = [
        (p, a, s)
        for s in range(seeds)
        for p in range(len(PROBLEMS))
        for a in ALGORITHMS
        if (p, a, s) not in known
    ]
    with ProcessPoolExecutor() as pool, file.open("a") as lines:
        for job, value in pool.map(measured, jobs):
            known[job] = value
            lines.write(json.dumps([*job, value]) + "\n")
            lines.flush()
    return known


def table(values: dict[tuple[int, str], list[float]]) -> str:
    lines = [
        "| | " + " | ".join(f"`{type(p).__name__}`" for p in PROBLEMS) + " |",
        "|---|" + "---|" * len(PROBLEMS),
    ]
    best = [max(statistics.mean(values[i, a]) for a in ALGORITHMS) for i in range(len(PROBLEMS))]
    for algorithm in ALGORITHMS:
        cells = []
        for i in range(len(PROBLEMS)):
            mean, deviation = (
                statistics.mean(values[i, algorithm]),
                statistics.stdev(values[i, algorithm]),
            )
            cell = f"{mean:.1f} ± {deviation:.1f}"
            cells.append(f"**{cell}**" if mean == best[i] else cell)
        lines.append(f"| {algorithm} | " + " | ".join(cells) + " |")
    constant = [100 * p.best_hypervolume(constant=True) / p.best_hypervolume() for p in PROBLEMS]
    lines.append("| *best constants* | " + " | ".join(f"*{c:.1f}*" for c in constant) + " |")
    return "\n".join(lines) + "\n"


def draw(values: dict[tuple[int, str], list[float]], file: Path) -> None:
    figure, axes = plt.subplots(
        1, len(PROBLEMS), figsize=(13, 4.2), sharey=True, layout="constrained"
    )
    names = list(ALGORITHMS)[::-1]
    for i, (ax, problem) in enumerate(zip(axes, PROBLEMS, strict=True)):
        for y, name in enumerate(names):
            seen, ours = values[i, name], name == "MO-PBT"
            ax.plot(
                [min(seen), max(seen)],
                [y, y],
                color=BLUE if ours else FAINT,
                linewidth=5 if ours else 4,
                solid_capstyle="round",
            )
            ax.plot(
                statistics.mean(seen), y, "o", color=BLUE if ours else INK, markersize=6, zorder=3
            )
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
        "hypervolume, % of the best that any schedule reaches; dot: mean, bar: worst to best seed; dotted: best constants",
        fontsize=9,
    )
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("algorithms.jsonl"),
        help="keeps what is measured; run again to go on",
    )
    arguments = parser.parse_args()
    runs = all_runs(arguments.seeds, arguments.file)
    values = {
        (p, a): [runs[p, a, s] for s in range(arguments.seeds)]
        for p in range(len(PROBLEMS))
        for a in ALGORITHMS
    }
    made = table(values)
    print(made)
    draw(values, DOCS / "algorithms.png")
    page = DOCS / "algorithms.md"
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(before + BEGIN + made + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
