"""A core as tests need it: the real kinds and patches, plain rules instead of the real ones, a few namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kgpu.kube.port import EVENTS, NODES, Resource
from kgpu.lab.embedded.core.model import Admission, ApiUser, Call, copied
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.kinds import ApiKind, Kinds, schema_data
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import FieldError, Object, required
from kgpu.lab.embedded.store import CommitLog, ObjectStore

if TYPE_CHECKING:
    from kgpu.lab.embedded.server import ServerParts

ADMIN = ApiUser("admin", ("system:masters",))
CALL = Call(user=ADMIN, manager="test")
NAMESPACES = ("default", "other")


class PlainRules:
    """What every kind has in common: a status apart, a generation that follows the spec, a name that is needed."""

    def schema(self, kind: ApiKind) -> SchemaNode:
        return SchemaNode({"$ref": kind.schema}, schema_data())

    def decode(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        return {**copied(obj), "apiVersion": kind.api_version, "kind": kind.kind}

    def default(self, kind: ApiKind, obj: Object) -> None:
        if kind.plural == "pods":
            obj.setdefault("spec", {}).setdefault("terminationGracePeriodSeconds", 30)

    def prepare(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
        if old is None:
            obj.pop("status", None)
            if kind.plural == "namespaces":
                obj["spec"], obj["status"] = {"finalizers": ["kubernetes"]}, {"phase": "Active"}
            if kind.plural == "pods":
                obj["status"] = {"phase": "Pending"}
            if "status" in kind.subresources:
                obj["metadata"]["generation"] = 1
            return
        taken = {"status": "status", "finalize": "spec"}.get(subresource, "")
        for part in ("spec", "status", "data"):
            if (part == taken) if taken else (part != "status"):
                continue
            if part in old:
                obj[part] = old[part]
            else:
                obj.pop(part, None)
        if kind.plural == "namespaces" and subresource != "finalize":
            obj["spec"] = old["spec"]
        if not subresource and obj.get("spec") != old.get("spec") and "generation" in obj["metadata"]:
            obj["metadata"]["generation"] += 1

    def validate(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        if not kind.stored:
            return []
        return [] if obj["metadata"].get("name") else [required("metadata.name", "name or generateName is required")]


def make_core(*, admission: Sequence[Admission] = (), journal: CommitLog | None = None) -> ApiCore:
    rules = PlainRules()
    core = ApiCore(Kinds(), ObjectStore(journal), lambda _kind: rules, admission)
    for name in NAMESPACES:
        if core.store.get(("", "namespaces"), "", name) is None:
            core.create(kind(core, "namespaces"), "", {"metadata": {"name": name}}, CALL)
    return core


def kind(core: ApiCore, plural: str, group: str = "") -> ApiKind:
    return core.kinds.need(group, plural)


def config_map(name: str, data: dict[str, str] | None = None, **metadata: object) -> Object:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {},
    }  # fmt: skip


def pod(name: str, **spec: object) -> Object:
    containers = [{"name": "c", "image": "registry.invalid/none"}]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec},
    }  # fmt: skip


class Whole:
    """The embedded cluster without its network: the API as its administrator sees it, and what is told by it."""

    def __init__(self, cluster: ServerParts) -> None:
        self.core = cluster.core
        self.roles = cluster.roles
        self.api = LocalApi(cluster.core, ADMIN, manager="test")

    def get(self, resource: Resource, name: str, namespace: str = "default") -> Object | None:
        found = self.core.kinds.need(resource.group, resource.plural)
        stored = self.core.store.get(found.key, namespace if resource.namespaced else "", name)
        return stored.obj if stored is not None else None

    async def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        return list((await self.api.list(resource, namespace=namespace)).items)

    async def create(self, resource: Resource, obj: Object, namespace: str = "default") -> Object:
        metadata = {**({"namespace": namespace} if resource.namespaced else {}), **obj["metadata"]}
        return await self.api.create(resource, {**obj, "metadata": metadata})

    async def node(self, name: str, *, taints: Sequence[Object] = (), **labels: str) -> None:
        """A ready node with four CPUs and two GPUs."""
        sizes = {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "2"}
        names = {"kubernetes.io/hostname": name, **labels}
        await self.create(NODES, {"metadata": {"name": name, "labels": names}, "spec": {"taints": list(taints)}})
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
        status = {"allocatable": sizes, "capacity": sizes, "conditions": [ready]}
        await self.api.patch(NODES, name, {"status": status}, subresource="status")

    async def events(self, name: str) -> list[tuple[str, str, str, int]]:
        """Type, reason, message and count of what was told about the object."""
        return [
            (one["type"], one["reason"], one["message"], one["count"])
            for one in await self.all(EVENTS)
            if one["involvedObject"]["name"] == name
        ]

    async def until(self, true: Callable[[], Any], what: str = "it", deadline: float = 300.0) -> Any:
        """The first true answer of ``true``, which may be a coroutine function; the deadline only ends the endless."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline
        while True:
            found = true()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            if loop.time() > end:
                pytest.fail(f"waited {deadline:.0f} s for {what}")
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def whole(folder: Path, *roles: str, gates: Iterable[str] = ()) -> AsyncIterator[Whole]:
    """The server's parts put together as the server does it, with these of its roles running (all, if none is named).

    ``gates``: feature gates that are off by default.
    """
    from kgpu.base.supervise import Supervisor
    from kgpu.lab.embedded import auth, server, tls

    settings = server.ServerSettings(folder=folder, gates=frozenset(gates))
    auth.write_tokens(settings.tokens, [])
    cluster = server.assemble(settings, 1, tls.ensure(folder / "pki", hosts=()))
    supervisor = Supervisor()
    try:
        for name, role in cluster.roles.items():
            if not roles or name in roles:
                supervisor.start(name, role)
        yield Whole(cluster)
    finally:
        await supervisor.stop(5)
        cluster.core.close()
