"""Rows MPS: NVIDIA's multi-process service as a way to share GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import number
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import AGENT, MPS, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import sharing_configs, still_broken, uses_mps
from kgpu.formats import names

_ABOVE: Final = ("SCH-01", "SCH-02", "SCH-04", "DPL-03")
_EXCLUSIVE: Final = 3.0
_CLIENTS: Final = 48
_LOGS: Final = ("/control.log", "/server.log")
_MOST_LOGS: Final = 4
_SERVER_FAULT: Final = re.compile(
    r"fatal exception|Client .* has (?:faulted|caused)|Server encountered a fatal", re.IGNORECASE
)
_CLIENT_XIDS: Final = frozenset({13, 31, 43, 45})
_VERSION: Final = re.compile(r"k8s-device-plugin:v0\.(\d+)\.")


def _exclusive(host: HostFacts | None) -> bool:
    return any(gpu.readings.get("compute_mode") == _EXCLUSIVE for gpu in (host.gpus if host else None) or ())


def _mode(host: HostFacts) -> Evidence:
    return host.cite("gpus", "compute mode: EXCLUSIVE_PROCESS")


def _daemon(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """How the control daemon is on the plugin's node."""
    node = snapshot.nodes.get(hit.node)
    pods = matching.pods_of_part(snapshot, MPS, node=hit.node)
    if any(pod.ready for pod in pods) and still_broken(snapshot, hit) is None:
        return None
    label = (node.cite(f"metadata.labels[{names.LABEL_MPS_CAPABLE}]"),) if node else ()
    if not pods:
        return (Evidence(object=f"Node {hit.node}", field="pod of the MPS control daemon", value="none"), *label)
    bad = matching.failing(pods[0])
    return (bad.cite_status() if bad else pods[0].cite("status.phase"), *label)


def _shared_node(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that MPS runs on the node of a pod, and its exclusive mode where that is on; None without MPS."""
    host = snapshot.hosts.get(hit.node)
    if host is not None and _exclusive(host):
        return (_mode(host),) if uses_mps(snapshot, hit.node) else None  # else it is MPS-04
    if not uses_mps(snapshot, hit.node):
        return None
    node = snapshot.nodes.get(hit.node)
    return (node.cite(f"metadata.labels[{names.LABEL_MPS_CAPABLE}]"),) if node else ()


def _last_words(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """The last lines of the logs of MPS on the pod's node, where its files were looked at."""
    host = snapshot.hosts.get(hit.node)
    found = []
    for path, file in host.files.items() if host is not None else ():
        lines = file.text.splitlines()
        last = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].strip()), None)
        if host is not None and "/mps/" in path and path.endswith(_LOGS) and last is not None:
            found.append(host.cite_file(path, last + 1, lines[last]))
    return tuple(found[:_MOST_LOGS])


