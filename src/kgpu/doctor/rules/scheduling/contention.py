"""Rows SCH where more than the pod is to blame: other schedulers' verdicts, neighbours, rollouts, gangs, volumes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.plain import text
from kgpu.base.remedy import Remedy
from kgpu.doctor import hami, matching, remedies
from kgpu.doctor.kinds import Event, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.volumes import stuck_claim
from kgpu.doctor.waiting import AFFINITY, RESOURCES, Waiting, waiting
from kgpu.fit.filters_volume import BINDING, ZONE
from kgpu.fit.selectors import Requirement
from kgpu.formats import names
from kgpu.kube.owners import WORKING_TOGETHER

_COUNT: Final = names.LABEL_GPU_COUNT
_TERMS: Final = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_UNPLACED: Final = frozenset({"Pending", "Inqueue", "Unknown"})
"""Phases of Volcano's PodGroup in which some of its pods have no node."""
_QUEUE_FULL: Final = "queue resource quota insufficient"
"""As Volcano's plugins capacity and proportion say it."""
_KAI: Final = {
    "NonPreemptibleOverQuota": (
        "the queue's quota is used up, and its pods can't be preempted: raise the queue's quota, "
        "or use a preemptible priority class"
    ),
    "OverLimit": "the queue's limit is reached: raise the limit of the queue",
    "QueueDoesNotExist": "its queue does not exist: create the queue, or correct the label kai.scheduler/queue",
}


@rule(
    "SCH-10",
    "The count is one of slices",
    Place.CLUSTER,
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, documentation",),
)
def count_of_slices(snapshot: Snapshot) -> Iterator[Finding]:
    """With MIG strategy single nvidia.com/gpu.count is the number of slices; nvidia.com/gpu.replicas shows sharing."""
    for pod in snapshot.pods.values():
        node = snapshot.nodes.get(pod.node)
        if node is None or pod.ended or node.labels.get(names.LABEL_MIG_STRATEGY) != "single":
            continue
        product = node.labels.get(names.LABEL_GPU_PRODUCT, "")
        if "-MIG-" not in product and node.labels.get(names.LABEL_GPU_SLICES_GI) is None:
            continue
        if not (path := _counts(snapshot, pod)) or not matching.accelerators(pod):
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} chose node {node.name} by {_COUNT}, which counts MIG slices there: "
                f"{node.labels.get(_COUNT)} of {product or 'a partitioned GPU'}, not whole GPUs"
            ),
            evidence=(
                pod.cite(path), node.cite(f"metadata.labels[{_COUNT}]"),
                node.cite(f"metadata.labels[{names.LABEL_GPU_PRODUCT}]"),
            ),
            remedy=(
                Remedy("add a term on nvidia.com/gpu.product (without -MIG-), or on nvidia.com/gpu.memory with Gt"),
                Remedy("kubectl get nodes -L {},nvidia.com/gpu.product,nvidia.com/gpu.replicas", _COUNT),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=(node.name,),
            pods=(pod.path,),
        )  # fmt: skip


def _counts(snapshot: Snapshot, pod: Pod) -> str:
    """Where the pod goes by the number of GPUs and by nothing that tells cards from slices."""
    view = snapshot.view(pod)
    if view is None:
        return ""
    wanted: list[tuple[str, Requirement | None]] = [(key, None) for key, _ in view.node_selector]
    wanted += [(row.key, row) for term in view.node_terms or () for row in term.expressions]
    keys = {key for key, _ in wanted}
    if _COUNT not in keys or any("product" in key or "memory" in key or "mig" in key for key in keys):
        return ""
    return f"spec.nodeSelector[{_COUNT}]" if any(key == _COUNT for key, _ in view.node_selector) else _TERMS


