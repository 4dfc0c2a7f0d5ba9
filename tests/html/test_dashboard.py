"""The dashboard follows runs, shows them to authorized users, and shows nothing else."""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import mopbt
from mopbt.html import dashboard
from mopbt.html.dashboard import Dashboard, RunIndex, choose_token, is_own_host
from mopbt.results import Results
from mopbt.tasks.toy import ToyTask

ROOT = Path(__file__).parent.parent.parent
PROGRAM = [sys.executable, "-c", "from mopbt.cli import main; main()"]
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a directory with runs below it, next to a run that must not be shown."""
    place = tmp_path_factory.mktemp("dashboard")
    options = {"population": 6, "engine": "local", "progress": False}
    mopbt.run(ToyTask(), out=place / "runs" / "toy", **options)
    mopbt.run(ToyTask(), out=place / "runs" / "deep" / "one & only <b>", seed=1, **options)
    shutil.copytree(place / "runs" / "toy", place / "secret")
    (place / "runs" / "link").symlink_to(place / "secret")
    (place / "runs" / "broken").mkdir()
    (place / "runs" / "broken" / "run.toml").write_text("format = 99")
    (place / "runs" / "broken" / "journal.jsonl").write_text("")
    return place / "runs"


@contextmanager
def serving(root, **options):
    with Dashboard(root, port=0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, method="GET", **headers):
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def stream(server, path, **headers):
    """Yield the messages of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        connection.close()


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    )


def test_the_list_names_the_runs_below_the_directory_and_no_others(root):
    with serving(root) as server:
        status, _, text = ask(server, "/")
    rows = {row["name"]: row for row in data_of(text)["index"]}
    assert status == 200
    assert sorted(rows) == ["broken", "deep/one & only <b>", "toy"]
    assert rows["toy"]["models"] == len(Results.open(root / "toy").front())
    assert "has format 99" in rows["broken"]["trouble"]


def test_a_run_is_shown_and_two_are_compared(root):
    with serving(root) as server:
        _, _, one = ask(server, "/?run=toy")
        _, _, two = ask(server, "/?run=toy&run=deep%2Fone%20%26%20only%20%3Cb%3E")
    assert data_of(one)["runs"][0]["path"] == str(root / "toy")
    assert [len(data_of(text)["runs"]) for text in (one, two)] == [1, 2]
    assert len(data_of(two)["comparison"]["rows"]) == 2


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/?run=../secret",
            "/?run=..%2fsecret",
            "/?run=link",
            "/?run=/etc",
            "/?run=toy/",
            "/?run=.",
            "/?run=",
            "/?run=toy%00",
        ),
        *(
            "/events?run=../secret",
            "/events?run=link",
            "/toy/journal.jsonl",
            "/../secret/run.toml",
            "/%2e%2e/secret/run.toml",
        ),
        *("/page.js", "/favicon.ico", "//evil.example/", "/?run=toy&run=../secret"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(root, path):
    with serving(root) as server:
        status, headers, text = ask(server, path)
    assert status == 404
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "secret" not in text
    assert str(root) not in text


def test_a_run_that_cannot_be_shown_is_reported_in_plain_text(root):
    with serving(root) as server:
        status, headers, text = ask(server, "/?run=broken")
        many = ask(server, "/?" + "&".join("run=toy" for _ in range(500)))
    assert (status, headers["Content-Type"]) == (400, "text/plain; charset=utf-8")
    assert "cannot be shown" in text
    assert many[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_it_answers_get_only(root, method):
    with serving(root) as server:
        status, headers, _ = ask(server, "/", method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_pages_are_bound_to_a_fresh_nonce(root):
    with serving(root) as server:
        answers = [ask(server, "/?run=toy") for _ in range(2)]
    policies = [headers["Content-Security-Policy"] for _, headers, _ in answers]
    assert policies[0] != policies[1]
    for policy, (_, headers, text) in zip(policies, answers, strict=True):
        nonce = re.search(r"script-src 'nonce-([\w-]+)'; style-src 'nonce-\1'", policy)[1]
        assert text.count(f'nonce="{nonce}"') == 2
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == (
            "nosniff",
            "no-store",
        )
        assert " style=" not in text.partition("<script")[0]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]:80",
        "",
        "a b",
        "[x",
    ],
)
def test_a_host_that_is_not_this_one_is_refused(root, host):
    with serving(root) as server:
        assert ask(server, "/", Host=host)[0] == 403


