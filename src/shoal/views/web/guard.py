"""Who may ask. On a login node every user reaches loopback, so the address alone protects nothing. Pure.

A link with a token that works once gives the browser a cookie; every other request needs that cookie. The Host header
must name this machine as the browser sees it (a foreign name that resolves here is refused), and whatever changes
something must come from the page itself.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

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


class RequestHeaders(Protocol):
    """Names in any case; http.server's own type, or a dict in tests."""

    def get(self, name: str, default: str, /) -> str: ...


class SessionAuth:
    """The secrets of one server: a cookie for as long as it lives, and a token for the next browser."""

    def __init__(self, port: int) -> None:
        self.cookie_name = f"shoal_{port}"
        self._session = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)

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
