"""Removes what the operator and its agents have put into a cluster, before kgpu is uninstalled.

Works whether the operator runs or not, and can be repeated. Steps: stop the operator, so that nothing is put back; let
agents clean up their hosts, as far as they answer in time; delete objects; then remove what kgpu's field managers have
applied to Nodes: labels, annotations, conditions, cordons. What users made stays, ClusterPolicies included.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.plain import items, mapping, text
from kgpu.base.service import running
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.leader_election import LeaseTimes
from kgpu.kube.port import (
    LEASES,
    NODE_FEATURES,
    NODES,
    PODS,
    KubeRefusedError,
    KubeUnreachableError,
    Object,
    Resource,
    Selector,
    name_of,
    namespace_of,
    version_of,
)
from kgpu.operator.applying import is_operators
from kgpu.operator.leaving import Leaving
from kgpu.operator.model import ClusterPlan, OperatorSettings
from kgpu.operator.projections import condition_of
from kgpu.operator.watching import ClusterWatching, WatchedCluster

MANAGERS: Final = (
    names.OPERATOR_FIELD_MANAGER,
    names.FEATURES_FIELD_MANAGER,
    names.LABELS_FIELD_MANAGER,
    names.FIELD_MANAGER,
    names.VALIDATOR_FIELD_MANAGER,
    names.HEALTH_FIELD_MANAGER,
    names.OPERATIONS_FIELD_MANAGER,
    names.MIG_OPERATION_FIELD_MANAGER,
    names.MIG_FIELD_MANAGER,
)
CONCURRENCY: Final = 16
_OPERATOR: Final = Selector(labels=(("app", "gpu-operator"),))
_LOOK: Final = 0.5
_LOOK_AT_NODES: Final = 5.0
_LEADERLESS: Final = 2 * LeaseTimes().duration

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds for the whole clean-up, and for agents to leave their hosts."""

    whole: float = 120.0
    leave: float = 20.0


async def clean_up(
    api: WatchedCluster, namespace: str, limits: Limits | None = None, *, say: Say, clock: Clock | None = None
) -> None:
    """Run every step, with a line for each. Raises KubeError when the time is over or something is refused."""
    limits, clock = limits or Limits(), clock or SystemClock()
    cleaner = _Cleaner(api, namespace, limits, say, clock)
    if not await first_of(cleaner.run(), clock.sleep(limits.whole)):
        raise KubeError(
            f"the clean-up did not end within {limits.whole:g} s; the last step was: {cleaner.step}",
            "an API server and agents that answer",
            "run it again, with a longer --timeout if this was the last of many nodes",
        )


