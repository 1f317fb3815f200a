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
from kgpu.base.suggest import one_of
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.events import ClusterEvents
from kgpu.kube.kinds import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Resource, annotations_of, name_of
from kgpu.usage.asked_reclaim import ProcessWord
from kgpu.usage.reclaim import owners, writing
from kgpu.usage.reclaim.guards import OF_THE_POLICY, GuardAnswer, GuardFacts, answers, obstacle, span
from kgpu.usage.reclaim.keeps import keeps_of
from kgpu.usage.reclaim.model import HeldWorkload, ReclaimMode, WorkloadRef
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
    """What every guard says of a workload, what would be done, and the deadline that its annotation shows.

    ``unknown``: guards whose answer the process that acts alone has, and why it is not known here. ``last``: how its
    last look at the workload ended, "" where that is not known.
    """

    facts: GuardFacts
    guards: tuple[GuardAnswer, ...]
    action: str
    deadline: str
    unknown: Mapping[str, str]
    last: str = ""


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
            return await _top_of(look, resource, obj)
    raise ConfigError(
        f"there is no pod and no workload {name} in {space}{_but(unseen)}",
        f"one of: pod, {', '.join(row.kind for row in KEPT_RESOURCES)}", f"`kubectl -n {space} get pods` lists pods",
    )  # fmt: skip


async def _top_of(look: ClusterLook, resource: Resource, obj: Object) -> tuple[Resource, Object]:
    """What controls it in the end, such as the LeaderWorkerSet of a StatefulSet; itself where that can't be read."""
    try:
        found = await look.owners(obj)
    except KubeRefusedError as refused:
        _unless_forbidden(refused, resource, [])
        return resource, obj
    above = owners.resource_of_owner(found.top) if found.chain else None
    return (resource, obj) if above is None else (above, found.top)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKept:
    """What is kept until when, in seconds since 1970; why not for as long as was asked, and what is not known."""

    title: str
    until: float
    notes: tuple[str, ...] = ()


async def keep(
    api: KubeApi, space: str, name: str, *, until: float, by: str, now: float, word: ProcessWord,
    own_namespace: str = "",
) -> WorkloadKept:  # fmt: skip
    """Keep a workload until then, or as long as the policy allows. Raises ConfigError and KubeError."""
    look = ClusterLook(api, own_namespace)
    resource, obj = await named(look, space, name)
    target = target_by(StopWay.EVICT, resource, obj)
    limit = await _limit(look, space, {name, target.name}, now, word)
    if limit.end <= now:
        raise ConfigError(f"{target.title} can't be kept any longer: {limit.why}", "that it was used since", _MORE)
    notes = [limit.why if until > limit.end else "", limit.doubt]
    until = min(until, limit.end)
    await writing.annotate(api, target, {names.KEEP_UNTIL: stamp_of(until), names.KEEP_BY: by or None})
    return WorkloadKept(title=target.title, until=until, notes=tuple(filter(None, notes)))


_MORE: Final = "use its GPUs or give them back; who runs the cluster can allow more (spec.reclaim.longestKeep)"


@dataclass(frozen=True, slots=True)
class _KeepLimit:
    """Until when a workload may be kept and why, and what of that is not known."""

    end: float = float("inf")
    why: str = ""
    doubt: str = ""


async def _limit(look: ClusterLook, space: str, called: set[str], now: float, word: ProcessWord) -> _KeepLimit:
    """What the policy allows a workload, by any of its names. Raises KubeError."""
    try:
        policy, _ = await look.policy(space)
    except KubeRefusedError as refused:
        if refused.code != 403:
            raise
        return _KeepLimit(doubt="you may not read the GPUUsagePolicies, one of which may let it be kept for less time")
    if policy.mode is ReclaimMode.OBSERVE:
        return _KeepLimit()
    known = [one.kept_since for (where, _, name), one in word.workloads.items() if where == space and name in called]
    since = min((moment for moment in known if moment is not None), default=None)
    why = f"GPUUsagePolicy {policy.name} lets an idle workload be kept for {span(policy.longest_keep)} at most"
    if since is not None:
        return _KeepLimit(since + policy.longest_keep, f"{why}, and it is kept since {stamp_of(since)}")
    doubt = "" if word.known else f"{why}, and for how long it has been kept is not known: {word.why}"
    return _KeepLimit(now + policy.longest_keep, why, doubt)


