"""Objects of the API server that are followed in the background: this node's pods, and its ResourceSlices in the newest
version that the server has.

A kind that is not served in any version is tried again after a while, and so is one that is no longer served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.service import running
from kgpu.kube.informer import Informer, Key, Scope
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Project, Resource, Selector

AGAIN_SECONDS: Final = 60.0
_NOTHING: Final[Mapping[Key, Object]] = {}


class FollowedObjects:
    """Follows the objects of the first of ``versions`` that is served, while ``run`` runs."""

    def __init__(
        self,
        api: KubeApi,
        versions: tuple[Resource, ...],
        selector: Selector,
        *,
        project: Project,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._versions = versions
        self._selector = selector
        self._project = project
        self._clock = clock or SystemClock()
        self._informer: Informer | None = None
        self.kind: Resource | None = None
        """The version that the server serves; None until that is known."""
        self._error: KubeError | None = None
        self.known = asyncio.Event()
        """Set once there are objects, or an error."""

    @property
    def objects(self) -> Mapping[Key, Object]:
        """The last known objects; none before the first list."""
        return self._informer.objects if self._informer is not None else _NOTHING

    @property
    def error(self) -> KubeError | None:
        """Why the objects may be out of date."""
        return self._error or (self._informer.error if self._informer is not None else None)

    async def run(self, news: Callable[[], None]) -> None:
        """Follow until cancelled; ``news`` is called when objects or ``error`` have changed."""
        while True:
            try:
                kind = await self._served()
            except KubeError as error:
                self._error = error
            else:
                self._error, self.kind = None, kind
                self._informer = Informer(
                    self._api, Scope(kind, selector=self._selector), clock=self._clock, project=self._project
                )
                await self._follow(self._informer, news)
                self._error = self._informer.error
            self.known.set()
            news()
            await self._clock.sleep(AGAIN_SECONDS)

    async def _served(self) -> Resource:
        """The first version that is served. The last one is not tried: its informer reports the error."""
        for kind in self._versions[:-1]:
            try:
                await self._api.list(kind, selector=self._selector, project=self._project)
            except KubeRefusedError as error:
                if error.code != 404:
                    raise
            else:
                return kind
        return self._versions[-1]

    async def _follow(self, informer: Informer, news: Callable[[], None]) -> None:
        """Follow until the server says that there is no such kind."""
        async with running(informer=informer.run()):
            revision = informer.revision
            while not (isinstance(informer.error, KubeRefusedError) and informer.error.code == 404):
                revision = await informer.changed(revision)
                self.known.set()
                news()
