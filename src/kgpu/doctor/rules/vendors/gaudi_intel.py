"""Rows GAU and INT: Gaudi accelerators and Intel's GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import INTEL, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_drivers import GAUDI as GAUDI_DRIVER
from kgpu.doctor.vendor_drivers import INTEL as INTEL_DRIVER
from kgpu.doctor.vendor_drivers import cards_of, not_loaded
from kgpu.doctor.waiting import waiting
from kgpu.formats import names

_GAUDI: Final = names.GAUDI_RESOURCE
_GAUDINET: Final = names.GAUDI_NETWORK_FILE
_HOT: Final = re.compile(r"(?:i915|xe)\b.*(?:thermal|overheat|over.?temperature|PROCHOT)", re.IGNORECASE)
_PAIRS: Final = {
    names.INTEL_GPU_RESOURCE: names.INTEL_XE_RESOURCE,
    names.INTEL_XE_RESOURCE: names.INTEL_GPU_RESOURCE,
}
_WHOLE_MACHINE: Final = 8
_QUOTED: Final = 4
_FULL: Final = 0.9
"""The share of a card's memory above which it counts as taken."""
_LINK: Final = re.compile(r"/dev/(?P<name>dri/by-path/[\w:.-]*\w)")
_CARD: Final = "/dev/accel/"
_PAGES: Final = "vm.nr_hugepages"
_RELEASE: Final = re.compile(r"gaudi\S*?[/:](?P<release>1\.\d{1,3})\.\d")
"""The release of SynapseAI in an image's name, such as ``vault.habana.ai/gaudi-docker/1.22.0/ubuntu22.04/...``."""


