"""Rows GAU and INT: Gaudi accelerators and Intel's GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import INTEL, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import waiting
from kgpu.formats import names

_GAUDI: Final = names.GAUDI_RESOURCE
_MODULES: Final = ("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en")
_GAUDINET: Final = "/etc/habanalabs/gaudinet.json"
_HOT: Final = re.compile(r"(?:i915|xe)\b.*(?:thermal|overheat|over.?temperature|PROCHOT)", re.IGNORECASE)
_PAIRS: Final = {
    names.INTEL_GPU_RESOURCE: names.INTEL_XE_RESOURCE,
    names.INTEL_XE_RESOURCE: names.INTEL_GPU_RESOURCE,
}
_WHOLE_MACHINE: Final = 8


@rule(
    "GAU-01",
    "Gaudi modules are not loaded",
    Place.KERNEL,
    explains=("SCH-01", "SCH-02", "DPL-*"),
    rests_on=("Intel Gaudi documentation",),
)
def no_modules(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver has four modules: habanalabs, habanalabs_cn, habanalabs_ib and habanalabs_en."""
    for name, host in snapshot.hosts.items():
        cards = [device.address for device in host.pci or () if device.vendor == "1da3"]
        node = snapshot.nodes.get(name)
        if not cards or host.modules is None or (node is not None and node.allocatable(_GAUDI)):
            continue
        gone = [module for module in _MODULES if module not in host.modules]
        if gone:
            yield Finding(
                subject=Subject("Node", name),
                cause=(
                    f"node {name} has {len(cards)} Gaudi cards on its bus, "
                    f"and the modules {', '.join(gone)} are not loaded"
                ),
                evidence=(
                    host.cite("pci", ", ".join(cards)),
                    host.cite(
                        "modules",
                        ", ".join(module for module in _MODULES if module in host.modules) or "none of habanalabs",
                    ),
                ),
                remedy=(
                    Remedy("on {}:", name),
                    Remedy("modprobe habanalabs habanalabs_cn habanalabs_ib habanalabs_en; hl-smi"),
                    Remedy("without them:"),
                    Remedy("apt-get install habanalabs-dkms habanalabs-firmware"),
                ),
                confidence=CERTAIN,
                nodes=(name,),
            )


@rule(
    "GAU-05",
    "Gaudi's own network is not set up",
    Place.DRIVER,
    rests_on=("Intel Gaudi documentation",),
)
def no_network_file(snapshot: Snapshot) -> Iterator[Finding]:
    """gaudinet.json has the addresses of the cards' external ports; without it, and without HCCL_OVER_OFI, work over
    several machines is slow or stops.
    """
    by_owner: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.pods.values():
        if pod.node and not pod.ended and pod.owner and pod.asks(_GAUDI) >= _WHOLE_MACHINE:
            by_owner.setdefault((pod.namespace, pod.owner), []).append(pod)
    for pods in by_owner.values():
        bad = sorted(
            {
                pod.node
                for pod in pods
                if (host := snapshot.hosts.get(pod.node)) and host.present.get(_GAUDINET) is False
            }
        )
        over = any("HCCL_OVER_OFI" in container.env for pod in pods for container in pod.containers)
        if len({pod.node for pod in pods}) > 1 and bad and not over:
            yield Finding(
                subject=Subject("Node", bad[0]),
                cause=(
                    f"{pods[0].owner} in {pods[0].namespace} works over several machines, and node {', '.join(bad)} "
                    f"has no {_GAUDINET}: the cards' external ports have no addresses, "
                    "and HCCL goes over the host's network or fails"
                ),
                evidence=(
                    snapshot.hosts[bad[0]].cite("present", f"{_GAUDINET}: not there"),
                    pods[0].cite("spec.nodeName"),
                ),
                remedy=(
                    Remedy(
                        "on {}: /opt/habanalabs/qual/gaudi2/bin/manage_network_ifs.sh --status; write {}",
                        bad[0],
                        _GAUDINET,
                    ),
                    Remedy("or over the host's network by OFI: HCCL_OVER_OFI=1"),
                ),
                nodes=tuple(bad),
                pods=tuple(pod.path for pod in pods),
            )


