"""Unprepares claims that are gone from the API server, of which the kubelet tells nobody: one that lost its own record
of them, or a pod that was removed by force while its node was away.

A claim that can't be asked for is left as it is. One that a pod still has is there: its finalizer keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.base.service import Complaint
from kgpu.dra.preparing import Preparations
from kgpu.dra.records import ClaimRecord
from kgpu.kube.port import KubeApi, Resource

LOOK_SECONDS: Final = 600.0
"""As often as NVIDIA's driver does."""


@dataclass(slots=True, kw_only=True)
class StaleClaims:
    """``resource`` are ResourceClaims in the version that the server has."""

    api: KubeApi
    resource: Resource
    preparations: Preparations
    report: AdviceSink
    clock: Clock = field(default_factory=SystemClock)
    _complaints: dict[str, Complaint] = field(default_factory=dict)

    async def run(self) -> None:
        """Look until cancelled, at once and every ten minutes."""
        while True:
            await self.look()
            await self.clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Unprepare what is gone; what fails is told once, and tried again the next time."""
        for record in list(self.preparations.records.all.values()):
            complaint = self._complaints.setdefault(
                record.uid, Complaint(self.report, reason="StaleClaim", subject=f"claim {record}")
            )
            try:
                await self._look_at(record)
            except UserError as problem:
                complaint.of(problem)
            else:
                complaint.over()
        for uid in self._complaints.keys() - self.preparations.records.all.keys():
            del self._complaints[uid]

    async def _look_at(self, record: ClaimRecord) -> None:
        found = await self.api.get(self.resource, record.name, namespace=record.namespace)
        now = found["metadata"]["uid"] if found is not None else ""
        if now == record.uid:
            return
        await self.preparations.unprepare(record.uid)
        self.report(Advice(
            subject=f"claim {record}", reason="StaleClaim",
            what=f"the devices that were prepared for claim {record} are free again",
            why="the claim is not there any more" if not now else "there is another claim of this name now",
            evidence=(f"prepared was uid {record.uid}",),
        ))  # fmt: skip
