"""Execute the same run on a laptop and on a Ray cluster, with the same result.

``python examples/ray_cluster.py [population]`` starts a cluster of two nodes on this machine. On a
real cluster you only need ``engine=mopbt.RayEngine(address="auto")`` and a `storage` that all nodes
can reach.
"""

import sys

import mopbt
from mopbt.tasks.adult_linear import AdultLinear


def train_on(engine, out, population, **options):
    """Train the population on an engine, print a summary and return the front's metrics."""
    results = mopbt.run(
        AdultLinear(steps=10),
        out=out,
        engine=engine,
        population=population,
        seed=0,
        progress=False,
        **options,
    )
    front = results.front()
    best = ", ".join(f"{name} {score:.3f}" for name, score in front.best_values.items())
    print(f"{out}: {len(results)} intervals, {len(front)} models on the front, best {best}")
    return [point.scores for point in front]


def main():
    import ray
    from ray.cluster_utils import Cluster

    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    small = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **small}
    )
    cluster.add_node(num_cpus=1, **small)
    try:
        on_laptop = train_on("pool", "runs/laptop", population)
        on_cluster = train_on(
            mopbt.RayEngine(address=cluster.address),
            "runs/cluster",
            population,
            storage="runs/shared",
        )
        print("the fronts are equal" if on_laptop == on_cluster else "the fronts differ")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
