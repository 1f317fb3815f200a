"""What is sent: the page as it is, and then the parts of it that have changed, as server-sent events.

A view is made once for all who look at it and may see the same. A viewer has no queue: it is sent what has changed
since what it has, so a slow one gets less often more, and one that takes nothing is dropped by the server. Making pages
takes a small part of the time however large the cluster is.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Final, TypeAlias

from kgpu.overview import render
from kgpu.overview.access import OverviewViewer
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.markup import Markup
from kgpu.overview.model import LabButtons, OverviewPage, OverviewQuery, ViewerRights
from kgpu.overview.node_names import told_to
from kgpu.overview.plan import shown
from kgpu.overview.rights import namespaces_in

MOST_VIEWERS: Final = 20
SOONEST: Final = 2.0  # seconds between two states of a page
LATEST: Final = 10.0
"""Seconds after which a page is made anew though nothing has come: what is old is to be seen as old."""
REST_PER_WORK: Final = 50.0
STILL_HERE: Final = 15.0  # seconds after which a silent stream says so, as proxies close those that say nothing
RETRY_MS: Final = 3000
MOST_ROWS: Final = 100_000
ENDED: Final = b"event: ended\ndata: sign in again\n\n"
_Key: TypeAlias = tuple[OverviewQuery, ViewerRights]


class LiveView:
    """One view: the newest state of each part, and since which version it is so."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(4)
        self._parts: dict[str, tuple[int, Markup]] = {}
        self._outline_since = 0
        self._next = asyncio.Event()
        self.version = 0
        """How often it has changed."""
        self.made_at = -SOONEST
        self.viewers = 0

    @property
    def stamp(self) -> str:
        """Which state this is."""
        return f"{self._name}-{self.version}"

    @property
    def body(self) -> list[Markup]:
        """The parts in order."""
        return [html for _, html in self._parts.values()]

    def put(self, parts: dict[str, Markup]) -> None:
        """Take a new state."""
        version = self.version + 1
        before = self._parts
        after = {
            name: before[name] if name in before and before[name][1] == html else (version, html)
            for name, html in parts.items()
        }
        if list(before) != list(after):
            self._outline_since = version
        elif after == before:
            return
        self._parts, self.version = after, version
        done, self._next = self._next, asyncio.Event()
        done.set()

    def since(self, stamp: str) -> bytes:
        """What has changed since a state, as events; all of it where that is none of this view's."""
        name, _, version = stamp.rpartition("-")
        seen = int(version) if name == self._name and version.isascii() and version.isdigit() else -1
        if seen < self._outline_since:
            return _event("page", self.stamp, "\n".join(self.body))
        changed = [html for at, html in self._parts.values() if at > seen]
        return _event("parts", self.stamp, "\n".join(changed)) if changed else b""

    async def beyond(self, version: int, within: float) -> None:
        """Wait for a newer state, for so many seconds at the most."""
        if self.version == version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._next.wait()


def _event(kind: str, stamp: str, html: str) -> bytes:
    data = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: {kind}\nid: {stamp}\n{data}\n".encode()


class LiveViews:
    """All views of a cluster that are looked at, and a few that were. There is room for ``most`` viewers, of whom
    ``most_of_one`` may be the same person.
    """

    def __init__(
        self, gatherer: ClusterGatherer, lab: Callable[[], LabButtons | None] = lambda: None, *,
        most: int = MOST_VIEWERS, most_of_one: int = MOST_VIEWERS,
    ) -> None:  # fmt: skip
        self._gatherer = gatherer
        self._lab = lab
        self._most = most
        self._most_of_one = most_of_one
        self._views: dict[_Key, LiveView] = {}
        self._viewers: Counter[str] = Counter()
        self._namespaces: frozenset[str] = frozenset()
        self._namespaces_at = -SOONEST

    @property
    def viewers(self) -> int:
        """How many streams there are."""
        return self._viewers.total()

    def full_for(self, viewer: OverviewViewer) -> bool:
        """Whether there is room for no further stream of this person."""
        return self.viewers >= self._most or self._viewers[viewer.name] >= self._most_of_one

    async def view(self, query: OverviewQuery, viewer: OverviewViewer) -> LiveView:
        """The view of a query for somebody with these rights, as it is now."""
        key = query, await viewer.rights(self._known_namespaces())
        view = self._views.pop(key, None) or LiveView()
        self._views[key] = view  # the last that was asked for stays longest
        for old in [old for old, one in self._views.items() if not one.viewers][
            : max(0, len(self._views) - 2 * self._most)
        ]:
            del self._views[old]
        if asyncio.get_running_loop().time() - view.made_at >= (LATEST if view.viewers else SOONEST):
            self._make(key, view)
        return view

    async def page(self, query: OverviewQuery, viewer: OverviewViewer) -> OverviewPage:
        """What somebody is shown now, with all of the table."""
        rights = await viewer.rights(self._known_namespaces())
        gathered = self._gatherer.gathered()
        return shown(told_to(gathered, rights), replace(query, page=1), rights.namespaces, rows=MOST_ROWS)

    async def stream(self, query: OverviewQuery, viewer: OverviewViewer, stamp: str) -> AsyncGenerator[bytes]:
        """What changes after a state, for as long as somebody takes it and is let in. Where his rights have changed it
        goes on with the view of these.
        """
        self._viewers[viewer.name] += 1
        view = LiveView()
        view.viewers = 1
        try:
            with self._gatherer.watching():
                yield f"retry: {RETRY_MS}\n\n".encode()
                while await viewer.stays():
                    before, view = view, await self.view(query, viewer)
                    view.viewers += 1
                    before.viewers -= 1  # not sooner: a view that nobody looks at is not made
                    news, stamp, version = view.since(stamp), view.stamp, view.version
                    yield news or b": still here\n\n"
                    await view.beyond(version, STILL_HERE)
                yield ENDED
        finally:
            view.viewers -= 1
            self._viewers -= Counter({viewer.name: 1})  # without those that have none left

    async def run(self) -> None:
        """Keep the views that are looked at new, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATEST):
                    await self._gatherer.changed.wait()
            self._gatherer.changed.clear()
            began = time.process_time()
            for key, view in list(self._views.items()):
                if view.viewers:
                    self._make(key, view)
                    await asyncio.sleep(0)
            await asyncio.sleep(max(SOONEST, REST_PER_WORK * (time.process_time() - began)))

    def _known_namespaces(self) -> frozenset[str]:
        """Those that anything is told of now; with thousands of GPUs it takes some time to collect them."""
        now = asyncio.get_running_loop().time()
        if now - self._namespaces_at >= SOONEST:
            self._namespaces, self._namespaces_at = namespaces_in(self._gatherer.gathered()), now
        return self._namespaces

    def _make(self, key: _Key, view: LiveView) -> None:
        query, rights = key
        gathered = self._gatherer.gathered()
        view.made_at = gathered.now
        page = shown(told_to(gathered, rights), query, rights.namespaces)
        view.put(render.parts(page, lab=self._lab()))
