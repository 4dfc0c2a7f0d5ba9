import errno
import fcntl
import os
import subprocess
import sys
import zlib

import pytest

import mopbt
from mopbt import filesystem
from mopbt.engines.local import LocalEngine
from mopbt.errors import (
    CorruptCheckpoint,
    CorruptJournal,
    IncompatibleRun,
    RunLocked,
    StorageFull,
    StoreError,
)
from mopbt.locking import holder_of
from mopbt.state import Job, Report
from mopbt.stores import base, directory
from mopbt.stores.base import Exchange
from mopbt.stores.directory import DirectoryCheckpoints, DirectoryStore
from mopbt.stores.journal import (
    check_lines,
    decode_line,
    encode_line,
    encode_object,
    parse_line,
    read_intact_lines,
    read_journal,
)
from mopbt.tasks.toy import ToyTask
from mopbt.testing import StoreConformance


class TestDirectory(StoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path / "run"

    def make(self):
        return DirectoryStore(self.folder)

    def reopen(self, store):
        store.close()
        return DirectoryStore(self.folder)


def lines(n):
    return [Exchange(jobs=(Job(i, i, (i, 0.5), None, 0, 2),)) for i in range(n)]


def write_journal(path, n=5):
    store = DirectoryStore(path)
    for exchange in lines(n):
        store.append(exchange)
    store.close()
    return path / "journal.jsonl"


@pytest.mark.parametrize("cut", range(1, 55, 6))
def test_an_incomplete_last_line_is_ignored(tmp_path, cut):
    journal = write_journal(tmp_path)
    intact = journal.read_bytes()
    journal.write_bytes(intact[:-cut])
    store = DirectoryStore(tmp_path)
    assert list(store.read()) == lines(4)
    store.append(lines(5)[4])
    store.close()
    assert journal.read_bytes() == intact


def test_a_last_line_of_zeros_is_ignored(tmp_path):
    journal = write_journal(tmp_path)
    good = journal.read_bytes()
    journal.write_bytes(good + b"\0" * 300)
    store = DirectoryStore(tmp_path)
    assert list(store.read()) == lines(5)
    store.append(lines(6)[5])
    store.close()
    assert journal.read_bytes() == good + encode_line(lines(6)[5])


def test_every_flipped_bit_of_a_line_is_noticed():
    line = encode_line(
        Exchange(reports=(Report(3, (0.5, 1.0), scores={"a": 0.5}, checksum="ab"),))
    )[:-1]
    assert decode_line(line) is not None
    for place in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[place] ^= 1 << bit
            assert decode_line(bytes(flipped)) is None


def test_a_flipped_bit_in_the_middle_is_an_error_with_its_line_and_the_remedy(tmp_path):
    journal = write_journal(tmp_path)
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 4
    journal.write_bytes(data)
    store = DirectoryStore(tmp_path)
    with pytest.raises(
        CorruptJournal, match=r"line 3 of .* is damaged.*4 other lines are intact.*--repair"
    ):
        list(store.lines())
    store.close()
    assert journal.read_bytes() == data
    store = DirectoryStore(
        tmp_path, repair=lambda seen: [line or lines(5)[i] for i, line in enumerate(seen)]
    )
    assert list(store.read()) == lines(5)
    store.close()
    assert (tmp_path / "journal.damaged-1").read_bytes() == bytes(data)


def test_repair_changes_nothing_where_nothing_is_damaged(tmp_path):
    journal = write_journal(tmp_path)
    before = journal.read_bytes()
    DirectoryStore(tmp_path, repair=lambda seen: []).close()
    assert journal.read_bytes() == before
    assert not list(tmp_path.glob("journal.damaged*"))


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_a_damaged_checkpoint_is_noticed(tmp_path, damage):
    store = DirectoryStore(tmp_path)
    checksum = store.checkpoints.save(7, b"weights" * 100)
    file = store.checkpoints.file(7)
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        data[10] ^= 1
        file.write_bytes({"truncate": data[:300], "flip": data, "empty": b""}[damage])
    with pytest.raises(
        CorruptCheckpoint,
        match=r"7\.ckpt (is damaged|does not exist): .* `mopbt replay RUN 7 --export ",
    ):
        store.checkpoints.load(7, checksum)
    store.close()


@pytest.fixture
def disturb_reads(monkeypatch):
    """Return a function that makes the next `count` reads of checkpoints fail."""
    monkeypatch.setattr(base, "RETRY_PAUSES", (0.0, 0.0, 0.0))
    real = directory.read_file

    def disturb(count, error=errno.EIO):
        left = [count]

        def read_file(path, *most):
            if path.suffix == ".ckpt" and left[0] > 0:
                left[0] -= 1
                raise OSError(error, os.strerror(error))
            return real(path, *most)

        monkeypatch.setattr(directory, "read_file", read_file)

    return disturb


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_a_transient_read_error_is_retried(tmp_path, disturb_reads, error):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(7, b"weights")
    disturb_reads(3, error)
    assert checkpoints.load(7, checksum) == b"weights"
    disturb_reads(4, error)
    with pytest.raises(StoreError, match=r"7\.ckpt after 4 attempts .*rerun to resume") as caught:
        checkpoints.load(7, checksum)
    assert os.strerror(error) in str(caught.value)
    assert not isinstance(caught.value, CorruptCheckpoint)


def test_read_errors_do_not_change_the_result_of_a_run(tmp_path, disturb_reads):
    def execute(name):
        # Without models in memory, every interval reads a checkpoint.
        engine = LocalEngine(warm_bytes=0)
        return mopbt.run(
            ToyTask(steps=8), out=tmp_path / name, population=6, engine=engine, progress=False
        )

    expected = [(point.model, point.scores) for point in execute("undisturbed").front()]
    disturb_reads(2)
    assert [(point.model, point.scores) for point in execute("transient").front()] == expected
    disturb_reads(10**9)
    with pytest.raises(StoreError, match="cannot read checkpoint"):
        execute("persistent")
    disturb_reads(0)
    resumed = execute("persistent")
    assert [(point.model, point.scores) for point in resumed.front()] == expected
    journal = (tmp_path / "persistent" / "journal.jsonl").read_text()
    assert "cannot read" not in journal
    assert "OSError" not in journal


def test_an_error_names_the_process_that_locked_the_run(tmp_path):
    store = DirectoryStore(tmp_path)
    with pytest.raises(
        RunLocked,
        match=rf"is locked by process {os.getpid()} on .* since \d{{4}}-.*another directory",
    ):
        DirectoryStore(tmp_path)
    assert f"process {os.getpid()}" in holder_of(tmp_path)
    store.close()
    assert holder_of(tmp_path) == ""
    DirectoryStore(tmp_path).close()


def test_a_file_system_without_locks_is_an_error_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()

    def flock(file, how):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        StoreError,
        match=r"lock cannot be locked \(Operation not supported\).*a file system with locks",
    ):
        DirectoryStore(tmp_path)
    assert holder_of(tmp_path) == ""


