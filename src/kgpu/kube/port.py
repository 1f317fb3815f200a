"""The API server as kgpu uses it: plain dictionaries in, plain dictionaries out.

Objects stay dictionaries on purpose: a typed model drops fields that it does not know, so that reading, changing and
writing one back would lose what a newer API server has put there. For the same reason there is no PUT: kgpu applies
(server-side, under a field manager) or patches what it means to change, and nothing else.

The in-memory fake is ``kgpu.kube.fake``; it and the real client pass ``tests/kube/contract.py``.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from kgpu.base.errors import KubeError
from kgpu.formats.names import NFD_DOMAIN

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as decoded JSON, with apiVersion, kind and metadata."""


Project: TypeAlias = Callable[[Object], Object]
"""Reduces an object to what is worth keeping; at least the name and the resourceVersion stay."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API server has it; ``group`` is "" for the core group.

    ``metadata_only``: lists and watches are asked for the objects' metadata alone, and ``apply`` for the object's name
    and version alone, which the server honours where it can; it is the same kind all the same. ``page``: how many
    objects of a list are asked for at a time, fewer of a kind whose objects are large, as a page is in memory whole.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    metadata_only: bool = field(default=False, compare=False)
    page: int = field(default=500, compare=False)

    @property
    def api_version(self) -> str:
        """Group and version as ``apiVersion`` has them: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version


NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS: Final = Resource("", "v1", "events", "Event")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NODE_FEATURES: Final = Resource(NFD_DOMAIN, "v1alpha1", "nodefeatures", "NodeFeature", page=20)


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a kind: exact field values such as ``metadata.name``, exact label values, and in ``has`` label
    keys that must be there with any value.
    """

    fields: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    has: tuple[str, ...] = ()

    @classmethod
    def named(cls, name: str) -> Selector:
        """The one object of that name."""
        return cls(fields=(("metadata.name", name),))


EVERYTHING: Final = Selector()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list call found, and the version of the collection from which a watch can go on."""

    items: tuple[Object, ...]
    resource_version: str


class Change(enum.StrEnum):
    """What a watch says has happened."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing, but the watch has come this far


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch; for BOOKMARK the object has little more than its resourceVersion."""

    change: Change
    object: Object = field(default_factory=dict)


class Patch(enum.StrEnum):
    """How a patch is merged; values are the content types."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class KubeRefusedError(KubeError):
    """The API server answered with an error; ``code`` is the HTTP status and ``reason`` the Status object's word.
    ``message`` is the server's own, ``causes`` are its details: each a word and a message.
    """

    def __init__(
        self, what: str, expected: str, remedy: str, *, code: int, reason: str = "", message: str = "",
        causes: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(what, expected, remedy)
        self.message = message or what
        self.code = code
        self.reason = reason
        self.causes = causes

    @property
    def conflict(self) -> bool:
        """True when someone else owns or has changed it, or it exists already."""
        return self.code == 409

    @property
    def gone(self) -> bool:
        """True when the version asked for is too old: list again."""
        return self.code == 410


class KubeUnreachableError(KubeError):
    """The API server did not answer: no route, a broken connection, or a deadline passed."""


class KubeApi(Protocol):
    """One API server, as one user. Safe to use from one asyncio loop; calls may overlap; each has a deadline.

    Every method raises KubeRefusedError or KubeUnreachableError, and nothing else of the client library.
    """

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        """The object, None when there is none of that name."""
        ...

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        """Every object of the kind in the namespace ("" for all) that the selector matches.

        ``project`` is applied to each as it arrives, so that a long list never is in memory whole.
        """
        ...

    def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        """What happens after ``resource_version``; first a BOOKMARK: the watch stands. Ends when the server ends it.

        KubeRefusedError with code 410 means that the version is too old: list again.
        """
        ...

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        """Server-side apply; fields this manager no longer names are removed.

        It takes fields from other managers; without ``force`` it is a 409 when another has one with another value.
        """
        ...

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        """Change an object that exists."""
        ...

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        """Make a new object; 409 when it exists.

        With a subresource (``binding``, ``eviction``, ``token``) ``obj`` has its own apiVersion and kind and is sent to
        the object of its name.
        """
        ...

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        """Ask for an object's end; False when there is none. It may stay for a while, with a deletionTimestamp.

        ``grace`` in seconds, None for the object's own, 0 for at once; ``uid``: only that one, 409 when it is another;
        ``propagation``: ``Background``, ``Foreground``, ``Orphan``, "" for the kind's own.
        """
        ...

    async def close(self) -> None:
        """End every call and watch."""
        ...


@dataclass(frozen=True, slots=True)
class ServedResources:
    """What an API server is: its version, and every kind in each group's preferred version or the only one it has."""

    version: tuple[int, int]
    resources: tuple[Resource, ...]


class KubeDiscovery(Protocol):
    """Says what an API server serves; the clients of ``KubeApi`` are this too."""

    async def discover(self) -> ServedResources:
        """Ask now. Raises KubeRefusedError or KubeUnreachableError."""
        ...


class PodPages(Protocol):
    """Reads what pods serve, through the API server; the clients of ``KubeApi`` are this too."""

    async def pod_page(
        self, namespace: str, pod: str, port: int, path: str, *, scheme: str = "http", limit: int = 8 << 20,
        query: dict[str, str] | None = None,
    ) -> str:  # fmt: skip
        """The page under ``path`` of the pod's port, of at most ``limit`` bytes; the right is ``get`` of
        ``pods/proxy``. Raises KubeRefusedError, also with what the pod itself refused, or KubeUnreachableError.
        """
        ...


def name_of(obj: Object) -> str:
    """``metadata.name``, "" when there is none."""
    return str((obj.get("metadata") or {}).get("name") or "")


def namespace_of(obj: Object) -> str:
    """``metadata.namespace``, "" for objects without."""
    return str((obj.get("metadata") or {}).get("namespace") or "")


def labels_of(obj: Object) -> dict[str, str]:
    """``metadata.labels``; none for an object without."""
    return (obj.get("metadata") or {}).get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    """``metadata.annotations``; none for an object without."""
    return (obj.get("metadata") or {}).get("annotations") or {}


def version_of(obj: Object) -> str:
    """``metadata.resourceVersion``, "" when there is none."""
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")


def is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another of the same kind: they are numbers, or at least differ."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than
