"""Trade the return on CartPole against the energy of the controller, with errors of both.

The environment is gymnasium's, the learner is REINFORCE. Each metric is a mean over episodes,
reported with its standard error, so that the front is not a list of lucky episodes.
"""

import sys

import gymnasium
import numpy as np
import torch

import mopbt

EPISODES = 6  # of an update, and of an evaluation


def play(policy, seed, energy_price):
    """Play an episode; return log-probabilities, rewards to train on, return and energy."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=200)
    state, _ = env.reset(seed=seed)
    logs, rewards, energy, action, over = [], [], 0.0, 0, False
    while not over:
        choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(state)))
        before, action = action, choice.sample()
        logs.append(choice.log_prob(action))
        switched = float(action != before)  # reversing the motor costs energy
        state, reward, ended, cut, _ = env.step(int(action))
        rewards.append(float(reward) - energy_price * switched)
        energy += switched
        over = ended or cut
    return torch.stack(logs), rewards, float(len(rewards)), energy / len(rewards)


@mopbt.task(
    space={"lr": mopbt.LogGrid(1e-3, 0.1, 8), "energy_price": mopbt.LogGrid(0.05, 2, 8, zero=True)},
    objectives={"length": "max", "energy": "min"},
    steps=20,
    interval=1,
)
def train(m):
    policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=m.hp["lr"])
    m.track(policy=policy, optimizer=optimizer)
    price = m.hp["energy_price"]
    for step in m.steps():
        loss = torch.zeros(())
        for episode in range(EPISODES):
            logs, rewards, _, _ = play(policy, m.seed % 2**20 + 1000 * step + episode, price)
            future = np.cumsum(rewards[::-1])[::-1].copy()
            advantage = torch.as_tensor(future - future.mean(), dtype=torch.float32)
            loss = loss - (logs * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        played = [play(policy, 10_000 + episode, price)[2:] for episode in range(EPISODES)]
    lengths, energies = zip(*played, strict=True)
    m.report(
        length=mopbt.Estimate.from_samples(lengths), energy=mopbt.Estimate.from_samples(energies)
    )


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    results = mopbt.run(train, out=f"runs/cartpole-{population}", population=population)
    print(results.front())
