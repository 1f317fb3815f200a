"""Rows MET about who reads the metrics: monitors, scrape jobs, alerts and recording rules of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import UserError
from kgpu.base.plain import items, mapping, text
from kgpu.base.remedy import Remedy, words
from kgpu.doctor import matching
from kgpu.doctor.matching import EXPORTER
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import scrape_jobs
from kgpu.formats.duration import parse_duration

_GPU_FIELD: Final = "DCGM_"
_OWN: Final = "shared_copy"
"""A label of kgpu's own series: rules that have it are kgpu's, and written with these rows in mind."""
_LATCHED: Final = re.compile(r"DCGM_FI_DEV_XID_ERRORS(?:\{[^}]*\})?\s*(?:!=|>=?|==)")
_COUNTS: Final = re.compile(r"increase\(|changes\(|delta\(|rate\(|XID_ERRORS_COUNT")
_RATIO: Final = re.compile(r"FB_USED(?:\{[^}]*\})?\s*/\s*\(?.*FB_FREE", re.DOTALL)
_BUSY: Final = re.compile(r"GPU_UTIL(?:\{[^{}]*\})?\)?\s*>=?\s*(?P<limit>\d+)")
_NODE_LABEL: Final = re.compile(r"\{\{[^{}]*\$labels\.(?P<label>node|kubernetes_node)\b")
_JOINS: Final = re.compile(r"group_left|label_replace|label_join|kube_\w+|on\s*\(")
_FAST: Final = 5_000_000_000
_WIDE: Final = frozenset({"endpoints", "endpointslice", "pod", "service"})


@dataclass(frozen=True, slots=True)
class Monitor:
    """A ServiceMonitor or PodMonitor that is meant for exporters of GPU metrics; ``services`` are those it selects."""

    obj: Obj
    services: tuple[Obj, ...]

    @property
    def field(self) -> str:
        return "spec.podMetricsEndpoints" if self.obj.kind == "PodMonitor" else "spec.endpoints"

    @property
    def endpoints(self) -> list[Mapping[str, Any]]:
        return self.obj.maps(self.field)


def _monitors(snapshot: Snapshot) -> list[Monitor]:
    return snapshot.once(_collected_monitors)


def _collected_monitors(snapshot: Snapshot) -> list[Monitor]:
    services = snapshot.once(_services)
    monitors = []
    for obj in snapshot.all("ServiceMonitor"):
        mine = tuple(
            service
            for service in services
            if _covers(obj, service.namespace) and _matches(obj.map("spec.selector"), service.labels)
        )
        if mine:
            monitors.append(Monitor(obj, mine))
    for obj in snapshot.all("PodMonitor"):
        pods = matching.pods_of_part(snapshot, EXPORTER)
        if any(_covers(obj, pod.namespace) and _matches(obj.map("spec.selector"), pod.labels) for pod in pods):
            monitors.append(Monitor(obj, ()))
    return monitors


def _services(snapshot: Snapshot) -> list[Obj]:
    """The Services of exporters."""
    pods = matching.pods_of_part(snapshot, EXPORTER)
    services = []
    for service in snapshot.all("Service"):
        selector = service.map("spec.selector")
        if selector and any(
            pod.namespace == service.namespace and all(pod.labels.get(key) == value for key, value in selector.items())
            for pod in pods
        ):
            services.append(service)
    return services


def _covers(monitor: Obj, namespace: str) -> bool:
    chosen = monitor.map("spec.namespaceSelector")
    if chosen.get("any") is True:
        return True
    return namespace in (items(chosen.get("matchNames")) or (monitor.namespace,))


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an operator that is not known here counts as a match."""
    if any(labels.get(key) != value for key, value in mapping(selector.get("matchLabels")).items()):
        return False
    return all(_holds(mapping(row), labels) for row in items(selector.get("matchExpressions")))


