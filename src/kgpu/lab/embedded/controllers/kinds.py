"""The kinds that the controllers read and write, as ``Resource`` rows."""

from __future__ import annotations

from typing import Final

from kgpu.kube.kinds import (
    CRON_JOBS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    JOBS,
    NAMESPACES,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
)
from kgpu.kube.port import Resource

AUTOSCALERS: Final = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
REPLICATION_CONTROLLERS: Final = Resource("", "v1", "replicationcontrollers", "ReplicationController")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
ENDPOINTS: Final = Resource("", "v1", "endpoints", "Endpoints")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES: Final = Resource(
    "resource.k8s.io", "v1alpha3", "devicetaintrules", "DeviceTaintRule", namespaced=False
)
RESOURCE_CLAIM_TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")

__all__ = [
    "AUTOSCALERS",
    "CONTROLLER_REVISIONS",
    "CRON_JOBS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "DAEMON_SETS",
    "DEPLOYMENTS",
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "DISRUPTION_BUDGETS",
    "ENDPOINTS",
    "ENDPOINT_SLICES",
    "JOBS",
    "NAMESPACES",
    "REPLICATION_CONTROLLERS",
    "REPLICA_SETS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_QUOTAS",
    "RESOURCE_SLICES",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFUL_SETS",
    "STORAGE_CLASSES",
    "VOLUMES",
    "VOLUME_CLAIMS",
]
