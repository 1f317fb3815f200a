"""Rows MET about the exporter: its settings, its messages and its state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies, stack_config
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Container, Pod
from kgpu.doctor.matching import EXPORTER
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import Obj, at
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import counter_file, has_mig

_TYPES: Final = frozenset({"gauge", "counter", "histogram", "summary", "label", "untyped"})
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV: Final = "DCGM_EXPORTER_KUBERNETES"
_LABELS: Final = f"{_ENV}_ENABLE_POD_LABELS"
_ALLOWED: Final = f"{_ENV}_POD_LABEL_ALLOWLIST_REGEX"
_VIRTUAL: Final = "KUBERNETES_VIRTUAL_GPUS"
_DASHBOARD_FIELD: Final = re.compile(r"\bDCGM_(?:FI|EXP)_[A-Z0-9_]+")
_MAX_SHOWN: Final = 6


def _exporters(snapshot: Snapshot) -> Iterator[tuple[Pod, Container]]:
    """One exporter pod of each owner, with the container that exports."""
    known_owners: set[tuple[str, str]] = set()
    for pod in matching.pods_of_part(snapshot, EXPORTER, vendor=matching.NVIDIA):
        key = (pod.namespace, pod.owner or pod.name)
        mains = [
            container
            for container in pod.containers
            if not container.init and "dcgm" in container.image + " ".join(container.words)
        ]
        if key not in known_owners and mains:
            known_owners.add(key)
            yield pod, mains[0]


def _is_on(container: Container, name: str) -> bool:
    return container.env.get(name, "").lower() in ("true", "1", "t")


@rule(
    "MET-05",
    "Metrics without pods",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter, documentation",),
)
def no_users(snapshot: Snapshot) -> Iterator[Finding]:
    """The exporter asks the kubelet's pod-resources socket which pod has which device; it needs the setting for that
    and access to the socket.
    """
    for pod, container in _exporters(snapshot):
        asks = _is_on(container, _ENV) or {"-k", "--kubernetes", "--kubernetes=true"} & set(container.words)
        mounted = any(
            "pod-resources" in text(mapping(row).get("mountPath")) for row in items(container.spec.get("volumeMounts"))
        )
        if not container.env or "volumeMounts" not in container.spec or (asks and mounted):
            continue
        what = "has no mount of /var/lib/kubelet/pod-resources" if asks else f"is not told {_ENV}=true"
        yield Finding(
            subject=pod.subject,
            cause=f"the series of {pod} say nothing of pods and namespaces: it {what}",
            evidence=(container.cite("volumeMounts" if asks else "env"),),
            remedy=(
                remedies.set_env(pod.namespace, pod.owner.lower() or "daemonset/NAME", f"{_ENV}=true"),
                Remedy("mount the host's /var/lib/kubelet/pod-resources into it at the same path"),
            ),
            confidence=CERTAIN if asks else LIKELY,
            level=Level.PROBLEM if asks else Level.NOTE,
        )


@rule(
    "MET-06",
    "Counters that the exporter can't use",
    Place.CLUSTER,
    explains=("MET-18",),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def bad_counters(snapshot: Snapshot) -> Iterator[Finding]:
    """The key of the ConfigMap has to be dcgm-metrics.csv, and each line FIELD, type, help. The replaced exporter does
    not start with one bad line.
    """
    file = counter_file(snapshot)
    if file is None or (file.source is None and not snapshot.knows("ConfigMap")):
        return
    named_by = file.told_by.cite("spec.dcgmExporter.config.name")
    if file.source is None or file.key not in ("dcgm-metrics.csv", "metrics"):
        keys = ", ".join(file.source.map("data")) if file.source else ""
        yield Finding(
            subject=file.source.subject if file.source else file.told_by.subject,
            cause=(
                f"{file.source} has its counters under {keys or 'no key'}, and the exporter reads dcgm-metrics.csv only"
                if file.source
                else f"{file.told_by} tells the exporter to use ConfigMap {file.name}, which does not exist"
            ),
            evidence=(named_by, file.source.cite("data", keys)) if file.source else (named_by,),
            remedy=(
                Remedy("with the file of counters in place of FILE:"),
                remedies.config_map_of_file(
                    file.source.namespace if file.source else "gpu-operator", file.name, "dcgm-metrics.csv"
                ),
            ),
            confidence=CERTAIN,
        )
        return
    for position, line in enumerate(file.lines, 1):
        problem = _bad_line(line)
        if problem:
            yield Finding(
                subject=file.source.subject,
                cause=f"line {position} of the counters in {file.source} is wrong: {problem}",
                evidence=(named_by, Evidence(file=f"{file.source}, {file.key}", line=position, value=line)),
                remedy=(
                    Remedy(
                        "a line is a field, its type (gauge, counter or label) and its help, with commas between them:"
                    ),
                    remedies.edit(file.source.namespace, "configmap", file.name),
                ),
                confidence=CERTAIN,
            )
            return


def _bad_line(line: str) -> str:
    if not line.strip() or line.lstrip().startswith("#"):
        return ""
    parts = [part.strip() for part in line.split(",", 2)]
    if len(parts) < 3:
        return f"it has {len(parts)} of 3 parts"
    if not _FIELD.fullmatch(parts[0]):
        return f"{parts[0]!r} is no name of a field"
    return "" if parts[1] in _TYPES else f"{parts[1]!r} is no type of metric"


@rule(
    "MET-12",
    "Every pod label on every series",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter, documentation",),
)
def unlimited_labels(snapshot: Snapshot) -> Iterator[Finding]:
    """Labels such as a job's id or a commit make new series without end: allow a few names only."""
    for pod, container in _exporters(snapshot):
        if _is_on(container, _LABELS) and not container.env.get(_ALLOWED) and _ALLOWED not in container.env:
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} gives its series every label of the pods, also those that differ from job to job: "
                    "Prometheus keeps each as a series of its own"
                ),
                evidence=(matching.cite_env(pod, container, _LABELS),),
                remedy=(
                    remedies.set_env(pod.namespace, pod.owner.lower() or "daemonset/NAME", f"{_ALLOWED}=^(app|team)$"),
                ),
                level=Level.NOTE,
            )