class _Cleaner:
    def __init__(self, api: WatchedCluster, namespace: str, limits: Limits, say: Say, clock: Clock) -> None:
        self._api = api
        self._namespace = namespace
        self._limits = limits
        self._say = say
        self._clock = clock
        self.step = ""

    async def run(self) -> None:
        """Run the steps in order; a step that the API server does not answer is repeated."""
        for step in (
            self._only_here,
            self._stop_operator,
            self._end_acts,
            self._leave,
            self._delete_objects,
            self._end_left_drivers,
            self._clear_nodes,
            self._delete_suggestions,
            self._clear_namespace,
            self._delete_features,
            self._delete_lease,
        ):
            while True:
                try:
                    await step()
                    break
                except KubeUnreachableError as error:
                    self._tell(f"no answer, trying again: {error.what}")
                    await self._clock.sleep(1.0)
                except BaseExceptionGroup as group:
                    if not _all_unreachable(group):
                        raise
                    await self._clock.sleep(1.0)
        self._say("done")

    def _tell(self, text: str) -> None:
        self.step = text
        self._say(text)

    async def _only_here(self) -> None:
        """Refuse while kgpu runs in another namespace: what is on Nodes belongs to that one, and its fleet needs it."""
        listing = await self._api.list(kinds.DEPLOYMENTS, selector=_OPERATOR)
        others = sorted(
            f"{namespace_of(deployment)}/{name_of(deployment)}"
            for deployment in listing.items
            if namespace_of(deployment) != self._namespace and _is_kgpus(deployment)
        )
        if others:
            raise KubeError(
                f'kgpu\'s operator is in another namespace than "{self._namespace}": {", ".join(others)}',
                "the namespace in which kgpu was installed; nothing was touched",
                f"name that one: --namespace {others[0].partition('/')[0]}",
            )

    async def _stop_operator(self) -> None:
        """Scale the operator to 0 and wait until its pods are gone, so that nothing is put back.

        A pod on a node that is down ends only when its kubelet is back. It counts as gone once the Lease has not been
        renewed for longer than a leader may take.
        """
        listing = await self._api.list(kinds.DEPLOYMENTS, namespace=self._namespace, selector=_OPERATOR)
        for deployment in listing.items:
            if mapping(deployment.get("spec")).get("replicas") != 0:
                self._tell(f"stopping Deployment {name_of(deployment)}")
                change = {"spec": {"replicas": 0}}
                await self._api.patch(kinds.DEPLOYMENTS, name_of(deployment), change, namespace=self._namespace)
        version, renewed = "", self._clock.monotonic()
        while listing.items:
            pods = await self._api.list(PODS, namespace=self._namespace, selector=_OPERATOR)
            left = sorted(text(mapping(pod.get("spec")).get("nodeName")) for pod in pods.items if _by_replica_set(pod))
            if not left:
                return
            lease = await self._api.get(LEASES, names.OPERATOR_LEASE, namespace=self._namespace)
            current = version_of(lease) if lease else ""
            if current != version:
                version, renewed = current, self._clock.monotonic()
            if self._clock.monotonic() - renewed > _LEADERLESS and not await self._ready() & set(left):
                self._tell(
                    f"node {', '.join(left)} is away: the operator's pod there does not lead, and is not waited for"
                )
                return
            await self._clock.sleep(_LOOK)

    async def _end_acts(self) -> None:
        """Delete pods that were to act on nodes: whoever has not been asked yet is asked no more."""
        acts = Selector(labels=(("app", names.ACT_APP),))
        listing = await self._api.list(PODS, namespace=self._namespace, selector=acts)
        if listing.items:
            self._tell(f"deleting {len(listing.items)} pods that act on nodes")
        for pod in listing.items:
            await self._delete(PODS, pod)

    async def _end_left_drivers(self) -> None:
        """Delete drivers' pods that their DaemonSet has left for NVIDIADrivers to take over: nobody else would."""
        drivers = Selector(labels=((names.COMPONENT_LABEL, names.DRIVER_COMPONENT),))
        listing = await self._api.list(PODS, namespace=self._namespace, selector=drivers)
        for pod in listing.items:
            if _controller(pod):
                continue
            self._tell(f"deleting driver pod {name_of(pod)}, which no DaemonSet has")
            try:
                await self._delete(PODS, pod)
            except KubeRefusedError as refused:
                if refused.code != 403:
                    raise
                how = f"kubectl -n {self._namespace} delete pod {name_of(pod)}"
                self._tell(f"that pod stays, as the clean-up may delete no pods; to do: {how}")

    async def _leave(self) -> None:
        """Let agents clean up their hosts."""
        self._tell("agents clean up their hosts")
        settings = OperatorSettings(namespace=self._namespace, image="")
        watching = ClusterWatching(self._api, settings, clock=self._clock)
        leaving = Leaving(self._api, watching, namespace=self._namespace, clock=self._clock, seconds=self._limits.leave)
        async with running(watching=watching.run()):
            while not watching.ready:
                await self._clock.sleep(0.05)
            reported = 0
            while await leaving.holds(ClusterPlan()):
                staying = leaving.staying()
                if len(staying) != reported:
                    reported = len(staying)
                    self._tell(f"waiting for {reported} agents to leave their hosts")
                await self._clock.sleep(_LOOK)
            for name in leaving.staying():
                self._tell(f"node {name}: its agent has not said that it has left; files may remain on its host")

    async def _delete_objects(self) -> None:
        """Delete everything with the operator's label or owned by a policy, each object after those that use it."""
        for resource in reversed(kinds.MANAGED):
            place = self._namespace if resource.namespaced else ""
            lean = dataclasses.replace(resource, metadata_only=True)
            try:
                listing = await self._api.list(lean, namespace=place)
            except KubeRefusedError as refused:
                if refused.code == 404:  # a kind that is not installed
                    continue
                raise
            ours = [obj for obj in listing.items if is_operators(obj)]
            if ours:
                self._tell(f"deleting {len(ours)} x {resource.kind}")
            for obj in ours:
                await self._delete(resource, obj)
        await self._gone()

    async def _gone(self) -> None:
        """Wait for the operands' pods to end: one that still runs would write labels again.

        Pods of nodes that are down are not waited for: their accounts are gone, and only their kubelet can end them.
        """
        looked, ready = -_LOOK_AT_NODES, frozenset[str]()
        while left := await self._left():
            if self._clock.monotonic() - looked >= _LOOK_AT_NODES:
                looked, ready = self._clock.monotonic(), await self._ready()
            waited = [pod for pod in left if pod["node"] in ready]
            if not waited:
                break
            self.step = f"waiting for {len(waited)} pods to end"
            await self._clock.sleep(_LOOK)
        for node in sorted({pod["node"] for pod in left}):
            self._tell(f"node {node} is away: kgpu's pods there end when it is back, or when its Node is deleted")

    async def _left(self) -> list[Object]:
        """Pods whose DaemonSet is gone."""
        sets = await self._api.list(kinds.DAEMON_SETS, namespace=self._namespace)
        existing = {name_of(obj) for obj in sets.items}
        pods = await self._api.list(PODS, namespace=self._namespace, project=_pod)
        return [pod for pod in pods.items if pod["daemon set"] and pod["daemon set"] not in existing]

    async def _ready(self) -> frozenset[str]:
        """Nodes whose kubelet answers."""
        nodes = await self._api.list(NODES, project=_readiness)
        return frozenset(name_of(node) for node in nodes.items if node["ready"])

    async def _delete(self, resource: Resource, obj: Object) -> None:
        await self._api.delete(resource, name_of(obj), namespace=namespace_of(obj), propagation="Background")

    async def _clear_nodes(self) -> None:
        """Remove every field of Nodes that one of kgpu's field managers has applied."""
        listing = await self._api.list(NODES, project=_managers_only)
        todo = [(node, entry) for node in listing.items for entry in node["managers"]]
        if todo:
            self._tell(f"clearing {len({name_of(node) for node, _ in todo})} Nodes")
        limit = asyncio.Semaphore(CONCURRENCY)

        async def clear(node: Object, manager: str, subresource: str) -> None:
            async with limit:
                body = {"metadata": {"name": name_of(node), "uid": node["metadata"]["uid"]}}
                try:
                    await self._api.apply(NODES, body, manager=manager, subresource=subresource)
                except KubeRefusedError as refused:
                    if refused.code != 404 and not refused.conflict:  # the Node went meanwhile
                        raise

        async with asyncio.TaskGroup() as group:
            for node, (manager, subresource) in todo:
                group.create_task(clear(node, manager, subresource))

    async def _delete_suggestions(self) -> None:
        """Delete operations that nobody has asked for and that have not begun; those of people, and records, stay."""
        try:
            listing = await self._api.list(kinds.NODE_OPERATIONS)
        except KubeRefusedError as refused:
            if refused.code in (403, 404):  # operations were switched off, or there is no such kind
                return
            raise
        for obj in listing.items:
            wanted_by = mapping(obj.get("spec")).get("requestedBy")
            phase = mapping(obj.get("status")).get("phase", "Pending")
            if wanted_by == names.REMEDIATION_REQUESTER and phase == "Pending":
                await self._delete(kinds.NODE_OPERATIONS, obj)

    async def _clear_namespace(self) -> None:
        """Remove the Pod Security labels that the operator has put on its own namespace."""
        live = await self._api.get(kinds.NAMESPACES, self._namespace)
        entries = items(mapping((live or {}).get("metadata")).get("managedFields"))
        if any(mapping(entry).get("manager") == names.OPERATOR_FIELD_MANAGER for entry in entries):
            self._tell(f"taking labels back from Namespace {self._namespace}")
            body = {"metadata": {"name": self._namespace}}
            await self._api.apply(kinds.NAMESPACES, body, manager=names.OPERATOR_FIELD_MANAGER)

    async def _delete_features(self) -> None:
        """Delete the NodeFeatures that agents have written for another node feature discovery, in kgpu's namespace."""
        try:
            lean = dataclasses.replace(NODE_FEATURES, metadata_only=True)
            listing = await self._api.list(lean, namespace=self._namespace)
        except KubeRefusedError as refused:
            if refused.code == 404:
                return
            raise
        ours = [obj for obj in listing.items if name_of(obj).startswith(names.NODE_FEATURE_PREFIX) and _ours(obj)]
        if ours:
            self._tell(f"deleting {len(ours)} x NodeFeature")
        for obj in ours:
            await self._delete(NODE_FEATURES, obj)

    async def _delete_lease(self) -> None:
        if await self._api.delete(LEASES, names.OPERATOR_LEASE, namespace=self._namespace):
            self._tell(f"deleted Lease {names.OPERATOR_LEASE}")


