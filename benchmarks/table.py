"""Print one table of everything that benchmarks measured, or update the one in the README.

``python benchmarks/table.py [build/bench.json]`` prints all rows with their targets; the exit code
is 1 if a target is missed. ``--readme`` writes the rows that users ask about into README.md,
between two comments, from baselines/bench.json unless another file is named.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from measuring import FILE

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "baselines" / "bench.json"
README = ROOT / "README.md"
BEGIN = "<!-- benchmarks/table.py --readme writes this table -->"
END = "<!-- end of the table -->"
# What the README says about a row of a benchmark, and how its value is written.
QUESTIONS = {
    ("population", "Ray Tune PBT, reused actors / mopbt, vectorized"): (
        "32 small networks: time of Ray Tune's PBT, in that of `mopbt`",
        "{:.1f}x",
    ),
    ("population", "Syne Tune PBT, polling 0.1 s / mopbt, vectorized"): (
        "32 small networks: time of Syne Tune's PBT, in that of `mopbt`",
        "{:.1f}x",
    ),
    ("overhead", "workload as a task, 32 x 10, whole process / floor"): (
        "32 small networks: time on the pool engine, in that of a loop written by hand",
        "{:.2f}x",
    ),
    ("overhead", "empty member-interval on the pool engine, ms"): (
        "An interval of a member that does nothing, in a worker process",
        "{:.1f} ms",
    ),
    ("trial_cost", "mopbt, on disk: CPU time of a trial, ms"): (
        "CPU time of a trial that does nothing, journal and checkpoint on disk",
        "{:.1f} ms",
    ),
    ("trial_cost", "Optuna, on disk: CPU time of a trial, ms"): (
        "The same with Optuna, journal on disk",
        "{:.1f} ms",
    ),
    ("startup", "mopbt --help, seconds"): ("Start of the command line", "{:.2f} s"),
}


def all_rows(content):
    """Return lines of one table, and the names of the rows that miss their target."""
    lines = []
    missed = []
    for benchmark, entry in content["benchmarks"].items():
        for row in entry["rows"]:
            verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
            name = f"{benchmark}: {row['name']}"
            lines.append(f"{name:<92} {row['ratio']:>10.4g}  {row['target']:<8} {verdict}".rstrip())
            if row["met"] is False:
                missed.append(name)
    return lines, missed


def readme_table(content):
    """Return the table of the README as Markdown."""
    lines = ["| measured with `make bench` | value | target |", "|---|---|---|"]
    loads = []
    for (benchmark, name), (question, form) in QUESTIONS.items():
        entry = content["benchmarks"].get(benchmark, {"rows": []})
        for row in entry["rows"]:
            if row["name"] == name:
                lines.append(f"| {question} | {form.format(row['ratio'])} | {_target(row)} |")
                loads.append(entry["load"])
    machine = content["machine"]
    note = f"{machine['cores']} cores, Python {machine['python']}"
    if max(loads, default=0) > 0.5:
        note += f", on a busy machine (load {min(loads):.1f} to {max(loads):.1f})"
    return "\n".join([*lines, "", f"{note}."])


def _target(row):
    if not row["target"]:
        return ""
    return f"{row['target']}, {'met' if row['met'] else 'missed'}"


def with_table(text, content):
    """Return the text of the README with the present table."""
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if found is None:
        sys.exit(f"README.md has no table between {BEGIN!r} and {END!r}")
    table = f"{BEGIN}\n{readme_table(content)}\n{END}"
    return text[: found.start()] + table + text[found.end() :]


def main():
    """Print all rows, or update the README."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--readme", action="store_true", help="update the table in README.md")
    options = parser.parse_args()
    content = json.loads((options.file or (BASELINE if options.readme else FILE)).read_text())
    if options.readme:
        README.write_text(with_table(README.read_text(encoding="utf-8"), content), encoding="utf-8")
        return 0
    lines, missed = all_rows(content)
    print("\n".join(lines))
    met = sum(row["met"] is True for e in content["benchmarks"].values() for row in e["rows"])
    print(f"{len(lines)} rows; targets: {met} met, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
