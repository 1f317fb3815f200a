"""Rows DPL: the device plugin, the kubelet's registration of devices, and admission."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.printable import counted
from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, devices, matching, messages, remedies
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.matching import GFD, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.privileges import is_mighty
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import plugin_off
from kgpu.doctor.waiting import waiting
from kgpu.formats import agent_report, names
from kgpu.formats.operands import BY_NAME

_REFUSED: Final = re.compile(r"UnexpectedAdmissionError|OutOf(?P<resource>[\w.-]+/[\w.-]+)")
_NO_DEVICE: Final = re.compile(
    r"no healthy devices present|requested number of devices unavailable|Insufficient|OutOf|was unexpected"
)


_ROLE, _RUNNING = BY_NAME["device-plugin"].role, "running"
"""Of kgpu's agent, as its report has them."""


def replaced(snapshot: Snapshot) -> Iterator[Finding]:
    """DPL-11 as history: pods that the kubelet refused while the plugin was down, and that were replaced since."""
    rows: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.pods.values():
        if (
            pod.phase == "Failed" and _REFUSED.search(pod.reason) and _NO_DEVICE.search(f"{pod.reason} {pod.message}")
            and matching.uses_accelerators(pod) and matching.superseded(snapshot, pod)
        ):  # fmt: skip
            rows.setdefault((pod.namespace, pod.owner), []).append(pod)
    for (namespace, owner), pods in rows.items():
        yield Finding(
            subject=pods[0].subject,
            cause=(
                f"{counted(len(pods), f'pod of {owner} was', f'pods of {owner} were')} refused by the kubelet before "
                "the device plugin had registered, and have been replaced since: nothing is broken now"
            ),
            evidence=tuple(pod.cite("status.message") for pod in pods[:3]),
            remedy=(remedies.delete_pod(namespace, *(pod.name for pod in pods[:20])),),
            confidence=CERTAIN,
            level=Level.NOTE,
            nodes=tuple(dict.fromkeys(pod.node for pod in pods if pod.node)),
            pods=tuple(pod.path for pod in pods),
        )


@rule(
    "DPL-03",
    "The node offers none of its devices",
    Place.PLUGIN,
    explains=("SCH-02", "SCH-01"),
    rests_on=("NVIDIA/k8s-device-plugin#1228", "NVIDIA/k8s-device-plugin#1698"),
)
def zeroed(snapshot: Snapshot) -> Iterator[Finding]:
    """When a plugin's endpoint goes away the kubelet leaves the resource with an amount of 0: at first in allocatable
    alone, after five minutes in capacity too. A plugin that does not notice a restart of the kubelet stays
    unregistered.
    """
    # The resource exists with an amount of 0, although its plugin runs or because it does not.
    yield from _closed(snapshot)
    waits = list(waiting(snapshot))
    off = plugin_off(snapshot)
    for node in matching.gpu_nodes(snapshot):
        if node.ready is False or node.name in off:
            continue
        for resource in _emptied(snapshot, node):
            plugins = matching.pods_of_part(snapshot, PLUGIN, vendor=matching.vendor_of(resource), node=node.name)
            running = [pod for pod in plugins if pod.ready]
            if (not running and not all(pod.ended for pod in plugins)) or left_to_claims(snapshot, node, resource):
                continue
            pod = running[0] if running else None
            steps = (remedies.delete_pod(pod.namespace, pod.name),) if pod else ()
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} has 0 {resource} in capacity and allocatable"
                    + (f" although {pod} runs there" if pod else "")
                    + ": the kubelet has lost the plugin's endpoint, and the plugin has not registered again"
                ),
                evidence=(
                    node.cite(f"status.capacity[{resource}]"),
                    node.cite(f"status.allocatable[{resource}]"),
                    *((pod.cite("status.phase"),) if pod else ()),
                ),
                remedy=(
                    *steps,
                    Remedy("if it stays at 0, on node {}:", node.name),
                    remedies.restart_service("kubelet"),
                ),
                confidence=LIKELY,
                nodes=(node.name,),
                pods=tuple(p.path for pending in waits if pending.resource == resource for p in pending.pods),
            )