def test_names_of_this_machine_are_its_own():
    own = ["localhost", "localhost:1234", "127.0.0.1:8765", "[::1]:8765"]
    assert all(is_own_host(name, "127.0.0.1") for name in own)
    here = socket.gethostname().lower()
    assert all(
        is_own_host(name, "0.0.0.0")
        for name in [*own, "10.1.2.3:8765", f"{here}:80", f"{here}.lan"]
    )
    assert not is_own_host("evil.example", "0.0.0.0")
    assert is_own_host("box.example:80", "box.example")


def test_with_a_token_nothing_is_shown_without_it(root):
    with serving(root, token=TOKEN) as server:
        for path in (
            "/",
            "/?run=toy",
            "/events",
            "/?token=wrong",
            "/?token=",
            "/?token=%ff",
            "/nothing",
        ):
            status, headers, text = ask(server, path)
            assert (status, "Set-Cookie" in headers) == (401, False)
            assert "toy" not in text
        for cookie in (
            f"mopbt-{server.server_address[1]}=wrong",
            "=;;",
            f"other={TOKEN}",
            f"mopbt-{server.server_address[1]}=\xff",
        ):
            assert ask(server, "/", Cookie=cookie)[0] == 401
        assert ask(server, "/?token=" + TOKEN, Host="evil.example")[0] == 403


def test_the_token_moves_from_the_address_into_a_cookie(root):
    with serving(root, token=TOKEN) as server:
        status, headers, _ = ask(server, f"/?token={TOKEN}&run=toy")
        assert (status, headers["Location"]) == (303, "/?run=toy")
        cookie, *attributes = headers["Set-Cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(attributes)
        assert ask(server, "/?run=toy", Cookie=cookie)[0] == 200
        # It leaves the address also if the cookie was there before.
        status, headers, _ = ask(server, f"/?token={TOKEN}&run=toy", Cookie=cookie)
        assert (status, headers["Location"]) == (303, "/?run=toy")
        assert next(stream(server, "/events", Cookie=cookie))["index"]
        assert server.url.endswith(f"/?token={TOKEN}")


def test_only_the_loopback_address_goes_without_a_token():
    assert [
        choose_token(None, host) for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1")
    ] == [""] * 4
    made = {
        choose_token(None, host)
        for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")
        for _ in range(3)
    }
    assert len(made) == 12
    assert min(map(len, made)) >= 32
    for token in ("", "short", "with spaces in it!", "ü" * 20):
        with pytest.raises(ValueError, match="`token` must have 12 to 128 letters"):
            choose_token(token, "127.0.0.1")


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="there is no directory"):
        RunIndex(tmp_path / "nowhere")


def test_a_push_comes_when_something_has_changed_and_only_then(root, tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "PAUSE", 0.02)
    path = tmp_path / "runs" / "run"
    shutil.copytree(root / "toy", path)
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (path / "journal.jsonl").write_bytes(b"".join(lines[:4]))
    with serving(tmp_path / "runs") as server:
        pushes, got = stream(server, "/events?run=run"), []
        reader = threading.Thread(target=lambda: got.extend(pushes), daemon=True)
        reader.start()
        wait_for(lambda: len(got) == 1)
        time.sleep(0.3)
        assert len(got) == 1
        with open(path / "journal.jsonl", "ab") as file:
            file.write(b"".join(lines[4:8]))
        now = sum(b'"reports"' in line for line in lines[:8])
        wait_for(lambda: got[-1]["runs"][0]["intervals"] == now)
        assert len(got) <= 3  # the lines may be read in two parts
    reader.join(5)
    assert not reader.is_alive()  # the end of the server ends the stream


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_silent_connections_take_only_so_many_threads(root, monkeypatch):
    monkeypatch.setattr(dashboard, "CONNECTIONS", 3)
    before = threading.active_count()
    with serving(root) as server:
        silent = [socket.create_connection(server.server_address[:2]) for _ in range(3)]
        deadline = time.monotonic() + 10
        while server._places._value and time.monotonic() < deadline:
            time.sleep(0.01)
        answers = [ask(server, "/") for _ in range(5)]
        assert {status for status, _, _ in answers} == {503}
        assert "connections are already open; close one" in answers[0][2]
        assert threading.active_count() == before + 4
        silent.pop().close()
        while not server._places._value and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(server, "/")[0] == 200
        for connection in silent:
            connection.close()


