"""What Ray costs: whole runs against a plain loop, an interval that trains nothing, and the driver with more and more actors.

``python benchmarks/cluster.py [--repeats 3] [workload] [overhead] [driver]`` measures what is named (all by default) and prints
ratios. The workload is that of `overhead.py`, on two actors of one CPU each; what is compared is measured in one run, in turns.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import overhead
import peers
from measuring import Row, argument_parser, show
from population import WORKLOADS, in_turns, program, ratio

import mopbt
from mopbt.engines.ray import Actor, RayEngine

MEMORY = 200 * 2**20
OTHERS = "Ray Tune's own PBT, reused actors"  # measured for comparison only
HOSTS = 4  # processes in which the light actors live


def connect(cpus=2):
    """Start Ray on this machine."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=cpus, object_store_memory=MEMORY, **quiet)
    return ray


# The whole workload, each way as a program of its own.


def engine(stack=1):
    """Run the workload on two actors, member by member or in stacks."""
    task = (
        WORKLOADS["L"].task(interval=overhead.EPOCHS, steps=overhead.INTERVALS * overhead.EPOCHS)
        if stack > 1
        else overhead.WorkloadTask()
    )
    ray = connect()
    with tempfile.TemporaryDirectory() as folder:
        crew = RayEngine(2, stack=stack)
        results = mopbt.run(
            task, out=folder + "/run", engine=crew, population=overhead.POPULATION, progress=False
        )
        assert len(results) == overhead.POPULATION * overhead.INTERVALS
    ray.shutdown()


def tune(trainable=None, samples=overhead.POPULATION, intervals=overhead.INTERVALS):
    """Run the workload, or another Trainable, under Ray Tune with our scheduler; return the seconds of all reports."""
    from ray import tune

    from mopbt.integrations.ray_tune import MOPBT, Experiment

    ray = connect()
    space, objectives = (
        (overhead.SPACE, overhead.WorkloadTask.objectives)
        if trainable is None
        else (EMPTY_SPACE, EMPTY_OBJECTIVES)
    )
    scheduler = MOPBT(space=space, objectives=objectives, interval=1, max_t=intervals)
    with tempfile.TemporaryDirectory() as folder:
        options = tune.TuneConfig(num_samples=samples, scheduler=scheduler, reuse_actors=True)
        run = tune.RunConfig(storage_path=folder, verbose=0)
        member = tune.with_resources(trainable or peers.member_class(), {"cpu": 1})
        records = Experiment.open(
            tune.Tuner(member, tune_config=options, run_config=run).fit()
        ).results.records()
    ray.shutdown()
    assert len(records) == samples * intervals
    return sorted(record["seconds"] for record in records)


def workload(repeats):
    """Compare whole runs with the floor."""
    calls = {
        "floor": "overhead.floor()",
        "RayEngine, two actors": "cluster.engine()",
        "RayEngine, two actors with stacks of 16": "cluster.engine(16)",
        "Ray Tune's own PBT, reused actors": "peers.ray()",
        "Ray Tune with MOPBT, reused actors": "cluster.tune()",
    }
    times = in_turns({way: lambda call=call: program(call) for way, call in calls.items()}, repeats)
    for way in list(calls)[1:]:
        seconds = f"{statistics.median(times[way]):.1f} s against {statistics.median(times['floor']):.1f} s"
        against, better = ratio(times[way], times["floor"]), "" if way.endswith(OTHERS) else "lower"
        yield Row(
            f"MLP, 32 x 10, whole process: {way} / floor", against, detail=seconds, better=better
        )


# An interval that trains nothing.

EMPTY_SPACE, EMPTY_OBJECTIVES = overhead.EmptyTask.space, overhead.EmptyTask.objectives


def per_interval(seconds, population=overhead.POPULATION):
    """Return the seconds per member-interval of sorted reports, the first of each member left out as actors start meanwhile."""
    return (seconds[-1] - seconds[population - 1]) / (len(seconds) - population)


def empty_engine(name):
    """Print the seconds per member-interval that trains nothing, on two actors or two worker processes."""
    ray = connect() if name == "ray" else None
    with tempfile.TemporaryDirectory() as folder:
        crew = RayEngine(2) if ray else mopbt.PoolEngine(2)
        results = mopbt.run(
            overhead.EmptyTask(),
            out=folder + "/run",
            engine=crew,
            population=overhead.POPULATION,
            progress=False,
        )
    print(per_interval(sorted(record["seconds"] for record in results.records())))
    if ray:
        ray.shutdown()


def empty_class():
    """Return a class Trainable that trains nothing."""
    from ray.tune import Trainable

    class Empty(Trainable):
        """A member that does nothing."""

        def step(self):
            return {"a": self.config["x"], "b": -self.config["x"], "score": self.config["x"]}

        def save_checkpoint(self, checkpoint_dir):
            (Path(checkpoint_dir) / "nothing").write_text("")

        def load_checkpoint(self, checkpoint_dir):
            pass

        def reset_config(self, new_config):
            return True

    return Empty


def empty_tune(intervals=6):
    """Print the seconds per member-interval that trains nothing, under Tune with our scheduler."""
    print(per_interval(tune(empty_class(), intervals=intervals)))


