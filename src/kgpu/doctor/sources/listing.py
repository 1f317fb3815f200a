"""Lists the kinds that are wanted, each for the whole cluster or, for who may not do that, in one namespace.

What may not be listed at all is told as missing evidence, together where it is for one reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.doctor.model import Missing
from kgpu.doctor.objects import lean
from kgpu.doctor.read_kinds import NEEDED, Wanted
from kgpu.doctor.snapshot import Snapshot
from kgpu.kube.port import KubeApi, KubeDiscovery, KubeRefusedError, Listing, Object, Resource

_NAMED: Final = 4
_FIRST: Final = frozenset({"nodes", "pods", "events"})


class ClusterForbiddenError(KubeError):
    """Nodes, or the pods of all namespaces, may not be listed; a namespace of one's own may be readable."""


class Api(KubeApi, KubeDiscovery, Protocol):
    """What is needed of the API server."""


@dataclass
class KindListing:
    """Lists kinds into ``snapshot``, of which ``namespace`` is of interest, "" for all.

    ``within`` are those of which that namespace alone may be listed; ``beyond`` may be listed nowhere.
    """

    api: Api
    served: Mapping[tuple[str, str], Resource]
    snapshot: Snapshot
    gate: asyncio.Semaphore
    namespace: str = ""
    within: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)

    async def add(self, row: Wanted) -> None:
        """What there is of a kind. Raises KubeError for one without which nothing can be said, which is a
        ClusterForbiddenError where a namespace could be named.
        """
        resource = row.resource
        if row.any_version and self.served:
            here = self.served.get((resource.group, resource.kind))
            if here is None:
                if resource.group != "resource.k8s.io":
                    self.snapshot.listed.add(resource.kind)
                return
            resource = here
        try:
            listing = await self._list(resource)
        except KubeRefusedError as error:
            self._must(resource, error)
            self._refused(row, resource, error)
            return
        except KubeError as error:
            self._must(resource, error)
            self.snapshot.missing.append(Missing(f"{resource.plural} of the cluster", error.what, error.remedy))
            return
        for obj in listing.items:
            self.snapshot.add(obj, leaned=True)

    async def _list(self, resource: Resource) -> Listing:
        try:
            async with self.gate:
                listing = await self.api.list(resource, project=_project)
        except KubeRefusedError as error:
            if not self.namespace or not resource.namespaced or error.code != HTTPStatus.FORBIDDEN:
                raise
            async with self.gate:
                listing = await self.api.list(resource, namespace=self.namespace, project=_project)
            self.within.append(resource.plural)
        else:
            self.snapshot.listed.add(resource.kind)
        return listing

    def _refused(self, row: Wanted, resource: Resource, error: KubeRefusedError) -> None:
        if self.namespace and error.code == HTTPStatus.FORBIDDEN:
            self.beyond.append(resource.plural)  # many, and for one reason
        elif not (row.any_version and error.code == HTTPStatus.NOT_FOUND):
            how = f"give the right to list {resource.plural}: docs/how-to/doctor-rights.yaml has them all"
            self.snapshot.missing.append(Missing(f"{resource.plural} of the cluster", error.what, how))

    def _must(self, resource: Resource, error: KubeError) -> None:
        forbidden = isinstance(error, KubeRefusedError) and error.code == HTTPStatus.FORBIDDEN
        if resource.kind not in NEEDED or (self.namespace and forbidden and not resource.namespaced):
            return
        if forbidden and not self.namespace:
            raise ClusterForbiddenError(
                error.what, "the right to list nodes, and the pods of all namespaces: docs/how-to/doctor-rights.yaml",
                "ask whoever runs the cluster for it",
            )  # fmt: skip
        raise error

    def tell(self) -> None:
        """What was not seen for want of rights to more than a namespace."""
        how = "whoever may read the cluster sees more: kgpu doctor; its rights are docs/how-to/doctor-rights.yaml"
        for what, kinds, why in (
            ("of the cluster", self.beyond, "you may not list them"),
            (f"of other namespaces than {self.namespace}", self.within, "you may list them there alone"),
        ):
            if kinds:
                self.snapshot.missing.append(Missing(f"{_some(kinds)} {what}", why, how))


def _some(kinds: Sequence[str]) -> str:
    """Nodes and pods first: they matter most."""
    shown = sorted(kinds, key=lambda kind: (kind not in _FIRST, kind))
    more = len(shown) - _NAMED
    return ", ".join(shown[:_NAMED]) + (
        f" and {more} more kinds" if more > 1 else f", {shown[-1]}" if more == 1 else ""
    )


def _project(obj: Object) -> Object:
    return lean(obj)
