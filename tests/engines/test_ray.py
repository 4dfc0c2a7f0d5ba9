"""Runs on a Ray cluster of several nodes on this machine, and what happens when parts of it die."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import mopbt
from mopbt.cli import main as command_line
from mopbt.device import assigned_device
from mopbt.engines.base import RunContext
from mopbt.engines.ray import Actor, RayEngine
from mopbt.errors import (
    CannotStack,
    MissingExtra,
    MissingScore,
    RunMismatch,
    TaskError,
    WorkerFailed,
)
from mopbt.problem import problem_of
from mopbt.state import Job
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.stores.fsspec import RemoteCheckpoints
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import ToyTask
from mopbt.testing import EngineConformance
from toys import HangingToy, SlowToy, SuicidalToy, UnstackableToy

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*"),
]
TESTS = str(Path(__file__).parent.parent)
MEMORY = 100 * 2**20


@pytest.fixture(scope="module")
def cluster():
    """Start a head node without room for actors, a node that stays, and connect."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=4, object_store_memory=MEMORY)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.usefixtures("cluster")
class TestRay(EngineConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def make(self):
        return RayEngine(2)

    def checkpoints(self):
        return DirectoryCheckpoints(self.folder)


def start(task, folder, *args, **options):
    engine = RayEngine(*args, **options)
    engine.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(folder)))
    return engine


def fresh(*ids, weight=10):
    return [Job(i, i, (weight, 3), None, 0, 2) for i in ids]


def collect(engine, n, seconds=60):
    reports, deadline = [], time.monotonic() + seconds
    while len(reports) < n and time.monotonic() < deadline:
        reports += engine.collect(1.0)
    assert len(reports) == n
    return {report.job: report for report in reports}


def outcomes(results):
    """Return what a run ordered and measured, without times."""
    keys = (
        "model",
        "trial",
        "begin",
        "end",
        "start",
        "hp.weight",
        "hp.lr",
        "score.near",
        "score.far",
    )
    return [{key: record[key] for key in keys} for record in results.records()]


# Complete runs.


@pytest.mark.fast
@pytest.mark.usefixtures("cluster")
def test_a_run_on_ray_is_the_run_in_this_process_and_all_of_its_front_can_be_loaded(tmp_path):
    task = ToyTask(steps=8)
    here = mopbt.run(task, out=tmp_path / "here", population=8, engine="local", progress=False)
    there = mopbt.run(
        task,
        out=tmp_path / "there",
        population=8,
        engine=RayEngine(2),
        storage=tmp_path / "far",
        progress=False,
    )
    assert outcomes(there) == outcomes(here)
    assert not list((tmp_path / "there" / "checkpoints").iterdir())
    opened = mopbt.Results.open(tmp_path / "there", task)
    for point, same in zip(opened.front(), here.front(), strict=True):
        assert opened.load(point)["place"].tolist() == here.load(same)["place"].tolist()
        assert Path(opened.checkpoint_file(point)).parent == tmp_path / "far"
    assert {
        int(file.stem) for file in (tmp_path / "far").iterdir() if file.name != "owner.json"
    } == opened.checkpoints.kept()  # the probe is gone


@pytest.mark.usefixtures("cluster")
def test_an_asynchronous_run_ends_with_every_member_trained(tmp_path):
    task, algorithm = ToyTask(steps=8), mopbt.MOPBT(population=6, asynchronous=True)
    results = mopbt.run(
        task, out=tmp_path / "run", algorithm=algorithm, engine=RayEngine(3), progress=False
    )
    assert (results.outcome, len(results), results.failures) == ("done", 24, {})


