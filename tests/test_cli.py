import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from command_line import mopbt_command
from mopbt import Results, __version__
from mopbt.cli import app
from mopbt.cli.options import BudgetOptions, EngineOptions, ResourceOptions, TaskOptions

TESTS = str(Path(__file__).parent)


def mopbt_in_a_process(*arguments, cwd):
    """Run a command in a process of its own and return what it printed."""
    program = [sys.executable, "-m", "mopbt", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(program, cwd=cwd, check=True, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Create a directory with one finished run of the toy task in runs/toy."""
    place = tmp_path_factory.mktemp("cli")
    options = ("--out", "runs/toy", "--population", 6, "--engine", "local", "--quiet")
    mopbt_command("run", "toy", *options, cwd=place)
    return place


def test_run_prints_the_front_and_where_the_models_are(tmp_path):
    done = mopbt_in_a_process("run", "toy", "--population", 6, "--out", "here", cwd=tmp_path)
    assert "near ↑" in done.stdout
    assert "models on the front" in done.stdout
    assert "The models are in here/checkpoints; `mopbt front here` lists them all." in done.stdout
    assert "generation 10/10 | 60/60 intervals" in done.stderr
    assert len(Results.open(tmp_path / "here")) == 60


def options_of(command):
    """Return the options of a command by name: how they are written, and what they mean."""
    parameters = get_command(app).commands[command].params
    return {p.name: (p.opts, p.help, p.default) for p in parameters}


@pytest.mark.parametrize("command", ["plan", "resume"])
def test_commands_that_train_share_their_options(command):
    run = options_of("run")
    own = options_of(command)
    shared = [*fields(EngineOptions), *fields(ResourceOptions)]
    shared += fields(TaskOptions if command == "plan" else BudgetOptions)
    names = {field.name for field in shared}
    assert names <= own.keys()
    assert {name: own[name] for name in names} == {name: run[name] for name in names}


def test_the_same_command_resumes(tmp_path):
    command = ["run", "toy", "--population", 6, "--engine", "local"]
    stopped = mopbt_command(*command, "--budget-jobs", 7, cwd=tmp_path, code=3)
    assert "after 7 intervals" in stopped.stderr
    assert "raise the budget" in stopped.stderr
    run = tmp_path / "runs" / "toy" / "mo-pbt-seed0"  # the default of --out
    assert len(Results.open(run)) == 7
    assert "a new run" not in mopbt_command(*command, cwd=tmp_path).stderr
    assert len(Results.open(run)) == 60
    # A run that is already complete tells how to start a new one.
    assert "a new run" in mopbt_command(*command, cwd=tmp_path).stderr


@pytest.mark.slow
def test_a_run_is_tracked_while_it_executes(tmp_path):
    options = ("--out", "run", "--population", 4, "--engine", "local", "--quiet")
    places = ("--track", "tensorboard=logs/tb", "--track", "mlflow=logs/mlflow")
    mopbt_in_a_process("run", "toy", *options, *places, cwd=tmp_path)
    written = json.loads((tmp_path / "logs" / "tb" / "mopbt.json").read_text())
    assert written["logged"] == 40
    assert (tmp_path / "logs" / "mlflow" / "mlflow.db").is_file()


def test_resume_needs_nothing_but_the_directory(tmp_path):
    mopbt_command(
        "run",
        "toy",
        "--population",
        6,
        "--engine",
        "local",
        "--budget-total-steps",
        20,
        "-o",
        "fraction=0.5",
        cwd=tmp_path,
        code=3,
    )
    done = mopbt_command(
        "resume", "runs/toy/mo-pbt-seed0", "--engine", "local", "--json", cwd=tmp_path
    )
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "done"
    assert answer["intervals"] == 60
    assert answer["options"]["fraction"] == 0.5
    assert Path(tmp_path, answer["front"][0]["checkpoint"]).is_file()


def test_repair_of_a_damaged_line(tmp_path):
    options = ("--out", "runs/toy", "--population", 6, "--engine", "local", "--quiet")
    mopbt_command("run", "toy", *options, cwd=tmp_path)
    journal = tmp_path / "runs" / "toy" / "journal.jsonl"
    records = Results.open(tmp_path / "runs" / "toy").records()
    donor = next(
        record["model"]
        for record in records
        if sum(heir["start"] == record["model"] for heir in records) > 1
    )
    lines = journal.read_bytes().splitlines(keepends=True)
    reported = f'"reports":[{{"job":{donor},'.encode()
    damaged = [line.replace(b'"', b"?", 1) if reported in line else line for line in lines]
    assert damaged != lines
    journal.write_bytes(b"".join(damaged))
    refused = mopbt_command("resume", "runs/toy", cwd=tmp_path, code=1)
    assert "is damaged" in refused.stderr
    assert "runs/toy --repair" in refused.stderr
    mopbt_command("resume", "runs/toy", "--repair", "--engine", "local", cwd=tmp_path)
    results = Results.open(tmp_path / "runs" / "toy")
    assert len(results) == 60
    assert list(results.failures) == [donor]
    assert all(results.load(point) for point in results.front())
    assert (tmp_path / "runs" / "toy" / "journal.damaged-1").exists()
    heirs = [int(record["model"]) for record in results.records() if record["start"] == donor]
    assert len(heirs) > 1
    assert all(
        "lost" in mopbt_command("lineage", "runs/toy", heir, cwd=tmp_path).stdout for heir in heirs
    )


def test_show(place):
    text = mopbt_command("show", "runs/toy", cwd=place).stdout
    for piece in ("mo-pbt", "near max, far max", "population 6", "hypervolume", "intervals"):
        assert piece in text
    data = json.loads(mopbt_command("show", "runs/toy", "--json", cwd=place).stdout)
    assert data["intervals"] == 60
    assert data["failures"] == 0
    assert data["state"] == "done"
    assert data["intervals_in_all"] == 60
    assert data["best"]["far"] <= 1


def test_front_lineage_and_list(place):
    points = json.loads(mopbt_command("front", "runs/toy", "--json", cwd=place).stdout)
    results = Results.open(place / "runs" / "toy")
    assert [p["model"] for p in points] == [p.model for p in results.front()]
    assert (
        f"{len(points)} models on the front" in mopbt_command("front", "runs/toy", cwd=place).stdout
    )
    line = json.loads(
        mopbt_command("lineage", "runs/toy", points[0]["model"], "--json", cwd=place).stdout
    )
    assert line[-1]["model"] == points[0]["model"]
    assert line[0]["begin"] == 0
    text = mopbt_command("lineage", "runs/toy", line[-1]["model"], cwd=place).stdout
    assert text.splitlines()[0].split() == [
        "steps",
        "model",
        "trial",
        "near",
        "far",
        "weight",
        "lr",
    ]
    assert "done" in mopbt_command("list", cwd=place).stdout
    (row,) = json.loads(mopbt_command("list", "runs", "--json", cwd=place).stdout)
    assert (row["task"], row["intervals"]) == ("toy", 60)


def test_front_draws_a_picture(place):
    mopbt_command("front", "runs/toy", "--plot", "front.png", cwd=place)
    assert (place / "front.png").read_bytes().startswith(b"\x89PNG")


def test_front_compares_a_run_with_another(place):
    mopbt_command(
        "run",
        "toy",
        "--algorithm",
        "random-search",
        "--population",
        6,
        "--engine",
        "local",
        "--quiet",
        "--out",
        "other",
        cwd=place,
    )
    text = mopbt_command(
        "front", "runs/toy", "--against", "other", "--plot", "both.png", cwd=place
    ).stdout
    lines, volumes = text.splitlines(), re.findall(r"hypervolume:? (?:mo-pbt )?([\d.]+)", text)
    # The first is the hypervolume of this run alone, the second that in the comparison.
    assert volumes[0].rstrip(".") == volumes[1]
    assert [line.split()[0] for line in lines if ": mo-pbt" in line or "dominated:" in line][
        :2
    ] == ["hypervolume:", "dominated:"]
    assert (place / "both.png").read_bytes().startswith(b"\x89PNG")


def test_list_has_a_hypervolume_only_where_the_task_names_its_reference(tmp_path):
    (tmp_path / "named.py").write_text(
        "from mopbt.tasks.toy import ToyTask\n"
        "class Named(ToyTask):\n"
        "    reference = {'near': -1, 'far': -2}\n"
        "task = Named(steps=4, name='named')\n"
    )
    for task in ("toy", "named.py:task"):
        mopbt_command(
            "run",
            task,
            "--population",
            4,
            "--engine",
            "local",
            "--budget-jobs",
            4,
            "--quiet",
            cwd=tmp_path,
            code=3,
        )
    rows = {
        row["task"]: row
        for row in json.loads(mopbt_command("list", "runs", "--json", cwd=tmp_path).stdout)
    }
    assert rows["toy"]["hypervolume"] is None
    named = Results.open(tmp_path / "runs" / "named" / "mo-pbt-seed0")
    assert rows["named"]["hypervolume"] == named.hypervolume() > 0
    assert mopbt_command("list", cwd=tmp_path).stdout.count("–") == 1


def test_list_shows_a_run_that_cannot_be_read_with_the_reason(tmp_path):
    mopbt_command(
        "run",
        "toy",
        "--population",
        4,
        "--engine",
        "local",
        "--budget-jobs",
        2,
        "--quiet",
        cwd=tmp_path,
        code=3,
    )
    other = tmp_path / "runs" / "other"
    other.mkdir()
    (other / "run.toml").write_text("format = 7\n")
    text = mopbt_command("list", cwd=tmp_path).stdout
    assert "unreadable" in text
    assert "runs/toy" in text


OWN = """
import mopbt

class Mine:
    space = {"rate": mopbt.Float(0.1, 1.0)}
    objectives = {"up": "max", "down": "min"}
    interval, steps = 1, 3
    def init(self, seed): return {"x": 0.0}
    def train(self, model, hp, begin, end, seed): model["x"] += hp["rate"]
    def evaluate(self, model): return {"up": model["x"], "down": model["x"] ** 2}
    dump, load = staticmethod(mopbt.dumps), staticmethod(mopbt.loads)

def train(m):
    state = {"x": 0.0}
    m.track(state=state)
    for _ in m.steps():
        state["x"] += m.hp["rate"]
    m.report(up=state["x"], down=state["x"] ** 2)

task = mopbt.FunctionTask(train, space=Mine.space, objectives=Mine.objectives, steps=3)
"""


@pytest.mark.slow
def test_a_custom_task_by_file_module_class_and_function(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    for reference in ("mine.py:Mine", "mine:Mine", "mine.py:task"):
        out = reference.replace(":", "_")
        mopbt_command(
            "run",
            reference,
            "--population",
            4,
            "--workers",
            2,
            "--out",
            out,
            "--quiet",
            cwd=tmp_path,
        )
        assert len(Results.open(tmp_path / out)) == 12
    (tmp_path / "below").mkdir()
    # The file of a task is found from any directory.
    mopbt_command("resume", "../mine.py_Mine", cwd=tmp_path / "below")


def test_a_run_resumes_after_the_file_of_its_task_was_moved(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    same = ["--population", 4, "--engine", "local", "--quiet", "--out", "run"]
    mopbt_command("run", "mine.py:task", *same, "--budget-jobs", 5, cwd=tmp_path, code=3)
    (tmp_path / "new").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "new" / "mine.py")
    message = mopbt_command("resume", "run", cwd=tmp_path, code=2).stderr
    assert f"the task of run was in {tmp_path / 'mine.py'}, which does not exist" in message
    assert "`mopbt run NEWPLACE/mine.py:task --out run`" in message
    assert "the algorithm, seed and options that `mopbt show run` lists" in message
    mopbt_command("run", "new/mine.py:task", *same, cwd=tmp_path)
    assert len(Results.open(tmp_path / "run")) == 12


def test_the_help_of_repair_says_what_is_kept(place):
    text = " ".join(mopbt_command("resume", "--help", cwd=place).stdout.split())
    assert "their jobs are repeated" in text
    assert "their reports count as failed, and everything else stays" in text


WRONG = [
    (
        ["run", "nosuch"],
        2,
        "or name an object like package.module:task or path/to/file.py:task, got 'nosuch'",
    ),
    (
        ["run", "nosuch:task"],
        2,
        "there is no module 'nosuch' here; name a file with its extension, as in nosuch.py:task",
    ),
    (["run", "nosuch.py:task"], 2, "there is no file nosuch.py"),
    (["run", "mine.py:other"], 2, "mine.py has no 'other'; it has"),
    (
        ["run", "mine.py:train"],
        2,
        "is a function; make it a task with a decorator: @mopbt.task(",
    ),
    (["run", "mine.py:mopbt"], 2, "is not a task: it has no method `init`"),
    (
        ["run", "toy", "--algorithm", "sgd"],
        2,
        "`algorithm` must be one of mo-pbt, random-search, pbt, pbt-random-scalarization",
    ),
    (
        ["run", "toy", "-o", "tau=0.2"],
        2,
        "mo-pbt has no option 'tau'; it has asynchronous",
    ),
    (
        ["run", "toy", "-o", "fraction"],
        2,
        "--option must read KEY=VALUE, as in fraction=0.1, got 'fraction'",
    ),
    (["run", "toy", "-o", "fraction=0.9"], 2, "`fraction` must be in (0, 0.5], got 0.9"),
    (
        ["run", "toy", "-o", "within=best"],
        2,
        "`within` must be one of 'scattered', 'crowded', 'hypervolume', got 'best'",
    ),
    (
        ["run", "toy", "--population", "1"],
        2,
        "`population` must be a whole number of at least 2, got 1",
    ),
    (["run", "toy", "--population", "many"], 2, "--population"),
    (
        ["run", "toy", "--engine", "cloud"],
        2,
        "`engine` must be one of 'auto', 'local', 'pool', 'vectorized'",
    ),
    (
        ["run", "toy", "--engine", "local", "--workers", "3"],
        2,
        "for engines with worker processes, got 3 for 'local'",
    ),
    (
        ["run", "toy", "--engine", "local", "--timeout", "3"],
        2,
        "`timeout` is for the engines 'auto', 'pool', 'vectorized', 'simulated', 'ray'",
    ),
    (
        ["run", "toy", "--timeout", "0"],
        2,
        "`timeout` must be a number of seconds above 0, got 0",
    ),
    (
        ["run", "toy", "--engine", "ray", "--devices", "0,1"],
        2,
        "`devices` is for the engines 'auto', 'pool', 'vectorized', 'simulated', got ['0', '1']",
    ),
    (
        ["run", "toy", "--num-gpus", "1"],
        2,
        "`num_gpus` is for the engines 'ray', got 1.0 for 'auto'",
    ),
    (
        ["run", "toy", "--devices", "0,0"],
        2,
        "`devices` must name each device once, got ['0', '0']",
    ),
    (
        ["run", "toy", "--workers", "2", "--workers-per-device", "2"],
        2,
        "`workers` and `workers_per_device` exclude each other",
    ),
    (
        ["run", "toy", "--algorithm", "mo-asha", "-o", "eta=1"],
        2,
        "`eta` must be a whole number of at least 2, got 1",
    ),
    (
        ["run", "toy", "--algorithm", "mo-asha", "--population", "8"],
        2,
        "mo-asha has no option 'population'; it has eta, grace",
    ),
    (
        ["run", "toy", "--algorithm", "pbt", "-o", "objective=speed"],
        2,
        "`objective` must be one of 'near', 'far' or a number",
    ),
    (
        ["run", "toy", "--engine", "pool", "--cost", "2"],
        2,
        "`cost` is for the simulated engine, got it for 'pool'",
    ),
    (
        ["run", "toy", "--engine", "simulated", "--cost", "much"],
        2,
        "`cost` must be virtual seconds per step above 0, such as 1.5",
    ),
    (["run", "toy", "--scale", "small"], 2, "toy comes in one size only, got the scale 'small'"),
    (["run", "toy", "--budget-seconds", "0"], 2, "`seconds` must be a number above 0"),
    (["run", "toy", "--seed", "-4"], 2, "`seed` must be a whole number of at least 0, got -4"),
    (["run"], 2, "TASK"),
    (["fly"], 2, "fly"),
    (["resume", "nowhere"], 1, "nowhere is not a run: it does not exist"),
    (["show", "nowhere"], 1, "nowhere is not a run"),
    (["list", "nowhere"], 2, "there is no directory nowhere"),
    (
        ["lineage", "runs/toy", "12345"],
        2,
        "got 12345",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_input_gets_a_message_and_no_traceback(place, arguments, code, message):
    (place / "mine.py").write_text(OWN)
    done = mopbt_command(*arguments, cwd=place, code=code)
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (place / "runs" / "mine").exists()


BROKEN = """
import mopbt
def train(m):
    for step in m.steps():
        raise RuntimeError("the loader is broken" if m.hp["rate"] >= 0 else "")
space = {"rate": mopbt.Grid(0, 1, 3)}
task = mopbt.FunctionTask(train, space=space, objectives={"up": "max", "down": "min"}, steps=4)
"""


ALIKE = """
import mopbt
def train(m):
    x = {{"x": 0.0}}
    m.track(x=x)
    for step in m.steps():
        x["x"] += {factor} * m.hp["rate"]
    m.report(up=x["x"], down=x["x"] ** 2)
space = {{"rate": mopbt.Grid(0, 1, 3)}}
task = mopbt.FunctionTask(train, space=space, objectives={{"up": "max", "down": "min"}}, steps=4)
"""


def test_another_task_of_the_same_name_does_not_resume_the_run_of_the_first(tmp_path):
    for name, factor in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.py").write_text(ALIKE.format(factor=factor))
    options = ["--population", 4, "--engine", "local"]
    mopbt_command("run", "a.py:task", *options, "--quiet", cwd=tmp_path)
    refused = mopbt_command("run", "b.py:task", *options, "--quiet", cwd=tmp_path, code=1)
    message = " ".join(refused.stderr.split())
    assert "other settings: task is" in message
    assert "b.py:task, it was" in message
    (tmp_path / "moved").mkdir()
    (tmp_path / "a.py").rename(tmp_path / "moved" / "a.py")
    assert (
        "has changed" not in mopbt_command("run", "moved/a.py:task", *options, cwd=tmp_path).stderr
    )
    (tmp_path / "moved" / "a.py").write_text(ALIKE.format(factor=30))
    assert (
        "has changed"
        in mopbt_command("run", "moved/a.py:task", *options, cwd=tmp_path, code=1).stderr
    )


def test_a_failure_of_training_is_one_line_or_a_traceback(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    command = [
        "run",
        "broken.py:task",
        "--out",
        "run",
        "--population",
        4,
        "--engine",
        "local",
        "--quiet",
    ]
    message = mopbt_command(*command, cwd=tmp_path, code=1).stderr
    assert "intervals in a row failed" in message
    assert "RuntimeError: the loader is broken (broken.py, line 5)" in message
    assert "add --traceback" in message
    assert "Traceback" not in message
    complete = mopbt_command("--traceback", *command, cwd=tmp_path, code=1).stderr
    assert 'broken.py", line 5, in train' in complete


def test_a_traceback_is_shown_on_request(place):
    assert "Traceback" in mopbt_command("--traceback", "run", "nosuch", cwd=place, code=2).stderr


def test_help_has_examples_and_exit_codes(place):
    top = mopbt_command("--help", cwd=place).stdout
    for word in (
        "run",
        "resume",
        "show",
        "front",
        "lineage",
        "list",
        "Exit codes",
        "mopbt run trade-off",
    ):
        assert word in top
    assert "Example: mopbt run" in mopbt_command("run", "--help", cwd=place).stdout
    assert mopbt_command("--version", cwd=place).stdout.strip() == f"mopbt {__version__}"


SLOW = """
import sys
sys.path.insert(0, {tests!r})
from toys import SlowToy
task = SlowToy(steps=2000, seconds=0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly_and_says_how_to_resume(tmp_path, number, code):
    (tmp_path / "slow.py").write_text(SLOW.format(tests=TESTS))
    command = [
        sys.executable,
        "-c",
        "from mopbt.cli import main; main()",
        "run",
        "slow.py:task",
        "--population",
        "4",
        "--out",
        "run",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "run" / "journal.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (
        not journal.exists() or journal.read_text().count("reports") < 2
    ):
        time.sleep(0.02)
    busy = mopbt_command(
        "run", "slow.py:task", "--population", 4, "--out", "run", cwd=tmp_path, code=1
    )
    assert f"process {process.pid}" in busy.stderr
    assert (
        f"process {process.pid}"
        in json.loads(mopbt_command("show", "run", "--json", cwd=tmp_path).stdout)["state"]
    )
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert "stopped (interrupted)" in errors
    assert "rerun the same command to resume" in errors
    assert "Traceback" not in errors


def test_that_no_model_satisfies_the_constraints_is_said_wherever_one_is_shown(tmp_path):
    (tmp_path / "strict.py").write_text(
        "from mopbt.tasks.toy import ToyTask\n"
        "class Strict(ToyTask):\n"
        "    constraints = ['near >= 99']\n"
        "task = Strict(steps=4)\n"
    )
    command = [
        "run",
        "strict.py:task",
        "--population",
        4,
        "--engine",
        "local",
        "--out",
        "run",
        "--quiet",
    ]
    outputs = [
        mopbt_command(*command, cwd=tmp_path),
        mopbt_command("front", "run", cwd=tmp_path),
        mopbt_command("show", "run", cwd=tmp_path),
        mopbt_command("pick", "run", "--export", "model.safetensors", cwd=tmp_path),
    ]
    front = Results.open(tmp_path / "run").front()
    (point,) = front
    shortfall = front.shortfall(point)
    assert "no model satisfies near >= 99" in shortfall
    assert f"(violation {point.violation:.2g})" in shortfall
    for done in outputs:
        assert f"Model {point.model}: {shortfall}." in done.stdout
        assert "on the front," not in done.stdout
    picked = mopbt_command("pick", "run", "--model", point.model, cwd=tmp_path).stdout
    assert f"Model {point.model}, selected by its id: {shortfall}." in picked


def test_failures_are_shown(tmp_path):
    (tmp_path / "failing.py").write_text(
        "from mopbt.tasks.toy import FailingToy\ntask = FailingToy(steps=8)\n"
    )
    done = mopbt_command(
        "run",
        "failing.py:task",
        "--population",
        11,
        "--engine",
        "local",
        "--out",
        "run",
        cwd=tmp_path,
    )
    assert "failed: ZeroDivisionError" in done.stderr
    assert "ZeroDivisionError" in mopbt_command("show", "run", cwd=tmp_path).stdout


def test_algorithms_are_listed_with_their_options(place):
    text = mopbt_command("algorithms", cwd=place).stdout
    listed = {
        entry["name"]: entry
        for entry in json.loads(mopbt_command("algorithms", "--json", cwd=place).stdout)
    }
    assert len(listed) == 10
    assert all(
        name in text and entry["about"] and entry["section"] for name, entry in listed.items()
    )
    assert listed["mo-asha"]["options"]["eta"] == 3
    assert "eta=3" in text


@pytest.mark.slow
def test_an_algorithm_by_its_name_under_a_virtual_clock(tmp_path):
    command = [
        "run",
        "toy",
        "--algorithm",
        "mo-asha",
        "-o",
        "trials=9",
        "--engine",
        "simulated",
        "--workers",
        3,
        "--cost",
        2.5,
    ]
    done = mopbt_command(*command, "--out", "here", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["algorithm"], answer["options"]["trials"]) == (
        "done",
        "mo-asha",
        9,
    )
    # An interval has two steps of 2.5 virtual seconds.
    assert answer["seconds"] % 5.0 == 0
    again = mopbt_command("resume", "here", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["intervals"] == answer["intervals"]


@pytest.mark.slow
def test_an_algorithm_without_an_end_gets_a_default_budget(tmp_path):
    done = mopbt_command(
        "run", "toy", "--algorithm", "mo-asha", "--engine", "local", "--out", "here", cwd=tmp_path
    )
    assert "320 intervals" in done.stderr
    assert len(Results.open(tmp_path / "here")) == 320


def test_changed_code_needs_on_change(tmp_path):
    file = tmp_path / "mine.py"
    code = (
        "import mopbt\n"
        "FACTOR = 1\n"
        "@mopbt.task(space={'x': mopbt.Grid(0, 1, 5)}, objectives={'a': 'max', 'b': 'min'},\n"
        "            steps=2)\n"
        "def train(m):\n"
        "    w = {'w': 0.0}\n"
        "    m.track(w=w)\n"
        "    for _ in m.steps(): w['w'] += m.hp['x'] * FACTOR\n"
        "    m.report(a=w['w'], b=m.hp['x'])\n"
    )
    file.write_text(code)
    command = ["run", "mine.py:train", "--out", "run", "--population", 4]
    command += ["--engine", "local", "--quiet"]
    mopbt_command(*command, cwd=tmp_path)
    file.write_text(code + "# a remark\n")
    mopbt_command(*command, cwd=tmp_path)
    file.write_text(code.replace("FACTOR = 1", "FACTOR = 2"))
    assert "--on-change continue" in mopbt_command(*command, cwd=tmp_path, code=1).stderr
    mopbt_command("resume", "run", "--quiet", cwd=tmp_path, code=1)
    mopbt_command(*command, "--on-change", "continue", cwd=tmp_path)


def test_tables_are_complete_at_80_columns(place, monkeypatch, capsys):
    from mopbt.cli import inspect, output

    monkeypatch.chdir(place)
    narrow = output.Console(width=40, highlight=False)
    monkeypatch.setattr(output, "out", narrow)
    results = Results.open("runs/toy")
    output.print_front(results, Path("runs/toy"))
    printed = capsys.readouterr().out
    assert "…" not in printed
    for point in results.front():
        assert output.as_text(point.scores["near"]) in printed
    path = "/a/long/path" * 8
    output.print_table(["run", "state", "front"], [[path, "interrupted", "12"]])
    folded = capsys.readouterr().out
    assert "interrupted" in folded
    assert "12" in folded
    inspect.list_runs(Path("runs"))
    listed = capsys.readouterr().out
    assert "runs/toy " in listed
    assert str(place) not in listed
    assert "…" not in listed
