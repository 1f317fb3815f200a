"""The kinds that the embedded API serves: the built-in ones (rows read from a real server) and those of CRDs.

``Kinds`` looks them up by path, by apiVersion and kind, or by group and plural. CRDs add and remove rows at run time;
code that caches something by kind subscribes with ``on_change``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

import msgspec

from kgpu.base.typed import convert
from kgpu.kube.port import Resource
from kgpu.lab.embedded import gated_schemas

READ_ONLY: Final = frozenset({"get", "list"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKind:
    """One kind in one version. Its objects are stored under ``(group, plural)``, whatever the requested version.

    ``subresources`` maps a name (``status``, ``scale``, ``binding``) to the APIResource row that discovery shows.
    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    namespaced: bool = True
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False, compare=False)
    custom: bool = False
    schema: str = ""  # name in the schema table (built in) or the CRD's own key

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> tuple[str, str]:
        """The key of the store's table with objects of this kind."""
        return self.group, self.plural

    @property
    def resource(self) -> Resource:
        return Resource(self.group, self.version, self.plural, self.kind, self.namespaced)

    @property
    def stored(self) -> bool:
        """False for kinds whose objects are never stored, as Binding, ComponentStatus and PodMetrics."""
        return "watch" in self.verbs


class Kinds:
    """All kinds served now. Not thread safe; for one event loop."""

    def __init__(self, kinds: Iterable[ApiKind] | None = None) -> None:
        self._by_path: dict[tuple[str, str, str], ApiKind] = {}
        self._listeners: list[Callable[[], None]] = []
        for kind in builtin() if kinds is None else kinds:
            self._by_path[kind.group, kind.version, kind.plural] = kind

    def __iter__(self) -> Iterator[ApiKind]:
        return iter(self._by_path.values())

    def find(self, group: str, version: str, plural: str) -> ApiKind | None:
        """The kind of a path; None when there is none."""
        return self._by_path.get((group, version, plural))

    def of(self, api_version: str, kind: str) -> ApiKind | None:
        """The kind of an object's apiVersion and kind; None when there is none."""
        group, _, version = api_version.rpartition("/")
        return next((k for k in self if k.group == group and k.version == version and k.kind == kind), None)

    def stored(self, group: str, plural: str) -> ApiKind | None:
        """Any version of the kind stored under ``(group, plural)``; None when there is none."""
        return next((kind for kind in self if kind.key == (group, plural)), None)

    def need(self, group: str, plural: str) -> ApiKind:
        """As ``stored``, for kinds that always exist."""
        kind = self.stored(group, plural)
        assert kind is not None, f"{plural}.{group}"
        return kind

    def replace_custom(self, group: str, plural: str, kinds: Iterable[ApiKind]) -> None:
        """Set the versions that a CRD serves; no ``kinds`` remove it."""
        for path in [path for path, kind in self._by_path.items() if kind.custom and kind.key == (group, plural)]:
            del self._by_path[path]
        for kind in kinds:
            self._by_path[kind.group, kind.version, kind.plural] = kind
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of the custom kinds."""
        self._listeners.append(listener)


_STORED: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
METRICS_GROUP: Final = "metrics.k8s.io"
USAGE_KINDS: Final = (
    ApiKind(
        group=METRICS_GROUP, version="v1beta1", plural="nodes", kind="NodeMetrics", namespaced=False,
        verbs=("get", "list"),
    ),
    ApiKind(group=METRICS_GROUP, version="v1beta1", plural="pods", kind="PodMetrics", verbs=("get", "list")),
)  # fmt: skip
"""The metrics API, which a cluster has with metrics-server and a lab by itself."""
TAINT_RULES_GATE: Final = "DRADeviceTaintRules"
_BEHIND: Final[dict[str, tuple[ApiKind, ...]]] = {
    TAINT_RULES_GATE: (
        ApiKind(
            group="resource.k8s.io", version="v1alpha3", plural="devicetaintrules", kind="DeviceTaintRule",
            singular="devicetaintrule", namespaced=False, verbs=_STORED,
            subresources={"status": {"kind": "DeviceTaintRule", "verbs": ["get", "patch", "update"]}},
            schema="io.k8s.api.resource.v1alpha3.DeviceTaintRule",
        ),
    ),
}  # fmt: skip
GATES: Final = frozenset(_BEHIND)
"""Feature gates that are off by default, with which the API serves more kinds."""


def behind(gates: Iterable[str]) -> tuple[ApiKind, ...]:
    """The kinds that are served with these gates beside the usual ones."""
    return tuple(kind for gate in sorted(gates) for kind in _BEHIND[gate])


class _ResourceRow(msgspec.Struct):
    """A row of ``data/resources.json``: an APIResource with its groupVersion."""

    groupVersion: str  # noqa: N815 - the API's name
    name: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    singularName: str = ""  # noqa: N815
    shortNames: tuple[str, ...] = ()  # noqa: N815
    categories: tuple[str, ...] = ()


@functools.cache
def discovery_data() -> dict[str, Any]:
    """``data/resources.json``: version, groups (APIGroup rows in the real order), resources (APIResource rows)."""
    discovery: dict[str, Any] = msgspec.json.decode(_read("resources.json"))
    return discovery


@functools.cache
def schema_data() -> dict[str, dict[str, Any]]:
    """``data/schemas.json``: OpenAPI schemas by name, references as bare names."""
    schemas: dict[str, dict[str, Any]] = msgspec.json.decode(_read("schemas.json"))
    return schemas | gated_schemas.SCHEMAS


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("data", name).read_bytes()


@functools.cache
def builtin() -> tuple[ApiKind, ...]:
    """The real API server's kinds."""
    by_gvk: dict[tuple[str, str, str], str] = {}
    for name, schema in schema_data().items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            by_gvk[gvk["group"], gvk["version"], gvk["kind"]] = name
    raw = discovery_data()["resources"]
    rows = [(convert(resource, _ResourceRow), resource) for resource in raw]
    subresources: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row, resource in rows:
        plural, slash, name = row.name.partition("/")
        if slash:
            subresources.setdefault((row.groupVersion, plural), {})[name] = resource
    kinds = []
    for row, _ in rows:
        if "/" in row.name:
            continue
        group, _, version = row.groupVersion.rpartition("/")
        kinds.append(
            ApiKind(
                group=group,
                version=version,
                plural=row.name,
                kind=row.kind,
                singular=row.singularName,
                namespaced=row.namespaced,
                verbs=row.verbs,
                short_names=row.shortNames,
                categories=row.categories,
                subresources=subresources.get((row.groupVersion, row.name), {}),
                schema=by_gvk.get((group, version, row.kind), ""),
            )
        )
    return tuple(kinds)