@pytest.mark.slow
def test_the_command_line_runs_on_a_cluster_and_resumes_there(cluster, tmp_path):
    program = [sys.executable, "-c", "from mopbt.cli import main; main()"]
    command = [
        *program,
        "run",
        "toy",
        "--population",
        "4",
        "--engine",
        "ray",
        "--address",
        cluster.address,
    ]
    command += [
        "--storage",
        str(tmp_path / "far"),
        "--out",
        str(tmp_path / "run"),
        "--quiet",
        "--json",
    ]
    first = subprocess.run(
        [*command, "--budget-jobs", "8"], capture_output=True, text=True, timeout=120
    )
    assert first.returncode == 3, first.stderr
    resumed = [
        *program,
        "resume",
        str(tmp_path / "run"),
        "--quiet",
        "--json",
    ]  # it knows engine and storage
    second = subprocess.run(resumed, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    printed = json.loads(second.stdout)
    assert (printed["outcome"], printed["intervals"], printed["storage"]) == (
        "done",
        40,
        str(tmp_path / "far"),
    )
    assert all(Path(point["checkpoint"]).parent == tmp_path / "far" for point in printed["front"])
    here = mopbt.run(ToyTask(), out=None, population=4, engine="local", progress=False)
    assert outcomes(mopbt.Results.open(tmp_path / "run")) == outcomes(here)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_actors_train_stacks_as_worker_processes_do(tmp_path):
    from tests.torch.nets import dropping_task

    runs = {}
    for name, engine in {
        "ray": RayEngine(1, stack=3),
        "pool": mopbt.VectorizedEngine(1, stack=3),
    }.items():
        mopbt.run(dropping_task(), out=tmp_path / name, population=6, engine=engine, progress=False)
        exchanges, _ = read_journal(tmp_path / name / "journal.jsonl")
        runs[name] = {
            report.job: report.checksum for exchange in exchanges for report in exchange.reports
        }
    assert len(runs["ray"]) == 24
    assert runs["ray"] == runs["pool"]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", ["numbered", "iterable"])
def test_rows_that_are_read_while_training_are_those_of_other_engines(tmp_path, kind):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'mopbt[torch]'")
    from tests.torch.nets import make_task
    from tests.torch.test_dataset import Rows
    from tests.torch.test_iterable import Stream

    from mopbt.torch import DatasetBatches, IterableBatches

    data = DatasetBatches(Rows(), batch_size=32, loader_workers=1)
    if kind == "iterable":
        data = IterableBatches(Stream(), batch_size=32, updates=3, buffer=40, loader_workers=1)
    runs = []
    for name, engine in {"local": "local", "ray": RayEngine(2)}.items():
        results = mopbt.run(
            make_task(data=data), out=tmp_path / name, population=4, engine=engine, progress=False
        )
        assert not results.failures
        runs.append([point.scores for point in results.points()])
    assert runs[0] == runs[1]


@pytest.mark.usefixtures("cluster")
def test_a_stack_that_fails_is_reported_once_and_its_members_trained_one_by_one(tmp_path):
    engine = start(UnstackableToy(), tmp_path, 1, stack=2)
    engine.submit(fresh(*range(6)), {})
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: no stacks today") as caught:
        reports = collect(engine, 6)
    engine.close()
    assert len([w for w in caught if "one by one" in str(w.message)]) == 1
    assert all(report.objectives is not None for report in reports.values())


# What passes through the driver.


@dataclass(frozen=True)
class HeavyToy(ToyTask):
    """A toy of a megabyte that notes which process trains, and whether it had to load."""

    notes: str = ""

    def init(self, seed):
        return super().init(seed) | {"weights": bytes(2**20)}

    def train(self, model, hp, begin, end, seed):
        with open(self.notes, "a") as file:
            file.write(f"train {os.getpid()}\n")
        return super().train(model, hp, begin, end, seed)

    def load(self, data):
        with open(self.notes, "a") as file:
            file.write("load\n")
        return super().load(data)


@pytest.mark.usefixtures("cluster")
def test_weights_never_pass_through_the_driver_and_stay_in_their_actors(tmp_path):
    sizes = []
    task = HeavyToy(notes=str(tmp_path / "notes"))
    engine = start(task, tmp_path, 2)
    get = engine._ray.get
    engine._ray = type(
        "Spy",
        (),
        {
            "__getattr__": lambda _, name: getattr(sys.modules["ray"], name),
            "get": lambda _, r: spy(r),
        },
    )()

    def spy(reference):
        message = get(reference)
        sizes.append(len(pickle.dumps(message)))
        return message

    engine.submit(
        fresh(100, 101), {}
    )  # has two actors start; quick jobs could all be done by the first that is ready
    collect(engine, 2)
    deadline = time.monotonic() + 60
    while not (len(engine._actors) == 2 and all(actor.is_ready for actor in engine._actors)):
        assert time.monotonic() < deadline
        engine.collect(0.5)
    (tmp_path / "notes").write_text("")
    sizes.clear()
    checksums = {}
    for generation in range(4):
        start_from = [None if not generation else 4 * (generation - 1) + i for i in range(4)]
        engine.submit(
            [
                Job(
                    4 * generation + i, i, (i, 3), start_from[i], 2 * generation, 2 * generation + 2
                )
                for i in range(4)
            ],
            checksums,
        )
        checksums |= {job: report.checksum for job, report in collect(engine, 4).items()}
    engine.close()
    notes = (tmp_path / "notes").read_text().splitlines()
    assert len({line for line in notes if line.startswith("train")}) == 2
    assert sum(line.startswith("train") for line in notes) == 16
    # 12 jobs start from a checkpoint; most find the model in memory.
    assert notes.count("load") <= 4
    assert len(sizes) >= 16
    assert max(sizes) < 2000


# Faults.


@pytest.mark.usefixtures("cluster")
def test_a_dead_actor_is_replaced_and_its_job_repeated_a_few_times(tmp_path):
    (tmp_path / "lives").write_text("2")
    task = SuicidalToy(lives=str(tmp_path / "lives"))
    engine = start(task, tmp_path, 1, retries=2)
    engine.submit(fresh(0, 1), {})
    assert all(report.objectives is not None for report in collect(engine, 2).values())
    assert (tmp_path / "lives").read_text() == "0"
    (tmp_path / "lives").write_text("3")
    engine.submit([*fresh(2), *fresh(3, weight=0)], {})
    reports = collect(engine, 2)
    engine.close()
    assert "died 3 times" in reports[2].error
    assert reports[3].objectives is not None


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_hangs_is_killed_with_its_processes_and_its_job_repeated_once(tmp_path):
    (tmp_path / "left").write_text("3")
    engine = start(HangingToy(left=str(tmp_path / "left")), tmp_path, 1, timeout=1.0)
    engine.submit([*fresh(0), *fresh(1, weight=0)], {})
    reports = collect(engine, 2)
    assert "longer than its time limit of 1 s, 2 times" in reports[0].error
    assert reports[1].objectives is not None
    engine.submit(fresh(2), {})
    assert collect(engine, 1)[2].objectives is not None
    engine.close()
    children = [file.name.split("-")[1] for file in tmp_path.glob("child-*")]
    deadline = time.monotonic() + 10
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 3
    assert not any(map(is_alive, children))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class DeviceToy(ToyTask):
    """A toy that writes down which device its actor has."""

    folder: str = ""
    device: str = "auto"
    actors: int = 1

    def train(self, model, hp, begin, end, seed):
        seen = {key: os.environ.get(key) for key in ("CUDA_VISIBLE_DEVICES", "MOPBT_DEVICE")}
        own = {**seen, "assigned": assigned_device()}
        (Path(self.folder) / f"{os.getpid()}.json").write_text(json.dumps(own))
        # The first actor must not take all jobs before the others have started.
        deadline = time.monotonic() + 60
        while len(list(Path(self.folder).glob("*.json"))) < self.actors:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return super().train(model, hp, begin, end, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "masks", "device"), [(0, 1, "cpu"), (1, 2, "cuda:0"), (2, 1, "cuda:0")]
)
def test_an_actor_sees_only_the_gpus_that_ray_gave_it(cluster, tmp_path, gpus, masks, device):
    node = cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=MEMORY)
    try:
        actors = 2 if gpus == 1 else 1
        task = DeviceToy(folder=str(tmp_path), actors=actors)
        engine = start(task, tmp_path, actors, num_gpus=gpus)
        engine.submit(fresh(*range(12)), {})
        collect(engine, 12)
        engine.close()
    finally:
        cluster.remove_node(node)
    seen = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert {own["assigned"] for own in seen} == {own["MOPBT_DEVICE"] for own in seen} == {device}
    visible = {own["CUDA_VISIBLE_DEVICES"] for own in seen}
    assert len(visible) == masks
    if gpus:
        assert all(len(mask.split(",")) == gpus for mask in visible)
    else:
        assert visible == {"-1"}


