import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt import run_config
from mopbt.errors import IncompatibleRun
from mopbt.objectives import Constraint
from mopbt.problem import make_problem
from mopbt.run_config import RunConfig
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal, Space
from mopbt.version import __version__

RUN = Path("runs/a/run.toml")
SPACE = {
    "grid": Grid(0, 0.8, 10),
    "log grid": LogGrid(1e-6, 0.1, 10, zero=True),
    "log.grid": LogGrid(0.1, 10, 9),
    "ordinal": Ordinal([16, 32, 64]),
    "mixed": Ordinal([1, 2.5, "three", True]),
    "kind": Categorical(["a", 'q"uote', "line\nbreak", "ünï", ""]),
    "flag": Categorical([True, False]),
    "float": Float(-1.5, 1 / 3),
    "log float": Float(1e-300, 0.1, log=True),
    "int": Int(-3, 2**53),
    "log int": Int(1, 1024, log=True),
}


def settings(**changed):
    """Build the settings of a run; `found` is its `task_reference`."""
    problem_settings = {
        "name": "a task",
        "space": SPACE,
        "objectives": {"accuracy": "max", "d.s.p": "min"},
        "constraints": ["accuracy >= 0.7123456789012345", "size < 3"],
        "interval": 2,
        "steps": 20,
        "reference": None,
    }
    own = {
        "algorithm": {"name": "mo-pbt", "population": 32, "fraction": 0.25, "scale": False},
        "seed": 3,
    }
    problem = make_problem(
        **{key: changed.get(key, value) for key, value in problem_settings.items()}
    )
    return RunConfig(
        problem,
        **{key: changed.get(key, value) for key, value in own.items()},
        task_reference=changed.get("found", ""),
    )


def test_every_domain_survives_toml():
    before = settings(found="module:task")
    after = RunConfig.from_toml(before.to_toml(), RUN)
    assert after == before
    assert list(after.problem.space) == list(SPACE)
    # Unlike ==, repr distinguishes 1, 1.0 and True.
    assert repr(after.problem) == repr(before.problem)
    assert before.differences(after) == []
    assert RunConfig.from_toml(after.to_toml(), RUN) == before


texts = st.text(st.characters(codec="utf-8"), min_size=1)


@given(
    st.dictionaries(texts, st.lists(texts, min_size=2, unique=True), min_size=1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**100),
)
def test_any_names_and_numbers_survive_toml(space, bound, seed):
    said = {name: Ordinal(values) for name, values in space.items()}
    before = settings(
        space=said,
        objectives=dict.fromkeys(space, "min"),
        constraints=[Constraint("a", "<", bound)],
        seed=seed,
    )
    assert RunConfig.from_toml(before.to_toml(), RUN) == before


def test_a_reference_point_keeps_its_original_direction():
    before = settings(reference={"d.s.p": 1, "accuracy": 0.25}, found="module:task")
    after = RunConfig.from_toml(before.to_toml(), RUN)
    assert after == before
    assert after.problem.reference == (0.25, -1.0)
    assert tomllib.loads(before.to_toml())["task"]["reference"] == {"accuracy": 0.25, "d.s.p": 1.0}
    assert settings().differences(before) == [
        "reference is {'accuracy': 0.25, 'd.s.p': 1.0}, it was not set"
    ]


@pytest.mark.parametrize("seed", [-1, 1.5, "3", None, True])
def test_the_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="`seed` must be a whole number of at least 0, got "):
        settings(seed=seed)


def test_run_toml_is_readable():
    data = tomllib.loads(settings().to_toml())
    assert list(data) == [
        *("format", "mopbt", "run_id", "created", "seed", "confidence"),
        *("algorithm", "engine", "task"),
    ]
    assert (data["format"], data["mopbt"], data["seed"]) == (1, __version__, 3)
    assert data["created"].tzinfo is not None
    assert data["task"]["objectives"] == {"accuracy": "max", "d.s.p": "min"}
    assert data["task"]["constraints"] == ["accuracy >= 0.7123456789012345", "size < 3"]
    assert data["task"]["space"]["grid"] == {"kind": "Grid", "lo": 0, "hi": 0.8, "n": 10}
    assert "task_reference" not in data["task"]
    assert "task_reference" in tomllib.loads(settings(found="m:t").to_toml())["task"]


@dataclass(frozen=True)
class Even(Grid):
    """A domain that mopbt does not know."""


def test_a_domain_of_another_class_is_an_error():
    with pytest.raises(
        ValueError,
        match="a domain must be one of Grid, LogGrid, Ordinal, Categorical, Float, Int, got Even",
    ):
        settings(space={"x": Even(0, 1, 3)}).to_toml()


