"""Checkpoints through fsspec: in memory, in folders, and on a local S3 server."""

import pickle
import sys
import uuid

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mopbt
from mopbt.errors import CorruptCheckpoint, MissingExtra, StoreError
from mopbt.stores import base
from mopbt.stores.base import checksum_of
from mopbt.stores.directory import DirectoryCheckpoints, DirectoryStore
from mopbt.stores.fsspec import RemoteCheckpoints, check_reachable, checkpoints_at, is_remote
from mopbt.tasks.toy import ToyTask
from mopbt.testing import StoreConformance


class Remote(StoreConformance):
    """A store in a directory with checkpoints elsewhere."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path / "run"
        self.url = f"{self.place(tmp_path)}/{uuid.uuid4().hex}"

    def make(self):
        return DirectoryStore(self.folder, checkpoints=RemoteCheckpoints(self.url))

    def reopen(self, store):
        store.close()
        return DirectoryStore(
            self.folder, checkpoints=pickle.loads(pickle.dumps(store.checkpoints))
        )


class TestInMemory(Remote):
    def place(self, tmp_path):
        return "memory://checkpoints"


class TestInFolders(Remote):
    def place(self, tmp_path):
        return f"file://{tmp_path}/not/there/yet"


@given(
    st.dictionaries(st.integers(0, 10**6), st.binary(max_size=200)), st.sets(st.integers(0, 10**6))
)
def test_saved_checkpoints_can_be_loaded_until_they_are_dropped(contents, others):
    checkpoints = RemoteCheckpoints(f"memory://{uuid.uuid4().hex}")
    sums = {id: checkpoints.save(id, data) for id, data in contents.items()}
    assert sums == {id: checksum_of(data) for id, data in contents.items()}
    checkpoints.drop(others)
    assert checkpoints.kept() == contents.keys() - others
    assert {id: checkpoints.load(id, sums[id]) for id in checkpoints.kept()} == {
        i: contents[i] for i in contents.keys() - others
    }


def test_a_damaged_or_missing_object_is_noticed_and_named():
    checkpoints = RemoteCheckpoints("memory://damaged/run/")
    checksum = checkpoints.save(3, b"weights")
    assert checkpoints.file(3) == "memory://damaged/run/3.ckpt"
    fsspec.filesystem("memory").pipe_file("/damaged/run/3.ckpt", b"weight")
    with pytest.raises(
        CorruptCheckpoint,
        match="memory://damaged/run/3.ckpt is damaged: .* `mopbt replay RUN 3 --export ",
    ):
        checkpoints.load(3, checksum)
    with pytest.raises(
        CorruptCheckpoint,
        match="memory://damaged/run/4.ckpt does not exist: .* `mopbt replay RUN 4 --export ",
    ):
        checkpoints.load(4, checksum)


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError(), RuntimeError("s")])
def test_a_lost_connection_is_retried_and_is_not_a_damaged_checkpoint(monkeypatch, error):
    monkeypatch.setattr(base, "RETRY_PAUSES", (0.0, 0.0))
    checkpoints = RemoteCheckpoints("memory://lost")
    checksum = checkpoints.save(3, b"weights")
    answers = [error, error, b"weights", error, error, error]

    def cat_file(path):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(checkpoints.file_system(), "cat_file", cat_file)
    assert checkpoints.load(3, checksum) == b"weights"
    with pytest.raises(StoreError, match=r"memory://lost/3\.ckpt after 3 attempts") as caught:
        checkpoints.load(3, checksum)
    assert type(error).__name__ in str(caught.value)
    assert not isinstance(caught.value, CorruptCheckpoint)


@pytest.mark.parametrize("error", [TimeoutError("slow"), PermissionError("no"), RuntimeError("s")])
def test_a_save_is_retried_and_then_stops_the_run_without_a_failed_interval(
    tmp_path, monkeypatch, error
):
    monkeypatch.setattr(base, "RETRY_PAUSES", (0.0, 0.0))
    files = fsspec.filesystem("memory")
    real, attempts, broken = files.pipe_file, [], {5: 2, 9: 3}

    def pipe_file(path, data, **options):
        number = path.rpartition("/")[2].removesuffix(".ckpt")
        attempts.append(number)
        if number.isdecimal() and broken.get(int(number), 0) > 0:
            broken[int(number)] -= 1
            raise error
        return real(path, data, **options)

    monkeypatch.setattr(files, "pipe_file", pipe_file)
    options = {"storage": f"memory://{uuid.uuid4().hex}", "population": 6, "engine": "local"}
    with pytest.raises(StoreError, match=r"9\.ckpt after 3 attempts .*nothing reported is lost"):
        mopbt.run(ToyTask(), out=tmp_path / "run", progress=False, **options)
    assert attempts.count("5") == 3
    stopped = mopbt.Results.open(tmp_path / "run", ToyTask())
    assert not stopped.failures
    assert len(stopped) == 9
    resumed = mopbt.run(ToyTask(), out=tmp_path / "run", progress=False, **options)
    options["storage"] = None
    undisturbed = mopbt.run(ToyTask(), out=tmp_path / "other", progress=False, **options)
    assert [p.scores for p in resumed.front()] == [p.scores for p in undisturbed.front()]


def test_an_unknown_file_system_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"fsspec knows, got 'foo://x' \(Protocol not known: foo\); use a place such as /mnt",
    ):
        check_reachable("foo://x")
    with pytest.raises(ValueError, match="`storage` must be a folder, or a URL"):
        mopbt.run(
            ToyTask(steps=2),
            out=tmp_path / "run",
            storage="foo://x",
            engine="local",
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_other_files_and_the_probe_of_an_engine_are_not_checkpoints():
    checkpoints = RemoteCheckpoints("memory://strangers")
    assert checkpoints.kept() == frozenset()
    checkpoints.save(-1, b"probe")
    checkpoints.save(7, b"")
    fsspec.filesystem("memory").pipe_file("/strangers/README.txt", b"")
    assert checkpoints.kept() == {7}
    checkpoints.drop([])
    checkpoints.drop([-1])
    with pytest.raises(CorruptCheckpoint):
        checkpoints.load(-1, checksum_of(b"probe"))


def test_a_folder_needs_no_fsspec(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for place in (tmp_path / "a", str(tmp_path / "b"), f"file://{tmp_path}/c"):
        checkpoints = checkpoints_at(place)
        assert isinstance(checkpoints, DirectoryCheckpoints)
        assert checkpoints.load(0, checkpoints.save(0, b"x")) == b"x"
    assert {folder.name for folder in tmp_path.iterdir()} == {"a", "b", "c"}
    with pytest.raises(MissingExtra, match=r"s3://bucket/run cannot be reached.*mopbt\[ray\]"):
        checkpoints_at("s3://bucket/run").kept()


def test_remote_checkpoints_give_the_same_run_and_are_dropped_when_obsolete(
    tmp_path,
):
    here = mopbt.run(ToyTask(), out=tmp_path / "here", population=8, engine="local", progress=False)
    url = f"memory://{uuid.uuid4().hex}"
    there = mopbt.run(
        ToyTask(), out=tmp_path / "there", storage=url, population=8, engine="local", progress=False
    )
    assert [p.scores for p in there.front()] == [p.scores for p in here.front()]
    assert there.checkpoints.kept() == here.checkpoints.kept() >= {p.model for p in there.front()}
    opened = mopbt.Results.open(tmp_path / "there", ToyTask())
    assert opened.settings.storage == url
    for point in opened.front():
        assert opened.load(point)["place"].tolist() == here.load(point.model)["place"].tolist()
        assert opened.checkpoint_file(point) == f"{url}/{point.model}.ckpt"


# A real S3 server.


@pytest.fixture(scope="module")
def bucket():
    """Serve S3 on this machine and give fsspec its address."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = fsspec.config.conf.get("s3")
    fsspec.config.conf["s3"] = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3").mkdir("checkpoints")
    yield "s3://checkpoints"
    fsspec.config.conf.pop("s3")
    if before is not None:
        fsspec.config.conf["s3"] = before
    server.stop()


