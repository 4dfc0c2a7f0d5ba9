"""Measure the overhead of Ray: complete runs, empty intervals and many actors.

``python benchmarks/cluster.py [--repeats 3] [workload] [overhead] [driver]`` measures the named
sections, all by default, and prints ratios. The workload is that of `overhead.py`, on two actors of
one CPU each. Compared ways take turns in one run.
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
from population import WORKLOADS, ratio, run_process, time_calls

import mopbt
from mopbt.engines.ray import Actor, RayEngine

MEMORY = 200 * 2**20
# Measured for comparison only.
OTHERS = "Ray Tune's own PBT, reused actors"
# Processes that run the light actors.
HOSTS = 4
EMPTY_SPACE = overhead.EmptyTask.space
EMPTY_OBJECTIVES = overhead.EmptyTask.objectives


def connect(cpus=2):
    """Start Ray on this machine."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=cpus, object_store_memory=MEMORY, **quiet)
    return ray


# The complete workload, each way in its own process.


def run_on_engine(stack=1):
    """Run the workload on two actors, member by member or in stacks."""
    task = overhead.WorkloadTask()
    if stack > 1:
        steps = overhead.INTERVALS * overhead.EPOCHS
        task = WORKLOADS["L"].task(interval=overhead.EPOCHS, steps=steps)
    ray = connect()
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(
            task,
            out=folder + "/run",
            engine=RayEngine(2, stack=stack),
            population=overhead.POPULATION,
            progress=False,
        )
        assert len(results) == overhead.POPULATION * overhead.INTERVALS
    ray.shutdown()


def run_on_tune(trainable=None, samples=overhead.POPULATION, intervals=overhead.INTERVALS):
    """Run a Trainable, by default the workload, on Ray Tune with our scheduler.

    Returns the sorted times of all reports.
    """
    from ray import tune

    from mopbt.integrations.ray_tune import MOPBT, Experiment

    ray = connect()
    if trainable is None:
        space = overhead.SPACE
        objectives = overhead.WorkloadTask.objectives
    else:
        space = EMPTY_SPACE
        objectives = EMPTY_OBJECTIVES
    scheduler = MOPBT(space=space, objectives=objectives, interval=1, max_t=intervals)
    with tempfile.TemporaryDirectory() as folder:
        options = tune.TuneConfig(num_samples=samples, scheduler=scheduler, reuse_actors=True)
        run = tune.RunConfig(storage_path=folder, verbose=0)
        member = tune.with_resources(trainable or peers.member_class(), {"cpu": 1})
        grid = tune.Tuner(member, tune_config=options, run_config=run).fit()
        records = Experiment.open(grid).results.records()
    ray.shutdown()
    assert len(records) == samples * intervals
    return sorted(record["seconds"] for record in records)


def workload(repeats):
    """Compare complete runs with the floor."""
    calls = {
        "floor": "overhead.floor()",
        "RayEngine, two actors": "cluster.run_on_engine()",
        "RayEngine, two actors with stacks of 16": "cluster.run_on_engine(16)",
        "Ray Tune's own PBT, reused actors": "peers.ray()",
        "Ray Tune with MOPBT, reused actors": "cluster.run_on_tune()",
    }
    times = time_calls(calls, repeats)
    floor = statistics.median(times["floor"])
    for way in list(calls)[1:]:
        name = f"MLP, 32 x 10, whole process: {way} / floor"
        against = ratio(times[way], times["floor"])
        seconds = f"{statistics.median(times[way]):.1f} s against {floor:.1f} s"
        better = "" if way.endswith(OTHERS) else "lower"
        yield Row(name, against, detail=seconds, better=better)


# Empty intervals, which train nothing.


def per_interval(seconds, population=overhead.POPULATION):
    """Return the seconds per member-interval from the sorted times of reports.

    The first interval of each member is excluded, because actors start in it.
    """
    return (seconds[-1] - seconds[population - 1]) / (len(seconds) - population)


