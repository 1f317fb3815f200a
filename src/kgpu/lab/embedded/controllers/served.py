"""Which kinds the API serves: the built-in ones, and those of the CustomResourceDefinitions that are established.

The CRDs are followed through the API itself, so that no other wiring is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kgpu.kube.port import Object, Resource, name_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kgpu.lab.embedded.controllers.meta import condition, spec_of
from kgpu.lab.embedded.kinds import builtin

# Served in two groups; the objects are the same as in the other one.
_TWICE = frozenset({("events.k8s.io", "events")})


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind in the version that the controllers use, and its verbs."""

    resource: Resource
    verbs: frozenset[str]
    custom: bool = False


def built_in() -> list[ServedKind]:
    """One row for each stored built-in kind."""
    kinds: dict[tuple[str, str], ServedKind] = {}
    for kind in builtin():
        if kind.stored and kind.key not in kinds and kind.key not in _TWICE:
            kinds[kind.key] = ServedKind(kind.resource, frozenset(kind.verbs))
    return list(kinds.values())


def of_crd(crd: Object) -> ServedKind | None:
    """The kind of an established CRD, in its storage version if that is served; None while it serves nothing."""
    spec = spec_of(crd)
    established = condition(crd, "Established")
    versions = [version for version in spec.get("versions") or () if version.get("served")]
    if not versions or established is None or established.get("status") != "True":
        return None
    version = next((candidate for candidate in versions if candidate.get("storage")), versions[0])
    names = spec.get("names") or {}
    namespaced = spec.get("scope") == "Namespaced"
    resource = Resource(spec["group"], version["name"], names["plural"], names["kind"], namespaced)
    return ServedKind(
        resource, frozenset({"list", "watch", "delete", "deletecollection", "patch", "create"}), custom=True
    )


class ServedKinds:
    """All kinds, as they come and go. ``on_change`` listeners get (old, new)."""

    def __init__(self, cluster: ControllerContext) -> None:
        self._cluster = cluster
        self._built_in = built_in()
        self._custom: dict[str, ServedKind] = {}
        self._listeners: list[Callable[[ServedKind | None, ServedKind | None], None]] = []
        self._crds = cluster.cache(CUSTOM_RESOURCE_DEFINITIONS)
        self._crds.subscribe(self._crd_changed)

    def __iter__(self) -> Iterator[ServedKind]:
        yield from self._built_in
        yield from list(self._custom.values())

    async def ready(self) -> None:
        """Wait until the CRDs are known."""
        await self._crds.synced.wait()

    def of(self, api_version: str, kind: str) -> ServedKind | None:
        """The kind of an object's apiVersion and kind; any version of the group counts."""
        group = api_version.rpartition("/")[0]
        return next(
            (served for served in self if served.resource.kind == kind and served.resource.group == group), None
        )

    def on_change(self, listener: Callable[[ServedKind | None, ServedKind | None], None]) -> Callable[[], None]:
        """Call ``listener`` when a custom kind is added, changes or goes; returns the function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _crd_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        before, after = self._custom.get(name), of_crd(new) if new is not None else None
        if before == after:
            return
        if after is None:
            del self._custom[name]
        else:
            self._custom[name] = after
        for listener in list(self._listeners):
            listener(before, after)