BUDGET: Final = "budget"
"""The guard whose answer only the process that acts has."""


def _with_word(facts: GuardFacts, word: ProcessWord) -> tuple[GuardFacts, dict[str, str]]:
    """The facts with what the process knows, and the guards whose answer is not known for want of that."""
    ref, policy, unknown = facts.workload.ref, facts.policy, dict[str, str]()
    said = word.of(ref.namespace, ref.kind, ref.name)
    why = word.why or ("" if said is not None else "kgpu-usage has not seen it yet")
    if policy.watches_requests:
        if said is not None and said.watched:
            facts = replace(facts, requests=said.requests)
        elif not facts.workload.kept:
            unknown["traffic"] = f"requests are not known here: {why or 'kgpu-usage does not watch them yet'}"
    limited = [one for one in keeps_of(facts.objects, policy, facts.now) if one.limited]
    if said is not None and said.kept_since is not None:
        facts = replace(facts, keep_ends=said.kept_since + policy.longest_keep)
    elif limited and said is None and policy.mode is not ReclaimMode.OBSERVE:
        unknown["annotations"] = (
            f"{limited[0].sentence}, which counts for {span(policy.longest_keep)} at most; since when is not known "
            f"here: {why}"
        )
    return facts, unknown


async def explain(look: ClusterLook, workload: HeldWorkload, now: float, word: ProcessWord) -> WorkloadExplained:
    """What the guards say now. Raises KubeError."""
    policy, unsure = await look.policy(workload.ref.namespace)
    facts = await look.facts(workload, policy, now, unsure or await look.doubt(policy, workload))
    facts, unknown = _with_word(facts, word)
    target, found = facts.target, answers(facts)
    stopping = [one.guard.name for one in found if one.why and one.guard.name not in unknown]
    if isinstance(target, StopTarget):
        action = f"{target.title}: {target.way}"
        deadline = str(annotations_of(target.obj).get(names.RECLAIM_AT) or "")
        if stopping:
            action = f"nothing now (stopped by {', '.join(stopping)}); else {action}"
        elif unknown:
            action = f"not known here (for want of {', '.join(unknown)}); if nothing stops it {action}"
    else:
        action, deadline = f"nothing: {target}", ""
    return WorkloadExplained(
        facts=facts, guards=found, action=action, deadline=deadline, last=_last(word, workload.ref),
        unknown={**unknown, BUDGET: "asked when it is to be stopped"},
    )  # fmt: skip


def _last(word: ProcessWord, ref: WorkloadRef) -> str:
    """How the process's last look at a workload ended."""
    said = word.of(ref.namespace, ref.kind, ref.name)
    if word.at is None or said is None or not (said.step or said.why):
        return ""
    return f"{stamp_of(word.at)}: {said.step or 'no step'}{said.why and f' ({said.why})'}"


async def reclaim(
    api: KubeApi, workload: HeldWorkload, *, now: float, by: str, own_namespace: str, evict: writing.EvictPod,
    word: ProcessWord, dry_run: bool = False,
) -> tuple[StopTarget | None, str]:  # fmt: skip
    """Stop a workload now, because a person says so; the target, and why not where it was not. Raises KubeError."""
    look = ClusterLook(api, own_namespace)
    policy, _ = await look.policy(workload.ref.namespace)
    facts = await look.facts(workload, replace(policy, bare_pods=True), now, await look.doubt(policy, workload))
    facts, unknown = _with_word(facts, word)
    why = obstacle(facts, without=OF_THE_POLICY) or unknown.get("traffic", "")
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
    look, unseen, stopped = ClusterLook(api, own_namespace), list[str](), list[str]()
    for way, resource in _STOPPED:
        for obj in await _marked(look, resource, space, unseen):
            if owners.remembered_of(obj)[0] != way:
                continue
            if name not in _names_of(obj):
                stopped.append(name_of(obj))
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
        one_of(name, stopped) if stopped else f"an object with the annotation {names.RECLAIM_ACTION}",
        f"kgpu idle resume {space}/NAME" if stopped else f"`kgpu idle -n {space}` lists what is idle",
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
