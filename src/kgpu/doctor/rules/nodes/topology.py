"""Rows TOP: NUMA nodes, pinned processors, and GPUs that are far from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import devices as dra
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Pod
from kgpu.doctor.kubelet_files import given, setting
from kgpu.doctor.matching import NFD_TOPOLOGY
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import plain
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_AGAIN: Final = 3
_REFUSED: Final = "TopologyAffinityError"
_DISPLAY: Final = ("03", "12")
_VENDORS: Final = frozenset({"10de", "1002", "1da3"})


@rule("TOP-02", "Refused for NUMA again and again", Place.CLUSTER, explains=("TOP-01",))
def again_and_again(snapshot: Snapshot) -> Iterator[Finding]:
    """A controller makes a new pod for each that the kubelet refuses, and the scheduler chooses the same node."""
    for (namespace, owner), pods in snapshot.pods_by_owner.items():
        refused = [pod for pod in pods if pod.phase == "Failed" and pod.reason == _REFUSED]
        nodes = Counter(pod.node for pod in refused)
        node, count = nodes.most_common(1)[0] if nodes else ("", 0)
        if count < _AGAIN:
            continue
        kind, _, name = owner.partition("/")
        policy = setting(snapshot.hosts.get(node), "topologyManagerPolicy")
        yield Finding(
            subject=Subject(kind, name, namespace),
            cause=(
                f"{count} pods of {owner} failed on node {node} with {_REFUSED}: "
                "the scheduler does not see NUMA nodes and keeps choosing it"
            ),
            evidence=(
                refused[0].cite("status.message"),
                refused[0].cite("spec.nodeName"),
                *((policy[1],) if policy else ()),
            ),
            remedy=(
                Remedy("kubectl -n {} delete pods --field-selector status.phase=Failed", namespace),
                Remedy(
                    "keep these pods off {} (affinity), ask for what fits one NUMA node, set topologyManagerPolicy: "
                    "best-effort, or use a scheduler that knows NodeResourceTopology",
                    node,
                ),
            ),
            confidence=CERTAIN,
            nodes=(node,),
            pods=tuple(pod.path for pod in refused),
        )


def _numa(host: HostFacts) -> dict[str, int]:
    """The NUMA node of each GPU by its UUID."""
    places = {device.address[-12:].lower(): device.numa_node for device in host.pci or ()}
    nodes = {gpu.uuid: places.get(gpu.pci[-12:].lower()) for gpu in host.gpus or () if gpu.uuid and gpu.pci}
    return {uuid: node for uuid, node in nodes.items() if node is not None and node >= 0}


@rule("TOP-03", "GPUs far apart", Place.CLUSTER)
def far_apart(snapshot: Snapshot) -> Iterator[Finding]:
    """Without preferred allocation or a topology policy a pod gets any free GPUs, also on two sockets."""
    by_uid = {pod.uid: pod for pod in snapshot.pods.values() if pod.uid}
    for host in snapshot.hosts.values():
        entries, numa = given(host), _numa(host)
        most = max(Counter(numa.values()).values(), default=0)
        for row in entries[1] if entries else ():
            pod = by_uid.get(row.pod_uid)
            places = Counter(numa[uuid] for uuid in row.devices if uuid in numa)
            count = sum(places.values())
            if (
                pod is None
                or entries is None
                or pod.ended
                or count < 2
                or len(places) < 2
                or count > most
                or count != len(row.devices)
            ):
                continue
            shown = ", ".join(f"{number} of NUMA node {node}" for node, number in sorted(places.items()))
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"the {count} GPUs of {pod} are far apart ({shown}), although one NUMA node of {host.node} has "
                    f"{most}: data between them goes over the processors' link"
                ),
                evidence=(host.cite_file(entries[0], 0, ", ".join(row.devices)), host.cite("pci", shown)),
                remedy=(
                    Remedy("on the node:"),
                    Remedy("nvidia-smi topo -m"),
                    Remedy(
                        "let the plugin prefer GPUs that are close (its aligned policy), set topologyManagerPolicy, "
                        "or use a DRA claim with matchAttribute"
                    ),
                ),
                confidence=LIKELY,
                level=Level.NOTE,
                nodes=(host.node,),
                pods=(pod.path,),
            )


@rule(
    "TOP-05",
    "GPUs on no NUMA node",
    Place.HARDWARE,
    rests_on=("NVIDIA/go-nvlib 3c161560, source",),
)
def no_numa(snapshot: Snapshot) -> Iterator[Finding]:
    """A VM or BIOS that does not tell the NUMA node of PCI devices (-1) makes topology policies blind to GPUs."""
    for host in snapshot.hosts.values():
        gpus = [device for device in host.pci or () if device.vendor in _VENDORS and device.pci_class[:2] in _DISPLAY]
        policy = setting(host, "topologyManagerPolicy")
        if (
            policy is None
            or policy[0] in ("none", "best-effort")
            or not gpus
            or any(device.numa_node != -1 for device in gpus)
        ):
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"the kubelet of node {host.node} aligns by NUMA ({policy[0]}), and its {len(gpus)} GPUs are on no "
                "NUMA node (-1): the plugin can give no hint"
            ),
            evidence=(policy[1], host.cite("pci", f"{gpus[0].address}: numa_node = -1")),
            remedy=(
                Remedy("let the hypervisor show the guest its NUMA nodes, or turn NUMA on in the BIOS"),
                Remedy("on the node:"),
                Remedy("cat /sys/bus/pci/devices/{}/numa_node", plain(gpus[0].address)),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=(host.node,),
        )


@rule("TOP-07", "Processors given out twice", Place.CLUSTER)
def two_pinners(snapshot: Snapshot) -> Iterator[Finding]:
    """The static CPU manager and a DRA driver for processors do not know of each other."""
    drivers = {
        device.node: device for device in dra.devices(snapshot) if device.driver in ("dra.cpu", "cpu.dra.k8s.io")
    }
    for host in snapshot.hosts.values():
        policy, device = setting(host, "cpuManagerPolicy"), drivers.get(host.node)
        if policy is None or policy[0] != "static" or device is None:
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"node {host.node} gives out processors twice: its kubelet pins them (cpuManagerPolicy static), and "
                f"DRA driver {device.driver} hands them out by claim"
            ),
            evidence=(policy[1], device.slice.cite("spec.driver")),
            remedy=(
                Remedy(
                    "set cpuManagerPolicy: none where the DRA driver runs, "
                    "remove /var/lib/kubelet/cpu_manager_state and restart the kubelet"
                ),
                Remedy("or take the driver off this node"),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
        )


@rule("TOP-08", "Processors are not pinned", Place.CLUSTER)
def not_pinned(snapshot: Snapshot) -> Iterator[Finding]:
    """The static policy pins only whole processors of pods of class Guaranteed."""
    for host in snapshot.hosts.values():
        policy = setting(host, "cpuManagerPolicy")
        if policy is None or policy[0] != "static":
            continue
        pods = [
            pod
            for pod in snapshot.pods_by_node.get(host.node, ())
            if not pod.ended and matching.uses_accelerators(pod) and not matching.parts_of(pod)
        ]
        loose = [(pod, why) for pod in pods if (why := _loose(pod))]
        if not loose:
            continue
        pod, why = loose[0]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"{len(loose)} GPU pods of node {host.node} get no processors of their own although its policy is "
                f"static; {pod}: {why}"
            ),
            evidence=(policy[1], pod.cite("status.qosClass"), pod.cite("spec.containers[0].resources")),
            remedy=(
                Remedy(
                    "ask for whole processors, with requests equal to limits for cpu and memory in every container "
                    "(class Guaranteed)"
                ),
            ),
            confidence=CERTAIN,
            level=Level.NOTE,
            nodes=(host.node,),
            pods=tuple(pod.path for pod, _ in loose),
        )


def _loose(pod: Pod) -> str:
    """Why a pod's processors are not pinned, "" where they are or where that is not known."""
    quality = pod.text("status.qosClass")
    if quality and quality != "Guaranteed":
        return f"its class is {quality}, not Guaranteed"
    parts = [
        str(container.limits.get("cpu"))
        for container in pod.containers
        if not container.init and "cpu" in container.limits
    ]
    return next((f"it asks for {part} cpu, no whole number" for part in parts if quality and not _whole(part)), "")


