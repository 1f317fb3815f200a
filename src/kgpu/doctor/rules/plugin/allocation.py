"""Rows DPL about a plugin's settings and what it allocates, and what else hands out the devices of its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import devices as dra
from kgpu.doctor import matching, remedies
from kgpu.doctor.agent_reports import has_ended
from kgpu.doctor.kinds import Node, mounted_config_maps
from kgpu.doctor.kubelet_files import given
from kgpu.doctor.matching import DRA, GFD, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import Obj, seconds
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import uses_mps
from kgpu.formats import names
from kgpu.formats.operands import OPERANDS
from kgpu.formats.plugin_config_parse import examine
from kgpu.formats.strict import FileKeyError

_HANDED_OUT: Final = (
    (names.DRA_GPU_DRIVER, matching.NVIDIA), (names.DRA_AMD_DRIVER, matching.AMD),
    (names.DRA_GAUDI_DRIVER, matching.GAUDI),
)  # fmt: skip
"""DRA drivers, and whose devices each hands out."""
_DRA_ROLE: Final = next(row.role for row in OPERANDS if row.deploy == DRA)
"""The agent's role that publishes them."""


@rule(
    "DPL-14",
    "Running without its device",
    Place.CLUSTER,
    rests_on=("kubernetes/kubernetes#116125",),
)
def lost_device(snapshot: Snapshot) -> Iterator[Finding]:
    """After a restart without its checkpoint a kubelet may admit containers again without devices."""
    for host in snapshot.hosts.values():
        entries, read_at = given(host), seconds(host.taken)
        if entries is None or read_at is None:
            continue
        known = {row.pod_uid for row in entries[1]}
        for pod in snapshot.pods_by_node.get(host.node, ()):
            began = seconds(pod.text("status.startTime"))
            resources = [name for name in matching.accelerators(pod) if matching.vendor_of(name) == matching.NVIDIA]
            if (
                not resources
                or pod.phase != "Running"
                or not pod.uid
                or pod.uid in known
                or began is None
                or began + 60 > read_at
            ):
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} runs without its {resources[0]}: the kubelet of node {host.node} has no device down for "
                    "it, as after a restart that lost its checkpoint"
                ),
                evidence=(host.cite_file(entries[0], 0, f"no entry for pod uid {pod.uid}"), pod.cite("metadata.uid")),
                remedy=(
                    remedies.delete_pod(pod.namespace, pod.name).why("its controller makes a new one"),
                    remedies.run_in(pod.namespace, pod.name, "nvidia-smi", "-L").why("to see it"),
                ),
                confidence=CERTAIN,
                nodes=(host.node,),
                pods=(pod.path,),
            )


@rule(
    "DPL-17",
    "Keys that mean nothing",
    Place.PLUGIN,
    explains=("TS-01", "SCH-01"),
    by_hand=True,
    rests_on=("NVIDIA/k8s-device-plugin#1433",),
)
def unknown_keys(snapshot: Snapshot) -> Iterator[Finding]:
    """The replaced plugin leaves out keys that it does not know, such as renameByDefault below flags."""
    policies = {policy.text("spec.devicePlugin.config.name") for policy in snapshot.all("ClusterPolicy")} - {""}
    spaces = {pod.namespace for part in (PLUGIN, matching.OPERATOR) for pod in matching.pods_of_part(snapshot, part)}
    mounted = {
        (pod.namespace, name) for pod in matching.pods_of_part(snapshot, PLUGIN) for name in mounted_config_maps(pod)
    }
    for source in snapshot.all("ConfigMap"):
        if (
            not (source.name in policies and source.namespace in (spaces or {source.namespace}))
            and source.key not in mounted
        ):
            continue
        for key, content in source.map("data").items():
            if not isinstance(content, str) or "version:" not in content or content.startswith("#!"):
                continue
            problems = examine(content, source=f"data[{key}]")[1]
            bad = next(
                (problem for problem in problems if isinstance(problem, FileKeyError) and problem.is_unknown), None
            )
            if bad is None:
                continue
            where = bad.said
            yield Finding(
                subject=source.subject,
                cause=(
                    f"{source}, key {key}, has a key that means nothing, so that what it should do is not done: {where}"
                ),
                evidence=(source.cite(f"data[{key}]", where),),
                remedy=(remedies.edit(source.namespace, "configmap", source.name).why(f"{where}: {bad.expected}"),),
                confidence=CERTAIN,
                nodes=tuple(
                    node.name
                    for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
                    if node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL, key) == key
                ),
            )