def _share(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """How much of a card a client has."""
    node = snapshot.nodes.get(hit.node)
    if node is None or not uses_mps(snapshot, hit.node):
        return None
    return (node.cite("metadata.labels[nvidia.com/gpu.replicas]"), node.cite("metadata.labels[nvidia.com/gpu.memory]"))


@rule(
    "MPS-04",
    "Exclusive mode left by MPS",
    Place.DRIVER,
    explains=("MPS-03",),
    rests_on=("NVIDIA/k8s-device-plugin#647",),
)
def mode_left(snapshot: Snapshot) -> Iterator[Finding]:
    """The MPS daemon sets EXCLUSIVE_PROCESS and does not always set it back: every second process then fails with error
    46.
    """
    for name, host in snapshot.hosts.items():
        if not _exclusive(host) or uses_mps(snapshot, name) or name not in snapshot.nodes:
            continue
        users = [pod for pod in snapshot.pods_by_node.get(name, ()) if matching.accelerators(pod) and not pod.ready]
        indexes = [str(gpu.index) for gpu in host.gpus or () if gpu.readings.get("compute_mode") == _EXCLUSIVE]
        yield Finding(
            subject=Subject("Node", name),
            cause=(
                f"GPU {', '.join(indexes)} of node {name} is in compute mode EXCLUSIVE_PROCESS although no MPS works "
                "there: a second process on it fails with 'busy or unavailable'"
            ),
            evidence=(
                _mode(host),
                Evidence(object=f"Node {name}", field="pod of the MPS control daemon", value="none"),
            ),
            remedy=(
                Remedy("on {}:", name),
                Remedy("nvidia-smi -c DEFAULT"),
            ),
            confidence=CERTAIN if users else LIKELY,
            level=Level.PROBLEM if users else Level.NOTE,
            nodes=(name,),
            pods=tuple(pod.path for pod in users),
        )


def too_many(snapshot: Snapshot) -> Iterator[Finding]:
    """MPS-07: more replicas than clients that a server takes."""
    for config in sharing_configs(snapshot):
        for row in config.block("mps"):
            replicas = number(row.get("replicas"))
            if replicas > _CLIENTS:
                yield Finding(
                    subject=config.source.subject,
                    cause=(
                        f"{config.source} shares {row.get('name')} among {replicas} by MPS, "
                        f"and a server takes {_CLIENTS} clients"
                    ),
                    evidence=(config.cite("mps"),),
                    remedy=(
                        Remedy("set replicas to at most {}:", _CLIENTS),
                        remedies.edit(config.source.namespace, "configmap", config.source.name),
                    ),
                    confidence=CERTAIN,
                )


@rule("MPS-09", "One client ended all", Place.DRIVER, explains=("MPS-02", "HW-08"))
def server_fault(snapshot: Snapshot) -> Iterator[Finding]:
    """Clients of MPS share one server process: a fatal error of one ends all."""
    for name, host in snapshot.hosts.items():
        for path, file in host.files.items():
            if "/mps/" not in path or not path.endswith("server.log"):
                continue
            lines = file.text.splitlines()
            position = next((at for at in range(len(lines) - 1, -1, -1) if _SERVER_FAULT.search(lines[at])), None)
            xids = [xid for xid in host.xids if xid.code in _CLIENT_XIDS and not xid.over]
            if position is None or not xids:
                continue
            yield Finding(
                subject=Subject("Node", name),
                cause=(
                    f"a client of MPS on node {name} has made a fatal error (Xid "
                    f"{xids[0].code}{f', process {xids[0].process}' if xids[0].process else ''}), "
                    "which ended all clients of that server"
                ),
                evidence=(
                    host.cite_file(path, position + 1, lines[position]),
                    host.cite("xids", f"xid {xids[0].code} on {xids[0].pci}"),
                ),
                remedy=(
                    Remedy("mend that client's program; the GPU is well, no reset"),
                    Remedy("where one must not end the other: MIG slices instead of MPS"),
                ),
                nodes=(name,),
            )


@rule("MPS-11", "A plugin from before MPS", Place.PLUGIN, explains=_ABOVE)
def too_old(snapshot: Snapshot) -> Iterator[Finding]:
    """MPS is supported since version 0.15 of the device plugin; guides that say it is not are older."""
    configs = [config for config in sharing_configs(snapshot) if config.block("mps")]
    old: dict[str, list[Pod]] = {}
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA):
        for container in pod.containers:
            hit = _VERSION.search(container.image)
            if hit and len(hit[1]) < 4 and int(hit[1]) < 15:
                old.setdefault(container.image, []).append(pod)
    for image, pods in old.items() if configs else ():
        yield Finding(
            subject=pods[0].subject,
            cause=(
                f"{configs[0].source} shares GPUs by MPS, and {pods[0]} is {image.rpartition(':')[2]}, which does not "
                "know MPS (it came with v0.15.0)"
            ),
            evidence=(configs[0].cite("mps"), pods[0].cite("spec.containers[0].image")),
            remedy=(Remedy("take a device plugin of v0.15.0 or later"),),
            confidence=CERTAIN,
            nodes=tuple(dict.fromkeys(pod.node for pod in pods if pod.node)),
        )


