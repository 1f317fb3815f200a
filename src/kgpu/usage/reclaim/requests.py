"""For clients: find a workload by name, keep it, stop it now, bring it back, and say why nothing happens to it.

A person's own stop passes the guards but for those of the policy, and needs no warning; it is as reversible as another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.events import ClusterEvents
from kgpu.kube.kinds import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Resource, annotations_of
from kgpu.usage.reclaim import owners, writing
from kgpu.usage.reclaim.guards import OF_THE_POLICY, GuardAnswer, GuardFacts, answers, obstacle
from kgpu.usage.reclaim.model import HeldWorkload, WorkloadRef
from kgpu.usage.reclaim.owners import StopTarget, StopWay, target_by
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record_store import RecordStore

KEPT_RESOURCES = (
    DEPLOYMENTS, STATEFUL_SETS, owners.LEADER_WORKER_SETS, owners.NOTEBOOKS, owners.INFERENCE_SERVICES,
    JOBS, owners.JOB_SETS, REPLICA_SETS,
)  # fmt: skip
"""Where a name is looked for, behind pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadExplained:
    """What every guard says of a workload, what would be done, and the deadline that its annotation shows."""

    facts: GuardFacts
    guards: tuple[GuardAnswer, ...]
    action: str
    deadline: str


def split_name(text: str, namespace: str = "") -> tuple[str, str]:
    """``NAMESPACE/NAME``, or a name where the namespace is given. Raises ConfigError."""
    space, slash, name = text.partition("/")
    if not slash:
        space, name = namespace, text
    if not space or not name or "/" in name:
        raise ConfigError(f"{text!r} names no workload", "NAMESPACE/NAME", "write both, such as team-a/llama")
    return space, name


async def named(look: ClusterLook, space: str, name: str) -> tuple[Resource, Object]:
    """The workload of that name: a pod's top, or an owner itself. Raises ConfigError where there is none, KubeError."""
    pod = await look.got(PODS, space, name)
    if pod is not None:
        found = await look.owners(pod)
        if not found.chain:
            return PODS, pod
        reference = {"apiVersion": found.top.get("apiVersion"), "kind": found.top.get("kind")}
        resource = owners.resource_of_owner(reference)
        return (resource, found.top) if resource is not None else (PODS, pod)
    unseen: list[str] = []
    for resource in KEPT_RESOURCES:
        try:
            obj = await look.got(resource, space, name)
        except KubeRefusedError as refused:
            _unless_forbidden(refused, resource, unseen)
            continue
        if obj is not None:
            return resource, obj
    raise ConfigError(
        f"there is no pod and no workload {name} in {space}{_but(unseen)}",
        f"one of: pod, {', '.join(row.kind for row in KEPT_RESOURCES)}", f"`kubectl -n {space} get pods` lists pods",
    )  # fmt: skip


async def keep(api: KubeApi, space: str, name: str, *, until: float, by: str, own_namespace: str = "") -> str:
    """Keep a workload until then; returns what was kept. Raises ConfigError and KubeError."""
    resource, obj = await named(ClusterLook(api, own_namespace), space, name)
    change = {names.KEEP_UNTIL: stamp_of(until), names.KEEP_BY: by or None}
    target = target_by(StopWay.EVICT, resource, obj)
    await writing.annotate(api, target, change)
    return target.title


ASKED_AT_THE_ACT: Final = frozenset({"budget"})
"""Guards whose answer only the process that acts has."""


async def explain(look: ClusterLook, workload: HeldWorkload, now: float) -> WorkloadExplained:
    """What the guards say now. Raises KubeError."""
    policy, unsure = await look.policy(workload.ref.namespace)
    facts = await look.facts(workload, policy, now, unsure or await look.doubt(policy, workload))
    target = facts.target
    if isinstance(target, StopTarget):
        return WorkloadExplained(
            facts=facts, guards=answers(facts), action=f"{target.title}: {target.way}",
            deadline=str(annotations_of(target.obj).get(names.RECLAIM_AT) or ""),
        )  # fmt: skip
    return WorkloadExplained(facts=facts, guards=answers(facts), action=f"nothing: {target}", deadline="")


