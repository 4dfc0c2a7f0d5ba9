"""Serve the runs below a directory as a live page. The server only reads.

On the loopback address every user of the machine has access unless a token is set. On any other
address a token is required. Requests for a foreign host name are refused, so that no other web
site can read the pages through a name that resolves to this server (DNS rebinding).
"""

import hmac
import ipaddress
import re
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from mopbt.html.follower import Follower, find_runs
from mopbt.html.report import as_json, live_page, payload, title_of
from mopbt.limits import CONNECTIONS

PORT = 8765
# Seconds between two reads of the journals. The pause is at least ten times as long as a read.
PAUSE = 0.5
# Seconds between two searches for new runs. The pause is at least ten times as long as a search.
SEARCH_PAUSE = 2.0
# Seconds after which a silent connection is tested.
PULSE = 15.0
# Number of pages that are updated at the same time.
STREAMS = 32
TOKEN = r"[A-Za-z0-9_-]{12,128}"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
POLICY = (
    "default-src 'none'; script-src {0}; style-src {0}; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


TOO_MANY = (
    "HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    f"{CONNECTIONS} connections are already open; close one.\n"
).encode()


class Snapshot(NamedTuple):
    """Data of a page as JSON, its title, and a version that changes with the data."""

    version: Any
    text: str
    title: str


class RunIndex:
    """The runs below a directory and their latest snapshots; thread-safe."""

    def __init__(self, root: Path | str) -> None:
        self._shown = Path(root)
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise ValueError(f"there is no directory {root}; pass the directory of your runs")
        self._followers: dict[str, Follower] = {}
        self._next_search = 0.0
        self._snapshots: dict[tuple[str, ...], Snapshot] = {}
        self._lock = threading.Lock()

    def snapshot(self, names: Sequence[str]) -> Snapshot:
        """Return the snapshot of these runs, or without names the list of all runs.

        Raises KeyError if a run does not exist, and ValueError if the runs cannot be shown.
        """
        with self._lock:
            self._find_runs()
            chosen = tuple(dict.fromkeys(names)) or tuple(self._followers)
            followers = [self._followers[name] for name in chosen]
            for follower in followers:
                follower.look()
            version = tuple((follower.name, follower.version) for follower in followers)
            key = chosen if names else ()
            if key not in self._snapshots or self._snapshots[key].version != version:
                build = self._build_runs if names else self._build_list
                latest = list(self._snapshots.items())[-STREAMS:]
                self._snapshots = dict(latest) | {key: build(version, followers)}
            return self._snapshots[key]

    def _build_runs(self, version: Any, followers: Sequence[Follower]) -> Snapshot:
        data = [follower.data() for follower in followers]
        runs = [follower.run for follower in followers]
        text = as_json(payload(runs, data) | {"live": True})
        return Snapshot(version, text, title_of(runs))

    def _build_list(self, version: Any, followers: Sequence[Follower]) -> Snapshot:
        rows = [follower.row() for follower in followers]
        return Snapshot(version, as_json({"index": rows, "live": True}), "mopbt")

    def _find_runs(self) -> None:
        """Search for runs, unless the last search was a moment ago."""
        began = time.monotonic()
        if began < self._next_search:
            return
        found = dict(find_runs(self._root))
        followers = {}
        for name in sorted(found):
            path = found[name]
            known = self._followers.get(name)
            if known is None:
                shown = str(self._shown / path.relative_to(self._root))
                followers[name] = Follower(path, name, shown=shown)
            elif known.path == path:
                followers[name] = known
        self._followers = followers
        # Searching a large directory takes long, so it is done less often.
        self._next_search = time.monotonic() + max(SEARCH_PAUSE, 10 * (time.monotonic() - began))


class Dashboard(ThreadingHTTPServer):
    """Serve the runs below a directory, from `serve_forever` until `shutdown`.

    Use it as a context manager.
    """

    daemon_threads = True

    def __init__(
        self,
        root: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
    ) -> None:
        self.runs = RunIndex(root)
        self.host = host
        self.token = choose_token(token, host)
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(STREAMS)
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ValueError(
                f"the dashboard cannot listen at {host}, port {port} ({error.strerror}); set "
                f"`port` to 0 for any free port, or `host` to 127.0.0.1 for this machine"
            ) from None

    @property
    def url(self) -> str:
        """Return the address of the page, with the token if there is one."""
        host = self.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        if ":" in host:
            host = f"[{host}]"
        query = f"?token={self.token}" if self.token else ""
        return f"http://{host}:{self.server_address[1]}/{query}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or refuse it if there are too many."""
        if not self._places.acquire(blocking=False):
            return self._refuse_connection(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # The system has no thread left.
            self._places.release()
            self._refuse_connection(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def _refuse_connection(self, request: Any) -> None:
        """Say that there are too many connections, without waiting for the client."""
        request.setblocking(False)
        with suppress(OSError):
            # A request that is not read would make the system discard the answer.
            request.recv(2**16)
        with suppress(OSError):
            request.sendall(TOO_MANY)
        self.shutdown_request(request)

    def shutdown(self) -> None:
        """Stop serving and end all streams."""
        self.closing.set()
        super().shutdown()

    def server_close(self) -> None:
        """Release the port."""
        self.closing.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections, because the page reconnects by itself."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answer one request."""

    server: Dashboard
    server_version = "mopbt"
    sys_version = ""
    # Seconds until a request must have arrived.
    timeout = 60

    def do_GET(self) -> None:
        """Check host and token, then answer with a page or a stream."""
        try:
            url = urlsplit(self.path)
            query = parse_qsl(url.query, keep_blank_values=True, max_num_fields=STREAMS)
        except ValueError:
            return self._refuse(400, "This is not a valid address of this server.")
        if not is_own_host(self.headers.get("Host", ""), self.server.host):
            return self._refuse(
                403,
                "Unknown host name; use the address that the server printed.",
            )
        has_token = any(key == "token" for key, _ in query)
        if self.server.token and (has_token or not self._is_authorized()):
            return self._authorize(url.path, query)
        names = [value for key, value in query if key == "run"]
        if url.path == "/":
            return self._send_page(names)
        if url.path == "/events":
            return self._send_stream(names)
        return self._refuse(404, "There is no such page.")

    def _refuse_method(self) -> None:
        self._refuse(405, "This server is read-only and answers only GET.", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method

    @property
    def _cookie(self) -> str:
        # Browsers share cookies among the ports of a host, so the name has the port.
        return f"mopbt-{self.server.server_address[1]}"

    def _is_authorized(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, text: str) -> bool:
        received = text.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(received, self.server.token.encode())

    def _authorize(self, path: str, query: Sequence[tuple[str, str]]) -> None:
        """Move a token from the address to a cookie, or refuse the request."""
        is_valid = any(key == "token" and self._is_token(value) for key, value in query)
        if not is_valid and not self._is_authorized():
            return self._refuse(
                401,
                "A token is required; use the complete address that the server printed.",
            )
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        place = ("/events" if path == "/events" else "/") + (f"?{rest}" if rest else "")
        cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/"
        self._answer(
            303, b"", "text/plain; charset=utf-8", {"Location": place, "Set-Cookie": cookie}
        )

    def _send_page(self, names: Sequence[str]) -> None:
        snapshot = self._find_snapshot(names)
        if snapshot is not None:
            nonce = secrets.token_urlsafe(18)
            page = live_page(snapshot.text, snapshot.title, nonce).encode()
            policy = {"Content-Security-Policy": POLICY.format(f"'nonce-{nonce}'")}
            self._answer(200, page, "text/html; charset=utf-8", policy)

    def _find_snapshot(self, names: Sequence[str]) -> Snapshot | None:
        """Return the snapshot of runs, or answer with the reason why there is none."""
        try:
            return self.server.runs.snapshot(names)
        except KeyError:
            self._refuse(404, "There is no such run below this directory.")
        except ValueError as error:
            # The runs cannot be shown, or cannot be compared with each other.
            self._refuse(400, str(error))
        return None

    def _send_stream(self, names: Sequence[str]) -> None:
        """Send the snapshot of runs, and send it again after each change."""
        if not self.server.streams.acquire(blocking=False):
            return self._refuse(503, f"{STREAMS} pages are already open; close one.")
        try:
            snapshot = self._find_snapshot(names)
            if snapshot is not None:
                self._send_head(
                    200, {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"}
                )
                self._send_updates(names, snapshot)
        except (KeyError, ValueError, OSError):
            # The run or the client is gone. The page reconnects and then gets the reason.
            pass
        finally:
            self.server.streams.release()

    def _send_updates(self, names: Sequence[str], snapshot: Snapshot) -> None:
        sent_version = None
        last_sent = time.monotonic()
        pause = 0.0
        while not self.server.closing.wait(pause) and not self._is_closed():
            began = time.monotonic()
            if snapshot.version != sent_version:
                self.wfile.write(f"data: {snapshot.text}\n\n".encode())
                sent_version = snapshot.version
                last_sent = began
            elif began - last_sent > PULSE:
                self.wfile.write(b": still here\n\n")
                last_sent = began
            self.wfile.flush()
            snapshot = self.server.runs.snapshot(names)
            pause = max(PAUSE, 10 * (time.monotonic() - began))

    def _is_closed(self) -> bool:
        """Return whether the client has closed the connection, so that its place is free."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        body = f"{message}\n".encode("utf-8", "replace")
        self._answer(status, body, "text/plain; charset=utf-8", headers or {})

    def _answer(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        common = {
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "Content-Type": kind,
            "Content-Length": str(len(body)),
        }
        self._send_head(status, common | headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (HEADERS | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because addresses may contain the token."""


def serve(dashboard: Dashboard, announce: Callable[[str], None]) -> None:
    """Announce the address of the page, and serve it until Ctrl-C."""
    announce(dashboard.url)
    try:
        dashboard.serve_forever(poll_interval=0.2)
    finally:
        dashboard.server_close()


def choose_token(token: str | None, host: str) -> str:
    """Check the given token, or create one; "" on the loopback address."""
    if token is None:
        return "" if is_loopback(host) else secrets.token_urlsafe(24)
    if not re.fullmatch(TOKEN, token):
        raise ValueError(
            f"`token` must have 12 to 128 letters, digits, - and _, because it is part of an "
            f"address, got {len(token)} characters; omit it to get a new one"
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_own_host(header: str, host: str) -> bool:
    """Return whether a Host header names this server, which listens at `host`.

    Addresses and the names of this machine do, other names do not.
    """
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return False
    if is_loopback(name) or name == host.lower():
        return True
    if is_loopback(host):
        return False
    if name.partition(".")[0] == socket.gethostname().lower().partition(".")[0]:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