@pytest.mark.slow
def test_options_of_the_command_line_reach_the_actors(cluster, tmp_path, monkeypatch):
    node = cluster.add_node(num_cpus=4, num_gpus=2, object_store_memory=MEMORY)
    file = tmp_path / "placed_on_ray.py"
    file.write_text(
        "from test_ray import DeviceToy\n"
        f"task = DeviceToy(folder={str(tmp_path)!r}, steps=4, actors=2)\n"
    )
    arguments = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    arguments += ["--num-cpus", "2", "--num-gpus", "1", "--population", "6", "--quiet"]
    monkeypatch.setattr(
        "sys.argv", ["mopbt", "run", f"{file}:task", "--out", str(tmp_path / "run"), *arguments]
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    try:
        with pytest.raises(SystemExit) as ended:
            command_line()
    finally:
        cluster.remove_node(node)
    assert ended.value.code == 0
    seen = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert {own["assigned"] for own in seen} == {"cuda:0"}
    assert len({own["CUDA_VISIBLE_DEVICES"] for own in seen}) == 2
    assert (tmp_path / "run" / "run.toml").read_text().count("num_gpus = 1.0") == 1


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 1), ("cuda", 0), ("cuda:1", 2)])
def test_a_device_that_actors_do_not_have_is_an_error(tmp_path, device, gpus):
    with pytest.raises(TaskError, match=f"sets device='{device}', but the actors.*`num_gpus`"):
        start(DeviceToy(device=device), tmp_path, 1, num_gpus=gpus)