@pytest.mark.filterwarnings("ignore")  # Warnings of botocore.
class TestOnS3(Remote):
    @pytest.fixture(autouse=True)
    def _bucket(self, bucket):
        self.bucket = bucket

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, _bucket):
        self.folder = tmp_path / "run"
        self.url = f"{self.bucket}/{uuid.uuid4().hex}"

    def test_a_run_keeps_its_models_in_a_bucket(self, tmp_path):
        results = mopbt.run(
            ToyTask(steps=6),
            out=tmp_path / "r",
            storage=self.url,
            population=4,
            engine="local",
            progress=False,
        )
        assert results.outcome == "done"
        objects = {
            path.rpartition("/")[2]
            for path in fsspec.filesystem("s3").find(self.url.removeprefix("s3://"))
        }
        assert (
            objects - {"owner.json"}
            == {f"{id}.ckpt" for id in results.checkpoints.kept()}
            >= {f"{p.model}.ckpt" for p in results.front()}
        )
        assert all(
            mopbt.Results.open(tmp_path / "r", ToyTask()).load(point) for point in results.front()
        )


def test_objects_are_where_the_url_says(tmp_path):
    RemoteCheckpoints(f"file://{tmp_path}/new/folder/").save(3, b"model")
    assert (tmp_path / "new" / "folder" / "3.ckpt").read_bytes() == b"model"


def test_a_folder_is_made_if_the_file_system_asks_for_it(monkeypatch):
    class Files:
        folders = []
        objects = {}

        def _strip_protocol(self, url):
            return url.partition("://")[2]

        def makedirs(self, path, exist_ok):
            self.folders.append(path)

        def pipe_file(self, path, data, **options):
            if path.rpartition("/")[0] not in self.folders:
                raise FileNotFoundError(path)
            self.objects[path] = data

    files = Files()
    monkeypatch.setattr(RemoteCheckpoints, "file_system", lambda self: files)
    RemoteCheckpoints("other://host/run").save(3, b"model")
    assert files.objects == {"host/run/3.ckpt": b"model"}


def test_urls_of_this_machine_are_folders():
    assert [is_remote(f"{scheme}/x") for scheme in ("", "file://", "local://")] == [False] * 3
    assert is_remote("memory://x")


def test_the_checksum_of_a_checkpoint_without_a_report_can_be_found():
    checkpoints = RemoteCheckpoints("memory://without-report")
    checksum = checkpoints.save(1, b"model")
    assert checkpoints.stored_checksum(1) == checksum
    assert checkpoints.stored_checksum(2) == ""
