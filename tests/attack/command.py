"""Attack the project: power losses, failing calls, hostile worlds, lifecycles, mutated inputs.

`make attack` runs it in full; `--sample 0.05 --seed COMMIT` takes a part that the seed chooses.
Finished cases are recorded in `build/attack`, so an interrupted attack continues where it stopped.
A change of the code starts it over.
"""

import argparse
import os
import sys
from pathlib import Path

# Small matrices need no threads, which would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

from attack.campaign import ATTACKS, ROOT, Sample, execute, fingerprint, summarize, units_of


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--sample", type=float, default=1.0, help="the share of all cases")
    parser.add_argument("--seed", default="0", help="chooses the sample")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--unit", default="", help="only units with this text in their names")
    parser.add_argument("--case", default="", help="repeat the cases with this text in their names")
    parser.add_argument("--folder", type=Path, help="where finished cases are recorded")
    options = parser.parse_args()
    unknown = [name for name in options.attacks if name not in ATTACKS]
    if unknown:
        parser.error(f"unknown attack {unknown[0]!r}; known: {', '.join(ATTACKS)}")
    sample = Sample(options.sample, options.seed)
    name = f"{fingerprint()}-{sample.share:g}-{sample.seed}"
    folder = options.folder or ROOT / "build" / "attack" / name
    units = units_of(folder, sample, options.attacks, options.case)
    results = execute([u for u in units if options.unit in u.name], options.workers, folder)
    _, failed = summarize(results, sample)
    sys.exit(1 if failed.total() else 0)


if __name__ == "__main__":
    main()