@rule(
    "DPL-19",
    "GPUs handed out twice",
    Place.PLUGIN,
    by_hand=True,
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
)
def two_owners(snapshot: Snapshot) -> Iterator[Finding]:
    """The device plugin and the DRA driver each count for themselves. Slices of kgpu's own driver, which has ended on a
    node, are no offer: the kubelet takes them away within half a minute.
    """
    for driver, vendor in _HANDED_OUT:
        devices = [device for device in dra.devices(snapshot) if device.driver == driver]
        offers = Counter(device.node for device in devices)
        both = [
            node for node in snapshot.nodes.values()
            if offers[node.name] and _counted(node, vendor) and not _has_gone(snapshot, node, vendor)
        ]  # fmt: skip
        if not both:
            continue
        node, name = both[0], _counted(both[0], vendor)
        others = f" (and of {len(both) - 1} more)" if len(both) > 1 else ""
        yield Finding(
            subject=node.subject,
            cause=(
                f"the GPUs of node {node.name}{others} are handed out twice: it offers {node.allocatable(name)} {name} "
                f"by device plugin, and {offers[node.name]} devices by DRA; neither knows of the other's pods"
            ),
            evidence=(node.cite(f"status.allocatable[{name}]"), _slice_of(node, devices).cite("spec.driver")),
            remedy=_one_of_them(node, vendor),
            confidence=CERTAIN,
            nodes=tuple(one.name for one in both),
        )


def _has_gone(snapshot: Snapshot, node: Node, vendor: str) -> bool:
    """Whether the driver of the node's slices was kgpu's, which has handed the GPUs back to the device plugin."""
    others = (pod for pod in matching.pods_of_part(snapshot, DRA, vendor=vendor, node=node.name) if not pod.ended)
    return has_ended(node, _DRA_ROLE) and not any(others)


def _slice_of(node: Node, devices: Iterable[dra.Device]) -> Obj:
    return next(device.slice for device in devices if device.node == node.name)


def _counted(node: Node, vendor: str) -> str:
    """The first resource with a vendor's devices that the node offers, "" for none."""
    names_of = (name for name in sorted(node.resources()) if matching.vendor_of(name) == vendor)
    return next((name for name in names_of if node.allocatable(name)), "")


def _one_of_them(node: Node, vendor: str) -> tuple[Remedy, ...]:
    choose = Remedy("choose one for each node:")
    if vendor != matching.NVIDIA:
        return choose, Remedy("keep the DaemonSet of the device plugin, or that of the DRA driver, off the node")
    return (
        choose,
        remedies.label(node.name, f"{names.LABEL_DEPLOY_PREFIX}device-plugin", "false"),
        Remedy("or leave GPUs out of the DRA driver: --set resources.gpus.enabled=false"),
    )


@rule(
    "DPL-21",
    "A plugin on another vendor's node",
    Place.PLUGIN,
    explains=("TNT-16",),
    by_hand=True,
    rests_on=("NVIDIA/k8s-device-plugin#812",),
)
def wrong_vendor(snapshot: Snapshot) -> Iterator[Finding]:
    """Labels set by hand, or no nodeSelector, send a plugin to nodes whose devices it does not know."""
    for vendor in (matching.NVIDIA, matching.AMD, matching.GAUDI):
        for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=vendor):
            node = snapshot.nodes.get(pod.node)
            if (
                node is None
                or pod.ended
                or matching.pci_label(node, vendor)
                or any(matching.vendor_of(name) == vendor for name in node.resources())
            ):
                continue
            others = [
                (candidate, label)
                for candidate in (matching.NVIDIA, matching.AMD, matching.GAUDI, matching.INTEL)
                if candidate != vendor and (label := matching.pci_label(node, candidate))
            ]
            if not others:
                continue
            yield Finding(
                subject=pod.subject,
                cause=f"{pod} is {vendor}'s device plugin, and node {node.name} has devices of {others[0][0]} alone",
                evidence=(
                    node.cite(f"metadata.labels[{others[0][1]}]"),
                    pod.cite("spec.nodeSelector"),
                    pod.cite("spec.nodeName"),
                ),
                remedy=(
                    Remedy("take labels set by hand away:"),
                    remedies.unlabel(node.name, names.LABEL_GPU_PRESENT),
                    Remedy("give the DaemonSet a nodeSelector on the label of node feature discovery"),
                ),
                confidence=CERTAIN,
                nodes=(node.name,),
                pods=(pod.path,),
            )