@rule(
    "INT-01",
    "The resource of the other driver",
    Place.PLUGIN,
    explains=("SCH-01", "SCH-02", "SCH-04", "SCH-14"),
    rests_on=("intel/intel-device-plugins-for-kubernetes, documentation",),
)
def other_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """Cards on the module i915 are gpu.intel.com/i915, on xe gpu.intel.com/xe."""
    for pending in waiting(snapshot):
        paired = _PAIRS.get(pending.resource, "")
        offered = [node for node in snapshot.nodes.values() if paired and node.allocatable(paired)]
        if offered and not any(node.capacity(pending.resource) for node in snapshot.nodes.values()):
            yield Finding(
                **pending.shared(
                    cause=(
                        f"{pending.who} asks for {pending.resource}, and node {offered[0].name} offers {paired}: its "
                        f"cards are driven by the module {paired.rpartition('/')[2]}"
                    ),
                    evidence=(pending.asked(), offered[0].cite(f"status.allocatable[{paired}]")),
                    remedy=(Remedy("ask for {}: 1 instead of {}", paired, pending.resource),),
                    confidence=CERTAIN,
                )
            )


@rule(
    "INT-02",
    "A hot card stays on offer",
    Place.PLUGIN,
    rests_on=("intel/intel-device-plugins-for-kubernetes, documentation",),
)
def no_health(snapshot: Snapshot) -> Iterator[Finding]:
    """Intel's plugin reports every card as healthy unless -health-management is on (limit 100 C)."""
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=INTEL):
        main = next((container for container in pod.containers if not container.init), None)
        host = snapshot.hosts.get(pod.node)
        if main is None or host is None or any("health-management" in word for word in main.words):
            continue
        lines = host.kernel_log or ()
        position = next((at for at in range(len(lines) - 1, -1, -1) if _HOT.search(lines[at])), None)
        if position is not None:
            yield Finding(
                subject=Subject("Node", pod.node),
                cause=(
                    f"a GPU of node {pod.node} is too hot, and {pod} stays with calling it healthy: "
                    "it runs without -health-management"
                ),
                evidence=(host.cite_log(position), main.cite("args")),
                remedy=(
                    Remedy("start the plugin with -health-management"),
                    remedies.cordon(pod.node),
                    Remedy("look at its cooling, and when it is well:"),
                    remedies.uncordon(pod.node),
                ),
                nodes=(pod.node,),
            )


def _asks_gaudi(pod: Pod | None) -> bool:
    return pod is not None and any(name.startswith("habana.ai/") for name in matching.accelerators(pod))