def _closed(snapshot: Snapshot) -> Iterator[Finding]:
    """A plugin whose endpoint has closed: for five minutes the kubelet keeps the capacity and allows none of it."""
    off = plugin_off(snapshot)
    for node in matching.gpu_nodes(snapshot):
        if node.ready is False or node.name in off:
            continue
        for resource in sorted(filter(matching.is_accelerator, node.resources())):
            if not is_closed(snapshot, node, resource) or left_to_claims(snapshot, node, resource):
                continue
            vendor = matching.vendor_of(resource)
            plugins = [
                pod for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=vendor, node=node.name) if not pod.ended
            ]
            state = f"{plugins[0]} is not ready there" if plugins else "none is seen there"
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} has {node.capacity(resource)} {resource} and allows none of them: their device "
                    f"plugin is not there, or starts anew ({state})"
                ),
                evidence=(
                    node.cite(f"status.capacity[{resource}]"), node.cite(f"status.allocatable[{resource}]"),
                    *(pod.cite("status.phase") for pod in plugins[:1]),
                ),
                remedy=_plugin_steps(snapshot, node, vendor, plugins),
                confidence=POSSIBLE if plugins else LIKELY,  # the finding about the pod itself explains it
                nodes=(node.name,),
                pods=tuple(
                    pod.path for pending in waiting(snapshot) if pending.resource == resource for pod in pending.pods
                ),
            )  # fmt: skip


def _plugin_steps(snapshot: Snapshot, node: Node, vendor: str, plugins: list[Pod]) -> tuple[Remedy, ...]:
    """The commands that show why a plugin is missing."""
    if plugins:
        return (
            remedies.describe(plugins[0].namespace, "pod", plugins[0].name),
            remedies.describe_node(node.name),
        )
    brings = matching.daemon_sets_of_part(snapshot, PLUGIN, vendor=vendor)[:1]
    steps = tuple(remedies.describe(daemon_set.namespace, "daemonset", daemon_set.name) for daemon_set in brings)
    return (*steps, remedies.pods_on(node.name, wide=True))


def is_closed(snapshot: Snapshot, node: Node, resource: str) -> bool:
    """Whether a node allows none of a resource that it has, nor of another one of the vendor, and no plugin of that
    vendor (or kgpu's agent, which is one) is ready there. One that is says itself that devices are unhealthy: SCH-03.
    Where no pods were read nobody knows.
    """
    if node.allocatable(resource) != 0 or not node.capacity(resource):
        return False
    if not snapshot.knows("Pod") and not snapshot.pods:
        return False
    vendor = matching.vendor_of(resource)
    if any(matching.vendor_of(name) == vendor and node.allocatable(name) for name in node.resources()):
        return False
    pods = (
        *matching.pods_of_part(snapshot, PLUGIN, vendor=vendor, node=node.name),
        *matching.pods_of_part(snapshot, matching.AGENT, node=node.name),  # on nodes of every vendor
    )
    return not any(pod.ready for pod in pods)


def left_to_claims(snapshot: Snapshot, node: Node, resource: str) -> bool:
    """Whether a DRA driver has taken the device plugin's place: it offers the devices, and no plugin's pod is there. Of
    a plugin that has been there the kubelet keeps the resource, with none allocatable.
    """
    if node.allocatable(resource) or not devices.by_claims(snapshot, node.name, resource):
        return False
    plugins = matching.pods_of_part(snapshot, PLUGIN, vendor=matching.vendor_of(resource), node=node.name)
    return all(pod.ended or pod.deleting for pod in plugins)


def _emptied(snapshot: Snapshot, node: Node) -> list[str]:
    """The resources of a node that are there with an amount of 0, where it offers no other. A name that nobody asks for
    is what an earlier configuration has left, as long as the node has another one of the vendor.
    """
    mine = sorted(name for name in node.resources() if matching.is_accelerator(name))
    if any(node.allocatable(name) for name in mine):
        return []
    requested = snapshot.once(_requested_resources)
    empty: list[str] = []
    for vendor in dict.fromkeys(map(matching.vendor_of, mine)):
        own = [name for name in mine if matching.vendor_of(name) == vendor]
        zero = [name for name in own if node.capacity(name) == 0]
        wanted = [name for name in zero if name in requested]
        # One of them stands for all where nobody asks for any: whole devices before shares and slices.
        empty += wanted or ([min(zero, key=_special)] if zero == own else [])
    return empty


def _special(name: str) -> tuple[bool, str]:
    return matching.is_shared(name) or matching.is_mig(name), name


