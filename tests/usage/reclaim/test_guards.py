"""Each guard alone stops: one row each of what keeps a workload, on a workload that nothing else keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.usagepolicy import UsageProtect, UsageSchedule
from kgpu.formats.usage import UsageState
from kgpu.kube.port import Object
from kgpu.usage.now import DeviceNow, HolderNow
from kgpu.usage.reclaim.guards import GUARDS, GuardFacts, answers, obstacle, span
from kgpu.usage.reclaim.model import HeldDevice, HeldWorkload, ReclaimMode, ReclaimPolicy, WorkloadRef
from kgpu.usage.reclaim.owners import OwnersFound, stop_target
from kgpu.usage.states import YOUNG, UsageVerdict
from tests.usage.reclaim.scene import HOUR, START

Change = Callable[[GuardFacts], GuardFacts]
POLICY = ReclaimPolicy(name="p", mode=ReclaimMode.RECLAIM, namespaces=("team-a",))


def obj(kind: str, name: str, **metadata: Any) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "team-a", **metadata}}


def owned(child: Object, owner: Object) -> Object:
    reference = {"kind": owner["kind"], "name": owner["metadata"]["name"], "controller": True}
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [reference]}}


def held(**verdict: Any) -> HeldDevice:
    said = {"state": UsageState.HELD_IDLE, "why": "", "coverage": 1.0, "idle_since": START - 3 * HOUR, **verdict}
    holder = HolderNow(
        namespace="team-a", pod="llama-1", uid="u", owner="Deployment/llama", held_since=START - 9 * HOUR
    )
    one = UsageVerdict(**said)
    return HeldDevice(
        device=DeviceNow(node="n", device="GPU-1", verdict=one, holders=(holder,)), holder=holder, verdict=one
    )


def facts() -> GuardFacts:
    """Nothing keeps it."""
    deployment = {**obj("Deployment", "llama"), "spec": {"replicas": 1}, "status": {"updatedReplicas": 1}}
    sets = owned(obj("ReplicaSet", "llama-1"), deployment)
    pod = {**owned(obj("Pod", "llama-1"), sets), "status": {"startTime": stamp_of(START - 9 * HOUR)}, "spec": {}}
    found = OwnersFound(pod=pod, chain=(sets, deployment))
    return GuardFacts(
        policy=POLICY, now=START, found=found, target=stop_target(found), pods=(pod,), own_namespace="gpu-operator",
        workload=HeldWorkload(ref=WorkloadRef("team-a", "Deployment", "llama"), held=(held(),)),
        namespace={"kind": "Namespace", "metadata": {"name": "team-a", "labels": {names.RECLAIM_LABEL: "enabled"}}},
    )  # fmt: skip


def policy(**more: Any) -> Change:
    return lambda one: replace(one, policy=replace(one.policy, **more))


def workload(*devices: HeldDevice) -> Change:
    return lambda one: replace(one, workload=replace(one.workload, held=devices))


def pod(*, status: Object | None = None, spec: Object | None = None, **metadata: Any) -> Change:
    def change(one: GuardFacts) -> GuardFacts:
        (was,) = one.pods
        now = {
            **was, "metadata": {**was["metadata"], **metadata}, "status": {**was["status"], **(status or {})},
            "spec": {**was["spec"], **(spec or {})},
        }  # fmt: skip
        return replace(one, pods=(now,))

    return change


def space(labels: Object | None = None, annotations: Object | None = None) -> Change:
    label = {names.RECLAIM_LABEL: "enabled"} if labels is None else labels
    body = {"name": "team-a", "labels": label, "annotations": annotations or {}}
    return lambda one: replace(one, namespace={"kind": "Namespace", "metadata": body})


def deployment(*, status: Object | None = None, **metadata: Any) -> Change:
    def change(one: GuardFacts) -> GuardFacts:
        assert one.found is not None
        *below, top = one.found.chain
        now = {**top, "metadata": {**top["metadata"], **metadata}, "status": {**top["status"], **(status or {})}}
        found = replace(one.found, chain=(*below, now))
        return replace(one, found=found, target=stop_target(found))

    return change


def owner(kind: str, api: str = "batch/v1", **metadata: Any) -> Change:
    def change(one: GuardFacts) -> GuardFacts:
        top = {**obj(kind, "train", **metadata), "apiVersion": api, "spec": {}}
        found = replace(one.found, chain=(top,), unknown="") if one.found else None
        assert found is not None
        return replace(one, found=found, target=stop_target(found))

    return change


def replica_set(**annotations: str) -> Change:
    """With copies of annotations that the Deployment has, or has had."""

    def change(one: GuardFacts) -> GuardFacts:
        assert one.found is not None
        sets, top = one.found.chain
        copied = {**sets, "metadata": {**sets["metadata"], "annotations": annotations}}
        return replace(one, found=replace(one.found, chain=(copied, top)))

    return change


def bare(one: GuardFacts) -> GuardFacts:
    found = OwnersFound(pod=one.pods[0])
    return replace(one, found=found, target=stop_target(found))


def annotated(key: str, value: str) -> Change:
    return deployment(annotations={key: value})


def notebook(last: str | None, **annotations: str) -> Change:
    """A Kubeflow Notebook of which its controller says this."""
    own = {**annotations, **({} if last is None else {names.NOTEBOOK_LAST_ACTIVITY: last})}

    def change(one: GuardFacts) -> GuardFacts:
        top = {**obj("Notebook", "nb", annotations=own), "apiVersion": "kubeflow.org/v1", "spec": {}}
        found = OwnersFound(pod=one.pods[0], chain=(obj("StatefulSet", "nb"), top))
        return replace(one, found=found, target=stop_target(found))

    return change


def kept_for(
    seconds: float, key: str = names.KEEP_UNTIL, value: str = "3000-01-01T00:00:00Z", **limits: Any
) -> Change:  # fmt: skip
    """An annotation that is counted as keeping it since then, where a week is allowed."""

    def change(one: GuardFacts) -> GuardFacts:
        end = START - seconds + one.policy.longest_keep
        return annotated(key, value)(replace(policy(**limits)(one), keep_ends=end))

    return change


IDLE = {"idle_since": START - 3 * HOUR}
ROWS: tuple[tuple[str, str, Change, str], ...] = (
    ("observe", "mode", policy(mode=ReclaimMode.OBSERVE), "the mode is observe"),
    ("notify", "mode", policy(mode=ReclaimMode.NOTIFY), "the mode is notify"),
    ("not named", "namespace", policy(namespaces=("team-b",)), "no policy names the namespace team-a"),
    ("no label", "namespace", space({}), "has not the label kgpu.dev/reclaim=enabled"),
    ("never", "namespace", space({names.RECLAIM_LABEL: "never"}), "kgpu.dev/reclaim=never"),
    ("own namespace", "system", lambda one: replace(one, own_namespace="team-a"), "team-a is never touched"),
    ("protected namespace", "protect", policy(protect=UsageProtect(namespaces=("team-a",))), "protects the namespace team-a"),
    ("unreadable", "namespace", lambda one: replace(one, namespace=None), "could not be read"),
    ("night", "schedule", lambda one: replace(one, now=START + 12 * HOUR), "it is Mon 22:00, outside"),
    ("weekend", "schedule", lambda one: replace(one, now=START + 120 * HOUR), "it is Sat 10:00, outside"),
    ("zone", "schedule", policy(schedule=UsageSchedule(time_zone="Asia/Tokyo")), "it is Mon 19:00"),
    ("kind", "protect", policy(protect=UsageProtect(kinds=("Deployment",))), "protects the kind Deployment"),
    ("kind as people write it", "protect", policy(protect=UsageProtect(kinds=("deployment",))), "the kind Deployment"),
    ("owner", "protect", policy(protect=UsageProtect(owners=("Deployment/llama",))), "protects Deployment team-a/llama"),
    ("owner by namespace", "protect", policy(protect=UsageProtect(owners=("team-a/deployment/llama",))), "Deployment team-a/llama"),
    ("labels", "protect", lambda one: pod(labels={"tier": "prod"})(
        policy(protect=UsageProtect(labels={"tier": "prod"}))(one)), "tier=prod, which is protected"),
    ("unknown", "data", workload(held(), held(state=UsageState.UNKNOWN, why="no reading")), "state is unknown: no reading"),
    ("too young", "data", workload(held(), held(state=UsageState.BUSY, why=YOUNG)),
     "not known yet: it has to hold its GPUs for 2h 15m, of which 9h have passed"),
    ("one works", "data", workload(held(state=UsageState.BUSY), held(state=UsageState.BUSY, why=YOUNG)), "it is busy"),
    ("busy", "data", workload(held(), held(state=UsageState.BUSY)), "it is busy"),
    ("down", "data", workload(held(state=UsageState.DOWN, why="lost")), "unknown: lost"),
    ("hung", "data", workload(held(state=UsageState.HUNG)), "its gang hangs"),
    ("coverage", "data", workload(held(coverage=0.89)), "readings cover 89% of the time, not 90%"),
    ("too short", "data", workload(held(idle_since=START - HOUR)), "for less than 2h"),
    ("asked for longer", "data", annotated(names.IDLE_AFTER, "12h"), "for less than 12h"),
    ("asked for nonsense", "data", annotated(names.IDLE_AFTER, "long"), "for less than 7d"),
    ("asked for long", "data", annotated(names.IDLE_AFTER, "9000h"), "for less than 7d"),
    ("namespace asked", "data", space(annotations={names.IDLE_AFTER: "long"}), "for less than ever"),
    ("unwatched", "data", lambda one: replace(one, unwatched=("llama-2",)), "nothing says that its pod llama-2 is idle"),
    ("freeze", "freeze", lambda one: replace(one, frozen="all GPUs turned idle at once"), "turned idle at once"),
    ("never by annotation", "annotations", annotated(names.IDLE_POLICY, "never"), "kgpu.dev/idle-policy: never"),
    ("notify by annotation", "annotations", annotated(names.IDLE_POLICY, "notify"), "kgpu.dev/idle-policy: notify"),
    ("on the namespace", "annotations", space(annotations={names.IDLE_POLICY: "never"}), "Namespace team-a has"),
    ("keep", "annotations", annotated(names.KEEP_UNTIL, stamp_of(START + 60)), "kgpu.dev/keep-until"),
    ("keep nonsense", "annotations", annotated(names.KEEP_UNTIL, "tomorrow"), "kgpu.dev/keep-until: tomorrow"),
    ("keep for longer than is allowed", "annotations", kept_for(6 * 24 * HOUR), "which counts until 2026-08-11T10:00"),
    ("never, limited", "annotations", kept_for(6 * 24 * HOUR, names.IDLE_POLICY, "never", limit_exemptions=True),
     "which counts until 2026-08-11T10:00"),
    ("never, not limited", "annotations", kept_for(80 * 24 * HOUR, names.IDLE_POLICY, "never"), "idle-policy: never"),
    ("kept by its namespace", "annotations", lambda one: kept_for(9e7)(space(
        annotations={names.KEEP_UNTIL: "3000-01-01T00:00:00Z"})(replace(one, policy=replace(
            one.policy, limit_exemptions=True)))), "Namespace team-a has"),
    ("karpenter", "annotations", pod(annotations={"karpenter.sh/do-not-disrupt": "true"}), "do-not-disrupt"),
    ("karpenter for", "annotations", pod(annotations={"karpenter.sh/do-not-disrupt": "12h"}), "do-not-disrupt: 12h"),
    ("autoscaler", "annotations", pod(annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}), "evict"),
    ("descheduler", "annotations", pod(annotations={"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}), "prefer"),
    ("downscaler", "annotations", annotated("downscaler/exclude", "true"), "downscaler/exclude"),
    ("downscaler until", "annotations", annotated("downscaler/exclude-until", "2026-08-11T00:00:00Z"), "exclude-until"),
    ("gpu-pruner", "annotations", annotated("gpu-pruner.io/ack-until", "2026-08-11T00:00:00+00:00"), "ack-until"),
    ("keda paused", "annotations", annotated("autoscaling.keda.sh/paused-scale-in", "true"), "paused-scale-in"),
    ("bare", "owner", bare, "it has no owner"),
    ("bare, asked once", "owner", lambda one: bare(policy(bare_pods=True)(one)), "it has no owner"),
    ("unknown owner", "owner", lambda one: replace(
        one, target=stop_target(OwnersFound(pod=one.pods[0], unknown="Cluster c"))), "no reversible way to stop a Cluster"),
    ("lost owner", "owner", lambda one: replace(
        one, target=stop_target(OwnersFound(pod=one.pods[0], missing="ReplicaSet x"))), "ReplicaSet x is not there"),
    ("terminating", "owner", pod(deletionTimestamp="2026-08-10T09:00:00Z"), "is being deleted"),
    ("finalizers", "owner", pod(finalizers=["x/y"]), "finalizers"),
    ("static", "owner", pod(annotations={"kubernetes.io/config.mirror": "x"}), "static pod"),
    ("daemon", "owner", pod(ownerReferences=[{"kind": "DaemonSet"}]), "belongs to its node"),
    ("no pods", "owner", lambda one: replace(one, pods=()), "none of its pods"),
    ("job", "gang", owner("Job"), "it is a Job"),
    ("set of leaders", "gang", owner("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"), "it is a LeaderWorkerSet"),
    ("pod group", "gang", pod(labels={"scheduling.x-k8s.io/pod-group": "g"}), "part of a gang"),
    ("HPA", "scaler", lambda one: replace(one, scalers=("HorizontalPodAutoscaler h",)), "HorizontalPodAutoscaler h sets"),
    ("argo", "gitops", deployment(annotations={"argocd.argoproj.io/tracking-id": "a"}), "argocd.argoproj.io"),
    ("flux", "gitops", deployment(labels={"kustomize.toolkit.fluxcd.io/name": "a"}), "kustomize.toolkit"),
    ("helm", "gitops", deployment(annotations={"meta.helm.sh/release-name": "a"}), "meta.helm.sh"),
    ("manager", "gitops", deployment(managedFields=[{"manager": "argocd-controller"}]), "managed by argocd-controller"),
    ("budget of pods", "disruption", lambda one: replace(one, disruption_budgets=("b",)), "PodDisruptionBudget b"),
    ("priority", "disruption", pod(spec={"priority": 1_000_000}), "has the priority 1000000"),
    ("young", "disruption", pod(status={"startTime": stamp_of(START - 60)}), "is younger than 15m"),
    ("not started", "disruption", pod(status={"startTime": None}), "has not started"),
    ("rollout", "disruption", deployment(status={"updatedReplicas": 0}), "a rollout of Deployment team-a/llama"),
    ("generation", "disruption", deployment(generation=2, status={"observedGeneration": 1}), "a rollout"),
    ("spent", "budget", lambda one: replace(one, spent="5 an hour"), "5 an hour"),
    ("notebook in use", "traffic", notebook(stamp_of(START - HOUR)), "was used by somebody 1h ago"),
    ("notebook in use now", "traffic", notebook(stamp_of(START + 60)), "was used by somebody 0s ago"),
    ("notebook unknown", "traffic", notebook(None), "culling is off (the annotation kgpu.dev/idle-policy: reclaim"),
    ("notebook nonsense", "traffic", notebook("\x1b[2Jnow"), "nothing says when somebody used Notebook team-a/nb last"),
    ("notebook ahead", "traffic", notebook("2999-01-01T00:00:00Z"), "last-activity is 2999-01-01T00:00:00Z"),
    ("requests", "traffic", lambda one: replace(one, requests="it has served"), "it has served"),
    ("traffic", "traffic", workload(held(kept=("it has served requests within the window",))), "it has served requests"),
)  # fmt: skip


def test_nothing_else_keeps_it() -> None:
    assert [one.why for one in answers(facts()) if one.why] == []


@pytest.mark.parametrize(("guard", "change", "why"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_alone_stops_and_says_why(guard: str, change: Change, why: str) -> None:
    changed = change(facts())
    stops = {one.guard.name: one.why for one in answers(changed) if one.why}
    assert why in stops[guard]
    assert why in obstacle(changed, without=frozenset(stops) - {guard})
    assert list(stops) == [guard]


def test_every_guard_has_a_row() -> None:
    assert {row[1] for row in ROWS} == {guard.name for guard in GUARDS}
    assert [guard.number for guard in GUARDS] == sorted(guard.number for guard in GUARDS)


@pytest.mark.parametrize(
    "change",
    [
        annotated(names.KEEP_UNTIL, stamp_of(START - 60)),
        replica_set(**{names.KEEP_UNTIL: stamp_of(START + HOUR), names.IDLE_POLICY: "never"}),
        notebook(stamp_of(START - 3 * HOUR)),
        notebook(None, **{names.IDLE_POLICY: "reclaim"}),
        kept_for(7 * 24 * HOUR),
        kept_for(7 * 24 * HOUR, names.KEEP_UNTIL, "tomorrow"),
        kept_for(7 * 24 * HOUR, "gpu-pruner.io/ack-until"),
        kept_for(7 * 24 * HOUR, names.IDLE_POLICY, "never", limit_exemptions=True),
        kept_for(7 * 24 * HOUR, "autoscaling.keda.sh/paused-scale-in", "true", limit_exemptions=True),
        pod(annotations={"karpenter.sh/do-not-disrupt": "4h"}),
        pod(annotations={"karpenter.sh/do-not-disrupt": "nonsense"}),
        annotated("downscaler/exclude", "false"),
        annotated(names.IDLE_POLICY, "reclaim"),
        lambda one: bare(pod(annotations={names.IDLE_POLICY: "reclaim"})(policy(bare_pods=True)(one))),
        owner("Job", annotations={names.CHECKPOINT: "true"}),
        owner("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", annotations={names.IDLE_POLICY: "reclaim"}),
    ],
    ids=["keep is over", "keep was removed", "notebook left", "notebook, opted in", "kept long enough", "nonsense", "ack", "never, limited", "keda, limited", "4h are over", "no duration", "false", "opted in", "bare, asked twice", "checkpoint", "gang"],
)  # fmt: skip
def test_what_keeps_nothing(change: Change) -> None:
    assert obstacle(change(facts())) == ""


@pytest.mark.parametrize(("seconds", "text"), [(45, "45s"), (2700, "45m"), (9000, "2h 30m"), (273_600, "3d 4h")])
def test_times_are_told_shortly(seconds: float, text: str) -> None:
    assert span(seconds) == text
