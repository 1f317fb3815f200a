"""The kinds of objects that rules read: what a running cluster is asked for, and whose kind a name is.

Others have kinds of the same name: Kyverno a ClusterPolicy, Longhorn a Node, Knative a Service, Volcano a Job. Of KAI
and Volcano rules read a PodGroup each, which its fields tell apart; those of others, and Kubernetes' own
Workload beside Kueue's, are for ``kgpu whatif``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.formats.names import AMD_DOMAIN, NFD_DOMAIN, NVIDIA_DOMAIN
from kgpu.kube import kinds
from kgpu.kube.owners import COSCHEDULING, KAI_SCHEDULING, SCHEDULING_GROUP, VOLCANO_SCHEDULING
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODES, PODS, Resource


def _kind(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group, version, plural, kind, namespaced)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind to list. ``any_version``: the version is the server's, and a server without the kind is no gap."""

    resource: Resource
    any_version: bool = False


NEEDED: Final = ("Node", "Pod")
KINDS: Final = (
    Wanted(NODES),
    Wanted(PODS),
    Wanted(EVENTS),
    Wanted(kinds.NAMESPACES),
    Wanted(kinds.DAEMON_SETS),
    Wanted(kinds.DEPLOYMENTS),
    Wanted(kinds.REPLICA_SETS),
    Wanted(_kind("apps", "v1", "statefulsets", "StatefulSet")),
    Wanted(_kind("batch", "v1", "jobs", "Job")),
    Wanted(_kind("batch", "v1", "cronjobs", "CronJob")),
    Wanted(kinds.SERVICES),
    Wanted(CONFIG_MAPS),
    Wanted(kinds.RUNTIME_CLASSES),
    Wanted(kinds.CUSTOM_RESOURCE_DEFINITIONS),
    Wanted(_kind("", "v1", "resourcequotas", "ResourceQuota")),
    Wanted(_kind("", "v1", "limitranges", "LimitRange")),
    Wanted(_kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")),
    Wanted(_kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)),
    Wanted(_kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)),
    Wanted(_kind(SCHEDULING_GROUP, "v1", "priorityclasses", "PriorityClass", namespaced=False)),
    Wanted(_kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")),
    Wanted(_kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"), any_version=True),
    Wanted(_kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"), any_version=True),
    Wanted(_kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False), any_version=True),
    Wanted(_kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False), any_version=True),
    Wanted(
        _kind("resource.k8s.io", "v1alpha3", "devicetaintrules", "DeviceTaintRule", namespaced=False), any_version=True
    ),
    Wanted(_kind(NVIDIA_DOMAIN, "v1", "clusterpolicies", "ClusterPolicy", namespaced=False), any_version=True),
    Wanted(_kind(NVIDIA_DOMAIN, "v1alpha1", "nvidiadrivers", "NVIDIADriver", namespaced=False), any_version=True),
    Wanted(_kind(NVIDIA_DOMAIN, "v1alpha1", "gpuclusters", "GPUCluster", namespaced=False), any_version=True),
    Wanted(kinds.NODE_OPERATIONS, any_version=True),
    Wanted(_kind(NFD_DOMAIN, "v1alpha1", "nodefeatures", "NodeFeature"), any_version=True),
    Wanted(_kind(NFD_DOMAIN, "v1alpha1", "nodefeaturerules", "NodeFeatureRule", namespaced=False), any_version=True),
    Wanted(_kind(AMD_DOMAIN, "v1alpha1", "deviceconfigs", "DeviceConfig"), any_version=True),
    Wanted(_kind("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain"), any_version=True),
    Wanted(_kind("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor"), any_version=True),
    Wanted(_kind("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"), any_version=True),
    Wanted(_kind("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule"), any_version=True),
    Wanted(_kind("monitoring.coreos.com", "v1", "prometheuses", "Prometheus"), any_version=True),
    Wanted(_kind("kueue.x-k8s.io", "v1beta1", "workloads", "Workload"), any_version=True),
    Wanted(_kind("kueue.x-k8s.io", "v1beta1", "clusterqueues", "ClusterQueue", namespaced=False), any_version=True),
    Wanted(_kind(KAI_SCHEDULING, "v2alpha2", "podgroups", "PodGroup"), any_version=True),
    Wanted(_kind(KAI_SCHEDULING, "v2", "queues", "Queue", namespaced=False), any_version=True),
    Wanted(_kind(VOLCANO_SCHEDULING, "v1beta1", "podgroups", "PodGroup"), any_version=True),
    Wanted(_kind(SCHEDULING_GROUP, "v1alpha1", "workloads", "Workload"), any_version=True),
    Wanted(_kind(SCHEDULING_GROUP, "v1alpha2", "podgroups", "PodGroup"), any_version=True),
    Wanted(_kind(COSCHEDULING, "v1alpha1", "podgroups", "PodGroup"), any_version=True),
    Wanted(_kind("karpenter.sh", "v1", "nodeclaims", "NodeClaim", namespaced=False), any_version=True),
    Wanted(_kind("karpenter.sh", "v1", "nodepools", "NodePool", namespaced=False), any_version=True),
    Wanted(_kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"), any_version=True),
    Wanted(_kind("cluster.x-k8s.io", "v1beta1", "machinedeployments", "MachineDeployment"), any_version=True),
    Wanted(_kind("cluster.x-k8s.io", "v1beta1", "machinepools", "MachinePool"), any_version=True),
    Wanted(_kind("cluster.x-k8s.io", "v1beta1", "machinesets", "MachineSet"), any_version=True),
    Wanted(_kind("argoproj.io", "v1alpha1", "applications", "Application"), any_version=True),
    Wanted(_kind("helm.toolkit.fluxcd.io", "v2", "helmreleases", "HelmRelease"), any_version=True),
    Wanted(_kind("helm.cattle.io", "v1", "helmcharts", "HelmChart"), any_version=True),
)
"""What is listed: no Secrets, and nothing that no rule reads. docs/how-to/doctor-rights.yaml grants exactly this."""

_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "Event": ("events.k8s.io",),
    "DaemonSet": ("extensions",),
    "Deployment": ("extensions",),
    "ReplicaSet": ("extensions",),
    "MachineSet": ("machine.openshift.io",),
    "NodeFeature": ("nfd.openshift.io",),
    "NodeFeatureRule": ("nfd.openshift.io", "nfd.kubernetes.io"),
}
"""Further groups of a kind: of older servers, and of distributions that have renamed it."""
_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset({*(row.resource.group for row in KINDS if row.resource.kind == kind), *_ALSO.get(kind, ())})
    for kind in {row.resource.kind for row in KINDS}
}


def kind_of(kind: str, api_version: str) -> str:
    """The kind under which an object is kept: ``Kind.group`` where another group has a kind of a name that rules read.

    Of an object without a group, as text has it, the kind is taken at its word: no two kinds of Kubernetes share a
    name.
    """
    groups = _GROUPS.get(kind)
    group = api_version.rpartition("/")[0]
    return kind if groups is None or not group or group in groups else f"{kind}.{group}"