async def reclaim(
    api: KubeApi, workload: HeldWorkload, *, now: float, by: str, own_namespace: str, evict: writing.EvictPod,
    dry_run: bool = False,
) -> tuple[StopTarget | None, str]:  # fmt: skip
    """Stop a workload now, because a person says so; the target, and why not where it was not. Raises KubeError."""
    look = ClusterLook(api, own_namespace)
    policy, _ = await look.policy(workload.ref.namespace)
    facts = await look.facts(workload, replace(policy, bare_pods=True), now, await look.doubt(policy, workload))
    why = obstacle(facts, without=OF_THE_POLICY)
    target = facts.target
    if why or not isinstance(target, StopTarget) or dry_run:
        return (target if isinstance(target, StopTarget) else None), why
    marked = await writing.remember(api, target)
    target = replace(target, obj={**target.obj, **marked})
    await writing.stop(api, target, now, evict)
    told = Advice(
        subject=workload.ref.title, reason="Reclaimed", severity=Severity.WARNING, why=f"{by} has said so",
        what=f"it was stopped ({target.way})", remedy=f"bring it back: kgpu idle resume {workload.ref}",
    )  # fmt: skip
    events = ClusterEvents(api, component=names.RECLAIM_COMPONENT, now=lambda: now)
    await events.publish(told, writing.about(target))
    return target, ""


async def resume(api: KubeApi, space: str, name: str, *, own_namespace: str = "") -> str:
    """Bring a workload back that kgpu has stopped; returns what was. Raises ConfigError and KubeError."""
    look, unseen = ClusterLook(api, own_namespace), list[str]()
    for way, resource in _STOPPED:
        for obj in await _marked(look, resource, space, unseen):
            if name not in _names_of(obj) or owners.remembered_of(obj)[0] != way:
                continue
            target = target_by(way, resource, obj)
            if await writing.resume(api, target, owners.remembered_of(obj)[1]):
                return target.title
            raise ConfigError(
                f"{target.title} does not say what it had", f"a number in {names.ORIGINAL_REPLICAS}",
                "scale it with kubectl, and remove its annotations of kgpu.dev",
            )  # fmt: skip
    raise ConfigError(
        f"kgpu has stopped nothing that is called {name} in {space}{_but(unseen)}",
        f"an object with the annotation {names.RECLAIM_ACTION}", f"`kgpu idle -n {space}` lists what is idle",
    )  # fmt: skip


_STOPPED = (
    *((StopWay.SCALE, row) for row in (
        DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, owners.LEADER_WORKER_SETS)),
    (StopWay.PREDICTOR, owners.INFERENCE_SERVICES),
    (StopWay.NOTEBOOK, owners.NOTEBOOKS),
    (StopWay.WORKLOAD, owners.KUEUE_WORKLOADS),
    (StopWay.SUSPEND, JOBS),
)  # fmt: skip


async def _marked(look: ClusterLook, resource: Resource, space: str, unseen: list[str]) -> list[Object]:
    try:
        return [obj for obj in await look.listed(resource, space) if names.RECLAIM_ACTION in annotations_of(obj)]
    except KubeRefusedError as refused:
        _unless_forbidden(refused, resource, unseen)
        return []


def _unless_forbidden(refused: KubeRefusedError, resource: Resource, unseen: list[str]) -> None:
    """Go on without a kind that is not there, or that this person may not read: an API server says the latter of kinds
    that are not there, too. Raises KubeError for anything else.
    """
    if refused.code == 403:
        unseen.append(resource.kind)
    elif refused.code != 404:
        raise refused


def _but(unseen: list[str]) -> str:
    return f", as far as it can be seen: you may not read {', '.join(unseen)}" if unseen else ""


def _names_of(obj: Object) -> set[str]:
    """Its own name, and those of its owners: a Kueue Workload is known by what it admits."""
    metadata = obj.get("metadata") or {}
    return {str(metadata.get("name")), *(str(one.get("name")) for one in metadata.get("ownerReferences") or ())}


async def lift_freeze(api: KubeApi, own_namespace: str) -> str:
    """A person says that the data is right after all; returns what was doubted, "" for nothing. Raises ConfigError,
    KubeError.
    """
    store = RecordStore(api, own_namespace)
    record = await store.load()
    if record.freeze is None:
        return ""
    await store.save(msgspec.structs.replace(record, freeze=None))
    return record.freeze.why


def workload_named(found: Mapping[WorkloadRef, HeldWorkload], space: str, name: str) -> HeldWorkload | None:
    """The workload of that name, or the one that a pod of that name belongs to."""
    own = [one for ref, one in found.items() if ref.namespace == space]
    by_name = (one for one in own if one.ref.name == name)
    return next(by_name, None) or next((one for one in own if name in one.pods), None)