def _whole(amount: str) -> bool:
    return amount.isdecimal() or (amount.endswith("000m") and amount[:-1].isdecimal())


def _many(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The pod's resources where it has several GPUs, or slices, which reach each other only by the host's memory."""
    if hit.pod is None:
        return None
    requests = {
        name: count
        for name, count in matching.accelerators(hit.pod).items()
        if matching.vendor_of(name) == matching.NVIDIA
    }
    slices = any(matching.is_mig(name) for name in requests)
    return (hit.pod.cite("spec.containers[0].resources"),) if sum(requests.values()) > 1 or slices else None


RULES: Final = rules_of(
    Sign(
        id="TOP-01",
        title="It does not fit one NUMA node",
        place=Place.CLUSTER,
        where=(STATUS, EVENT),
        pattern=r"Resources cannot be allocated with Topology locality",
        words="Topology locality",
        cause=(
            "{who} was refused by the kubelet: its GPUs and processors do not fit one NUMA node as the node's "
            "topology policy wants"
        ),
        remedy=(
            "on {node}:",
            "grep topologyManager /var/lib/kubelet/config.yaml; numactl -H",
            (
                "ask for what fits one NUMA node, set topologyManagerPolicy: best-effort, "
                "or use a scheduler that knows NodeResourceTopology"
            ),
            remedies.DELETE_POD,
        ),
        explain=(
            "With restricted or single-numa-node the kubelet refuses pods whose devices and processors it can't "
            "align. The scheduler knows nothing of it."
        ),
        confidence=CERTAIN,
        rests_on=("Kubernetes documentation",),
    ),
    Sign(
        id="TOP-04",
        title="NCCL goes over shared memory",
        place=Place.CLUSTER,
        where=(LOG,),
        always=True,
        level=Level.NOTE,
        pattern=r"Channel \d+.*via SHM",
        words="via SHM",
        proof=_many,
        confidence=POSSIBLE,
        cause=(
            "NCCL in {who} goes over the host's memory between GPUs of one node: "
            "they have no NVLink or peer access to each other"
        ),
        remedy=(
            "on {node}:",
            "nvidia-smi topo -m; nvidia-smi nvlink -s",
            "let the plugin prefer GPUs of one NVLink island; MIG devices and shares can't use NVLink",
        ),
        explain=(
            "NCCL prefers NVLink and PCIe peer access (via P2P). SHM says that neither can be used between these GPUs."
        ),
        rests_on=("NVIDIA NCCL documentation",),
    ),
    Sign(
        id="TOP-06",
        title="nfd-topology-updater can't work",
        place=Place.PLUGIN,
        where=(LOG, STATUS),
        parts=(NFD_TOPOLOGY,),
        pattern=(
            r"noderesourcetopolog(?:y|ies)\S*.{0,120}(?:not found|could not find|forbidden)"
            r"|could not find the requested resource.{0,80}noderesourcetopolog"
            r"|(?:pod-?resources|kubelet\.sock).{0,120}(?:denied|no such file|refused)"
            r"|(?:denied|no such file|refused).{0,120}pod-?resources"
        ),
        words="",
        cause="{who} can't publish NUMA zones: the CRD is not there, or the kubelet does not answer it",
        remedy=(
            "install the CRD: the chart's topologyUpdater.createCRDs=true",
            "mount /var/lib/kubelet/pod-resources into it, and look at the kubelet's root folder",
        ),
        explain="It writes NodeResourceTopology objects from what the kubelet's pod-resources socket tells.",
        rests_on=("kubernetes-sigs/node-feature-discovery, documentation",),
    ),
)
