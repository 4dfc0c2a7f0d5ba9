"""Ray inside a SLURM allocation: a run completes, is cancelled, and returns to the queue."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import mopbt
from toys import SlowToy

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "examples" / "slurm" / "ray_cluster.sbatch"
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
POPULATION = 4
SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=5
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)


def processes_with(variable):
    """Return the processes whose environment has a variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder.name, (folder / "cmdline").read_text()))
    return found


class Slurm:
    """A SLURM cluster of two nodes on this machine, without the system's services."""

    def __init__(self, place):
        self.place = place
        self.variable = f"SLURM_CONF={place}/slurm.conf"
        paths = [str(TESTS), *sys.path]
        self.environment = {
            **os.environ,
            "SLURM_CONF": f"{place}/slurm.conf",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        self.daemons = []

    def start(self):
        (self.place / "state").mkdir()
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        user = self.output("id", "-un").strip()
        host = socket.gethostname().partition(".")[0]
        settings = SETTINGS.format(place=self.place, user=user, host=host, ports=free_ports(3))
        (self.place / "slurm.conf").write_text(settings)
        task = "from toys import SlowToy\ntask = SlowToy(steps=20, seconds=0.3)\n"
        (self.place / "slow.py").write_text(task)
        files = {"--key-file": "key", "--socket": "socket", "--pid-file": "pid"}
        files |= {"--seed-file": "seed", "--log-file": "log"}
        options = [f"{option}={self.place}/munge.{kind}" for option, kind in files.items()]
        # Without --force, munged refuses folders that others can write to, such as /tmp.
        self._spawn("munged", "--foreground", "--force", *options)
        wait_until((self.place / "munge.socket").exists, 30)
        self._spawn("slurmctld", "-D", "-c")
        self._spawn("slurmd", "-D", "-N", "one")
        self._spawn("slurmd", "-D", "-N", "two")
        wait_until(self.idle, 60)

    def idle(self):
        """Whether both nodes wait for a job."""
        return self.output("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"]

    def close(self):
        """Cancel all jobs, end the daemons and check that no process is left."""
        self.output("scancel", "--user", self.output("id", "-un").strip())
        wait_until(lambda: not self.output("squeue", "-h"))
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(30)
        wait_until(lambda: not processes_with(self.variable), 30)

    def output(self, *command):
        done = subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, out, *options):
        """Submit a run of the task, and return the id of the job."""
        run = [sys.executable, "-m", "mopbt", "run", "slow.py:task", "--engine", "ray"]
        run += ["--population", str(POPULATION), "--out", str(out)]
        usual = ["--parsable", "--cpus-per-task", "1", *options]
        return self.output("sbatch", *usual, str(SCRIPT), *run).strip()

    def state(self, job):
        fields = dict(
            field.split("=", 1)
            for field in self.output("scontrol", "show", "job", job).split()
            if "=" in field
        )
        return fields["JobState"], int(fields["Restarts"])

    def wait(self, job, state="COMPLETED"):
        over = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", state}
        wait_until(lambda: self.state(job)[0] in over)
        assert self.state(job)[0] == state, self.log(job)
        # Nothing of the job is left, neither a process nor Ray's directory.
        if state == "COMPLETED":
            assert not Path(f"/tmp/mopbt-ray-{job}").exists()
        wait_until(lambda: not processes_with(f"SLURM_JOB_ID={job}"), 30)

    def restart(self, job, number):
        """Start a job that returned to the queue, for which SLURM would wait for two minutes."""
        wait_until(lambda: self.state(job) == ("PENDING", number))
        wait_until(self.idle, 60)
        # A node rejects a job ("credential revoked") that starts in the second in which it ended.
        self.output("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def log(self, job):
        files = sorted(self.place.glob(f"mopbt-{job}*.log"))
        return "\n".join(file.read_text() for file in files)

    def _spawn(self, *command):
        with (self.place / f"{command[0]}-{len(self.daemons)}.out").open("w") as out:
            daemon = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)
        self.daemons.append(daemon)


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if MISSING:
        pytest.skip(f"SLURM is not installed (Debian: slurm-wlm, munge): {', '.join(MISSING)}")
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def expected():
    """Return the records of the same run, uninterrupted and without a cluster."""
    results = mopbt.run(
        SlowToy(steps=20, seconds=0.0),
        out=None,
        population=POPULATION,
        engine="local",
        progress=False,
    )
    return decisions(results)


def decisions(results):
    timed = ("seconds", "duration")
    records = [
        {key: value for key, value in record.items() if key not in timed}
        for record in results.records()
    ]
    return sorted(records, key=lambda record: record["model"])


def reports(out):
    journal = out / "journal.jsonl"
    return len(mopbt.Results.open(out)) if journal.exists() else 0


@pytest.mark.slow
def test_a_run_completes_on_the_nodes_of_an_allocation(slurm, expected):
    out = slurm.place / "complete"
    job = slurm.submit(out)
    slurm.wait(job)
    assert decisions(mopbt.Results.open(out)) == expected
    log = slurm.log(job)
    assert log.count("Ray runtime started") == 2
    assert "error" not in (slurm.place / f"mopbt-{job}.log").read_text().lower()


@pytest.mark.slow
def test_a_cancelled_job_resumes_when_it_is_submitted_again(slurm, expected):
    out = slurm.place / "cancelled"
    job = slurm.submit(out)
    wait_until(lambda: reports(out) >= 8)
    slurm.output("scancel", job)
    slurm.wait(job, "CANCELLED")
    before = reports(out)
    assert 8 <= before < len(expected)
    kept = (out / "journal.jsonl").read_bytes()
    slurm.wait(slurm.submit(out))
    assert (out / "journal.jsonl").read_bytes().startswith(kept.rpartition(b"\n")[0])
    assert decisions(mopbt.Results.open(out)) == expected


@pytest.mark.slow
def test_a_job_that_returns_to_the_queue_resumes(slurm, expected):
    out = slurm.place / "requeued"
    job = slurm.submit(out)
    wait_until(lambda: reports(out) >= 8)
    # What SLURM does when it needs the nodes for another job.
    slurm.output("scontrol", "requeue", job)
    slurm.restart(job, 1)
    before = reports(out)
    wait_until(lambda: reports(out) >= before + 8)
    # What SLURM does two minutes before the time limit.
    slurm.output("scancel", "--batch", "--signal", "USR1", job)
    slurm.restart(job, 2)
    slurm.wait(job)
    assert decisions(mopbt.Results.open(out)) == expected
    assert "returns to the queue and will resume" in slurm.log(job)


def test_the_script_without_a_program_says_how_to_use_it():
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sbatch" in done.stderr
