"""Deployments, ReplicaSets, DaemonSets, StatefulSets, and what their selectors and strategies have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    label_selector,
    metadata,
    metadata_update,
    not_negative,
    not_supported,
    selector_matches,
    syntax,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.claims import claim_spec
from kgpu.lab.embedded.types.validate.pod import template

_MISMATCH: Final = "`selector` does not match template `labels`"
_COUNTS: Final = (
    "observedGeneration", "replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "currentReplicas",
    "unavailableReplicas", "terminatingReplicas", "fullyLabeledReplicas", "collisionCount",
)  # fmt: skip


def workload(
    spec_check: Callable[[Errors, Object, Object | None], None], name_rule: texts.NameRule = texts.subdomain
) -> Any:
    """The check of a kind: metadata, its spec, and the counts in its status."""

    def check(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
        if old is None:
            metadata(errors, obj["metadata"], namespaced=True, rule=name_rule)
        else:
            metadata_update(errors, obj["metadata"], old["metadata"])
        finalizer_names(errors, obj["metadata"])
        if subresource == "status":
            _counts(errors, obj.get("status") or {})
        else:
            spec_check(errors, obj["spec"], None if old is None else old["spec"])

    return check


def _counts(errors: Errors, status: Object) -> None:
    for name in _COUNTS:
        not_negative(errors, f"status.{name}", status.get(name))
    total = status.get("replicas", 0)
    if "desiredNumberScheduled" in status:
        return
    for name in ("fullyLabeledReplicas", "updatedReplicas", "readyReplicas", "availableReplicas"):
        if status.get(name, 0) > total:
            errors.append(bad_value(f"status.{name}", status[name], "cannot be greater than status.replicas"))
    if status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
        words = "cannot be greater than readyReplicas"
        errors.append(bad_value("status.availableReplicas", status["availableReplicas"], words))


def _selector_and_template(errors: Errors, spec: Object, called: str, of: str, wrong: str) -> None:
    """Check ``spec.selector`` and, if it is readable, that it fits ``spec.template``, and the template itself."""
    selector, pod_template = spec.get("selector"), spec.get("template") or {}
    labels = (pod_template.get("metadata") or {}).get("labels") or {}
    readable = True
    if selector is None:
        errors.append(required("spec.selector"))
    else:
        before = len(errors)
        label_selector(errors, "spec.selector", selector)
        readable = not any(error.field.endswith((".operator", ".values")) for error in errors[before:])
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            errors.append(bad_value("spec.selector", selector, f"empty selector is invalid for {called}"))
    if not readable:
        errors.append(bad_value("spec.selector", selector, wrong))
        return
    if selector is None or not selector_matches(selector, labels):
        errors.append(bad_value("spec.template.metadata.labels", labels or None, _MISMATCH))
    template(errors, "spec.template", pod_template)
    always_restarts(errors, pod_template, of)


def always_restarts(errors: Errors, pod_template: Object, called: str) -> None:
    """Check that a long-running workload restarts its containers and has no deadline."""
    pod = pod_template.get("spec") or {}
    policy = pod.get("restartPolicy", "")
    if policy != "Always":
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if pod.get("activeDeadlineSeconds") is not None:
        words = f"activeDeadlineSeconds in {called} is not Supported"
        errors.append(forbidden_field("spec.template.spec.activeDeadlineSeconds", words))


def int_or_percent(errors: Errors, path: str, value: int | str) -> None:
    """Check that the value is a number that is not negative, or a percentage."""
    if isinstance(value, str):
        syntax(errors, path, value, texts.percent)
    else:
        not_negative(errors, path, value)


def share(value: int | str) -> int:
    """The number of an integer or a percentage; 0 for any other text."""
    if isinstance(value, int):
        return value
    return int(value[:-1]) if re.fullmatch("[0-9]+%", value) else 0


def _at_most_all(errors: Errors, path: str, value: int | str) -> None:
    if isinstance(value, str) and share(value) > 100:
        errors.append(bad_value(path, value, "must not be greater than 100%"))


def _deployment(errors: Errors, spec: Object, old: Object | None) -> None:
    not_negative(errors, "spec.replicas", spec.get("replicas"))
    _selector_and_template(errors, spec, "deployment", "ReplicaSet", "invalid label selector")
    _deployment_strategy(errors, "spec.strategy", spec.get("strategy") or {})
    not_negative(errors, "spec.minReadySeconds", spec.get("minReadySeconds"))
    not_negative(errors, "spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None:
        not_negative(errors, "spec.progressDeadlineSeconds", deadline)
        if deadline <= spec.get("minReadySeconds", 0):
            errors.append(bad_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    if old is not None:
        immutable(errors, "spec.selector", spec.get("selector"), old.get("selector"))


def _deployment_strategy(errors: Errors, path: str, strategy: Object) -> None:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            words = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(forbidden_field(f"{path}.rollingUpdate", words))
    elif kind == "RollingUpdate":
        at, rolling = f"{path}.rollingUpdate", rolling or {}
        unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
        int_or_percent(errors, f"{at}.maxUnavailable", unavailable)
        int_or_percent(errors, f"{at}.maxSurge", surge)
        if share(unavailable) == 0 and share(surge) == 0:
            errors.append(bad_value(f"{at}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"))
        _at_most_all(errors, f"{at}.maxUnavailable", unavailable)
    else:
        shown = {"Type": kind, "RollingUpdate": rolling}
        errors.append(not_supported(path, shown, ("Recreate", "RollingUpdate")))


def _replica_set(errors: Errors, spec: Object, old: Object | None) -> None:
    not_negative(errors, "spec.replicas", spec.get("replicas"))
    not_negative(errors, "spec.minReadySeconds", spec.get("minReadySeconds"))
    _selector_and_template(errors, spec, "deployment", "ReplicaSet", "invalid label selector")
    if old is not None:
        immutable(errors, "spec.selector", spec.get("selector"), old.get("selector"))


def _daemon_set(errors: Errors, spec: Object, old: Object | None) -> None:
    if old is not None:
        immutable(errors, "spec.selector", spec.get("selector"), old.get("selector"))
    selector = spec.get("selector")
    pod_template = spec.get("template") or {}
    labels = (pod_template.get("metadata") or {}).get("labels") or {}
    before = len(errors)
    label_selector(errors, "spec.selector", selector)
    valid = len(errors) == before
    if valid and (selector is None or not selector_matches(selector, labels)):
        errors.append(bad_value("spec.template.metadata.labels", labels or None, _MISMATCH))
    if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(bad_value("spec.selector", selector, "empty selector is invalid for daemonset"))
    template(errors, "spec.template", pod_template)
    always_restarts(errors, pod_template, "DaemonSet")
    not_negative(errors, "spec.minReadySeconds", spec.get("minReadySeconds"))
    _daemon_strategy(errors, "spec.updateStrategy", spec.get("updateStrategy") or {})
    not_negative(errors, "spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"))


def _daemon_strategy(errors: Errors, path: str, strategy: Object) -> None:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "OnDelete":
        return
    if kind != "RollingUpdate":
        shown = {"Type": kind, "RollingUpdate": rolling}
        errors.append(not_supported(path, shown, ("RollingUpdate", "OnDelete")))
        return
    at = f"{path}.rollingUpdate"
    if rolling is None:
        errors.append(required(at))
        return
    unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    for check in (int_or_percent, _at_most_all):
        check(errors, f"{at}.maxUnavailable", unavailable)
        check(errors, f"{at}.maxSurge", surge)
    if share(unavailable) and share(surge):
        errors.append(bad_value(f"{at}.maxSurge", surge, "may not be set when maxUnavailable is non-zero"))
    elif not share(unavailable) and not share(surge):
        errors.append(required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0"))


_SET_MUTABLE: Final = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip


def _stateful_set(errors: Errors, spec: Object, old: Object | None) -> None:
    management = spec.get("podManagementPolicy", "")
    if management not in {"OrderedReady", "Parallel"}:
        errors.append(bad_value("spec.podManagementPolicy", management, "must be 'OrderedReady' or 'Parallel'"))
    _set_strategy(errors, "spec.updateStrategy", spec.get("updateStrategy") or {})
    policy = spec.get("persistentVolumeClaimRetentionPolicy")
    for name in ("whenDeleted", "whenScaled") if policy is not None else ():
        if (policy or {}).get(name) not in {"Retain", "Delete"}:
            at = f"spec.persistentVolumeClaimRetentionPolicy.{name}"
            errors.append(not_supported(at, (policy or {}).get(name, ""), ("Retain", "Delete")))
    claims = spec.get("volumeClaimTemplates") or []
    if old is None:
        for index, claim in enumerate(claims):
            claim_spec(errors, f"spec.volumeClaimTemplates[{index}].spec", claim.get("spec") or {})
    not_negative(errors, "spec.replicas", spec.get("replicas"))
    not_negative(errors, "spec.minReadySeconds", spec.get("minReadySeconds"))
    not_negative(errors, "spec.ordinals.start", (spec.get("ordinals") or {}).get("start"))
    if old is None and spec.get("serviceName"):
        syntax(errors, "spec.serviceName", spec["serviceName"], texts.label)
    pod_template = spec.get("template") or {}
    if claims:
        names = {(claim.get("metadata") or {}).get("name", "") for claim in claims}
        pod = pod_template.get("spec") or {}
        claim_volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
        rest = [volume for volume in pod.get("volumes") or () if volume.get("name") not in names]
        pod_template = {**pod_template, "spec": {**pod, "volumes": claim_volumes + rest}}
    _selector_and_template(errors, {**spec, "template": pod_template}, "statefulset", "StatefulSet", "")
    if old is not None:
        mutable = dict.fromkeys(_SET_MUTABLE)
        if {**spec, **mutable} != {**old, **mutable}:
            words = (
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
                "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
                "'minReadySeconds' are forbidden"
            )
            errors.append(forbidden_field("spec", words))


def _set_strategy(errors: Errors, path: str, strategy: Object) -> None:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    at = f"{path}.rollingUpdate"
    if kind == "OnDelete":
        if rolling is not None:
            shown = {"Partition": rolling.get("partition", 0), "MaxUnavailable": rolling.get("maxUnavailable")}
            errors.append(bad_value(at, shown, "only allowed for updateStrategy 'RollingUpdate'"))
    elif kind != "RollingUpdate":
        shown = {"Type": kind, "RollingUpdate": rolling}
        errors.append(bad_value(path, shown, "must be 'RollingUpdate' or 'OnDelete'"))
    elif rolling is not None:
        not_negative(errors, f"{at}.partition", rolling.get("partition"))
        value = rolling.get("maxUnavailable")
        if value is not None:
            int_or_percent(errors, f"{at}.maxUnavailable", value)
            if share(value) == 0:
                errors.append(bad_value(f"{at}.maxUnavailable", value, "cannot be 0"))
            _at_most_all(errors, f"{at}.maxUnavailable", value)


def _replication_controller(errors: Errors, spec: Object, old: Object | None) -> None:
    del old
    not_negative(errors, "spec.minReadySeconds", spec.get("minReadySeconds"))
    selector, pod_template = spec.get("selector") or {}, spec.get("template")
    if not selector:
        errors.append(required("spec.selector"))
    not_negative(errors, "spec.replicas", spec.get("replicas"))
    if pod_template is None:
        errors.append(required("spec.template"))
        return
    labels = (pod_template.get("metadata") or {}).get("labels") or {}
    if selector and not selector_matches({"matchLabels": selector}, labels):
        errors.append(bad_value("spec.template.metadata.labels", labels or None, _MISMATCH))
    template(errors, "spec.template", pod_template)
    always_restarts(errors, pod_template, "ReplicationController")


CHECKS: Final = {
    ("apps", "deployments"): workload(_deployment),
    ("apps", "replicasets"): workload(_replica_set),
    ("apps", "daemonsets"): workload(_daemon_set),
    ("apps", "statefulsets"): workload(_stateful_set, texts.label),
    ("", "replicationcontrollers"): workload(_replication_controller),
}
