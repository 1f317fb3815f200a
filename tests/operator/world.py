"""A small cluster for tests of planning: objects as the API server gives them, and how plans change them.

``World`` builds ``ObservedCluster`` from plain objects. A healthy world is one in which everything that was asked for works;
tests break one thing and look at what is said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from kgpu.formats import agent_report, names, validation_report
from kgpu.formats.crd import decode
from kgpu.operator.model import (
    ClusterPlan,
    NodeLabels,
    NodeLayout,
    NvidiaDriver,
    Object,
    ObservedCluster,
    OperatorSettings,
    PodTrouble,
    Policy,
)
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan

NAMESPACE = "gpu-operator"
IMAGES = {"DRIVER_IMAGE": "example.org/driver:580.65.06", "DRIVER_MANAGER_IMAGE": "example.org/manager:1"}
SETTINGS = OperatorSettings(namespace=NAMESPACE, image="example.org/kgpu:1", images=IMAGES)
OPERANDS_LAYOUT = dataclasses.replace(SETTINGS, layout=NodeLayout.OPERANDS)
ROLES = (
    "features",
    "toolkit",
    "validator",
    "deviceplugin",
    "mps",
    "mig-manager",
    "device-config-manager",
    "exporter",
    "health",
    "probe",
    "labels",
)
PCI = names.NFD_PCI_NVIDIA[0]
FEATURES = {
    "feature.node.kubernetes.io/kernel-version.full": "6.8.0-40-generic",
    names.NFD_OS_ID: "ubuntu",
    names.NFD_OS_VERSION: "24.04",
}
HOST_DRIVER: Mapping[str, Any] = {"driver": {"enabled": False}}


def node_object(
    name: str = "n1",
    *,
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    features: bool = True,
    report: agent_report.AgentReport | None = None,
    validated: tuple[str, str, str] | None = None,
    ready: bool = True,
    **changes: Any,
) -> Object:
    """A Node; ``validated`` is status, reason and message of its condition and ``checks`` what the validator's report
    beside it has; ``apart``: a process per role reports.
    """
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "reason": "Kubelet", "message": ""}]
    if validated is not None:
        status, reason, message = validated
        conditions.append({"type": names.VALIDATED_CONDITION, "status": status, "reason": reason, "message": message})
    count = {names.GPU_RESOURCE: str(gpus)} if gpus else {}
    found = {
        "kubernetes.io/os": "linux",
        **(FEATURES if features else {}),
        **({PCI: "true"} if gpus and features else {}),
    }
    annotations = {names.ROLES_ANNOTATION: agent_report.encode(report)} if report is not None else {}
    if report is not None and changes.get("apart"):
        annotations = reports_apart(report)
    if changes.get("checks"):
        annotations[names.VALIDATION_ANNOTATION] = validation_report.encode(validation_report.report(changes["checks"]))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**found, **(labels or {})}, "annotations": annotations},
        "spec": {"taints": changes.get("taints", [])},
        "status": {
            "conditions": conditions,
            "capacity": {"cpu": "8", **count},
            "allocatable": changes.get("allocatable", {"cpu": "8", **count}),
            "nodeInfo": {
                "osImage": "Ubuntu 24.04.3 LTS",
                "kernelVersion": "6.8.0-40-generic",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "kubeletVersion": "v1.35.1",
                "containerRuntimeVersion": changes.get("runtime", "containerd://2.1.4"),
            },
        },
    }


def report(generation: int = 1, *, gpus: int = 8, **roles: agent_report.RoleReport) -> agent_report.AgentReport:
    """An agent whose roles all run, but for those that are given."""
    return agent_report.AgentReport(
        version="1",
        generation=generation,
        roles={**{name: agent_report.role("running") for name in ROLES}, **roles},
        driver="580.65.06" if gpus else "",
        driver_source="host" if gpus else "",
        cuda="13.0" if gpus else "",
        gpus=gpus,
    )


def found_nothing(generation: int = 1) -> agent_report.AgentReport:
    """What the finder says."""
    return agent_report.AgentReport(
        version="1", generation=generation, roles={"features": agent_report.role("running", "30 labels")}
    )


def reports_apart(whole: agent_report.AgentReport) -> dict[str, str]:
    """The same said by a process per role, as annotations."""
    return {
        agent_report.annotation(name): agent_report.encode(msgspec.structs.replace(whole, roles={name: role}))
        for name, role in whole.roles.items()
    }


def healthy_node(name: str = "n1", *, gpus: int = 8, **changes: Any) -> Object:
    """A Node on which everything works: by the agent where there are GPUs, elsewhere the finder looks for some."""
    changes.setdefault("report", report(gpus=gpus) if gpus else found_nothing())
    changes.setdefault("apart", not gpus)
    changes.setdefault("validated", ("True", "Validated", "8 GPUs have passed") if gpus else None)
    return node_object(name, gpus=gpus, **changes)


def policy(name: str = "cluster-policy", *, generation: int = 1, **fields: Any) -> Policy:
    """A ClusterPolicy as decoded from a manifest; ``spec`` defaults to one that uses the nodes' own drivers."""
    spec = fields.pop("spec", HOST_DRIVER)
    decoded = decode.clusterpolicy(
        {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec}
    )
    fields.setdefault("created", "2026-01-01T00:00:00Z")
    fields.setdefault("uid", f"uid-of-{name}")
    return Policy(
        name=name,
        generation=generation,
        spec=decoded.spec,
        warnings=decoded.warnings,
        unbuilt=decoded.unbuilt,
        of_unbuilt=frozenset(decoded.of_unbuilt),
        problem=decoded.problem,
        **fields,
    )