def _requested_resources(snapshot: Snapshot) -> frozenset[str]:
    """The resources that pods ask for."""
    return frozenset(name for pod in snapshot.pods.values() if not pod.ended for name in matching.accelerators(pod))


@rule(
    "DPL-20",
    "Two device plugins on a node",
    Place.PLUGIN,
    also=("OPR-20",),
    by_hand=True,
    rests_on=("NVIDIA/gpu-operator#933",),
)
def twice(snapshot: Snapshot) -> Iterator[Finding]:
    """A DaemonSet from a manifest and the operator's run side by side; each registers the same resource."""
    by_node: dict[tuple[str, str], list[Pod]] = {}
    for vendor, pod in _plugins(snapshot):
        # Without a directory of its node no socket reaches the kubelet, whatever its name.
        if pod.node and not pod.ended and not pod.deleting and (is_mighty(pod) or not pod.uid):
            by_node.setdefault((pod.node, vendor), []).append(pod)
    groups: dict[tuple[str, ...], list[tuple[str, list[Pod]]]] = {}
    for (node, _), pods in by_node.items():
        owners = tuple(sorted({f"{pod.namespace}/{pod.owner or pod.name}" for pod in pods}))
        if len(owners) > 1:
            groups.setdefault(owners, []).append((node, pods))
    for owners, rows in groups.items():
        pods = rows[0][1]
        yield Finding(
            subject=pods[-1].subject,
            cause=(
                f"node {rows[0][0]}{f' (and {len(rows) - 1} more)' if len(rows) > 1 else ''} runs two device plugins "
                f"for the same GPUs, of {' and '.join(owners)}: their counts overwrite each other"
            ),
            evidence=tuple(pod.cite("metadata.ownerReferences[0].name") for pod in pods[:3]),
            remedy=(
                Remedy("delete the one that you did not mean to have; each of these ends one of them:"),
                *dict.fromkeys(_end(snapshot, pod) for pod in pods),
            ),
            confidence=CERTAIN,
            nodes=tuple(node for node, _ in rows),
        )


def _plugins(snapshot: Snapshot) -> Iterator[tuple[str, Pod]]:
    """Vendor and pod of each device plugin. kgpu's agent is one where its report on the node has that role running."""
    for vendor in (matching.NVIDIA, matching.AMD, matching.GAUDI, matching.INTEL):
        yield from ((vendor, pod) for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=vendor))
    yield from ((matching.NVIDIA, pod) for pod in _agents(snapshot))


def _agents(snapshot: Snapshot) -> list[Pod]:
    """The agents that are their nodes' device plugins."""
    pods = matching.pods_of_part(snapshot, matching.AGENT, vendor=matching.NVIDIA)
    return [pod for pod in pods if (node := snapshot.nodes.get(pod.node)) is not None and _is_plugin(node)]


def _is_plugin(node: Node) -> bool:
    report = agent_report.decode(node.annotations.get(names.ROLES_ANNOTATION, ""))
    role = report.roles.get(_ROLE) if report is not None else None
    return role is not None and role.state == _RUNNING


def _end(snapshot: Snapshot, pod: Pod) -> Remedy:
    """What ends one of two plugins: for kgpu's agent, which does more, a setting."""
    if pod in _agents(snapshot):
        return cluster_policy.change(snapshot, {"devicePlugin": {"enabled": False}})
    return Remedy("kubectl -n {} delete {} {}", pod.namespace, *_maker(pod))


def _maker(pod: Pod) -> tuple[str, str]:
    """The kind and name of what makes a pod, as kubectl names them."""
    kind, _, name = (pod.owner or f"Pod/{pod.name}").partition("/")
    return kind.lower(), name


