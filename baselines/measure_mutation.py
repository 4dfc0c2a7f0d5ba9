"""Measure which share of small faults in the core the tests notice, and compare with the baseline.

Run ``python baselines/measure_mutation.py [target ...]``. mutmut changes one expression at a time
in copies of the sources below ``build/mutation`` and runs the tests that call the function. A
target is a row of `TARGETS`. The exit code is 1 if a score fell by more than the tolerance.

A sample of `--sample` mutants per target is tested, those whose names have the smallest hashes with
`--seed`, so that a repeated measurement takes the same ones; 0 takes all. An interrupted
measurement resumes where it stopped, unless sources or tests have changed. A mutant is killed if a
test fails, crashes or runs out of time. It survives if all tests pass, or if none calls its
function. Code outside of functions is not mutated.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "baselines" / "mutation.json"
BUILD = ROOT / "build" / "mutation"
TOLERANCE = 5.0  # points: two standard errors of a sample of 80 with 95 % killed
SURVIVED = (0, 5, 33)  # exit codes of tests in mutmut: all pass, none found, none to run
UNTESTED = 33
# Slow tests would take hours.
OPTIONS = ["--hypothesis-seed=0", "-p", "no:cacheprovider", "-m", "not slow"]
FAILED = (1, 3)


@dataclass(frozen=True)
class Target:
    """Sources to mutate, as patterns, and the tests that should notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


# The one place to change when modules or tests are renamed.
TARGETS = {
    "stores": Target(("src/mopbt/stores/*",), ("tests/stores", "tests/test_repair.py")),
    "filesystem": Target(
        ("src/mopbt/filesystem.py",),
        ("tests/test_filesystem.py", "tests/attack/test_attack.py", "tests/stores"),
    ),
    "state": Target(("src/mopbt/state.py",), ("tests/test_state.py",)),
    "history": Target(("src/mopbt/history.py",), ("tests/test_history.py",)),
    "schedulers": Target(
        ("src/mopbt/schedulers/*",), ("tests/schedulers", "tests/test_successive_halving.py")
    ),
    "ranking": Target(("src/mopbt/ranking.py",), ("tests/test_ranking.py",)),
}


