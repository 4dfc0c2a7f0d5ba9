"""The live page: a small server that shows the runs below a directory while they go on. It reads, and does nothing else.

Who may look: on the loopback address everybody on the machine, unless a token is set; elsewhere whoever has the token. Requests
that name another host are refused, so that no page from elsewhere can read along under a name of its own that leads here.
"""

import hmac
import ipaddress
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from mopbt.html.follower import Follower, find_runs
from mopbt.html.report import as_json, live_page, payload, title_of

PORT = 8765
PAUSE = 0.5  # seconds between two looks at the journals, and ten times as long as a look takes
REST = 2.0  # seconds between two looks for new runs, and ten times as long as that takes
PULSE = 15.0  # seconds after which a silent connection is tried
STREAMS = 32  # pages that are kept up to date at the same time
TOKEN = r"[A-Za-z0-9_-]{12,128}"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
POLICY = (
    "default-src 'none'; script-src {0}; style-src {0}; img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


class Snapshot(NamedTuple):
    """What there is to tell of runs: JSON, the page's title, and a version that changes with it."""

    version: Any
    text: str
    title: str


class Shelf:
    """The runs below a directory, and what was last told of them; safe to be asked by many threads."""

    def __init__(self, root: Path | str) -> None:
        self._shown, self._root = Path(root), Path(root).resolve()
        if not self._root.is_dir():
            raise ValueError(f"there is no directory {root}; name the one that holds your runs")
        self._followers: dict[str, Follower] = {}
        self._again = 0.0
        self._told: dict[tuple[str, ...], Snapshot] = {}
        self._lock = threading.Lock()

    def told(self, names: Sequence[str]) -> Snapshot:
        """Return what there is to tell of these runs, or of all where none is named.

        Raises KeyError where one is not there, and ValueError where they cannot be shown.
        """
        with self._lock:
            self._find()
            key = tuple(dict.fromkeys(names)) or tuple(self._followers)
            chosen = [self._followers[name] for name in key]
            for follower in chosen:
                follower.look()
            version = tuple((follower.name, follower.version) for follower in chosen)
            place = key if names else ()
            if place not in self._told or self._told[place].version != version:
                fresh = self._runs(version, chosen) if names else self._index(version, chosen)
                self._told = dict(list(self._told.items())[-STREAMS:]) | {place: fresh}
            return self._told[place]

    def _runs(self, version: Any, followers: Sequence[Follower]) -> Snapshot:
        data, stories = (
            [follower.data() for follower in followers],
            [follower.run for follower in followers],
        )
        return Snapshot(
            version, as_json(payload(stories, data) | {"live": True}), title_of(stories)
        )

    def _index(self, version: Any, followers: Sequence[Follower]) -> Snapshot:
        return Snapshot(
            version,
            as_json({"index": [follower.row() for follower in followers], "live": True}),
            "mopbt",
        )

    def _find(self) -> None:
        """Look for runs, but not too often: a large directory takes its time."""
        began = time.monotonic()
        if began < self._again:
            return
        found = dict(find_runs(self._root))
        new = {
            name: self._follower(name, path)
            for name, path in found.items()
            if name not in self._followers
        }
        kept = {
            name: follower
            for name, follower in self._followers.items()
            if found.get(name) == follower.path
        }
        self._followers = {name: (kept | new)[name] for name in sorted(kept | new)}
        self._again = time.monotonic() + max(REST, 10 * (time.monotonic() - began))

    def _follower(self, name: str, path: Path) -> Follower:
        return Follower(path, name, shown=str(self._shown / path.relative_to(self._root)))


class Dashboard(ThreadingHTTPServer):
    """A server of the runs below a directory. Use it as a context manager; `serve_forever` serves until `shutdown`."""

    daemon_threads = True

    def __init__(
        self,
        root: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
    ) -> None:
        self.shelf, self.host = Shelf(root), host
        self.token = checked_token(token, host)
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(STREAMS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ValueError(
                f"the dashboard cannot listen at {host}, port {port} ({error.strerror}); `port` 0 takes one that is free, `host` "
                f"127.0.0.1 is this machine"
            ) from None

    @property
    def url(self) -> str:
        """Return where the page is, with the token if there is one."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
            self.host, self.host
        )
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.server_address[1]}/" + (
            f"?token={self.token}" if self.token else ""
        )

    def shutdown(self) -> None:
        """Stop serving, and end what is being streamed."""
        self.closing.set()
        super().shutdown()

    def server_close(self) -> None:
        """Let go of the port."""
        self.closing.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over connections that broke: the page connects again by itself."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Dashboard
    server_version = "mopbt"
    sys_version = ""
    timeout = 60  # seconds that a request may take to arrive

    def do_GET(self) -> None:
        """Answer with a page or a stream, once host and token are in order."""
        try:
            url = urlsplit(self.path)
            query = parse_qsl(url.query, keep_blank_values=True, max_num_fields=STREAMS)
        except ValueError:
            return self._refuse(400, "That is no address of this server.")
        if not is_own_host(self.headers.get("Host", ""), self.server.host):
            return self._refuse(
                403,
                "This server is not known by that name; use the address that it printed when it started.",
            )
        if self.server.token and not self._may_look():
            return self._let_in(url.path, query)
        names = [value for key, value in query if key == "run"]
        answer = {"/": self._page, "/events": self._stream}.get(url.path)
        return answer(names) if answer else self._refuse(404, "There is nothing here.")

    def _not_get(self) -> None:
        self._refuse(405, "This server only shows: it answers GET.", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_get

    @property
    def _cookie(self) -> str:
        return f"mopbt-{self.server.server_address[1]}"  # cookies know no ports

    def _may_look(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, said: str) -> bool:
        return hmac.compare_digest(
            said.encode("utf-8", "surrogateescape"), self.server.token.encode()
        )

    def _let_in(self, path: str, query: Sequence[tuple[str, str]]) -> None:
        """Take a token from the address into a cookie, and out of the address; refuse whoever has none."""
        if not any(key == "token" and self._is_token(value) for key, value in query):
            return self._refuse(
                401,
                "A token is needed: use the whole address that was printed when the server started.",
            )
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        place = ("/events" if path == "/events" else "/") + (f"?{rest}" if rest else "")
        cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/"
        self._answer(
            303, b"", "text/plain; charset=utf-8", {"Location": place, "Set-Cookie": cookie}
        )

    def _page(self, names: Sequence[str]) -> None:
        told = self._told(names)
        if told is not None:
            nonce = secrets.token_urlsafe(18)
            policy = {"Content-Security-Policy": POLICY.format(f"'nonce-{nonce}'")}
            self._answer(
                200,
                live_page(told.text, told.title, nonce).encode(),
                "text/html; charset=utf-8",
                policy,
            )

    def _told(self, names: Sequence[str]) -> Snapshot | None:
        """Return what there is to tell, or None after an answer that says why there is nothing."""
        try:
            return self.server.shelf.told(names)
        except KeyError:
            self._refuse(404, "There is no such run below this directory.")
        except ValueError as error:  # runs that cannot be compared, or not be shown
            self._refuse(400, str(error))
        return None

    def _stream(self, names: Sequence[str]) -> None:
        """Push what there is to tell, now and whenever it has changed."""
        if not self.server.streams.acquire(blocking=False):
            return self._refuse(503, f"{STREAMS} pages are open already; close one.")
        try:
            told = self._told(names)
            if told is not None:
                self._head(
                    200, {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"}
                )
                self._push(names, told)
        except (KeyError, ValueError, OSError):
            pass  # the run or the reader is gone; the page connects again, and is told why
        finally:
            self.server.streams.release()

    def _push(self, names: Sequence[str], told: Snapshot) -> None:
        sent, spoke, pause = None, time.monotonic(), 0.0
        while not self.server.closing.wait(pause):
            began = time.monotonic()
            if told.version != sent:
                self.wfile.write(f"data: {told.text}\n\n".encode())
                sent, spoke = told.version, began
            elif began - spoke > PULSE:
                self.wfile.write(b": still here\n\n")
                spoke = began
            self.wfile.flush()
            told = self.server.shelf.told(names)
            pause = max(PAUSE, 10 * (time.monotonic() - began))

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._answer(
            status,
            f"{message}\n".encode("utf-8", "replace"),
            "text/plain; charset=utf-8",
            headers or {},
        )

    def _answer(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        self._head(
            status, policy | {"Content-Type": kind, "Content-Length": str(len(body))} | headers
        )
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (HEADERS | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses may carry the token."""


def serve(dashboard: Dashboard, announce: Callable[[str], None]) -> None:
    """Announce where the page is, and serve it until Ctrl-C."""
    announce(dashboard.url)
    try:
        dashboard.serve_forever(poll_interval=0.2)
    finally:
        dashboard.server_close()


def checked_token(token: str | None, host: str) -> str:
    """Return the token that is asked for: the given one, else a new one, or none at all on the loopback address."""
    if token is None:
        return "" if is_loopback(host) else secrets.token_urlsafe(24)
    if not re.fullmatch(TOKEN, token):
        raise ValueError(
            f"`token` must have 12 to 128 letters, digits, - and _, as it stands in an address, got {len(token)} characters; leave "
            f"it out to get a new one"
        )
    return token


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_own_host(header: str, host: str) -> bool:
    """Tell whether a Host header means this server, which listens at `host`: numbers do, and names that are its own."""
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return False
    if is_loopback(name) or name == host.lower():
        return True
    if is_loopback(host):
        return False
    return (
        _is_number(name) or name.partition(".")[0] == socket.gethostname().lower().partition(".")[0]
    )


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
