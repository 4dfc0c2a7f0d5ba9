"""Without an extra, mopbt works as far as it can and names what is missing."""

import subprocess
import sys

import pytest

from lanes import slow_except

EXTRAS = ("torch", "sklearn", "matplotlib", "pandas", "ray", "botorch", "lightning", "optuna")
BLOCK = f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"


def execute(program, cwd):
    """Execute a program in which no optional package can be imported."""
    command = [sys.executable, "-c", BLOCK + program]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def command_line(*arguments):
    return f"sys.argv = {['mopbt', *arguments]}\nfrom mopbt.cli import main\nmain()"


PROGRAMS = [
    ("import mopbt.torch", "torch"),
    ("from mopbt.torch.task import TorchTask", "torch"),
    ("import mopbt.integrations.sklearn", "sklearn"),
    ("import mopbt.integrations.lightning", "lightning"),
    (command_line("run", "adult-fairness", "--scale", "smoke"), "sklearn,torch"),
    (command_line("run", "cifar10-robustness", "--scale", "smoke"), "torch"),
    (command_line("run", "adult-linear"), "sklearn"),
    (command_line("run", "toy", "--algorithm", "qnehvi", "--engine", "local"), "bo"),
    (command_line("run", "toy", "--engine", "ray"), "ray"),
]


@pytest.mark.parametrize(("program", "extra"), slow_except([PROGRAMS[0], PROGRAMS[4]], PROGRAMS))
def test_a_missing_extra_is_named_with_its_command(program, extra, tmp_path):
    done = execute(program, tmp_path)
    assert done.returncode == 1
    assert f"pip install 'mopbt[{extra}]'" in done.stderr
    assert not list(tmp_path.rglob("journal.jsonl"))


@pytest.mark.slow
def test_the_first_command_of_the_help_works_without_extras(tmp_path):
    said = execute(command_line("--help"), tmp_path).stdout
    first = said.partition("Start with: mopbt ")[2].partition("\n")[0].split()
    done = execute(command_line(*first), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "models on the front" in done.stdout
    for command in ("tasks", "algorithms"):
        assert execute(command_line(command), tmp_path).returncode == 0


def test_a_front_is_read_without_extras(tmp_path):
    program = command_line(
        *("run", "toy", "--population", "4", "--engine", "local", "--quiet", "--out", "run")
    )
    assert "models on the front" in execute(program, tmp_path).stdout
