"""Devices: what the machine has, what a worker is assigned, and what it really receives."""

import json
import os
import shutil
import stat
import sys
from types import SimpleNamespace

import pytest

import mopbt
from engines.in_workers import Placed, Tried
from mopbt.cli import main as command_line
from mopbt.device import assign_device, assigned_device
from mopbt.engines import auto, devices
from mopbt.engines.auto import EngineSpec, engine_spec
from mopbt.engines.base import RunContext
from mopbt.engines.devices import (
    CPU,
    Device,
    assign_devices,
    check_devices,
    discover,
    mask_entries,
    may_use_accelerator,
    mig_instances,
    select,
    spread,
)
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.trial import WorkerTrial
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack, TaskError, WorkerFailed
from mopbt.problem import problem_of
from mopbt.state import Job
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.tasks.toy import ToyTask

UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
FREE = 10 * 2**30


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        ("3, 1", ["3", "1"]),
        ("2,-1,0", ["2"]),
        (f"{UUID},1", [UUID, "1"]),
        (f"{MIG},MIG-GPU-5d5ba0d6/1/0", [MIG, "MIG-GPU-5d5ba0d6/1/0"]),
    ],
)
def test_a_mask_is_read_as_cuda_reads_it(text, entries):
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert mask_entries("cuda", environment) == entries


def test_other_vendors_have_their_own_masks():
    environment = {"ZE_AFFINITY_MASK": "0.1,2", "CUDA_VISIBLE_DEVICES": "5"}
    assert mask_entries("xpu", environment) == ["0.1", "2"]
    assert mask_entries("rocm", environment) == ["5"]
    assert mask_entries("rocm", {**environment, "HIP_VISIBLE_DEVICES": "1,0"}) == ["1", "0"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("cuda", 1, "3"), {"CUDA_VISIBLE_DEVICES": "3", "MOPBT_DEVICE": "cuda:0"}),
        (Device("cuda", 0, MIG), {"CUDA_VISIBLE_DEVICES": MIG, "MOPBT_DEVICE": "cuda:0"}),
        (Device("rocm", 2, "2"), {"HIP_VISIBLE_DEVICES": "2", "MOPBT_DEVICE": "cuda:0"}),
        (Device("xpu", 1, "0.1"), {"ZE_AFFINITY_MASK": "0.1", "MOPBT_DEVICE": "xpu:0"}),
        (Device("mps"), {"MOPBT_DEVICE": "mps"}),
        (Device("hpu", 3), {"MOPBT_DEVICE": "hpu:3"}),
        (
            CPU,
            {
                "CUDA_VISIBLE_DEVICES": "-1",
                "HIP_VISIBLE_DEVICES": "-1",
                "MOPBT_DEVICE": "cpu",
            },
        ),
    ],
)
def test_a_worker_sees_its_own_device_under_its_first_name(device, expected):
    assert device.environment({}) == expected


def test_a_mask_of_cuda_for_an_amd_device_is_replaced_as_well():
    environment = Device("rocm", 1, "1").environment({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert environment["HIP_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == "1"


LISTING = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUID})
  MIG 3g.20gb     Device  0: (UUID: {MIG})
  MIG 3g.20gb     Device  1: (UUID: MIG-second)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-whole)
"""


def test_a_partitioned_gpu_counts_by_its_instances():
    assert mig_instances(LISTING) == [MIG, "MIG-second", "GPU-whole"]
    assert mig_instances(f"GPU 0: NVIDIA A100 (UUID: {UUID})\n") == mig_instances("") == []


# A machine with accelerators, as far as child processes can tell: a package named torch that
# obeys the mask, and a program named nvidia-smi.

TORCH = """
import os
from types import SimpleNamespace

mask = os.environ.get("{mask}")
total = {total}
visible = range(total) if mask is None else [m for m in mask.split(",") if m not in ("", "-1")]
if any(str(m).startswith("MIG") for m in visible):
    visible = list(visible)[:1]