@rule(
    "MET-23",
    "A series for every replica",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter#585",),
)
def replica_series(snapshot: Snapshot) -> Iterator[Finding]:
    """With pod labels and virtual GPUs each metric has a series per GPU, replica and container."""
    shared = [
        config
        for config in stack_config.sharing_configs(snapshot)
        if config.block("timeSlicing") or config.block("mps")
    ]
    for pod, container in _exporters(snapshot):
        if shared and _is_on(container, _VIRTUAL) and _is_on(container, _LABELS):
            kind = "timeSlicing" if shared[0].block("timeSlicing") else "mps"
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} gives a series for every replica of a shared GPU with labels of its pod, and "
                    f"{shared[0].source} makes many: metrics times replicas times pods"
                ),
                evidence=(
                    matching.cite_env(pod, container, _VIRTUAL),
                    matching.cite_env(pod, container, _LABELS),
                    shared[0].cite(kind),
                ),
                remedy=(
                    Remedy("fewer fields in the counters file"),
                    remedies.set_env(pod.namespace, pod.owner.lower() or "daemonset/NAME", f"{_LABELS}-").why(
                        "pod and namespace stay"
                    ),
                    Remedy("a recording rule by GPU for what is kept long"),
                ),
                level=Level.NOTE,
            )


@rule("MET-19", "The exporter is out of memory", Place.CLUSTER)
def out_of_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes with 8 or 16 GPUs, MIG or profiling need more than small defaults."""
    by_owner: dict[str, list[tuple[Pod, Container]]] = {}
    for pod in matching.pods_of_part(snapshot, EXPORTER):
        for container in pod.containers:
            if container.end_reason == "OOMKilled":
                by_owner.setdefault(f"{pod.namespace}/{pod.owner}", []).append((pod, container))
    for rows in by_owner.values():
        pod, container = rows[0]
        limit = text(container.limits.get("memory")) or "its limit"
        yield Finding(
            subject=pod.subject,
            cause=(
                f"container {container.name} of {pod} was killed at its memory limit "
                f"({limit}){f', as on {len(rows) - 1} more nodes' if len(rows) > 1 else ''}"
            ),
            evidence=(container.cite_status(), container.cite("resources.limits.memory")),
            remedy=(
                Remedy(
                    "kubectl -n {} set resources {} -c {} --limits=memory=1Gi",
                    pod.namespace,
                    pod.owner.lower() or "daemonset/NAME",
                    container.name,
                ),
            ),
            confidence=CERTAIN,
            nodes=tuple(each.node for each, _ in rows),
            pods=tuple(each.path for each, _ in rows),
        )


@rule(
    "MET-20",
    "Another node's metrics each time",
    Place.CLUSTER,
    rests_on=("ROCm/gpu-operator, documentation",),
)
def node_port(snapshot: Snapshot) -> Iterator[Finding]:
    """A NodePort leads to any of the pods unless traffic is kept local."""
    nodes = {pod.node for pod in matching.pods_of_part(snapshot, EXPORTER, vendor=matching.AMD) if pod.node}
    for service in snapshot.all("Service"):
        chosen = {pod.node for pod in _selected(snapshot, service, matching.AMD)}
        local = "Local" in (service.text("spec.internalTrafficPolicy"), service.text("spec.externalTrafficPolicy"))
        if service.text("spec.type") == "NodePort" and not local and len(chosen) > 1 and len(nodes) > 1:
            yield Finding(
                subject=service.subject,
                cause=(
                    f"{service} answers on every node with the metrics of any of {len(chosen)} nodes: a scrape "
                    "through it gets another one each time"
                ),
                evidence=(service.cite("spec.type"), service.cite("spec.externalTrafficPolicy")),
                remedy=(
                    Remedy(
                        "kubectl -n {} patch service {} -p "
                        '\'{{"spec":{{"internalTrafficPolicy":"Local","externalTrafficPolicy":"Local"}}}}\'',
                        service.namespace,
                        service.name,
                    ),
                    Remedy("or scrape the pods: clusterIP None and a ServiceMonitor"),
                ),
                level=Level.NOTE,
            )


def _selected(snapshot: Snapshot, service: Obj, vendor: str = "") -> list[Pod]:
    """The exporter's pods behind a Service."""
    selector = service.map("spec.selector")
    if not selector:
        return []
    return [
        pod
        for pod in matching.pods_of_part(snapshot, EXPORTER, vendor=vendor)
        if pod.namespace == service.namespace and all(pod.labels.get(key) == value for key, value in selector.items())
    ]


