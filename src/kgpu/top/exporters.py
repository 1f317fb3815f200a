"""Exporters over HTTP: directly, or through the API server's pod proxy, whichever way works; then that way is kept.

An exporter gets no more than its deadline and a bounded answer: one that hangs, streams for ever or is another program
becomes its node's trouble and delays no other node.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.printable import one_line
from kgpu.kube.port import KubeRefusedError, PodPages
from kgpu.kube.wire import Wire, WireError
from kgpu.top.model import GpuNode, NodeRoutes, Route
from kgpu.top.parse import LabelSets
from kgpu.top.read import read

DEADLINE: Final = 5.0  # seconds for one exporter
LIMIT: Final = 8 << 20
PATH: Final = "/metrics"


class UnreadableError(UserError):
    """An exporter that can't be read."""


class Exporters:
    """Reads targets by their routes. ``headers`` and ``context`` are for those that are reached directly.

    Every target is sent ``headers``, with their password: whoever finds targets answers for them.
    """

    def __init__(
        self, pages: PodPages | None = None, *, headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None, deadline: float = DEADLINE,
    ) -> None:  # fmt: skip
        self._pages = pages
        self._headers = {"Accept": "text/plain", "Connection": "close", **(headers or {})}
        self._context = context
        self._deadline = deadline
        self._known = LabelSets()
        self._good: dict[str, Route] = {}
        self._proxied: bool | None = None  # the way that worked last

    async def look(self, target: NodeRoutes) -> GpuNode:
        """The node now, by the first way that works. Raises UserError with the first way's trouble."""
        trouble: UserError | None = None
        for route in self._order(target):
            try:
                async with asyncio.timeout(self._deadline):
                    text = await self._page(route)
            except TimeoutError:
                trouble = trouble or _silent(self._deadline)
                continue
            except UserError as error:
                trouble = trouble or error
                continue
            node = read(text, target.node, self._known, at=time.time(), through=str(route))
            self._good[target.node] = route
            self._proxied = route.proxied
            return node
        self._good.pop(target.node, None)
        assert trouble is not None
        raise trouble

    def _order(self, target: NodeRoutes) -> list[Route]:
        """The way that worked for this node, then the kind of way that worked for others."""
        last = self._good.get(target.node)
        if last is not None and last in target.routes:
            return [last, *(route for route in target.routes if route != last)]
        return sorted(target.routes, key=lambda route: self._proxied is not None and route.proxied != self._proxied)

    async def _page(self, route: Route) -> str:
        if not route.proxied:
            return await self._direct(route.url)
        if self._pages is None:
            raise UnreadableError("there is no API server to ask through", "a cluster", "give --kubeconfig")
        try:
            return await self._pages.pod_page(
                route.namespace, route.pod, route.port, PATH, scheme=route.scheme, limit=LIMIT
            )
        except KubeRefusedError as error:
            raise _refused(error) from error

    async def _direct(self, url: str) -> str:
        wire = Wire(url, self._tls(url))
        try:
            answer = await wire.request("GET", PATH, self._headers, b"", limit=LIMIT)
        except (WireError, ssl.SSLError) as error:
            raise UnreadableError(
                f"the exporter does not answer: {_reason(error)}", f"an exporter at {url}",
                "see that it runs, and that its port can be reached from here",
            ) from error  # fmt: skip
        finally:
            await wire.close()
        if answer.status_code != 200:
            raise UnreadableError(
                f"the exporter refused: HTTP {answer.status_code}", "200 and metrics",
                _REMEDIES.get(answer.status_code, "see its log"),
            )  # fmt: skip
        return answer.text

    def _tls(self, url: str) -> ssl.SSLContext:
        """Made once: reading the system's certificates takes longer than a whole exchange."""
        if self._context is None and url.startswith("https:"):
            self._context = ssl.create_default_context()
        return self._context or _UNUSED


_UNUSED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_REMEDIES: Final = {
    401: "it wants a password: --auth-file",
    403: "it wants other credentials",
    404: "see what listens there",
    503: "it is not ready yet; see its log",
}
_PROXY_TROUBLE: Final = {
    403: ("the right to read through the API server is missing", "give this user `get` on `pods/proxy`"),
    404: ("the exporter's pod is gone, or serves no metrics", "it is looked up again"),
    501: ("this API server can't pass requests on to pods", "run where pods can be reached, with --via direct"),
    503: ("the exporter does not answer the API server", "kgpu status; see that the exporter runs"),
    401: ("the exporter wants a password, which the API server does not pass on", "--via direct with --auth-file"),
}


def _refused(error: KubeRefusedError) -> UnreadableError:
    what, remedy = _PROXY_TROUBLE.get(error.code, (one_line(error.what, 160), error.remedy))
    return UnreadableError(what, "metrics through the API server", remedy)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    number = cause.errno if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) else None
    # The message of asyncio only repeats the address.
    return os.strerror(number).lower() if number and number > 0 else one_line(str(error), 120)


def _silent(deadline: float) -> UnreadableError:
    return UnreadableError(f"no answer within {deadline:g} s", "an exporter that answers", "kgpu status; see its log")


class NamedExporters:
    """Exporters that were named by address; a ``Source``."""

    def __init__(self, urls: Mapping[str, str], exporters: Exporters) -> None:
        self._targets = tuple(NodeRoutes(node=name, routes=(Route(url=url),)) for name, url in urls.items())
        self._exporters = exporters

    async def targets(self) -> tuple[NodeRoutes, ...]:
        return self._targets

    async def look(self, target: NodeRoutes) -> GpuNode:
        return await self._exporters.look(target)

    async def close(self) -> None:
        pass


def parse_address(text: str) -> tuple[str, str]:
    """``[NAME=][http[s]://]HOST[:PORT]`` as name and URL. Raises ConfigError."""
    name, equals, rest = text.rpartition("=")
    url = rest if "://" in rest else f"http://{rest}"
    try:
        parts = urlsplit(url)
        port = parts.port or 9400
    except ValueError:
        parts, port = urlsplit(""), 0
    path = parts.path.rstrip("/")
    plain = not (parts.query or parts.fragment or parts.username or parts.password) and path in {"", PATH}
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain or (equals and not name):
        raise ConfigError(
            f'"{one_line(text, 80)}" is no exporter\'s address', "[NAME=][http[s]://]HOST[:PORT]",
            "correct --exporter; a password belongs into --auth-file",
        )  # fmt: skip
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return one_line(name or (host if port == 9400 else f"{host}:{port}")), f"{parts.scheme}://{host}:{port}"
