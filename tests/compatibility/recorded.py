"""Record runs with this version of mopbt, for later versions to open, verify and resume.

Run ``python tests/compatibility/recorded.py`` before a release. It writes `<version>.tar.xz`, with
one run directory per case and a copy of their tasks, and `<version>.json`, with what reading
and resuming each run must give. The record of a released version is never replaced.
If resumed runs change on purpose, ``--resumed`` rewrites that part of the records of all versions.
"""

import argparse
import json
import os
import shlex
import shutil
import socket
import sys
import tarfile
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from command_line import mopbt_command  # noqa: E402
from compatibility.cases import CASES, INITIAL  # noqa: E402
from mopbt.version import __version__  # noqa: E402

# Runs contain absolute paths. They are recorded as below this one, which no machine has.
RECORDED_AT = "/mopbt/recorded"
HOST = "recorder"
VERSIONS = sorted(file.name.removesuffix(".tar.xz") for file in HERE.glob("*.tar.xz"))
EXHAUSTED = 3
TASKS = ("recorded_tasks.py", "recorded_networks.py")
# What runs refer to.
SHARED = (*TASKS, "complete", "stored")


def archive_of(version):
    return HERE / f"{version}.tar.xz"


def expectations_of(version):
    return HERE / f"{version}.json"


def hide_machine(place):
    """Keep the name of the machine and its directories out of records and tracebacks."""
    format_exc = traceback.format_exc

    def without_directories(*arguments):
        text = format_exc(*arguments).replace(str(place), RECORDED_AT)
        return text.replace(str(HERE.parent.parent), "/mopbt")

    traceback.format_exc = without_directories
    socket.gethostname = lambda: HOST


def record(place):
    """Record all cases below a directory; return what reading and resuming them gives."""
    for file in TASKS:
        shutil.copy(HERE / file, place)
    (place / "initial.json").write_text(json.dumps(INITIAL))
    read = {}
    for name, case in CASES.items():
        for command in case.record:
            execute(command, place)
        read[name] = summary(place, name)
        print(f"recorded {name}: {read[name]['state']}, {read[name]['intervals']} intervals")
    write_archive(place, archive_of(__version__))
    return {name: {"recorded": read[name]} for name in CASES}


def execute(command, place):
    """Execute a command of mopbt in a directory. A budget may be exhausted."""
    words = shlex.split(command)
    if words[0] == "damage":
        damage(place / words[1] / "journal.jsonl")
        return
    code = EXHAUSTED if "--budget-jobs" in words and "1000" not in words else 0
    mopbt_command(*words, cwd=place, code=code)


def damage(journal):
    """Change a character of a report in the middle of a journal."""
    lines = journal.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if n > 4 and "reports" in line)
    lines[number] = lines[number].replace("0.", "1.", 1)
    journal.write_text("".join(lines))


def summary(place, name):
    """Return what the command line says about a run, without paths and times."""
    shown = json.loads(mopbt_command("show", name, "--json", cwd=place).stdout)
    front = json.loads(mopbt_command("front", name, "--json", cwd=place).stdout)
    keys = ("task", "algorithm", "options", "state", "intervals", "failures", "hypervolume")
    return {key: shown.get(key) for key in keys} | {
        "front": [
            {key: point.get(key) for key in ("model", "trial", "step", "scores", "hp", "violation")}
            for point in front
        ]
    }


def resume(place, name):
    """Resume and extend a run as its case says; return its summary."""
    for command in CASES[name].resume:
        execute(command, place)
    found = summary(place, name)
    return {key: found[key] for key in ("state", "intervals", "failures", "hypervolume", "front")}


def write_archive(place, file):
    """Write all runs into an archive that says nothing about this machine."""

    def without_traces(entry):
        if entry.name.endswith(("/lock", ".pyc", "__pycache__")):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    replace_in_records(place, str(place), RECORDED_AT)
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(place.iterdir()):
            archive.add(path, path.name, filter=without_traces)
    replace_in_records(place, RECORDED_AT, str(place))


def replace_in_records(place, old, new):
    """Replace a directory in the files of runs that contain absolute paths."""
    for pattern in ("*/run.toml", "**/owner.json"):
        for path in place.glob(pattern):
            path.write_text(path.read_text().replace(old, new))


def extract(version, place, names=None):
    """Extract runs, by default all, as if they had been recorded in this directory."""
    with tarfile.open(archive_of(version)) as archive:
        members = [
            entry
            for entry in archive
            if names is None or entry.name.partition("/")[0] in {*names, *SHARED}
        ]
        archive.extractall(place, members, filter="data")
    replace_in_records(place, RECORDED_AT, str(place))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--resumed", action="store_true", help="only rewrite what resuming gives")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not options.resumed:
        if archive_of(__version__).exists():
            sys.exit(
                f"{archive_of(__version__).name} exists; delete it if {__version__} is not released"
            )
        with tempfile.TemporaryDirectory() as directory:
            hide_machine(Path(directory).resolve())
            write_expectations(__version__, record(Path(directory).resolve()))
    for version in sorted({*VERSIONS, __version__}):
        expected = json.loads(expectations_of(version).read_text())
        with tempfile.TemporaryDirectory() as directory:
            extract(version, Path(directory).resolve())
            for name in expected:
                expected[name]["resumed"] = resume(Path(directory).resolve(), name)
                print(f"resumed {name}")
        write_expectations(version, expected)


def write_expectations(version, expected):
    """Write one line per case."""
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in expected.items()]
    expectations_of(version).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