def _looked_at(snapshot: Snapshot) -> Iterator[HostFacts]:
    """Hosts that no agent reported: what an agent read an hour ago does not show how busy a GPU is."""
    return (host for host in snapshot.hosts.values() if not host.told_by)


@rule("MET-14", "Busy, and not much of it", Place.CLUSTER)
def busy_but_slow(snapshot: Snapshot) -> Iterator[Finding]:
    """GPU utilisation is the part of time in which any kernel ran, if on one of a hundred multiprocessors."""
    for host in _looked_at(snapshot):
        for gpu in host.gpus or ():
            busy, active = _reading(gpu.readings, "utilization_percent"), _reading(gpu.readings, "gpm_2")
            if busy is not None and active is not None and busy >= 95 and 0 < active < 20:
                yield _note(
                    host,
                    f"GPU {gpu.index} of node {host.node} has {busy:.0f} % utilisation, and its multiprocessors are "
                    f"{active:.0f} % active: utilisation says that some kernel ran, not how much of the card works",
                    host.cite("gpus", f"GPU {gpu.index}: utilization {busy:.0f} %, SM activity {active:.0f} %"),
                    Remedy(
                        "judge by DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_PIPE_TENSOR_ACTIVE; larger batches, "
                        "or a smaller share of a card"
                    ),
                )


@rule("MET-22", "Held and idle", Place.CLUSTER)
def held_idle(snapshot: Snapshot) -> Iterator[Finding]:
    """An alert on memory alone or on utilisation alone does not see a notebook that holds a GPU and does nothing."""
    for host in _looked_at(snapshot):
        node = snapshot.nodes.get(host.node)
        users = [pod for pod in snapshot.pods_by_node.get(host.node, ()) if pod.ready and matching.accelerators(pod)]
        old = [pod for pod in users if (snapshot.age(pod.text("status.startTime") or pod.created) or 0) > 3600]
        for gpu in host.gpus or ():
            used, busy = _reading(gpu.readings, "memory_used_mib"), _reading(gpu.readings, "utilization_percent")
            if node is None or not old or used is None or busy is None or used < 1024 or busy > 0:
                continue
            yield _note(
                host,
                f"GPU {gpu.index} of node {host.node} holds {used:.0f} MiB for a process and does nothing now: a "
                "notebook with an open CUDA context looks like this",
                host.cite("gpus", f"GPU {gpu.index}: memory used {used:.0f} MiB, utilization 0 %"),
                Remedy("whose it is:"),
                Remedy("kgpu top"),
                Remedy("alert on memory used and no utilisation together, for an hour"),
                confidence=POSSIBLE,
                pods=tuple(pod.path for pod in old),
            )