def _holds(row: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator, values = labels.get(text(row.get("key"))), text(row.get("operator")), items(row.get("values"))
    known = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return known.get(operator, True)


@rule("MET-01", "A monitor of a port that is not there", Place.CLUSTER, explains=("MET-02",))
def wrong_port(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator's Service calls its port gpu-metrics (9400)."""
    for monitor in _monitors(snapshot):
        for position, endpoint in enumerate(monitor.endpoints):
            port = text(endpoint.get("port"))
            bad = [service for service in monitor.services if port and port not in _ports(service)]
            if bad and len(bad) == len(monitor.services):
                named_ports = ", ".join(_ports(bad[0])) or "no named port"
                right = next(iter(_ports(bad[0])), "gpu-metrics")
                path = f"/spec/endpoints/{position}/port"
                yield Finding(
                    subject=monitor.obj.subject,
                    cause=(
                        f"{monitor.obj} scrapes the port {port}, and {bad[0]} has {named_ports}: Prometheus "
                        "has no target"
                    ),
                    evidence=(
                        monitor.obj.cite(f"spec.endpoints[{position}].port"),
                        bad[0].cite("spec.ports", named_ports),
                    ),
                    remedy=(
                        Remedy(
                            "kubectl -n {} patch servicemonitor {} --type json -p "
                            '\'[{{"op":"replace","path":"{}","value":"{}"}}]\'',
                            monitor.obj.namespace,
                            monitor.obj.name,
                            path,
                            right,
                        ),
                    ),
                    confidence=CERTAIN,
                )


def _ports(service: Obj) -> list[str]:
    return [name for row in service.maps("spec.ports") if (name := text(row.get("name")))]


@rule("MET-02", "Prometheus does not take the monitor", Place.CLUSTER)
def not_selected(snapshot: Snapshot) -> Iterator[Finding]:
    """Prometheus reads ServiceMonitors that its selectors match; kube-prometheus-stack asks for its own release label
    unless serviceMonitorSelectorNilUsesHelmValues is false.
    """
    servers = list(snapshot.all("Prometheus"))
    for monitor in _monitors(snapshot):
        kind = "podMonitor" if monitor.obj.kind == "PodMonitor" else "serviceMonitor"
        missed = [(server, field) for server in servers if (field := _misses(snapshot, server, monitor.obj, kind))]
        if not servers or len(missed) < len(servers):
            continue
        server, field = missed[0]
        wanted = mapping(server.map(f"spec.{kind}Selector").get("matchLabels"))
        labels = words(*(f"{plain(str(key))}={plain(str(value))}" for key, value in wanted.items()))
        by_label = field.endswith("orSelector")
        steps = (
            (
                Remedy(
                    "kubectl -n {} label {} {} {} --overwrite",
                    monitor.obj.namespace,
                    monitor.obj.kind.lower(),
                    monitor.obj.name,
                    labels,
                ),
            )
            if by_label and labels
            else ()
        )
        yield Finding(
            subject=monitor.obj.subject,
            cause=(
                f"{server} does not take {monitor.obj}: its {field} does not match the "
                f"{'labels of the monitor' if by_label else 'namespace of the monitor'}"
            ),
            evidence=(server.cite(f"spec.{field}"), monitor.obj.cite("metadata.labels")),
            remedy=(
                *steps,
                Remedy(
                    "or for all, in the values of Prometheus' chart: "
                    "prometheus.prometheusSpec.{}SelectorNilUsesHelmValues=false",
                    kind,
                ),
            ),
            confidence=CERTAIN,
        )


def _misses(snapshot: Snapshot, server: Obj, monitor: Obj, kind: str) -> str:
    """The field by which a Prometheus excludes a monitor, "" where it takes it. An absent selector takes nothing."""
    selector = server.at(f"spec.{kind}Selector")
    if not isinstance(selector, dict) or not _matches(selector, monitor.labels):
        return f"{kind}Selector"
    spaces = server.at(f"spec.{kind}NamespaceSelector")
    if spaces is None:
        return "" if monitor.namespace == server.namespace else f"{kind}NamespaceSelector"
    space = snapshot.get("Namespace", monitor.namespace)
    labels = {"kubernetes.io/metadata.name": monitor.namespace, **(space.labels if space else {})}
    known = space is not None or set(mapping(mapping(spaces).get("matchLabels"))) <= set(labels)
    return "" if not known or _matches(mapping(spaces), labels) else f"{kind}NamespaceSelector"


@rule(
    "MET-03",
    "Scraped twice",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter#237",),
)
def twice(snapshot: Snapshot) -> Iterator[Finding]:
    """A ServiceMonitor and a static or annotation job both find the exporter: each series is there under two jobs."""
    if len(list(snapshot.all("Prometheus"))) > 1:
        return  # each may have its own
    ways: dict[str, list[tuple[Obj, Evidence]]] = {}
    for monitor in _monitors(snapshot):
        if all(_named(monitor, endpoint) for endpoint in monitor.endpoints):
            key = monitor.services[0].path if monitor.services else "pods"
            ways.setdefault(key, []).append((monitor.obj, monitor.obj.cite("spec.selector")))
    jobs = [
        (obj, obj.cite(f"data[{key}]", f"job_name: {job['job_name']}"))
        for obj, key, job in scrape_jobs(snapshot)
        if _scrapes_gpus(snapshot, job)
    ]
    every = [row for rows in ways.values() for row in rows]
    for rows in ways.values():
        others = [*rows[1:], *(row for row in every if row[0].kind == "PodMonitor" and row not in rows), *jobs]
        if others and rows[0][0].kind == "ServiceMonitor":
            yield _doubled(rows[0], others[0])
    if not ways and len(jobs) > 1:
        yield _doubled(jobs[0], jobs[1])


def _named(monitor: Monitor, endpoint: Mapping[str, Any]) -> bool:
    port = text(endpoint.get("port"))
    return not monitor.services or not port or any(port in _ports(service) for service in monitor.services)


def _doubled(first: tuple[Obj, Evidence], second: tuple[Obj, Evidence]) -> Finding:
    return Finding(
        subject=first[0].subject,
        cause=f"the GPU exporter is scraped twice, by {first[0]} and by {second[0]}: sums over its series are doubled",
        evidence=(first[1], second[1]),
        remedy=(Remedy("take one of both away"), Remedy("to see it: count by (UUID, job) (DCGM_FI_DEV_GPU_TEMP)")),
        confidence=LIKELY,
    )


def _scrapes_gpus(snapshot: Snapshot, job: Mapping[str, Any]) -> bool:
    """Whether a job of a Prometheus configuration reaches exporters: by name, static target, or whole namespace."""
    words = text(job.get("job_name")) + str(job.get("static_configs") or "") + str(job.get("relabel_configs") or "")
    if re.search(r"dcgm|gpu[-_]metrics|:9400", words):
        return True
    spaces = {pod.namespace for pod in matching.pods_of_part(snapshot, EXPORTER)}
    return _whole_namespace(job) and bool(spaces & set(_spaces(job)))


def _spaces(job: Mapping[str, Any]) -> list[str]:
    rows = [mapping(row) for row in items(job.get("kubernetes_sd_configs"))]
    return [
        name for row in rows for name in items(mapping(row.get("namespaces")).get("names")) if isinstance(name, str)
    ]


def _whole_namespace(job: Mapping[str, Any]) -> bool:
    """Whether a job scrapes everything in a namespace, with no relabelling that keeps or drops targets."""
    configs = [mapping(row) for row in items(job.get("kubernetes_sd_configs"))]
    steps = {text(mapping(row).get("action")) for row in items(job.get("relabel_configs"))}
    roles = {text(row.get("role")) for row in configs}
    return bool(roles & _WIDE) and not steps & {"keep", "drop", "keepequal", "dropequal"}


@rule("MET-24", "A job for a whole namespace", Place.CLUSTER)
def whole_namespace(snapshot: Snapshot) -> Iterator[Finding]:
    """Discovery by role endpoints gives every port of every service there as a target."""
    spaces = {pod.namespace for pod in matching.pods_of_part(snapshot, EXPORTER)}
    for obj, key, job in scrape_jobs(snapshot):
        name = text(job.get("job_name"))
        if _whole_namespace(job) and spaces & set(_spaces(job)):
            yield Finding(
                subject=obj.subject,
                cause=(
                    f"job {name} in {obj} scrapes every endpoint of namespace {', '.join(_spaces(job))}: those that "
                    "have no metrics are targets that are down"
                ),
                evidence=(obj.cite(f"data[{key}]", f"job_name: {name}, no relabeling that keeps"),),
                remedy=(
                    Remedy(
                        "add to its relabel_configs: {source_labels: [__meta_kubernetes_service_name], action: keep, "
                        "regex: nvidia-dcgm-exporter}"
                    ),
                ),
                level=Level.NOTE,
                confidence=CERTAIN,
            )


@rule(
    "MET-04",
    "The exporter's pod on every series",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter#340",),
)
def pods_hidden(snapshot: Snapshot) -> Iterator[Finding]:
    """Prometheus puts the target's labels over those of the series, and keeps theirs as exported_pod."""
    for monitor in _monitors(snapshot):
        for position, endpoint in enumerate(monitor.endpoints):
            steps = str(endpoint.get("metricRelabelings") or "") + str(endpoint.get("relabelings") or "")
            if endpoint.get("honorLabels") is True or "exported_pod" in steps or "labeldrop" in steps:
                continue
            yield Finding(
                subject=monitor.obj.subject,
                cause=(
                    f"{monitor.obj} has no honorLabels: every series says pod=the exporter, "
                    "and the pod that uses the GPU is under exported_pod"
                ),
                evidence=(monitor.obj.cite(f"{monitor.field}[{position}].honorLabels"),),
                remedy=(
                    Remedy(
                        "kubectl -n {} patch {} {} --type json -p "
                        '\'[{{"op":"add","path":"/{}/{}/honorLabels","value":true}}]\'',
                        monitor.obj.namespace,
                        monitor.obj.kind.lower(),
                        monitor.obj.name,
                        monitor.field.replace(".", "/"),
                        position,
                    ),
                ),
                level=Level.NOTE,
                confidence=CERTAIN,
            )


@rule("MET-13", "Scraped more often than measured", Place.CLUSTER)
def too_often(snapshot: Snapshot) -> Iterator[Finding]:
    """DCGM collects every 30 s by default: more scrapes cost the node and Prometheus, and show nothing new."""
    rows: list[tuple[Obj, str, Evidence]] = []
    for monitor in _monitors(snapshot):
        for position, endpoint in enumerate(monitor.endpoints):
            rows.append(
                (monitor.obj, text(endpoint.get("interval")), monitor.obj.cite(f"{monitor.field}[{position}].interval"))
            )
    for obj, key, job in scrape_jobs(snapshot):
        if _scrapes_gpus(snapshot, job):
            every = text(job.get("scrape_interval"))
            rows.append(
                (obj, every, obj.cite(f"data[{key}]", f"job_name: {job['job_name']}, scrape_interval: {every}"))
            )
    for obj, every, evidence in rows:
        if _short(every):
            yield Finding(
                subject=obj.subject,
                cause=(
                    f"{obj} scrapes GPU metrics every {every}; DCGM takes them every 30 s, "
                    "so most samples repeat the one before"
                ),
                evidence=(evidence,),
                remedy=(
                    Remedy(
                        "set the interval to 15s or 30s, or the exporter's -c (milliseconds) as low as the interval"
                    ),
                ),
                level=Level.NOTE,
            )


def _short(every: str) -> bool:
    try:
        return bool(every) and parse_duration(every) < _FAST
    except (UserError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Written:
    """An alert or recording rule about GPUs, and where it stands."""

    obj: Obj
    path: str
    name: str
    expr: str
    row: Mapping[str, Any]

    def cite(self, field: str = "expr") -> Evidence:
        return self.obj.cite(f"{self.path}.{field}")


def _written(snapshot: Snapshot) -> list[Written]:
    return snapshot.once(_collected_rules)


def _collected_rules(snapshot: Snapshot) -> list[Written]:
    written = []
    for obj in snapshot.all("PrometheusRule"):
        for place, group in enumerate(items(obj.at("spec.groups"))):
            for position, row in enumerate(items(mapping(group).get("rules"))):
                fields = mapping(row)
                expr = fields.get("expr")
                if isinstance(expr, str) and _GPU_FIELD in expr and _OWN not in expr:
                    name = text(fields.get("alert")) or text(fields.get("record"))
                    written.append(Written(obj, f"spec.groups[{place}].rules[{position}]", name, expr, fields))
    return written


def _of_rule(entry: Written, cause: str, step: Remedy, *, confidence: float = CERTAIN) -> Finding:
    return Finding(
        subject=entry.obj.subject, cause=f"{entry.name or 'a rule'} in {entry.obj} {cause}", evidence=(entry.cite(),),
        remedy=(step,), confidence=confidence, level=Level.NOTE,
    )  # fmt: skip


@rule(
    "MET-10",
    "An Xid alert that never clears",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter, documentation",),
)
def latched(snapshot: Snapshot) -> Iterator[Finding]:
    """DCGM_FI_DEV_XID_ERRORS is a gauge with the last code."""
    for entry in _written(snapshot):
        if entry.row.get("alert") and _LATCHED.search(entry.expr) and not _COUNTS.search(entry.expr):
            yield _of_rule(
                entry,
                "compares DCGM_FI_DEV_XID_ERRORS, which is the code of the last error and stays until the exporter "
                "restarts: it neither clears nor fires again",
                Remedy(
                    "write: increase(DCGM_EXP_XID_ERRORS_COUNT[5m]) > 0, or changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0"
                ),
            )


@rule(
    "MET-16",
    "Utilisation recorded as memory",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def wrong_measure(snapshot: Snapshot) -> Iterator[Finding]:
    """accelerator_memory_used_bytes has to come from DCGM_FI_DEV_FB_USED, in MiB."""
    for entry in _written(snapshot):
        if entry.row.get("record") and "memory_used" in entry.name and "MEM_COPY_UTIL" in entry.expr:
            yield _of_rule(
                entry,
                "records as memory used what is the utilisation of the memory interface, in percent",
                Remedy("write: DCGM_FI_DEV_FB_USED * 1024 * 1024"),
            )


@rule("MET-17", "A label that series do not have", Place.CLUSTER)
def absent_label(snapshot: Snapshot) -> Iterator[Finding]:
    """The exporter says Hostname; node and kubernetes_node are there only where relabelling makes them."""
    steps = "".join(str(endpoint) for monitor in _monitors(snapshot) for endpoint in monitor.endpoints)
    steps += "".join(str(job) for _, _, job in scrape_jobs(snapshot))
    if not _monitors(snapshot):
        return
    for entry in _written(snapshot):
        used = mapping(entry.row.get("annotations"))
        for key, value in used.items():
            hit = _NODE_LABEL.search(text(value))
            if hit is None or "{{ with" in text(value) or _JOINS.search(entry.expr) or f"'{hit['label']}'" in steps:
                continue
            yield _of_rule(
                entry,
                f"names the label {hit['label']} in its {key}, which no series of the exporter has: the text has a gap",
                Remedy(
                    "write {{{{ $labels.Hostname }}}}, or relabel __meta_kubernetes_pod_node_name to {} in the monitor",
                    hit["label"],
                ),
                confidence=LIKELY,
            )
            break


@rule("MET-21", "Full is never one", Place.CLUSTER)
def no_reserve(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver reserves some memory, which is neither used nor free."""
    for entry in _written(snapshot):
        if _RATIO.search(entry.expr) and "FB_RESERVED" not in entry.expr:
            yield _of_rule(
                entry,
                "divides used memory by used and free: reserved memory is in neither, "
                "so a full card may stay below its threshold",
                Remedy(
                    "write: DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + "
                    "DCGM_FI_DEV_FB_RESERVED), or lower the threshold"
                ),
                confidence=LIKELY,
            )


@rule("MET-25", "An alarm at good work", Place.CLUSTER)
def alarm_on_work(snapshot: Snapshot) -> Iterator[Finding]:
    """High utilisation is the goal; the idle GPU is what costs."""
    for entry in _written(snapshot):
        hit = _BUSY.search(entry.expr)
        if (
            entry.row.get("alert")
            and hit
            and len(hit["limit"]) < 4
            and int(hit["limit"]) >= 80
            and " and " not in entry.expr
        ):
            yield _of_rule(
                entry,
                f"fires when a GPU is more than {hit['limit']} % busy, which every healthy training run is",
                Remedy("delete it, or turn it around: avg_over_time(DCGM_FI_DEV_GPU_UTIL[1h]) < 5"),
            )