def _barrier(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """What is known of the validator that should lift the barrier."""
    if hit.pod is None:
        return None
    validators = matching.pods_of_part(snapshot, matching.VALIDATOR, node=hit.node)
    if not validators:
        return (Evidence(object=f"Node {hit.node}", field="validator pod", value="none"),)
    failing = matching.failing(validators[0]) or matching.initialising(validators[0])
    return (failing.cite_status() if failing else validators[0].cite("status.phase"),)


_BEFORE: Final = re.compile(r"list of preferred allocation devices: unknown device: (?P<device>[^\s;,]+)")


def of_before(snapshot: Snapshot) -> Iterator[Finding]:
    """DPL-10: the kubelet offers devices that the plugin does not have any more."""
    hits = (
        *messages.in_status(snapshot, _BEFORE, "unknown device"),
        *messages.in_events(snapshot, _BEFORE, "unknown device"),
    )
    for key, hit in {hit.pod.key: hit for hit in hits if hit.pod and hit.pod.phase == "Failed"}.items():
        pod = snapshot.pods[key]
        if matching.superseded(snapshot, pod):
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} was refused by the kubelet of node {pod.node}, which still counted device "
                f"{hit.match['device']} when the plugin had another list: it came while sharing, "
                "MIG or GPUs of the node changed"
            ),
            evidence=(hit.evidence,),
            remedy=(remedies.delete_pod(pod.namespace, pod.name).why("its controller makes a new one"),),
            confidence=CERTAIN,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


