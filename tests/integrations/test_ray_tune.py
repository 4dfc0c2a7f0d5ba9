"""Experiments of Ray Tune with our schedulers, for `Trainable` classes and functions."""

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
from mopbt.errors import MissingExtra, RunMismatch
from mopbt.metrics import non_dominated

ray = pytest.importorskip("ray")
from ray import tune  # noqa: E402
from ray.tune.error import TuneError  # noqa: E402

from mopbt.integrations import ray_tune  # noqa: E402
from mopbt.integrations.ray_tune import MOASHA, MOPBT, Experiment, check_version  # noqa: E402

# All of these warnings come from Ray.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
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
def _close_files_of_ray_tune():
    """Collect the files that Ray Tune leaves open, so that no later test gets their warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Walker:
    """A point that moves towards 1 or 0 and keeps a trace of its hyperparameters."""

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
    walker = Walker()
    checkpoint = tune.get_checkpoint()
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


def load(experiment, point):
    with experiment.checkpoint(point).as_directory() as folder:
        return Walker(json.loads((Path(folder) / "walker.json").read_text()))


def by_member(results):
    """Return the jobs and metrics of each member, independent of the order of the members."""
    jobs = {record["model"]: record for record in results.records()}

    def summarize(record):
        parent = jobs.get(record["start"])
        donor = None if parent is None else (parent["trial"], parent["end"])
        return (
            record["trial"],
            record["begin"],
            record["end"],
            donor,
            *(record[f"hp.{n}"] for n in SPACE),
            record["score.near"],
        )

    return sorted(map(summarize, jobs.values()), key=lambda row: row[:2])


def check_experiment(experiment, members, steps=8, interval=2):
    """Check that a synchronous experiment is complete, within bounds and as trained."""
    records = experiment.results.records()
    assert sorted((r["trial"], r["end"]) for r in records) == [
        (t, e) for t in range(members) for e in range(interval, steps + 1, interval)
    ]
    for record in records:
        assert 0.01 <= record["hp.lr"] <= 0.5
        assert record["hp.weight"] in SPACE["weight"].values
        assert record["hp.kind"] in ("a", "b")
    front = experiment.front()
    points = [
        [r["score.near"], -r["score.loss"]] for r in records if not math.isnan(r["score.near"])
    ]
    best = {tuple(points[i]) for i in non_dominated(mopbt.results.np.array(points))}
    assert {(p.scores["near"], -p.scores["loss"]) for p in front} == best
    for point in front:
        walker = load(experiment, point)
        schedule = [
            list(ancestor.hp.values())
            for ancestor in experiment.results.lineage(point)
            for _ in range(interval)
        ]
        # The checkpoint was trained with exactly these hyperparameters.
        assert walker.trace == schedule
        assert walker.done == point.step
        assert walker.place**2 == pytest.approx(point.scores["loss"])


# Complete experiments.


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_the_front_of_a_class_was_trained_as_the_journal_says(tmp_path):
    grid = tuner(tmp_path, pbt()).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    check_experiment(experiment, 6)
    exploited = [r for r in experiment.results.records() if r["parent"] not in (None, r["trial"])]
    # Two of six members after each of three intervals.
    assert len(exploited) == 6
    assert all(result.metrics["training_iteration"] == 8 for result in grid)
    checkpoints = list((tmp_path / "experiment").glob("*/checkpoint_*"))
    assert len(checkpoints) <= 6 + len(experiment.front()) + 2
    same = Experiment.open(tmp_path / "experiment")
    assert [p.model for p in same.front()] == [p.model for p in experiment.front()]
    assert by_member(experiment.results) == by_member(run_without_tune(6))
    message = "belongs to another experiment.*Tuner.restore.*another `name`"
    with pytest.raises((TuneError, RunMismatch), match=message):
        tuner(tmp_path, pbt()).fit()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_training_function_gives_the_same_results_as_a_class(tmp_path):
    grid = tuner(tmp_path, pbt(), walk, samples=4).fit()
    assert not grid.errors
    check_experiment(Experiment.open(grid), 4)
    assert by_member(Experiment.open(grid).results) == by_member(run_without_tune(4))


def run_without_tune(population):
    """Return the results of `mopbt.run` with the same seed, which experiments must reproduce."""
    return mopbt.run(
        WalkerTask(), out=None, population=population, seed=3, engine="local", progress=False
    )


class WalkerTask:
    """The walker as a task of `mopbt.run`."""

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
def test_an_asynchronous_experiment_trains_every_member_to_the_end(tmp_path):
    grid = tuner(tmp_path, pbt(asynchronous=True)).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    ends = sorted((r["trial"], r["end"]) for r in experiment.results.records())
    assert ends == [(t, e) for t in range(6) for e in (2, 4, 6, 8)]
    assert all(load(experiment, point).trace for point in experiment.front())
    assert all(0.01 <= r["hp.lr"] <= 0.5 for r in experiment.results.records())


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_nan_is_replaced_and_constraints_decide_before_objectives(tmp_path):
    scheduler = pbt(constraints=["done_steps >= 4", "near <= 0.6"])
    grid = tuner(tmp_path, scheduler, config={"nan_above": 0.3}).fit()
    assert not grid.errors
    experiment = Experiment.open(grid)
    records = experiment.results.records()
    nan = [r for r in records if math.isnan(r["score.near"])]
    assert nan, "no member diverged"
    by_job = {r["model"]: r for r in records}
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
        continued = {r["trial"] for r in records if r["end"] == above}
        reached = [r for r in records if r["end"] == rung]
        reached.sort(key=lambda r: r["seconds"])
        expected = set()
        for count, record in enumerate(reached, 1):
            best = sorted(reached[:count], key=lambda r: -r["score.near"])[: math.ceil(count / 3)]
            if record in best:
                expected.add(record["trial"])
        assert continued == expected
    assert all(load(experiment, point).done == point.step for point in experiment.front())
    done = sorted(result.metrics["training_iteration"] for result in grid)
    assert done[0] == 1
    assert done[-1] == 9


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_moasha_with_promotion_ends(tmp_path):
    scheduler = MOASHA(space=SPACE, objectives={"near": "max"}, max_t=4, kind="promotion", eta=2)
    grid = tuner(tmp_path, scheduler, samples=6).fit()
    assert not grid.errors
    records = Experiment.open(grid).results.records()
    first, second, last = ([r for r in records if r["end"] == end] for end in (1, 2, 4))
    assert len(first) == 6
    best = sorted(first, key=lambda r: -r["score.near"])[:3]
    # Trials that were among the best only for a while are promoted as well.
    assert {r["trial"] for r in best} <= {r["trial"] for r in second}
    assert 1 <= len(last) < len(second) < 6


# Faults.


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_failed_trial_is_retried_and_then_removed_from_the_population(tmp_path):
    run = {"failure_config": tune.FailureConfig(max_failures=1)}
    grid = tuner(
        tmp_path, pbt(), Fragile, config={"notes": str(tmp_path)}, run=run, samples=4
    ).fit()
    assert len(grid.errors) == 1
    assert sorted(file.name[-1] for file in tmp_path.glob("failed-*")) == ["1", "2"]
    experiment = Experiment.open(grid)
    records = experiment.results.records()
    assert [r["trial"] for r in records if r["error"]] == [2]
    assert [trial for _, trial in experiment.results.history.departures] == [2]
    assert sorted((r["trial"], r["end"]) for r in records if r["end"] > 4) == [
        (t, e) for t in (0, 1, 3) for e in (6, 8)
    ]
    assert all(load(experiment, point).done == point.step for point in experiment.front())


class Fragile(WalkerTrainable):
    """Member 1 fails once, member 2 every time."""

    def step(self):
        result = super().step()
        member = int(self.trial_id[-5:])
        failed = Path(self.config["notes"]) / f"failed-{member}"
        if self.walker.done == 3 and (member == 2 or (member == 1 and not failed.exists())):
            failed.write_text("")
            raise RuntimeError("on purpose")
        return result


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
def test_a_killed_experiment_resumes_where_it_was(tmp_path):
    program = f"""