vendor = SimpleNamespace(
    is_available=lambda: len(visible) > 0,
    device_count=lambda: len(visible),
    mem_get_info=lambda i: (2**30 * (i + 1), 2**34),
    get_device_name=lambda i: f"card {{i}}",
)
nothing = SimpleNamespace(is_available=lambda: False)
cuda = vendor if "{kind}" in ("cuda", "rocm") else nothing
xpu = vendor if "{kind}" == "xpu" else nothing
backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: "{kind}" == "mps"))
mps = SimpleNamespace(recommended_max_memory=lambda: 2**33)
version = SimpleNamespace(hip="6.4" if "{kind}" == "rocm" else None)
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Pretend that this machine has accelerators."""
    for mask in devices.MASKS.values():
        monkeypatch.delenv(mask, raising=False)
    monkeypatch.setattr(devices, "_last_found", {})

    def pretend(kind="cuda", total=3, listing="", build="cu128"):
        mask = devices.MASKS.get(kind, "NO_MASK")
        folder = tmp_path / "packages"
        # A stand-in of the same size and second would be taken for the compiled one.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "torch.py").write_text(TORCH.format(mask=mask, total=total, kind=kind))
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setattr(devices, "_torch_build", lambda: build)

    return pretend


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_discovery_finds_what_a_child_process_sees(machine, kind):
    machine(kind, total=2)
    assert discover() == (
        Device(kind, 0, "0", 2.0**30, "card 0"),
        Device(kind, 1, "1", 2.0**31, "card 1"),
    )


@pytest.mark.parametrize("mask", ["2", f"{UUID},0", ""])
def test_ids_are_those_of_the_parents_own_mask(machine, monkeypatch, mask):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert [device.id for device in discover()] == [entry for entry in mask.split(",") if entry]
    assert [device.index for device in discover()] == list(range(len(discover())))


def test_a_mask_of_several_mig_instances_gives_several_devices(machine, monkeypatch):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{MIG},MIG-second")
    assert [(d.index, d.id) for d in discover()] == [(0, MIG), (1, "MIG-second")]


def test_without_a_mask_all_mig_instances_are_found(machine):
    machine(listing=LISTING)
    assert [device.id for device in discover()] == [MIG, "MIG-second", "GPU-whole"]


def test_apple_has_one_device_and_no_mask(machine):
    machine("mps")
    assert discover() == (Device("mps", 0, "", 2.0**33, "Apple GPU"),)
    assert assign_devices(Placed(), "auto") == ()
    assert assign_devices(Placed(device="mps"), "auto") == discover()
    assert assign_devices(Placed(), ["mps"]) == (Device("mps"),)


def test_without_pytorch_nvidias_program_is_asked(machine, monkeypatch):
    table = f"0, {UUID}, 1024, NVIDIA A100\n1, GPU-other, 2048, NVIDIA T4\n"
    machine(build=None, listing=table)
    assert [(d.id, d.free, d.model) for d in discover()] == [
        ("0", 2.0**30, "NVIDIA A100"),
        ("1", 2.0**31, "NVIDIA T4"),
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"1,{UUID[:12]},7")
    assert [(d.index, d.id, d.free) for d in discover()] == [
        (0, "1", 2.0**31),
        (1, UUID[:12], 2.0**30),
    ]


def test_a_build_for_the_cpu_starts_no_child_process(machine, monkeypatch):
    machine(build="cpu")
    monkeypatch.setattr(devices.subprocess, "run", None)
    assert discover() == ()


def test_a_broken_driver_is_a_warning_and_training_uses_the_cpu(machine, tmp_path):
    machine()
    (tmp_path / "packages" / "torch.py").write_text("raise RuntimeError('driver too old')")
    with pytest.warns(RuntimeWarning, match=r"which accelerators .*driver too old.*`devices`"):
        assert discover() == ()


def test_a_discovery_is_repeated_only_on_request(machine):
    machine(total=1)
    assert len(discover()) == 1
    machine(total=2)
    assert len(discover()) == 1
    assert len(discover(refresh=True)) == len(discover()) == 2


FOUND = tuple(Device("cuda", i, entry, FREE) for i, entry in enumerate(("4", UUID, MIG)))


@pytest.fixture
def three(monkeypatch):
    """Pretend that this process sees three devices."""
    monkeypatch.setattr(devices, "discover", lambda refresh=False: FOUND)


@pytest.mark.parametrize(
    ("name", "index"), [("0", 0), ("cuda:2", 2), ("2", 2), (UUID, 1), (MIG, 2)]
)
def test_indices_count_the_devices_that_are_visible(name, index):
    assert select(name, FOUND) == FOUND[index]


def test_a_uuid_that_discovery_did_not_see_is_taken_as_it_is():
    assert select("GPU-unknown", FOUND) == Device("cuda", -1, "GPU-unknown")
    assert select("hpu:1", FOUND) == Device("hpu", 1)


@pytest.mark.parametrize("name", ["3", "cuda:7", "xpu:0"])
def test_a_device_that_is_not_there_is_an_error_that_lists_those_that_are(name):
    with pytest.raises(
        ValueError, match=f"names '{name}', but this process sees cuda:0, cuda:1, cuda:2"
    ):
        select(name, FOUND)
    with pytest.raises(ValueError, match="this process sees no accelerator"):
        select("0", ())


@pytest.mark.parametrize("wrong", ["0", "cuda", None, [True], [0.5], [""], 3])
def test_refuses_what_is_not_a_list_of_devices(wrong):
    with pytest.raises(ValueError, match="`devices` must be 'auto' or a list"):
        check_devices(wrong)
    with pytest.raises(ValueError, match="`devices` must be 'auto' or a list"):
        PoolEngine(devices=wrong)


def test_refuses_a_device_twice_and_two_numbers_of_workers():
    with pytest.raises(ValueError, match="each device once.*workers_per_device"):
        check_devices([0, "0"])
    with pytest.raises(ValueError, match="`workers` and `workers_per_device` exclude each other"):
        VectorizedEngine(2, workers_per_device=2)
    with pytest.raises(ValueError, match="`workers_per_device` must be a whole number"):
        PoolEngine(workers_per_device=0)


@pytest.mark.parametrize(
    ("own", "requested", "chosen"),
    [
        ("auto", "auto", FOUND),
        ("cuda", "auto", FOUND),
        ("cuda:1", "auto", FOUND[1:2]),
        ("cpu", "auto", ()),
        ("auto", [2, 0], (FOUND[2], FOUND[0])),
        ("cuda", [1], FOUND[1:2]),
        ("cuda:1", [1], FOUND[1:2]),
        ("auto", [], (CPU,)),
        ("auto", ["cpu"], (CPU,)),
        ("cpu", [], (CPU,)),
    ],
)
def test_the_engine_assigns_what_the_task_does_not_contradict(three, own, requested, chosen):
    assert assign_devices(Placed(device=own), requested) == chosen


@pytest.mark.parametrize(
    ("own", "requested"),
    [("cpu", [0]), ("cuda", []), ("cuda:0", [1]), ("cuda:0", [0, 1]), ("xpu", [0])],
)
def test_an_explicit_device_that_conflicts_is_an_error(three, tmp_path, own, requested):
    task = Placed(device=own)
    context = RunContext(task, problem_of(task), 0, DirectoryCheckpoints(tmp_path))
    with pytest.raises(TaskError, match=f"sets device='{own}', but the engine's `devices` are"):
        PoolEngine(devices=requested).start(context)


def trains_nothing(m):
    m.report(a=1)


def reads_device(m):
    model = m.hp["model"]

    def to_device():
        return model.to(m.device)

    to_device()


def imports_late(m):
    import jax.numpy

    jax.numpy.zeros(3)


def test_a_function_may_use_accelerators_if_it_reads_its_device_or_a_framework_is_there(
    monkeypatch,
):
    for name in devices._FRAMEWORKS & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)

    def task(function):
        space = {"x": mopbt.Grid(0, 1, 2)}
        return mopbt.FunctionTask(function, space=space, objectives={"a": "max"}, steps=1)

    assert not may_use_accelerator(task(trains_nothing))
    assert may_use_accelerator(task(reads_device))
    assert may_use_accelerator(task(imports_late))
    assert not may_use_accelerator(ToyTask())
    assert may_use_accelerator(Placed())
    assert not may_use_accelerator(Placed(device="cpu"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert may_use_accelerator(task(trains_nothing))


def test_workers_are_spread_evenly():
    assert spread(FOUND, 7) == [*FOUND, *FOUND, FOUND[0]]


# Real workers.


def environments(folder, *, workers=None, engine=PoolEngine, jobs=6, **options):
    """Run jobs in real workers, and return what each of them received."""
    task = Placed(folder=str(folder))
    own = engine(workers, **options)
    own.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(folder)))
    own.submit([Job(i, i, (10, 3), None, 0, 2) for i in range(jobs)], {})
    reports = []
    while len(reports) < jobs:
        reports += own.collect()
    assert not any(report.error for report in reports)
    own.close()
    received = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return own.workers, sorted((r.get("CUDA_VISIBLE_DEVICES"), r["assigned"]) for r in received)


def test_each_worker_receives_its_own_device(three, tmp_path):
    workers, received = environments(tmp_path, jobs=12)
    assert workers == 3
    assert set(received) <= {("4", "cuda:0"), (UUID, "cuda:0"), (MIG, "cuda:0")}
    assert len(received) == len(set(received)) >= 2


@pytest.mark.slow
def test_workers_share_the_chosen_devices(three, tmp_path):
    workers, received = environments(tmp_path, devices=[1], workers_per_device=2, jobs=8)
    assert workers == 2
    assert set(received) == {(UUID, "cuda:0")}


def test_workers_on_the_cpu_see_no_device(three, tmp_path):
    workers, received = environments(tmp_path, workers=1, devices=[])
    assert (workers, received) == (1, [("-1", "cpu")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {("4", "cuda:0"), (UUID, "cuda:0"), (MIG, "cuda:0")}),
        (("--devices", "1", "--workers-per-device", "2"), {(UUID, "cuda:0")}),
        (("--devices", f"cuda:0,{MIG}"), {("4", "cuda:0"), (MIG, "cuda:0")}),
        (("--devices", "cpu", "--workers", "2"), {("-1", "cpu")}),
    ],
)
def test_options_of_the_command_line_reach_the_workers(
    three, tmp_path, monkeypatch, options, expected
):
    file = tmp_path / f"{tmp_path.name}.py"  # no two modules may have one name
    file.write_text(
        f"from engines.in_workers import Placed\ntask = Placed(folder={str(tmp_path)!r}, steps=4)\n"
    )
    arguments = ["--out", str(tmp_path / "run"), "--population", "8", "--quiet", *options]
    monkeypatch.setattr("sys.argv", ["mopbt", "run", f"{file}:task", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 0
    received = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    seen = {(own["CUDA_VISIBLE_DEVICES"], own["assigned"]) for own in received}
    assert seen <= expected
    assert len(received) >= 2


def test_a_machine_without_accelerators_assigns_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "discover", lambda refresh=False: ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workers, received = environments(tmp_path, workers=1)
    assert (workers, received) == (1, [(None, "")])


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_on_its_own_device(three, tmp_path):
    task = Placed(folder=str(tmp_path))
    engine = PoolEngine(devices=[0, 2])
    engine.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(tmp_path)))
    engine.submit([Job(i, i, (10, 3), None, 0, 2) for i in range(2)], {})
    victim = next(worker for worker in engine._pool.values() if worker.slot == 1)
    victim.process.kill()
    reports = []
    while len(reports) < 2:
        reports += engine.collect()
    slots = sorted(worker.slot for worker in engine._pool.values())
    engine.close()
    masks = {json.loads(f.read_text())["CUDA_VISIBLE_DEVICES"] for f in tmp_path.glob("*.json")}
    assert slots == [0, 1]
    assert masks <= {"4", MIG}


def test_the_local_engine_assigns_the_first_device_while_it_runs(three, tmp_path):
    task = Placed(folder=str(tmp_path))
    engine = LocalEngine()
    engine.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(tmp_path)))
    assert assigned_device() == "cuda:0"
    engine.close()
    assert assigned_device() == ""


# Checks and measurements before a run.


@pytest.fixture
def tried(three, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "available_cores", lambda: 16)

    def specify(name="auto", population=8, **options):
        chosen = {key: options.pop(key) for key in ("seconds", "size") if key in options}
        task = Tried(folder=str(tmp_path), **chosen)
        trial = WorkerTrial(task, FOUND[0].environment({}))
        try:
            return engine_spec(name, task, population, trial=trial, **options)
        finally:
            trial.close()

    return specify


def test_auto_puts_one_stack_on_each_device(tried, tmp_path):
    spec = tried()
    assert (spec.name, spec.workers, spec.stack) == ("vectorized", 3, 3)
    assert "trains 10.00 times as fast as separate members" in spec.why
    notes = [file.name.split("-") for file in tmp_path.iterdir()]
    assert {note[0] for note in notes} == {"measure", "probe"}
    assert {note[2] for note in notes} == {"4"}
    assert str(os.getpid()) not in {note[1] for note in notes}


@pytest.mark.slow
def test_auto_shares_devices_where_stacks_do_not_pay(tried, tmp_path):
    spec = tried(seconds={"alone": 1.0, "stacked": 0.9}, population=32)
    # Fake updates take as long however many share the device, so as many as allowed do.
    assert (spec.name, spec.workers, spec.stack) == ("pool", 12, 0)
    assert "4 workers on a device train 4.00 times as fast as one" in spec.why
    assert len({f.name.split("-")[1] for f in tmp_path.iterdir()}) == 4


@pytest.mark.slow
def test_auto_says_why_there_is_no_stack(tried):
    spec = tried(seconds={"alone": 1.0}, population=3)
    assert (spec.name, spec.workers) == ("pool", 3)
    assert spec.why == "there is one member for each device"
    spec = tried(seconds={"alone": 1.0}, devices=["1"], population=2)
    assert (spec.workers, spec.devices) == (2, ("1",))
    assert spec.why.startswith("the model cannot be stacked; 2 workers on a device")


@pytest.mark.slow
def test_device_memory_limits_stacks_and_workers(tried):
    half = FREE // 2
    spec = tried(size=half, population=32)
    assert (spec.name, spec.workers) == ("pool", 3)
    assert "no room for two members of 5.0 GiB" in spec.why
    spec = tried(size=FREE // 5, population=32)
    assert (spec.name, spec.stack) == ("vectorized", 3)


@pytest.mark.slow
def test_what_is_asked_for_is_not_measured(tried, tmp_path):
    spec = tried("pool", workers_per_device=2)
    assert (spec.name, spec.workers, spec.workers_per_device) == ("pool", 0, 2)
    assert not list(tmp_path.iterdir())
    spec = tried("vectorized", devices=["0", "2"])
    assert (spec.workers, spec.stack, spec.devices) == (2, 4, ("0", "2"))
    spec = tried(workers_per_device=2)
    assert (spec.name, spec.workers, spec.stack) == ("vectorized", 6, 2)
    assert EngineSpec.from_dict(spec.to_dict()) == spec


def test_a_task_that_measures_nothing_gets_one_worker_per_device(three):
    spec = engine_spec("auto", Placed(), 8)
    assert spec.why == "each of 3 devices has one worker; `workers_per_device` sets more"
    assert spec.to_dict() == {"name": "pool", "why": spec.why}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ray", {"devices": ["0"]}, "`devices` is for the engines 'auto', 'pool', 'vectorized'"),
        ("pool", {"num_gpus": 1}, "`num_gpus` is for the engines 'ray', got 1 for 'pool'"),
        ("auto", {"stack": 2}, "`stack` is for the engines 'vectorized', 'ray'"),
        ("local", {"timeout": 1}, "`timeout` is for the engines 'auto', 'pool'"),
        ("pool", {"timeout": 0}, "`timeout` must be a number of seconds above 0, got 0"),
        ("pool", {"devices": ["9"]}, "names '9', but this process sees cuda:0"),
    ],
)
def test_refuses_options_of_other_engines(three, name, options, message):
    with pytest.raises(ValueError, match=message):
        engine_spec(name, Placed(), 8, **options)


def test_a_ray_engine_by_name_has_all_its_sizes():
    spec = engine_spec("ray", ToyTask(), 8, num_cpus=0, num_gpus=0.5, stack=4, timeout=3)
    assert EngineSpec.from_dict(spec.to_dict()) == spec
    engine = spec.engine()
    assert engine.stack == 4
    assert engine._options == {"num_cpus": 0, "num_gpus": 0.5, "resources": {}}
    assert engine._timeout == 3


def try_out(folder, fails, engine="auto"):
    mopbt.run(
        Tried(folder=str(folder), fails=fails),
        out=None,
        population=2,
        engine=engine,
        progress=False,
    )


def test_a_run_checks_its_task_on_a_device_and_not_in_this_process(three, tmp_path):
    with pytest.raises(CannotStack, match="wrong"):
        try_out(tmp_path, "wrong", PoolEngine(devices=[2]))
    (note,) = tmp_path.iterdir()
    what, pid, mask = note.name.split("-", 2)
    assert (what, mask) == ("check", MIG)
    assert int(pid) != os.getpid()


@pytest.mark.slow
def test_errors_of_a_check_arrive_whatever_they_are(three, tmp_path):
    with pytest.raises(TaskError, match="OddError: 1 is odd, 2 is not"):
        try_out(tmp_path, "odd")
    with pytest.raises(WorkerFailed, match="the process that checks the task ended with exit code"):
        try_out(tmp_path, "exit")


def test_without_accelerators_a_task_is_checked_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "discover", lambda refresh=False: ())
    with pytest.raises(CannotStack):
        try_out(tmp_path, "wrong")
    assert [file.name.split("-")[1] for file in tmp_path.iterdir()] == [str(os.getpid())]


@pytest.fixture(autouse=True)
def _no_device_is_left():
    yield
    assert assigned_device() == ""
    assign_device("")