def _reading(readings: Any, name: str) -> float | None:
    reading = readings.get(name)
    return float(reading) if isinstance(reading, int | float) else None


def _note(host: HostFacts, cause: str, evidence: Evidence, *steps: Remedy, **more: Any) -> Finding:
    return Finding(
        subject=Subject("Node", host.node), cause=cause, evidence=(evidence,), remedy=steps, level=Level.NOTE,
        **{"nodes": (host.node,), **more},
    )  # fmt: skip


@rule(
    "MIG-16",
    "No measure of use under MIG",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter, documentation",),
)
def blind_under_mig(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver gives no utilisation with MIG on; DCGM_FI_PROF_GR_ENGINE_ACTIVE is there for each slice."""
    file = counter_file(snapshot)
    fields = file.names() if file else frozenset()
    cut = [node for node in snapshot.nodes.values() if has_mig(node)]
    if (
        file
        and file.source
        and cut
        and "DCGM_FI_DEV_GPU_UTIL" in fields
        and "DCGM_FI_PROF_GR_ENGINE_ACTIVE" not in fields
    ):
        yield Finding(
            subject=file.source.subject,
            cause=(
                f"node {cut[0].name} has MIG on, where utilisation is not defined, and {file.source} has no other "
                "measure: panels of use stay empty"
            ),
            evidence=(
                Evidence(file=f"{file.source}, {file.key}", value="DCGM_FI_DEV_GPU_UTIL"),
                cut[0].cite("metadata.labels[nvidia.com/gpu.product]"),
            ),
            remedy=(
                Remedy("add the line DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Activity of the engines:"),
                remedies.edit(file.source.namespace, "configmap", file.name),
                Remedy("show DCGM_FI_DEV_GPU_UTIL or 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
            ),
            confidence=CERTAIN,
            level=Level.NOTE,
        )


@rule("MET-18", "Dashboards of what is not exported", Place.CLUSTER)
def empty_panels(snapshot: Snapshot) -> Iterator[Finding]:
    """A custom counters file replaces the default set: it has to contain what the dashboards show."""
    file = counter_file(snapshot)
    fields = file.names() if file else frozenset()
    if file is None or file.source is None or not fields:
        return
    for obj in snapshot.all("ConfigMap"):
        if "grafana_dashboard" not in obj.labels:
            continue
        queried = {name for value in obj.map("data").values() for name in _DASHBOARD_FIELD.findall(text(value))}
        gone = sorted(queried - fields)
        if gone:
            more = f" and {len(gone) - _MAX_SHOWN} more" if len(gone) > _MAX_SHOWN else ""
            yield Finding(
                subject=obj.subject,
                cause=(
                    f"dashboard {obj.path} shows {', '.join(gone[:_MAX_SHOWN])}{more}, which {file.source} does not "
                    "have exported: its panels are empty"
                ),
                evidence=(obj.cite("data", ", ".join(gone)), file.told_by.cite("spec.dcgmExporter.config.name")),
                remedy=(
                    Remedy("add a line for {}, with its type (gauge, counter or label) and its help:", gone[0]),
                    remedies.edit(file.source.namespace, "configmap", file.name),
                ),
                confidence=CERTAIN,
                level=Level.NOTE,
            )


def _unready(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The state of the exporter's failing container; () where none fails, None where the line is no pod's."""
    if hit.pod is None:
        return None
    container = matching.failing(hit.pod)
    return (container.cite_status(),) if container else ()


def _hung(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The Xids of a hung GPU in the kernel log of the node."""
    host = snapshot.hosts.get(hit.node)
    open_ = [xid for xid in (host.xids if host else ()) if not xid.over and xid.code in (79, 119, 120)]
    return tuple(host.cite("xids", f"xid {xid.code} on {xid.pci}") for xid in open_[:2]) if host else ()


def _profiling(_: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Whether the exporter may profile at all."""
    if hit.pod is None:
        return None
    for container in hit.pod.containers:
        if not container.init and "SYS_ADMIN" not in items(at(container.spec, "securityContext.capabilities.add")):
            return (container.cite("securityContext"),)
    return ()


RULES: Final = rules_of(
    Sign(
        id="MET-07",
        title="No profiling metrics",
        place=Place.DRIVER,
        pattern=(
            r"Profiling module returned an unrecoverable error"
            r"|profiling (?:metrics|module) (?:is|are) not (?:supported|available)"
            r"|DCP [Mm]etrics? (?:is|are)? ?not (?:supported|available)"
        ),
        words="",
        where=(LOG,),
        parts=(EXPORTER,),
        always=True,
        proof=_profiling,
        cause=(
            "{who} has no profiling metrics (DCGM_FI_PROF_*): it may not profile, the card can't, "
            "or another profiler holds it"
        ),
        remedy=(
            "give its container securityContext.capabilities.add: [SYS_ADMIN]",
            "end other profilers (Nsight, ncu) on {node}, or:",
            "dcgmi profile --pause",
            "on cards without them: take DCGM_FI_PROF_* out of the counters file",
        ),
        explain="Profiling needs SYS_ADMIN, a data centre card of Volta or later, and nobody else who profiles.",
        rests_on=("NVIDIA/dcgm-exporter#22", "NVIDIA/dcgm-exporter#126", "NVIDIA/dcgm-exporter#328"),
    ),
    Sign(
        id="MET-08",
        title="The host engine can't be reached",
        place=Place.CLUSTER,
        pattern=(
            r"Error connecting to nv-hostengine|connection to the host engine is not valid"
            r"|[Cc]an(?:not|'t) connect to (?:the )?host ?engine"
        ),
        words="host",
        where=(LOG, STATUS),
        parts=(EXPORTER,),
        proof=_unready,
        cause="{who} can't reach the DCGM host engine that it is told to use",
        remedy=(
            "kubectl get pods,endpoints -A | grep nvidia-dcgm",
            remedies.filled(
                remedies.SET_ENV, workload="daemonset/nvidia-dcgm-exporter", change="DCGM_REMOTE_HOSTENGINE_INFO-"
            )
            + "   # it then brings its own",
            "where the host runs one on port 5555: stop it, or dcgm.enabled=false in the ClusterPolicy",
        ),
        explain=(
            "With dcgm.enabled the exporter goes to the service nvidia-dcgm:5555; without ready pods there, or with "
            "another host engine on that port, it ends."
        ),
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="MET-11",
        title="More labels than the store takes",
        place=Place.CLUSTER,
        pattern=r"max-label-names-per-series|label_limit exceeded|has (?P<count>\d+) label names; limit (?P<limit>\d+)",
        words="l",
        where=(LOG,),
        always=True,
        cause="series of GPUs are refused by the metrics store: they have more labels than it takes, says {who}",
        remedy=(
            "give the exporter an allow list: DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX=^(app|team)$",
            "or raise max_label_names_per_series (30) in Mimir",
        ),
        explain="Labels of pods on top of the exporter's own pass the limit of 30 names in Mimir and Cortex.",
        rests_on=("NVIDIA/dcgm-exporter#585",),
    ),
    Sign(
        id="MET-15",
        title="The exporter hangs",
        place=Place.DRIVER,
        pattern=r"(?:Liveness|Readiness) probe failed: .*(?:context deadline exceeded|Client\.Timeout|timeout)",
        words="probe failed",
        where=(EVENT,),
        parts=(EXPORTER,),
        proof=_hung,
        cause="{who} does not answer in time: a call to a sick GPU's driver keeps it",
        remedy=(
            "on node {node}:",
            "timeout 10 nvidia-smi; dmesg | grep -i xid; kgpu health",
            "when the GPU is well:",
            remedies.DELETE_POD,
        ),
        explain=(
            "The replaced exporter asks the driver while it is scraped: "
            "one GPU that hangs stops all metrics of the node."
        ),
        rests_on=("NVIDIA/go-dcgm#38",),
    ),
)
