"""HTTP for `shoal ui`: loopback only, one thread per request, time limits, and no access without both secrets.

On a login node every user reaches loopback, so the address alone protects nothing. A link with a token that works once
gives the browser a cookie; every other request needs that cookie. A browser sends it to every port of the host, so a
server of another user may see it; data and actions therefore need a second secret in the header X-Shoal-Key. The
browser gets it behind the # of the address, which it sends to no server, and keeps it for this port alone. The report,
which a frame loads without headers, is asked for with a ticket that works once. The Host header must name this machine
as the browser sees it (a foreign name that resolves here is refused), and requests that change something must come from
the page itself.
"""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from shoal.errors import ShoalError
from shoal.views.actions import RETRY_INCREASES
from shoal.views.web.api import ApiNotFound, DashboardData, project_name

#: The page is reached under these names only; the port may differ, because ssh -L may have another one at its end.
_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The report brings its style along and has no script at all.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"


_MAX_TICKETS = 16
_NO_KEY = "this browser window has no key for the page; open the newest link that `shoal ui` printed in the terminal"


class RequestHeaders(Protocol):
    """Names in any case; http.server's own type, or a dict in tests."""

    def get(self, name: str, default: str, /) -> str: ...


class SessionAuth:
    """The secrets of one server: a cookie and a key for as long as it lives, a token for the next browser, and tickets
    for reports."""

    def __init__(self, port: int) -> None:
        self.cookie_name = f"shoal_{port}"
        self._session = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)
        self.key = secrets.token_urlsafe(32)
        self._tickets: set[str] = set()

    def new_ticket(self) -> str:
        """For one request without the key; only so many wait at a time."""
        while len(self._tickets) >= _MAX_TICKETS:
            self._tickets.pop()
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(ticket)
        return ticket

    def take_ticket(self, ticket: str) -> bool:
        known = ticket in self._tickets
        self._tickets.discard(ticket)
        return known

    def has_key(self, headers: RequestHeaders) -> bool:
        """Whether the request carries the second secret, which only the page of this port has."""
        return hmac.compare_digest(headers.get("X-Shoal-Key", "").encode("utf-8", "replace"), self.key.encode())

    @property
    def token(self) -> str:
        return self._token

    def redeem(self, token: str) -> str | None:
        """The cookie's value for a token that was not used before; that token is worthless from then on."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = secrets.token_urlsafe(32)
        return self._session

    def set_cookie(self, value: str) -> str:
        return f"{self.cookie_name}={value}; HttpOnly; SameSite=Strict; Path=/"

    def is_authenticated(self, headers: RequestHeaders) -> bool:
        """Whether the request carries the cookie."""
        try:
            cookie = SimpleCookie(headers.get("Cookie", ""))
        except CookieError:
            return False
        found = cookie.get(self.cookie_name)
        return found is not None and hmac.compare_digest(found.value.encode(), self._session.encode())


def is_local_host(headers: RequestHeaders) -> bool:
    host = headers.get("Host", "").strip().lower()
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    return name in _LOCAL_HOSTS and port.isascii() and port.isdigit()


def is_same_origin(headers: RequestHeaders) -> bool:
    """For requests that change something: the browser says that our own page sent it."""
    origin = headers.get("Origin", "").strip().lower()
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    return origin == f"http://{headers.get('Host', '').strip().lower()}"


def is_cross_site(headers: RequestHeaders) -> bool:
    """For reading: another site's page asks through this browser (where the browser says so)."""
    return headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


#: The scripts of the page, each after those that it imports from.
SCRIPTS = ("fit.js", "table.js", "plot.js", "curves.js", "params.js", "detail.js", "cluster.js", "app.js")
_STATIC_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_MAX_BODY_BYTES = 1 << 16
_MAX_CONNECTIONS = 32
_READ_TIMEOUT_S = 20.0

#: (names of the runs, what a retry asks for more of) -> one line for the person
RunAction = Callable[[list[str], str | None], str]


class DashboardServer(ThreadingHTTPServer):
    """Listens on loopback at a free port. `actions` is empty unless the person allowed them."""

    daemon_threads = True
    allow_reuse_address = False
    request_queue_size = 64

    def __init__(self, feed: DashboardData, *, port: int = 0, actions: Mapping[str, RunAction] | None = None) -> None:
        super().__init__(("127.0.0.1", port), DashboardHandler)
        self.feed = feed
        self.actions = dict(actions or {})
        self.guard = SessionAuth(self.server_address[1])
        self.places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        #: Connections that have not shown the cookie yet, oldest first.
        self.strangers: dict[int, socket.socket] = {}
        self.on_new_link: Callable[[str], None] = lambda link: None

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.guard.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """There are only so many threads; a client that holds them all without the cookie loses its oldest."""
        if not self.places.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        self.strangers[id(request)] = request
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._close_oldest(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._close_oldest(request)

    def _make_room(self) -> bool:
        for key in list(self.strangers)[:1]:
            stranger = self.strangers.pop(key, None)
            if stranger is not None:
                with suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)
                return self.places.acquire(timeout=1)
        return False

    def _close_oldest(self, request: Any) -> None:
        self.strangers.pop(id(request), None)
        self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is everyday life; anything else is told in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError | socket.timeout):
            sys.stderr.write(f"ui: {type(error).__name__}: {error}\n")