def test_a_closed_stream_frees_its_place_at_once(root):
    """The pulse that tests silent connections comes only every 15 seconds."""
    with serving(root) as server:
        connection = socket.create_connection(server.server_address[:2])
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = connection.recv(100)
        assert received.startswith(b"HTTP/1.0 200")
        # After all data is read, closing is polite, so that writing would not fail.
        while b"data: " not in received or not received.endswith(b"\n\n"):
            received += connection.recv(2**16)
        assert server.streams._value == dashboard.STREAMS - 1
        connection.close()
        deadline = time.monotonic() + 8
        while server.streams._value < dashboard.STREAMS and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.streams._value == dashboard.STREAMS


def test_too_many_streams_are_refused_and_room_is_made_again(root, monkeypatch):
    monkeypatch.setattr(dashboard, "STREAMS", 1)
    monkeypatch.setattr(dashboard, "PAUSE", 0.02)
    monkeypatch.setattr(dashboard, "PULSE", 0.02)
    with serving(root) as server:
        first = stream(server, "/events")
        next(first)
        assert ask(server, "/events")[0] == 503
        first.close()
        wait_for(lambda: server.streams._value == 1)  # a pulse into a closed connection ends it


def test_the_command_serves_until_it_is_interrupted(root):
    command = [*PROGRAM, "dashboard", str(root), "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        port = int(
            re.search(rf"The runs are at http://127\.0\.0\.1:(\d+)/\?token={TOKEN}", line)[1]
        )
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.fast
def test_the_list_and_the_runs_open_in_a_browser(root, open_view):
    with serving(root, token=TOKEN) as server:
        view = open_view()
        view.page.goto(server.url)
        assert "token" not in view.page.url
        view.page.locator(".badge.live").first.wait_for()
        assert "deep/one & only <b>" in view.page.locator("#runs").inner_text()
        assert (
            view.page.locator("#runs td", has_text="–").count() == 2
        )  # hypervolumes that cannot be compared
        view.page.get_by_role("link", name="toy", exact=True).click()
        assert view.page.locator("#front .point[data-job]").count() == len(
            Results.open(root / "toy").front()
        )
        view.page.get_by_role("link", name="all runs").click()
        view.page.get_by_label("mark toy").check()
        view.page.get_by_label("mark deep/one & only <b>").check()
        view.page.get_by_role("button", name="Compare the marked runs").click()
        assert view.page.locator("#comparison tbody tr").count() == 2
        assert all(
            url.startswith((f"http://127.0.0.1:{server.server_address[1]}/", "data:"))
            for url in view.requests
        )


def test_the_list_is_readable_on_a_phone(root, open_view):
    with serving(root) as server:
        view = open_view(width=360, height=740)
        view.page.goto(server.url)
        view.page.locator("#runs tbody tr").first.wait_for()
        content, window = view.widths()
        assert content <= window


@pytest.mark.slow
def test_the_front_grows_in_the_page_during_a_run(tmp_path, open_view):
    task = tmp_path / "slow.py"
    task.write_text("from toys import SlowToy\n\ntask = SlowToy(seconds=0.06)\n")
    command = [*PROGRAM, "run", f"{task}:task", "--population", "8", "--engine", "local", "--quiet"]
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as server:
        view = open_view()
        view.page.goto(server.url)
        assert view.page.locator("h1").inner_text() == "0 runs"
        environment = {"PYTHONPATH": "tests", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "runs" / "live")], env=environment, cwd=ROOT
        )
        try:
            view.page.get_by_role("link", name="live").click()  # it appears by itself
            view.page.locator("#head .badge.running").wait_for()
            intervals = view.page.locator("#head .tile", has_text="intervals").locator("dd")
            seen = set()
            wait_for(lambda: seen.add(intervals.inner_text().split()[0]) or len(seen) >= 4)
            point = view.page.locator("#front .point[data-job]").first
            job = point.get_attribute("data-job")
            point.focus()
            wait_for(lambda: seen.add(intervals.inner_text().split()[0]) or len(seen) >= 6)
            kept = view.page.evaluate("document.activeElement.dataset.job")
            assert kept == job or view.page.locator(f"#front .point[data-job='{job}']").count() == 0
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
        view.page.locator("#head .badge.done").wait_for()
        front = Results.open(tmp_path / "runs" / "live").front()
        assert sorted(p.model for p in front) == sorted(
            int(j)
            for j in view.page.locator("#front .point[data-job]").evaluate_all(
                "points => points.map((p) => p.dataset.job)"
            )
        )
        point = view.page.locator("#front .point[data-job]").first
        point.click()
        assert (
            view.page.locator("#model h2").inner_text()
            == f"Model {point.get_attribute('data-job')}"
        )