def test_looking_at_a_run_needs_no_permission_to_write(tmp_path, monkeypatch):
    """On NFS, an exclusive lock needs a file that is open for writing."""
    DirectoryStore(tmp_path).close()
    asked = []

    def note(file, how):
        asked.append((fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE, how))

    monkeypatch.setattr(fcntl, "flock", note)
    assert holder_of(tmp_path) == ""
    assert asked == [(os.O_RDONLY, fcntl.LOCK_SH | fcntl.LOCK_NB)]


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    program = (
        "import os, signal; from mopbt.stores.directory import DirectoryStore; "
        f"store = DirectoryStore({str(tmp_path)!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program])
    assert killed.returncode == -9
    assert "process" in (tmp_path / "lock").read_text()
    DirectoryStore(tmp_path).close()


def test_another_process_is_kept_out(tmp_path):
    store = DirectoryStore(tmp_path)
    program = (
        f"from mopbt.stores.directory import DirectoryStore; DirectoryStore({str(tmp_path)!r})"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    store.close()
    assert other.returncode != 0
    assert f"locked by process {os.getpid()}" in other.stderr


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    far = DirectoryCheckpoints(tmp_path / "far")
    far.path.mkdir()
    DirectoryStore(tmp_path / "run").close()
    for folder in (tmp_path / "run" / "checkpoints", far.path):
        (folder / "3.ckpt.99.tmp").write_bytes(b"half")
        DirectoryCheckpoints(folder).remove_leftovers()
    (tmp_path / "run" / "journal.jsonl.99.tmp").write_bytes(b"half")
    store = DirectoryStore(tmp_path / "run", checkpoints=far)
    assert not list(tmp_path.rglob("*.tmp"))
    assert store.checkpoints.kept() == frozenset()
    store.close()


def test_a_full_disk_leaves_the_journal_intact_and_names_the_remedy(tmp_path, monkeypatch):
    journal = write_journal(tmp_path)
    intact = journal.read_bytes()
    store = DirectoryStore(tmp_path)
    real = os.pwrite

    def short(fd, data, offset):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:20], offset)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(
        StorageFull,
        match=r"no space left to write .*journal.*nothing reported is lost.*rerun to resume",
    ):
        store.append(lines(6)[5])
    monkeypatch.undo()
    assert journal.read_bytes() == intact
    store.append(lines(6)[5])
    store.close()
    assert list(read_journal(journal)[0]) == lines(6)


