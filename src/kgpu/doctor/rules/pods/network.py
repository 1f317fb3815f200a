"""Rows NET: shared memory, NCCL, RDMA and InfiniBand, and how the ranks of a job find each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Container, Pod
from kgpu.doctor.matching import DRIVER, VALIDATOR
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.objects import at
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import KERNEL, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_SHM: Final = "/dev/shm"  # noqa: S108 - the path is what the rule is about
_RDMA: Final = re.compile(
    r"rdma/.+|nvidia\.com/(?:hostdev|mlnx|rdma)\w*|openshift\.io/\w*(?:mlx|rdma|ib)\w*|mellanox\.com/.+"
)
_NODES: Final = re.compile(r"--nnodes[= ](?P<count>\d+)\b")
_MEETING: Final = re.compile(r"--rdzv[-_]endpoint|--master[-_]addr|--node[-_]rank")
_LINK: Final = re.compile(
    r"(?P<device>(?:mlx5_core )?(?P<port>(?<=mlx5_core )[\w:.]+|mlx5_\d+)).*[Ll]ink\s*"
    r"(?P<state>[Uu][Pp]|[Dd][Oo][Ww][Nn])"
)
_MOFED_READY: Final = "/run/mellanox/drivers/.driver-ready"
_MOFED_IMAGE: Final = re.compile(r"/(?:mofed|doca-driver)[:@-]")
_OLD_SECONDS: Final = 24 * 3600.0
_EARLIER: Final = ("NET-10", "NET-11")


def shm_volume(pod: Pod, container: Container) -> str:
    """The path of the volume mounted at /dev/shm, "" where a container has the runtime's 64 MiB."""
    name = next(
        (
            text(mapping(row).get("name"))
            for row in items(container.spec.get("volumeMounts"))
            if mapping(row).get("mountPath") == _SHM
        ),
        "",
    )
    rows = pod.maps("spec.volumes")
    return next(
        (f"spec.volumes[{position}]" for position, row in enumerate(rows) if name and row.get("name") == name), ""
    )


