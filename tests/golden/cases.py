"""The golden runs as plain data, in names of their own that `adapter` maps to mopbt's.

Every algorithm has a case on the local engine, synchronous and (where it has the option)
asynchronous, and the same on the simulated engine with several workers. Constraints, NaN members,
failing members and three objectives are spread over them. `ON_OTHER_ENGINES` names the synchronous
cases that the pool and the vectorized engine must repeat, and `ON_POOL_ASYNC` those that the pool
runs without a fixed order.
"""

MIXED = {"mixed": True}
NAN = {"diverging": True}
FAILING = {"failing": 0.12}
THREE = {"goals": 3}
LIMITS = ["loss <= 1.0", "size <= 0.9"]


def case(algorithm, options, task=None, *, limits=(), steps=4, seed=0, budget=None, engine=None):
    """Return a case; `task` holds the learner's options, or the name of one of mopbt's toys."""
    if isinstance(task, str):
        described = {"toy": task, "interval": 2, "steps": 12}
    else:
        described = {"learner": task or {}, "limits": list(limits), "interval": 1, "steps": steps}
    return {
        "algorithm": algorithm,
        "options": options,
        "task": described,
        "seed": seed,
        "budget": budget or {},
        "engine": engine or {"kind": "local"},
    }


LOCAL = {
    # mopbt's own toy, with the default parts and with others
    "toy-mo-pbt": case("mo-pbt", {"population": 6}, "plain"),
    "toy-mo-pbt-async": case(
        "mo-pbt",
        {"population": 6, "asynchronous": True, "inherit_step": True},
        "plain",
    ),
    "toy-mo-pbt-other-parts": case(
        "mo-pbt",
        {
            "population": 5,
            "within": "hypervolume",
            "explore": "random",
            "start": "iid",
            "fraction": 0.5,
        },
        "plain",
    ),
    "toy-mo-pbt-failing": case("mo-pbt", {"population": 11, "within": "crowded"}, "failing"),
    # population based training
    "mo-pbt": case("mo-pbt", {"population": 6}, MIXED | NAN, limits=LIMITS, steps=5, seed=1),
    "mo-pbt-async": case(
        "mo-pbt",
        {"population": 6, "asynchronous": True, "inherit_step": True},
        MIXED | THREE | FAILING,
        steps=5,
        seed=2,
    ),
    "mo-pbt-scaled": case(
        "mo-pbt",
        {"population": 7, "scale": True, "resample": 0.5, "fraction": 0.34},
        MIXED | THREE | NAN | FAILING,
        limits=LIMITS,
        seed=3,
    ),
    "mo-pbt-global-draws": case("mo-pbt", {"population": 5}, {"global_draws": True}, seed=4),
    "mo-pbt-ties": case("mo-pbt", {"population": 8}, {"coarse": True}, steps=5, seed=25),
    "mo-pbt-mostly-failing": case(
        "mo-pbt",
        {"population": 5, "fraction": 0.5},
        {"failing": 0.5, "diverging": True},
        steps=6,
        seed=27,
    ),
    "mo-pbt-stretched": case(
        "mo-pbt",
        {"population": 10, "scale": True},
        {"goals": 3, "stretch": 50.0},
        seed=32,
    ),
    "mo-pbt-mostly-nan": case("mo-pbt", {"population": 3}, {"lost": 0.5}, steps=9, seed=31),
    "pbt": case("pbt", {"population": 6, "objective": "loss"}, MIXED | NAN, seed=5),
    "pbt-async": case(
        "pbt",
        {"population": 6, "objective": 0, "asynchronous": True},
        MIXED | FAILING,
        limits=LIMITS,
        seed=6,
    ),
    "pbt-random-scalarization": case(
        "pbt-random-scalarization",
        {"population": 6},
        MIXED | THREE,
        seed=7,
    ),
    "pbt-random-scalarization-async": case(
        "pbt-random-scalarization",
        {"population": 6, "asynchronous": True, "per_member": True},
        MIXED | FAILING | NAN,
        seed=8,
    ),
    "pbt-max-scalarization": case(
        "pbt-max-scalarization",
        {"population": 6},
        MIXED | FAILING,
        limits=LIMITS,
        seed=9,
    ),
    "pbt-max-scalarization-few-vectors": case(
        "pbt-max-scalarization", {"population": 8, "vectors": 2}, MIXED | THREE, steps=3, seed=28
    ),
    "pbt-max-scalarization-async": case(
        "pbt-max-scalarization",
        {"population": 6, "asynchronous": True, "authors_variant": True, "vectors": 20},
        MIXED | THREE | NAN,
        seed=10,
    ),
    # full training
    "random-search": case(
        "random-search",
        {"population": 8},
        MIXED | NAN,
        limits=LIMITS,
        steps=3,
        seed=11,
    ),
    "random-search-iid": case(
        "random-search",
        {"population": 8, "start": "iid"},
        MIXED | THREE | FAILING,
        steps=3,
        seed=12,
    ),
    "nsga2": case(
        "nsga2",
        {"population": 5, "trainings": 16},
        MIXED | NAN,
        limits=LIMITS,
        steps=2,
        seed=13,
    ),
    "nsga2-ties": case(
        "nsga2",
        {"population": 5, "trainings": 15},
        {"coarse": True},
        steps=2,
        seed=29,
    ),
    "nsga2-three": case(
        "nsga2",
        {"population": 4, "trainings": 14},
        MIXED | THREE | FAILING,
        steps=2,
        seed=14,
    ),
    # successive halving
    "mo-asha": case("mo-asha", {"trials": 12}, MIXED | FAILING, steps=9, seed=15),
    "mo-asha-promotion": case(
        "mo-asha",
        {"trials": 14, "kind": "promotion", "eta": 2},
        MIXED | THREE,
        limits=LIMITS,
        steps=8,
        seed=16,
    ),
    "mo-asha-budget": case(
        "mo-asha",
        {"grace": 2, "within": "crowded"},
        MIXED | NAN,
        steps=8,
        seed=17,
        budget={"jobs": 30},
    ),
    "bo-mo-asha": case(
        "bo-mo-asha",
        {"trials": 26, "gamma": 0.2},
        {"goals": 2},
        limits=LIMITS,
        steps=4,
        seed=18,
    ),
    "bo-mo-asha-promotion": case(
        "bo-mo-asha",
        {"trials": 30, "kind": "promotion", "random": 0.1, "candidates": 12},
        MIXED | THREE | NAN | FAILING,
        steps=3,
        seed=19,
    ),
}

