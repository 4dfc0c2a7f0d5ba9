"""Checkpoints that are streamed, and those of a front without what only training needs."""

import io
import queue
import threading

import pytest

import mopbt
from mopbt import Results, dumps, loads, reduction
from mopbt.cli.output import summary_of
from mopbt.engines import worker
from mopbt.engines.base import ModelCache, RunContext
from mopbt.errors import CorruptCheckpoint, StoreError
from mopbt.problem import problem_of
from mopbt.serialization import dump_to, load_from, rewrite, size_of
from mopbt.state import Job
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.tasks.toy import ToyTask
from mopbt.verify import verify

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'mopbt[torch]'")

from tests.torch.nets import make_task, rows  # noqa: E402

QUIET = {"engine": "local", "progress": False, "population": 6}


@pytest.fixture
def reduced_at_any_size(monkeypatch):
    monkeypatch.setattr(reduction, "LARGE_CHECKPOINT", 1)


def tree():
    weights = {"a": torch.randn(3, 2), "b": torch.arange(4), "empty": torch.zeros(0)}
    return {"model": weights, "optimizer": {"m": torch.randn(2**18 + 3)}, "updates": 3}


def test_a_streamed_tree_has_the_same_bytes():
    whole = tree()
    file = io.BytesIO()
    dump_to(whole, file)
    assert file.getvalue() == dumps(whole)
    assert size_of(whole) == len(dumps(whole))
    restored = load_from(file)
    assert torch.equal(restored["optimizer"]["m"], whole["optimizer"]["m"])
    assert restored["model"]["empty"].shape == (0,)


def test_a_file_that_ends_too_early_is_damaged():
    with pytest.raises(ValueError, match="damaged"):
        load_from(io.BytesIO(dumps(tree())[:-1]))


