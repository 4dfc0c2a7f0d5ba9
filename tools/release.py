"""Check the distributions in dist/ as a user would meet them, then tag the release.

Run ``make release``, which builds dist/ first, or ``make release ARGS=--no-tag``. The wheel is
installed into clean environments, one at a time: with no extra, with each extra and with all. In
each one, the package is imported and the command line trains a shipped task. The README is
executed, a typed program is checked with mypy, and the unpacked sdist passes its own fast tests.
``--only NAME`` repeats single checks: ``none``, ``all``, ``sdist`` or the name of an extra.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from readme import execute_readme, extras  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = tuple(PROJECT["project"]["optional-dependencies"])
MODULES = {
    "lightning": "mopbt.integrations.lightning",
    "sklearn": "mopbt.integrations.sklearn",
    "torch": "mopbt.torch",
    "transformers": "mopbt.integrations.transformers",
}
# Every environment executes the commands of `none`, then its own.
COMMANDS = {
    "none": [
        "mopbt doctor",
        "mopbt run trade-off --population 4 --engine pool --workers 1 --quiet --out runs/first",
        "mopbt verify runs/first",
        "mopbt report runs/first",
    ],
    "bo": ["mopbt run toy --algorithm qnehvi -o trainings=6 --engine local --quiet --out runs/bo"],
    "demo": ["mopbt run adult-fairness --scale smoke --quiet --out runs/demo"],
    "integrations": ["python -c 'import jax, optax, plotly, mopbt.integrations.optuna'"],
    "mlflow": ["mopbt export runs/first mlflow --to mlflow"],
    "optuna": ["mopbt export runs/first sqlite:///study.db --to optuna"],
    "pandas": [
        "python -c 'import mopbt; print(mopbt.Results.open(\"runs/first\").to_pandas())'",
    ],
    "ray": [
        "mopbt run toy --population 4 --engine ray --workers 1 --quiet --out runs/ray",
        "python -c 'import mopbt.integrations.ray_tune'",
    ],
    "sklearn": ["mopbt run adult-linear --population 2 --engine local --quiet --out runs/linear"],
    "tensorboard": ["mopbt export runs/first logs --to tensorboard"],
    "wandb": ["mopbt export runs/first wandb-offline --to wandb"],
}
# Tests and packages of the project must not hide those of the wheel.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# uv does not read the settings of pip.
if "PIP_FIND_LINKS" in CLEAN:
    CLEAN.setdefault("UV_FIND_LINKS", CLEAN["PIP_FIND_LINKS"])


def main() -> None:
    """Execute the checks, print their times, and tag."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-tag", action="store_true", help="check only, also with changes")
    parser.add_argument("--only", nargs="+", choices=["none", *EXTRAS, "all", "sdist"])
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")

    options = parser.parse_args()
    tag = not options.no_tag and not options.only
    version = check_version(tag=tag)
    wheel, sdist = find_distributions(version)
    names = options.only or ["none", *EXTRAS, "all", "sdist"]
    started = time.monotonic()
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"mopbt-release-{name}-") as directory:
            if name == "sdist":
                check_sdist(sdist, Path(directory), options.constraints)
            else:
                check_wheel(wheel, name, Path(directory), options.constraints)
        print(f"{name}: ok, {time.monotonic() - began:.0f} s", flush=True)
    print(f"mopbt {version}: {len(names)} checks in {time.monotonic() - started:.0f} s")
    if tag:
        execute(["git", "tag", "--annotate", f"v{version}", "--message", f"mopbt {version}"], ROOT)
        print(f"tagged v{version}; publish with: git push origin v{version}")


