"""The kubelet's calls about claims: fetches each claim from the API server, and prepares what it has got on this node.

The kubelet names a claim only; what it has been given is in its status. Unpreparing asks nobody: the claim may be gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgpu.base.errors import UserError
from kgpu.dra.granted import ClaimRefusedError, GrantedClaim, read_granted
from kgpu.dra.metrics import GET_CLAIM, PREPARE, UNPREPARE, DraMetrics
from kgpu.dra.preparing import Preparations
from kgpu.kube.port import KubeApi, Resource
from kgpu.kubelet.model import ClaimDevice, ClaimRef


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaims:
    """Answers the kubelet for one driver. ``resource`` are ResourceClaims in the version that the server has."""

    api: KubeApi
    resource: Resource
    driver: str
    pool: str
    preparations: Preparations
    metrics: DraMetrics

    async def prepare(self, claim: ClaimRef) -> Sequence[ClaimDevice]:
        """Prepare a claim. Raises ClaimRefusedError, KubeError, HwError, HostError."""
        with self.metrics.request(PREPARE):
            granted = await self._granted(claim)
            with self._counted(PREPARE):
                devices = await self.preparations.prepare(granted)
        return [
            ClaimDevice(requests=(one.request,), pool=one.pool, device=one.device, cdi=one.cdi, share=one.share)
            for one in devices
        ]

    async def unprepare(self, claim: ClaimRef) -> None:
        """Take back what was prepared for a claim. Raises HwError, HostError."""
        with self.metrics.request(UNPREPARE), self._counted(UNPREPARE):
            await self.preparations.unprepare(claim.uid)

    async def _granted(self, claim: ClaimRef) -> GrantedClaim:
        with self._counted(PREPARE, GET_CLAIM):
            return await self._fetched(claim)

    async def _fetched(self, claim: ClaimRef) -> GrantedClaim:
        found = await self.api.get(self.resource, claim.name, namespace=claim.namespace)
        if found is None:
            raise ClaimRefusedError(
                f"claim {claim.namespace}/{claim.name} does not exist", "the claim that the pod has",
                "nothing if the pod is being deleted; otherwise delete the pod",
            )  # fmt: skip
        return read_granted(found, driver=self.driver, pool=self.pool, uid=claim.uid)

    @contextlib.contextmanager
    def _counted(self, operation: str, kind: str = "") -> Iterator[None]:
        try:
            yield
        except UserError:
            self.metrics.failed(operation, kind)
            raise