@rule("SCH-11", "Small work on big cards", Place.CLUSTER, explains=("SCH-01", "SCH-07", "SCH-14"))
def small_on_big(snapshot: Snapshot) -> Iterator[Finding]:
    """Without an affinity the scheduler takes any node with the resource, so that jobs that would do with a small card
    hold the big ones.
    """
    for pending in waiting(snapshot):
        if pending.fits or not pending.resource or not (pending.view.node_selector or pending.view.node_terms):
            continue
        nodes = pending.only(RESOURCES, pending.resource)
        free = [name for name in pending.only(AFFINITY) if pending.free(name) > 0]
        easy = [pod for pod in pending.holders(100) if pod.node in nodes and _anywhere(snapshot, pod)]
        if not nodes or not free or not easy:
            continue
        spare = snapshot.nodes[free[0]]
        if matching.product(spare) == matching.product(snapshot.nodes[nodes[0]]):
            continue
        if pending.free(spare.name) < matching.accelerators(easy[0]).get(pending.resource, 0):
            continue
        yield Finding(
            cause=(
                f"{pending.who} waits for {matching.product(snapshot.nodes[nodes[0]]) or 'these GPUs'}, which "
                f"{easy[0]} "
                f"holds without asking for that product, while {pending.free(spare.name)} {pending.resource} are free "
                f"on node {spare.name} ({matching.product(spare) or 'another product'})"
            ),
            evidence=(
                easy[0].cite("spec.nodeSelector"),
                easy[0].cite("spec.nodeName"),
                pending.asked(),
                spare.cite(f"metadata.labels[{names.LABEL_GPU_PRODUCT}]"),
            ),
            remedy=(
                Remedy(
                    "give {} a nodeAffinity for the smaller cards ({} In [{}]) and start it again",
                    easy[0],
                    names.LABEL_GPU_PRODUCT,
                    matching.product(spare),
                ),
                Remedy("the scheduler treats every unit of a resource alike; a DRA claim can choose by memory"),
            ),
            confidence=CERTAIN,
            **pending.shared(),
        )


def _anywhere(snapshot: Snapshot, pod: Pod) -> bool:
    view = snapshot.view(pod)
    return view is not None and not view.node_selector and not view.node_terms and not view.volume_claims


@rule(
    "SCH-16",
    "The queue does not let it in",
    Place.CLUSTER,
    explains=("SCH-01", "SCH-15"),
    rests_on=("NVIDIA/KAI-Scheduler 72de64fc, source",),
)
def queue_says_no(snapshot: Snapshot) -> Iterator[Finding]:
    """KAI writes into the PodGroup why its queue does not admit it. Volcano, which places all pods of a group or none,
    does so too (condition Unschedulable).
    """
    yield from _gang_waits(snapshot)
    for group in snapshot.all("PodGroup"):
        for position, row in enumerate(group.maps("status.schedulingConditions")):
            reasons = (
                [reason for reason in row.get("reasons") or () if isinstance(reason, dict)]
                if isinstance(row.get("reasons"), list)
                else []
            )
            known = [reason for reason in reasons if text(reason.get("reason")) in _KAI]
            if text(row.get("status")) == "False" or "Unschedulable" not in text(row.get("type")) or not known:
                continue
            pods = tuple(
                pod.path
                for pod in snapshot.pods.values()
                if pod.namespace == group.namespace
                and pod.unplaced
                and pod.annotations.get(names.KAI_POD_GROUP) == group.name
            )
            word = text(known[0].get("reason"))
            why, _, step = _KAI[word].partition(": ")
            yield Finding(
                subject=group.subject,
                cause=f"{group} of queue {group.text('spec.queue') or '?'} is not scheduled: {why} ({word})",
                evidence=(group.cite(f"status.schedulingConditions[{position}]"), group.cite("spec.queue")),
                remedy=(Remedy(step), Remedy("kubectl get queues.scheduling.run.ai -o yaml")),
                confidence=CERTAIN,
                pods=pods,
            )  # fmt: skip


def _gang_waits(snapshot: Snapshot) -> Iterator[Finding]:
    """Volcano's PodGroups (scheduling.volcano.sh/v1beta1) that ask for accelerators and can't be placed."""
    for group in snapshot.all("PodGroup"):
        unplaced = group.condition("Unschedulable")
        phase = group.text("status.phase")
        if unplaced is None or unplaced.status != "True" or phase not in _UNPLACED:
            continue
        pods = [
            pod for pod in snapshot.pods.values() if pod.namespace == group.namespace and pod.unplaced
            and group.name in map(pod.annotations.get, names.VOLCANO_POD_GROUP)
        ]  # fmt: skip
        asks = any(map(matching.is_accelerator, group.map("spec.minResources")))
        if not asks and not any(map(matching.uses_accelerators, pods)):
            continue
        queue, least = group.text("spec.queue") or "default", group.number("spec.minMember")
        full = _queue_is_full(snapshot, group)
        yield Finding(
            subject=group.subject,
            cause=(
                f"{group} of queue {queue} is not placed: Volcano starts all {least} of its pods at once or none"
                + (", and its queue lets it ask for no more" if full else f" ({unplaced.reason}: {unplaced.message})")
            ),
            evidence=(unplaced.cite(), group.cite("spec"), *((full.quote(),) if full else ())),
            remedy=(
                Remedy("what its queue may have and what it holds:"),
                Remedy("kubectl get queues.scheduling.volcano.sh {} -o yaml", queue),
                Remedy("ask for fewer pods at once (minAvailable of the Job), or raise the capability of the queue"),
                remedies.describe(group.namespace, "podgroups.scheduling.volcano.sh", group.name),
            ),
            confidence=LIKELY,
            since=unplaced.since,
            pods=tuple(pod.path for pod in pods),
        )


