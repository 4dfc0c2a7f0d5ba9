"""Seeds of the global generators, also of a PyTorch that is imported later."""

import json
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from mopbt.engines.seeding import global_seeds


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


# The global generators.


def test_the_global_generators_follow_the_seed():
    with global_seeds(3):
        first = draw()
    with global_seeds(3):
        assert draw() == first
    with global_seeds(4):
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def fail_after_drawing():
    raise ZeroDivisionError(draw())


def test_they_are_restored_afterwards_even_after_an_error():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    with pytest.raises(ZeroDivisionError), global_seeds(3):
        fail_after_drawing()
    assert before == (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
    )


def test_seeds_within_seeds():
    with global_seeds(1):
        expected = [draw(), draw()]
    with global_seeds(1):
        found = [draw()]
        with global_seeds(2):
            draw()
        found.append(draw())
    assert found == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_every_derived_seed_is_accepted(seed):
    with global_seeds(seed):
        assert all(0 <= v < 1 for v in draw())


# PyTorch that is imported in the middle of an interval.

LATE = """
    import json, sys
    if "early" in sys.argv:
        import torch
    from mopbt.engines.base import ModelCache, RunContext
    from mopbt.engines.execution import run_job
    from mopbt.engines.seeding import global_seeds
    from mopbt.problem import problem_of
    from mopbt.space import Grid
    from mopbt.state import Job
    from mopbt.stores.memory import MemoryCheckpoints

    class Late:
        space, objectives, interval, steps = {"x": Grid(0, 1, 3)}, {"a": "max"}, 1, 2
        trained = []
        def init(self, seed):
            return [0.0]
        def train(self, model, hp, begin, end, seed):
            self.trained.append(list(model))
            if begin:
                import torch  # in the second interval
                model[0] += float(torch.rand(()))
            model[0] += hp["x"]
        def evaluate(self, model):
            return {"a": model[0]}
        def dump(self, model):
            return json.dumps(model).encode()
        def load(self, data):
            return json.loads(data)

    task = Late()
    context, cache = RunContext(task, problem_of(task), 0, MemoryCheckpoints()), ModelCache(1000)
    finders = list(sys.meta_path)
    first = run_job(context, Job(0, 0, (1,), None, 0, 1), {}, cache)
    assert "early" in sys.argv or "torch" not in sys.modules
    second = run_job(context, Job(1, 0, (1,), 0, 1, 2), {0: first.checksum}, cache)
    again = run_job(context, Job(1, 0, (1,), 0, 1, 2), {0: first.checksum}, cache)
    assert not second.error, second.error
    assert second.checksum == again.checksum
    assert sys.meta_path == finders
    import torch
    after = float(torch.rand(())) if hasattr(torch, "generator") else "random"
    json.dump([second.scores, again.scores, task.trained, after], sys.stdout)
"""

NESTED = """
    import json, sys
    if "early" in sys.argv:
        import torch
    from mopbt.engines.seeding import global_seeds, seed_globals

    with global_seeds(1):
        with global_seeds(2):
            seed_globals(3)
            import torch
            numbers = [float(torch.rand(()))]
        numbers.append(float(torch.rand(())))
    numbers.append(float(torch.rand(())) if hasattr(torch, "generator") else "random")
    json.dump(numbers, sys.stdout)
"""

# PyTorch itself starts each process with a random seed, the stand-in always with the same.
STAND_IN = """
import random
generator = random.Random(7)
get_rng_state, set_rng_state = generator.getstate, generator.setstate
class default_generator:
    manual_seed = staticmethod(generator.seed)
class accelerator:
    is_available = staticmethod(lambda: False)
def rand(shape):
    return generator.random()
"""


def run_program(program, *arguments, folder):
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture(params=["stand-in", pytest.param("PyTorch", marks=pytest.mark.slow)])
def folder(request, tmp_path):
    """Return a folder for the import path, with or without a stand-in for PyTorch."""
    if request.param == "stand-in":
        (tmp_path / "torch.py").write_text(STAND_IN)
    return tmp_path


def test_pytorch_imported_midway_is_seeded_and_the_interval_trained_once(folder):
    late, early = (run_program(LATE, *words, folder=folder) for words in ((), ("early",)))
    assert late == early
    assert late[0] == late[1]
    assert late[2] == [[0.0], [0.5], [0.5]]  # `again` is the third


def test_pytorch_imported_within_nested_seeds_is_seeded_as_if_it_had_been_there(folder):
    late, early = (run_program(NESTED, *words, folder=folder) for words in ((), ("early",)))
    assert late == early
    assert len(set(late)) == 3
