"""Node objects as the operator needs them: ``read_node`` decodes one, ``project`` cuts one down to what is read.

A Node's labels, annotations and status come from users, kubelets and agents: what has the wrong shape is as good as
absent, and nothing here raises. Facts of the operating system come from feature labels where a node feature discovery
has written them, otherwise from what the kubelet reports, so that a fleet may be mixed. Strings that thousands of
nodes share are kept once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.base.plain import items, mapping, strings, text
from kgpu.base.printable import one_line, printable
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.formats import agent_report, gpu_report, mig_request, names, validation_report
from kgpu.formats.agent_report import AgentReport
from kgpu.operator.model import ClusterNode, NodeCondition, Object
from kgpu.operator.vendors import VENDORS, is_accelerator, of_vendor, seen

KEPT_ANNOTATIONS: Final = (
    names.ROLES_ANNOTATION, names.DRIVER_UPGRADE_ENABLED, names.DRIVER_UPGRADE_INITIAL, names.MIG_DEFAULT_ANNOTATION,
)  # fmt: skip
REPORTS: Final = (
    names.GPUS_ANNOTATION, names.VALIDATION_ANNOTATION, names.MIG_REPORT_ANNOTATION, names.PARTITION_REPORT_ANNOTATION,
)  # fmt: skip
MAX_REPORTS: Final = 16
"""Processes of a node whose reports are read; there are no more roles than that."""
KEPT_CONDITIONS: Final = ("Ready", names.VALIDATED_CONDITION, names.GPUS_HEALTHY_CONDITION)
RUNTIMES: Final = ("containerd", "docker", "cri-o")
"""Container runtimes that are known; the words before ``://`` in ``containerRuntimeVersion``."""

MAJOR_ONLY: Final = frozenset({"rhel", "rocky", "ol"})
"""Systems whose driver images are named by the major version alone."""

RHCOS: Final = "rhcos"
MAX_FACT: Final = 128
"""Characters."""

# What ``nodeInfo.osImage`` (PRETTY_NAME of os-release) begins with, and the ID there; longest names first.
_SYSTEMS: Final = (
    ("Red Hat Enterprise Linux CoreOS", RHCOS),
    ("Red Hat Enterprise Linux", "rhel"),
    ("SUSE Linux Enterprise Server", "sles"),
    ("SUSE Linux Micro", "sl-micro"),
    ("SL-Micro", "sl-micro"),
    ("Debian GNU/Linux", "debian"),
    ("Oracle Linux", "ol"),
    ("Rocky Linux", "rocky"),
    ("CentOS", "centos"),
    ("Amazon Linux", "amzn"),
    ("Bottlerocket", "bottlerocket"),
    ("Flatcar", "flatcar"),
    ("Fedora", "fedora"),
    ("Talos", "talos"),
    ("Ubuntu", "ubuntu"),
)
_VERSION: Final = re.compile(r"v?[0-9]+(?:\.[0-9]+)*", re.ASCII)
_POINT_RELEASE: Final = {"ubuntu": 2}
"""Systems whose PRETTY_NAME has more parts than VERSION_ID: how many to keep."""