def _managers_only(node: Object) -> Object:
    metadata = mapping(node.get("metadata"))
    managers = {
        (text(entry.get("manager")), text(entry.get("subresource")))
        for entry in map(mapping, items(metadata.get("managedFields")))
        if _is_manager(text(entry.get("manager"))) and entry.get("operation") == "Apply"
    }
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata}
    return {"metadata": kept, "managers": sorted(managers)}


def _is_manager(name: str) -> bool:
    """True for kgpu's field managers, including those of roles in processes of their own."""
    return name in MANAGERS or name.startswith(names.ROLE_FIELD_MANAGER_PREFIX)


def _ours(obj: Object) -> bool:
    entries: Iterable[object] = items(mapping(obj.get("metadata")).get("managedFields"))
    return any(text(mapping(entry).get("manager")).startswith("kgpu") for entry in entries)


def _by_replica_set(pod: Object) -> bool:
    return _controller(pod).get("kind") == "ReplicaSet"


def _pod(pod: Object) -> Object:
    owner = _controller(pod)
    return {
        "metadata": _brief(pod),
        "daemon set": text(owner.get("name")) if owner.get("kind") == "DaemonSet" else "",
        "node": text(mapping(pod.get("spec")).get("nodeName")),
    }


def _readiness(node: Object) -> Object:
    ready = condition_of(mapping(node.get("status")), "Ready")
    return {"metadata": _brief(node), "ready": ready.get("status") == "True"}


def _brief(obj: Object) -> Object:
    return {key: value for key, value in mapping(obj.get("metadata")).items() if key in ("name", "resourceVersion")}


def _controller(pod: Object) -> Mapping[str, Any]:
    owners = map(mapping, items(mapping(pod.get("metadata")).get("ownerReferences")))
    return next((owner for owner in owners if owner.get("controller")), {})


def _all_unreachable(group: BaseExceptionGroup[BaseException]) -> bool:
    return group.split(KubeUnreachableError)[1] is None


def _is_kgpus(deployment: Object) -> bool:
    template = mapping(mapping(deployment.get("spec")).get("template"))
    labels = mapping(mapping(template.get("metadata")).get("labels"))
    return labels.get(names.NAME_LABEL) == names.KGPU
