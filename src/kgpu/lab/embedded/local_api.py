"""``LocalApi``: the embedded API server in process, as a ``KubeApi``, for its own controllers and scheduler.

Returned objects are shared with the store and must not be changed in place. Each call yields to the loop once, so that
a busy controller does not block other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from kgpu.kube.client import version_numbers
from kgpu.kube.port import (
    EVERYTHING,
    Change,
    KubeRefusedError,
    KubeUnreachableError,
    Listing,
    Object,
    Patch,
    Project,
    Resource,
    Selector,
    ServedResources,
    WatchEvent,
)
from kgpu.kube.refusal import causes_of
from kgpu.lab.embedded.core.model import ApiUser, Call, DeleteOptions
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.core.writing import APPLY
from kgpu.lab.embedded.kinds import METRICS_GROUP, ApiKind, discovery_data
from kgpu.lab.embedded.status import ApiError


class PodUsage(Protocol):
    """The metrics API's list of pods; ``usage.UsageApi``."""

    async def pod_metrics(self, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        """PodMetrics of the pods that are selected. Raises ApiError."""
        ...


class LocalApi:
    """``core`` as one user. ``manager`` is the field manager of writes that name none; ``usage`` the metrics API."""

    def __init__(self, core: ApiCore, user: ApiUser, *, manager: str = "", usage: PodUsage | None = None) -> None:
        self._core = core
        self._usage = usage
        self._user = user
        self._manager = manager or user.name.rpartition(":")[2]
        self._closed = asyncio.Event()

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        async with self._answering("get", resource) as kind:
            try:
                return self._core.get(kind, _space(kind, namespace), name).obj
            except ApiError as error:
                if error.code == 404:
                    return None
                raise

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        if resource.group == METRICS_GROUP and self._usage is not None:
            return Listing(tuple(await self._usage.pod_metrics(namespace, *_texts(selector))), "")
        async with self._answering("list", resource) as kind:
            labels, fields = _texts(selector)
            page = self._core.list(kind, _space(kind, namespace), labels=labels, fields=fields)
            return Listing(tuple(project(stored.obj) if project else stored.obj for stored in page.items), page.version)

    async def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        async with self._answering("watch", resource) as kind:
            labels, fields = _texts(selector)
            watch = self._core.watch(
                kind, _space(kind, namespace), labels=labels, fields=fields, version=resource_version, bookmarks=True
            )
        with contextlib.closing(watch):
            yield WatchEvent(Change.BOOKMARK, {"metadata": {"resourceVersion": resource_version}})
            async for item in watch:
                yield WatchEvent(Change(item.type), item.stored.obj)

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        async with self._answering("apply", resource) as kind:
            metadata = obj.get("metadata") or {}
            body = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
            namespace, name = _space(kind, str(metadata.get("namespace") or "")), str(metadata["name"])
            call = Call(user=self._user, manager=manager, force=force)
            return self._core.patch(kind, namespace, name, APPLY, body, call, subresource=subresource)[0].obj

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        async with self._answering("patch", resource) as api_kind:
            space = _space(api_kind, namespace)
            return self._core.patch(api_kind, space, name, str(kind), change, self._call(), subresource=subresource)[
                0
            ].obj

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        async with self._answering("create", resource) as kind:
            metadata = obj.get("metadata") or {}
            namespace = _space(kind, str(metadata.get("namespace") or ""))
            if subresource:
                name = str(metadata["name"])
                return self._core.create(kind, namespace, obj, self._call(), name=name, subresource=subresource).obj
            body = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
            return self._core.create(kind, namespace, body, self._call()).obj

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        async with self._answering("delete", resource) as kind:
            options = DeleteOptions(grace=grace, uid=uid, propagation=propagation)
            try:
                self._core.delete(kind, _space(kind, namespace), name, options, self._call())
            except ApiError as error:
                if error.code == 404:
                    return False
                raise
            return True

    async def discover(self) -> ServedResources:
        if self._closed.is_set():
            raise KubeUnreachableError("no answer to discover", "an open API", "it was closed")
        await asyncio.sleep(0)
        resources = {kind.key: kind.resource for kind in self._core.kinds if kind.stored}
        return ServedResources(version_numbers(str(discovery_data()["version"])), tuple(resources.values()))

    async def close(self) -> None:
        self._closed.set()

    def _call(self) -> Call:
        return Call(user=self._user, manager=self._manager, validation="Ignore")

    @contextlib.asynccontextmanager
    async def _answering(self, verb: str, resource: Resource) -> AsyncIterator[ApiKind]:
        await asyncio.sleep(0)
        if self._closed.is_set():
            raise KubeUnreachableError(f"no answer to {verb} {resource.plural}", "an open API", "it was closed")
        with _translated(verb, resource):
            kind = self._core.kinds.find(resource.group, resource.version, resource.plural)
            if kind is None:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            yield kind


@contextlib.contextmanager
def _translated(verb: str, resource: Resource) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise KubeRefusedError(
            f"the API server refused {verb} {resource.plural}: {error.message} ({error.code})",
            "a request that it accepts",
            "see the message",
            code=error.code,
            reason=error.reason,
            message=error.message,
            causes=causes_of(error.details),
        ) from error


def _space(kind: ApiKind, namespace: str) -> str:
    return namespace if kind.namespaced else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _texts(selector: Selector) -> tuple[str, str]:
    labels = ",".join([*(f"{name}={value}" for name, value in selector.labels), *selector.has])
    return labels, ",".join(f"{name}={_escaped(value)}" for name, value in selector.fields)
