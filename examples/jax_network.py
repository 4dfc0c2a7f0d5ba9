"""Trade precision against recall of a network in JAX with Optax.

The state of any library can be tracked as arrays.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mopbt

rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 10)).astype(np.float32)
Y = (X[:, :4].sum(1) + rng.normal(size=2000) > 2).astype(np.float32)
TRAIN = slice(0, 1500)
VALIDATION = slice(1500, 2000)
# The learning rate is a hyperparameter, so it must not be part of the checkpoint.
adam = optax.scale_by_adam()


def outputs(params, x):
    return (jnp.tanh(x @ params["w"] + params["b"]) @ params["v"])[:, 0]


@jax.jit
def update(params, moments, x, y, lr, positive):
    def loss(params):
        losses = optax.sigmoid_binary_cross_entropy(outputs(params, x), y)
        return jnp.mean(losses * jnp.where(y > 0, positive, 1 - positive))

    changes, moments = adam.update(jax.grad(loss)(params), moments)
    return jax.tree.map(lambda p, change: p - lr * change, params, changes), moments


def train(m):
    keys = jax.random.split(jax.random.key(m.seed), 2)
    params = {
        "w": jax.random.normal(keys[0], (10, 16)) / 3,
        "b": jnp.zeros(16),
        "v": jax.random.normal(keys[1], (16, 1)) / 4,
    }
    leaves, structure = jax.tree.flatten((params, adam.init(params)))
    state = {"leaves": [np.array(leaf) for leaf in leaves]}
    # Restores the leaves if there is a checkpoint.
    m.track(state=state)
    params, moments = jax.tree.unflatten(structure, state["leaves"])
    lr = m.hp["lr"]
    positive = m.hp["positive"]
    for step in m.steps():
        order = np.random.default_rng((m.seed, step)).permutation(1500)
        for rows in order.reshape(-1, 100):
            params, moments = update(params, moments, X[TRAIN][rows], Y[TRAIN][rows], lr, positive)
    state["leaves"] = [np.array(leaf) for leaf in jax.tree.leaves((params, moments))]
    predicted = np.asarray(outputs(params, X[VALIDATION]) > 0)
    truth = Y[VALIDATION] > 0
    hits = (predicted & truth).sum()
    m.report(precision=hits / max(predicted.sum(), 1), recall=hits / truth.sum())


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = mopbt.run(
        train,
        out=f"runs/jax-network-{population}",
        population=population,
        space={"lr": mopbt.LogGrid(1e-4, 1e-1, 10), "positive": mopbt.Grid(0.1, 0.9, 9)},
        objectives={"precision": "max", "recall": "max"},
        steps=10,
    )
    for point in results.front().spread(6):
        print("  ".join(f"{name} {score:.3f}" for name, score in point.scores.items()))