class DashboardHandler(BaseHTTPRequestHandler):
    server: DashboardServer
    server_version = "shoal"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _READ_TIMEOUT_S

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query, max_num_fields=20).items()}
        if not is_local_host(self.headers):
            self._refuse(403, "this address is not the page's own")
        elif url.path == "/" and "token" in query:
            self._log_in(query["token"])
        elif not self._is_known():
            self._refuse(403, "open the link that `shoal ui` printed in the terminal; each link works once")
        elif url.path in _STATIC_FILES:
            self._static(*_STATIC_FILES[url.path])
        elif is_cross_site(self.headers):
            self._refuse(403, "this is for the page itself")
        elif url.path == "/report" and self.server.guard.take_ticket(query.get("ticket", "")):
            self._answer(lambda: self.server.feed.report(query.get("experiment", "")))
        elif not self.server.guard.has_key(self.headers):
            self._refuse(403, _NO_KEY)
        else:
            self._api(url.path, query)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not is_local_host(self.headers) or not is_same_origin(self.headers):
            self._refuse(403, "only the page itself may do this")
        elif not self._is_known():
            self._refuse(403, "open the link that `shoal ui` printed in the terminal")
        elif not self.server.guard.has_key(self.headers):
            self._refuse(403, _NO_KEY)
        elif not (length.isascii() and length.isdigit()) or int(length) > _MAX_BODY_BYTES:
            self._refuse(413, "that is too much")
        elif self.headers.get("Content-Type", "") != "application/json":
            self._refuse(415, "JSON is expected")
        else:
            self._act(urlsplit(self.path).path, self.rfile.read(int(length)))

    def _is_known(self) -> bool:
        known = self.server.guard.is_authenticated(self.headers)
        if known:
            self.server.strangers.pop(id(self.connection), None)
        return known

    def _log_in(self, token: str) -> None:
        value = self.server.guard.redeem(token)
        if value is None:
            # A page that is logged in already may be reloaded with its old link.
            if self.server.guard.is_authenticated(self.headers):
                self._send(303, b"", "text/plain", {"Location": "/"})
            else:
                self._refuse(403, "this link was used before; the terminal shows the next one")
            return
        self.server.on_new_link(self.server.link)
        headers = {"Location": f"/#key={self.server.guard.key}", "Set-Cookie": self.server.guard.set_cookie(value)}
        self._send(303, b"", "text/plain", headers)

    def _api(self, path: str, query: Mapping[str, str]) -> None:
        feed, run = self.server.feed, query.get("run", "")
        answers: dict[str, Callable[[], dict[str, Any] | bytes]] = {
            "/api/runs": lambda: feed.runs_json(
                _integer(query.get("since"), 0),
                {"actions": sorted(self.server.actions), "project": project_name(feed.home)},
            ),
            "/api/ticket": lambda: {"ticket": self.server.guard.new_ticket()},
            "/api/run": lambda: feed.run(run),
            "/api/why": lambda: feed.why(run),
            "/api/provenance": lambda: feed.provenance(run),
            "/api/files": lambda: feed.files(run),
            "/api/metrics": lambda: feed.metrics(run),
            "/api/cluster": feed.cluster,
            "/api/experiment": lambda: feed.experiment(query.get("experiment", "")),
            "/api/values": lambda: feed.values(query.get("experiment", ""), query.get("metric", "")),
            "/api/curves": lambda: feed.curves(query.get("q", "")),
            "/api/log": lambda: feed.log(
                run,
                query.get("stream", "out"),
                _integer(query["attempt"], 0) if "attempt" in query else None,
                _integer(query.get("offset"), -(1 << 16)),
                most=_integer(query.get("most"), 1 << 20),
                part=query.get("part", ""),
            ),
        }
        if path in answers:
            self._answer(answers[path])
        else:
            self._refuse(404, "there is nothing here")

    def _act(self, path: str, body: bytes) -> None:
        name = path.removeprefix("/api/")
        if name not in ("cancel", "retry"):
            self._refuse(404, "there is nothing here")
            return
        if name not in self.server.actions:
            self._refuse(403, "this page only looks; start it with shoal ui --allow-actions")
            return

        def act() -> dict[str, Any]:
            wanted = json.loads(body)
            ids, more = (wanted.get("runs"), wanted.get("more")) if isinstance(wanted, dict) else (None, None)
            if not isinstance(ids, list) or not ids or len(ids) > 5000 or not all(isinstance(one, str) for one in ids):
                raise ApiNotFound("which runs?")
            if more is not None and more not in RETRY_INCREASES:
                raise ApiNotFound("more of what?")
            return {"said": self.server.actions[name]([self.server.feed.name_of(one) for one in ids], more)}

        self._answer(act)

    def _answer(self, work: Callable[[], dict[str, Any] | bytes | str]) -> None:
        try:
            found = work()
        except ApiNotFound as error:
            self._refuse(404, error.message)
        except ShoalError as error:
            self._refuse(409, error.message)
        except ValueError:
            self._refuse(400, "that is not understood")
        else:
            if isinstance(found, str):
                policy = {"Content-Security-Policy": REPORT_POLICY}
                self._send(200, found.encode(), "text/html; charset=utf-8", policy)
            else:
                body = found if isinstance(found, bytes) else json.dumps(found, separators=(",", ":")).encode()
                self._send(200, body, "application/json")

    def _static(self, name: str, kind: str) -> None:
        self._send(200, (Path(__file__).with_name("static") / name).read_bytes(), kind)

    def _refuse(self, code: int, sentence: str) -> None:
        self.close_connection = True
        self._send(code, json.dumps({"error": sentence}).encode(), "application/json")

    def _send(self, code: int, body: bytes, kind: str, extra: Mapping[str, str] | None = None) -> None:
        headers = {
            **SECURITY_HEADERS,
            "Content-Security-Policy": CONTENT_POLICY,
            "Content-Type": kind,
            **(extra or {}),
        }
        if len(body) > 2000 and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: a request line could hold a token."""


def _integer(text: str | None, default: int) -> int:
    try:
        return int(text) if text is not None and len(text) < 20 else default
    except ValueError:
        return default
