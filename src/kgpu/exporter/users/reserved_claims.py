"""Who holds claimed devices where the kubelet does not report it: before Kubernetes 1.34 that needs a feature gate.

Then the claims themselves name the pods that they are reserved for, but not the container. Claims can't be listed by
node, so this is done only where the server has no resource.k8s.io/v1, and not often.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.kube.port import KubeApi, Object, Resource
from kgpu.kubelet.pod_resources import DeviceClaim, Holding

ASK_SECONDS: Final = 30.0
_TOLD_SINCE: Final = "v1"


class ReservedClaims:
    """Lists claims of the API server, at most every ``ASK_SECONDS``."""

    def __init__(self, api: KubeApi, *, clock: Clock | None = None) -> None:
        self._api = api
        self._clock = clock or SystemClock()
        self._asked = float("-inf")
        self._known: tuple[Holding, ...] = ()

    async def holdings(self, slices: Resource | None, pools: Collection[tuple[str, str]]) -> tuple[Holding, ...]:
        """Return the devices of these pools (driver, name) by pod. ``slices`` is the kind that slices are served in.

        Raises KubeError.
        """
        if slices is None or slices.version == _TOLD_SINCE or not pools:
            return ()
        now = self._clock.monotonic()
        if now - self._asked >= ASK_SECONDS:
            self._asked = now
            kind = Resource(slices.group, slices.version, "resourceclaims", "ResourceClaim")
            listing = await self._api.list(kind, project=_project)
            self._known = tuple(
                Holding(
                    namespace=claim["metadata"]["namespace"], pod=pod, container="", resource=row["driver"],
                    devices=(row["device"],), claim=DeviceClaim(claim["metadata"]["name"], row["pool"]),
                )
                for claim in listing.items
                for row in claim["devices"]
                for pod in claim["pods"]
            )  # fmt: skip
        return tuple(
            holding for holding in self._known if holding.claim and (holding.resource, holding.claim.pool) in pools
        )


def _project(claim: Object) -> Object:
    about, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return {
        "metadata": {name: str(about.get(name) or "") for name in ("namespace", "name", "resourceVersion")},
        "devices": [{name: str(row.get(name) or "") for name in ("driver", "pool", "device")} for row in results],
        "pods": [
            str(consumer.get("name") or "")
            for consumer in status.get("reservedFor") or ()
            if consumer.get("resource") == "pods"
        ],
    }
