"""Measure what a trial costs besides its training: random search of mopbt and of Optuna.

The objective only returns its hyperparameters as two metrics. Both tools run in one process, first
without files, then with the file from which a study or a run can be resumed. mopbt also writes a
checkpoint for each trial.
"""

import sys
import tempfile
import time

from measuring import EmptyTask, Row, argument_parser, cpu_times, show

import mopbt

TRIALS = 500


class OneInterval(EmptyTask):
    """Do nothing, in one interval."""

    steps = 1


def run_mopbt(out):
    """Run random search with mopbt."""
    search = mopbt.RandomSearch(population=TRIALS)
    results = mopbt.run(OneInterval(), algorithm=search, engine="local", out=out, progress=False)
    assert len(results.records()) == TRIALS


def run_optuna(file):
    """Run random search with Optuna, in memory or with a journal."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = None
    if file:
        backend = optuna.storages.journal.JournalFileBackend(file)
        storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(
        storage=storage,
        sampler=optuna.samplers.RandomSampler(0),
        directions=["maximize", "maximize"],
    )

    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        return x, -x

    study.optimize(objective, n_trials=TRIALS)
    assert len(study.trials) == TRIALS


def rows(repeats):
    """Compare CPU times of a trial."""
    run_mopbt(None)
    run_optuna(None)
    with tempfile.TemporaryDirectory() as folder:

        def place():
            return f"{folder}/{time.perf_counter_ns()}"

        for name, ours, theirs in (
            ("in memory", lambda: run_mopbt(None), lambda: run_optuna(None)),
            ("on disk", lambda: run_mopbt(place()), lambda: run_optuna(place())),
        ):
            own, other = cpu_times(ours, theirs, repeats=repeats)
            yield Row(f"mopbt, {name}: CPU time of a trial, ms", 1e3 * own / TRIALS, better="lower")
            yield Row(f"Optuna, {name}: CPU time of a trial, ms", 1e3 * other / TRIALS)


def main():
    """Print all rows."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("repeats", nargs="?", type=int, default=3)
    options = parser.parse_args()
    return show(rows(options.repeats), options.json)


if __name__ == "__main__":
    sys.exit(main())
