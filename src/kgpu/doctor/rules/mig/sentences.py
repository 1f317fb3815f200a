"""Rows MIG that are known by a sentence of the MIG manager, the device plugin or the kubelet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching, messages, remedies
from kgpu.doctor.matching import GFD, MIG_MANAGER, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Place
from kgpu.doctor.objects import plain
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import mig_state, still_broken, wanted_mig
from kgpu.formats import names

_ABOVE: Final = ("SCH-01", "SCH-02", "SCH-03", "SCH-05", "SCH-06", "DPL-01", "DPL-03", "DPL-04", "TNT-03")
_HOST_USERS: Final = (
    "nv-hostengine",
    "dcgm",
    "nvsm",
    "Xorg",
    "gnome-shell",
    "nvidia-persiste",
    "node_exporter",
    "netdata",
    "telegraf",
)


def _not_done(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The state of the node's layout change; None where it has succeeded since, so that the line no longer counts."""
    node = snapshot.nodes.get(hit.node)
    if node is None or mig_state(node) == "success":
        return None
    return (node.cite(f"metadata.labels[{names.MIG_CONFIG_STATE_LABEL}]"), *_users(snapshot, node.name))


def _users(snapshot: Snapshot, node: str) -> tuple[Evidence, ...]:
    host = snapshot.hosts.get(node)
    held = [
        process
        for process in (host.processes if host else None) or ()
        if any("nvidia" in name for name in process.holds)
    ]
    shown = (
        tuple(
            host.cite("processes", f"{process.pid} {process.name} holds {', '.join(process.holds[:3])}")
            for process in held[:3]
        )
        if host
        else ()
    )
    pods = [pod for pod in snapshot.pods_by_node.get(node, ()) if pod.phase == "Running" and matching.accelerators(pod)]
    return (*shown, *(pod.cite("status.phase") for pod in pods[:3]))


_NOT_PRESENT: Final = re.compile(r"selected mig-config not present: (?P<name>[\w.+-]{1,63})")


def layout_said(snapshot: Snapshot) -> Iterator[Finding]:
    """MIG-01 in the MIG manager's own words, where its ConfigMap is not known."""
    for hit in messages.in_logs(snapshot, _NOT_PRESENT, "mig-config not present", parts=(MIG_MANAGER,)):
        node = snapshot.nodes.get(hit.node)
        if node is None or mig_state(node) == "success" or wanted_mig(node) != hit.match["name"] or hit.pod is None:
            continue
        label = f"metadata.labels[{names.MIG_CONFIG_LABEL}]"
        yield Finding(
            subject=node.subject,
            cause=(
                f"node {node.name} is to have the MIG layout {hit.match['name']}, "
                "which the MIG manager's ConfigMap does not have"
            ),
            evidence=(node.cite(label), hit.evidence),
            remedy=(
                Remedy(
                    "kubectl -n {} get configmap default-mig-parted-config -o jsonpath='{{.data}}' # which there are; "
                    "or the one that the ClusterPolicy names",
                    hit.pod.namespace,
                ),
                remedies.label(node.name, names.MIG_CONFIG_LABEL, "NAME", anew=True),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
        )


def held_by_host(snapshot: Snapshot) -> Iterator[Finding]:
    """MIG-02 by the host's facts: the change has failed, and a service of the host holds the GPUs."""
    for node in snapshot.nodes.values():
        host = snapshot.hosts.get(node.name)
        if host is None or mig_state(node) != "failed":
            continue
        held = [
            process
            for process in host.processes or ()
            if process.name.startswith(_HOST_USERS) and any("nvidia" in name for name in process.holds)
        ]
        if held:
            who = ", ".join(dict.fromkeys(plain(process.name) for process in held))
            yield Finding(
                subject=node.subject,
                cause=(
                    f"the MIG layout {wanted_mig(node)} could not be applied on node {node.name}: "
                    f"{who} on the host holds its GPUs"
                ),
                evidence=(
                    node.cite(f"metadata.labels[{names.MIG_CONFIG_STATE_LABEL}]"),
                    host.cite("processes", f"{held[0].pid} {held[0].name} holds {', '.join(held[0].holds[:3])}"),
                ),
                remedy=(
                    Remedy("end {} on {} (systemctl stop), then:", who, node.name),
                    remedies.relabel(node.name, names.MIG_CONFIG_LABEL, wanted_mig(node)),
                    Remedy(
                        "for good: name the service in the ConfigMap of migManager.gpuClientsConfig, and "
                        "WITH_SHUTDOWN_HOST_GPU_CLIENTS=true in migManager.env"
                    ),
                ),
                nodes=(node.name,),
            )


def invalid_label(snapshot: Snapshot) -> Iterator[Finding]:
    """MIG-06 by the label of feature discovery."""
    for node in snapshot.nodes.values():
        if "-MIG-INVALID" in node.labels.get(names.LABEL_GPU_PRODUCT, ""):
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} has MIG devices of several sizes, or none at all, under strategy single, "
                    "which offers one size only"
                ),
                evidence=(
                    node.cite(f"metadata.labels[{names.LABEL_GPU_PRODUCT}]"),
                    node.cite(f"metadata.labels[{names.LABEL_MIG_STRATEGY}]"),
                ),
                remedy=(
                    cluster_policy.change(snapshot, cluster_policy.MIXED),
                    Remedy("or give the node slices of one size, by a layout NAME of the MIG manager's ConfigMap:"),
                    remedies.label(node.name, names.MIG_CONFIG_LABEL, "NAME", anew=True),
                ),
                confidence=CERTAIN,
                nodes=(node.name,),
            )