def read_node(obj: Any) -> ClusterNode:
    """Decode a Node; one without a name becomes a Node named "" without facts."""
    metadata, spec, status = (mapping(mapping(obj).get(key)) for key in ("metadata", "spec", "status"))
    info = mapping(status.get("nodeInfo"))
    labels = _shared(strings(metadata.get("labels")))
    annotations = strings(metadata.get("annotations"))
    runtime, runtime_version = _runtime(_fact(info.get("containerRuntimeVersion")))
    os_id, os_version = _system(labels, _fact(info.get("osImage")))
    owned, owned_annotations = _owned(metadata.get("managedFields"))
    conditions = _conditions(status.get("conditions"))
    agent, report, reports = _reports(annotations)
    ready = conditions.get("Ready")
    vendor = seen(labels, report) or labels.get(names.LABEL_VENDOR, "")
    return ClusterNode(
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        labels=labels,
        annotations={key: annotations[key] for key in KEPT_ANNOTATIONS[1:] if key in annotations},
        owned=owned,
        owned_annotations=owned_annotations,
        ready=ready is not None and ready.status == "True",
        unschedulable=spec.get("unschedulable") is True,
        taints=tuple(dict(taint) for taint in items(spec.get("taints")) if isinstance(taint, dict)),
        runtime=runtime,
        runtime_version=_one(runtime_version),
        os=_one(text(info.get("operatingSystem")) or labels.get(names.OS_LABEL, "linux")),
        os_id=_one(os_id),
        os_version=_one(os_version),
        kernel=labels.get(names.NFD_KERNEL_FULL) or _fact(info.get("kernelVersion")),
        architecture=_fact(info.get("architecture")) or labels.get("kubernetes.io/arch", "amd64"),
        kubelet=_fact(info.get("kubeletVersion")),
        capacity=_counts(status.get("capacity"), vendor),
        allocatable=_counts(status.get("allocatable"), vendor),
        conditions=conditions,
        report=report,
        reports=reports,
        agent=agent,
        gpus=gpu_report.of_node(annotations),
        mig=mig_request.read_report(annotations),
        partition=mig_request.read_report(annotations, names.PARTITION_REPORT_ANNOTATION),
        validation=validation_report.of_node(annotations),
        discovered=any(map(_is_discovery, items(metadata.get("managedFields")))),
    )


def project(obj: Any) -> Object:
    """Keep of the Node only what ``read_node`` reads: saves some kilobytes for each of thousands of nodes."""
    metadata, spec, status = (mapping(mapping(obj).get(key)) for key in ("metadata", "spec", "status"))
    annotations = strings(metadata.get("annotations"))
    info = mapping(status.get("nodeInfo"))
    kept: Object = {
        key: metadata[key] for key in ("name", "uid", "resourceVersion", "creationTimestamp") if key in metadata
    }
    kept["labels"] = _shared(strings(metadata.get("labels")))
    keys = (*KEPT_ANNOTATIONS, *REPORTS, *_own_reports(annotations))
    kept["annotations"] = {key: annotations[key] for key in keys if key in annotations}
    managers = items(metadata.get("managedFields"))
    kept["managedFields"] = [entry for entry in managers if _ours(entry) or _is_discovery(entry)]
    return {
        "metadata": kept,
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {
            "nodeInfo": {key: _one(value) for key in _INFO if (value := text(info.get(key)))},
            "conditions": [
                {key: _one(text(entry.get(key))) for key in ("type", "status", "reason", "message")}
                for entry in map(mapping, items(status.get("conditions")))
                if entry.get("type") in KEPT_CONDITIONS
            ],
            "capacity": _gpu_resources(status.get("capacity")),
            "allocatable": _gpu_resources(status.get("allocatable")),
        },
    }


_INFO: Final = (
    "containerRuntimeVersion",
    "osImage",
    "kernelVersion",
    "operatingSystem",
    "architecture",
    "kubeletVersion",
)


def os_tag(node: ClusterNode) -> str:
    """How driver images name the node's operating system: ``ubuntu24.04``, ``rhel8``; "" when it is not known."""
    if not node.os_id or not node.os_version:
        return ""
    version = node.os_version.partition(".")[0] if node.os_id in MAJOR_ONLY else node.os_version
    return f"{node.os_id}{version}"


def gpu_count(resources: Mapping[str, int]) -> int:
    """Whole and partitioned NVIDIA devices, of a Node's capacity or allocatable."""
    return sum(resources.values())


def _own_reports(annotations: Mapping[str, str]) -> list[str]:
    """The keys of report annotations of processes that run one role."""
    return sorted(key for key in annotations if key.startswith(names.ROLES_ANNOTATION_PREFIX))[:MAX_REPORTS]


