import json
import shlex
import shutil
import sys

import pytest

import mopbt
from mopbt import verify as module
from mopbt.cli import main
from mopbt.tasks.toy import ToyTask
from mopbt.verify import verify

TOY = {"population": 4, "engine": "local", "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Create a finished run that tests copy."""
    path = tmp_path_factory.mktemp("verify") / "run"
    mopbt.run(ToyTask(steps=6), out=path, **TOY)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def findings(run):
    return [(found.severity, found.where) for found in verify(run).findings]


def front_file(run):
    return mopbt.Results.open(run).checkpoint_file(mopbt.Results.open(run).front()[0])


def test_a_sound_run(run):
    verification = verify(run)
    assert verification.ok
    assert verification.reports == 12
    assert verification.checkpoints >= len(mopbt.Results.open(run).front())
    assert "error" not in {found.severity for found in verification.findings}


def test_an_interrupted_run_is_sound(tmp_path):
    mopbt.run(ToyTask(steps=6), out=tmp_path / "run", budget=mopbt.Budget(jobs=7), **TOY)
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_checkpoint_of_the_front(run, damage):
    file = front_file(run)
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    verification = verify(run)
    assert not verification.ok
    [found] = [found for found in verification.findings if found.severity == "error"]
    assert found.what == f"checkpoint {file.stem} is {damage}"
    assert f"mopbt replay RUN {file.stem}" in found.remedy


def test_a_damaged_line_and_a_moved_line(run):
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], lines[1].replace(b"near", b"nera"), *lines[2:]]))
    assert findings(run) == [("error", "journal")]
    assert verify(run).findings[0].what.startswith(f"line 2 of {journal}")
    assert "--repair" in verify(run).findings[0].remedy
    changed = [line.replace(b"near", b"nera") for line in lines]
    journal.write_bytes(b"".join(changed[:-1] + lines[-1:]))
    assert verify(run).findings[0].what.startswith("11 lines (2, 4, 6, 8, 10, ...) of")
    journal.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert findings(run) == [("error", "journal")]


def test_warnings_do_not_fail(run):
    with open(run / "journal.jsonl", "ab") as file:
        file.write(b'{"jobs":[[')
    (run / "checkpoints" / "999.ckpt").write_bytes(b"of no job")
    (run / "checkpoints" / "3.ckpt.77.tmp").write_bytes(b"half")
    (run / "checkpoints" / "owner.json").unlink()
    verification = verify(run)
    assert verification.ok
    said = " ".join(found.what for found in verification.findings)
    for what in ("incomplete (10 bytes)", "999", "3.ckpt.77.tmp", "no record of the run"):
        assert what in said


def test_another_owner_and_unreadable_settings(run):
    owner = run / "checkpoints" / "owner.json"
    record = json.loads(owner.read_bytes())
    owner.write_text(json.dumps(record | {"run_id": "other"}))
    assert ("error", "storage") in findings(run)
    (run / "run.toml").write_text("seed: 0")
    assert findings(run) == [("error", "settings")]


class OwnToy(ToyTask):
    """A toy with code of its own."""

    def dump(self, model):
        return super().dump(model)


class ChangedToy(OwnToy):
    def dump(self, model):
        return super().dump(dict(model))


def test_changed_code(tmp_path):
    mopbt.run(OwnToy(steps=4), out=tmp_path / "run", **TOY)
    assert [f.where for f in verify(tmp_path / "run", OwnToy(steps=4)).findings] == ["checkpoints"]
    assert verify(tmp_path / "run", OwnToy(steps=4)).code == "same"
    assert verify(tmp_path / "run").code == "not compared"
    changed = verify(tmp_path / "run", ChangedToy(steps=4))
    assert changed.ok
    assert changed.code == "changed"
    assert changed.findings[-1].where == "code"


def test_a_damaged_journal_does_not_hide_other_damage(run):
    journal = run / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'{"reports"', b'{"raports"', 1))
    (run / "evaluations.jsonl").write_bytes(b'{"model":0}\n{"model":1}\n{"model":2}\n')
    assert findings(run) == [("error", "journal"), ("warning", "evaluations")]


def test_a_model_of_a_warm_start(finished, tmp_path):
    run = tmp_path / "run"
    mopbt.run(ToyTask(steps=4), out=run, warm_start=finished, budget=mopbt.Budget(jobs=4), **TOY)
    assert verify(run).ok
    (run / "initial" / "1.ckpt").write_bytes(b"damaged")
    [found] = [found for found in verify(run).findings if found.severity == "error"]
    assert found.what.startswith("initial/1.ckpt")


def test_a_model_that_a_running_process_has_dropped_is_not_missing(run, monkeypatch):
    results = mopbt.Results.open(run)
    dropped = results.front()[0].model
    results.checkpoints.drop([dropped])
    monkeypatch.setattr(mopbt.Results, "running", "process 1 on host")
    assert not verify(run).ok

    def later(results):
        required = required_models(results)
        later.reads += 1
        return (required[0] - {dropped}, frozenset()) if later.reads > 1 else required

    later.reads = 0
    required_models = module._required_models
    monkeypatch.setattr(module, "_required_models", later)
    assert verify(run).ok


def test_an_unreadable_storage_is_a_finding(run):
    (run / "checkpoints" / "owner.json").unlink()
    (run / "checkpoints" / "owner.json").mkdir()
    [found] = [found for found in verify(run).findings if found.severity == "error"]
    assert found.where == "storage"
    assert "try again" in found.remedy or "rerun" in found.remedy


def test_the_command(run, monkeypatch, capsys):
    def says(command):
        monkeypatch.setattr(sys, "argv", ["mopbt", *shlex.split(command)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr().out

    code, printed = says(f"verify {run}")
    assert code == 0
    assert "12 reports" in printed
    assert "nothing is lost" in printed
    assert "not compared" in printed
    front_file(run).unlink()
    code, printed = says(f"verify {run}")
    assert code == 1
    assert "something is lost" in printed
    code, printed = says(f"verify {run} --json")
    assert code == 1
    assert json.loads(printed)["ok"] is False
