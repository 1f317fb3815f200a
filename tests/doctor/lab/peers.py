"""Stacks of others on a node of the lab: the labels and resources that they give it, and their parts as pods.

A part is a DaemonSet with the labels of the real one, whose process is a shell that says what the real one says, to its
log. What comes of it (restarts, back-off, logs over the API) is the lab's own doing.
"""

from __future__ import annotations

from typing import Any

from kgpu.formats.crd.definitions import crds
from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Change, Ground, Make, Step
from tests.doctor.lab.labs import PLAIN
from tests.doctor.lab.things import SHELL, obj, relabel, says

PLUGIN = "nvidia-device-plugin-daemonset"
FOLDER = "/run/nvidia"
SPACE = "gpu-stack"
"""Not the operator's usual namespace: nothing may go by that name."""
NVIDIA_LABELS = {
    "feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.replicas": "1", "nvidia.com/mig.capable": "true",
}  # fmt: skip
AMD_LABELS = {"feature.node.kubernetes.io/amd-gpu": "true", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
GAUDI_LABELS = {"feature.node.kubernetes.io/pci-1200_1da3.present": "true"}
INTEL_LABELS = {"intel.feature.node.kubernetes.io/gpu": "true"}


def offers(resource: str, count: int | None, *, capacity: int | None = None, node: str = PLAIN) -> Change:
    """What a device plugin would have told the kubelet; None for nothing."""
    allocatable = None if count is None else str(count)
    whole = allocatable if capacity is None else str(capacity)
    return Change(
        "Node", node, {"status": {"capacity": {resource: whole}, "allocatable": {resource: allocatable}}}, "status"
    )


def nvidia(count: int | None = 2, **labels: str) -> tuple[Step, ...]:
    """A node that another GPU operator looks after."""
    return (relabel(PLAIN, {**NVIDIA_LABELS, **labels}), offers("nvidia.com/gpu", count))


def amd(count: int | None = 8) -> tuple[Step, ...]:
    return (relabel(PLAIN, dict(AMD_LABELS)), offers("amd.com/gpu", count))


def gaudi(count: int | None = 8) -> tuple[Step, ...]:
    return (relabel(PLAIN, dict(GAUDI_LABELS)), offers("habana.ai/gaudi", count))


def part(app: str, *lines: str, stay: bool = False, init: str = "", image: str = SHELL, env: dict[str, str] | None = None,
         args: tuple[str, ...] = (), code: int = 1, node: str = PLAIN, namespace: str = SPACE, name: str = "") -> Object:  # fmt: skip
    """A DaemonSet of the label ``app`` on one node whose program says the lines and ends, or stays.

    ``init``: an init container of that name says them, and the program waits for it. Like the real ones it has a folder
    of its node, without which it would be nobody's part.
    """
    speaking: dict[str, Any] = {
        "name": init or app, "image": image, "command": [*says(*lines, stay=stay, code=code), app, *args],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }  # fmt: skip
    waiting = {"name": app, "image": image, "command": ["sleep", "3600"]}
    spec: Object = {
        "nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0, "containers": [waiting if init else speaking],
        **({"initContainers": [speaking]} if init else {}),
        "volumes": [{"name": "folder", "hostPath": {"path": FOLDER}}],
    }  # fmt: skip
    return obj(
        "DaemonSet", name or app, namespace,
        spec={"selector": {"matchLabels": {"app": app}}, "template": {"metadata": {"labels": {"app": app}}, "spec": spec}},
    )  # fmt: skip


def parts(*objects: Object) -> Make:
    """Parts in a namespace of their own."""
    return Make((obj("Namespace", SPACE), *objects))


def definition(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool = True, status: bool = True
) -> Object:
    """A CustomResourceDefinition that takes everything, as far as the doctor is concerned that of the real one."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return obj(
        "CustomResourceDefinition", f"{plural}.{group}",
        spec={
            "group": group, "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{
                "name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything},
                **({"subresources": {"status": {}}} if status else {}),
            }],
        },
    )  # fmt: skip


DEFINITIONS = (
    definition("amd.com", "v1alpha1", "DeviceConfig", "deviceconfigs"),
    definition("nfd.k8s-sigs.io", "v1alpha1", "NodeFeatureRule", "nodefeaturerules", namespaced=False),
    definition("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    definition("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    definition("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    definition("monitoring.coreos.com", "v1", "Prometheus", "prometheuses"),
    definition("kueue.x-k8s.io", "v1beta1", "Workload", "workloads"),
    definition("kueue.x-k8s.io", "v1beta1", "ClusterQueue", "clusterqueues", namespaced=False),
    definition("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),
    definition("karpenter.sh", "v1", "NodeClaim", "nodeclaims", namespaced=False),
    definition("karpenter.sh", "v1", "NodePool", "nodepools", namespaced=False),
    definition("resource.nvidia.com", "v1beta1", "ComputeDomain", "computedomains"),
)
"""The kinds of other operators that a cluster with such stacks has."""


def defined(ground: Ground) -> None:
    """Define those kinds, and NVIDIA's own."""
    resource = ground.resource("CustomResourceDefinition")
    for one in (*DEFINITIONS, *crds()):
        body = {"apiVersion": resource.api_version, **one}
        ground.wait(ground.api.apply(resource, body, manager="tests"))
    for kind in ("NodePool", "ClusterPolicy", "NVIDIADriver"):
        ground.resource(kind)