def empty_tune_pbt(intervals=6):
    """Print the seconds per member-interval that trains nothing under Tune's own PBT, its start left out by a shorter run."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    ray, seconds = connect(), {}
    for length in (2, 2 + intervals):
        scheduler = PopulationBasedTraining(
            "training_iteration",
            perturbation_interval=1,
            hyperparam_mutations={"x": tune.uniform(0, 1)},
        )
        with tempfile.TemporaryDirectory() as folder:
            options = tune.TuneConfig(
                metric="score", mode="max", num_samples=32, scheduler=scheduler, reuse_actors=True
            )
            run = tune.RunConfig(
                storage_path=folder, stop={"training_iteration": length}, verbose=0
            )
            began = time.perf_counter()
            tune.Tuner(
                tune.with_resources(empty_class(), {"cpu": 1}),
                param_space={"x": 0.5},
                tune_config=options,
                run_config=run,
            ).fit()
            seconds[length] = time.perf_counter() - began
    ray.shutdown()
    print((seconds[2 + intervals] - seconds[2]) / (32 * intervals))


def overheads(repeats):
    """Compare what an interval costs that trains nothing."""
    calls = {
        "pool, two worker processes": "cluster.empty_engine('pool')",
        "RayEngine, two actors": "cluster.empty_engine('ray')",
        "Ray Tune with MOPBT, reused actors": "cluster.empty_tune()",
        "Ray Tune's own PBT, reused actors": "cluster.empty_tune_pbt()",
    }
    for way, call in calls.items():
        cost = statistics.median(float(program(call).split()[-1]) for _ in range(repeats))
        better = "" if way.endswith(OTHERS) else "lower"
        yield Row(f"empty member-interval: {way}, ms", 1e3 * cost, better=better)


# The driver with many actors.


class Call:
    """A method of a light actor, called as a method of a Ray actor is."""

    def __init__(self, method, lodger):
        self.method, self.lodger = method, lodger

    def remote(self, *args):
        """Send the call to the process in which the light actor lives."""
        return self.method.remote(self.lodger, *args)


class Host:
    """A process in which many light actors live."""

    def __init__(self):
        self.lodgers = {}

    def prepare(self, lodger, *args):
        """Let a light actor move in."""
        self.lodgers[lodger] = Actor()
        return self.lodgers[lodger].prepare(*args)

    def execute(self, lodger, stack):
        """Let a light actor do its work."""
        return self.lodgers[lodger].execute(stack)


class Lodging:
    """Hands out light actors in place of Ray actors: the driver's calls, references and answers are the same."""

    def __init__(self, ray):
        self.hosts = [ray.remote(num_cpus=0)(Host).remote() for _ in range(HOSTS)]
        self.count = 0

    def remote(self):
        """Return a light actor."""
        self.count += 1
        host = self.hosts[self.count % HOSTS]
        return type(
            "Light",
            (),
            {name: Call(getattr(host, name), self.count) for name in ("prepare", "execute")},
        )()


class LightEngine(RayEngine):
    """The engine with light actors."""

    def start(self, work):
        """Replace the actors by light ones."""
        super().start(work)
        self._actor_class = Lodging(self._ray)


def driving(actors, intervals):
    """Print the driver's CPU seconds per job with so many light actors, all of its threads together."""
    ray = connect(HOSTS)
    task = overhead.EmptyTask()
    task.steps = intervals
    with tempfile.TemporaryDirectory() as folder:
        mopbt.run(
            overhead.EmptyTask(),
            out=folder + "/warm",
            engine=RayEngine(1),
            population=4,
            progress=False,
        )
        began = time.process_time()
        results = mopbt.run(
            task,
            out=folder + "/run",
            engine=LightEngine(actors, num_cpus=0),
            population=actors,
            progress=False,
        )
        print((time.process_time() - began) / len(results))
    ray.shutdown()


def driver(repeats):
    """Measure how the driver's work per job grows with the number of actors, each with a member of its own."""
    sizes = {8: 64, 64: 16, 512: 4}  # actors and intervals
    costs = {
        n: statistics.median(
            float(program(f"cluster.driving({n}, {t})").split()[-1]) for _ in range(repeats)
        )
        for n, t in sizes.items()
    }
    for n, cost in costs.items():
        detail = f"{1e3 * cost:.2f} ms"
        name = f"driver's CPU per job with {n} light actors / with 8"
        yield Row(name, cost / costs[8], detail=detail, better="lower" if n > 8 else "")


SECTIONS = {"workload": workload, "overhead": overheads, "driver": driver}


def main():
    """Print what was measured."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "sections", nargs="*", choices=[*SECTIONS, []], metavar="section", help=", ".join(SECTIONS)
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    return show(sections(options.sections or SECTIONS, options.repeats), options.json)


def sections(names, repeats):
    """Measure sections one after the other."""
    for name in names:
        print(f"{name} (load {os.getloadavg()[0]:.1f} before)", flush=True)
        yield from SECTIONS[name](repeats)


if __name__ == "__main__":
    sys.exit(main())
