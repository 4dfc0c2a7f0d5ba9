"""COCO's `bbob-biobj`: pairs of functions that are minimized, in five dimensions.

COCO judges by itself. Its logger computes, after every evaluation, how much hypervolume the
archive lacks to COCO's reference front, in units of the box between the ideal point and the nadir.
The 58 targets for that gap are COCO's.
"""

import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from judging.samplers import SAMPLERS
from mopbt.space import Float, Grid, Space

DIMENSION = 5
# COCO's functions have their single optima in [-5, 5].
EDGE = 5.0
# The values of each variable in the part `grids`.
VALUES = 20
# COCO's targets for the missing hypervolume, largest first. A negative one means that the front is
# better than COCO's reference.
TARGETS = [
    *(10 ** (-k / 10) for k in range(51)),
    0.0,
    *(-(10 ** (-5 + k / 5)) for k in range(6)),
]


def space_of(grid: bool) -> Space:
    """Return the box, or a grid in it."""
    domain = Grid(-EDGE, EDGE, VALUES) if grid else Float(-EDGE, EDGE)
    return Space({f"x{i}": domain for i in range(DIMENSION)})


def measure(key: dict[str, Any]) -> dict[str, Any]:
    """Run one algorithm on one problem; return when it reached which target.

    `key` has the function, the instance, the algorithm and the budget.
    """
    import cocoex

    suite = cocoex.Suite("bbob-biobj", "", f"dimensions:{DIMENSION}")
    name = f"bbob-biobj_f{key['function']:02d}_i{key['instance']:02d}_d{DIMENSION:02d}"
    sampler = SAMPLERS[key["algorithm"]]
    # The same seed for all algorithms.
    seed = 1000 * key["function"] + key["instance"]
    begin = time.process_time()
    with _working_directory():
        options = "result_folder:log log_nondominated:none log_decision_variables:none"
        _silence(cocoex)
        observer = cocoex.Observer("bbob-biobj", options)
        problem = suite.get_problem(name, observer)
        sampler(space_of(key["part"] == "grids"), lambda x: problem(x), key["budget"], seed)
        evaluations = problem.evaluations
        problem.free()
        rows = read_log(Path("exdata/log"))
    if evaluations != key["budget"]:
        raise RuntimeError(f"{key} used {evaluations} evaluations")
    cpu = round(time.process_time() - begin, 2)
    return {"hits": hits_of(rows), "gap": rows[-1][1], "cpu": cpu}


def read_log(folder: Path) -> list[tuple[int, float]]:
    """Read evaluations and gaps from the log of one problem."""
    (file,) = glob.glob(str(folder / "*" / "*_hyp.dat"))
    lines = [line.split() for line in Path(file).read_text().splitlines() if line[:1] != "%"]
    return [(int(line[0]), float(line[1])) for line in lines if line]


def hits_of(rows: list[tuple[int, float]]) -> list[int]:
    """Return the evaluations after which each target was reached, while one was.

    >>> hits_of([(1, 0.9), (7, 0.7)])
    [1, 7]
    """
    hits: list[int] = []
    for evaluations, gap in rows:
        while len(hits) < len(TARGETS) and gap <= TARGETS[len(hits)]:
            hits.append(evaluations)
    return hits


def _silence(cocoex: Any) -> None:
    cocoex.log_level("error")


@contextmanager
def _working_directory() -> Iterator[None]:
    """Work in a temporary directory, because COCO writes its log into the current one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
