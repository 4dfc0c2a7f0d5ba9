"""Train PPO from stable-baselines3 on CartPole for long episodes and little energy.

A step is one rollout and update of PPO. The learning rate, the entropy bonus and the price of
energy change while the policy learns. Both objectives are means over episodes, with their standard
errors, so that the front is not a list of lucky episodes.
"""

import sys

import gymnasium
import numpy as np
from stable_baselines3 import PPO

import mopbt

ROLLOUT = 128  # steps of the environment in a step of training
EPISODES = 5  # of an evaluation


class Energy(gymnasium.Wrapper):
    """CartPole where each reversal of the motor has a price."""

    price = 0.0

    def reset(self, **options):
        self.last = None
        return self.env.reset(**options)

    def step(self, action):
        state, reward, ended, cut, about = self.env.step(action)
        about["energy"] = float(self.last is not None and action != self.last)
        self.last = action
        return state, float(reward) - self.price * about["energy"], ended, cut, about


def build():
    env = Energy(gymnasium.make("CartPole-v1", max_episode_steps=100))
    return env, PPO("MlpPolicy", env, n_steps=ROLLOUT, batch_size=64, device="cpu")


def play(agent, seed):
    """Return the length of an episode, and the energy of each of its steps."""
    env, _ = build()
    state, _ = env.reset(seed=seed)
    energy, over = [], False
    while not over:
        action, _ = agent.predict(state, deterministic=True)
        state, _, ended, cut, about = env.step(int(action))
        energy.append(about["energy"])
        over = ended or cut
    return float(len(energy)), float(np.mean(energy))


@mopbt.task(
    space={
        "learning_rate": mopbt.LogGrid(1e-4, 1e-2, 9),
        "ent_coef": mopbt.LogGrid(1e-3, 0.1, 5, zero=True),
        "price": mopbt.LogGrid(0.05, 2, 8, zero=True),
    },
    objectives={"length": "max", "energy": "min"},
    steps=20,
    interval=1,
)
def train(m):
    env, agent = build()
    m.track(policy=agent.policy, optimizer=agent.policy.optimizer)
    env.price = m.hp["price"]
    agent.ent_coef = m.hp["ent_coef"]
    agent.lr_schedule = lambda _: m.hp["learning_rate"]
    agent.learn(ROLLOUT * m.advance())  # stable-baselines3 has its own loop
    lengths, energies = zip(*(play(agent, 10_000 + e) for e in range(EPISODES)), strict=True)
    m.report(
        length=mopbt.Estimate.from_samples(lengths), energy=mopbt.Estimate.from_samples(energies)
    )


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    results = mopbt.run(train, out=f"runs/ppo-{population}", population=population)
    print(results.front())
