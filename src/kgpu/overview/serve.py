"""The routes: the page, its updates, its style and script; in a lab also what its buttons send. The rest is 404.

``who`` says for whom a request is answered; a request that is let in by nobody does not come here.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from kgpu.base.errors import UserError
from kgpu.base.http import AwaitedPage, DynamicPage, Page, PostedPage, Request, Response, Stream, StreamedPage
from kgpu.overview import render
from kgpu.overview.access import OverviewViewer
from kgpu.overview.downloads import FORMATS, LISTS, as_text
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.pieces import link
from kgpu.overview.query import parse
from kgpu.overview.session import HTML, field_of, same
from kgpu.overview.views import LiveViews

if TYPE_CHECKING:
    from kgpu.overview.lab_actions import LabGpus

FOLDER: Final = Path(__file__).parent
EVENTS: Final = "text/event-stream; charset=utf-8"
AT_ONCE: Final = 30
"""Pages that one person may load one after another; a second gives back one of them."""
MOST_PEOPLE: Final = 256
FIRST_ROUND: Final = 3.0
"""Seconds that a page waits for nodes to be read where nobody has looked for some time."""


class PagePace:
    """How many pages each person loads: to make one is work, and one process makes all."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._spent: dict[str, tuple[float, float]] = {}

    def allows(self, name: str) -> bool:
        """Count one page of a person, and whether it may be made. Whoever has the page alone has no name."""
        if not name:
            return True
        now = self._now()
        spent, at = self._spent.pop(name, (0.0, now))
        spent = max(0.0, spent - (now - at))
        allowed = spent < AT_ONCE
        self._spent[name] = (spent + 1.0 if allowed else spent, now)
        if len(self._spent) > MOST_PEOPLE:
            del self._spent[next(iter(self._spent))]
        return allowed


class OverviewRoutes:
    """Answers for one server. ``secret`` is what forms of the page have in them."""

    def __init__(
        self, gatherer: ClusterGatherer, views: LiveViews, *, who: Callable[[Request], Awaitable[OverviewViewer]],
        secret: str = "", lab: LabGpus | None = None,
    ) -> None:  # fmt: skip
        self._gatherer = gatherer
        self._views = views
        self._who = who
        self._pace = PagePace()
        self._secret = secret
        self._lab = lab

    def routes(self) -> dict[str, Page]:
        """What there is."""
        found: dict[str, Page] = {
            "/": AwaitedPage(self._page),
            "/live": StreamedPage(self._live),
            "/list": AwaitedPage(self._list),
            "/style.css": _file("style.css", "text/css; charset=utf-8"),
            "/page.js": _file("page.js", "text/javascript; charset=utf-8"),
        }
        return {**found, "/lab": PostedPage(self._act)} if self._lab else found

    async def _page(self, request: Request) -> Response:
        viewer = await self._who(request)
        if not self._pace.allows(viewer.name):
            return _busy("too many pages at once: wait a moment\n", 5)
        await self._look()
        query = parse(request.query)
        view = await self._views.view(query, viewer)
        html = render.document(query, view.body, stamp=view.stamp, who=viewer.name, leaves=viewer.leaves)
        return _packed(request, html, HTML)

    async def _look(self) -> None:
        paused = self._gatherer.paused
        self._gatherer.look()
        if paused:
            await self._gatherer.fresh(FIRST_ROUND)

    async def _list(self, request: Request) -> Response:
        name, form = (field_of(request.query, field) for field in ("list", "as"))
        if name not in LISTS or form not in FORMATS:
            return Response(404, f"list is one of {' '.join(LISTS)}, and as one of {' '.join(FORMATS)}\n")
        viewer = await self._who(request)
        if not self._pace.allows(viewer.name):
            return _busy("too many pages at once: wait a moment\n", 5)
        await self._look()
        body = as_text(await self._views.page(parse(request.query), viewer), name, form)
        kind = "text/csv; charset=utf-8" if form == "csv" else "application/json"
        found = _packed(request, body, kind)
        disposition = ("Content-Disposition", f'attachment; filename="{name}.{form}"')
        return replace(found, headers=(*found.headers, disposition))

    async def _live(self, request: Request) -> Response | Stream:
        viewer = await self._who(request)
        if self._views.full_for(viewer):
            return _busy("as many look already as there is room for\n", 30)
        if not self._pace.allows(viewer.name):
            return _busy("too many pages at once: wait a moment\n", 5)
        stamp = request.headers.get("last-event-id") or field_of(request.query, "stamp")
        return Stream(self._views.stream(parse(request.query), viewer, stamp), EVENTS)

    async def _act(self, request: Request) -> Response:
        assert self._lab is not None
        try:
            fields = dict(parse_qsl(request.body.decode("ascii"), max_num_fields=8))
        except ValueError:
            return _failed(400, "This is not the page's form.")
        if not same(fields.get("secret", ""), self._secret):
            return _failed(403, "This form is not of a page of this server. Reload the page.")
        try:
            names = (fields.get(name, "") for name in ("action", "node", "gpu"))
            await asyncio.to_thread(self._lab.act, *names)
        except UserError as error:
            return _failed(400, error.one_line())
        self._gatherer.hurry()
        back = link(parse(fields.get("view", "").partition("?")[2]))
        return Response(303, "", headers=(("Location", back),))


def _busy(why: str, seconds: int) -> Response:
    return Response(503, why, headers=(("Retry-After", str(seconds)),))


def _failed(status: int, why: str) -> Response:
    return Response(status, render.notice("It was not done", why), HTML)


def _file(name: str, kind: str) -> DynamicPage:
    return DynamicPage(lambda request: _packed(request, _bytes_of(name), kind))


@cache
def _bytes_of(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def _packed(request: Request, body: bytes, kind: str) -> Response:
    """The body, packed where the client takes that."""
    codings = {word.partition(";")[0].strip() for word in request.headers.get("accept-encoding", "").split(",")}
    if "gzip" not in codings:
        return Response(200, body, kind)
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    headers = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return Response(200, packer.compress(body) + packer.flush(), kind, headers)
