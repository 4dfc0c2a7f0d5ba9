"""What the benchmarks share: CPU times side by side, and a table of ratios against targets."""

import statistics
import time
from collections.abc import Callable, Sequence

Row = tuple[str, float, str, bool]  # what, ratio, target, whether it is met


def cpu_times(*functions: Callable[[], object], number: int = 1, repeats: int = 3) -> list[float]:
    """Return the median CPU seconds of one call of each function, in turns so that all meet the same machine."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, seen in zip(functions, times, strict=True):
            begin = time.process_time()
            for _ in range(number):
                function()
            seen.append((time.process_time() - begin) / number)
    return [statistics.median(seen) for seen in times]


def show(rows: Sequence[Row]) -> int:
    """Print ratios and targets; return the exit code: 1 if a target is missed."""
    for name, ratio, target, met in rows:
        print(f"{name:<62} {ratio:8.2f}   {target:<7} {'PASS' if met else 'FAIL'}")
    return 0 if all(met for *_, met in rows) else 1