def _queue_is_full(snapshot: Snapshot, group: Obj) -> Event | None:
    """The Event of the enqueue action, which holds a group back before its pods are tried."""
    return next((event for event in snapshot.events(group) if _QUEUE_FULL in event.message), None)


@rule(
    "SCH-18",
    "Two jobs block each other",
    Place.CLUSTER,
    explains=("SCH-01", "SCH-07"),
    rests_on=("NVIDIA/KAI-Scheduler, documentation",),
)
def gang(snapshot: Snapshot) -> Iterator[Finding]:
    """Without gang scheduling two jobs can each get some of their workers and wait for the rest for ever."""
    partly: dict[str, list[tuple[Waiting, list[Pod]]]] = {}
    for pending in waiting(snapshot):
        owner = pending.pod.owner
        if pending.fits or not owner or not _all_or_none(snapshot, pending.pod):
            continue
        bound = [
            pod for pod in snapshot.pods_by_owner.get((pending.pod.namespace, owner), ()) if pod.node and not pod.ended
        ]
        held = [pod for pod in bound if pending.resource in matching.accelerators(pod)]
        if held and pending.only(RESOURCES, pending.resource):
            partly.setdefault(pending.resource, []).append((pending, held))
    for resource, rows in partly.items():
        if len(rows) < 2:
            continue
        (pending, held), (blocker, theirs) = sorted(rows, key=lambda row: row[0].pod.key)[:2]
        yield Finding(
            cause=(
                f"{pending.pod.owner} and {blocker.pod.owner} block each other: {len(held)} workers of the one and "
                f"{len(theirs)} of the other hold {resource}, and the rest of both wait for ever"
            ),
            evidence=(
                held[0].cite("spec.nodeName"),
                pending.pod.cite("status.phase"),
                theirs[0].cite("spec.nodeName"),
                blocker.pod.cite("status.phase"),
            ),
            remedy=(
                Remedy("delete one of them:"),
                Remedy("kubectl -n {} delete {}", blocker.pod.namespace, blocker.pod.owner.lower()),
                Remedy("schedule such jobs as a gang: Kueue, KAI or Volcano admit all workers or none"),
            ),
            confidence=LIKELY,
            **pending.shared(pods=tuple(pod.path for row, _ in rows for pod in row.pods)),
        )


def _all_or_none(snapshot: Snapshot, pod: Pod) -> bool:
    kind, _, name = pod.owner.partition("/")
    if kind in WORKING_TOGETHER:
        return True
    job = snapshot.get("Job", name, pod.namespace) if kind == "Job" else None
    return job is not None and job.text("spec.completionMode") == "Indexed"


@rule("SCH-19", "Preempted", Place.CLUSTER, explains=("SCH-01", "SCH-07"))
def preempted(snapshot: Snapshot) -> Iterator[Finding]:
    """The scheduler ends pods of lower priority to make room."""
    latest: dict[tuple[str, str], Event] = {}
    for event in snapshot.all_events():
        if event.reason == "Preempted" and event.about[0] == "Pod":
            latest[event.about[1:]] = event
    if not latest:
        return
    by_uid = {pod.uid: pod for pod in snapshot.pods.values() if pod.uid}
    for key, event in latest.items():
        hurt = _successors(snapshot, key)
        if not hurt:
            continue
        winner = next((pod for uid, pod in by_uid.items() if uid in event.message), None)
        pod = hurt[0]
        shown = [pod.cite("spec.priority") for pod in (pod, winner) if pod is not None]
        yield Finding(
            subject=pod.subject,
            cause=f"{pod} has lost its place to {winner or 'a pod'} of higher priority"
            + (f" ({winner.number('spec.priority')} to {pod.number('spec.priority')})" if winner else ""),
            evidence=(event.quote(), *shown),
            remedy=(
                Remedy("give the pod a PriorityClass that is as high, or the other one preemptionPolicy: Never"),
                Remedy("a PodDisruptionBudget is heeded as far as there is a choice; priorities:"),
                Remedy("kubectl get priorityclasses"),
            ),
            confidence=CERTAIN if winner else LIKELY,
            since=event.first,
            pods=tuple(pod.path for pod in hurt),
        )


