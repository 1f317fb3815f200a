"""Reads what the guards look at: policies, namespaces, pods and owners, who else scales, what allows no disruption.

One ``ClusterLook`` is one look: what was read once is not asked for again, and the next look begins with nothing. A
right that is missing is an error, not an empty answer: what can't be seen is not taken for absent. Kinds whose CRD is
not there are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.fit.read import label_selector
from kgpu.kube.kinds import DISRUPTION_BUDGETS, GPU_USAGE_OVERRIDES, GPU_USAGE_POLICIES, NAMESPACES
from kgpu.kube.owners import controller_of
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Resource, labels_of, name_of, namespace_of
from kgpu.usage.reclaim import owners
from kgpu.usage.reclaim.guards import GuardFacts
from kgpu.usage.reclaim.model import HeldWorkload, PolicyReading, ReclaimPolicy, policy_for, read_policy
from kgpu.usage.reclaim.owners import OwnersFound, StopTarget
from kgpu.usage.reclaim.status import BROUGHT_BACK

AUTOSCALERS: Final = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SCALED_OBJECTS: Final = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")
_DEEPEST: Final = 8
"""Owners of owners; a ring ends here."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class ClusterLook:
    """One look at the cluster. Every method raises KubeError."""

    def __init__(self, api: KubeApi, own_namespace: str) -> None:
        self._api = api
        self.own_namespace = own_namespace
        self._lists: dict[tuple[Resource, str], tuple[Object, ...]] = {}
        self._objects: dict[tuple[Resource, str, str], Object | None] = {}
        self._readings: tuple[PolicyReading, ...] | None = None
        self._in_force: dict[str, tuple[ReclaimPolicy, str]] = {}

    async def policies(self) -> tuple[PolicyReading, ...]:
        """All policies, also those that can't be used."""
        if self._readings is None:
            found = await self.listed(GPU_USAGE_POLICIES)
            self._readings = tuple(read_policy(obj, self.own_namespace) for obj in found)
        return self._readings

    async def policy(self, namespace: str) -> tuple[ReclaimPolicy, str]:
        """What is in force in a namespace, and why nothing may be stopped."""
        if namespace not in self._in_force:
            overrides = await self._overrides(namespace)
            self._in_force[namespace] = policy_for(await self.policies(), overrides, namespace)
        return self._in_force[namespace]

    async def _overrides(self, namespace: str) -> tuple[Object, ...]:
        """At least those of the namespace: all that count there, for who may list no others."""
        try:
            return await self.listed(GPU_USAGE_OVERRIDES)
        except KubeRefusedError as refused:
            if refused.code != 403:
                raise
            return await self.listed(GPU_USAGE_OVERRIDES, namespace)

    async def doubt(self, policy: ReclaimPolicy, workload: HeldWorkload) -> str:
        """Why whoever follows the policy doubts what is said of the workload, by the policy's status; "" where that
        says nothing.
        """
        found = (obj for obj in await self.listed(GPU_USAGE_POLICIES) if name_of(obj) == policy.name)
        status = mapping(next((obj.get("status") for obj in found), None))
        nodes = {text(node) for node in items(status.get("frozenNodes"))}
        if nodes and workload.nodes.isdisjoint(nodes):
            return ""
        return next(
            (text(one.get("message")) for one in map(mapping, items(status.get("conditions"))) if _doubts(one)), ""
        )

    async def listed(self, resource: Resource, namespace: str = "") -> tuple[Object, ...]:
        """All objects of a kind; none where the kind is not there."""
        key = (resource, namespace)
        if key not in self._lists:
            try:
                self._lists[key] = (await self._api.list(resource, namespace=namespace)).items
            except KubeRefusedError as refused:
                if refused.code != 404:
                    raise
                self._lists[key] = ()
        return self._lists[key]

    async def got(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """An object; None where it, or its kind, is not there: labels and owners of pods may name anything."""
        key = (resource, namespace, name)
        if key not in self._objects:
            try:
                obj = await self._api.get(resource, name, namespace=namespace)
            except KubeRefusedError as refused:
                if refused.code != 404:
                    raise
                obj = None
            self._objects[key] = None if obj is None else {"kind": resource.kind, **obj}
        return self._objects[key]

    async def owners(self, pod: Object) -> OwnersFound:
        """A pod and its controllers, up to the top."""
        namespace, unknown, missing, obj = namespace_of(pod), "", "", pod
        chain: list[Object] = []
        while (reference := controller_of(obj["metadata"])) is not None and len(chain) < _DEEPEST:
            title = f"{reference.get('kind')} {reference.get('name')}"
            resource = owners.resource_of_owner(reference)
            if resource is None:
                unknown = title
                break
            found = await self.got(resource, namespace, str(reference.get("name")))
            if found is None or found["metadata"].get("uid") != reference.get("uid"):
                missing = title
                break
            chain.append(found)
            obj = found
        service = None
        if name := labels_of(pod).get(owners.KSERVE_LABEL):
            service = await self.got(owners.INFERENCE_SERVICES, namespace, str(name))
        admission = None
        top = chain[-1] if chain else pod
        if owners.KUEUE_LABEL in labels_of(top):
            admission = owners.admission_of(await self.listed(owners.KUEUE_WORKLOADS, namespace), top)
        return OwnersFound(
            pod=pod, chain=tuple(chain), unknown=unknown, missing=missing, service=service, admission=admission
        )

    async def pods(self, namespace: str) -> Sequence[Object]:
        """The namespace's pods that have not ended."""
        return [
            {"kind": "Pod", **pod}
            for pod in await self.listed(PODS, namespace)
            if (pod.get("status") or {}).get("phase") not in _ENDED
        ]

    async def facts(self, workload: HeldWorkload, policy: ReclaimPolicy, now: float, frozen: str = "") -> GuardFacts:
        """What the guards look at for a workload, but the budget."""
        space = workload.ref.namespace
        watched = {(one.holder.pod, one.holder.uid, one.device.node) for one in workload.held}
        pods = await self.pods(space)
        held = [pod for pod in pods if _identity(pod) in watched]
        found = await self.owners(held[0]) if held else None
        others = await self._others(found, [pod for pod in pods if pod not in held]) if found else []
        target: StopTarget | str = owners.stop_target(found) if found else "none of its pods is there any more"
        return GuardFacts(
            policy=policy, workload=workload, now=now, own_namespace=self.own_namespace, frozen=frozen, found=found,
            namespace=_with_kind(await self.got(NAMESPACES, "", space)), target=target, pods=(*held, *others),
            unwatched=tuple(name_of(pod) for pod in others),
            scalers=await self._scalers(space, found) if found else (),
            disruption_budgets=await self._budgets(space, [*held, *others]),
        )  # fmt: skip

    async def _others(self, found: OwnersFound, pods: Sequence[Object]) -> list[Object]:
        """Those that ask for devices and would be stopped, too: of the same top, or of the same InferenceService."""
        if not found.chain:
            return []
        uid, service = found.top["metadata"].get("uid"), owners.service_of(found)
        return [
            pod
            for pod in filter(asks_for_devices, pods)
            if (service and labels_of(pod).get(owners.KSERVE_LABEL) == service)
            or (await self.owners(pod)).top["metadata"].get("uid") == uid
        ]

    async def _scalers(self, namespace: str, found: OwnersFound) -> tuple[str, ...]:
        tops = {(str(obj.get("kind")), name_of(obj)) for obj in (*found.chain, *filter(None, (found.service,)))}
        scalers = []
        for scaler in await self.listed(AUTOSCALERS, namespace):
            spec = scaler.get("spec") or {}
            least = spec.get("minReplicas")
            if _aims_at(spec.get("scaleTargetRef"), tops, "Deployment") and (least is None or least >= 1):
                scalers.append(f"HorizontalPodAutoscaler {name_of(scaler)}")
        scalers += [
            f"KEDA's ScaledObject {name_of(scaler)}"
            for scaler in await self.listed(SCALED_OBJECTS, namespace)
            if _aims_at((scaler.get("spec") or {}).get("scaleTargetRef"), tops, "Deployment")
        ]
        return tuple(scalers)

    async def _budgets(self, namespace: str, pods: Sequence[Object]) -> tuple[str, ...]:
        return tuple(
            name_of(budget)
            for budget in await self.listed(DISRUPTION_BUDGETS, namespace)
            if (budget.get("status") or {}).get("disruptionsAllowed", 0) < 1
            and any(label_selector((budget.get("spec") or {}).get("selector")).matches(labels_of(pod)) for pod in pods)
        )


def _doubts(condition: Mapping[str, Any]) -> bool:
    """Whether a condition is about the data, and not about what people think of the policy."""
    return (condition.get("type"), condition.get("status")) == ("Frozen", "True") and (
        condition.get("reason") != BROUGHT_BACK
    )


def _with_kind(obj: Object | None) -> Object | None:
    return None if obj is None else {**obj, "kind": "Namespace"}


def _identity(pod: Object) -> tuple[str, str, str]:
    """Name, uid and node: a node speaks of its own pods alone, and not of one that has the name of a former one."""
    return name_of(pod), str(pod["metadata"].get("uid")), str((pod.get("spec") or {}).get("nodeName"))


def _aims_at(reference: Any, tops: set[tuple[str, str]], usual: str) -> bool:
    return isinstance(reference, Mapping) and (str(reference.get("kind") or usual), str(reference.get("name"))) in tops


def asks_for_devices(pod: Object) -> bool:
    """Whether it asks for extended resources or claims, among which accelerators are."""
    spec = pod.get("spec") or {}
    if spec.get("resourceClaims"):
        return True
    return any(
        "/" in key
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        for key in ((container.get("resources") or {}).get("limits") or {})
    )
