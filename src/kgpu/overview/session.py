"""Who may open the page on this machine: whoever has the link, once; then the browser that has its cookie.

Other users of the machine, and pages of other sites in the same browser, reach the port as well. So a request has to
name this server as its host (a site could have its own name point here), needs the cookie, which no other site can send
along, and one that changes something has to come from the page itself.
"""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from ssl import SSLContext
from typing import Final
from urllib.parse import parse_qsl

from kgpu.base.http import Headers, Request, Response
from kgpu.overview import render

HTML: Final = "text/html; charset=utf-8"
OPEN_PATHS: Final = frozenset({"/style.css", "/page.js"})
"""They say nothing of a cluster, and the page that lets nobody in looks like the others."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE_HEADERS: Final[Headers] = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    # Not no-referrer: with that a browser hides from which page a form is sent.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Accel-Buffering", "no"),
)


class LocalSession:
    """An ``AccessPolicy`` for one browser. ``opened`` says where the server listens, when it does."""

    def __init__(self) -> None:
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._hosts: frozenset[str] = frozenset()
        self._name = "kgpu-overview"
        self.secret: Final = secrets.token_urlsafe(32)
        """What a form of the page has in it."""

    def opened(self, host: str, port: int) -> str:
        """The link to open."""
        self._hosts = frozenset(f"{name}:{port}" for name in (host, "127.0.0.1", "localhost", "[::1]"))
        self._name = f"kgpu-overview-{port}"  # a browser sends a cookie of this machine to all of its ports
        return f"http://{host}:{port}/?token={self._token}"

    def tls(self) -> SSLContext | None:
        return None

    def headers(self) -> Headers:
        return SAFE_HEADERS

    async def refuse(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return _refusal(403, "Another name", "This server answers under the name in the link that it printed.")
        if request.path in OPEN_PATHS:
            return None
        if self._knows(request):
            return None if request.method in {"GET", "HEAD"} or _own(request, host) else _FOREIGN
        token = field_of(request.query, "token")
        if request.path == "/" and self._token and same(token, self._token):
            return self._let_in()
        return _refusal(
            401, "This link was used, or is none",
            "The link that kgpu overview prints opens the page in one browser, once.",
            "For another one start it again: kgpu overview",
        )  # fmt: skip

    def _knows(self, request: Request) -> bool:
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        sent = cookies.get(self._name)
        return sent is not None and same(sent.value, self._cookie)

    def _let_in(self) -> Response:
        """Give the cookie in exchange for the token. The browser goes on by itself: a cookie that is for this site
        alone is not sent with the rest of a way that began on another one.
        """
        self._token = None
        cookie = f"{self._name}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
        page = render.notice("GPU overview", "It opens.", refresh="./")
        return Response(200, page, HTML, headers=(("Set-Cookie", cookie),))


def field_of(query: str, name: str) -> str:
    """The value of a field of a query, "" without it and in a query with too many."""
    try:
        return dict(parse_qsl(query, max_num_fields=16)).get(name, "")
    except ValueError:
        return ""


def _own(request: Request, host: str) -> bool:
    """Whether a form was sent from a page of this server."""
    return request.headers.get("origin", "") == f"http://{host}" and request.headers.get(
        "sec-fetch-site", "same-origin"
    ) in {"same-origin", "none"}


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal; how long it takes says nothing of where they differ."""
    return secrets.compare_digest(one.encode(), other.encode())


def _refusal(status: int, title: str, *lines: str) -> Response:
    return Response(status, render.notice(title, *lines), HTML)


_FOREIGN: Final = _refusal(403, "From another page", "A form is taken from this server's own page alone.")