def _successors(snapshot: Snapshot, key: tuple[str, str]) -> list[Pod]:
    """The preempted pod itself while it stands there, or the pod that waits in its place."""
    pod = snapshot.pods.get(key)
    if pod is not None:
        return (
            [pod] if matching.uses_accelerators(pod) and (pod.unplaced or pod.deleting or pod.phase == "Failed") else []
        )
    stem = key[1].rpartition("-")[0]
    return [
        pending.pod for pending in waiting(snapshot)
        if stem and pending.pod.namespace == key[0]
        and pending.pod.owner and pending.pod.name.rpartition("-")[0] == stem
    ]  # fmt: skip


@rule("SCH-22", "A rollout that can't begin", Place.CLUSTER, explains=("SCH-01", "SCH-07"))
def rollout(snapshot: Snapshot) -> Iterator[Finding]:
    """By default maxSurge rounds up to 1 and maxUnavailable down to 0: the new pod needs a GPU that the
    old one holds.
    """
    for pending in waiting(snapshot):
        kind, _, name = pending.pod.owner.partition("/")
        maker = snapshot.get("ReplicaSet", name, pending.pod.namespace) if kind == "ReplicaSet" else None
        parent = maker.owner.removeprefix("Deployment/") if maker and maker.owner.startswith("Deployment/") else ""
        deployment = snapshot.get("Deployment", parent, pending.pod.namespace)
        if pending.fits or deployment is None or not _surges(deployment):
            continue
        old = [
            pod
            for pod in pending.holders(100)
            if pod.namespace == pending.pod.namespace
            and pod.owner != pending.pod.owner
            and _deployment_of(snapshot, pod) == parent
        ]
        if not old:
            continue
        patch = '{"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}'
        yield Finding(
            cause=(
                f"the rollout of {deployment} stands still: its new pod {pending.pod.name} waits for "
                f"{pending.resource} that "
                f"its old pod {old[0].name} holds, and the strategy ends no old pod before a new one is ready"
            ),
            evidence=(
                deployment.cite("spec.strategy"),
                deployment.cite("spec.replicas"),
                old[0].cite("metadata.ownerReferences[0].name"),
                pending.asked(),
            ),
            remedy=(
                Remedy("kubectl -n {} patch deployment {} -p '{}'", deployment.namespace, deployment.name, patch),
                Remedy("or set spec.strategy.type: Recreate, or keep one GPU to spare"),
            ),
            confidence=CERTAIN,
            **pending.shared(subject=deployment.subject, nodes=()),
        )


def _deployment_of(snapshot: Snapshot, pod: Pod) -> str:
    kind, _, name = pod.owner.partition("/")
    maker = snapshot.get("ReplicaSet", name, pod.namespace) if kind == "ReplicaSet" else None
    return maker.owner.removeprefix("Deployment/") if maker else ""


def _surges(deployment: Obj) -> bool:
    """Whether a rollout starts a new pod before it ends an old one, as the defaults do with up to three replicas."""
    if deployment.text("spec.strategy.type") not in ("", "RollingUpdate"):
        return False
    replicas = deployment.number("spec.replicas", 1)
    surge = _share(deployment.at("spec.strategy.rollingUpdate.maxSurge"), replicas, up=True)
    return surge > 0 and _share(deployment.at("spec.strategy.rollingUpdate.maxUnavailable"), replicas, up=False) == 0


def _share(setting: Any, of: int, *, up: bool) -> int:
    if isinstance(setting, int) and not isinstance(setting, bool):
        return setting
    number = text(setting).removesuffix("%") if text(setting).endswith("%") else "25"
    exact = of * (int(number) if number.isdecimal() and len(number) < 5 else 25) / 100
    return math.ceil(exact) if up else math.floor(exact)


