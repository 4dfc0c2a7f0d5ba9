import os

import pytest

from mopbt.cli import app
from mopbt.errors import RunLocked, StoreError
from mopbt.locking import holder_of
from mopbt.run_config import RunConfig
from mopbt.run_directory import RunDirectory, locked_run


def command(*arguments):
    app([*map(str, arguments)], prog_name="mopbt", standalone_mode=False)


@pytest.fixture
def run(tmp_path):
    """Start a run of the toy task from the command line, and return its directory."""
    path = tmp_path / "run"
    options = ("--population", 4, "--engine", "local", "--quiet", "--json")
    command("run", "toy", *options, "--out", path)
    return path


def test_resume_reads_the_settings_once_and_under_the_lock(run, monkeypatch):
    holders = []
    from_toml = RunConfig.from_toml

    def record(text, path):
        holders.append(holder_of(path.parent))
        return from_toml(text, path)

    monkeypatch.setattr(RunConfig, "from_toml", staticmethod(record))
    command("resume", run, "--engine", "local", "--quiet", "--json")
    assert len(holders) == 1
    assert holders[0].startswith(f"process {os.getpid()} on ")
    assert holder_of(run) == ""


def test_a_locked_run_is_free_again_after_an_error_and_closes_once(run):
    with locked_run(run) as (directory, settings):
        assert directory.recorded is settings
        with pytest.raises(RunLocked):
            RunDirectory(run)
    with pytest.raises(KeyError), locked_run(run):
        raise KeyError
    with locked_run(run) as (directory, _):
        directory.close()
        # Closing the first directory again does not take the lock from the second one.
        other = RunDirectory(run)
    assert holder_of(run)
    other.close()
    assert holder_of(run) == ""


def test_locking_what_is_no_run_creates_nothing(tmp_path):
    with (
        pytest.raises(StoreError, match="is not a run: it does not exist"),
        locked_run(tmp_path / "nowhere"),
    ):
        pass
    assert not list(tmp_path.iterdir())
