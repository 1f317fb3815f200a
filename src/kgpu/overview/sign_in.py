"""Who may open the page in the cluster: whoever has a token that the API server takes, in a header or by a form, once.

What he sees is what the API server lets him see; the page's own account is nobody's. No other header says who somebody
is. The form's answer is a cookie that no script reads and no other site sends along; it has no path, so that a browser
keeps it below the address that the page has behind a proxy. A form is taken from the page itself alone. A site whose
name is made to point here gets nothing: the cookie is of another name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from ssl import SSLContext
from typing import Final
from urllib.parse import parse_qsl

from kgpu.base.errors import UserError
from kgpu.base.http import Headers, Page, PostedPage, Request, Response
from kgpu.overview import render
from kgpu.overview.access import RememberedAnswers, SeenNamespaces
from kgpu.overview.model import ViewerRights
from kgpu.overview.pieces import link
from kgpu.overview.query import parse
from kgpu.overview.reviews import Person, Reviews
from kgpu.overview.session import HTML, OPEN_PATHS, SAFE_HEADERS
from kgpu.overview.sessions import BrowserSessions
from kgpu.overview.tokens import CheckedPerson, TokenChecks

log = logging.getLogger(__name__)

COOKIE: Final = "kgpu-overview"
RIGHTS_HOLD: Final = 40.0
"""Seconds. With those for which a silent page waits, a right that was taken away is not in force for a minute."""
ASKED_WITHIN: Final = 8.0
"""Seconds for all that is asked of somebody's rights; a page does not wait longer, and shows sums."""
MOST_PEOPLE: Final = 256
MOST_FORM: Final = 20_000  # bytes: an identity provider's token with many groups is larger than a head may be
_SIGN_IN: Final = "/sign-in"
_SIGN_OUT: Final = "/sign-out"
_NOTHING: Final = ViewerRights(frozenset(), nodes=False)
_SAY_AGAIN: Final = 60.0


class PersonRights:
    """What one person may see."""

    def __init__(self, person: Person, reviews: Reviews) -> None:
        async def namespace(name: str) -> bool:
            return await reviews.may_see(person, name)

        async def nodes(_: str) -> bool:
            return await reviews.may_list_nodes(person)

        self._seen = SeenNamespaces(RememberedAnswers(namespace, holds=RIGHTS_HOLD))
        self._nodes = RememberedAnswers(nodes, holds=RIGHTS_HOLD)

    async def now(self, namespaces: Iterable[str]) -> ViewerRights:
        try:
            async with asyncio.timeout(ASKED_WITHIN):
                sees = await self._seen.of(namespaces)
                return ViewerRights(sees, nodes=await self._nodes.may(""))
        except TimeoutError:
            return _NOTHING


class TokenViewer:
    """Somebody with a token; it is asked about again each time."""

    def __init__(self, access: TokenAccess, request: Request, name: str) -> None:
        self._access = access
        self._request = request
        self.name = name
        self.leaves = not request.headers.get("authorization")

    async def rights(self, namespaces: Iterable[str]) -> ViewerRights:
        try:
            checked = await self._access.checked(self._request)
        except UserError:
            return _NOTHING
        if checked is None or not checked.sure or checked.person.name != self.name:
            return _NOTHING
        return await self._access.rights_of(checked.person).now(namespaces)

    async def stays(self) -> bool:
        try:
            checked = await self._access.checked(self._request)
        except UserError:
            return False
        return checked is not None and checked.person.name == self.name


