"""The same run on a laptop and on a cluster: precision against recall of a linear model, on Ray actors of two nodes.

``python examples/ray_cluster.py [population]`` starts a small Ray cluster on this machine, as a stand-in for a real one. With a
real one, all that is left is ``engine=mopbt.RayEngine(address="auto")`` and a `storage` that all its nodes reach.
"""

import sys

import mopbt
from mopbt.tasks.adult_linear import AdultLinear


def on(engine, out, population, **where):
    """Train the population on an engine, and say what came of it."""
    results = mopbt.run(
        AdultLinear(steps=10),
        out=out,
        engine=engine,
        population=population,
        seed=0,
        progress=False,
        **where,
    )
    front = results.front()
    best = ", ".join(f"{name} {score:.3f}" for name, score in front.best().items())
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
        here = on("pool", "runs/laptop", population)
        there = on(
            mopbt.RayEngine(address=cluster.address),
            "runs/cluster",
            population,
            storage="runs/shared",
        )
        print("the same front" if here == there else "another front")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