RULES: Final = rules_of(
    Sign(
        id="MIG-02",
        title="Somebody holds the GPU",
        place=Place.DRIVER,
        pattern=(
            r"In use by another client|[Rr]esource(?: is)? in use|GPU is in use|[Dd]evice or resource busy"
            r"|pods? (?:are|is) still (?:running|using)"
        ),
        words="",
        where=(LOG,),
        parts=(MIG_MANAGER,),
        always=True,
        proof=_not_done,
        besides=held_by_host,
        cause="the MIG layout of node {node} can't be changed: its GPUs are in use, says {pod}",
        remedy=(
            remedies.DRAIN,
            "on the node:",
            "sh -c 'fuser -v /dev/nvidia*'",
            (
                "a service of the host: name it in the ConfigMap of migManager.gpuClientsConfig, with "
                "WITH_SHUTDOWN_HOST_GPU_CLIENTS=true"
            ),
        ),
        explain=(
            "Changing the mode or the slices needs GPUs that nobody uses: no pod, "
            "and no service of the host such as DCGM, nvsm or Xorg."
        ),
        explains=(*_ABOVE, "MIG-11"),
        rests_on=("NVIDIA/gpu-operator#603", "NVIDIA/gpu-operator#646", "NVIDIA/mig-parted#19"),
    ),
    Sign(
        id="MIG-06",
        title="Slices of several sizes under strategy single",
        place=Place.PLUGIN,
        pattern=r"more than one MIG device type present on node|Invalid configuration detected for mig-strategy=single",
        words="on",
        where=(LOG, STATUS),
        parts=(PLUGIN, GFD),
        always=True,
        proof=still_broken,
        besides=invalid_label,
        confidence=CERTAIN,
        cause="{who} offers nothing: node {node} has MIG devices of several sizes, and strategy single knows one",
        remedy=(
            remedies.policy_row(cluster_policy.MIXED),
            "or give the node slices of one size, by a layout NAME of the MIG manager's ConfigMap:",
            remedies.filled(remedies.LABEL_ANEW, key=names.MIG_CONFIG_LABEL, value="NAME"),
        ),
        explain=(
            "Under strategy single a slice is called nvidia.com/gpu, "
            "which has to mean the same thing on the whole node."
        ),
        explains=(*_ABOVE, "MIG-08"),
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MIG-07",
        title="MIG on some GPUs only, under strategy single",
        place=Place.PLUGIN,
        pattern=r"all devices on the node must be configured with the same migEnabled value",
        words="same migEnabled value",
        where=(LOG, STATUS),
        parts=(PLUGIN, GFD),
        always=True,
        proof=still_broken,
        confidence=CERTAIN,
        cause="{who} offers nothing: only some GPUs of node {node} have MIG on, which strategy single does not allow",
        remedy=(
            "on the node:",
            "nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
            "use strategy mixed, or:",
            remedies.filled(remedies.LABEL_ANEW, key=names.MIG_CONFIG_LABEL, value="all-disabled"),
        ),
        explain="Strategy single needs MIG on all GPUs of a node or on none.",
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MIG-08",
        title="MIG is on, and there are no slices",
        place=Place.DRIVER,
        pattern=(
            r"device (?P<index>\S+) has no MIG devices configured"
            r"|at least one device with migEnabled=true was not configured correctly"
        ),
        words="configured",
        where=(LOG, STATUS),
        parts=(PLUGIN, GFD),
        always=True,
        proof=still_broken,
        confidence=CERTAIN,
        cause="{who} offers nothing: MIG is on on node {node}, and a GPU has no slices, as after a reboot",
        remedy=(
            "on the node:",
            "nvidia-smi mig -lgi",
            "with the layout that the node had in place of NAME:",
            remedies.filled(remedies.RELABEL, key=names.MIG_CONFIG_LABEL, value="NAME"),
        ),
        explain="The mode outlives a reboot, instances do not: the layout has to be applied again.",
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MIG-18",
        title="DRA could not make the slice",
        place=Place.PLUGIN,
        pattern=(
            r"(?:NodePrepareResources|prepar\w+ (?:devices|resources)|create MIG device"
            r"|creating MIG device).*Insufficient Resources"
        ),
        words="Insufficient Resources",
        where=(EVENT, STATUS, LOG),
        parts=(),
        always=False,
        cause=(
            "{who} waits: the DRA driver could not make its MIG slice on node {node}, "
            "which has no room for it or MIG off"
        ),
        remedy=(
            "on the node:",
            "nvidia-smi mig -lgi; nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
            (
                "enable MIG (nvidia-smi -mig 1), take away slices that nobody has, and let the kubelet try again; "
                "else take a newer driver of DRA"
            ),
        ),
        explain=(
            "Slices are made when the pod starts; a race between two pods, or a mode that is off, ends in this message."
        ),
        explains=("DRA-*",),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu#35", "kubernetes-sigs/dra-driver-nvidia-gpu#149"),
    ),
)