class Project:
    """A copy of the sources and tests in which mutmut works on one target."""

    def __init__(self, name: str) -> None:
        self.target = TARGETS[name]
        self.folder = BUILD / name
        self.mutants = self.folder / "mutants"

    def prepare(self) -> None:
        """Copy the tree and let mutmut make mutants, unless that was done with the same files."""
        current = fingerprint(self._settings())
        stamp = self.folder / "fingerprint"
        if stamp.exists() and stamp.read_text() == current:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for part in ("src", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / part, self.folder / part, ignore=ignored)
        project = (ROOT / "pyproject.toml").read_text()
        (self.folder / "pyproject.toml").write_text(project + self._settings())
        shutil.copy(ROOT / "README.md", self.folder)
        # mutmut has no command that makes mutants and finds their tests without running any.
        # Asked for a mutant that does not exist it does both, then stops.
        done = self.mutmut("run", "none", check=False)
        if not (self.mutants / "mutmut-stats.json").exists():
            raise SystemExit(f"mutmut failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        stamp.write_text(current)

    def _settings(self) -> str:
        settings = {
            "source_paths": ["src/"],
            "only_mutate": list(self.target.sources),
            "pytest_add_cli_args": OPTIONS,
            "pytest_add_cli_args_test_selection": list(self.target.tests),
            "also_copy": ["README.md"],
            "process_isolation": "forkserver",
            "use_git_change_detection": False,
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        return "\n[tool.mutmut]\n" + "".join(lines)

    def mutmut(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of mutmut; programs that tests start import the mutated package too."""
        environment = dict(os.environ)
        mutated = self.mutants / "src"
        if mutated.exists():  # Python would remember that it did not exist and never look again.
            environment["PYTHONPATH"] = str(mutated)
        command = [sys.executable, "-m", "mutmut", *arguments]
        options = {"cwd": self.folder, "env": environment, "capture_output": True, "text": True}
        return subprocess.run(command, check=check, **options)

    def results(self) -> dict[str, int | None]:
        """Return the exit code of each mutant's tests, None where they have not run."""
        codes: dict[str, int | None] = {}
        for file in sorted(self.mutants.rglob("*.meta")):
            codes |= json.loads(file.read_text())["exit_code_by_key"]
        stats = json.loads((self.mutants / "mutmut-stats.json").read_text())
        tested = stats["tests_by_mangled_function_name"]
        for name in codes:
            if not tested.get(name.rpartition("__mutmut_")[0]):
                codes[name] = UNTESTED
        return codes

    def difference(self, mutant: str) -> list[str]:
        """Return the lines that a mutant changes, before and after."""
        lines = self.mutmut("show", mutant).stdout.splitlines()
        return [line for line in lines if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def fingerprint(settings: str) -> str:
    """Return a hash of sources, tests and settings, on which results depend."""
    digest = hashlib.sha256(settings.encode())
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for file in [*sorted(files), ROOT / "pyproject.toml"]:
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def chosen(names: list[str], size: int, seed: int) -> list[str]:
    """Return the names in the sample."""

    def place(name: str) -> str:
        return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()

    return sorted(names, key=place)[: size or None]


def measure(name: str, size: int, seed: int, workers: int) -> dict[str, Any]:
    """Test a sample of a target's mutants and return the counts and the survivors."""
    project = Project(name)
    project.prepare()
    codes = project.results()
    sample = chosen(sorted(codes), size, seed)
    left = [mutant for mutant in sample if codes[mutant] is None]
    print(f"{name}: {len(sample)} of {len(codes)} mutants, {len(left)} to test", flush=True)
    if left:
        project.mutmut("run", "--max-children", str(workers), *left)
    codes = project.results()
    unknown = [mutant for mutant in sample if codes[mutant] is None]
    if unknown:
        raise SystemExit(f"mutmut returned no result for {unknown[0]}")
    survivors = [mutant for mutant in sample if codes[mutant] in SURVIVED]
    killed = len(sample) - len(survivors)
    return {
        "score": round(100 * killed / len(sample), 1),
        "killed": killed,
        "tested": len(sample),
        "mutants": len(codes),
        "untested": sum(codes[mutant] == UNTESTED for mutant in sample),
        "other_than_test_failure": sum(codes[m] not in (*FAILED, *SURVIVED) for m in sample),
        "sample": size,
        "seed": seed,
        "modules": by_module(sample, survivors),
        "survivors": {mutant: project.difference(mutant) for mutant in sorted(survivors)},
    }


def by_module(sample: list[str], survivors: list[str]) -> dict[str, str]:
    """Return killed and tested mutants of each module."""
    modules: dict[str, list[str]] = {}
    for mutant in sample:
        modules.setdefault(mutant.rpartition(".")[0], []).append(mutant)
    return {
        module: f"{sum(mutant not in survivors for mutant in mutants)}/{len(mutants)}"
        for module, mutants in sorted(modules.items())
    }


def main() -> int:
    """Measure, print the table, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--record", action="store_true", help="write the baseline")
    parser.add_argument("--sample", type=int, default=80, help="mutants per target, 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known: {', '.join(TARGETS)}")
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found, fell = {}, []
    for name in options.targets or TARGETS:
        counts = measure(name, options.sample, options.seed, options.workers)
        found[name] = counts
        before = records.get(name, {}).get("score", counts["score"])
        mark = ""
        if counts["score"] < before - TOLERANCE:
            mark = "  FELL"
            fell.append(name)
        scores = f"recorded {before:.1f}, now {counts['score']:.1f}"
        killed = f"{counts['killed']}/{counts['tested']} killed"
        print(f"{name}: {scores}, {killed}{mark}", flush=True)
    file = RECORD if options.record else BUILD / "mutation.json"
    file.write_text(json.dumps({**records, **found}, indent=2) + "\n")
    print(f"the survivors are in {file.relative_to(ROOT)}")
    return 1 if fell and not options.record else 0


if __name__ == "__main__":
    sys.exit(main())
