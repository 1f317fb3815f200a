"""Defaults of apps, batch and autoscaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults.fill import fixed


def _rolling(strategy: Object, **values: Any) -> None:
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for name, value in values.items():
            rolling.setdefault(name, value)


def _deployment(spec: Object) -> None:
    spec.setdefault("replicas", 1)
    _rolling(spec["strategy"], maxUnavailable="25%", maxSurge="25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _daemon_set(spec: Object) -> None:
    _rolling(spec["updateStrategy"], maxUnavailable=1, maxSurge=0)
    spec.setdefault("revisionHistoryLimit", 10)


def _stateful_set(spec: Object) -> None:
    if not spec.get("podManagementPolicy"):
        spec["podManagementPolicy"] = "OrderedReady"
    strategy = spec["updateStrategy"]
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    rolling = strategy.get("rollingUpdate")
    if strategy["type"] == "RollingUpdate" and rolling is not None:
        rolling.setdefault("partition", 0)
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in ("whenDeleted", "whenScaled"):
        if not policy.get(name):
            policy[name] = "Retain"
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)


def _job(obj: Object) -> None:
    _job_spec(obj["spec"])
    labels = obj["spec"]["template"]["metadata"].get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _job_spec(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)


_SCALE_UP: Final = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: Final = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def _autoscaler(spec: Object) -> None:
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is not None:
        for name, rules in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            behavior[name] = {**_deep(rules), **(behavior.get(name) or {})}


def _deep(rules: Object) -> Object:
    return {**rules, "policies": [dict(policy) for policy in rules["policies"]]}


DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    "apps.v1.DeploymentSpec": _deployment,
    "apps.v1.DaemonSetSpec": _daemon_set,
    "apps.v1.StatefulSetSpec": _stateful_set,
    "apps.v1.ReplicaSetSpec": fixed(replicas=1),
    "batch.v1.Job": _job,
    "batch.v1.CronJobSpec": fixed(
        concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1
    ),
    "batch.v1.PodFailurePolicyOnPodConditionsPattern": fixed(status="True"),
    "autoscaling.v1.HorizontalPodAutoscalerSpec": fixed(minReplicas=1),
    "autoscaling.v2.HorizontalPodAutoscalerSpec": _autoscaler,
}