def driver(name: str, *, spec: Mapping[str, Any], **fields: Any) -> NvidiaDriver:
    """An NVIDIADriver as decoded from a manifest."""
    whole = {"driverType": "gpu", "image": "driver", "repository": "example.org", "version": "580.65.06", **spec}
    decoded = decode.nvidiadriver(
        {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": whole}
    )
    fields.setdefault("created", "2026-01-01T00:00:00Z")
    return NvidiaDriver(
        name=name, uid=f"uid-of-{name}", generation=1, spec=decoded.spec, problem=decoded.problem, **fields
    )


def live(daemon_set: Object, count: int) -> Object:
    """A DaemonSet with so many pods, all of them well."""
    status = {
        "desiredNumberScheduled": count,
        "currentNumberScheduled": count,
        "updatedNumberScheduled": count,
        "numberAvailable": count,
        "numberReady": count,
        "observedGeneration": 1,
    }
    return {**daemon_set, "metadata": {**daemon_set["metadata"], "generation": 1}, "status": status}


def settle(observed: ObservedCluster, settings: OperatorSettings = SETTINGS) -> ObservedCluster:
    """The cluster after a plan has been carried out: nodes labelled, DaemonSets there with well pods."""
    made = plan(observed, settings)
    changes = {one.name: one for one in made.nodes}
    nodes = []
    for node in observed.nodes:
        change = changes.get(node.name)
        if change is not None:
            gone = (node.owned - change.labels.keys()) | set(change.clear)
            labels = {key: value for key, value in node.labels.items() if key not in gone} | dict(change.labels)
            node = dataclasses.replace(
                node,
                labels=labels,
                owned=frozenset(change.labels),
                annotations={
                    **{key: node.annotations[key] for key in node.annotations.keys() - node.owned_annotations},
                    **change.annotations,
                },
                owned_annotations=frozenset(change.annotations),
            )
        nodes.append(node)
    there = {one["metadata"]["name"]: live(one, len(nodes)) for one in made.objects if one["kind"] == "DaemonSet"}
    return dataclasses.replace(observed, nodes=tuple(nodes), daemon_sets={**there, **observed.daemon_sets})


def world(*nodes: Object, settings: OperatorSettings = SETTINGS, **fields: Any) -> ObservedCluster:
    """A settled cluster with these Nodes and one ClusterPolicy."""
    fields.setdefault("policies", (policy(),))
    return settle(ObservedCluster(nodes=tuple(map(read_node, nodes)), **fields), settings)


def status_of(made: ClusterPlan, name: str = "cluster-policy") -> Object:
    return made.policy_status[name]


def condition_of(made: ClusterPlan, kind: str, name: str = "cluster-policy") -> Object:
    return next(one for one in made.policy_status[name]["conditions"] if one["type"] == kind)


def trouble(node: str, reason: str, message: str, daemon_set: str = names.AGENT_DAEMON_SET) -> PodTrouble:
    return PodTrouble(daemon_set=daemon_set, node=node, pod=f"{daemon_set}-x7k2p", reason=reason, message=message)


def change_of(made: ClusterPlan, name: str = "n1") -> NodeLabels | None:
    """What is to be changed on one Node, None for nothing."""
    return next((one for one in made.nodes if one.name == name), None)
