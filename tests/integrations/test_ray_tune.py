"""Real experiments of Ray Tune under our schedulers, with class Trainables and training functions."""

import gc
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

import mopbt
from mopbt.errors import MissingExtra, RunMismatch, StoreError
from mopbt.metrics import non_dominated

ray = pytest.importorskip("ray")
from ray import tune  # noqa: E402
from ray.tune.error import TuneError  # noqa: E402

from mopbt.integrations import ray_tune  # noqa: E402
from mopbt.integrations.ray_tune import MOASHA, MOPBT, Experiment, check_version  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # Ray's own
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
    ),
]

SPACE = {
    "lr": mopbt.Float(0.01, 0.5),
    "weight": mopbt.Grid(0, 1, 11),
    "kind": mopbt.Categorical(["a", "b"]),
}
OBJECTIVES = {"near": "max", "loss": "min"}


@pytest.fixture(scope="module")
def local_ray():
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, **quiet)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _files_that_tune_leaves_open():
    """Let them go here, where nobody minds, and not in whatever test comes next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Walker:
    """A point that walks towards 1 or 0: quick to train, and every result tells what was trained with."""

    def __init__(self, state=None):
        self.place, self.done, self.trace = state or (0.5, 0, [])

    @property
    def state(self):
        return self.place, self.done, self.trace

    def step(self, config):
        self.place += config["lr"] * (config["weight"] - self.place)
        self.done += 1
        self.trace = [*self.trace, [config["lr"], config["weight"], config["kind"]]]
        return {
            "near": self.place - 0.1 * (config["kind"] == "b"),
            "loss": self.place**2,
            "done_steps": self.done,
        }


class WalkerTrainable(tune.Trainable):
    def setup(self, config):
        self.walker = Walker()

    def step(self):
        result = self.walker.step(self.config)
        if (
            self.config.get("nan_above") is not None
            and self.config["lr"] > self.config["nan_above"]
        ):
            result["near"] = math.nan
        if self.config.get("pause"):
            time.sleep(self.config["pause"])
        return result

    def save_checkpoint(self, checkpoint_dir):
        (Path(checkpoint_dir) / "walker.json").write_text(json.dumps(self.walker.state))

    def load_checkpoint(self, checkpoint_dir):
        self.walker = Walker(json.loads((Path(checkpoint_dir) / "walker.json").read_text()))

    def reset_config(self, new_config):
        self.walker = Walker()
        return True


def walk(config):
    walker, checkpoint = Walker(), tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            walker = Walker(json.loads((Path(folder) / "walker.json").read_text()))
    while True:
        result = walker.step(config)
        if config.get("forgets"):
            tune.report(result)
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "walker.json").write_text(json.dumps(walker.state))
            tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))


def tuner(
    folder,
    scheduler,
    trainable=WalkerTrainable,
    *,
    samples=6,
    config=None,
    name="experiment",
    run=None,
    **options,
):
    return tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=config or {},
        tune_config=tune.TuneConfig(
            num_samples=samples, scheduler=scheduler, **{"reuse_actors": True} | options
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(folder), verbose=0, **run or {}),
    )


def pbt(**options):
    return MOPBT(
        **{"space": SPACE, "objectives": OBJECTIVES, "interval": 2, "max_t": 8, "seed": 3} | options
    )


def loaded(experiment, point):
    with experiment.checkpoint(point).as_directory() as folder:
        return Walker(json.loads((Path(folder) / "walker.json").read_text()))


def by_member(results):
    """Return what each member was ordered to do and measured, whatever the order in which the members came."""
    jobs = {record["job"]: record for record in results.records()}

    def told(record):
        parent = jobs.get(record["start"])
        came_from = None if parent is None else (parent["trial"], parent["end"])
        return (
            record["trial"],
            record["begin"],
            record["end"],
            came_from,
            *(record[f"config.{n}"] for n in SPACE),
            record["score.near"],
        )

    return sorted(map(told, jobs.values()), key=lambda row: row[:2])


def check_sound(experiment, members, steps=8, interval=2):
    """Check what every synchronous experiment must be: complete, within bounds, and consistent with what was trained."""
    records = experiment.results.records()
    assert sorted((r["trial"], r["end"]) for r in records) == [
        (t, e) for t in range(members) for e in range(interval, steps + 1, interval)
    ]
    for record in records:
        assert 0.01 <= record["config.lr"] <= 0.5
        assert record["config.weight"] in SPACE["weight"].values
        assert record["config.kind"] in ("a", "b")
    front = experiment.front()
    points = [
        [r["score.near"], -r["score.loss"]] for r in records if not math.isnan(r["score.near"])
    ]
    best = {tuple(points[i]) for i in non_dominated(mopbt.results.np.array(points))}
    assert {(p.scores["near"], -p.scores["loss"]) for p in front} == best
    for point in front:
        walker = loaded(experiment, point)
        schedule = [
            list(ancestor.hp.values())
            for ancestor in experiment.results.lineage(point)
            for _ in range(interval)
        ]
        assert walker.trace == schedule  # the checkpoint was trained with just these values
        assert walker.done == point.step
        assert walker.place**2 == pytest.approx(point.scores["loss"])


# Whole experiments.


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_class_trainable_gives_a_front_whose_models_were_trained_as_the_journal_says(tmp_path):
    grid = tuner(tmp_path, pbt()).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    check_sound(experiment, 6)
    exploited = [r for r in experiment.results.records() if r["parent"] not in (None, r["trial"])]
    assert len(exploited) == 6  # two of six after each of three intervals
    assert all(result.metrics["training_iteration"] == 8 for result in grid)
    assert (
        len(list((tmp_path / "experiment").glob("*/checkpoint_*")))
        <= 6 + len(experiment.front()) + 2
    )
    same = Experiment.open(tmp_path / "experiment")
    assert [p.job for p in same.front()] == [p.job for p in experiment.front()]
    assert by_member(experiment.results) == by_member(own(6))
    with pytest.raises(
        (TuneError, RunMismatch), match="belongs to another experiment; use Tuner.restore"
    ):
        tuner(tmp_path, pbt()).fit()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_training_function_does_as_a_class_does(tmp_path):
    grid = tuner(tmp_path, pbt(), walk, samples=4).fit()
    assert not grid.errors
    check_sound(Experiment.open(grid), 4)
    assert by_member(Experiment.open(grid).results) == by_member(own(4))


def own(population):
    """Return what `mopbt.run` does with the same seed: every experiment is held against it."""
    return mopbt.run(
        WalkerTask(), out=None, population=population, seed=3, engine="local", progress=False
    )


class WalkerTask:
    """The same as a task of our own."""

    space, objectives, interval, steps = SPACE, OBJECTIVES, 2, 8

    def init(self, seed):
        return Walker()

    def train(self, model, hp, begin, end, seed):
        for _ in range(begin, end):
            self.last = model.step(dict(hp.items()))

    def evaluate(self, model):
        return {"near": self.last["near"], "loss": self.last["loss"]}

    def dump(self, model):
        return json.dumps(model.state).encode()

    def load(self, data):
        return Walker(json.loads(data))


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_asynchronously_every_member_is_trained_to_its_end(tmp_path):
    grid = tuner(tmp_path, pbt(asynchronous=True)).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    ends = sorted((r["trial"], r["end"]) for r in experiment.results.records())
    assert ends == [(t, e) for t in range(6) for e in (2, 4, 6, 8)]
    assert all(loaded(experiment, point).trace for point in experiment.front())
    assert all(0.01 <= r["config.lr"] <= 0.5 for r in experiment.results.records())


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_nan_is_replaced_and_constraints_decide_before_objectives(tmp_path):
    scheduler = pbt(constraints=["done_steps >= 4", "near <= 0.6"])
    grid = tuner(tmp_path, scheduler, config={"nan_above": 0.3}).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    records = experiment.results.records()
    nan = [r for r in records if math.isnan(r["score.near"])]
    assert nan, "nobody diverged"
    by_job = {r["job"]: r for r in records}
    after = [
        by_job[s["start"]]
        for r in nan
        for s in records
        if s["trial"] == r["trial"] and s["begin"] == r["end"]
    ]
    assert after
    assert not any(math.isnan(donor["score.near"]) for donor in after)
    assert len(experiment.front())
    assert all(
        p.scores["done_steps"] >= 4 and p.scores["near"] <= 0.6 and p.violation == 0
        for p in experiment.front()
    )


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_moasha_stops_most_trials_at_its_rungs_and_keeps_the_right_ones(tmp_path):
    scheduler = MOASHA(space=SPACE, objectives={"near": "max"}, max_t=9, seed=1)
    grid = tuner(tmp_path, scheduler, samples=9, max_concurrent_trials=None).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    records = experiment.results.records()
    assert {r["end"] for r in records} <= {1, 3, 9}
    assert len([r for r in records if r["end"] == 1]) == 9
    for rung, above in ((1, 3), (3, 9)):
        here = [r for r in records if r["end"] == rung]  # in the order in which they were judged
        went_on = {r["trial"] for r in records if r["end"] == above}
        judged = sorted(here, key=lambda r: r["seconds"])
        expected = {
            r["trial"]
            for i, r in enumerate(judged)
            if r in sorted(judged[: i + 1], key=lambda r: -r["score.near"])[: -(-(i + 1) // 3)]
        }
        assert went_on == expected
    assert all(loaded(experiment, point).done == point.step for point in experiment.front())
    done = sorted(result.metrics["training_iteration"] for result in grid)
    assert done[0] == 1
    assert done[-1] == 9


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_moasha_of_the_promotion_kind_comes_to_an_end(tmp_path):
    scheduler = MOASHA(space=SPACE, objectives={"near": "max"}, max_t=4, kind="promotion", eta=2)
    grid = tuner(tmp_path, scheduler, samples=6).fit()
    assert not grid.errors
    records = Experiment.open(grid).results.records()
    first, second, last = ([r for r in records if r["end"] == end] for end in (1, 2, 4))
    assert len(first) == 6
    best = sorted(first, key=lambda r: -r["score.near"])[:3]
    assert {r["trial"] for r in best} <= {
        r["trial"] for r in second
    }  # and some that were among the best for a while
    assert 1 <= len(last) < len(second) < 6


# Faults.


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_trial_that_fails_is_tried_again_where_tune_may_and_else_the_population_goes_on_without_it(
    tmp_path,
):
    run = {"failure_config": tune.FailureConfig(max_failures=1)}
    grid = tuner(
        tmp_path, pbt(), Fragile, config={"notes": str(tmp_path)}, run=run, samples=4
    ).fit()
    assert len(grid.errors) == 1
    assert sorted(file.name[-1] for file in tmp_path.glob("failed-*")) == ["1", "2"]
    experiment = Experiment.open(grid)
    records = experiment.results.records()
    assert [r["trial"] for r in records if r["error"]] == [2]
    assert sorted((r["trial"], r["end"]) for r in records if r["end"] > 4) == [
        (t, e) for t in (0, 1, 3) for e in (6, 8)
    ]
    assert all(loaded(experiment, point).done == point.step for point in experiment.front())


class Fragile(WalkerTrainable):
    """The second member fails once, the third for good."""

    def step(self):
        result = super().step()
        member, failed = (
            int(self.trial_id[-5:]),
            Path(self.config["notes"]) / f"failed-{int(self.trial_id[-5:])}",
        )
        if self.walker.done == 3 and (member == 2 or (member == 1 and not failed.exists())):
            failed.write_text("")
            raise RuntimeError("on purpose")
        return result


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_an_experiment_that_was_killed_goes_on_where_it_was(tmp_path):
    program = f"""
