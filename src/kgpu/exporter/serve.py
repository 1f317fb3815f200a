"""The page that a scrape gets: bytes rendered in advance, in the forms that scrapers have asked for lately.

A tick hands over its families; they are rendered at once in every form that was asked for within the last minutes, so
that a scrape costs no more than sending it. Another form is rendered at the first scrape that asks for it. Compression
uses the lowest level: it only helps on slow networks, and scrapers always ask for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.http import DynamicPage, Headers, Request, Response, Routes
from kgpu.exporter.model import Family
from kgpu.exporter.render import ExpositionFormat, negotiate, render

KEPT_SECONDS: Final = 300.0
GZIP_LEVEL: Final = 1
_GZIP_HEADER: Final = 16  # added to the window's size: gzip's header and not zlib's
_VARY: Final = ("Vary", "Accept, Accept-Encoding")

INDEX: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kgpu exporter</title></head>
<body><h1>kgpu exporter</h1>
<p><a href="metrics">Metrics</a>, <a href="health">health</a></p></body></html>
"""


class Form(NamedTuple):
    """One of the forms that a scrape can have."""

    format: ExpositionFormat
    gzip: bool


class MetricsPage:
    """The latest tick's text."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._families: tuple[Family, ...] = ()
        self._made: dict[Form, bytes] = {}
        self._asked: dict[Form, float] = {Form(ExpositionFormat.TEXT, gzip=False): self._clock.monotonic()}
        self.scrapes = 0

    def publish(self, families: Iterable[Family]) -> None:
        """Render the families for the next scrapes."""
        families = tuple(families)
        since = self._clock.monotonic() - KEPT_SECONDS
        made: dict[Form, bytes] = {}
        for form in sorted(form for form, at in self._asked.items() if at >= since):
            made[form] = _make(form, families, made)
        self._families, self._made = families, made

    def scrape(self, request: Request) -> Response:
        """The text in the form that the request prefers."""
        form = Form(
            negotiate(request.headers.get("accept", "")), takes_gzip(request.headers.get("accept-encoding", ""))
        )
        self.scrapes += 1
        self._asked[form] = self._clock.monotonic()
        body = self._made.get(form)
        if body is None:
            body = self._made[form] = _make(form, self._families, self._made)
        encoding: Headers = (("Content-Encoding", "gzip"),) if form.gzip else ()
        return Response(200, body, str(form.format), (*encoding, _VARY))

    def routes(self, health: Callable[[], Response]) -> Routes:
        """All pages."""
        return {
            "/": lambda: Response(200, INDEX, "text/html; charset=utf-8"),
            "/metrics": DynamicPage(self.scrape),
            "/health": health,
        }


def takes_gzip(accept: str) -> bool:
    """Whether an ``Accept-Encoding`` header allows gzip."""
    for part in accept[:4096].split(","):
        coding, *parameters = (word.strip().lower() for word in part.split(";"))
        if coding in {"gzip", "x-gzip", "*"}:
            return all(
                parameter.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for parameter in parameters
            )
    return False


def _make(form: Form, families: tuple[Family, ...], made: dict[Form, bytes]) -> bytes:
    plain = made.get(Form(form.format, gzip=False))
    if plain is None:
        plain = render(families, form.format).encode()
    if not form.gzip:
        return plain
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS + _GZIP_HEADER)
    return packer.compress(plain) + packer.flush()
