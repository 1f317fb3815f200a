"""The Node and Lease objects of a simulated node, as the real kubelet (v1.35) writes them; pure.

What the kubelet owns of a Node is its registration, its status and a few labels; everything else is left alone: changes
are made as small patches of the status alone.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.formats.names import LABEL_HOSTNAME, LABEL_INSTANCE_TYPE, LABEL_INSTANCE_TYPE_BETA, LABEL_LIGHT, OS_LABEL
from kgpu.kube.port import Object
from kgpu.lab.nodes.machine import os_release
from kgpu.lab.nodes.spec import NodeSpec

KUBELET_VERSION: Final = "v1.35.4"
RUNTIME_VERSION: Final = "containerd://2.1.4"
LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
RENEW_SECONDS: Final = 10.0
"""A quarter of the lease, as the kubelet renews it."""
HEARTBEAT_SECONDS: Final = 300.0
"""A status that has not changed is told again after so long."""
_ARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# type -> (status, reason, message) of a node that is well.
_WELL: Final = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the log server of this host listens; the API server goes there for logs."""

    address: str
    port: int


def stamp(now: float) -> str:
    """RFC 3339 with seconds, as metav1.Time; ``now`` in seconds since the epoch."""
    return dt.datetime.fromtimestamp(int(now), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(now: float) -> str:
    """RFC 3339 with microseconds, as metav1.MicroTime."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def architecture() -> str:
    """The machine's architecture in Go's terms."""
    return _ARCH.get(platform.machine(), platform.machine())


def labels(spec: NodeSpec) -> dict[str, str]:
    """What the node is registered with."""
    arch = architecture()
    return {
        "beta.kubernetes.io/arch": arch,
        LABEL_INSTANCE_TYPE_BETA: spec.machine.instance,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        LABEL_HOSTNAME: spec.name,
        OS_LABEL: "linux",
        LABEL_INSTANCE_TYPE: spec.machine.instance,
        **({LABEL_LIGHT: "true"} if spec.light else {}),
        **spec.labels,
    }


def own_capacity(spec: NodeSpec) -> dict[str, str]:
    """Capacity and allocatable without device plugins' resources."""
    return {
        "cpu": spec.cpu or str(spec.machine.cpus),
        "ephemeral-storage": "1843759Mi",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": spec.memory or f"{spec.machine.memory_gib}Gi",
        "pods": str(spec.pods),
    }


def resources(own: Mapping[str, str], devices: Mapping[str, int]) -> dict[str, str]:
    """A capacity or allocatable list with ``devices`` of the plugins added."""
    return {**own, **{name: str(count) for name, count in devices.items()}}


def conditions(now: str, since: str) -> list[Object]:
    """The conditions of a node that is well since ``since``."""
    return [
        {
            "lastHeartbeatTime": now, "lastTransitionTime": since, "message": message, "reason": reason,
            "status": status, "type": kind,
        }
        for kind, (status, reason, message) in _WELL.items()
    ]  # fmt: skip


def node_info(spec: NodeSpec, boot: str) -> dict[str, str]:
    """``status.nodeInfo``; ids follow from the name, so that they survive restarts."""
    machine = hashlib.sha256(spec.name.encode()).hexdigest()[:32]
    return {
        "architecture": architecture(),
        "bootID": boot,
        "containerRuntimeVersion": RUNTIME_VERSION,
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": KUBELET_VERSION,
        "machineID": machine,
        "operatingSystem": "linux",
        "osImage": os_release(spec.labels)["PRETTY_NAME"],
        "systemUUID": str(uuid.UUID(machine)),
    }


def status(
    spec: NodeSpec, endpoint: Endpoint, *, boot: str, now: str, since: str, capacity: Mapping[str, int],
    allocatable: Mapping[str, int], images: Sequence[str] = (),
) -> Object:  # fmt: skip
    """The whole status."""
    own = own_capacity(spec)
    return {
        "addresses": [
            {"address": endpoint.address, "type": "InternalIP"},
            {"address": spec.name, "type": "Hostname"},
        ],
        "allocatable": resources(own, allocatable),
        "capacity": resources(own, capacity),
        "conditions": conditions(now, since),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": endpoint.port}},
        "features": {"supplementalGroupsPolicy": True},
        "images": [{"names": [name], "sizeBytes": 2731914} for name in images],
        "nodeInfo": node_info(spec, boot),
        "runtimeHandlers": [{"features": {"recursiveReadOnlyMounts": True, "userNamespaces": True}, "name": ""}],
    }


def node(spec: NodeSpec, status: Object, gpu_labels: Mapping[str, str]) -> Object:
    """The Node to register."""
    return {
        "metadata": {
            "name": spec.name,
            "labels": {**labels(spec), **gpu_labels},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"taints": [taint.to_json() for taint in spec.taints]} if spec.taints else {},
        "status": status,
    }


def lease(name: str, uid: str, now: float) -> Object:
    """The node's Lease, owned by the Node so that it goes with it."""
    return {
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micro_stamp(now)},
    }


def renewal(now: float) -> Object:
    """The patch of a Lease."""
    return {"spec": {"renewTime": micro_stamp(now)}}


def devices_patch(*, capacity: Mapping[str, int], allocatable: Mapping[str, int], gone: Sequence[str]) -> Object:
    """A status patch that tells device counts; resources in ``gone`` are removed."""
    dropped: dict[str, Any] = dict.fromkeys(gone)
    return {
        "status": {
            "capacity": {**{name: str(count) for name, count in capacity.items()}, **dropped},
            "allocatable": {**{name: str(count) for name, count in allocatable.items()}, **dropped},
        }
    }


def heartbeat_patch(now: str, since: str) -> Object:
    """A strategic status patch that says that the node is well."""
    return {"status": {"conditions": conditions(now, since)}}