def _small_shm(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that no container of the pod has its own /dev/shm, else None."""
    if hit.pod is None or hit.pod.at("spec.hostIPC") is True:
        return None
    mains = [container for container in hit.pod.containers if not container.init]
    if any(shm_volume(hit.pod, container) for container in mains):
        return None
    return tuple(container.cite("volumeMounts") for container in mains[:1])


def _full_shm(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the pod has its own /dev/shm and is old, else None."""
    if hit.pod is None or (snapshot.age(hit.pod.created) or 0) < _OLD_SECONDS:
        return None
    paths = [path for container in hit.pod.containers if (path := shm_volume(hit.pod, container))]
    return (hit.pod.cite(paths[0]), hit.pod.cite("metadata.creationTimestamp")) if paths else None


def _peer_memory(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Whether nvidia_peermem is loaded on the node."""
    host = snapshot.hosts.get(hit.node)
    if host is None or host.modules is None:
        return ()
    return (
        host.cite("modules", "nvidia_peermem: " + ("loaded" if "nvidia_peermem" in host.modules else "not loaded")),
    )


def _still_down(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """() while the device is down, None where it has come up again since."""
    host = snapshot.hosts.get(hit.node)
    last = [
        change
        for line in (host.kernel_log if host else None) or ()
        if (change := _LINK.search(line)) and change["device"] == hit.match["device"]
    ]
    return () if last and last[-1]["state"].lower() == "down" else None


def _first_dead(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The failed ranks of the same job, the earliest first."""
    if hit.pod is None:
        return None
    peers = snapshot.pods_by_owner.get((hit.pod.namespace, hit.pod.owner), ())
    ended = [
        (
            text(at(container.status, "state.terminated.finishedAt"))
            or text(at(container.status, "lastState.terminated.finishedAt")),
            container,
        )
        for pod in peers
        if pod.key != hit.pod.key
        for container in pod.containers
        if container.exit_code not in (0, None)
    ]
    return tuple(container.cite_status() for _, container in sorted(ended, key=lambda row: row[0])[:2])


@rule("NET-12", "An RDMA resource that nobody offers", Place.PLUGIN, explains=("SCH-*",))
def no_rdma(snapshot: Snapshot) -> Iterator[Finding]:
    """The shared RDMA device plugin and the SR-IOV plugin offer resources under names of their own configuration."""
    for pod in snapshot.pods.values():
        if not pod.unplaced or not snapshot.nodes:
            continue
        for container in pod.containers:
            for name in container.limits:
                if not _RDMA.fullmatch(str(name)) or any(
                    node.allocatable(str(name)) for node in snapshot.nodes.values()
                ):
                    continue
                offered = sorted(
                    {
                        key
                        for node in snapshot.nodes.values()
                        for key in node.resources()
                        if _RDMA.fullmatch(key) and node.allocatable(key)
                    }
                )
                reason = f" (there is: {', '.join(offered)})"
                if not offered:
                    reason = ": the RDMA device plugin does not run, or is configured with another name"
                yield Finding(
                    subject=pod.subject,
                    cause=f"{pod} asks for {name}, which no node offers{reason}",
                    evidence=(
                        container.cite(f"resources.limits[{name}]"),
                        *(node.cite("status.allocatable") for node in matching.gpu_nodes(snapshot)[:1]),
                    ),
                    remedy=(Remedy("ask for {}", offered[0]),)
                    if offered
                    else (
                        Remedy("see whether its plugin runs; the resource's name is in that plugin's ConfigMap:"),
                        Remedy("kubectl get pods -A | grep -E 'rdma|sriov'"),
                    ),
                    confidence=CERTAIN,
                    pods=(pod.path,),
                    nodes=tuple(node.name for node in matching.gpu_nodes(snapshot)),
                )


@rule("NET-13", "Ranks without a meeting point", Place.CLUSTER)
def no_meeting(snapshot: Snapshot) -> Iterator[Finding]:
    """Without --rdzv-endpoint, MASTER_ADDR or --node_rank every pod is rank 0 and waits for the rest on localhost."""
    by_owner: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.pods.values():
        if pod.phase in ("Running", "Pending") or (pod.phase == "Failed" and not pod.ready):
            by_owner.setdefault((pod.namespace, pod.owner or pod.name), []).append(pod)
    for pods in by_owner.values():
        pod = pods[0]
        for container in pod.containers:
            words = " ".join(container.words)
            hit = _NODES.search(words) if "torchrun" in words or "torch.distributed" in words else None
            if hit is None or len(hit["count"]) > 5 or int(hit["count"]) < 2 or _MEETING.search(words):
                continue
            if any(key.startswith(("MASTER_", "PET_", "RANK")) for key in container.env) or items(
                container.spec.get("envFrom")
            ):
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"every one of {hit['count']} pods like {pod} waits for the others on its own localhost: torchrun "
                    f"--nnodes={hit['count']} has no --rdzv-endpoint"
                ),
                evidence=(
                    container.cite("args" if not container.spec.get("command") else "command"),
                    container.cite("env"),
                ),
                remedy=(
                    Remedy(
                        "make the Job Indexed (completionMode: Indexed) and give it a headless Service "
                        "(spec.template.spec.subdomain: its name)"
                    ),
                    Remedy(
                        "and let torchrun know where its pods meet, by the names of the Job and the Service: "
                        "--nnodes={} --rdzv-backend=c10d --rdzv-endpoint=JOB-0.SERVICE:29500 --rdzv-id=JOB",
                        hit["count"],
                    ),
                ),
                pods=tuple(each.path for each in pods),
                confidence=LIKELY,
            )
            break