class TokenAccess:
    """An ``AccessPolicy`` by the API server's word, with the routes to sign in and out."""

    def __init__(self, reviews: Reviews, checks: TokenChecks | None = None) -> None:
        self._reviews = reviews
        self._checks = checks or TokenChecks(reviews)
        self._sessions = BrowserSessions()
        self._rights: OrderedDict[Person, PersonRights] = OrderedDict()
        self._said_at = -_SAY_AGAIN

    def tls(self) -> SSLContext | None:
        return None

    def headers(self) -> Headers:
        return SAFE_HEADERS

    async def refuse(self, request: Request) -> Response | None:
        if request.path in OPEN_PATHS:
            return None
        if request.method == "POST" and not _own(request):
            return Response(403, render.notice("From another page", "A form is taken from this page alone."), HTML)
        if request.path in {_SIGN_IN, _SIGN_OUT}:
            return None
        try:
            if await self.checked(request) is not None:
                return None
        except UserError as error:
            return self._not_now(error, link(parse(request.query)))
        if request.path != "/":
            return Response(401, "sign in\n")
        title = "Sign in" if not _shown(request) else "Sign in again: this token or session has ended"
        return _form(401, title, back=link(parse(request.query)))

    async def who(self, request: Request) -> TokenViewer:
        """The viewer of a request that was let in."""
        checked = await self.checked(request)
        return TokenViewer(self, request, checked.person.name if checked else "")

    async def checked(self, request: Request) -> CheckedPerson | None:
        """Whose request it is. A header goes before the cookie, also one that is nobody's. Raises UserError."""
        header = request.headers.get("authorization")
        token = self._sessions.token_of(_cookie(request)) if header is None else _bearer(header)
        return await self._checks.who(token) if token else None

    def rights_of(self, person: Person) -> PersonRights:
        """What is remembered of what a person may see."""
        found = self._rights.setdefault(person, PersonRights(person, self._reviews))
        self._rights.move_to_end(person)
        if len(self._rights) > MOST_PEOPLE:
            self._rights.popitem(last=False)
        return found

    def routes(self) -> dict[str, Page]:
        """To sign in and out."""
        return {_SIGN_IN: PostedPage(self._sign_in, most=MOST_FORM), _SIGN_OUT: PostedPage(self._sign_out)}

    async def _sign_in(self, request: Request) -> Response:
        fields = _fields(request.body)
        back = link(parse(fields.get("view", "").partition("?")[2]))
        token = "".join(fields.get("token", "").split()).removeprefix("Bearer")
        try:
            checked = await self._checks.who(token)
        except UserError as error:
            return self._not_now(error, back)
        if checked is None:
            return _form(401, "This is no token of this cluster, or it has ended", back=back)
        self._sessions.end(_cookie(request))
        cookie = self._sessions.begin(token, checked.person.name)
        return _seen(back, f"{COOKIE}={cookie}{_attributes(request)}")

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.end(_cookie(request))
        return _seen("./", f"{COOKIE}={_attributes(request)}; Max-Age=0")

    def _not_now(self, error: UserError, back: str) -> Response:
        now = time.monotonic()
        if now - self._said_at >= _SAY_AGAIN:
            self._said_at = now
            log.warning("nobody can sign in: %s", error.one_line())
        return _form(503, "The API server can't be asked now", "It says whose a token is. Try again later.", back=back)


def _form(status: int, title: str, *lines: str, back: str) -> Response:
    more = (("Retry-After", "10"),) if status == 503 else ()
    return Response(status, render.sign_in(title, *lines, back=back), HTML, headers=more)


def _seen(where: str, cookie: str) -> Response:
    return Response(303, "", headers=(("Location", where), ("Set-Cookie", cookie)))


def _attributes(request: Request) -> str:
    """Of a cookie; whoever says that he came by TLS makes his own safer."""
    secure = "; Secure" if request.headers.get("x-forwarded-proto", "").lower() == "https" else ""
    return f"; HttpOnly; SameSite=Strict{secure}"


def _fields(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=8))
    except ValueError:
        return {}


def _cookie(request: Request) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _shown(request: Request) -> bool:
    return bool(_cookie(request)) or "authorization" in request.headers


def _own(request: Request) -> bool:
    """Whether a form was sent from a page of this server. Behind a proxy that changes the host only the browser can
    say; it does, but where the address is neither https nor of the browser's machine.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host", "").lower()
    return bool(host) and request.headers.get("origin", "").lower() in {f"http://{host}", f"https://{host}"}