GOOD = settings().to_toml()
WRONG = [
    ("", "has format None (mopbt unknown); mopbt", "start a new run in another directory"),
    ("seed = 3", "has format None", "install the version that wrote it"),
    (
        GOOD.replace("format = 1", "format = 2"),
        "has format 2 (mopbt ",
        "reads format 1; install the version that wrote it",
    ),
    (GOOD.replace("format = 1", 'format = "1"'), "has format '1'", "reads format 1"),
    ("\0garbage", "cannot be read:", "restore the run.toml that the run was started with"),
    (GOOD.replace('"LogGrid"', '"LogGrid'), "cannot be read:", "restore the run.toml"),
    (GOOD.replace("seed = 3", ""), "does not hold the settings of a run: 'seed' is missing", ""),
    (
        GOOD.replace("seed = 3", 'seed = "three"'),
        "does not hold the settings of a run: `seed` must be a whole number",
        "three",
    ),
    (
        GOOD.replace("[algorithm]", "[algo]"),
        "does not hold the settings of a run: it has 'algo', mopbt ",
        "did you mean 'algorithm'?",
    ),
    (GOOD.replace("steps = 20", ""), "does not hold the settings of a run: 'steps' is missing", ""),
    (GOOD.replace("steps = 20", "steps = 21"), "does not hold the settings of a run: `steps`", ""),
    (
        GOOD.replace('kind = "Grid"', 'kind = "Gird"'),
        "does not hold the settings of a run: `kind` of a domain must be one of Grid",
        "",
    ),
    (
        GOOD.replace('kind = "Grid"', ""),
        "does not hold the settings of a run: 'kind' is missing",
        "",
    ),
    (
        GOOD.replace("n = 10", "n = 1"),
        "does not hold the settings of a run: Grid: `n` must be a whole number of at least 2",
        "",
    ),
    ("a = " + "[" * 100_000, "cannot be read: maximum recursion depth", "restore the run.toml"),
    (
        'format = 1\nengine = "pool"',
        "does not hold the settings of a run: `engine` must be a table, got 'pool'",
        "",
    ),
    ("format = 1\ntask = 3", "does not hold the settings of a run: `task` must be a table", ""),
    (
        'format = 1\n[task]\nname = "a"\nspace = 3',
        "does not hold the settings of a run: `space` must be a table, got 3",
        "",
    ),
    (
        'format = 1\n[task]\nname = "a"\n[task.space]\nx = 3',
        "does not hold the settings of a run: a domain must be a table with a `kind`, got 3",
        "",
    ),
]


@pytest.mark.parametrize(("text", "message", "remedy"), WRONG, ids=range(len(WRONG)))
def test_an_unreadable_run_toml_is_an_error_with_the_remedy(text, message, remedy):
    with pytest.raises(IncompatibleRun) as caught:
        RunConfig.from_toml(text, RUN)
    assert str(caught.value).startswith(f"{RUN} {message}")
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, []),
        # How the task was found does not change what the run does.
        ({"found": "module:task"}, []),
        ({"seed": 4}, ["seed is 4, it was 3"]),
        ({"name": "b"}, ["task is 'b', it was 'a task'"]),
        ({"interval": 4, "steps": 40}, ["interval is 4, it was 2", "steps is 40, it was 20"]),
        ({"objectives": {"accuracy": "max"}},
         ["objectives is [('accuracy', 'max')], it was [('accuracy', 'max'), ('d.s.p', 'min')]"]),
        ({"constraints": ["accuracy >= 0.7123456789012346", "size < 3"]},
         ["constraints is ['accuracy >= 0.7123456789012346', 'size < 3'], "
          "it was ['accuracy >= 0.7123456789012345', 'size < 3']"]),
        ({"space": {**SPACE, "grid": Grid(0, 0.9, 10)}},
         ["space['grid'] is Grid(lo=0, hi=0.9, n=10), it was Grid(lo=0, hi=0.8, n=10)"]),
        ({"algorithm": {"name": "mo-pbt", "population": 16, "fraction": 0.25, "new": 1}},
         ["algorithm population is 16, it was 32", "algorithm new is 1, it was not set"]),
        # A run that is older than an option has its default.
        ({"algorithm": {"name": "mo-pbt", "population": 32, "fraction": 0.25}}, []),
        ({"algorithm": {"name": "mo-pbt", "population": 32, "fraction": 0.25, "cooling": True}},
         ["algorithm cooling is True, it was False"]),
        ({"algorithm": {"name": "nsga2", "population": 32}},
         ["algorithm name is nsga2, it was mo-pbt", "algorithm fraction is not set, it was 0.25",
          "algorithm scale is not set, it was False"]),
    ],
)  # fmt: skip
def test_differences_are_readable_lines(changed, lines):
    assert settings().differences(settings(**changed)) == lines


def test_hyperparameters_that_came_or_went_or_changed_places():
    fewer = {name: domain for name, domain in SPACE.items() if name != "grid"}
    lines = settings().differences(settings(space=fewer))
    assert lines[0] == "space['grid'] is not set, it was Grid(lo=0, hi=0.8, n=10)"
    assert lines[1].startswith("order of the space is ['log grid', ")
    lines = settings(space=fewer).differences(settings())
    assert "space['grid'] is Grid(lo=0, hi=0.8, n=10), it was not set" in lines
    turned = settings(space=dict(reversed(SPACE.items())))
    assert [line.split(" is ")[0] for line in settings().differences(turned)] == [
        "order of the space"
    ]


def test_settings_are_values():
    assert settings() == settings()
    assert replace(settings(), seed=9) != settings()
    assert isinstance(settings().problem.space, Space)


def test_every_key_is_documented():
    page = (Path(__file__).parents[1] / "docs/reference/run-format.md").read_text(encoding="utf-8")
    keys = {*run_config._KEYS, *run_config._TASK_KEYS}
    assert not [key for key in keys if not re.search(rf"[`\[]{key}[`\]]", page)]