import ray
import test_ray_tune as t
memory = 100 * 2**20
quiet = {{"include_dashboard": False, "log_to_driver": False}}
ray.init("local", num_cpus=2, object_store_memory=memory, **quiet)
t.tuner({str(tmp_path)!r}, t.pbt(), name="killed", samples=4, config={{"pause": 0.2}}).fit()
"""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_AIR_NEW_OUTPUT": "0"}
    driver = subprocess.Popen([sys.executable, "-c", program], env=environment, **options)
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
    # No report was lost or repeated.
    assert after[: len(before)] == before
    assert by_member(experiment.results) == by_member(run_without_tune(4))
    check_experiment(experiment, 4)


def reports(folder):
    records = [json.loads(file.read_text()) for file in sorted((folder / "mopbt").glob("*.json"))]
    return [
        report
        for record in records
        for exchange in record["exchanges"]
        for report in exchange.get("reports", ())
    ]


# Errors.


@pytest.mark.usefixtures("local_ray")
def test_a_function_that_saves_no_checkpoint_is_an_error(tmp_path):
    message = "saved no checkpoint at iteration 2.*must pass `checkpoint=`.*every 2 iterations"
    with pytest.raises(Exception, match=message):
        tuner(tmp_path, pbt(), walk, config={"forgets": True}, samples=2).fit()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "options", "message"),
    [
        (
            lambda: pbt(),
            {"config": {"lr": 0.1}},
            "'lr' is in the space of MOPBT; leave it out of `param_space`",
        ),
        (
            lambda: pbt(),
            {"config": {"x": tune.grid_search([1, 2])}},
            "more than 6 trials (`num_samples`); leave grid_search out",
        ),
        (
            lambda: pbt(),
            {"run": {"checkpoint_config": tune.CheckpointConfig(num_to_keep=2)}},
            "leave `num_to_keep` out of CheckpointConfig, got 2",
        ),
        (lambda: pbt(), {"metric": "near", "mode": "max"}, "You passed a `metric` or `mode`"),
        (lambda: pbt(objectives={"far": "max"}), {}, "did not measure the objective 'far'"),
        (lambda: pbt(), {"samples": 1}, "`population` must be a whole number of at least 2, got 1"),
    ],
)
def test_arguments_of_ray_tune_that_conflict_are_errors_with_a_remedy(
    tmp_path, scheduler, options, message
):
    with pytest.raises((TuneError, ValueError, RuntimeError)) as caught:
        tuner(tmp_path, scheduler(), **options).fit()
    assert message in str(caught.value) + str(caught.value.__cause__)


@pytest.mark.slow
def test_other_versions_of_ray_are_errors():
    check_version("2.60.0")
    check_version("2.60.3")
    for version in ("2.59.0", "2.61.0", "3.0.0.dev0", "2.6.1"):
        with pytest.raises(MissingExtra, match=rf"tested with Ray >=2.60,<2.61, got {version}"):
            check_version(version)
    installed = tuple(map(int, ray.__version__.split(".")[:2]))
    first, end = ray_tune.TESTED_VERSIONS
    assert first <= installed < end