@pytest.mark.slow
def test_the_death_of_a_node_and_of_what_was_stored_there_costs_time_and_no_job(cluster, tmp_path):
    import ray

    doomed = cluster.add_node(num_cpus=2, resources={"spot": 3}, object_store_memory=MEMORY)
    engine = start(SlowToy(seconds=1.0), tmp_path, 2, resources={"spot": 1})
    engine.submit(fresh(*range(4)), {})
    there = ray.remote(num_cpus=0, resources={"spot": 1}, max_retries=0)(
        lambda: bytes(2**20)
    ).remote()
    ray.wait([there], fetch_local=False)
    first = collect(engine, 1)
    cluster.remove_node(doomed, allow_graceful=False)
    again = cluster.add_node(num_cpus=2, resources={"spot": 2}, object_store_memory=MEMORY)
    rest = collect(engine, 3, seconds=90)
    engine.close()
    assert sorted([*first, *rest]) == [0, 1, 2, 3]
    assert all(report.objectives is not None for report in rest.values())
    cluster.remove_node(again)
    sent_again_where_it_is_lost(there, tmp_path)


def sent_again_where_it_is_lost(lost, folder):
    engine = start(ToyTask(), folder, 1)
    engine._payload_reference = lost  # in place of the task that was put into Ray's store
    engine.submit(fresh(9), {})
    assert collect(engine, 1)[9].objectives is not None
    assert engine._payload_reference != lost
    engine.close()


@pytest.mark.slow
def test_nodes_that_come_later_are_used(cluster, tmp_path):
    (tmp_path / "asked").mkdir()
    asked = start(ToyTask(), tmp_path / "asked", 1, resources={"late": 1})
    grown = start(
        PlaceToy(seconds=0.3), tmp_path, num_cpus=4
    )  # as many as there is room for: one actor now
    asked.submit(fresh(0), {})
    assert asked.collect(1.0) == []
    grown.submit(fresh(0), {})
    collect(grown, 1)
    assert grown.capacity == 2
    node = cluster.add_node(num_cpus=4, resources={"late": 1}, object_store_memory=MEMORY)
    assert collect(asked, 1)[0].objectives is not None
    asked.close()
    grown.submit(fresh(*range(1, 40)), {})
    places = {report.scores["place"] for report in collect(grown, 39).values()}
    assert grown.capacity == 4
    assert len(places) == 2
    grown.close()
    cluster.remove_node(node)