@rule("SCH-23", "The volume is where no GPU is", Place.CLUSTER, explains=("SCH-14", "SCH-01"))
def volumes(snapshot: Snapshot) -> Iterator[Finding]:
    """A volume that is bound in a zone can be used in that zone only, and one with ReadWriteOnce at one
    node at a time.
    """
    for pending in waiting(snapshot):
        # SCH-00 reports what is wrong with a claim itself.
        if not pending.view.volume_claims or pending.fits or stuck_claim(pending) is not None:
            continue
        reasons = (*pending.against(BINDING), *pending.against(ZONE))
        nodes = tuple(dict.fromkeys((*pending.only(BINDING), *pending.only(ZONE), *_only_volumes(pending))))
        if not reasons or not nodes:
            continue
        volume = snapshot.get("PersistentVolume", reasons[0].subject)
        claims = [name for name, _ in pending.view.volume_claims]
        yield Finding(
            cause=f"{pending.who} waits: {reasons[0].sentence}, so that its data can't be used where the GPUs are",
            evidence=(
                *((volume.cite("spec.nodeAffinity"),) if volume else ()),
                pending.pod.cite("spec.volumes"),
                *(snapshot.nodes[name].cite("metadata.labels[topology.kubernetes.io/zone]") for name in nodes[:1]),
                *pending.said(),
            ),
            remedy=(
                Remedy(
                    "move the data of claim {} to a zone that has GPUs, or add GPU nodes to the volume's zone",
                    ", ".join(claims) or "?",
                ),
                Remedy(
                    "use a StorageClass with volumeBindingMode: WaitForFirstConsumer, "
                    "or storage that every zone can reach"
                ),
            ),
            confidence=CERTAIN,
            **pending.shared(nodes=nodes),
        )
    yield from _attached_twice(snapshot)


def _only_volumes(pending: Waiting) -> list[str]:
    return [
        name
        for name, reasons in pending.reasons.items()
        if reasons and all(row.filter in (BINDING, ZONE) for row in reasons)
    ]


def _attached_twice(snapshot: Snapshot) -> Iterator[Finding]:
    for event in snapshot.all_events():
        pod = snapshot.pods.get(event.about[1:]) if event.about[0] == "Pod" else None
        if pod is None or "Multi-Attach error" not in event.message or pod.ready or not matching.uses_accelerators(pod):
            continue
        names_ = {
            text(volume.get("persistentVolumeClaim", {}).get("claimName"))
            for volume in pod.maps("spec.volumes")
            if isinstance(volume.get("persistentVolumeClaim"), dict)
        }
        claims = [
            claim for name in sorted(names_) if (claim := snapshot.get("PersistentVolumeClaim", name, pod.namespace))
        ]
        modes: tuple[Evidence, ...] = tuple(claim.cite("spec.accessModes") for claim in claims[:2])
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} does not start: its volume is attached to another node, "
                "and its claim can be used at one node only"
            ),
            evidence=(event.quote(), *modes),
            remedy=(
                Remedy("use storage with access mode ReadWriteMany for workers on several nodes"),
                Remedy("or put the pods that share the claim on one node"),
            ),
            confidence=CERTAIN,
            since=event.first,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


RULES: Final = rules_of(
    Sign(
        id="SCH-17",
        title="HAMi finds no card",
        place=Place.CLUSTER,
        where=(EVENT,),
        words="",
        besides=hami.unfit,
        pattern=(
            r"(?P<why>Card(?:InsufficientMemory|TypeMismatch|UuidMismatch|TimeSlicingExhausted|InsufficientCore"
            r"|NotHealth|Cordoned|MigTopologyInfeasible)|NumaNotFit|ExclusiveDeviceAllocateConflict)"
        ),
        cause="HAMi finds no card for {who}: {why}",
        remedy=(
            "kubectl get nodes -o yaml | grep -A 3 hami.io/node",
            (
                "CardInsufficientMemory, CardInsufficientCore: ask for less nvidia.com/gpumem or gpucores; "
                "CardTypeMismatch, CardUuidMismatch: look at the pod's annotations use-gputype and use-gpuuuid; "
                "CardNotHealth, CardCordoned:"
            ),
            "kgpu doctor node",
        ),
        explain="HAMi's scheduler extender counts the reasons card by card in its event FilteringFailed.",
        confidence=CERTAIN,
        explains=("SCH-01", "SCH-02", "SCH-14"),
        rests_on=("Project-HAMi/HAMi v2.10.0, source",),
    ),
)