RULES: Final = rules_of(
    Sign(
        id="DPL-01",
        title="The plugin finds no devices",
        place=Place.PLUGIN,
        pattern=r"No devices found\. Waiting indefinitely",
        words="No devices found",
        where=(LOG,),
        parts=(PLUGIN,),
        always=True,
        cause="{who} runs, but the driver shows it no device, so the node offers none",
        remedy=(
            "on the node:",
            "nvidia-smi -L; ls /proc/driver/nvidia/gpus",
            "mend the driver (kgpu doctor node {node}), then:",
            remedies.DELETE_POD,
        ),
        explain=(
            "NVML found no device: the driver is not loaded, or every GPU is excluded. With failOnInitError=false the "
            "plugin stays alive and offers nothing."
        ),
        confidence=CERTAIN,
        explains=("SCH-02", "DPL-03"),
        rests_on=("NVIDIA/k8s-device-plugin#1080", "NVIDIA/k8s-device-plugin#170"),
    ),
    Sign(
        id="DPL-02",
        title="The plugin does not see the driver",
        place=Place.RUNTIME,
        pattern=(
            r"Incompatible (?:strategy detected auto|platform detected)|invalid device discovery strategy"
            r"|unsupported strategy auto|platform detection failed|[Cc]ould not load NVML library"
            r"|Failed to initialize NVML: (?:could not load NVML library|ERROR_LIBRARY_NOT_FOUND|Library not found)"
        ),
        words="",
        where=(LOG, STATUS),
        parts=(PLUGIN, GFD),
        always=True,
        cause="{who} does not see NVML: its container was not given the driver (no runtime class, no CDI)",
        remedy=(
            (
                "set runtimeClassName: nvidia on the plugin (chart: --set runtimeClassName=nvidia), "
                "or make nvidia the default runtime"
            ),
            "kubectl -n {namespace} get pod {name} -o jsonpath='{{.spec.runtimeClassName}}'",
        ),
        explain=(
            "Neither NVML nor Tegra's files are visible inside the container of the plugin: it was not started by the "
            "nvidia runtime, and nothing was injected by CDI or NRI."
        ),
        explains=("SCH-02", "DPL-01", "DPL-03"),
        rests_on=("NVIDIA/k8s-device-plugin#1220", "klueska/nvkind#20"),
    ),
    Sign(
        id="DPL-04",
        title="The plugin can't reach the kubelet",
        place=Place.PLUGIN,
        pattern=r"[Cc]ould not register device plugin|kubelet\.sock: (?:connect: )?no such file",
        words="",
        where=(LOG,),
        parts=(PLUGIN,),
        always=True,
        cause="{who} can't register with the kubelet: its socket is not where the plugin looks",
        remedy=(
            (
                "give the plugin the kubelet's own folder: chart value hostPaths.kubeletRootDir, "
                "as the kubelet's --root-dir says"
            ),
        ),
        explain=(
            "The kubelet's root folder is not /var/lib/kubelet (k0s, MicroK8s, --root-dir), "
            "or is not mounted into the plugin."
        ),
        explains=("SCH-02", "DPL-03"),
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="DPL-10",
        title="The kubelet has fewer devices than the scheduler thinks",
        place=Place.CLUSTER,
        pattern=(
            r"requested number of devices unavailable for (?P<resource>\S+?)\. Requested: (?P<asked>\d+), Available: "
            r"(?P<left>\d+)"
        ),
        words="requested number of devices unavailable",
        where=(STATUS, EVENT),
        cause=(
            "{who} was refused by the kubelet: it asked for {asked} {resource}, and the kubelet has {left} left, "
            "other than the scheduler thinks"
        ),
        remedy=(
            remedies.DELETE_POD,
            "if it happens again, on node {node}:",
            remedies.restart_service("kubelet"),
        ),
        explain=(
            "The kubelet's own list of devices differs from what the scheduler counts: a stale checkpoint, pods that "
            "have ended, or a plugin that was registering again at that moment."
        ),
        confidence=CERTAIN,
        besides=of_before,
        rests_on=(
            "kubernetes/kubernetes#130145",
            "kubernetes/kubernetes#117955",
            "kubernetes/kubernetes#124345",
            "kubernetes/kubernetes#138446",
        ),
    ),
    Sign(
        id="DPL-11",
        title="Admitted before the plugin was back",
        place=Place.CLUSTER,
        pattern=r"no healthy devices present; cannot allocate unhealthy devices (?P<resource>[\w./-]+[\w])",
        words="no healthy devices present",
        where=(STATUS, EVENT),
        cause="{who} was started again before the device plugin had registered {resource}, as happens after a reboot",
        remedy=(remedies.DELETE_POD,),
        explain=(
            "After a reboot the kubelet admits old pods before the plugin has registered; the failed pods stay. "
            "Their controller makes new ones."
        ),
        besides=replaced,
        rests_on=("kubernetes/kubernetes#125579",),
    ),
    Sign(
        id="DPL-12",
        title="A lost GPU stops all allocations",
        place=Place.HARDWARE,
        pattern=r"GetPreferredAllocation.*GPU is lost|error creating nvml\.Device .*GPU is lost",
        words="GPU is lost",
        where=(STATUS, EVENT, LOG),
        cause=(
            "{who} was refused because a GPU of node {node} has fallen off the bus, "
            "and the plugin fails for all of them"
        ),
        remedy=(
            remedies.CORDON,
            *remedies.REBOOT,
        ),
        explain=(
            "The plugin enumerated a GPU that is lost by now, and returns an error for every allocation on the node."
        ),
        explains=("DPL-10", "DPL-11"),
        rests_on=("kubernetes/kubernetes#97131", "NVIDIA/k8s-device-plugin#231"),
    ),
    Sign(
        id="DPL-16",
        title="The plugin's configuration is not there",
        place=Place.PLUGIN,
        pattern=r"specified config (?P<key>\S+) does not exist",
        words="specified config",
        where=(LOG,),
        parts=(PLUGIN, GFD),
        always=True,
        cause="{who} is told to use the configuration {key}, which its ConfigMap does not have",
        remedy=(
            "kubectl get node {node} -o jsonpath='{{.metadata.labels.nvidia\\.com/device-plugin\\.config}}'",
            "correct spec.devicePlugin.config.default of the ClusterPolicy, or the label; KEY is one of the ConfigMap:",
            remedies.filled(remedies.LABEL_ANEW, key=names.DEVICE_PLUGIN_CONFIG_LABEL, value="KEY"),
        ),
        explain=(
            "The node's label nvidia.com/device-plugin.config, or the policy's default, names a key that the "
            "ConfigMap lacks; the plugin keeps its old configuration or does not start."
        ),
        confidence=CERTAIN,
        rests_on=("NVIDIA/gpu-operator#412", "NVIDIA/k8s-device-plugin v0.20.0, source"),
    ),
    Sign(
        id="DPL-18",
        title="A barrier that nobody lifts",
        place=Place.PLUGIN,
        pattern=r"waiting for nvidia container stack to be setup",
        words="waiting for nvidia container stack",
        where=(LOG,),
        cause="{who} waits for the file toolkit-ready in /run/nvidia/validations, which the validator has not written",
        remedy=(
            "kubectl get pods -A -o wide -l app=nvidia-operator-validator",
            (
                "mend the step of the validator that fails, or, where all succeed, "
                "delete its pod so that it validates again"
            ),
        ),
        explain=(
            "Operands wait for files that nvidia-operator-validator writes after each step, and removes when it ends."
        ),
        proof=_barrier,
        rests_on=("NVIDIA/gpu-operator v26.7.0, source", "NVIDIA/gpu-operator#2166"),
    ),
)