@rule(
    "MPS-12",
    "Time-slicing and MPS at once",
    Place.PLUGIN,
    explains=_ABOVE,
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def both_ways(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin prefers MPS silently; where the MPS block does not share anything it reports time-slicing but takes
    the replicas from the MPS block.
    """
    for config in sharing_configs(snapshot):
        if config.block("timeSlicing") and config.block("mps"):
            yield Finding(
                subject=config.source.subject,
                cause=(
                    f"{config.source} shares by time-slicing and by MPS at once in {config.key}: only one can be, and "
                    "NVIDIA's plugin takes MPS without a word, and kgpu's refuses both"
                ),
                evidence=(config.cite("timeSlicing"), config.cite("mps")),
                remedy=(
                    Remedy("keep one of sharing.timeSlicing and sharing.mps:"),
                    remedies.edit(config.source.namespace, "configmap", config.source.name),
                ),
                confidence=CERTAIN,
            )


def _tegra(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    node = snapshot.nodes.get(hit.node)
    if node is None:
        return None
    label = next(
        (
            key
            for key, value in node.labels.items()
            if re.search(r"tegra|jetson|orin|xavier", f"{key} {value}", re.IGNORECASE)
        ),
        "",
    )
    return (node.cite(f"metadata.labels[{label}]"),) if label else None


RULES: Final = rules_of(
    Sign(
        id="MPS-01",
        title="The MPS control daemon does not answer",
        place=Place.PLUGIN,
        pattern=(
            r"error waiting for MPS daemon|error checking MPS daemon health|failed to send command to MPS daemon"
            r"|Failed to start MPS daemon: (?P<why>[^\n]{1,300})|no MPS control daemon listens for it"
            r"|the MPS control daemon of \S{1,80} "
            r"(?P<own>(?:can't be started|has ended at once|has '|refuses )[^\n]{0,300})"
            r"|(?P<lacks>there is no nvidia-cuda-mps-control in [^\n]{1,300})"
        ),
        words="",
        where=(LOG, STATUS),
        parts=(MPS, PLUGIN, AGENT),
        always=True,
        proof=_daemon,
        cause="{who}: the MPS control daemon does not answer on node {node}, or does not start: {why}{own}{lacks}",
        remedy=(
            "kubectl get pods -A -o wide | grep mps-control-daemon",
            remedies.filled(remedies.LABEL, key=names.LABEL_MPS_CAPABLE, value="true"),
            "see that --mps-root (MPS_ROOT) is the same for plugin and daemon, usually /run/nvidia/mps",
        ),
        explain=(
            "The daemon's DaemonSet runs on nodes with the label nvidia.com/mps.capable=true, and talks to the plugin "
            "through a pipe below the MPS root, which both must mount."
        ),
        explains=_ABOVE,
        rests_on=(
            "NVIDIA/k8s-device-plugin#634",
            "NVIDIA/k8s-device-plugin#679",
            "NVIDIA/k8s-device-plugin#762",
            "NVIDIA/k8s-device-plugin#1595",
            "NVIDIA/k8s-device-plugin v0.20.0, source",
        ),
    ),
    Sign(
        id="MPS-02",
        title="The MPS server is not ready",
        place=Place.DRIVER,
        pattern=(
            r"MPS server is not ready to accept new MPS client requests|cudaErrorMpsServerNotReady"
            r"|CUDA_ERROR_MPS_SERVER_NOT_READY|cudaErrorMpsRpcFailure|CUDA_ERROR_MPS_RPC_FAILURE"
            r"|cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_last_words,
        cause="{who} can't use its GPU: the MPS server of node {node} takes no clients, or has ended with them",
        remedy=(
            "on the node:",
            "sh -c 'tail /run/nvidia/mps/nvidia.com/gpu/log/*.log'",
            "delete the pod of the MPS control daemon on {node}; let all clients run as the same user",
        ),
        explain=(
            "A fault of one client, or a client of another user, ends the server (CUDA error 807); "
            "clients of one server need one user."
        ),
        rests_on=("NVIDIA/k8s-device-plugin#1614", "NVIDIA/k8s-device-plugin#685"),
    ),
    Sign(
        id="MPS-03",
        title="Not connected to MPS",
        place=Place.RUNTIME,
        pattern=(
            r"all CUDA-capable devices are busy or unavailable|cudaErrorDevicesUnavailable"
            r"|CUDA_ERROR_DEVICE_UNAVAILABLE"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_shared_node,
        cause=(
            "{who} finds its GPU busy: MPS has set it to EXCLUSIVE_PROCESS on node {node}, "
            "and this pod is not connected to MPS"
        ),
        remedy=(
            "let the device plugin give it the GPU (limits, not NVIDIA_VISIBLE_DEVICES)",
            remedies.EXEC + "sh -c 'env | grep CUDA_MPS; ls /mps'",
        ),
        explain=(
            "Only clients of the MPS server may use the card; "
            "the plugin gives its pods CUDA_MPS_PIPE_DIRECTORY and the folder /mps."
        ),
        confidence=LIKELY,
        rests_on=("NVIDIA/k8s-device-plugin#647",),
    ),
    Sign(
        id="MPS-05",
        title="MPS and MIG together",
        place=Place.PLUGIN,
        pattern=(
            r"using --mig-strategy=(?P<strategy>\w+) is not supported with MPS"
            r"|sharing using MPS is not supported for MIG devices"
            r"|gets no MPS control daemon: the MIG mode of GPU \d+ is on"
        ),
        words="MPS",
        where=(LOG, STATUS),
        parts=(PLUGIN, MPS, AGENT),
        confidence=CERTAIN,
        always=True,
        proof=still_broken,
        cause="{who} does not share by MPS: it can't share GPUs whose MIG mode is on, nor their slices",
        remedy=(
            "take sharing.mps out of the device plugin's configuration, or set the MIG strategy to none on these nodes",
        ),
        explain="The device plugin shares whole GPUs by MPS, never slices.",
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MPS-06",
        title="MPS without a root folder",
        place=Place.PLUGIN,
        pattern=r"using MPS requires --mps-root to be specified",
        words="--mps-root",
        where=(LOG, STATUS),
        parts=(PLUGIN, MPS),
        confidence=CERTAIN,
        always=True,
        proof=still_broken,
        cause="{who} does not start: its configuration shares by MPS, and it has no --mps-root",
        remedy=(
            "on the plugin's DaemonSet, with its name in place of NAME:",
            remedies.filled(remedies.SET_ENV, workload="daemonset/NAME", change="MPS_ROOT=/run/nvidia/mps"),
        ),
        explain="The pipe and log folders of MPS are below that folder, which plugin and daemon share.",
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MPS-07",
        title="More replicas than MPS takes",
        place=Place.PLUGIN,
        pattern=r"maximum allowed replicas exceeded: (?P<asked>\d+) > (?P<limit>\d+)",
        words="maximum allowed replicas exceeded",
        where=(LOG, STATUS),
        parts=(PLUGIN, MPS, AGENT),
        always=True,
        proof=still_broken,
        besides=too_many,
        confidence=CERTAIN,
        cause="{who} does not share: {asked} replicas are asked for, and {limit} are allowed",
        remedy=("set replicas to at most {limit} in the device plugin's configuration",),
        explain=(
            "A server takes 48 clients on Volta and later, 16 before; "
            "some versions of the plugin count V100 among the earlier."
        ),
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MPS-08",
        title="Out of memory within its share",
        place=Place.CLUSTER,
        pattern=r"CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
        words="",
        where=(LOG, STATUS),
        proof=_share,
        cause="{who} ran out of GPU memory: under MPS it may use one replica's part of the card only",
        remedy=(
            "kubectl get node {node} -L nvidia.com/gpu.replicas,nvidia.com/gpu.memory",
            "fewer replicas, or a smaller batch or model",
        ),
        explain=(
            "The MPS daemon gives every client memory/replicas (set_default_device_pinned_mem_limit) and 100/replicas "
            "percent of the threads."
        ),
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="MPS-10",
        title="MPS on Jetson",
        place=Place.HARDWARE,
        pattern=r"(?:failed|unable) to get (?:device )?minor(?: number)?|error getting (?:device )?minor",
        words="minor",
        where=(LOG, STATUS),
        parts=(MPS, PLUGIN),
        always=True,
        proof=_tegra,
        cause="{who} can't share by MPS: node {node} is a Tegra machine, which MPS does not know",
        remedy=(
            "give that node a configuration without sharing.mps, with its key in place of NAME:",
            remedies.filled(remedies.LABEL_ANEW, key=names.DEVICE_PLUGIN_CONFIG_LABEL, value="NAME"),
        ),
        explain="Integrated GPUs have no minor number and no MPS support in the plugin.",
        explains=_ABOVE,
        rests_on=("NVIDIA/k8s-device-plugin#1412",),
    ),
)
