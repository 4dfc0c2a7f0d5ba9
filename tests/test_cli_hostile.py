"""Odd names, odd runs, odd signals: the command line stays correct."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import mopbt
from mopbt.cli import main
from mopbt.startup import is_command
from mopbt.tasks.toy import ToyTask


@pytest.fixture
def says(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command in this process and returns code, output, errors."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(command):
        monkeypatch.setattr(sys, "argv", ["mopbt", *shlex.split(command)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


class BracketToy(ToyTask):
    @property
    def space(self):
        return {**super().space, "form": mopbt.Categorical(["[/INST]", "[bold]"])}

    def train(self, model, hp, begin, end, seed):
        assert hp["form"] in ("[/INST]", "[bold]")
        return super().train(model, hp, begin, end, seed)


def make_run(out):
    mopbt.run(BracketToy(steps=4), out=out, population=4, engine="local", progress=False)


def test_square_brackets_are_printed_as_they_are(says, tmp_path):
    make_run(tmp_path / "runs" / "[v2]")
    for command in ("show", "front", "pick"):
        code, printed, errors = says(f"{command} 'runs/[v2]'")
        assert (code, errors) == (0, "")
        assert "runs/[v2]" in printed or command == "front"
    assert "[/INST]" in says("front 'runs/[v2]'")[1]
    assert "runs/[v2]" in says("list")[1]


def test_names_send_no_commands_to_the_terminal(says, tmp_path):
    make_run(tmp_path / "run")
    settings = tmp_path / "run" / "run.toml"
    text = settings.read_text().replace("[/INST]", "\\u001b[2J" + "a" * 100_000)
    settings.write_text(text.replace('name = "toy"', 'name = "\\u001b]0;title\\u0007"'))
    for command in ("show run", "front run", "list", "show missing\x1b[2J"):
        printed = "".join(says(command)[1:])
        assert "\x1b" not in printed
        assert "\x07" not in printed
    assert len(says("show run")[1]) < 50_000


def test_one_odd_run_does_not_hide_the_others(says, tmp_path):
    toy = {"population": 4, "engine": "local", "progress": False}
    mopbt.run(ToyTask(steps=4), out=tmp_path / "runs" / "good", **toy)
    for name in ("config", "pipe", "unreadable", "folder"):
        shutil.copytree(tmp_path / "runs" / "good", tmp_path / "runs" / name)
    config = tmp_path / "runs" / "config" / "run.toml"
    # Positions in the journal are then out of range.
    shrunk = "".join(
        "n = 2\n" if line.startswith("n = ") else line
        for line in config.read_text().splitlines(keepends=True)
    )
    assert shrunk != config.read_text()
    config.write_text(shrunk)
    (tmp_path / "runs" / "pipe" / "journal.jsonl").unlink()
    os.mkfifo(tmp_path / "runs" / "pipe" / "journal.jsonl")
    (tmp_path / "runs" / "unreadable" / "lock").unlink()
    os.mkfifo(tmp_path / "runs" / "unreadable" / "lock")
    (tmp_path / "runs" / "folder" / "journal.jsonl").unlink()
    (tmp_path / "runs" / "folder" / "journal.jsonl").mkdir()
    code, printed, _ = says("list --json")
    states = {row["run"].rpartition("/")[2]: row["state"] for row in json.loads(printed)}
    assert code == 0
    assert states.pop("good") == "done"
    assert len(states) == 4
    assert all(state.startswith("unreadable: ") for state in states.values())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\nn = ", "\nn = 100000000 #", "`n` must be at most 1,000,000, got 100000000"),
        ("population = ", "population = 1000000000 #", "at most 10,000,000"),
    ],
)
def test_small_settings_that_would_need_much_memory_are_refused(says, tmp_path, old, new, said):
    assert says("run toy --population 4 --engine local --quiet --out run")[0] == 0
    settings = tmp_path / "run" / "run.toml"
    settings.write_text(settings.read_text().replace(old, new, 1))
    code, _, errors = says("resume run" if old == "population = " else "show run")
    assert code in (1, 2)
    assert said in errors


def test_more_seeds_than_anyone_runs_are_refused(says, tmp_path):
    text = 'name = "x"\nseeds = 100000000\ntasks = ["toy"]\n[algorithms]\na = { name = "mo-pbt" }\n'
    (tmp_path / "experiment.toml").write_text(text)
    code, _, errors = says("compare experiment.toml --only-report --out out")
    assert code == 2
    assert "`seeds` must be at most 100,000, got 100000000" in errors


def test_unfinished_files_are_counted(says, tmp_path):
    make_run(tmp_path / "run")
    before = json.loads(says("show run --json")[1])
    (tmp_path / "run" / "checkpoints" / "3.ckpt.77.tmp").write_bytes(b"x" * 1000)
    after = json.loads(says("show run --json")[1])
    assert after["unfinished"] == 1
    assert after["bytes"] == before["bytes"] + 1000


def test_a_task_inside_a_run_is_executed_only_if_it_is_trusted(says, tmp_path):
    code = "from mopbt.tasks.toy import ToyTask\ntask = ToyTask(steps=4)\n"
    (tmp_path / "to_trust.py").write_text(code)
    start = "run to_trust.py:task --population 4 --engine local --budget-jobs 4 --quiet --out run"
    assert says(start)[0] == 3
    (tmp_path / "run" / "evil.py").write_text("raise SystemExit(99)\n" + code)
    settings = tmp_path / "run" / "run.toml"
    text = settings.read_text()
    own = next(line for line in text.splitlines() if line.startswith("task_reference"))
    evil = f'task_reference = "{tmp_path}/run/evil.py:task"'
    settings.write_text(text.replace(own, evil))
    for command in ("resume run --quiet", "replay run 0", "evaluate run"):
        code, _, errors = says(command)
        assert code == 2
        assert "inside the run itself" in errors
        assert "--trust" in errors
    (tmp_path / "run" / "evil.py").write_text((tmp_path / "to_trust.py").read_text())
    assert says("resume run --quiet --trust")[0] == 0


@pytest.mark.parametrize("package", ["numpy", "typer"])
def test_ctrl_c_during_the_imports_ends_quietly(tmp_path, package):
    """A package in place of a real one sends the signal while it is imported."""
    code = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    (tmp_path / f"{package}.py").write_text(code)
    source = os.path.dirname(os.path.dirname(mopbt.__file__))
    ended = subprocess.run(
        [sys.executable, "-m", "mopbt", "list"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_only_the_command_handles_ctrl_c_from_its_start():
    for arguments in (["python", "-m", "mopbt", "list"], ["python", "-B", "/bin/mopbt", "run"]):
        assert is_command(arguments)
    for arguments in (["python"], ["python", "-c", "import mopbt"], ["python", "mopbt/train.py"]):
        assert not is_command(arguments)
    assert not is_command(["python", "-m", "pytest", "mopbt"])


@pytest.mark.slow
def test_three_interrupts_end_with_130(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "from mopbt.tasks.toy import ToyTask\n"
        "class Slow(ToyTask):\n"
        "    def train(self, model, hp, begin, end, seed):\n"
        "        try:\n"
        "            print('training', flush=True)\n"
        "            time.sleep(60)\n"
        "        finally:\n"
        "            time.sleep(60)\n"
        "task = Slow()\n"
    )
    command = [sys.executable, "-m", "mopbt", "run", "slow.py:task", "--engine", "local"]
    with subprocess.Popen(
        [*command, "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "training\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        errors = process.communicate(timeout=20)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "press Ctrl-C again" in errors
