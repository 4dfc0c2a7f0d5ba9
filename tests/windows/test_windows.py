"""The package imports and runs without fcntl, fork, process groups and POSIX-only signals.

This is not Windows: its file system and its processes differ in ways that only Windows can show.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulates Windows on Linux")
HERE = Path(__file__).parent


def on_windows(program, cwd, **options):
    """Run a program in a Python that looks like Windows."""
    tests = str(HERE.parent)
    path = os.pathsep.join([str(HERE), tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


RUN = """
    import sys
    assert sys.platform == "win32"
    import mopbt
    from mopbt.engines.pool import PoolEngine
    from mopbt.tasks.toy import ToyTask

    engine = {engine}
    results = mopbt.run(ToyTask(steps=8), out="run", population=4, engine=engine, progress=False)
    print(sorted(point.model for point in results.front()))
"""


@pytest.mark.parametrize(
    "engine",
    ["'local'", pytest.param("PoolEngine(2)", marks=pytest.mark.slow)],
    ids=["local", "pool"],
)
def test_runs_are_those_of_other_systems(engine, tmp_path):
    import mopbt
    from mopbt.tasks.toy import ToyTask

    done = on_windows(RUN.format(engine=engine), tmp_path)
    assert done.returncode == 0, done.stderr
    expected = mopbt.run(ToyTask(steps=8), out=None, population=4, engine="local", progress=False)
    assert done.stdout.strip() == str(sorted(point.model for point in expected.front()))
    # The run is complete for another system too, and its lock is free.
    assert mopbt.Results.open(tmp_path / "run").done


@pytest.mark.slow
def test_a_killed_worker_is_noticed(tmp_path):
    program = """
        import mopbt
        from mopbt.engines.pool import PoolEngine
        from toys import SlowToy

        engine = PoolEngine(1, timeout=0.5, retries=0)
        results = mopbt.run(
            SlowToy(seconds=600, steps=2), out=None, population=2, engine=engine, progress=False
        )
        print(results.failures)
    """
    done = on_windows(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.5" in done.stdout


def test_two_processes_cannot_execute_one_run(tmp_path):
    program = """
        from mopbt.errors import RunLocked
        from mopbt.locking import holder_of
        from mopbt.stores.directory import DirectoryStore

        store = DirectoryStore("run")
        assert holder_of("run").startswith("process ")
        try:
            DirectoryStore("run")
        except RunLocked as error:
            print(error)
        store.close()
        assert holder_of("run") == ""
        DirectoryStore("run").close()
    """
    done = on_windows(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run is locked by process " in done.stdout


def test_a_journal_is_replaced_after_it_was_closed(tmp_path):
    program = """
        from mopbt.stores.base import Exchange
        from mopbt.stores.directory import DirectoryStore

        store = DirectoryStore("run")
        store.append(Exchange(stopped=1.0))
        mark = store.mark()
        store.append(Exchange(stopped=2.0))
        store.rewind(mark, Exchange(stopped=3.0))
        store.append(Exchange(stopped=4.0))
        print([exchange.stopped for exchange in store.read()])
        store.close()
    """
    done = on_windows(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1.0, 3.0, 4.0]"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["doctor", "run", "dashboard"])
def test_the_command_line_works(command, tmp_path):
    arguments = {
        "doctor": ["doctor"],
        "run": ["run", "trade-off", "--population", "4", "--engine", "local", "--quiet"],
        "dashboard": ["dashboard", "--help"],
    }[command]
    program = f"""
        import sys
        from mopbt.__main__ import main

        sys.argv = ["mopbt", *{arguments!r}]
        main()
    """
    done = on_windows(program, tmp_path)
    assert done.returncode == 0, done.stderr