WORKERS = {"kind": "simulated", "workers": 4}
UNEVEN = WORKERS | {"lognormal": [1.5, 0.4]}
SLOW = WORKERS | {"per_step": [2.0, 0.5], "speeds": [1.0, 1.0, 0.5, 0.25]}
DYING = UNEVEN | {"deaths": 0.2, "retries": 1, "restart": 0.7}


def on(name, engine, **changes):
    """Return a case of the local engine on another one."""
    return LOCAL[name] | {"engine": engine} | changes


SIMULATED = {
    "simulated-toy-mo-pbt": on("toy-mo-pbt", WORKERS),
    "simulated-toy-mo-pbt-async": on("toy-mo-pbt-async", SLOW),
    "simulated-mo-pbt": on("mo-pbt", UNEVEN),
    "simulated-mo-pbt-async": on("mo-pbt-async", DYING),
    "simulated-mo-pbt-scaled": on("mo-pbt-scaled", DYING),
    "simulated-pbt": on("pbt", SLOW),
    "simulated-pbt-async": on("pbt-async", UNEVEN),
    "simulated-pbt-random-scalarization": on("pbt-random-scalarization", UNEVEN),
    "simulated-pbt-random-scalarization-async": on("pbt-random-scalarization-async", SLOW),
    "simulated-pbt-max-scalarization": on("pbt-max-scalarization", UNEVEN),
    "simulated-pbt-max-scalarization-async": on("pbt-max-scalarization-async", UNEVEN),
    "simulated-random-search": on("random-search", SLOW),
    "simulated-nsga2": on("nsga2", UNEVEN),
    "simulated-mo-asha": on("mo-asha", UNEVEN),
    "simulated-mo-asha-promotion": on("mo-asha-promotion", SLOW),
    "simulated-mo-asha-time": on("mo-asha-budget", UNEVEN, budget={"seconds": 11.0}),
    "simulated-bo-mo-asha": on("bo-mo-asha", UNEVEN),
    "simulated-bo-mo-asha-promotion": on("bo-mo-asha-promotion", DYING),
}