def _reports(annotations: Mapping[str, str]) -> tuple[AgentReport | None, AgentReport | None, dict[str, AgentReport]]:
    """The whole agent's report, the merged one, and those of processes for one role, by role."""
    whole = annotations.get(names.ROLES_ANNOTATION)
    report = None if whole is None else agent_report.decode(whole)
    parts = {
        key.removeprefix(names.ROLES_ANNOTATION_PREFIX): part
        for key in _own_reports(annotations)
        if (part := agent_report.decode(annotations[key])) is not None
    }
    if not parts:
        return report, report, {}
    # A role's own annotation speaks for it, whatever another one says of that role.
    by_role = {role: part for part in parts.values() for role in part.roles} | {
        name: part for name, part in parts.items() if name in part.roles
    }
    return report, agent_report.merged(report, parts), by_role


def _runtime(version: str) -> tuple[str, str]:
    name, separator, number = version.partition("://")
    return (name, number) if separator and name in RUNTIMES else ("", number)


def _system(labels: Mapping[str, str], image: str) -> tuple[str, str]:
    system, version = labels.get(names.NFD_OS_ID, ""), labels.get(names.NFD_OS_VERSION, "")
    if system and version:
        return system, version
    for prefix, known in _SYSTEMS:
        if image.lower().startswith(prefix.lower()):
            match = _VERSION.search(image, len(prefix))
            number = match[0] if match else ""
            return known, ".".join(number.split(".")[: _POINT_RELEASE.get(known)])
    return system, version


def _conditions(value: Any) -> dict[str, NodeCondition]:
    conditions = {}
    for entry in map(mapping, items(value)):
        kind = text(entry.get("type"))
        if kind in KEPT_CONDITIONS:
            conditions[kind] = NodeCondition(
                status=_one(text(entry.get("status"))),
                reason=_one(printable(text(entry.get("reason")))),
                message=one_line(text(entry.get("message"))),
            )
    return conditions


def _gpu_resources(value: Any) -> dict[str, Any]:
    return {_one(name): amount for name, amount in mapping(value).items() if is_accelerator(name)}


def _counts(value: Any, vendor: str) -> dict[str, int]:
    """What is counted of a node's vendor; of NVIDIA where none is known."""
    known = vendor if vendor in VENDORS else names.NVIDIA
    return {name: _count(amount) for name, amount in of_vendor(mapping(value), known).items()}


def _count(amount: Any) -> int:
    try:
        return max(0, Quantity.parse(amount).value) if isinstance(amount, (str, int)) else 0
    except QuantityError:
        return 0


def _ours(entry: Any) -> bool:
    fields = mapping(entry)
    return fields.get("manager") == names.OPERATOR_FIELD_MANAGER and fields.get("operation") == "Apply"


def _is_discovery(entry: Any) -> bool:
    """Whether the entry of managedFields is that of kgpu's discovery and has labels."""
    fields = mapping(entry)
    labels = mapping(mapping(mapping(fields.get("fieldsV1")).get("f:metadata")).get("f:labels"))
    return fields.get("manager") == names.FEATURES_FIELD_MANAGER and bool(labels)


def _owned(value: Any) -> tuple[frozenset[str], frozenset[str]]:
    labels: set[str] = set()
    annotations: set[str] = set()
    for entry in items(value):
        if _ours(entry):
            fields = mapping(mapping(mapping(entry.get("fieldsV1")).get("f:metadata")))
            labels.update(_keys(mapping(fields.get("f:labels"))))
            annotations.update(_keys(mapping(fields.get("f:annotations"))))
    return frozenset(labels), frozenset(annotations)


def _keys(fields: Mapping[str, Any]) -> Iterable[str]:
    return (_one(key[2:]) for key in fields if key.startswith("f:"))


def _one(value: str) -> str:
    return sys.intern(value) if type(value) is str else str(value)


def _fact(value: Any) -> str:
    """A fact that the kubelet reports, printable and cut to ``MAX_FACT``, since messages quote it."""
    return _one(printable(text(value)[:MAX_FACT]))


def _shared(labels: dict[str, str]) -> dict[str, str]:
    return {_one(key): _one(value) for key, value in labels.items()}