def _interface(_: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    rows = [
        container for container in (hit.pod.containers if hit.pod else ()) if container.env.get("NCCL_SOCKET_IFNAME")
    ]
    return tuple(container.cite("env") for container in rows[:1])


def _mofed(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that RDMA is on and nothing brings Mellanox' driver; where something does, OPR-17 applies."""
    host = snapshot.hosts.get(hit.node)
    ready = host.present.get(_MOFED_READY) if host else None
    enabled = [
        *(
            policy.cite("spec.driver.rdma.enabled")
            for policy in snapshot.all("ClusterPolicy")
            if policy.at("spec.driver.rdma.enabled") is True
        ),
        *(
            driver.cite("spec.rdma.enabled")
            for driver in snapshot.all("NVIDIADriver")
            if driver.at("spec.rdma.enabled") is True
        ),
    ]
    brought = any(
        _MOFED_IMAGE.search(container.image) for pod in snapshot.pods.values() for container in pod.containers
    )
    if ready or brought or not enabled:
        return None
    absent = (host.cite("present", f"{_MOFED_READY}: not there"),) if host and ready is False else ()
    return (*absent, *enabled[:1])


RULES: Final = rules_of(
    Sign(
        id="NET-01",
        title="Too little shared memory for NCCL",
        place=Place.CLUSTER,
        pattern=(
            r"Error while creating shared memory segment|/dev/shm/nccl-\S+.*No space left"
            r"|posix_fallocate failed.*No space left on device|No space left on device.*/dev/shm"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_small_shm,
        confidence=CERTAIN,
        cause="{who} has the 64 MiB of /dev/shm that every container has, which is too little for NCCL",
        remedy=(
            "volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}]",
            "volumeMounts: [{{name: shm, mountPath: /dev/shm}}]   # it counts towards the container's memory limit",
        ),
        explain=(
            "Ranks on one machine talk through /dev/shm, "
            "which is 64 MiB in a container unless a volume is mounted there."
        ),
        explains=(*_EARLIER, "NET-02"),
        rests_on=("NVIDIA/nccl#525", "NVIDIA/nccl#290", "NVIDIA/nccl#342"),
    ),
    Sign(
        id="NET-02",
        title="Too little shared memory for workers",
        place=Place.CLUSTER,
        pattern=(
            r"DataLoader worker .*killed by signal: Bus error|[Bb]us error.*(?:shm|shared memory)"
            r"|insufficient shared memory"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_small_shm,
        confidence=CERTAIN,
        cause=(
            "{who} has the 64 MiB of /dev/shm that every container has, "
            "and its data loader's workers end with a bus error"
        ),
        remedy=(
            "volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}]",
            "volumeMounts: [{{name: shm, mountPath: /dev/shm}}]   # or num_workers=0",
        ),
        explain="Workers hand their batches over through /dev/shm.",
        explains=_EARLIER,
    ),
    Sign(
        id="NET-03",
        title="Shared memory has filled up",
        place=Place.CLUSTER,
        pattern=r"Error while creating shared memory segment|/dev/shm.*No space left|No space left on device.*/dev/shm",
        words="",
        where=(LOG, STATUS),
        proof=_full_shm,
        cause="the /dev/shm of {who} has filled up over time: crashed processes leave their NCCL segments there",
        remedy=(
            remedies.EXEC + "sh -c 'ls -la /dev/shm; rm -f /dev/shm/nccl-*'   # while nothing runs",
            remedies.DELETE_POD,
        ),
        explain="Segments of a process that was killed stay until the pod ends.",
        explains=_EARLIER,
    ),
    Sign(
        id="NET-04",
        title="No GPUDirect RDMA",
        place=Place.DRIVER,
        pattern=r"GPU Direct RDMA Disabled for HCA (?P<card>\d+|'[^']*'|\S+)",
        words="GPU Direct RDMA Disabled",
        where=(LOG,),
        always=True,
        proof=_peer_memory,
        level=Level.PROBLEM,
        cause="{who} moves its data through host memory: NCCL has no GPUDirect RDMA to the network card {card}",
        remedy=(
            "on the node:",
            "lsmod | grep nvidia_peermem || modprobe nvidia_peermem",
            "with the operator: --set driver.rdma.enabled=true",
            (
                "where it is loaded already: NCCL_NET_GDR_LEVEL=SYS, ACS off in the firmware, "
                "and see how near the card is:"
            ),
            "nvidia-smi topo -m",
        ),
        explain="It needs nvidia_peermem or DMA-BUF, a card near enough to the GPU, and ACS off.",
        rests_on=("NVIDIA/nccl#1537", "NVIDIA/nccl#1939"),
    ),
    Sign(
        id="NET-05",
        title="Memory can't be pinned",
        place=Place.RUNTIME,
        pattern=r"Couldn't allocate MR|ibv_reg_mr\S*.*Cannot allocate memory|ibv_create_\w+.*Cannot allocate memory",
        words="",
        where=(LOG, STATUS),
        cause="{who} can't pin memory for RDMA: the limit of locked memory of containers on node {node} is too low",
        remedy=(
            remedies.EXEC + "sh -c 'ulimit -l'",
            "on the node: LimitMEMLOCK=infinity in a drop-in of containerd.service, then restart it",
            "securityContext.capabilities.add: [IPC_LOCK] on the container",
        ),
        explain="Registering memory with a network card locks it; containers inherit the runtime's limit.",
        explains=_EARLIER,
    ),
    Sign(
        id="NET-06",
        title="Waiting for MOFED",
        place=Place.KERNEL,
        pattern=r"[Ww]aiting for MOFED to be installed|waiting for mofed",
        words="",
        where=(LOG, STATUS),
        parts=(DRIVER, VALIDATOR),
        proof=_mofed,
        cause=(
            "{who} waits for Mellanox' driver, which nobody installs on node {node}: "
            "rdma is on in the driver's settings"
        ),
        remedy=(
            (
                "install NVIDIA's network operator with a NicClusterPolicy, or where the host has the driver: "
                "driver.rdma.useHostMofed=true"
            ),
            "or without RDMA: driver.rdma.enabled=false",
        ),
        explain="With driver.rdma.enabled the driver's pod waits for /run/mellanox/drivers/.driver-ready.",
        explains=("OPR-17", "DRV-*", "DPL-*", "SCH-01", "SCH-02", "RUN-*"),
        rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
    ),
    Sign(
        id="NET-07",
        title="NCCL finds no network interface",
        place=Place.CLUSTER,
        pattern=r"Bootstrap : no socket interface found|no socket interface found",
        words="no socket interface found",
        where=(LOG, STATUS),
        confidence=CERTAIN,
        proof=_interface,
        cause="{who} has no network interface of the name that NCCL is told to use",
        remedy=(
            "take NCCL_SOCKET_IFNAME out, or set it to eth0, the pod's own interface",
            remedies.EXEC + "ip -br link",
        ),
        explain="NCCL_SOCKET_IFNAME names interfaces inside of the pod, not those of the host.",
        explains=_EARLIER,
    ),
    Sign(
        id="NET-08",
        title="RoCE does not get through",
        place=Place.CLUSTER,
        pattern=(
            r"(?:NCCL|NET/IB).*(?:local work queue operation error|vendor err\w* 129|status=12\b"
            r"|transport retry counter exceeded)|Got completion (?:from peer .*)?with (?:status|error) 12\b"
        ),
        words="",
        where=(LOG,),
        always=True,
        cause="{who} loses RDMA transfers: the GID index is wrong, or the switches are not lossless (PFC, ECN)",
        remedy=(
            "NCCL_IB_GID_INDEX=3 for RoCE v2, by what the node says:",
            "show_gids | grep v2",
            "and with the card's interface in place of INTERFACE:",
            "ethtool -S INTERFACE | grep -E 'prio3_pause|out_of_sequence|packet_seq'",
        ),
        explain="Retry counter exceeded and error 12 are time-outs on the wire.",
        explains=_EARLIER,
        rests_on=("NVIDIA NCCL documentation",),
    ),
    Sign(
        id="NET-09",
        title="An InfiniBand port is down",
        place=Place.HARDWARE,
        pattern=r"(?P<device>(?:mlx5_core )?(?P<port>(?<=mlx5_core )[\w:.]+|mlx5_\d+)).*[Ll]ink\s*[Dd](?:own|OWN)",
        words="mlx5",
        where=(KERNEL,),
        proof=_still_down,
        cause="a network port of node {node} is down ({device})",
        remedy=(
            "on the node:",
            "ibstat",
            "mlxlink -d {port}",
            "change cable or transceiver, look at the switch's port",
        ),
        explain="All ports of a machine of its kind should be active (H100, H200, B200: 8 at 400 Gb/s).",
        explains=(*_EARLIER, "NET-08"),
        rests_on=("leptonai/gpud 4a8de33, source",),
    ),
    Sign(
        id="NET-10",
        title="NCCL: some system error",
        place=Place.CLUSTER,
        pattern=r"unhandled system error.*NCCL version (?P<version>\S+)|ncclSystemError",
        words="",
        where=(LOG, STATUS),
        confidence=POSSIBLE,
        cause="{who} ended with a system error of NCCL, which has many causes",
        remedy=("run it again with NCCL_DEBUG=INFO and look at the first line with WARN",),
        explain=(
            "ncclSystemError wraps whatever failed below: shared memory, sockets, RDMA. Only the first warning says it."
        ),
    ),
    Sign(
        id="NET-11",
        title="A collective timed out",
        place=Place.CLUSTER,
        pattern=r"Watchdog caught collective operation timeout",
        words="collective operation timeout",
        where=(LOG, STATUS),
        proof=_first_dead,
        cause="{who} waited in a collective operation for a rank that died or hangs",
        remedy=(
            "look at the rank that ended first:",
            "kubectl -n {namespace} get pods -o wide",
            "its log and exit code, and what is told of its node (kgpu doctor node)",
        ),
        explain=(
            "After 10 or 30 minutes all ranks give up; the cause is with the one that ended or hung first (memory, "
            "Xid)."
        ),
    ),
)