def print_empty_on_engine(name):
    """Print the seconds per empty member-interval on two actors or two workers."""
    ray = connect() if name == "ray" else None
    with tempfile.TemporaryDirectory() as folder:
        results = mopbt.run(
            overhead.EmptyTask(),
            out=folder + "/run",
            engine=RayEngine(2) if ray else mopbt.PoolEngine(2),
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
        """Train nothing."""

        def step(self):
            return {"a": self.config["x"], "b": -self.config["x"], "score": self.config["x"]}

        def save_checkpoint(self, checkpoint_dir):
            (Path(checkpoint_dir) / "nothing").write_text("")

        def load_checkpoint(self, checkpoint_dir):
            pass

        def reset_config(self, new_config):
            return True

    return Empty


def print_empty_on_tune(intervals=6):
    """Print the seconds per empty member-interval on Ray Tune with our scheduler."""
    print(per_interval(run_on_tune(empty_class(), intervals=intervals)))


def print_empty_on_tune_pbt(intervals=6):
    """Print the seconds per empty member-interval on Ray Tune with its own PBT.

    The time of a shorter run is subtracted, because it contains the startup.
    """
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    ray = connect()
    seconds = {}
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
    """Compare the cost of an empty member-interval."""
    calls = {
        "pool, two worker processes": "cluster.print_empty_on_engine('pool')",
        "RayEngine, two actors": "cluster.print_empty_on_engine('ray')",
        "Ray Tune with MOPBT, reused actors": "cluster.print_empty_on_tune()",
        "Ray Tune's own PBT, reused actors": "cluster.print_empty_on_tune_pbt()",
    }
    for way, call in calls.items():
        cost = statistics.median(float(run_process(call).split()[-1]) for _ in range(repeats))
        better = "" if way.endswith(OTHERS) else "lower"
        yield Row(f"empty member-interval: {way}, ms", 1e3 * cost, better=better)


# The driver with many actors.


class Call:
    """Represent a method of a light actor, with the interface of a Ray actor's method."""

    def __init__(self, method, actor_id):
        self.method = method
        self.actor_id = actor_id

    def remote(self, *args):
        """Send the call to the process that runs the light actor."""
        return self.method.remote(self.actor_id, *args)


class Host:
    """Run many light actors in one Ray actor."""

    def __init__(self):
        self.actors = {}

    def prepare(self, actor_id, *args):
        """Create and prepare a light actor."""
        self.actors[actor_id] = Actor()
        return self.actors[actor_id].prepare(*args)

    def execute(self, actor_id, jobs):
        """Execute jobs on a light actor."""
        return self.actors[actor_id].execute(jobs)


class LightActor:
    """Offer the methods that the driver calls on a Ray actor."""

    def __init__(self, host, actor_id):
        self.prepare = Call(host.prepare, actor_id)
        self.execute = Call(host.execute, actor_id)


class LightActors:
    """Create light actors in place of Ray actors.

    The driver makes the same calls, and gets the same references and answers.
    """

    def __init__(self, ray):
        self.hosts = [ray.remote(num_cpus=0)(Host).remote() for _ in range(HOSTS)]
        self.count = 0

    def remote(self):
        """Create a light actor."""
        self.count += 1
        return LightActor(self.hosts[self.count % HOSTS], self.count)


class LightEngine(RayEngine):
    """Run jobs on light actors."""

    def start(self, work):
        """Replace the actors by light ones."""
        super().start(work)
        self._actor_class = LightActors(self._ray)


def print_driver_cost(actors, intervals):
    """Print the CPU seconds per job of all threads of the driver."""
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
    """Measure how the driver's work per job grows with the number of actors."""
    # More actors, each with one member, train for fewer intervals.
    sizes = {8: 64, 64: 16, 512: 4}
    costs = {}
    for n, intervals in sizes.items():
        call = f"cluster.print_driver_cost({n}, {intervals})"
        seen = [float(run_process(call).split()[-1]) for _ in range(repeats)]
        costs[n] = statistics.median(seen)
    for n, cost in costs.items():
        detail = f"{1e3 * cost:.2f} ms"
        name = f"driver's CPU per job with {n} light actors / with 8"
        yield Row(name, cost / costs[8], detail=detail, better="lower" if n > 8 else "")


SECTIONS = {"workload": workload, "overhead": overheads, "driver": driver}


def main():
    """Print the rows of the chosen sections."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "sections", nargs="*", choices=[*SECTIONS, []], metavar="section", help=", ".join(SECTIONS)
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    return show(sections(options.sections or SECTIONS, options.repeats), options.json)


def sections(names, repeats):
    """Measure the named sections."""
    for name in names:
        print(f"{name} (load {os.getloadavg()[0]:.1f} before)", flush=True)
        yield from SECTIONS[name](repeats)


if __name__ == "__main__":
    sys.exit(main())