@rule("DPL-23", "An old figure of shares", Place.PLUGIN)
def old_figure(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia.com/gpu.replicas times nvidia.com/gpu.count is what a node offers while sharing is on."""
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        counts = [node.labels.get(key, "") for key in (names.LABEL_GPU_COUNT, names.LABEL_GPU_REPLICAS)]
        slices = any(matching.is_mig(name) for name in node.resources()) or "-MIG-" in node.labels.get(
            names.LABEL_GPU_PRODUCT, ""
        )
        if (
            slices
            or uses_mps(snapshot, node.name)
            or not all(count.isdecimal() and len(count) < 6 for count in counts)
            or int(counts[1]) < 2
        ):
            continue
        offered = sum(
            node.capacity(name) or 0 for name in (names.GPU_RESOURCE, names.GPU_RESOURCE + names.SHARED_SUFFIX)
        )
        if not offered or offered != int(counts[0]):
            continue
        yield Finding(
            subject=node.subject,
            cause=(
                f"labels of node {node.name} say {counts[1]} shares of each of {counts[0]} GPUs, and it offers "
                f"{offered}: the figure with shares is from an earlier configuration"
            ),
            evidence=(
                node.cite("metadata.labels[nvidia.com/gpu.replicas]"),
                node.cite(f"status.capacity[{names.GPU_RESOURCE}]"),
            ),
            remedy=(
                Remedy("what is offered is GPUs times replicas; without sharing it is the number of cards"),
                Remedy(
                    "restart gpu-feature-discovery on the node so that it writes the labels anew, "
                    "or turn time-slicing on again"
                ),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=(node.name,),
        )


def _has_gpu(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    return (hit.pod.cite("spec.containers[0].resources"),) if hit.pod and matching.accelerators(hit.pod) else None


RULES: Final = rules_of(
    Sign(
        id="DPL-13",
        title="No right to see MIG devices",
        place=Place.PLUGIN,
        where=(LOG,),
        parts=(PLUGIN, GFD),
        always=True,
        pattern=r"Insufficient Permissions",
        words="Insufficient Permissions",
        cause=(
            "{who} may not look at MIG devices: its container lacks the capability to monitor them, "
            "or they were changed while it ran"
        ),
        remedy=(
            "set NVIDIA_MIG_MONITOR_DEVICES=all in its environment (spec.devicePlugin.env, spec.gfd.env)",
            "after a change of MIG:",
            remedies.DELETE_POD,
        ),
        explain="With MIG on, NVML wants the capability mig/monitor for what concerns other containers' devices.",
        explains=("SCH-02", "DPL-03"),
        rests_on=("NVIDIA/k8s-device-plugin#260",),
    ),
    Sign(
        id="DPL-24",
        title="CUDA_VISIBLE_DEVICES is not how GPUs are given",
        place=Place.CLUSTER,
        where=(LOG,),
        always=True,
        level=Level.NOTE,
        pattern=r"CUDA_VISIBLE_DEVICES(?:\s*[=:]|\s+is)\s*(?:$|''|\"\"|None\b|not set\b|unset\b|empty\b)",
        words="CUDA_VISIBLE_DEVICES",
        proof=_has_gpu,
        cause=(
            "{who} finds CUDA_VISIBLE_DEVICES empty, which is right: the plugin gives devices by "
            "NVIDIA_VISIBLE_DEVICES or CDI, and CUDA sees only those, from 0"
        ),
        remedy=(remedies.EXEC + "nvidia-smi -L  # shows what it has",),
        explain="A program that takes an empty CUDA_VISIBLE_DEVICES for no GPU has to ask CUDA instead.",
    ),
)