import ray
import test_ray_tune as t
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
t.tuner({str(tmp_path)!r}, t.pbt(), name="killed", samples=4, config={{"pause": 0.2}}).fit()
"""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RAY_AIR_NEW_OUTPUT": "0"}
    driver = subprocess.Popen([sys.executable, "-c", program], env=place, **options)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and len(reports(tmp_path / "killed")) < 6:
        assert driver.poll() is None, driver.stderr.read().decode()[-3000:]
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    driver.stderr.close()
    before = reports(tmp_path / "killed")
    assert 6 <= len(before) < 16
    restored = tune.Tuner.restore(
        str(tmp_path / "killed"),
        tune.with_resources(WalkerTrainable, {"cpu": 1}),
        param_space={"pause": 0.0},
    )
    grid = restored.fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    after = reports(tmp_path / "killed")
    assert after[: len(before)] == before  # nothing reported was lost or done again
    assert by_member(experiment.results) == by_member(own(4))
    check_sound(experiment, 4)


def reports(folder):
    records = [json.loads(file.read_text()) for file in sorted((folder / "mopbt").glob("*.json"))]
    return [
        report
        for record in records
        for exchange in record["exchanges"]
        for report in exchange.get("reports", ())
    ]


# What is refused.


@pytest.mark.usefixtures("local_ray")
def test_a_function_that_saves_nothing_is_told_so(tmp_path):
    with pytest.raises(
        Exception, match="saved no checkpoint at iteration 2.*must pass `checkpoint=`"
    ):
        tuner(tmp_path, pbt(), walk, config={"forgets": True}, samples=2).fit()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "options", "message"),
    [
        (
            lambda: pbt(),
            {"config": {"lr": 0.1}},
            "'lr': the space of MOPBT says this; leave it out of `param_space`",
        ),
        (
            lambda: pbt(),
            {"config": {"x": tune.grid_search([1, 2])}},
            "more than 6 trials; leave grid_search out",
        ),
        (
            lambda: pbt(),
            {"run": {"checkpoint_config": tune.CheckpointConfig(num_to_keep=2)}},
            "leave `num_to_keep` out",
        ),
        (lambda: pbt(), {"metric": "near", "mode": "max"}, "You passed a `metric` or `mode`"),
        (lambda: pbt(objectives={"far": "max"}), {}, "did not measure the objective 'far'"),
        (lambda: pbt(), {"samples": 1}, "`population` must be a whole number of at least 2, got 1"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(tmp_path, scheduler, options, message):
    with pytest.raises((TuneError, ValueError, RuntimeError)) as caught:
        tuner(tmp_path, scheduler(), **options).fit()
    assert message in str(caught.value) + str(caught.value.__cause__)


def test_wrong_options_are_refused_at_once():
    with pytest.raises(ValueError, match="mo-pbt has no option 'quantile'; it has asynchronous"):
        pbt(quantile=0.5)
    with pytest.raises(ValueError, match="`population` is `num_samples` in TuneConfig"):
        pbt(population=8)
    with pytest.raises(ValueError, match=r"`fraction` must be in \(0, 0.5\]"):
        pbt(fraction=0.7)
    with pytest.raises(ValueError, match="must be a multiple of `interval`"):
        pbt(max_t=7)


def test_a_stranger_is_no_experiment(tmp_path):
    with pytest.raises(StoreError, match="is not an experiment under MOPBT or MOASHA"):
        Experiment.open(tmp_path)


@pytest.mark.slow
def test_other_versions_of_ray_are_refused():
    check_version("2.60.0")
    check_version("2.60.3")
    for version in ("2.59.0", "2.61.0", "3.0.0.dev0", "2.6.1"):
        with pytest.raises(MissingExtra, match=rf"tested with Ray >=2.60,<2.61, got {version}"):
            check_version(version)
    assert (
        ray_tune.TESTED[0] <= tuple(map(int, ray.__version__.split(".")[:2])) < ray_tune.TESTED[1]
    )