# Synchronous cases whose decisions depend on no engine: each algorithm once, with and without
# failing members.
ON_OTHER_ENGINES = {
    "pool": (
        "mo-pbt-scaled",
        "mo-pbt-global-draws",
        "pbt",
        "pbt-random-scalarization",
        "pbt-max-scalarization",
        "random-search-iid",
        "nsga2-three",
    ),
    "vectorized": (  # whose global draws belong to a stack and not to a member
        "mo-pbt",
        "mo-pbt-scaled",
        "pbt",
        "pbt-random-scalarization",
        "pbt-max-scalarization",
        "random-search",
        "nsga2",
    ),
}
SAME_SIMULATED = (
    "toy-mo-pbt",
    "mo-pbt",
    "pbt",
    "pbt-random-scalarization",
    "pbt-max-scalarization",
    "random-search",
    "nsga2",
)
ON_POOL_ASYNC = ("mo-pbt-async", "mo-asha", "bo-mo-asha-promotion")
RESUMED = {
    "toy-mo-pbt": [{"jobs": 9}, {"jobs": 20}],
    "mo-pbt-async": [{"jobs": 11}],
    "mo-asha-promotion": [{"jobs": 17}],
    "simulated-mo-pbt": [{"seconds": 3.0}, {"seconds": 5.5}],
    "simulated-mo-pbt-async": [{"seconds": 4.0}],
    "simulated-mo-asha": [{"seconds": 5.0}],
}

GRID = {"goals": 2}
BAYESIAN = {
    "qnehvi": case("qnehvi", {"batch": 2, "trainings": 10}, GRID, limits=LIMITS, steps=1, seed=20),
    "qnehvi-async": case(
        "qnehvi",
        {"batch": 2, "trainings": 9, "asynchronous": True},
        GRID | NAN | {"failing": 0.2},
        steps=2,
        seed=21,
    ),
    "qnehvi-three": case(
        "qnehvi",
        {"batch": 2, "trainings": 8},
        THREE | {"failing": 0.2},
        steps=1,
        seed=22,
    ),
    "parego": case("parego", {"trainings": 9}, GRID | NAN, limits=LIMITS, steps=1, seed=23),
    "parego-three": case("parego", {"trainings": 8}, THREE | {"failing": 0.2}, steps=2, seed=26),
}
SIMULATED_BAYESIAN = {
    "simulated-qnehvi": BAYESIAN["qnehvi"] | {"engine": UNEVEN},
    "simulated-qnehvi-async": BAYESIAN["qnehvi-async"] | {"engine": UNEVEN},
    "simulated-parego": BAYESIAN["parego"] | {"engine": UNEVEN},
}

JOURNALS = LOCAL | SIMULATED
BAYESIAN_JOURNALS = BAYESIAN | SIMULATED_BAYESIAN

NETWORKS = {
    "dropout": {"torch": "dropout", "interval": 1, "steps": 3},
    "statistics": {"torch": "statistics", "interval": 2, "steps": 6},
}
NETWORK_RUN = case("mo-pbt", {"population": 6}, seed=30) | {"task": NETWORKS["dropout"]}
NETWORK_RUNS = {kind: NETWORK_RUN | {"engine": {"kind": kind}} for kind in ("local", "vectorized")}

COMPARISON = {
    "algorithms": {
        # The first of a task, so that its own constraint must be kept apart from those of the task.
        "limited": {
            "algorithm": "mo-pbt",
            "options": {"population": 4},
            "constraints": ["gain >= 0.1"],
            "seed_offset": 10,
            "tasks": ["learner"],
        },
        "MO-PBT": {"algorithm": "mo-pbt", "options": {"population": 4}},
        "random search": {"algorithm": "random-search", "options": {"population": 4}},
        "MO-ASHA": {"algorithm": "mo-asha", "options": {}},
        "random search again": {  # so that two are equal
            "algorithm": "random-search",
            "options": {"population": 4},
            "tasks": ["annealing"],
        },
    },
    "seeds": 2,
    "workers": 3,
    "cost": 0.5,
    "time_of": "MO-PBT",
}

THREE_TASK = LOCAL["mo-pbt-scaled"]["task"]
THREE_REFERENCE = {"gain": -1, "loss": 2, "reach": -1}
REPORTS = {  # runs that are shown together
    "two-objectives": {
        "mo-pbt": SIMULATED["simulated-mo-pbt"] | {"reference": {"gain": -1, "loss": 2}},
        "nsga2": SIMULATED["simulated-nsga2"] | {"reference": {"gain": 0, "loss": 1}},
    },
    "three-objectives": {
        name: SIMULATED[f"simulated-{name}"] | {"task": THREE_TASK, "reference": THREE_REFERENCE}
        for name in ("mo-pbt-async", "mo-asha")
    },
}
