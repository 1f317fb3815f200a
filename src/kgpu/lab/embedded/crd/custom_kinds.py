"""Custom kinds: follows CRD objects, serves the kinds that they define, and holds the objects to their schemas.

``CustomKinds`` is wired once: ``rules_for`` picks the TypeRules of any kind, ``attach`` follows the CRDs of a core.
Work after a commit is scheduled on the running loop; without one it waits for ``settle``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.core.model import ApiUser, Call, DeleteOptions, StoredObject, TypeRules, copied
from kgpu.lab.embedded.crd import conditions, defaulting, pruning
from kgpu.lab.embedded.crd.definition import DefinitionRules
from kgpu.lab.embedded.crd.objects import CustomRules, at_path
from kgpu.lab.embedded.crd.version import Version, priority
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import ApiError, Object

GROUP: Final = "apiextensions.k8s.io"
PLURAL: Final = "customresourcedefinitions"
_KEY: Final = (GROUP, PLURAL)
_SYSTEM: Final = ApiUser("system:apiserver", ("system:masters", "system:authenticated"))
_BATCH: Final = 200


class CustomKinds:
    """The CRDs of one API server. ``rules`` are the TypeRules of their objects."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.rules = CustomRules(self.version)
        self._versions: dict[tuple[str, str, str], Version] = {}
        self._served: dict[str, tuple[str, str]] = {}  # a CRD's name: the group and plural that are registered for it
        self._core: Any = None
        self._todo: list[Callable[[], None]] = []

    def rules_for(self, builtin: TypeRules) -> Callable[[ApiKind], TypeRules]:
        """The ``rules`` of an ApiCore: ``builtin`` for built-in kinds, with further checks for CRDs."""
        definitions = DefinitionRules(builtin)

        def pick(kind: ApiKind) -> TypeRules:
            if kind.custom:
                return self.rules
            return definitions if kind.key == _KEY else builtin

        return pick

    def version(self, kind: ApiKind) -> Version:
        """The served version of a custom kind. Raises ApiError 404 for one that is no longer served."""
        version = self._versions.get((kind.group, kind.version, kind.plural))
        if version is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource", {})
        return version

    def attach(self, core: Any) -> None:
        """Register the present CRDs and follow all from now on."""
        self._core = core
        core.on_commit(self._committed)
        for stored in core.list(self.kinds.need(*_KEY)).items:
            self._follow(stored.obj)

    def printer_columns(self, kind: ApiKind) -> list[Object]:
        """``additionalPrinterColumns`` of that version, the default Age column where it has none."""
        return self.version(kind).columns

    def deprecation(self, kind: ApiKind) -> str:
        """The warning of a deprecated version, else ""."""
        return self.version(kind).deprecation

    def selectable_fields(self, kind: ApiKind) -> tuple[str, ...]:
        """Field selectors besides metadata.name and metadata.namespace, as ``spec.color``."""
        return self.version(kind).selectable

    def convert(self, kind: ApiKind, obj: Object) -> Object:
        """A copy in that version, pruned and defaulted; conversion is None, so only apiVersion changes."""
        copy = copied(obj)
        meta = copy["metadata"]
        shape = self.version(kind).shape
        pruning.prune(copy, shape)
        defaulting.drop_nulls(copy, shape)
        defaulting.fill(copy, shape)
        return {**copy, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}

    def scale_of(self, kind: ApiKind, obj: Object) -> Object:
        """The autoscaling/v1 Scale of an object of a kind with the scale subresource."""
        paths = self.version(kind).scale
        assert paths is not None, kind
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        status: Object = {"replicas": at_path(obj, paths["statusReplicasPath"]) or 0}
        selector = at_path(obj, paths["labelSelectorPath"]) if paths.get("labelSelectorPath") else ""
        if selector:
            status["selector"] = selector
        replicas = at_path(obj, paths["specReplicasPath"]) or 0
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {name: obj["metadata"][name] for name in kept if name in obj["metadata"]},
            "spec": {"replicas": replicas} if replicas else {},
            "status": status,
        }

    def with_scale(self, kind: ApiKind, obj: Object, scale: Object) -> Object:
        """A copy of the object with the replicas of the Scale, and its resourceVersion as a precondition."""
        paths = self.version(kind).scale
        assert paths is not None, kind
        copy = copied(obj)
        *above, last = paths["specReplicasPath"].removeprefix(".").split(".")
        place = copy
        for name in above:
            place = place.setdefault(name, {})
        place[last] = (scale.get("spec") or {}).get("replicas", 0)
        version = (scale.get("metadata") or {}).get("resourceVersion")
        if version:
            copy["metadata"]["resourceVersion"] = version
        return copy

    def settle(self) -> None:
        """Run the work that waits for a loop; for callers without one."""
        while self._todo:
            todo, self._todo = self._todo, []
            for action in todo:
                action()

    def _later(self, action: Callable[[], None]) -> None:
        try:
            asyncio.get_running_loop().call_soon(action)
        except RuntimeError:
            self._todo.append(action)

    def _committed(self, key: tuple[str, str], change: str, stored: StoredObject, _old: StoredObject | None) -> None:
        if tuple(key)[:2] == _KEY:
            if change == "DELETED":
                self._later(lambda: self._gone(stored.obj))
            else:
                self._follow(stored.obj)
        elif tuple(key)[:2] in self._served.values() and change == "DELETED":
            # Perhaps the last object that a deleted CRD waits for.
            name = f"{key[1]}.{key[0]}"
            self._later(lambda: self._finish(name))

    def _follow(self, definition: Object) -> None:
        self._register(definition)
        name = definition["metadata"]["name"]
        if definition["metadata"].get("deletionTimestamp"):
            self._later(lambda: self._finish(name))
        elif conditions.update(definition, self._others(definition)) is not None:
            self._later(lambda: self._write_status(name))

    def _others(self, definition: Object) -> list[Object]:
        group, own = definition["spec"]["group"], definition["metadata"]["name"]
        definitions = (stored.obj for stored in self._core.list(self.kinds.need(*_KEY)).items)
        return [other for other in definitions if other["spec"]["group"] == group and other["metadata"]["name"] != own]

    def _register(self, definition: Object) -> None:
        spec, name = definition["spec"], definition["metadata"]["name"]
        key = (spec["group"], spec["names"]["plural"])
        versions = []
        if conditions.is_true(definition, "Established"):
            served = (raw for raw in spec["versions"] if raw.get("served"))
            versions = sorted(
                (Version(definition, version) for version in served), key=lambda version: priority(version.name)
            )
        if not versions and name not in self._served:
            return
        self._replace(key, [self._kept(version) for version in versions])
        self._served[name] = key

    def _replace(self, key: tuple[str, str], rows: list[Version]) -> None:
        before = [self._versions.pop(path) for path in list(self._versions) if (path[0], path[2]) == key]
        for row in rows:
            self._versions[row.kind.group, row.kind.version, row.kind.plural] = row
        self.kinds.replace_custom(*key, [row.kind for row in rows])
        if before and {id(version) for version in before} != {id(version) for version in rows}:
            self._core.end_watches(before[0].kind)

    def _kept(self, version: Version) -> Version:
        """The registered version if nothing about it has changed, so that its schema stays ready."""
        kind = version.kind
        known = self._versions.get((kind.group, kind.version, kind.plural))
        if known is None or known.raw != version.raw or known.kind != kind:
            return version
        known.definition = version.definition
        return known

    def _write_status(self, name: str) -> None:
        kind = self.kinds.need(*_KEY)
        try:
            current = self._core.get(kind, "", name).obj
        except ApiError:
            return
        changed = conditions.update(current, self._others(current))
        if changed is not None:
            self._write(kind, name, changed)

    def _write(self, kind: ApiKind, name: str, changed: Object, subresource: str = "status") -> None:
        try:
            self._core.update(
                kind, "", name, changed, Call(user=_SYSTEM, manager="kube-apiserver"), subresource=subresource
            )
        except ApiError as error:
            # Changed in the meantime: the commit of that change has scheduled another check.
            if error.code not in {404, 409}:
                raise

    def _finish(self, name: str) -> None:
        """Delete the objects of a CRD that is being deleted, then remove its finalizer."""
        kind = self.kinds.need(*_KEY)
        try:
            current = self._core.get(kind, "", name).obj
        except ApiError:
            return
        meta = current["metadata"]
        if not meta.get("deletionTimestamp") or conditions.FINALIZER not in (meta.get("finalizers") or ()):
            return
        if not self._empty(current):
            return
        changed = copied(current)
        changed["metadata"]["finalizers"].remove(conditions.FINALIZER)
        self._write(kind, name, changed, subresource="")

    def _empty(self, definition: Object) -> bool:
        """Delete a batch of the objects; True when there are none left."""
        spec = definition["spec"]
        kind = self.kinds.stored(spec["group"], spec["names"]["plural"])
        if kind is None or not kind.custom:
            return True
        page = self._core.list(kind, "", limit=_BATCH)
        for stored in page.items:
            if not stored.obj["metadata"].get("deletionTimestamp"):
                try:
                    self._core.delete(kind, stored.namespace, stored.name, DeleteOptions(), Call(user=_SYSTEM))
                except ApiError as error:
                    if error.code not in {404, 409}:
                        raise
        return not self._core.list(kind, "", limit=1).items

    def _gone(self, definition: Object) -> None:
        """After a CRD is gone; if its finalizer was removed by hand, its objects are still there."""
        self._empty(definition)
        name = definition["metadata"]["name"]
        key = self._served.pop(name, None)
        if key is not None:
            self._replace(key, [])
        for other in self._others(definition):
            self._follow(other)
