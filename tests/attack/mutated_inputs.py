"""Feed damaged and hostile files and requests to the command line and to the dashboard.

No input may hang a command, exhaust the memory, print a traceback, or end with a message that says
nothing about it. Half of the inputs are damaged bytes. The others are valid files with hostile
values, whose checksums are right.
"""

import contextlib
import copy
import io
import json
import linecache
import random
import resource
import signal
import socket
import sys
import threading
import tomllib
import traceback
import zlib
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import tomli_w

import mopbt
from attack.campaign import ROOT, limited
from attack.virtual import World, virtual_processes
from mopbt import cli
from mopbt.compare.plan import Experiment
from mopbt.errors import MopbtError
from mopbt.html.dashboard import Dashboard, RunIndex
from mopbt.stores.base import checksum_of
from mopbt.stores.journal import encode_object, parse_line

CASES = 1000  # of each kind
SECONDS = 10
BYTES = 10**9
LONGEST = 50_000  # characters that a command prints
UNITS = ("journals", "settings", "checkpoints", "experiments", "requests")
SOURCE = str(Path(mopbt.__file__).parent)
BUDGET = "--budget-jobs 30"
READING = (
    "show {run}",
    "show {run} --json",
    "front {run}",
    "front {run} --json",
    "list {root}",
    "verify {run}",
    "verify {run} --json",
    "pick {run}",
    "lineage {run} 12",
    "report {run} --out {root}/report.html",
    "export {run} {root}/table.csv --to csv",
)
EXECUTING = (
    f"resume {{run}} --engine local --quiet {BUDGET}",
    f"resume {{run}} --engine local --quiet {BUDGET} --repair",
    f"resume {{run}} --engine simulated --quiet {BUDGET}",
    "replay {run} 12",
    "replay {run} 12 --export {root}/model.safetensors",
    "evaluate {run}",
)
ODD = (
    None,
    True,
    -1,
    0,
    1,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    2**31,
    2**63,
    -(2**70),
    10**40,
    "",
    "x",
    "toy",
    "a" * 100_000,
    "[/bold]",
    "../../../etc/passwd",
    "\x1b[2J\0\n",
    [],
    [None],
    [1, 2, 3],
    list(range(10_000)),
    {},
    {"": {}},
    {"name": "mo-pbt"},
)
DEEP = 100_000  # brackets in each other


class Unclassified(AssertionError):
    """A message, or its absence, that does not tell a user what is wrong."""


# What is mutated.


def mutate_bytes(rng, data):
    """Return bytes with a few random changes."""
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        end = min(place + rng.choice([1, 2, 10, 100]), len(data))
        part = data[place:end]
        rest = data[end:]
        odd = rng.choice([b"\n", b"\r", b'"', b"}", b"\xff\xfe", b"9" * 30])
        deep = rng.choice([b"[", b'{"a":']) * rng.choice([10, DEEP])
        changes = (
            rng.randbytes(end - place) + rest,
            rest,
            part * rng.choice([2, 3, 50]) + rest,
            b"\0" * (end - place) + rest,
            b"",
            odd + part + rest,
            deep + part + rest,
        )
        data = data[:place] + rng.choice(changes)
    return data


def mutate_tree(rng, tree):
    """Replace, remove or repeat a few random nodes of a tree of dicts and lists."""
    for _ in range(rng.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return tree
        parent, key = rng.choice(places)
        action = rng.random()
        if action < 0.75:
            parent[key] = copy.deepcopy(rng.choice(ODD))
        elif action < 0.9:
            del parent[key]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[f"{key}x"] = copy.deepcopy(parent[key])
    return tree


def _places(tree):
    """Yield the parent and the key of each node."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def mutate_journal(rng, data):
    """Return a journal with damaged bytes, or with hostile lines whose checksums are right."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    lines = [parse_line(line) for line in data.splitlines()]
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines))
        action = rng.random()
        if action < 0.7:
            lines[place] = mutate_tree(rng, lines[place])
        elif action < 0.8:
            lines[place] = copy.deepcopy(lines[rng.randrange(len(lines))])
        elif action < 0.9:
            lines.insert(place, rng.choice([{}, {"extend": {"steps": 10**9}}, {"stopped": "x"}]))
        else:
            del lines[place]
    encoded = [encode_object(json.loads(json.dumps(line))) for line in lines]
    if rng.random() < 0.1:
        body = b'{"jobs":' + b"[" * DEEP + b"]" * DEEP + b"}"
        crc = f'{zlib.crc32(body):08x}"}}\n'.encode()
        encoded.insert(rng.randrange(len(encoded) + 1), body[:-1] + b',"crc":"' + crc)
    return b"".join(encoded)