def test_a_full_disk_during_a_repair_loses_nothing(tmp_path, monkeypatch):
    """The damaged journal stays in place until the repaired one replaces it."""
    journal = write_journal(tmp_path)
    journal.write_bytes(damaged := journal.read_bytes().replace(b'"', b"?", 1))
    (tmp_path / "journal.damaged-2").write_bytes(b"of an earlier one")
    real = directory.write_atomically

    def full(path, data):
        if path == journal:
            raise StorageFull("no space left")
        real(path, data)

    monkeypatch.setattr(directory, "write_atomically", full)
    with pytest.raises(StorageFull):
        DirectoryStore(tmp_path, repair=lambda lines: [line for line in lines if line is not None])
    assert journal.read_bytes() == damaged
    monkeypatch.undo()
    DirectoryStore(
        tmp_path, repair=lambda lines: [line for line in lines if line is not None]
    ).close()
    assert len(read_journal(journal)[0]) == len(lines(5)) - 1
    assert (tmp_path / "journal.damaged-2").read_bytes() == b"of an earlier one"
    assert (tmp_path / "journal.damaged-1").read_bytes() == damaged


def test_a_full_disk_leaves_no_half_written_checkpoint(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path)

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match=r"0\.ckpt"):
        store.checkpoints.save(0, b"weights")
    monkeypatch.undo()
    assert store.checkpoints.kept() == frozenset()
    assert not list(tmp_path.rglob("*.tmp"))
    store.close()


def test_other_files_are_left_alone(tmp_path):
    DirectoryStore(tmp_path).close()
    (tmp_path / "thesis.tmp").write_text("years of work")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.tmp").write_text("more")
    DirectoryStore(tmp_path).close()
    assert (tmp_path / "thesis.tmp").exists()
    assert (tmp_path / "notes" / "a.tmp").exists()


