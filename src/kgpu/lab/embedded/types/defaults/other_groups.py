"""Defaults of the other API groups: networking, RBAC, storage, discovery, DRA, scheduling, admission configuration."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults.fill import both, fixed

_RBAC: Final = "rbac.authorization.k8s.io"


def _policy(spec: Object) -> None:
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _ingress_class(spec: Object) -> None:
    if spec.get("parameters"):
        spec["parameters"].setdefault("scope", "Cluster")


def _role_ref(obj: Object) -> None:
    if not obj["roleRef"].get("apiGroup"):
        obj["roleRef"]["apiGroup"] = _RBAC


def _subject(subject: Object) -> None:
    if not subject.get("apiGroup") and subject.get("kind") in {"User", "Group"}:
        subject["apiGroup"] = _RBAC


def _device_count(request: Object) -> None:
    if not request.get("allocationMode"):
        request["allocationMode"] = "ExactCount"
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1


def _device_taint(taint: Object) -> None:
    if not taint.get("timeAdded"):
        taint["timeAdded"] = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _csi_driver(spec: Object) -> None:
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


_WEBHOOK: Final = fixed(
    failurePolicy="Fail", matchPolicy="Equivalent", namespaceSelector={}, objectSelector={}, timeoutSeconds=10
)

DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    "networking.v1.NetworkPolicySpec": _policy,
    "networking.v1.NetworkPolicyPort": fixed(protocol="TCP"),
    "networking.v1.IngressClassSpec": _ingress_class,
    "rbac.v1.RoleBinding": _role_ref,
    "rbac.v1.ClusterRoleBinding": _role_ref,
    "rbac.v1.Subject": _subject,
    "storage.v1.StorageClass": fixed(reclaimPolicy="Delete", volumeBindingMode="Immediate"),
    "storage.v1.CSIDriverSpec": both(
        fixed(
            attachRequired=True,
            podInfoOnMount=False,
            storageCapacity=False,
            fsGroupPolicy="ReadWriteOnceWithFSType",
            requiresRepublish=False,
            seLinuxMount=False,
        ),
        _csi_driver,
    ),
    "discovery.v1.EndpointPort": fixed(name="", protocol="TCP"),
    "resource.v1.ExactDeviceRequest": _device_count,
    "resource.v1.DeviceSubRequest": _device_count,
    "resource.v1.DeviceTaint": _device_taint,
    "resource.v1alpha3.DeviceTaint": _device_taint,
    "scheduling.v1.PriorityClass": fixed(preemptionPolicy="PreemptLowerPriority"),
    "admissionregistration.v1.ValidatingWebhook": _WEBHOOK,
    "admissionregistration.v1.MutatingWebhook": both(_WEBHOOK, fixed(reinvocationPolicy="Never")),
    "admissionregistration.v1.RuleWithOperations": fixed(scope="*"),
    "admissionregistration.v1.NamedRuleWithOperations": fixed(scope="*"),
    "admissionregistration.v1.ServiceReference": fixed(port=443),
    "admissionregistration.v1.ValidatingAdmissionPolicySpec": fixed(failurePolicy="Fail"),
    "admissionregistration.v1.MatchResources": fixed(matchPolicy="Equivalent", namespaceSelector={}, objectSelector={}),
}