def mutate_toml(rng, data):
    """Return a TOML file with damaged bytes or with hostile values."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    tree = mutate_tree(rng, tomllib.loads(data.decode()))
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return tomli_w.dumps(tree).encode()
    # TOML has no null.
    return mutate_bytes(rng, data)


def mutate_checkpoint(rng, data):
    """Return a checkpoint with damaged bytes, or with a hostile header."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["mopbt"] = json.loads(header["__metadata__"]["mopbt"])
    header = mutate_tree(rng, header)
    with contextlib.suppress(KeyError, TypeError):
        header["__metadata__"]["mopbt"] = json.dumps(header["__metadata__"]["mopbt"])
    text = json.dumps(header).encode()
    announced = rng.choice([len(text), len(text), 2**63, 0])
    return announced.to_bytes(8, "little") + text + data[8 + length :]


# How it is read.


@contextmanager
def bounded_memory():
    """Let an allocation of more than a gigabyte fail."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def captured(text):
    """Catch what is printed."""
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield


def run_command(command):
    """Run a command in this process and check how it ends; return the exit code and the output."""
    caught = []
    printed = io.StringIO()
    before = sys.argv, cli._print_error
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = ["mopbt", *command.split()]

    def note(error, message):
        caught.append(error)
        before[1](error, message)

    cli._print_error = note
    try:
        with captured(printed), limited(SECONDS), bounded_memory():
            cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv, cli._print_error = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 143:
        raise KeyboardInterrupt("the attack was terminated, and the command with it")
    check_output(printed.getvalue(), command)
    for error in caught:
        check_classified(error, command)
    if code not in (0, 1, 2, 3):
        raise Unclassified(f"`{command}` ends with {code}")
    return code, printed.getvalue()


def check_output(text, command):
    """Check that what a command prints is short, without control sequences or tracebacks."""
    if "Traceback (most recent" in text:
        raise Unclassified(f"`{command}` prints a traceback:\n{text[-2000:]}")
    if "\x1b" in text:
        raise Unclassified(f"`{command}` sends a control sequence to the terminal")
    # JSON for programs is complete.
    if len(text) > LONGEST and "--json" not in command:
        raise Unclassified(f"`{command}` prints {len(text):,} characters: {text[:500]}")


def check_classified(error, command):
    """Check that an error is one that mopbt raised on purpose, with a message of its own."""
    if isinstance(error, MopbtError):
        return
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno).strip()
    if not frame.filename.startswith(SOURCE) or not line.startswith("raise "):
        trace = "".join(traceback.format_exception(error))[-2500:]
        raise Unclassified(f"`{command}` ends with {type(error).__name__}: {error}\n{trace}")


# The cases.


def make_run(bench):
    """Return the files of a run of a registered task that is half done."""
    root = bench.fresh()
    run_command(f"run toy --population 5 --engine local --quiet --budget-jobs 23 --out {root}/run")
    files = {}
    for file in sorted((root / "run").rglob("*")):
        if file.is_file():
            files[file.relative_to(root).as_posix()] = file.read_bytes()
    rows = {"rows": "test", "seed": 0, "scores": {"near": 0.5, "far": 0.5}, "seconds": 1.0}
    models = mopbt.Results.open(root / "run").models_with_weights()
    lines = [encode_object({"model": model} | rows) for model in sorted(models)]
    return files | {"run/evaluations.jsonl": b"".join(lines)}


def cases(name, bench):
    """Yield the mutations of one kind of input."""
    files = {} if name == "experiments" else bench.kept(make_run, bench)
    if name == "requests":
        yield from _request_cases(bench, files)
        return
    action = {
        "journals": _try_journal,
        "settings": _try_settings,
        "checkpoints": _try_checkpoint,
        "experiments": _try_experiment,
    }[name]
    for number in range(CASES):
        rng = random.Random(f"{name} {number}")
        yield f"{number}", partial(action, rng, bench, files)


def _write(bench, files):
    root = bench.fresh()
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def _read(rng, root):
    """Read a run with some of the commands, and as the dashboard does."""
    commands = [*rng.sample(READING, 2), rng.choice(EXECUTING)]
    # Worker processes would take a second each.
    with virtual_processes(World("inputs")):
        for command in commands:
            run_command(command.format(run=root / "run", root=root))
    with limited(SECONDS), bounded_memory():
        index = RunIndex(root)
        index.snapshot([])
        with contextlib.suppress(KeyError, ValueError):
            index.snapshot(["run"])


def _try_journal(rng, bench, files):
    """Mutate the journal, or another file that is appended to or rewritten."""
    name = rng.choices(["journal.jsonl", "evaluations.jsonl", "lock"], [8, 2, 1])[0]
    mutate = mutate_bytes if name == "lock" else mutate_journal
    data = mutate(rng, files[f"run/{name}"])
    _read(rng, _write(bench, files | {f"run/{name}": data}))


def _try_settings(rng, bench, files):
    data = mutate_toml(rng, files["run/run.toml"])
    _read(rng, _write(bench, files | {"run/run.toml": data}))


def _try_checkpoint(rng, bench, files):
    """Mutate all checkpoints in the same way; half of the time their checksums are right."""
    seed = rng.random()
    lines = [parse_line(line) for line in files["run/journal.jsonl"].splitlines()]
    changed = {}
    for name, data in files.items():
        if name.endswith(".ckpt"):
            changed[name] = mutate_checkpoint(random.Random(seed), data)
    changed["run/checkpoints/owner.json"] = files["run/checkpoints/owner.json"]
    if rng.random() < 0.1:
        owner = changed["run/checkpoints/owner.json"]
        changed["run/checkpoints/owner.json"] = mutate_bytes(rng, owner)
    if rng.random() < 0.5:
        for line in lines:
            for report in line.get("reports", ()):
                name = f"run/checkpoints/{report['job']}.ckpt"
                report["checksum"] = checksum_of(changed.get(name, b""))
        changed["run/journal.jsonl"] = b"".join(map(encode_object, lines))
    root = _write(bench, files | changed)
    data = rng.choice([data for name, data in changed.items() if name.endswith(".ckpt")])
    with limited(SECONDS), bounded_memory():
        try:
            mopbt.loads(data)
        except ValueError as error:
            check_classified(error, "loads")
    run_command(f"pick {root}/run --export {root}/model.safetensors")
    _read(rng, root)


def _try_experiment(rng, bench, files):
    source = rng.choice(sorted((ROOT / "experiments").glob("*.toml")))
    root = bench.fresh()
    file = root / "experiment.toml"
    file.write_bytes(mutate_toml(rng, source.read_bytes()))
    command = f"compare {file} --only-report --out {root}/out"
    run_command(command)
    run_command(f"{command} --scale smoke")
    with limited(SECONDS), bounded_memory():
        try:
            experiment = Experiment.read(file)
            for scale in (None, *experiment.scales):
                experiment.at(scale).plan()
        except ValueError as error:
            check_classified(error, "plan")


# Requests.

TOKEN = "a-token-of-the-attack"
REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /?run=run HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: a=b\r\nConnection: close\r\n\r\n",
    b"GET /events?run=run HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nabcd",
    f"GET /?token={TOKEN}&run=run HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
    b"HEAD /x HTTP/1.0\r\nHost: localhost:80\r\n\r\n",
)
PARTS = (
    b"%00",
    b"%ff",
    b"..%2f",
    b"\r\n\r\n",
    b"a" * 70_000,
    b"?run=" * 1000,
    b"\xff\xfe",
    b"[",
    b" ",
)


def _request_cases(bench, files):
    """Yield requests to a server, and to one that wants a token."""
    root = _write(bench, files)
    complaints = io.StringIO()
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(root, token)) for token in (None, TOKEN)]
        stack.enter_context(contextlib.redirect_stderr(complaints))
        for number in range(CASES):
            rng = random.Random(f"request {number}")
            yield f"{number}", partial(_try_request, rng, servers, complaints)


@contextmanager
def serving(root, token):
    """Serve the runs below a directory in a thread."""
    with Dashboard(root, port=0, token=token) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _try_request(rng, servers, complaints):
    server = rng.choice(servers)
    request = rng.choice(REQUESTS)
    if rng.random() < 0.5:
        place = rng.randrange(len(request))
        request = request[:place] + rng.choice(PARTS) + request[place:]
    else:
        request = mutate_bytes(rng, request)
    with limited(SECONDS):
        answer = _exchange(server, request)
        # The server still serves others.
        status = b"401" if server.token else b"200"
        assert _exchange(server, REQUESTS[0]).startswith(b"HTTP/1.0 " + status)
    if answer and not answer.startswith(b"HTTP/1."):
        # HTTP/0.9 has no status line.
        assert b"Traceback" not in answer, answer[:200]
    # An unknown method has an answer of its own.
    is_failure = answer.startswith(b"HTTP/1.0 5") and not answer.startswith(b"HTTP/1.0 501 ")
    if is_failure or complaints.getvalue():
        text = complaints.getvalue()
        complaints.truncate(0)
        complaints.seek(0)
        raise Unclassified(f"{request[:200]!r} is answered by {answer[:200]!r}\n{text}")


def _exchange(server, request):
    """Send a request and return the beginning of the answer."""
    with socket.create_connection(server.server_address[:2], timeout=SECONDS) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while len(answer) < 20 and (part := connection.recv(4096)):
                answer += part
    return answer