def check_version(*, tag: bool) -> str:
    """Return the version, after checking that all files agree and that it can be tagged."""
    code = (ROOT / "src" / "mopbt" / "version.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.+)"', code)[1]
    for file, pattern in (("CITATION.cff", r"^version: (.+)$"), ("CHANGELOG.md", r"^## (.+)$")):
        found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[1]
        if found.split(" (")[0] != version:
            sys.exit(f"{file} is about version {found!r}, but the package has {version}: edit it")
    if tag:
        changes = execute(["git", "status", "--porcelain"], ROOT)
        if changes:
            sys.exit(f"the tree has changes; commit them or use --no-tag:\n{changes}")
        if execute(["git", "tag", "--list", f"v{version}"], ROOT):
            sys.exit(f"v{version} is tagged already; increase the version or use --no-tag")
    return version


def find_distributions(version: str) -> tuple[Path, Path]:
    """Return the wheel and the sdist of this version."""
    wheel = ROOT / "dist" / f"mopbt-{version}-py3-none-any.whl"
    sdist = ROOT / "dist" / f"mopbt-{version}.tar.gz"
    for file in (wheel, sdist):
        if not file.is_file():
            sys.exit(f"{file.relative_to(ROOT)} is missing: run `make dist`")
    return wheel, sdist


def check_wheel(wheel: Path, name: str, directory: Path, constraints: Path) -> None:
    """Install the wheel with an extra, with none or with all, and use it."""
    chosen = {"none": "", "all": f"[{','.join(EXTRAS)}]"}.get(name, f"[{name}]")
    path = create_environment(directory / "venv", constraints, [f"{wheel}{chosen}"])
    place = directory / "place"
    place.mkdir()
    environment = CLEAN | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    modules = MODULES.values() if name == "all" else [MODULES.get(name, "mopbt.testing")]
    commands = [*COMMANDS["none"], *(f"python -c 'import {module}'" for module in modules)]
    if name == "all":
        commands += [line for extra in EXTRAS for line in COMMANDS.get(extra, [])]
    elif name != "none":
        commands += COMMANDS.get(name, [])
    for command in commands:
        execute(shlex.split(command), place, environment)
    if name in ("none", "all"):
        program = shutil.copy(ROOT / "tools" / "typed_program.py", place)
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(directory / "mypy")]
        execute([*mypy, "--python-executable", str(path / "python"), program], place, environment)
        execute(["python", program], place, environment)
    if name in (extras(), "all"):
        (directory / "readme").mkdir()
        execute_readme(directory / "readme", path)


def check_sdist(sdist: Path, directory: Path, constraints: Path) -> None:
    """Unpack the sdist, install it with what its tests need, and run its fast tests."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.glob("mopbt-*")
    tested = re.search(r"^TESTED := (.+)$", (tree / "Makefile").read_text(), re.MULTILINE)[1]
    packages = [f"{tree}[{tested}]", "--group", f"{tree / 'pyproject.toml'}:test"]
    path = create_environment(directory / "venv", constraints, packages)
    environment = CLEAN | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    by_file = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    tests = ["python", "-m", "pytest", "-q", "-m", "not slow", *by_file]
    print(execute(tests, tree, environment).splitlines()[-1])


def create_environment(directory: Path, constraints: Path, packages: list[str]) -> Path:
    """Install packages into a new environment and return the directory of its programs."""
    path = directory / "bin"
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if uv:
        execute([uv, "venv", "--quiet", "--python", sys.executable, str(directory)], ROOT)
        install = [uv, "pip", "install", "--quiet", "--python", str(path / "python")]
    else:
        execute([sys.executable, "-m", "venv", str(directory)], ROOT)
        install = [str(path / "python"), "-m", "pip", "install", "--quiet"]
        # The pip of old Pythons does not read dependency groups.
        execute([*install, "pip>=25.1"], ROOT)
    execute([*install, "--constraint", str(constraints), *packages], ROOT, CLEAN)
    return path


def execute(command: list[str], place: Path, environment: dict[str, str] | None = None) -> str:
    """Execute a command and return what it printed, or end with it."""
    environment = environment or CLEAN
    # subprocess looks for the program in the PATH of this process, not in that of the command.
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=place, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        printed = (done.stdout + done.stderr)[-8000:]
        sys.exit(f"{printed}\nexit code {done.returncode}: {shlex.join(command)}")
    return done.stdout


if __name__ == "__main__":
    main()
