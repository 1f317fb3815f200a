"""Type checks the expressions of ValidatingAdmissionPolicies and writes the warnings into their status.

From kube-controller-manager's validatingadmissionpolicy-status-controller: once for each generation of a policy.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Final

from kgpu.kube.port import Object, Resource, name_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kgpu.lab.embedded.policy import typecheck

POLICIES: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False
)
MANAGER: Final = "validatingadmissionpolicy-status"


class PolicyStatusController(ObjectController):
    name = "validatingadmissionpolicy-status-controller"
    workers = 1

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._policies = cluster.cache(POLICIES)
        self._crds = cluster.cache(CUSTOM_RESOURCE_DEFINITIONS)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {POLICIES: _unchecked}

    async def sync(self, key: str) -> None:
        policy = self._policies.get(("", key))
        if policy is None or _is_checked(policy):
            return
        served = [*_built_in(), *(schema for crd in self._crds for schema in typecheck.of_crd(crd))]
        warnings = await asyncio.to_thread(typecheck.warnings, policy, served)
        status: Object = {"observedGeneration": policy["metadata"]["generation"], "typeChecking": {}}
        if warnings:
            status["typeChecking"]["expressionWarnings"] = warnings
        body = {"metadata": {"name": key}, "status": status}
        await self.cluster.api.apply(POLICIES, body, manager=MANAGER, subresource="status", force=True)


@functools.cache
def _built_in() -> list[typecheck.KindSchema]:
    return typecheck.built_in()


def _is_checked(policy: Object) -> bool:
    observed = (policy.get("status") or {}).get("observedGeneration", 0)
    return bool(policy["metadata"].get("generation", 0) <= observed)


def _unchecked(_: Object | None, new: Object | None) -> list[str]:
    return [] if new is None or _is_checked(new) else [name_of(new)]