FORKING = """
import os, signal, sys, time
from mopbt.stores.directory import DirectoryStore
store = DirectoryStore({path!r})
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING.format(path=str(tmp_path))], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    assert process.wait() == -9
    DirectoryStore(tmp_path).close()


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path):
    DirectoryStore(tmp_path).close()
    looking = f"from mopbt.locking import holder_of\nwhile True: holder_of({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", looking])
    try:
        for _ in range(200):
            DirectoryStore(tmp_path).close()
    finally:
        process.kill()
        process.wait()
    assert holder_of(tmp_path) == ""


def test_a_pipe_as_journal_or_lock_is_an_error(tmp_path):
    write_journal(tmp_path)
    for name in ("journal.jsonl", "lock"):
        (tmp_path / name).rename(tmp_path / "kept")
        os.mkfifo(tmp_path / name)
        with pytest.raises(StoreError, match=f"{name}.* is not a regular file"):
            DirectoryStore(tmp_path)
        with pytest.raises(StoreError, match=rf"{name}.*not a regular file"):
            holder_of(tmp_path) if name == "lock" else read_journal(tmp_path / name)
        (tmp_path / name).unlink()
        (tmp_path / "kept").rename(tmp_path / name)
    DirectoryStore(tmp_path).close()


@pytest.mark.parametrize("name", ["lock", "journal.jsonl"])
def test_a_linked_or_foreign_file_is_not_overwritten(tmp_path, name):
    write_journal(tmp_path)
    file = tmp_path / name
    foreign = tmp_path / "diary.txt"
    foreign.write_text("my diary\n")
    file.unlink()
    file.symlink_to(foreign)
    with pytest.raises(StoreError):
        DirectoryStore(tmp_path).append(lines(1)[0])
    assert foreign.read_text() == "my diary\n"
    file.unlink()
    foreign.rename(file)
    with pytest.raises(StoreError, match=rf"{name} is not .*'my diary.*another directory"):
        DirectoryStore(tmp_path)
    assert file.read_text() == "my diary\n"


@pytest.mark.parametrize("left", [b"", b"pro", b"process 12 on", b"\0" * 40])
def test_what_a_crash_leaves_of_a_lock_is_accepted(tmp_path, left):
    write_journal(tmp_path)
    (tmp_path / "lock").write_bytes(left)
    store = DirectoryStore(tmp_path)
    assert store.read()
    store.close()


def test_a_sparse_journal_is_refused(tmp_path):
    journal = write_journal(tmp_path)
    with open(journal, "r+b") as file:
        file.truncate(2**40)
    with pytest.raises(CorruptJournal, match="a line of more than 67,108,864 bytes"):
        read_journal(journal)


def test_a_rewind_and_its_reports_are_one_step(tmp_path, monkeypatch):
    """A crash must not separate the removal of failures from the reports that remain."""
    journal = write_journal(tmp_path, 3)
    before = journal.read_bytes()
    store = DirectoryStore(tmp_path)
    sizes = []
    real = directory.write_atomically
    monkeypatch.setattr(
        directory, "write_atomically", lambda *a: (sizes.append(journal.stat().st_size), real(*a))
    )
    mark = before.index(b"\n") + 1
    store.rewind(mark, lines(5)[4])
    assert sizes == [len(before)]
    store.append(lines(6)[5])
    store.close()
    assert list(read_journal(journal)[0]) == [lines(1)[0], lines(5)[4], lines(6)[5]]


def test_the_leftovers_of_one_process_are_removed(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    (tmp_path / "3.ckpt.98.tmp").write_bytes(b"half")
    (tmp_path / "4.ckpt.99.tmp").write_bytes(b"half")
    checkpoints.remove_leftovers(99)
    assert [file.name for file in tmp_path.iterdir()] == ["3.ckpt.98.tmp"]


@pytest.mark.parametrize("call", ["repair", "rewind"])
def test_a_journal_that_cannot_be_read_is_an_error_with_the_remedy(tmp_path, monkeypatch, call):
    store = DirectoryStore(tmp_path)
    store.append(Exchange(jobs=(Job(0, 0, (0, 0), None, 0, 2),)))
    mark = store.mark()
    store.append(Exchange(stopped=1.0))
    if call == "repair":
        damaged = store.journal.read_bytes().replace(b"jobs", b"jabs")
        store.journal.write_bytes(damaged)
    reads = []

    class Broken(filesystem.Disk):
        def read(self, fd, size):
            reads.append(size)
            raise OSError(errno.ESTALE, "Stale file handle")

    def rebuild(lines):
        monkeypatch.setattr(filesystem, "disk", Broken())
        return [Exchange(stopped=1.0)]

    def act():
        if call == "repair":
            store.repair(rebuild)
        else:
            rebuild(())
            store.rewind(mark, Exchange(stopped=2.0))

    with pytest.raises(StoreError, match=r"cannot read .*journal\.jsonl: Stale .* mount"):
        act()
    assert reads


def test_text_in_a_journal_is_readable():
    line = encode_object({"name": "Größe"})
    assert "Größe".encode() in line
    assert parse_line(line[:-1]) == {"name": "Größe"}


def test_a_line_that_is_no_object_is_incompatible():
    with pytest.raises(IncompatibleRun, match="JSONDecodeError"):
        parse_line(encode_object({})[:-1].replace(b"{", b"[", 1).replace(crc(b"{}"), crc(b"[}")))
    with pytest.raises(IncompatibleRun, match="cannot be read by mopbt"):
        decode_line(encode_object({"jobs": "x"})[:-1])


def crc(body):
    return f"{zlib.crc32(body):08x}".encode()


def test_damaged_lines_are_counted_and_skipped(tmp_path):
    file = tmp_path / "evaluations.jsonl"
    lines = [encode_object({"model": n}) for n in range(4)]
    lines[1] = lines[1].replace(b"model", b"madel")
    file.write_bytes(b"".join(lines) + b'{"model":')
    assert [line["model"] for line in read_intact_lines(file)] == [0, 2, 3]
    assert check_lines(file) == (3, [2])


def test_an_error_while_a_journal_is_read_names_it(tmp_path, monkeypatch):
    journal = write_journal(tmp_path)
    length = journal.stat().st_size
    monkeypatch.setattr("mopbt.stores.journal.intact_length", lambda path: length)

    class Broken(filesystem.Disk):
        def read(self, fd, size):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(filesystem, "disk", Broken())
    with pytest.raises(StoreError, match=rf"cannot read {journal}: .*check the disk"):
        read_journal(journal)


@pytest.mark.parametrize("rest", [b"\0" * 40, b'{"jo', b'{"extend":{', b'{"stopped":1'])
def test_the_only_line_of_a_journal_may_be_incomplete(tmp_path, rest):
    write_journal(tmp_path, 1).write_bytes(rest)
    store = DirectoryStore(tmp_path)
    assert store.read() == ()
    store.close()


@pytest.mark.parametrize("rest", [b"\xff\xfe\0", b"X\0\0", b'{"name":1'])
def test_the_only_line_of_another_file_is_not_overwritten(tmp_path, rest):
    write_journal(tmp_path, 1).write_bytes(rest)
    with pytest.raises(CorruptJournal, match="is not a journal: it begins with"):
        DirectoryStore(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == rest


@pytest.mark.parametrize("failures", [1, 10**9])
def test_an_error_while_an_open_checkpoint_is_read_is_not_one_of_its_model(
    tmp_path, monkeypatch, failures
):
    monkeypatch.setattr(base, "RETRY_PAUSES", (0.0,))
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(3, b"model")
    with checkpoints.open_model(3, checksum) as file:
        left = [failures]

        class Flaky(filesystem.Disk):
            def read(self, fd, size):
                left[0] -= 1
                if left[0] >= 0:
                    raise OSError(errno.EIO, "Input/output error")
                return super().read(fd, size)

        monkeypatch.setattr(filesystem, "disk", Flaky())
        if failures == 1:
            assert file.read() == b"model"
        else:
            with pytest.raises(StoreError, match=r"cannot read checkpoint .*3\.ckpt after 2"):
                file.read()


def test_the_checksum_of_a_checkpoint_without_a_report_can_be_found(tmp_path, monkeypatch):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(1, b"model")
    assert checkpoints.stored_checksum(1) == checksum
    assert checkpoints.stored_checksum(2) == ""
    # A read error is retried: it does not mean that the checkpoint is missing.
    real = directory.open_to_read
    errors = [OSError(errno.EIO, "Input/output error")]

    def open_to_read(path):
        if errors:
            raise errors.pop()
        return real(path)

    monkeypatch.setattr(directory, "open_to_read", open_to_read)
    monkeypatch.setattr(base, "RETRY_PAUSES", (0.0, 0.0, 0.0))
    assert checkpoints.stored_checksum(1) == checksum
    assert not errors
    errors += [OSError(errno.EIO, "Input/output error")] * 4
    with pytest.raises(StoreError, match=r"cannot read checkpoint .*1\.ckpt after 4 attempts"):
        checkpoints.stored_checksum(1)


def test_a_reduced_checkpoint_can_be_dropped_and_its_file_is_named_if_it_is_missing(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    checksum = checkpoints.save(1, b"model and momentum")
    checkpoints.reduce(1, checksum, lambda source, target: target.write(source.read(5)))
    with checkpoints.open_model(1, checksum) as file:
        assert file.read() == b"model"
    assert (checkpoints.kept(), checkpoints.size_of(1)) == ({1}, 0)
    # For training, it counts as missing.
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint .*1\.ckpt does not exist"):
        checkpoints.open(1, checksum)
    checkpoints.drop([0, 1])
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_can_be_written_and_read_in_parts(tmp_path):
    checkpoints = DirectoryCheckpoints(tmp_path)
    pending = checkpoints.create(1)
    assert (pending.size, pending.write(b"mo"), pending.write(memoryview(b"del"))) == (0, 2, 3)
    assert pending.size == 5
    assert checkpoints.kept() == frozenset()
    checksum = pending.commit()
    assert checksum == base.checksum_of(b"model")
    with checkpoints.open(1, checksum) as file:
        assert file.read() == b"model"
    with pytest.raises(CorruptCheckpoint, match=r"1\.ckpt is damaged.* replay RUN 1 "):
        checkpoints.open(1, base.checksum_of(b"other"))
    pending = checkpoints.create(2)
    pending.write(b"model")
    pending.discard()
    assert [file.name for file in tmp_path.iterdir()] == ["1.ckpt"]


def test_a_locked_run_can_be_looked_at(tmp_path):
    store = DirectoryStore(tmp_path)
    with pytest.raises(RunLocked, match=r"`mopbt show .*` works while a run is in progress"):
        DirectoryStore(tmp_path)
    store.close()