@rule(
    "GAU-01",
    "Gaudi modules are not loaded",
    Place.KERNEL,
    explains=("SCH-01", "SCH-02", "SCH-03", "DPL-*"),
    rests_on=("Intel Gaudi documentation",),
)
def no_modules(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver has four modules: habanalabs, habanalabs_cn, habanalabs_ib and habanalabs_en. What keeps them out
    shows in the node's files: a blacklist, a card that is held for virtual machines, a build for another kernel.
    """
    yield from not_loaded(snapshot, GAUDI_DRIVER)


@rule(
    "INT-04",
    "No driver for an Intel GPU",
    Place.KERNEL,
    explains=("SCH-01", "SCH-02", "SCH-03", "DPL-*"),
    rests_on=("intel/intel-device-plugins-for-kubernetes#1915", "intel/intel-device-plugins-for-kubernetes#791"),
)
def no_intel_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """Intel's plugin looks for cards in /sys/class/drm, which i915 or xe makes. Kernels that are older than a card, and
    images without their extra modules, have neither. The graphics in a processor count for nothing here.
    """
    yield from not_loaded(snapshot, INTEL_DRIVER)


@rule(
    "GAU-05",
    "Gaudi's own network is not set up",
    Place.DRIVER,
    rests_on=("Intel Gaudi documentation",),
)
def no_network(snapshot: Snapshot) -> Iterator[Finding]:
    """Work over several machines goes through the cards' own external ports, whose addresses gaudinet.json has; without
    that file, or with a port that has no link, and without HCCL_OVER_OFI, it is slow or stops.
    """
    by_owner: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.pods.values():
        if pod.node and not pod.ended and pod.owner and pod.asks(_GAUDI) >= _WHOLE_MACHINE:
            by_owner.setdefault((pod.namespace, pod.owner), []).append(pod)
    for pods in by_owner.values():
        nodes = {pod.node for pod in pods}
        over = any("HCCL_OVER_OFI" in container.env for pod in pods for container in pod.containers)
        if len(nodes) < 2 or over:
            continue
        hosts = [snapshot.hosts[node] for node in sorted(nodes) if node in snapshot.hosts]
        yield from _ports_down(hosts, pods)
        bad = [host.node for host in hosts if host.present.get(_GAUDINET) is False]
        if bad:
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


def _ports_down(hosts: list[HostFacts], pods: list[Pod]) -> Iterator[Finding]:
    for host in hosts:
        down = [(gpu, port) for gpu in host.gpus or () for port in gpu.ports_down]
        if not down:
            continue
        ports = ", ".join(f"port {port} of card {gpu.index}" for gpu, port in down[:_QUOTED])
        more = f" and {len(down) - _QUOTED} more" if len(down) > _QUOTED else ""
        first = down[0][0]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"{pods[0].owner} in {pods[0].namespace} works over several machines, and on node {host.node} "
                f"{ports}{more} {'has' if len(down) == 1 else 'have'} no link"
            ),
            evidence=(host.cite("gpus", f"ports down: {ports}{more}"), pods[0].cite("spec.nodeName")),
            remedy=(
                Remedy("on {}:", host.node),
                Remedy("hl-smi -n link -i {}", first.pci),
                Remedy("look at cable, transceiver and the switch's port; then, where the interface is down:"),
                Remedy("/opt/habanalabs/qual/gaudi2/bin/manage_network_ifs.sh --up"),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
            gpus=tuple(dict.fromkeys(gpu.uuid for gpu, _ in down)),
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
                    evidence=(
                        pending.asked(),
                        offered[0].cite(f"status.allocatable[{paired}]"),
                        *_bound(snapshot, offered[0].name),
                    ),
                    remedy=(Remedy("ask for {}: 1 instead of {}", paired, pending.resource),),
                    confidence=CERTAIN,
                )
            )


def _bound(snapshot: Snapshot, node: str) -> tuple[Evidence, ...]:
    host = snapshot.hosts.get(node)
    cards = cards_of(host, INTEL_DRIVER) if host else []
    return (host.cite("pci", f"{cards[0].address} driver {cards[0].driver}"),) if host and cards else ()


@rule(
    "INT-02",
    "A hot card stays on offer",
    Place.PLUGIN,
    rests_on=("intel/intel-device-plugins-for-kubernetes, documentation",),
)
def no_health(snapshot: Snapshot) -> Iterator[Finding]:
    """Intel's plugin reports every card as healthy unless -health-management is on (limit 100 C). That a card is too
    hot, the kernel's log or its sensor says.
    """
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=INTEL):
        main = next((container for container in pod.containers if not container.init), None)
        host = snapshot.hosts.get(pod.node)
        if main is None or host is None or any("health-management" in word for word in main.words):
            continue
        proof = _too_hot(host)
        if proof is not None:
            yield Finding(
                subject=Subject("Node", pod.node),
                cause=(
                    f"a GPU of node {pod.node} is too hot, and {pod} stays with calling it healthy: "
                    "it runs without -health-management"
                ),
                evidence=(proof, main.cite("args")),
                remedy=(
                    Remedy("start the plugin with -health-management"),
                    remedies.cordon(pod.node),
                    Remedy("look at its cooling, and when it is well:"),
                    remedies.uncordon(pod.node),
                ),
                nodes=(pod.node,),
            )


def _too_hot(host: HostFacts) -> Evidence | None:
    """What says that an Intel GPU of the node is too hot."""
    for gpu in host.gpus or ():
        if gpu.vendor == INTEL and gpu.hot:
            return host.cite("gpus", f"GPU {gpu.index} at {gpu.pci}: temperature_c {gpu.readings['temperature_c']}")
    lines = host.kernel_log or ()
    position = next((at for at in range(len(lines) - 1, -1, -1) if _HOT.search(lines[at])), None)
    return None if position is None else host.cite_log(position)


def _asks_gaudi(pod: Pod | None) -> bool:
    return pod is not None and any(name.startswith("habana.ai/") for name in matching.accelerators(pod))


def _holders(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Processes of the node that have a card open, and containers that see all cards."""
    host = snapshot.hosts.get(hit.node)
    open_by = [
        f"{process.pid} {process.name} holds {', '.join(cards)}".replace("  ", " ")
        for process in (host.processes if host else None) or ()
        if (cards := [path for path in process.holds if path.startswith(_CARD)])
    ]
    others = [
        container.cite("env")
        for pod in snapshot.pods_by_node.get(hit.node, ())
        for container in pod.containers
        if container.env.get(names.ENV_HABANA_VISIBLE_DEVICES) == "all"
    ]
    return (*((host.cite("processes", "; ".join(open_by[:4])),) if host and open_by else ()), *others[:3])


def _no_pages(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the pod has a Gaudi card and no huge pages: it asks for none, or the node has none."""
    pod, host = hit.pod, snapshot.hosts.get(hit.node)
    if pod is None or not _asks_gaudi(pod):
        return None
    none = host is not None and host.settings.get(_PAGES) == "0"
    asked = any(str(key).startswith("hugepages-") for container in pod.containers for key in container.limits)
    if asked and not none:
        return None
    limits = tuple(container.cite("resources.limits") for container in pod.containers if not container.init)[:1]
    return (*limits, *((host.cite("settings", f"{_PAGES}: 0"),) if host and none else ()))


def _releases(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The releases of driver and image; None where they are the same, so that it is something else."""
    pod, host = hit.pod, snapshot.hosts.get(hit.node)
    driver = host.module_versions.get(names.GAUDI_DRIVER, "") if host else ""
    if pod is None or host is None or not driver:
        return ()
    for container in pod.containers:
        found = _RELEASE.search(container.image)
        if found and not container.init:
            same = driver.startswith(f"{found['release']}.")
            cited = (host.cite("module_versions", f"habanalabs {driver}"), container.cite("image"))
            return None if same and _no_pages(snapshot, hit) else cited
    return (host.cite("module_versions", f"habanalabs {driver}"),)


def _handler(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Whether the runtime is on the node, and which of the engine's files have it."""
    host = snapshot.hosts.get(hit.node)
    if host is None:
        return ()
    places = [path for path, there in host.present.items() if path.endswith("/habana-container-runtime") and there]
    configs = [path for path in host.files if "containerd" in path or path.endswith("daemon.json")]
    known = [path for path in configs if "habana" in host.files[path].text]
    if known:
        return (host.cite_file(known[0], value="names habana: the engine was not started anew since"),)
    state = f"{places[0]}: there" if places else "habana-container-runtime: not there"
    unnamed = tuple(host.cite_file(path, value="names no habana") for path in configs[:1])
    return (host.cite("present", state), *unnamed)


def _memory(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """What the pod says of memory, how full the node's cards are, and who else has one."""
    pod, host = hit.pod, snapshot.hosts.get(hit.node)
    if pod is None or not _asks_gaudi(pod):
        return None
    asked = [
        container.cite("args")
        for container in pod.containers
        if any("gpu-memory-utilization" in word for word in container.words)
    ]
    full = [
        f"card {gpu.index}: {used:g} of {gpu.memory_mib} MiB in use"
        for gpu in (host.gpus if host else None) or ()
        if gpu.vendor == matching.GAUDI and gpu.memory_mib
        and isinstance(used := gpu.readings.get("memory_used_mib"), float | int) and used >= _FULL * gpu.memory_mib
    ]  # fmt: skip
    shown = (host.cite("gpus", "; ".join(full[:_QUOTED])),) if host and full else ()
    return (*asked[:1], *shown, *(_holders(snapshot, hit) or ()))


def _by_path(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The arguments of the node's plugin where it mounts devices by path, and whether the host has the link."""
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=INTEL, node=hit.node):
        for container in pod.containers:
            if not container.init and not re.search(r"-bypath[= ]none", " ".join(container.words)):
                return (container.cite("args"), *_link_on_host(snapshot, hit))
    return None


def _link_on_host(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    host, link = snapshot.hosts.get(hit.node), _LINK.search(hit.match.string)
    if host is None or not host.devices or link is None:
        return ()
    there = "there" if link["name"] in host.devices else "not there"
    return (host.cite("devices", f"/dev/{link['name']}: {there}"),)


RULES: Final = rules_of(
    Sign(
        id="GAU-02",
        title="No runtime for Gaudi",
        place=Place.RUNTIME,
        pattern=r'[Uu]nknown runtime specified habana|no runtime for "habana" is configured',
        words="habana",
        where=(EVENT, STATUS),
        confidence=CERTAIN,
        proof=_handler,
        cause="{who} can't be started: the container runtime of node {node} has no handler habana",
        remedy=(
            "on the node:",
            "apt-get install habanalabs-container-runtime",
            "and add the handler habana to /etc/containerd/config.toml, then restart containerd",
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
        proof=_releases,
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
        proof=_memory,
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
            r"|(?:fail\w*|[Cc]annot|[Uu]nable).*[Hh]uge.?[Pp]age|synStatus=26\b|synStatus.*Generic failure"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_no_pages,
        cause="{who} needs huge pages for its Gaudi card and gets none",
        remedy=(
            "resources.limits: {{hugepages-2Mi: 95000Mi, memory: 409Gi}} on the container (requests alike)",
            "on the node:",
            "grep Huge /proc/meminfo; sysctl vm.nr_hugepages",
            "where there are none, and then restart the kubelet, which counts them at its start:",
            "sysctl -w vm.nr_hugepages=156300",
        ),
        explain=(
            "SynapseAI maps host memory in huge pages; the pod has to ask for hugepages-2Mi, and the node has to have "
            "some."
        ),
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
