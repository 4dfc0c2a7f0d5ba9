"""Test the paper's tasks: search spaces, training on every engine and commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import mopbt_command
from lanes import slow_except
from mopbt import MOPBT, VectorizedEngine, run
from mopbt.errors import DataMissing
from mopbt.problem import Hyperparameters, problem_of
from mopbt.registry import find_task, registered, task_fingerprint, with_scale
from mopbt.rng import stream
from mopbt.tasks import registry
from mopbt.tasks.paper import SCALES, TASKS
from mopbt.testing import TaskConformance

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def _data(monkeypatch, one_thread):
    if SHARED.is_dir() and "MOPBT_DATA" not in os.environ:
        monkeypatch.setenv("MOPBT_DATA", str(SHARED))


def made(name, scale="smoke"):
    task = TASKS[name]
    if registry.state(task.dataset) == "missing":
        pytest.skip(f"needs the data set {task.dataset}: {registry.explain(task.dataset)}")
    return task.at(scale)


def test_there_is_one_for_each_row_of_the_papers_tables_and_the_larger_space():
    assert len(TASKS) == 9 + 1
    assert set(TASKS) <= set(registered())


def test_the_papers_search_spaces():
    space = TASKS["adult-precision-recall"].space
    assert [len(domain.values) for domain in space.values()] == [10] * 5
    assert space["weight_decay"].values[:2] == (0.0, 1e-6)
    assert space["weight_decay"].values[-1] == 0.1
    assert space["class_weight"].values[0] == 0.1
    assert space["class_weight"].values[-1] == 0.9
    assert space["attention_dropout"].values[-1] == 0.8
    assert TASKS["adult-fairness"].space["fairness_weight"].values[:3] == pytest.approx(
        (0, 0.01, 0.02371), abs=1e-5
    )
    assert TASKS["cifar10-robustness"].space["robustness_weight"].values[:3] == pytest.approx(
        (0, 0.1, 0.1778), abs=1e-4
    )
    sizes = {name: len(domain.values) for name, domain in TASKS["celeba-fairness"].space.items()}
    assert sorted(sizes.values()) == [5, 10, 10, 10, 10]
    assert len(TASKS["cifar10-robustness-31"].space) == 31
    assert all(len(domain.values) == 10 for domain in TASKS["cifar10-robustness-31"].space.values())


def test_the_papers_sizes():
    table, images = SCALES["tabular"]["paper"], SCALES["images"]["paper"]
    assert (table.width, table.depth, table.batch, table.steps, table.interval, table.lr) == (
        192,
        3,
        512,
        100,
        2,
        1e-5,
    )
    assert (images.width, images.depth, images.batch, images.steps, images.interval, images.lr) == (
        2,
        28,
        128,
        100,
        2,
        0.1,
    )
    assert (images.attack, images.evaluation_attack) == (10, 20)
    for scales in SCALES.values():
        exploit_steps = scales["small"].steps // scales["small"].interval
        assert exploit_steps >= 25


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("engine", ["local", "vectorized"])
def test_it_trains_on_every_engine_and_measures_the_test_rows_too(name, engine):
    task = made(name)
    # One worker: importing PyTorch takes longer than training.
    own = VectorizedEngine(1, stack=4) if engine == "vectorized" else engine
    results = run(task, out=None, algorithm=MOPBT(population=4), engine=own, progress=False)
    assert (results.outcome, len(results), len(results.failures)) == ("done", 12, 0)
    models = {point.model for point in results.front(observed=True)}
    assert models <= {evaluation.model for evaluation in results.evaluations.select("test")}
    for evaluation in results.evaluations:
        assert set(task.objectives) <= set(evaluation.scores)
        assert all(0 <= value <= 2 for value in evaluation.scores.values())
    for point in results.front():
        assert all(0 <= value <= 2 for value in point.scores.values())
        assert {f"test/{name}" for name in task.objectives} <= set(point.scores)


@pytest.mark.parametrize("name", slow_except(["adult-fairness"], TASKS))
def test_stacked_and_single_members_agree(name):
    task = made(name)
    probe = task.probe(2, seconds=0.01)
    assert probe.disagreement < 1e-3


class TestAdult(TaskConformance):
    def make(self):
        return made("adult-fairness")


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_images_are_attacked_with_any_weight_as_in_the_published_code(weight, monkeypatch):
    from mopbt.tasks import losses

    calls = []
    attack = losses._ascend

    def count(*arguments):
        calls.append(arguments)
        return attack(*arguments)

    task = made("cifar10-robustness")
    problem = problem_of(task)
    values = problem.space.decode(problem.space.sample(stream(0, "x")))
    monkeypatch.setattr(losses, "_ascend", count)
    task.train(task.init(0), Hyperparameters(values | {"robustness_weight": weight}), 0, 1, 0)
    # Statistics of batch normalization then do not depend on the weight.
    assert len(calls) == 1


def test_a_scale_is_part_of_how_a_task_is_found():
    task, reference = find_task("adult-fairness@smoke")
    assert reference == "adult-fairness@smoke"
    assert task.steps == SCALES["tabular"]["smoke"].steps
    with pytest.raises(
        ValueError,
        match="`scale` of adult-fairness must be one of 'paper', .*'smoke', got 'tiny'",
    ):
        find_task("adult-fairness@tiny")
    with pytest.raises(ValueError, match="toy comes in one size only, got the scale 'small'"):
        find_task("toy@small")


def test_a_folder_may_have_an_at_sign_in_its_name(tmp_path, monkeypatch):
    """Home folders such as /home/user@corp.com do."""
    folder = tmp_path / "user@corp.com"
    folder.mkdir()
    (folder / "at_home.py").write_text("from mopbt.tasks.toy import ToyTask\ntask = ToyTask()\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    reference = f"{folder / 'at_home.py'}:task"
    task, again = find_task(reference)
    assert (task.name, again) == ("toy", reference)
    assert len(task_fingerprint(again)) == 64
    with pytest.raises(ValueError, match="comes in one size only, got the scale 'small'"):
        find_task(f"{reference}@small")


@pytest.mark.slow
def test_the_installed_command_lists_the_tasks(tmp_path):
    command = [str(Path(sys.executable).with_name("mopbt")), "tasks", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(TASKS) <= set(listed)
    assert listed["adult-fairness"]["data"].startswith("shipped")
    assert listed["celeba-fairness"]["objectives"] == {"accuracy": "max", "dsp": "min"}


def test_the_commands(tmp_path):
    text = mopbt_command("tasks", cwd=tmp_path).stdout
    assert "adult-fairness" in text
    assert "scales paper, small, smoke" in text
    options = ("--engine", "local", "--out", "r", "--quiet", "--json")
    done = mopbt_command("run", "adult-fairness", "--scale", "smoke", *options, cwd=tmp_path)
    # The scale has a population of four.
    assert json.loads(done.stdout)["intervals"] == 12
    mopbt_command("resume", "r", "--engine", "local", "--quiet", cwd=tmp_path)
    wrong = mopbt_command("run", "adult-fairness", "--scale", "tiny", cwd=tmp_path, code=2)
    assert "must be one of 'paper', 'medium', 'small', 'small-1000', 'smoke'" in wrong.stderr


def test_the_error_of_missing_data_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("MOPBT_DATA", str(tmp_path))
    done = mopbt_command("run", "celeba-fairness", "--scale", "smoke", cwd=tmp_path, code=1)
    assert "put a folder celeba" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


PARTIAL = {
    "higgs-precision-recall": (
        "higgs_small_part.npz",
        "15,716 substituted rows instead of the paper's 62,752 training rows; put the archive",
    ),
    "cifar10-robustness": ("cifar10_12k.npz", "8,000 of 40,000 images for training"),
    "cifar100-robustness": ("cifar100_12k.npz", "8,000 of 40,000 images for training"),
    "celeba-fairness": ("celeba_15k_39x32.npz", "10,000 of 162,770 images for training"),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_the_papers_scale_refuses_partial_data_unless_it_is_allowed(name, tmp_path, monkeypatch):
    file, lacks = PARTIAL[name]
    (tmp_path / file).write_bytes(b"not the real file")
    monkeypatch.setenv("MOPBT_DATA", str(tmp_path))
    task = TASKS[name]
    with pytest.raises(DataMissing, match=f"{file} has {lacks}.*--allow-partial-data") as refused:
        task.at()
    assert str(tmp_path) in str(refused.value)
    with pytest.raises(DataMissing, match="needs the complete data"):
        find_task(name)
    # What is allowed is read, and so is a part of a part.
    allowed = with_scale(name, None, allow_partial_data=True)
    assert allowed == f"{name}@paper+partial-data"
    for read in (
        lambda: task.at("paper", allow_partial_data=True),
        lambda: find_task(allowed),
        lambda: task.at("small"),
    ):
        with pytest.raises(DataMissing, match="is damaged or a different file"):
            read()
    assert task_fingerprint(allowed) == task_fingerprint(f"{name}@paper")


def test_complete_data_is_never_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MOPBT_DATA", str(tmp_path))
    # Nothing is there, so the complete data would be downloaded; Adult is shipped.
    assert [task.partial_data("paper") for task in TASKS.values()] == [""] * len(TASKS)
    (tmp_path / "cifar10_12k.npz").touch()
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert not TASKS["cifar10-robustness"].partial_data("paper")


def test_partial_data_is_for_tasks_with_data():
    with pytest.raises(ValueError, match="comes in one size only"):
        find_task(with_scale("toy", None, allow_partial_data=True))


@pytest.mark.parametrize("name", ["cifar10-robustness", "adult-fairness"])
def test_a_check_measures_few_rows(name, monkeypatch):
    from torch.nn.modules.module import register_module_forward_pre_hook

    from mopbt.tasks.networks import FTTransformer, WideResNet

    seen = []

    def count(module, arguments):
        if isinstance(module, FTTransformer | WideResNet) and not module.training:
            seen.append(len(arguments[0]))

    task = made(name)
    monkeypatch.setattr("mopbt.torch.task.CHECK_ROWS", 16)
    hook = register_module_forward_pre_hook(count)
    task.check()
    hook.remove()
    # The attack in training also calls the model in evaluation mode, with its batch.
    assert seen[-1] == 16
    assert set(seen) <= {16, task.data.batch_size}


@pytest.mark.parametrize("name", ["adult-fairness", "cifar10-robustness"])
def test_a_run_says_what_it_does_before_it_imports_anything_large(name):
    """Importing PyTorch and loading the data take seconds, in which nothing would be shown."""
    program = (
        "import sys\n"
        "from mopbt.cli import main\n"
        "from mopbt.progress_display import Display\n"
        "def note(self, text):\n"
        "    print(text, *sorted({'torch', 'sklearn', 'ray', 'pandas'} & sys.modules.keys()))\n"
        "    sys.exit()\n"
        "Display.note = note\n"
        f"sys.argv = ['mopbt', 'run', '{name}']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"loading the data of {name}\n"