def _holders(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Other containers on the node that see all cards."""
    others = [
        container.cite("env")
        for pod in snapshot.pods_by_node.get(hit.node, ())
        for container in pod.containers
        if container.env.get(names.ENV_HABANA_VISIBLE_DEVICES) == "all"
    ]
    return tuple(others[:3])


def _no_pages(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the pod has a Gaudi card and no huge pages."""
    pod = hit.pod
    if (
        pod is None
        or not _asks_gaudi(pod)
        or any(str(key).startswith("hugepages-") for container in pod.containers for key in container.limits)
    ):
        return None
    return tuple(container.cite("resources.limits") for container in pod.containers if not container.init)[:1]


def _gaudi(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    return () if _asks_gaudi(hit.pod) else None


def _by_path(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The arguments of the node's plugin where it mounts devices by path."""
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=INTEL, node=hit.node):
        for container in pod.containers:
            if not container.init and not re.search(r"-bypath[= ]none", " ".join(container.words)):
                return (container.cite("args"),)
    return None


RULES: Final = rules_of(
    Sign(
        id="GAU-02",
        title="No runtime for Gaudi",
        place=Place.RUNTIME,
        pattern=r'[Uu]nknown runtime specified habana|no runtime for "habana" is configured',
        words="habana",
        where=(EVENT, STATUS),
        confidence=CERTAIN,
        cause="{who} can't be started: the container runtime of node {node} has no handler habana",
        remedy=(
            "on the node:",
            "apt-get install habanalabs-container-runtime",
            "and add the handler habana to /etc/containerd/config.toml",
            "where the device plugin injects by CDI: take runtimeClassName out",
            "else see that the class is there:",
            "kubectl get runtimeclass habana",
        ),
        explain="The RuntimeClass names a handler that containerd's configuration does not have on this node.",
        explains=("RUN-01", "RUN-02"),
        rests_on=("Intel Gaudi documentation",),
    ),
    Sign(
        id="GAU-03",
        title="The card is taken",
        place=Place.DRIVER,
        pattern=r"Device already acquired|synStatus=20\b",
        words="",
        where=(LOG, STATUS),
        proof=_holders,
        cause="{who} finds its Gaudi card in use by another process on node {node}",
        remedy=(
            "on the node:",
            "hl-smi   # its table of processes",
            "take HABANA_VISIBLE_DEVICES=all out of manifests: the device plugin sets it",
        ),
        explain="A card has one user. An old process, or containers that see all cards, hold it (synStatus 20).",
        explains=("GAU-04",),
    ),
    Sign(
        id="GAU-04",
        title="Driver, firmware and image do not go together",
        place=Place.DRIVER,
        pattern=r"synStatus=26\b|synStatus.*Generic failure",
        words="synStatus",
        where=(LOG, STATUS),
        cause=(
            "{who} can't start its Gaudi card: driver or firmware of node {node} and the image's SynapseAI are of "
            "different releases, most often"
        ),
        remedy=(
            "on the node:",
            "hl-smi -v",
            remedies.EXEC + "pip list | grep -i habana",
            "take the same release everywhere; see that hugepages-2Mi are asked for",
        ),
        explain=(
            "synStatus 26 is a generic failure; different releases are the usual cause, missing huge pages the next."
        ),
    ),
    Sign(
        id="GAU-06",
        title="vLLM runs out of memory on Gaudi",
        place=Place.CLUSTER,
        pattern=(
            r"(?:[Oo]ut of memory|OOM|Allocation failed).*(?:warm.?up|graph|HPU)"
            r"|(?:warm.?up|graph|HPU).*(?:[Oo]ut of memory|OOM\b|Allocation failed)"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_gaudi,
        cause="{who} runs out of the card's memory while vLLM warms up: too little is kept for graphs",
        remedy=(
            "--gpu-memory-utilization 0.85, VLLM_GRAPH_RESERVED_MEM=0.3",
            "to see whether it is the graphs: --enforce-eager",
        ),
        explain="Graphs for every shape are recorded at the start, beside the cache.",
    ),
    Sign(
        id="GAU-07",
        title="No huge pages for Gaudi",
        place=Place.CLUSTER,
        pattern=(
            r"[Hh]uge.?[Pp]ages?.*(?:fail|not|insufficient|unavailable)"
            r"|(?:fail\w*|[Cc]annot|[Uu]nable).*[Hh]uge.?[Pp]age"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_no_pages,
        cause="{who} needs huge pages for its Gaudi card and asks for none",
        remedy=(
            "resources.limits: {{hugepages-2Mi: 95000Mi, memory: 409Gi}} on the container (requests alike)",
            "on the node:",
            "grep Huge /proc/meminfo",
        ),
        explain="SynapseAI maps host memory in huge pages; the pod has to ask for hugepages-2Mi.",
        rests_on=("Intel Gaudi documentation",),
    ),
    Sign(
        id="INT-03",
        title="Device links by path",
        place=Place.PLUGIN,
        pattern=(
            r"/dev/dri/by-path.*(?:[Nn]o such file|not found|[Ii]nvalid|[Ff]ail)"
            r"|(?:[Nn]o such file|not found|[Ff]ail\w*).*/dev/dri/by-path"
        ),
        words="/dev/dri/by-path",
        where=(LOG, STATUS),
        proof=_by_path,
        cause="{who} fails over the links in /dev/dri/by-path, which Intel's plugin mounts into it",
        remedy=("start intel-gpu-plugin with -bypath=none",),
        explain="The plugin mounts by-path links besides the devices; some libraries stumble over them.",
    ),
)
