"""The kinds that kgpu reads and writes beside those of ``port``, and the way from an object to its kind.

Rows of data; which version of an optional kind a server has is asked of the server (``KubeDiscovery``).
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.names import AMD_DOMAIN, KGPU_DOMAIN, NFD_DOMAIN, NVIDIA_DOMAIN
from kgpu.kube.port import CONFIG_MAPS, LEASES, NODE_FEATURES, NODES, PODS, Object, Resource

NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
SERVICES: Final = Resource("", "v1", "services", "Service")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", "CronJob")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOBS: Final = Resource("batch", "v1", "jobs", "Job")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS: Final = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
SERVICE_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")
POD_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
PROMETHEUS_RULES: Final = Resource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")
SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
# OpenShift's: what the cluster is, how it reaches the internet, images by release, which pods it admits.
CLUSTER_VERSIONS: Final = Resource("config.openshift.io", "v1", "clusterversions", "ClusterVersion", namespaced=False)
PROXIES: Final = Resource("config.openshift.io", "v1", "proxies", "Proxy", namespaced=False)
IMAGE_STREAMS: Final = Resource("image.openshift.io", "v1", "imagestreams", "ImageStream")
SECURITY_CONTEXT_CONSTRAINTS: Final = Resource(
    "security.openshift.io", "v1", "securitycontextconstraints", "SecurityContextConstraints", namespaced=False
)
CLUSTER_POLICIES: Final = Resource(NVIDIA_DOMAIN, "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
NVIDIA_DRIVERS: Final = Resource(NVIDIA_DOMAIN, "v1alpha1", "nvidiadrivers", "NVIDIADriver", namespaced=False)
DEVICE_CONFIGS: Final = Resource(AMD_DOMAIN, "v1alpha1", "deviceconfigs", "DeviceConfig")
NODE_OPERATIONS: Final = Resource(KGPU_DOMAIN, "v1alpha1", "nodeoperations", "NodeOperation", namespaced=False)
GPU_USAGE_POLICIES: Final = Resource(KGPU_DOMAIN, "v1alpha1", "gpuusagepolicies", "GPUUsagePolicy", namespaced=False)
GPU_USAGE_OVERRIDES: Final = Resource(KGPU_DOMAIN, "v1alpha1", "gpuusageoverrides", "GPUUsageOverride")
NODE_FEATURE_RULES: Final = Resource(NFD_DOMAIN, "v1alpha1", "nodefeaturerules", "NodeFeatureRule", namespaced=False)
NODE_FEATURE_GROUPS: Final = Resource(NFD_DOMAIN, "v1alpha1", "nodefeaturegroups", "NodeFeatureGroup")

RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)

# In the order in which their objects have to be there: what a DaemonSet needs comes before it.
ACCOUNTS: Final = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)
"""Who a pod is, and what it may do."""

MANAGED: Final = (
    *ACCOUNTS, CONFIG_MAPS, RUNTIME_CLASSES,
    SERVICES, SERVICE_MONITORS, POD_MONITORS, PROMETHEUS_RULES, DAEMON_SETS,
)  # fmt: skip

_BY_KIND: Final = {
    (row.group, row.kind): row
    for row in (
        *MANAGED,
        NAMESPACES,
        NODES,
        PODS,
        DEPLOYMENTS,
        LEASES,
        NODE_FEATURES,
        CLUSTER_POLICIES,
        NVIDIA_DRIVERS,
        NODE_OPERATIONS,
        GPU_USAGE_POLICIES,
        GPU_USAGE_OVERRIDES,
        DEVICE_CONFIGS,
    )
}


def resource_of(obj: Object) -> Resource | None:
    """The kind of an object by its apiVersion and kind; None for one that kgpu does not handle."""
    group, _, version = str(obj.get("apiVersion") or "").rpartition("/")
    row = _BY_KIND.get((group, str(obj.get("kind") or "")))
    if row is None or row.version == version:
        return row
    return Resource(row.group, version, row.plural, row.kind, row.namespaced)


def plural_and_group(resource: Resource) -> str:
    """``nodefeatures.nfd.k8s-sigs.io``; only the plural for the core group."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