@dataclass(frozen=True)
class PlaceToy(SlowToy):
    """A toy that measures in which process it was."""

    def evaluate(self, model):
        return super().evaluate(model) | {"place": float(os.getpid())}


@dataclass(frozen=True)
class UnevenToy(ToyTask):
    """A toy that is slow in the first process, as on a slow node: slower than 20 jobs elsewhere."""

    folder: str = ""

    def train(self, model, hp, begin, end, seed):
        try:
            owner = open(Path(self.folder) / "owner", "x")  # noqa: SIM115
            owner.write(str(os.getpid()))
            owner.close()
        except FileExistsError:
            pass
        time.sleep(0.01)
        slow = (Path(self.folder) / "owner").read_text() == str(os.getpid())
        deadline = time.monotonic() + 30
        while slow and time.monotonic() < deadline and self.done() < 20:
            time.sleep(0.05)
        time.sleep(1.0 if slow else 0.02)
        with open(Path(self.folder) / "notes", "a") as file:
            file.write("slow\n" if slow else "quick\n")
        return super().train(model, hp, begin, end, seed)

    def done(self):
        notes = Path(self.folder) / "notes"
        return len(notes.read_text().split()) if notes.exists() else 0


@pytest.mark.usefixtures("cluster")
def test_a_slow_node_does_not_delay_an_asynchronous_run(tmp_path):
    task, algorithm = (
        UnevenToy(steps=8, folder=str(tmp_path)),
        mopbt.MOPBT(population=6, asynchronous=True),
    )
    results = mopbt.run(
        task, out=tmp_path / "run", algorithm=algorithm, engine=RayEngine(3), progress=False
    )
    notes = (tmp_path / "notes").read_text().split()
    assert len(results) == len(notes) == 24
    # All others are trained by then: no job waited behind the slow one.
    assert notes.index("slow") == 20
    # The slow member continues elsewhere, although the slow node has its model.
    assert notes.count("slow") == 1


