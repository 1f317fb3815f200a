"""One watch for several readers: each has its own projection, and hears only of changes of what it keeps.

A Node of a real cluster has some 8 KB; that each of a process's controllers decodes every one of a thousand is most of
what the second controller costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kgpu.base.backoff import Backoff
from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.service import end
from kgpu.kube.informer import Informer, ObjectCopy, Scope, same
from kgpu.kube.port import Change, KubeApi, Object, name_of, namespace_of

_IDENTITY: Final = ("namespace", "name", "resourceVersion")


class SharedInformer:
    """Follows one scope while any of its views does. Make all views before the first one runs."""

    def __init__(
        self, api: KubeApi, scope: Scope, *, clock: Clock | None = None, backoff: Backoff | None = None
    ) -> None:
        self.scope = scope
        self.informer = Informer(
            api, scope, clock=clock, backoff=backoff, project=self._project, on_change=self._changed,
            on_state=self._state_changed,
        )  # fmt: skip
        self._views: list[InformerView] = []
        self._following: asyncio.Task[None] | None = None
        self._followers = 0

    def view(self, project: Callable[[Object], Object]) -> InformerView:
        """A reader with its own projection; the version and the name must stay in it."""
        if self._following is not None:
            raise RuntimeError("a view of an informer that runs already would have missed its list")
        view = InformerView(self, project)
        self._views.append(view)
        return view

    async def follow(self) -> None:
        """Follow until cancelled; the watch ends with the last of those who follow."""
        if self._following is None:
            self._following = asyncio.create_task(self.informer.run(), name=f"watch {self.scope.resource.plural}")
        following = self._following
        self._followers += 1
        try:
            await asyncio.shield(following)
        finally:
            self._followers -= 1
            if not self._followers:
                self._following = None
                await end(following)

    def _project(self, obj: Object) -> Object:
        metadata = {key: obj["metadata"][key] for key in _IDENTITY if key in obj["metadata"]}
        return {"metadata": metadata, "views": [view.project(obj) for view in self._views]}

    def _changed(self, change: Change, obj: Object) -> None:
        for view, part in zip(self._views, obj["views"], strict=True):
            view.take(change, part)

    def _state_changed(self) -> None:
        for view in self._views:
            view.notify()


class InformerView(ObjectCopy):
    """An ``Informer`` for its reader. ``project`` reduces an object to what this reader keeps."""

    def __init__(self, shared: SharedInformer, project: Callable[[Object], Object]) -> None:
        super().__init__()
        self._shared = shared
        self.project = project

    @property
    def synced(self) -> asyncio.Event:
        """Set from the first complete list on, for good."""
        return self._shared.informer.synced

    @property
    def error(self) -> KubeError | None:
        """Why the copy may be out of date; None while the watch stands."""
        return self._shared.informer.error

    async def learn(self, obj: Object) -> None:
        """Store the server's answer to a write of this process, for all readers."""
        await self._shared.informer.learn(obj)

    async def run(self) -> None:
        """Follow until cancelled. API errors never end it."""
        await self._shared.follow()

    def take(self, change: Change, obj: Object) -> None:
        """Store what has come, changed or gone."""
        key = namespace_of(obj), name_of(obj)
        known = self._objects.get(key)
        if change is Change.DELETED:
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if change is Change.DELETED or known is None or not same(known, obj):
            self.notify()

    def notify(self) -> None:
        """Wake whoever waits for news."""
        self._changes.notify()
