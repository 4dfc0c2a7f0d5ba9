"""Export of trained models, and replays of their schedules."""

import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mopbt
from command_line import mopbt_command
from mopbt.errors import StoreError, TaskError
from mopbt.tasks.toy import ToyTask
from mopbt.torch import AdamW, Batches, Dropout, TorchTask

TOY = ToyTask(steps=8, interval=1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return mopbt.run(
        TOY,
        out=tmp_path_factory.mktemp("run") / "toy",
        population=6,
        seed=3,
        engine="local",
        progress=False,
    )


def networks(rows=256):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    return TorchTask(
        lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.ReLU(), Dropout("dropout"), torch.nn.Linear(16, 2)
        ),
        loss=lambda model, batch, hp: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Batches(x[: rows // 2], y[: rows // 2], batch_size=32),
        optimizer=AdamW(lr="lr"),
        metrics=lambda logits, y: {
            "accuracy": (logits.argmax(1) == y).float().mean().item(),
            "size": logits.abs().mean().item(),
        },
        validation=(x[rows // 2 :], y[rows // 2 :]),
        test=(x[: rows // 2], y[: rows // 2]),
        space={"lr": mopbt.LogGrid(1e-3, 1e-1, 6), "dropout": mopbt.Grid(0, 0.5, 5)},
        objectives={"accuracy": "max", "size": "min"},
        steps=6,
        interval=1,
        errors=False,
        name="net",
    )


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "net"
    return mopbt.run(networks(), out=out, population=6, seed=1, engine="local", progress=False)


@pytest.mark.slow
def test_weights_are_a_plain_state_dict_that_the_users_model_loads(net, tmp_path):
    choice = net.front().knee()
    files = net.export(choice, tmp_path / "model.safetensors")
    model = networks().model()
    model.load_state_dict(load_file(files.weights))
    x, y = networks().validation
    accuracy = (model.eval()(x).argmax(1) == y).float().mean().item()
    assert accuracy == pytest.approx(choice.scores["accuracy"])


def test_the_origin_of_a_model_is_complete(net, tmp_path):
    choice = net.front().best("accuracy")
    about = json.loads(net.export(choice, tmp_path / "m.safetensors").about.read_text())
    assert about["model"] == choice.model
    assert about["validation"] == {k: v for k, v in choice.scores.items() if "/" not in k}
    (tested,) = net.evaluations.of_model(choice.model)
    assert about["test"] == dict(tested.scores)
    assert tested.scores["size"] != choice.scores["size"]
    assert [(s["begin"], s["end"], s["hp"]) for s in about["schedule"]] == net.schedule(choice)
    assert about["hp"] == choice.hp
    assert about["seed"] == 1
    assert about["algorithm"]["name"] == "mo-pbt"
    assert about["why"] == choice.why


@pytest.mark.slow
def test_the_code_on_the_card_runs(net, tmp_path):
    choice = net.front().knee()
    files = net.export(choice, tmp_path / "model.safetensors")
    card = files.card.read_text()
    assert choice.why in card
    validation = choice.scores["accuracy"]
    test = net.evaluations[choice.model, "test", 0].scores["accuracy"]
    assert f"| accuracy | larger is better | {validation:.4g} | {test:.4g} |" in card
    assert "| steps | lr | dropout |" in card
    code = card.split("```python\n")[1].split("```")[0]
    model = networks().model()
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        exec(code, {"model": model})
    finally:
        os.chdir(here)
    assert torch.equal(model.state_dict()["0.weight"], load_file(files.weights)["0.weight"])


def test_a_model_that_violates_the_constraints_says_so_on_its_card(tmp_path):
    class Strict(ToyTask):
        constraints = ["near >= 99"]

    results = mopbt.run(
        Strict(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
    )
    (point,) = results.front()
    files = results.export(point, tmp_path / "m.safetensors")
    why = (
        f"Model {point.model}: no model satisfies near >= 99; this one comes closest "
        f"(violation {point.violation:.2g})."
    )
    about = json.loads(files.about.read_text())
    assert (about["violation"], about["why"]) == (point.violation, why)
    assert why in files.card.read_text()
    assert "It was trained under near >= 99, which it does not satisfy." in files.card.read_text()
    assert "on the front" not in files.card.read_text()


def test_other_tasks_export_all_tracked_state(toy, tmp_path):
    files = toy.export(toy.front()[0], tmp_path / "toy.safetensors")
    assert files.weights.read_bytes() == toy.checkpoint(toy.front()[0])
    assert "How to load it" in files.card.read_text()


def test_a_format_of_the_tasks_own_is_not_called_safetensors(tmp_path):
    class Own(ToyTask):
        def dump(self, model):
            return b"own" + super().dump(model)

        def load(self, data):
            return super().load(data[3:])

    results = mopbt.run(
        Own(steps=2), out=tmp_path / "run", population=2, engine="local", progress=False
    )
    files = results.export(results.front()[0], tmp_path / "m.safetensors")
    assert (files.weights.name, files.weights.read_bytes()) == (
        "m.bin",
        results.checkpoint(results.front()[0]),
    )
    assert 'task.load(Path("m.bin").read_bytes())' in files.card.read_text()
    assert not (tmp_path / "m.safetensors").exists()


def test_a_pickle_is_called_one(tmp_path):
    """Checkpoints of a scikit-learn search are pickles, which load without a task."""

    class Pickled(ToyTask):
        def dump(self, model):
            return pickle.dumps(model)

        def load(self, data):
            return pickle.loads(data)

    results = mopbt.run(
        Pickled(steps=2), out=tmp_path / "run", population=2, engine="local", progress=False
    )
    files = results.export(results.front()[0], tmp_path / "m.safetensors")
    assert "load only files that you trust.\nmodel = pickle.loads(Path" in files.card.read_text()
    assert json.loads(files.about.read_text())["format"] == "a pickle"
    assert pickle.loads(files.weights.read_bytes()).keys() == ToyTask().init(0).keys()
    with pytest.raises(
        StoreError,
        match=r"can load its models.*pickle.loads\(results.checkpoint\(point\)\)",
    ):
        mopbt.Results.open(tmp_path / "run").load(results.front()[0])


@pytest.mark.parametrize("second", [False, True])
def test_the_only_module_that_was_tracked_is_exported_as_its_state_dict(tmp_path, second):
    def build():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def train(m):
        net, other = build(), build()
        optimizer = torch.optim.Adam(net.parameters(), lr=m.hp["lr"])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        m.track(
            net=net,
            optimizer=optimizer,
            schedule=schedule,
            note={"best": 1.0},
            **({"teacher": other} if second else {}),
        )
        for _ in m.steps():
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            schedule.step()
        m.report(loss=0.0)

    settings = {"space": {"lr": mopbt.Grid(0.1, 0.2, 3)}, "objectives": {"loss": "min"}, "steps": 2}
    results = mopbt.run(
        train, out=tmp_path / "run", population=2, engine="local", progress=False, **settings
    )
    files = results.export(results.front()[0], tmp_path / "m.safetensors")
    names = set(load_file(files.weights))
    if second:
        assert {"net.0.weight", "teacher.0.weight", "optimizer.state.0.exp_avg"} <= names
    else:
        build().load_state_dict(load_file(files.weights))
        assert "model.load_state_dict(load_file(" in files.card.read_text()


def test_impossible_exports_are_errors_with_the_remedy(toy, tmp_path):
    with pytest.raises(StoreError, match="there is no directory .*nowhere; create it first"):
        toy.export(toy.front()[0], tmp_path / "nowhere" / "m.safetensors")
    for name in ("m.json", "m.pth", "m"):
        with pytest.raises(
            ValueError, match=f"ends in .safetensors, got '{name}'; name it m.safetensors"
        ):
            toy.export(toy.front()[0], tmp_path / name)
    with pytest.raises(
        ValueError, match="a point must be the id of an evaluated model.* got 99999"
    ):
        toy.export(99999, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["toy", "net"])
def test_a_replay_gives_the_same_model(name, request):
    results = request.getfixturevalue(name)
    exploiters = [p for p in results.front() if any(a.exploited for a in results.lineage(p))]
    assert exploiters, "no model of the front copied another's weights"
    again = results.replay(exploiters[0])
    original = exploiters[0].scores
    assert again.scores == {name: original[name] for name in original if "/" not in name}
    assert again.data == results.checkpoint(exploiters[0])
    assert str(again) == "The replay is identical in every metric."


def test_without_ancestry_the_trials_own_history_is_trained(toy):
    point = next(p for p in toy.front() if any(a.exploited for a in toy.lineage(p)))
    history = toy.trial_history(point)
    assert {a.trial for a in history} == {point.trial}
    assert [(a.begin, a.end) for a in history] == [(i, i + 1) for i in range(point.step)]
    again = toy.replay(point, ancestry=False)
    model = TOY.init(mopbt.rng.derived_seed(3, "init", point.trial))
    for a in history:
        model = (
            TOY.train(
                model,
                dict(a.hp),
                a.begin,
                a.end,
                mopbt.rng.derived_seed(3, "train", a.trial, a.begin),
            )
            or model
        )
    assert again.scores == TOY.evaluate(model)


def test_another_seed_and_other_data_give_another_model(net):
    point = net.front().best("accuracy")
    other = net.replay(point, seed=5)
    assert other.data != net.checkpoint(point)
    assert other.differences["accuracy"] == other.scores["accuracy"] - point.scores["accuracy"]
    assert str(other).startswith("The replay differs by ")
    more = net.replay(point, networks(rows=512))
    assert more.scores != point.scores


def test_a_folder_for_the_hub_is_read_by_its_own_library(net, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    safetensors = pytest.importorskip("safetensors.torch")
    point = net.front()[0]
    folder = net.export_hub(point, tmp_path / "hub", config={"hidden": 8}, license="mit")
    assert {file.name for file in folder.iterdir()} == {
        *("README.md", "config.json", "model.safetensors"),
    }
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.license == "mit"
    assert "mopbt" in card.data.tags
    measured = {
        result.metric_type: result.metric_value
        for result in card.data.eval_results
        if "validation" in result.dataset_name
    }
    assert measured == pytest.approx({k: v for k, v in point.scores.items() if "/" not in k})
    assert card.text.strip().startswith(f"# Model {point.model} of ")
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden"] == 8
    assert config["mopbt"]["model"] == point.model
    weights = safetensors.load_file(folder / "model.safetensors")
    kept = net.load(point)
    state = kept["model"] if isinstance(kept, dict) else kept.state_dict()
    assert set(weights) == set(state)
    with pytest.raises(ValueError, match="needs a new or empty directory"):
        net.export_hub(point, folder)


def test_a_private_export_names_neither_run_nor_file(toy, tmp_path):
    point = toy.front()[0]
    open_files = toy.export(point, tmp_path / "open.safetensors")
    assert f'"run": "{toy.path.name}"' in open_files.about.read_text()
    assert f"run `{toy.path.name}`" in open_files.card.read_text()
    files = toy.export(point, tmp_path / "private.safetensors", private=True)
    folder = toy.export_hub(point, tmp_path / "hub", private=True)
    for file in (files.about, files.card, folder / "README.md", folder / "config.json"):
        assert f'"run": "{toy.path.name}"' not in file.read_text()
        assert f"run `{toy.path.name}`" not in file.read_text()
        assert toy.path.parent.name not in file.read_text()


def test_a_replayed_model_is_exported_like_one_of_the_run(net, tmp_path):
    point = net.front().knee()
    first, again = net.export(point, tmp_path / "a.safetensors"), net.replay(point)
    files = again.export(tmp_path / "b.safetensors")
    assert files.weights.read_bytes() == first.weights.read_bytes()
    then, now = (json.loads(f.about.read_text()) for f in (first, files))
    assert {key for key in then if then[key] != now[key]} == {"why", "weights"}
    for fact in (f"Model {point.model}, trained again", "on net", "with the seed 1", str(again)):
        assert fact in now["why"]
    assert now["why"] in files.card.read_text()
    other = net.replay(point, replace(networks(), steps=12), seed=7)
    about = json.loads(other.export(tmp_path / "c.safetensors").about.read_text())
    assert (about["steps"], about["schedule"][-1]["end"]) == (2 * point.step, 2 * point.step)
    assert about["validation"]["accuracy"] == other.scores["accuracy"]
    assert " with the seed 7. The replay differs by " in about["why"]


def test_a_longer_training_stretches_the_schedule(toy):
    point = toy.front().knee()
    seen = []

    class Longer(ToyTask):
        def train(self, model, hp, begin, end, seed):
            seen.append((begin, end, dict(hp)))
            return super().train(model, hp, begin, end, seed)

    toy.replay(point, Longer(steps=16, interval=1))
    assert [(begin, end) for begin, end, _ in seen] == [(i, i + 1) for i in range(2 * point.step)]
    lineage = toy.lineage(point)
    assert [values for _, _, values in seen] == [
        dict(lineage[i // 2].hp) for i in range(2 * point.step)
    ]


def test_impossible_replays_are_errors_with_the_remedy(toy):
    with pytest.raises(TaskError, match="a replay needs the task"):
        mopbt.Results.open(toy.path).replay(toy.front()[0])
    other = replace(networks(), name="other")
    with pytest.raises(
        TaskError,
        match="the schedule has the hyperparameters .* take the same, got \\['lr', 'dropout'\\]",
    ):
        toy.replay(toy.front()[0], other)

    class Broken(ToyTask):
        def train(self, model, hp, begin, end, seed):
            raise RuntimeError("no more paper")

    with pytest.raises(
        TaskError, match=r"the replay failed between steps 0 and 1:[\s\S]*no more paper"
    ):
        toy.replay(toy.front()[0], Broken(steps=8, interval=1))


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "toy"
    mopbt_command("run", "toy", "--out", path, "--population", 6, "--quiet", "--engine", "local")
    return path


@pytest.mark.slow
def test_pick_on_the_command_line(run_path, tmp_path):
    done = mopbt_command(
        "pick",
        run_path,
        "--where",
        "near <= 5",
        "--best",
        "far",
        "--export",
        tmp_path / "m.safetensors",
    )
    choice = mopbt.Results.open(run_path).front().where("near <= 5").best("far")
    assert done.stdout.splitlines()[0] == choice.why
    assert (tmp_path / "m.md").is_file()
    listed = json.loads(
        mopbt_command("pick", run_path, "--weight", "near=1", "--weight", "far=3", "--json").stdout
    )
    front = mopbt.Results.open(run_path).front()
    assert listed["model"] == front.weighted({"near": 1, "far": 3}).model
    assert "is the knee" in mopbt_command("pick", run_path).stdout


def test_replay_on_the_command_line(run_path, tmp_path):
    job = mopbt.Results.open(run_path).front()[0].model
    done = mopbt_command("replay", run_path, job, "--export", tmp_path / "m.safetensors")
    assert "identical in every metric" in done.stdout
    assert f"Exported: {tmp_path / 'm.safetensors'} (weights), {tmp_path / 'm.json'}" in done.stdout
    picked = tmp_path / "picked.safetensors"
    mopbt_command("pick", run_path, "--model", job, "--export", picked)
    assert (tmp_path / "m.safetensors").read_bytes() == picked.read_bytes()
    replayed = json.loads(
        mopbt_command("replay", run_path, job, "--seed", 9, "--no-ancestry", "--json").stdout
    )
    assert set(replayed) == {"original", "replayed", "differences", "exported"}
    assert np.isfinite(list(replayed["differences"].values())).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("pick", "RUN", "--weight", "near"),
            "--weight must read OBJECTIVE=NUMBER, as in accuracy=2, got 'near'",
        ),
        (
            ("pick", "RUN", "--best", "neer"),
            "`best` must be an objective ('near', 'far'), got 'neer'",
        ),
        (
            ("pick", "RUN", "--export", "best.pth"),
            "that ends in .safetensors, got 'best.pth'; name it best.safetensors",
        ),
        (
            ("replay", "RUN", "0", "--export", "best.pt"),
            "that ends in .safetensors, got 'best.pt'; name it best.safetensors",
        ),
        (
            ("replay", "RUN", "123456"),
            "got 123456; on the front are",
        ),
        (
            ("replay", "RUN", "0", "--scale", "small"),
            "toy comes in one size only, got the scale 'small'",
        ),
    ],
)
def test_mistakes_on_the_command_line(run_path, arguments, message):
    done = mopbt_command(*(run_path if a == "RUN" else a for a in arguments), code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def descend(m):
    """Train a point on a line; the function of a script."""
    place = np.zeros(1)
    m.track(place=place)
    for _ in m.steps():
        place += m.hp["rate"]
    m.report(near=-abs(place[0] - 1), far=-abs(place[0] - 3))


def test_a_run_of_a_function_is_replayed_with_the_function(tmp_path):
    results = mopbt.run(
        descend,
        out=tmp_path / "run",
        space={"rate": mopbt.Grid(0.1, 1, 9)},
        objectives={"near": "maximize", "far": "max"},
        constraints=["near >= -3"],
        reference={"near": -9, "far": -9},
        steps=6,
        interval=2,
        population=4,
        engine="local",
        progress=False,
    )
    point = results.front().knee()
    assert not any(results.replay(point).differences.values())
    opened = mopbt.Results.open(results.path, task=descend)
    assert opened.replay(point.model).model.state == results.replay(point).model.state
    again = mopbt.Results.open(results.path).replay(point, descend)
    assert again.problem == results.problem
    assert not any(again.differences.values())
    assert again.export(tmp_path / "m.safetensors").weights.is_file()
    assert point.export(tmp_path / "n.safetensors").card.is_file()
