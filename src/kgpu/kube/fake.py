"""An API server in memory for tests and trials: versions, watches with bookmarks, server-side apply, outages.

It keeps what matters of the real one's behaviour: every change has a new resourceVersion and nothing else does, an
apply that changes nothing changes nothing, fields that a manager stops naming go away unless another manager has them,
and a watch from a version that is too old is answered with 410. Deleting waits for finalizers, and for the grace time
of pods on nodes. It does not validate objects.
"""

from __future__ import annotations

import asyncio
import bisect
import datetime as dt
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.kube.port import (
    EVERYTHING,
    PODS,
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
    name_of,
    namespace_of,
)

Path = tuple[str, ...]
_IDENTITY: Final = frozenset(
    {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")}
)
# Lists that merge by a key instead of being replaced whole, as the API's schemas say.
_LIST_KEYS: Final = {"conditions": "type", "ownerReferences": "uid", "podIPs": "ip"}
_REPLACE: Final = {"$patch": "replace"}
_FINALIZERS: Final = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def _version_of(logged: Logged) -> int:
    return logged.version


def _copied(value: Any) -> Any:
    """A deep copy of JSON data, several times faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: one if type(one) is str else _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(one) for one in value]
    return value


@dataclass(slots=True)
class FakeObject:
    """One object and which manager has applied which leaf fields."""

    obj: Object
    managers: dict[tuple[str, str], set[Path]] = field(default_factory=dict)
    """The fields that were applied, by manager and subresource."""
    times: dict[tuple[str, str], str] = field(default_factory=dict)
    """When the fields of each manager changed last."""

    def shown(self) -> Object:
        """The object as a client gets it, with its managedFields."""
        obj: Object = _copied(self.obj)
        if self.managers:
            obj["metadata"]["managedFields"] = [
                {**_managed_entry(*key, paths), **({"time": self.times[key]} if key in self.times else {})}
                for key, paths in self.managers.items()
            ]
        return obj


@dataclass(frozen=True, slots=True)
class Logged:
    """One change, for watches that come later."""

    version: int
    resource: Resource
    change: Change
    obj: Object


class FakeApi:
    """A ``KubeApi`` without a server, with the means to make it fail."""

    def __init__(self) -> None:
        self._objects: dict[tuple[Resource, str, str], FakeObject] = {}
        self._versions = itertools.count(1)
        self._names = itertools.count(1)
        self._version = 0
        self._log: list[Logged] = []
        self._oldest = 0
        self._wakers: set[asyncio.Event] = set()
        self._drops = 0
        self.down = False
        self.refuse: dict[tuple[str, str], int] = {}
        """Calls to answer with an HTTP status: ``{("apply", "nodes"): 403}``."""
        self.namespace = "default"
        """That of the kubeconfig's context, as the real client has it."""
        self.version = (1, 35)
        self.served: set[Resource] = set()
        """Kinds that discovery shows beside those of which there are objects."""
        self.unserved: set[Resource] = set()
        """Kinds whose CRD is not there: their lists are answered with 404."""
        self.pages: dict[tuple[str, str], str] = {}
        """What pods serve, by (namespace, pod)."""
        self.rights: set[tuple[str, str]] = set()
        """What access reviews say is allowed: user, and what as ``patch nodes``."""
        self.calls: list[tuple[str, str, str]] = []
        """Every call that was made, as (verb, plural, name)."""

    # What tests do to it

    def put(self, resource: Resource, obj: Object) -> Object:
        """Write an object as another client would, whatever was there."""
        stored = self._objects.get(_key(resource, namespace_of(obj), name_of(obj)))
        body = _copied(obj)
        body["metadata"].pop("managedFields", None)
        if stored is None:
            return self._write(resource, FakeObject(body), Change.ADDED)
        body["metadata"] = {**stored.obj["metadata"], **body["metadata"]}
        before, stored.obj = stored.obj, body
        _lost(stored, before)
        return self._write(resource, stored, Change.MODIFIED)

    def expire(self) -> None:
        """Forget the history: a watch from any version up to now is told 410."""
        self._log.clear()
        self._oldest = self._version
        self.drop_watches()

    def drop_watches(self) -> None:
        """Cut the connections of all watches."""
        self._drops += 1
        self._wake()

    def set_down(self, down: bool) -> None:
        """Begin or end an outage; watches break when it begins."""
        self.down = down
        self._wake()

    # KubeApi

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        await self._enter("get", resource, name)
        stored = self._objects.get(_key(resource, namespace, name))
        return stored.shown() if stored else None

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        await self._enter("list", resource)
        self._check_served("list", resource)
        items = [
            project(stored.shown()) if project else stored.shown()
            for (kind, _, _), stored in sorted(self._objects.items(), key=lambda item: item[0][1:])
            if kind == resource and _selected(stored.obj, namespace, selector)
        ]
        return Listing(tuple(items), str(self._version))

    async def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        await self._enter("watch", resource)
        self._check_served("watch", resource)
        last_version, drops = int(resource_version), self._drops
        if last_version < self._oldest:
            raise _refused("watch", resource, 410, "Expired", "too old resource version")
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            yield WatchEvent(Change.BOOKMARK, {"metadata": {"resourceVersion": resource_version}})
            while True:
                waker.clear()
                for logged in self._log[bisect.bisect_right(self._log, last_version, key=_version_of) :]:
                    last_version = logged.version
                    if logged.resource == resource and _selected(logged.obj, namespace, selector):
                        yield WatchEvent(logged.change, _copied(logged.obj))
                if self.down or drops != self._drops:
                    raise _unreachable("watch")
                await waker.wait()
        finally:
            self._wakers.discard(waker)

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        await self._enter("apply", resource, name_of(obj))
        self._check_served("apply", resource)
        key = _key(resource, namespace_of(obj), name_of(obj))
        stored = self._objects.get(key)
        wanted = {path: value for path, value in _leaves(obj) if path not in _IDENTITY}
        uid = (obj.get("metadata") or {}).get("uid")
        if uid and (stored is None or stored.obj["metadata"]["uid"] != uid):
            raise _refused("apply", resource, 409, "Conflict", "uid mismatch")
        if stored is None:
            if subresource:
                raise _refused("apply", resource, 404, "NotFound", f'"{name_of(obj)}" not found')
            body = {**_copied(obj), "apiVersion": resource.api_version, "kind": resource.kind}
            return self._write(resource, FakeObject(body, {(manager, ""): set(wanted)}), Change.ADDED)
        _check_version("apply", resource, obj, stored.obj)
        before = _copied(stored.obj)
        me = (manager, subresource)
        if not force:
            _check_owners(resource, stored, me, wanted)
        owned = stored.managers.get(me, set())
        others = {path for who, paths in stored.managers.items() if who != me for path in paths}
        for path in owned - set(wanted) - others:
            _remove(stored.obj, path)
        for path, value in wanted.items():
            if _at(stored.obj, path) != value:
                _disown(stored, path, but=me)
            _set(stored.obj, path, _copied(value))
        managed, stored.managers[me] = stored.managers.get(me), set(wanted)
        if managed != stored.managers[me]:
            stored.times[me] = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if not wanted:
            del stored.managers[me]
        if managed != stored.managers.get(me) and stored.obj == before:
            return self._write(resource, stored, Change.MODIFIED)
        return self._changed(resource, stored, before)

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        await self._enter("patch", resource, name)
        stored = self._objects.get(_key(resource, namespace, name))
        if stored is None:
            raise _refused("patch", resource, 404, "NotFound", f'"{name}" not found')
        _check_version("patch", resource, change, stored.obj)
        before = _copied(stored.obj)
        change = {key: value for key, value in change.items() if (key == "status") == (subresource == "status")}
        merged = _merged(stored.obj, change, by_key=kind is Patch.STRATEGIC)
        merged["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        stored.obj = merged
        _lost(stored, before)
        return self._changed(resource, stored, before)

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        await self._enter("create", resource, name_of(obj))
        if subresource:
            return await self._create_sub(resource, obj, subresource)
        if resource.plural == "subjectaccessreviews":
            attributes = obj["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
            return {**obj, "status": {"allowed": (obj["spec"]["user"], f"{attributes['verb']} {what}") in self.rights}}
        if _key(resource, namespace_of(obj), name_of(obj)) in self._objects:
            raise _refused("create", resource, 409, "AlreadyExists", f'"{name_of(obj)}" already exists')
        body = {**_copied(obj), "apiVersion": resource.api_version, "kind": resource.kind}
        prefix = body.get("metadata", {}).get("generateName")
        if prefix and not name_of(body):
            body["metadata"]["name"] = f"{prefix}{next(self._names):05d}"
        return self._write(resource, FakeObject(body), Change.ADDED)

    async def try_create(self, resource: Resource, obj: Object) -> Object:
        await self._enter("create", resource, name_of(obj))
        if _key(resource, namespace_of(obj), name_of(obj)) in self._objects:
            raise _refused("create", resource, 409, "AlreadyExists", f'"{name_of(obj)}" already exists')
        return {**_copied(obj), "apiVersion": resource.api_version, "kind": resource.kind}

    async def _create_sub(self, resource: Resource, obj: Object, subresource: str) -> Object:
        stored = self._objects.get(_key(resource, namespace_of(obj), name_of(obj)))
        if stored is None:
            raise _refused("create", resource, 404, "NotFound", f'"{name_of(obj)}" not found')
        if subresource == "binding":
            spec = stored.obj.setdefault("spec", {})
            if spec.get("nodeName"):
                raise _refused(
                    "create", resource, 409, "Conflict", f"it is assigned to node {spec['nodeName']} already"
                )
            spec["nodeName"] = obj["target"]["name"]
            self._write(resource, stored, Change.MODIFIED)
        elif subresource == "eviction":
            await self.delete(resource, name_of(obj), namespace=namespace_of(obj))
        else:
            raise _refused("create", resource, 404, "NotFound", f"the fake has no {subresource}")
        return {"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 201}

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        await self._enter("delete", resource, name)
        stored = self._objects.get(_key(resource, namespace, name))
        if stored is None:
            return False
        metadata = stored.obj["metadata"]
        if uid and metadata["uid"] != uid:
            raise _refused("delete", resource, 409, "Conflict", "uid mismatch")
        finalizer = _FINALIZERS.get(propagation)
        if finalizer and finalizer not in metadata.get("finalizers", ()):
            metadata.setdefault("finalizers", []).append(finalizer)
        seconds = _grace(resource, stored.obj, grace)
        if not seconds and not metadata.get("finalizers"):
            self._drop(resource, stored)
        elif "deletionTimestamp" not in metadata or seconds < metadata.get("deletionGracePeriodSeconds", 0):
            now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
            metadata["deletionTimestamp"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata["deletionGracePeriodSeconds"] = seconds
            self._write(resource, stored, Change.MODIFIED)
        return True

    def _changed(self, resource: Resource, stored: FakeObject, before: Object) -> Object:
        metadata = stored.obj["metadata"]
        if "deletionTimestamp" in metadata and before["metadata"].get("finalizers") and not metadata.get("finalizers"):
            self._drop(resource, stored)  # the last finalizer is gone
            return stored.shown()
        return self._write(resource, stored, Change.MODIFIED) if stored.obj != before else stored.shown()

    def _drop(self, resource: Resource, stored: FakeObject) -> None:
        del self._objects[_key(resource, namespace_of(stored.obj), name_of(stored.obj))]
        self._write(resource, stored, Change.DELETED)

    async def discover(self) -> ServedResources:
        await self._enter("discover", Resource("", "v1", "", ""))
        known = dict.fromkeys((*self.served, *(resource for resource, _, _ in self._objects)))
        return ServedResources(self.version, tuple(kind for kind in known if kind not in self.unserved))

    async def pod_page(
        self, namespace: str, pod: str, port: int, path: str, *, scheme: str = "http", limit: int = 8 << 20,
        query: dict[str, str] | None = None,
    ) -> str:  # fmt: skip
        del port, path, scheme, limit, query
        await self._enter("proxy", PODS, pod)
        if (namespace, pod) not in self.pages:
            raise _refused("proxy", PODS, 503, "ServiceUnavailable", "error trying to reach service")
        return self.pages[namespace, pod]

    async def close(self) -> None:
        self.set_down(True)

    def _check_served(self, verb: str, resource: Resource) -> None:
        if resource in self.unserved:
            message = "the server could not find the requested resource"
            raise _refused(verb, resource, 404, "NotFound", message)

    async def _enter(self, verb: str, resource: Resource, name: str = "") -> None:
        await asyncio.sleep(0)
        self.calls.append((verb, resource.plural, name))
        if self.down:
            raise _unreachable(verb)
        code = self.refuse.get((verb, resource.plural))
        if code is not None:
            raise _refused(verb, resource, code, "Forbidden" if code == 403 else "", "refused by the test")

    def _write(self, resource: Resource, stored: FakeObject, change: Change) -> Object:
        self._version = next(self._versions)
        metadata = stored.obj.setdefault("metadata", {})
        metadata.setdefault("uid", str(uuid.uuid5(uuid.NAMESPACE_OID, f"{resource.plural}/{self._version}")))
        metadata["resourceVersion"] = str(self._version)
        if change is not Change.DELETED:
            self._objects[_key(resource, namespace_of(stored.obj), name_of(stored.obj))] = stored
        self._log.append(Logged(self._version, resource, change, stored.shown()))
        self._wake()
        return stored.shown()

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()


def _managed_entry(manager: str, subresource: str, paths: set[Path]) -> Object:
    fields: Object = {}
    for path in sorted(paths):
        holder = fields
        for part in path:
            holder = holder.setdefault(f"f:{part}" if not part.startswith("[") else f"k:{part}", {})
    entry = {"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}
    return {**entry, "subresource": subresource} if subresource else entry


def _key(resource: Resource, namespace: str, name: str) -> tuple[Resource, str, str]:
    return (resource, namespace if resource.namespaced else "", name)


def _grace(resource: Resource, obj: Object, seconds: int | None) -> int:
    """Seconds until an object may go: pods on a node that have not ended get theirs, everything else none."""
    spec = obj.get("spec") or {}
    phase = (obj.get("status") or {}).get("phase")
    if resource != PODS or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30)) if seconds is None else seconds


def _selected(obj: Object, namespace: str, selector: Selector) -> bool:
    labels = (obj.get("metadata") or {}).get("labels") or {}
    return (
        namespace in ("", namespace_of(obj))
        and all(_field(obj, path) == value for path, value in selector.fields)
        and all(labels.get(name) == value for name, value in selector.labels)
        and all(name in labels for name in selector.has)
    )


def _field(obj: Object, path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf with its path. Items of keyed lists have paths of their own; other lists are leaves."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    elif isinstance(value, list) and value and path and path[-1] in _LIST_KEYS:
        for item in value:
            yield (*path, f"[{item[_LIST_KEYS[path[-1]]]}]"), item
    else:
        yield path, value


def _walk(obj: Any, path: Path, *, make: bool) -> Any:
    for part in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.setdefault(part, {}) if make else obj.get(part)
    return obj


def _set(obj: Object, path: Path, value: Any) -> None:
    *parents, last = path
    if last.startswith("[") and parents:
        *above, name = parents
        _upsert(_walk(obj, tuple(above), make=True).setdefault(name, []), _LIST_KEYS[name], value)
    elif value == {}:
        _walk(obj, path, make=True)  # an empty map claims nothing of what others have put into it
    else:
        _walk(obj, tuple(parents), make=True)[last] = value


def _remove(obj: Object, path: Path) -> None:
    *parents, last = path
    holder = _walk(obj, tuple(parents), make=False)
    if isinstance(holder, dict):
        holder.pop(last, None)
    elif isinstance(holder, list):
        key = _LIST_KEYS[parents[-1]]
        holder[:] = [item for item in holder if f"[{item.get(key)}]" != last]


def _upsert(items: list[Any], key: str, value: Any) -> None:
    for position, item in enumerate(items):
        if item.get(key) == value.get(key):
            items[position] = {**item, **value}
            return
    items.append(value)


def _at(obj: Object, path: Path) -> Any:
    """The value at a path, None if there is none; items of keyed lists are found by their key."""
    value: Any = obj
    for position, part in enumerate(path):
        if part.startswith("[") and isinstance(value, list):
            key = _LIST_KEYS[path[position - 1]]
            value = next((item for item in value if f"[{item.get(key)}]" == part), None)
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _disown(stored: FakeObject, path: Path, *, but: tuple[str, str] | None = None) -> None:
    """Take the field from every manager that applied it, since another one has changed it."""
    for who, paths in stored.managers.items():
        if who != but:
            paths.discard(path)


def _lost(stored: FakeObject, before: Object) -> None:
    """After a write that is no apply: managers lose the fields whose values changed."""
    for paths in stored.managers.values():
        for path in [path for path in paths if _at(before, path) != _at(stored.obj, path)]:
            paths.discard(path)
    stored.managers = {who: paths for who, paths in stored.managers.items() if paths}


def _check_version(verb: str, resource: Resource, change: Object, live: Object) -> None:
    version = (change.get("metadata") or {}).get("resourceVersion")
    if version and version != live["metadata"]["resourceVersion"]:
        raise _refused(verb, resource, 409, "Conflict", "the object has been modified")


def _check_owners(resource: Resource, stored: FakeObject, me: tuple[str, str], wanted: dict[Path, Any]) -> None:
    for who, paths in stored.managers.items():
        for path in paths & wanted.keys() if who != me else ():
            if _at(stored.obj, path) != wanted[path]:
                raise _refused("apply", resource, 409, "Conflict", f"conflict with {who[0]}: {'.'.join(path)}")


def _merged(old: Any, change: Any, *, by_key: bool, name: str = "") -> Any:
    """A merge patch applied: null removes, maps merge, the rest replaces; strategic patches merge keyed lists, unless
    an item of theirs says ``$patch: replace``.
    """
    if isinstance(change, list) and by_key and name in _LIST_KEYS:
        replaces = _REPLACE in change
        items = _copied(old) if isinstance(old, list) and not replaces else []
        for item in change:
            if item != _REPLACE:
                _upsert(items, _LIST_KEYS[name], _copied(item))
        return items
    if not isinstance(change, dict):
        return _copied(change)
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value, by_key=by_key, name=key)
    return result


def _refused(verb: str, resource: Resource, code: int, reason: str, message: str) -> KubeRefusedError:
    what = f"the API server refused {verb} {resource.plural}: {message} ({code})"
    return KubeRefusedError(
        what, "a request that it accepts", "see the test", code=code, reason=reason, message=message
    )


def _unreachable(verb: str) -> KubeUnreachableError:
    return KubeUnreachableError(f"no answer from the API server to {verb}", "an answer", "wait for it")