@pytest.mark.slow
def test_a_killed_driver_leaves_a_run_that_resumes_to_the_same_results(cluster, tmp_path):
    program = f"""
import sys
sys.path.insert(0, {TESTS!r})
import mopbt
from toys import SlowToy
engine = mopbt.RayEngine(2, address={cluster.address!r})
task, out = SlowToy(seconds=0.2, steps=12), {str(tmp_path / "run")!r}
mopbt.run(task, out=out, population=6, engine=engine, progress=False)
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    journal, deadline = tmp_path / "run" / "journal.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (
        journal.exists() and journal.read_bytes().count(b'"reports"') >= 9
    ):
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stderr.close()
    broken = sum(len(exchange.reports) for exchange in read_journal(journal)[0])
    assert 9 <= broken < 36
    task = SlowToy(seconds=0.0, steps=12)
    results = mopbt.run(
        task, out=tmp_path / "run", population=6, engine=RayEngine(2), progress=False
    )
    unbroken = mopbt.run(task, out=None, population=6, engine="local", progress=False)
    assert outcomes(results) == outcomes(unbroken)
    assert [point.model for point in results.front()] == [point.model for point in unbroken.front()]
    assert all(results.load(point) for point in results.front())


@pytest.mark.usefixtures("cluster")
def test_close_ends_actors_in_the_middle_of_a_job_and_leaves_no_probe(tmp_path):
    engine = start(PlaceToy(seconds=0.0), tmp_path, 1)
    engine.submit(fresh(0), {})
    process = int(collect(engine, 1)[0].scores["place"])
    engine.submit(fresh(1), {})
    engine.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()
    assert not (tmp_path / "-1.ckpt").exists()


# What is refused.


@pytest.mark.usefixtures("cluster")
def test_storage_that_actors_do_not_see_ends_the_run_with_a_remedy():
    engine, task = RayEngine(1), ToyTask()
    engine.start(RunContext(task, problem_of(task), 0, RemoteCheckpoints("memory://driver-only")))
    engine.submit(fresh(0), {})
    with pytest.raises(
        WorkerFailed,
        match="does not see the run's checkpoints.*set `storage` to a place that all nodes reach",
    ):
        collect(engine, 1)
    engine.close()


@pytest.mark.usefixtures("cluster")
def test_a_broken_contract_comes_back_as_the_error_itself(tmp_path):
    engine = start(SilentToy(), tmp_path, 1)
    engine.submit(fresh(0), {})
    with pytest.raises(MissingScore, match="did not measure the objective 'far'"):
        collect(engine, 1)
    engine.close()


@dataclass(frozen=True)
class SilentToy(ToyTask):
    """A toy that leaves an objective out."""

    def evaluate(self, model):
        return {"near": 0.5}


@pytest.mark.usefixtures("cluster")
def test_what_no_node_has_ends_the_run_after_a_while(tmp_path):
    engine = start(ToyTask(), tmp_path, 1, resources={"unicorn": 0.5}, patience=0.5)
    engine.submit(fresh(0), {})
    with pytest.raises(
        WorkerFailed,
        match=r"could start for 0.5 seconds: each needs 1 CPU, 0.5 unicorn, free are .*CPU",
    ):
        collect(engine, 1)
    engine.close()


def test_a_task_that_an_actor_cannot_read_is_an_error_that_says_so(tmp_path):
    answer = Actor().prepare(b"not a pickle", [], 0, "", None)
    assert isinstance(answer, WorkerFailed)
    assert "cannot read the task" in str(answer)
    assert "runtime_env" in str(answer)


def test_refuses_wrong_arguments(tmp_path):
    for options in ({"workers": 0}, {"stack": 0}, {"retries": -1}, {"workers": True}):
        with pytest.raises(ValueError, match="must be a whole number of at least"):
            RayEngine(**options)
    for options in (
        {"num_cpus": -1},
        {"num_gpus": "one"},
        {"resources": {"tpu": float("inf")}},
        {"patience": float("nan")},
    ):
        with pytest.raises(ValueError, match="must be a number of at least 0"):
            RayEngine(**options)
    with pytest.raises(ValueError, match="`workers` must be given"):
        RayEngine(num_cpus=0)
    with pytest.raises(CannotStack, match="has no `train_many`"):
        start(ToyTask(), tmp_path, 1, stack=2)
    with pytest.raises(ValueError, match="for engine='ray', got it for 'pool'"):
        mopbt.engines.auto.engine_spec("pool", ToyTask(), 8, address="auto")


def test_without_ray_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mopbt\[ray\]'"):
        start(ToyTask(), tmp_path, 1)


@pytest.mark.slow
def test_a_place_for_checkpoints_belongs_to_one_run_and_a_run_to_one_place(tmp_path):
    options = {"population": 4, "engine": "local", "progress": False}
    mopbt.run(ToyTask(steps=4), out=tmp_path / "a", storage=tmp_path / "far", **options)
    with pytest.raises(RunMismatch, match="belongs to another run"):
        mopbt.run(ToyTask(steps=4), out=tmp_path / "b", storage=tmp_path / "far", **options)
    with pytest.raises(RunMismatch, match="leave it out, or use another directory"):
        mopbt.run(ToyTask(steps=4), out=tmp_path / "a", storage=tmp_path / "elsewhere", **options)
    with pytest.raises(ValueError, match="`storage` needs `out`"):
        mopbt.run(ToyTask(steps=4), out=None, storage=tmp_path / "elsewhere", **options)
    again = mopbt.run(ToyTask(steps=4), out=tmp_path / "a", **options)  # it knows where
    assert again.outcome == "complete"
    assert all(again.load(point) for point in again.front())
