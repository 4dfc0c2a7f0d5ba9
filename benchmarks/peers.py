"""Run the workload of `overhead.py` with population based training of other tools.

Each tool has the fastest settings of its documentation. Ray Tune gets a class Trainable and reuses
actors; Syne Tune polls every 0.1 s instead of every 5 s. Both optimize one objective, the sum of
precision and recall. A member trains for ten intervals of two epochs, on two workers of one thread.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import overhead

LEVELS = {name: list(domain.values) for name, domain in overhead.SPACE.items()}


def train(model, optimizer, values):
    """Train one interval and return precision, recall and their sum."""
    overhead.apply(model, optimizer, values)
    for _ in range(overhead.EPOCHS):
        overhead.epoch(model, optimizer, values)
    scores = overhead.measure(model)
    return {**scores, "score": sum(scores.values())}


def member_class():
    """Return the workload as a class Trainable."""
    import torch
    from ray.tune import Trainable

    class Member(Trainable):
        """Train a member; an actor can be reused for another one."""

        def setup(self, config):
            torch.set_num_threads(1)
            self.parts = overhead.build(config)

        def step(self):
            return train(*self.parts, self.config)

        def save_checkpoint(self, checkpoint_dir):
            states = [part.state_dict() for part in self.parts]
            torch.save(states, Path(checkpoint_dir) / "state.pt")

        def load_checkpoint(self, checkpoint_dir):
            states = torch.load(Path(checkpoint_dir) / "state.pt")
            for part, state in zip(self.parts, states, strict=True):
                part.load_state_dict(state)

        def reset_config(self, new_config):
            self.parts = overhead.build(new_config)
            return True

    return Member


def ray():
    """Run Ray Tune's PopulationBasedTraining."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        "training_iteration", perturbation_interval=1, hyperparam_mutations=LEVELS
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        options = tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=overhead.POPULATION,
            scheduler=scheduler,
            reuse_actors=True,
        )
        stop = {"training_iteration": overhead.INTERVALS}
        run = tune.RunConfig(storage_path=folder, stop=stop, verbose=0)
        start = {name: tune.choice(levels) for name, levels in LEVELS.items()}
        results = tune.Tuner(
            tune.with_resources(member_class(), {"cpu": 1}),
            param_space=start,
            tune_config=options,
            run_config=run,
        ).fit()
    done = [result.metrics["training_iteration"] for result in results]
    ray.shutdown()
    assert len(done) == overhead.POPULATION, f"{len(done)} members"
    assert min(done) >= overhead.INTERVALS, f"intervals {done}"


def syne():
    """Run Syne Tune's PopulationBasedTraining for 32 members' intervals."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYNETUNE_FOLDER"] = folder
        _syne(folder)


def _syne(folder):
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import choice
    from syne_tune.optimizer.schedulers.pbt import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        {name: choice(levels) for name, levels in LEVELS.items()},
        metric="score",
        time_attr="interval",
        max_t=overhead.INTERVALS,
        do_minimize=False,
        random_seed=0,
        population_size=overhead.POPULATION,
        perturbation_interval=1,
    )
    enough = StoppingCriterion(max_num_evaluations=overhead.POPULATION * overhead.INTERVALS)
    tuner = Tuner(
        LocalBackend(__file__),
        scheduler,
        enough,
        n_workers=2,
        sleep_time=0.1,
        trial_backend_path=folder,
    )
    tuner.run()
    reports = tuner.tuning_status.overall_metric_statistics.count
    assert reports >= overhead.POPULATION * overhead.INTERVALS, f"{reports} reports"


def syne_trial():
    """Train one member; Syne Tune starts this program for each trial."""
    import torch
    from syne_tune import Reporter

    parser = argparse.ArgumentParser()
    for name in LEVELS:
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--st_checkpoint_dir")
    arguments = vars(parser.parse_known_args()[0])
    torch.set_num_threads(1)
    parts = overhead.build(arguments)
    done = 0
    report = Reporter()
    file = Path(arguments["st_checkpoint_dir"]) / "state.pt"
    if file.exists():
        done, *states = torch.load(file)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
    # A clone of a finished trial also reports once.
    first = min(done + 1, overhead.INTERVALS)
    for interval in range(first, overhead.INTERVALS + 1):
        score = train(*parts, arguments)["score"]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save([interval, *(part.state_dict() for part in parts)], file)
        report(score=score, interval=interval)


if __name__ == "__main__":
    sys.exit(syne_trial())
