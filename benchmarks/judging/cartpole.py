"""ARLBench's CartPole with PPO: hyperparameters change during training, for two objectives.

It runs in an environment of its own, see `arlbench.txt`:
``python benchmarks/judging/cartpole.py '{"algorithm": {"name": "mo-pbt"}, "seed": 0, ...}'``
prints one line of JSON.

The objectives are the mean return of 64 episodes and the cost of training, which is the number of
samples in gradient updates: steps of the environment times epochs of PPO, summed over the ancestry
of a model. ARLBench's own second objectives cannot be used: `runtime` is a wall time, and
`reward_std` of version 0.1.3 returns the mean.

An interval loads weights and optimizer state as ARLBench's own checkpoints do, so that a new
learning rate takes effect. Within an episode of `AutoRLEnv` it would not: the optimizer keeps the
first one.
"""

import json
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mopbt.space import Domain, Float, Int, Ordinal

EPISODES = 64
ENVIRONMENTS = 8
# Two rollouts of 128 steps in 8 environments.
INTERVAL = 2048
MOST_EPOCHS = 20
HIGHEST_RETURN = 500.0


@dataclass(frozen=True)
class CartPole:
    """Train PPO on CartPole; the ranges of the hyperparameters are ARLBench's.

    Args:
        intervals: The length of a training in intervals of 2,048 steps of the environment.
    """

    intervals: int = 10

    name = "arlbench-cartpole"
    interval = INTERVAL

    @property
    def steps(self) -> int:
        """Return the steps of the environment in one training."""
        return INTERVAL * self.intervals

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the hyperparameters of PPO that ARLBench can change during training."""
        return {
            "learning_rate": Float(1e-6, 0.1, log=True),
            "update_epochs": Int(1, MOST_EPOCHS),
            "minibatch_size": Ordinal([16, 32, 64, 128]),
            "clip_eps": Float(0.0, 0.5),
            "ent_coef": Float(0.0, 0.5),
            "gamma": Float(0.8, 1.0),
            "gae_lambda": Float(0.8, 0.9999),
            "vf_coef": Float(0.0, 1.0),
        }

    @property
    def objectives(self) -> Mapping[str, Any]:
        """Return both objectives, as shares of the largest values."""
        return {"return": "max", "cost": "min"}

    @property
    def reference(self) -> Mapping[str, float]:
        """Return the worst values."""
        return {"return": 0.0, "cost": 1.0}

    @cached_property
    def _environments(self) -> tuple[Any, Any]:
        from arlbench.core.environments import make_env

        made = (
            make_env(
                "gymnax",
                "CartPole-v1",
                n_envs=ENVIRONMENTS,
                env_kwargs={},
                cnn_policy=False,
                seed=seed,
            )
            for seed in (0, 1)
        )
        return next(made), next(made)

    def _algorithm(self, hp: Mapping[str, Any]) -> Any:
        from arlbench.core.algorithms import PPO
        from ConfigSpace import Configuration

        values = dict(PPO.get_default_hpo_config()) | dict(hp)
        environment, evaluation = self._environments
        config = Configuration(PPO.get_hpo_config_space(), values)
        return PPO(config, environment, eval_env=evaluation)

    def init(self, seed: int) -> dict[str, Any]:
        """Return an untrained model."""
        return self._model(self._algorithm({}).init(_key(seed)), 0.0, 0.0)

    def train(
        self, model: dict[str, Any], hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> dict[str, Any]:
        """Train for one interval and measure the return."""
        algorithm = self._algorithm(hp)
        state = algorithm.init(
            _key(seed), network_params=model["params"], opt_state=model["optimizer"]
        )
        state, result = algorithm.train(
            *state, n_total_timesteps=end - begin, n_eval_steps=1, n_eval_episodes=EPISODES
        )
        cost = (end - begin) * hp["update_epochs"] / (self.steps * MOST_EPOCHS)
        reached = float(result.eval_rewards[-1].mean()) / HIGHEST_RETURN
        return self._model(state, model["cost"] + cost, reached)

    def evaluate(self, model: dict[str, Any]) -> dict[str, float]:
        """Return what training measured."""
        return {"return": model["return"], "cost": model["cost"]}

    def dump(self, model: dict[str, Any]) -> bytes:
        """Serialize a model."""
        from flax.serialization import to_bytes

        return to_bytes(model)  # type: ignore[no-any-return]

    def load(self, data: bytes) -> Any:
        """Restore a model."""
        from flax.serialization import from_bytes

        return from_bytes(self.init(0), data)

    @staticmethod
    def _model(state: Any, cost: float, reached: float) -> dict[str, Any]:
        train_state = state.runner_state.train_state
        return {
            "params": train_state.params,
            "optimizer": train_state.opt_state,
            "cost": cost,
            "return": reached,
        }


def _key(seed: int) -> Any:
    import jax

    return jax.random.key(seed % 2**31)


def measure(key: dict[str, Any]) -> dict[str, Any]:
    """Run one algorithm; return its hypervolume and its front."""
    import mopbt
    from mopbt.algorithms import algorithm_of

    begin = time.process_time()
    results = mopbt.run(
        CartPole(key["intervals"]),
        out=None,
        algorithm=algorithm_of({**key["algorithm"], "population": key["population"]}),
        seed=key["seed"],
        engine="local",
        progress=False,
    )
    front = [[round(value, 4) for value in point.scores.values()] for point in results.front()]
    return {
        "value": results.hypervolume(),
        "front": front,
        "cpu": round(time.process_time() - begin, 2),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(json.loads(sys.argv[1]))))
