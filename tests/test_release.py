"""What `make release` checks before it installs anything; the rest needs a package index."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from mopbt.version import __version__
from readme import extras

ROOT = Path(__file__).parent.parent


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copied(release, tmp_path, monkeypatch):
    """Return a copy of the files that contain the version."""
    for file in ("src/mopbt/version.py", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {__version__}"))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_every_extra_is_used_in_its_environment(release):
    used = {*release.COMMANDS, *release.MODULES, extras()} - {"none"}
    assert used == set(release.EXTRAS)


def test_the_version_is_the_same_everywhere(release):
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if "## Unreleased" not in changelog:
        assert release.check_version(tag=False) == __version__


@pytest.mark.parametrize("file", ["CITATION.cff", "CHANGELOG.md"])
def test_another_version_stops_the_release(release, copied, file):
    text = (copied / file).read_text().replace(__version__, "9.9")
    (copied / file).write_text(text)
    with pytest.raises(SystemExit, match=rf"{file} is about version '9.9'"):
        release.check_version(tag=False)


def test_changes_in_the_tree_stop_a_tag_but_no_check(release, copied):
    release.execute(["git", "init", "-q"], copied)
    assert release.check_version(tag=False) == __version__
    with pytest.raises(SystemExit, match="commit them or use --no-tag"):
        release.check_version(tag=True)


def test_a_version_is_tagged_once(release, copied):
    who = ["-c", "user.name=tester", "-c", "user.email=tester@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        release.execute(["git", *command], copied)
    assert release.check_version(tag=True) == __version__
    release.execute(["git", "tag", f"v{__version__}"], copied)
    with pytest.raises(SystemExit, match="is tagged already"):
        release.check_version(tag=True)


def test_a_missing_distribution_names_the_command(release, copied):
    with pytest.raises(SystemExit, match="run `make dist`"):
        release.find_distributions(__version__)


def test_a_failing_command_ends_with_what_it_printed(release, copied):
    with pytest.raises(SystemExit, match=r"(?s)what was wrong.*exit code 3: python"):
        release.execute(["python", "-c", "print('what was wrong'); exit(3)"], copied)