@pytest.mark.parametrize(("half", "error"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_rounded_tensors_take_half_the_space_and_get_their_type_back(half, error):
    weights = torch.randn(1000)
    source = io.BytesIO(dumps({"w": weights, "n": torch.arange(5), "rest": [torch.zeros(9)]}))
    target = io.BytesIO()
    rewrite(source, target, lambda tree: {"w": tree["w"], "n": tree["n"]}, half)
    assert len(target.getvalue()) < 2000 + 500
    restored = loads(target.getvalue())
    assert restored.keys() == {"w", "n"}
    assert restored["w"].dtype == torch.float32
    assert 0 < (restored["w"] - weights).abs().max() < 4 * error
    assert torch.equal(restored["n"], torch.arange(5))


def test_a_tensor_that_float16_cannot_hold_stays_as_it_is():
    large = torch.tensor([1e6, 1.0 + 2**-20])
    target = io.BytesIO()
    rewrite(io.BytesIO(dumps({"large": large})), target, lambda tree: tree, "float16")
    assert torch.equal(loads(target.getvalue())["large"], large)


def test_a_written_checkpoint_is_absent_until_it_is_committed(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    pending = checkpoints.create(7)
    pending.write(b"one")
    pending.write(memoryview(b"two"))
    assert checkpoints.kept() == frozenset()
    checksum = pending.commit()
    assert checkpoints.load(7, checksum) == b"onetwo"
    with checkpoints.open(7, checksum) as file:
        assert file.read() == b"onetwo"
    discarded = checkpoints.create(8)
    discarded.write(b"half")
    discarded.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["7.ckpt"]


def test_a_killed_writer_leaves_a_file_that_is_removed(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checkpoints.create(7).write(b"half")
    assert list(tmp_path.iterdir())
    checkpoints.remove_leftovers()
    assert not list(tmp_path.iterdir())


def test_a_reduced_checkpoint_is_a_model_but_not_a_checkpoint(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(3, b"model and more")
    checkpoints.reduce(3, checksum, lambda source, target: target.write(source.read(5)))
    assert checkpoints.kept() == {3}
    with checkpoints.open_model(3, checksum) as file:
        assert file.read() == b"model"
    with pytest.raises(CorruptCheckpoint, match="does not exist"):
        checkpoints.load(3, checksum)
    with pytest.raises(CorruptCheckpoint, match="does not exist"):
        checkpoints.open(3, checksum)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"modem")
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        checkpoints.open_model(3, checksum)
    checkpoints.drop([3])
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_not_reduced(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(3, b"model and more")
    checkpoints.file(3).write_bytes(b"model and mare")
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        checkpoints.reduce(3, checksum, lambda source, target: target.write(source.read()))
    assert [path.name for path in tmp_path.iterdir()] == ["3.ckpt"]


def test_after_a_crash_between_two_files_the_whole_one_counts(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(3, b"model and more")
    checkpoints.reduce(3, checksum, lambda source, target: target.write(source.read(5)))
    checkpoints.save(3, b"model and more")
    assert checkpoints.reduced_checksum(3) == ""
    with checkpoints.open_model(3, checksum) as file:
        assert file.read() == b"model and more"
    checkpoints.drop([3])
    assert not list(tmp_path.iterdir())


def checksums_of(results):
    """Return the checksums of the reports of a run, in the order of the journal."""
    reports = results.history.reports
    return [reports.checksum(row) for row in range(len(reports))]


def only_on_the_front(results):
    """Return the models whose checkpoints are reduced."""
    names = [path.name for path in (results.path / "checkpoints").glob("*.model")]
    return {int(name.partition(".")[0]) for name in names}


@pytest.mark.usefixtures("reduced_at_any_size")
def test_a_front_has_models_and_members_have_checkpoints(tmp_path):
    task = make_task(test=rows(64, seed=2), steps=6)
    results = mopbt.run(task, out=tmp_path / "run", **QUIET)
    reduced = only_on_the_front(results)
    assert reduced
    assert reduced <= {point.model for point in results.front()}
    for model in reduced:
        assert results.load(model)["optimizer"] == {}
        assert results.load(model)["model"].keys() == task.init(0)["model"].keys()
        assert str(results.checkpoint_file(model)).endswith(".model")
    assert verify(results.path).findings == []
    files = [path for path in results.path.glob("checkpoints/[0-9]*")]
    assert summary_of(results)["checkpoints"] == len(files)
    assert summary_of(results)["bytes"] == sum(path.stat().st_size for path in files)
    # The decisions, reports and evaluations are those of a run with whole checkpoints.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction, "LARGE_CHECKPOINT", 2**40)
        whole = mopbt.run(task, out=tmp_path / "whole", **QUIET)
    assert not only_on_the_front(whole)
    assert checksums_of(whole) == checksums_of(results)
    assert [p.scores for p in whole.front()] == [p.scores for p in results.front()]
    measured = [[e.scores for e in r.evaluations] for r in (whole, results)]
    assert measured[0] == measured[1]


@pytest.mark.usefixtures("reduced_at_any_size")
def test_a_reduced_run_resumes_extends_and_starts_another_one(tmp_path):
    task = make_task(steps=6)
    straight = mopbt.run(task, out=tmp_path / "straight", **QUIET)
    for jobs in (9, 20):
        budget = mopbt.Budget(jobs=jobs)
        mopbt.run(task, out=tmp_path / "run", budget=budget, **QUIET)
    resumed = mopbt.run(task, out=tmp_path / "run", **QUIET)
    assert [p.scores for p in resumed.front()] == [p.scores for p in straight.front()]
    assert only_on_the_front(resumed)
    extended = mopbt.run(task, out=tmp_path / "run", extend={"steps": 8}, **QUIET)
    assert not extended.failures
    warm = mopbt.run(task, out=tmp_path / "warm", warm_start=tmp_path / "run", **QUIET)
    assert not warm.failures


def test_models_of_a_front_are_stored_in_half_precision(tmp_path):
    task = make_task(steps=6)
    results = mopbt.run(task, out=tmp_path / "run", keep_precision="bf16", **QUIET)
    assert Results.open(tmp_path / "run").settings.keep_precision == "bf16"
    for model in only_on_the_front(results):
        weights = results.load(model)["model"]
        assert all(tensor.dtype == torch.float32 for tensor in weights.values())
        assert all(torch.equal(t, t.bfloat16().float()) for t in weights.values())
    assert only_on_the_front(results)
    with pytest.raises(mopbt.errors.RunMismatch, match="keep_precision"):
        mopbt.run(task, out=tmp_path / "run", keep_precision="fp16", **QUIET)


@pytest.mark.parametrize("precision", ["fp32", "half", 16])
def test_another_precision_of_models_is_an_error(precision, tmp_path):
    with pytest.raises(ValueError, match="`keep_precision` must be one of None, 'fp16', 'bf16'"):
        mopbt.run(ToyTask(), out=tmp_path / "run", keep_precision=precision, **QUIET)


def test_half_precision_needs_a_task_that_can(tmp_path):
    with pytest.raises(ValueError, match="`keep_precision` needs a TorchTask"):
        mopbt.run(ToyTask(), out=tmp_path / "run", keep_precision="fp16", **QUIET)


@pytest.mark.usefixtures("reduced_at_any_size")
def test_optimizers_of_a_training_function_are_left_out(tmp_path):
    x, y = rows()

    def train(m):
        model = torch.nn.Linear(6, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=m.hp["lr"])
        m.track(model=model, optimizer=optimizer)
        for _ in m.steps():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        said = model(x).argmax(1)
        measured = y if m.rows == "validation" else 1 - y
        m.report(
            hits=float((said & measured).sum()), rejected=float(((1 - said) & (1 - measured)).sum())
        )

    results = mopbt.run(
        train,
        out=tmp_path / "run",
        space={"lr": mopbt.LogGrid(1e-3, 1.0, 10)},
        objectives={"hits": "max", "rejected": "max"},
        steps=6,
        rows=("test",),
        **QUIET,
    )
    reduced = only_on_the_front(results)
    assert reduced
    for model in reduced:
        assert results.load(model).keys() == {"model"}
        assert results.evaluate("test", [model], seeds=[1])[0].scores["hits"] >= 0


class SlowCheckpoints(DirectoryCheckpoints):
    """Checkpoints whose commits wait for the test."""

    def __init__(self, path):
        super().__init__(path)
        self.may_commit = threading.Semaphore(0)

    def save(self, id, data):
        self.may_commit.acquire()
        return super().save(id, data)


class CountingToy(ToyTask):
    """A task that reports what it does."""

    events: "queue.Queue[str]" = queue.Queue()

    def train(self, model, hp, begin, end, seed):
        self.events.put("train")
        return super().train(model, hp, begin, end, seed)

    def dump(self, model):
        self.events.put("dump")
        return super().dump(model)


def test_a_worker_trains_the_next_job_but_has_one_unsaved_checkpoint(tmp_path):
    task = CountingToy()
    checkpoints = SlowCheckpoints(tmp_path)
    context = RunContext(task, problem_of(task), 0, checkpoints)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    answers: queue.Queue[worker.Answer] = queue.Queue()
    arguments = (context, ModelCache(0), inbox, answers.put)
    threading.Thread(target=worker._serve, args=arguments, daemon=True).start()
    for id in range(3):
        job = Job(id, id, (1, 3), None, 0, task.interval)
        inbox.put(worker.pickle.dumps([(job, {})]))
    seen = [task.events.get(timeout=10) for _ in range(3)]
    # The second job trains while the first one is not saved, and waits before it is serialized.
    assert seen == ["train", "dump", "train"]
    with pytest.raises(queue.Empty):
        task.events.get(timeout=0.3)
    assert answers.empty()
    for id in range(3):
        checkpoints.may_commit.release()
        (report,) = answers.get(timeout=10).reports
        assert report.job == id
        assert checkpoints.load(id, report.checksum)


def test_training_takes_the_memory_of_a_member_that_was_read_from_a_file():
    task = make_task()
    start = task.train(task.init(0), {"lr": 0.1}, 0, 1, 0)
    file = io.BytesIO(task.dump(start))
    read = task.load_from(file)
    trained = task.train(read, {"lr": 0.1}, 1, 2, 0)
    assert not read["model"]
    again = task.train(start, {"lr": 0.1}, 1, 2, 0)
    assert task.dump(trained) == task.dump(again)
    assert start["model"]


def test_a_full_disk_stops_the_run_instead_of_failing_a_member(tmp_path, monkeypatch):
    def fail(self, data):
        raise StoreError("no space left")

    monkeypatch.setattr("mopbt.filesystem.NewFile.write", fail)
    with pytest.raises(StoreError, match="no space left"):
        mopbt.run(make_task(), out=tmp_path / "run", **QUIET)
