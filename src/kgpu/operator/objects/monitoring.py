"""How Prometheus and Grafana find kgpu's metrics: Services; ServiceMonitors or PodMonitors and rules where there are
those kinds; dashboards where they are wanted.

Names of Services and ports are the replaced operator's. The exporter's series get the labels by which documents ask for
them: ``node``, ``kubernetes_node`` and ``Hostname`` for the node, and ``pod``, ``namespace`` and ``container`` for who
uses the GPU, not for the exporter's own pod; ``exported_pod`` and so on stay beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ExporterService
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.formats.operands import BY_NAME, Operand
from kgpu.kube.kinds import POD_MONITORS, PROMETHEUS_RULES, SERVICE_MONITORS
from kgpu.kube.port import Resource
from kgpu.monitoring.boards import BOARDS
from kgpu.monitoring.model import Group
from kgpu.monitoring.rules import NAME, OF_EXPORTER, groups
from kgpu.monitoring.scrape import POD
from kgpu.operator.model import Layout, Object
from kgpu.operator.objects.common import Scene, builtins, has_kind
from kgpu.operator.objects.env import role_env
from kgpu.operator.objects.rbac import POD_METADATA_RULES, SLICE_RULES, cluster_role

STATE: Final = "state-operator-metrics"
OPERATOR: Final = "gpu-operator"
NODE_STATUS: Final = BY_NAME["node-status-exporter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Metrics that are served on one port of some pods; ``name`` is also the label ``app`` of its objects."""

    name: str
    state: str
    port: str
    number: int

    @property
    def labels(self) -> dict[str, str]:
        """Of the Service, by which a ServiceMonitor finds it."""
        return {"app": self.name}


FROM_OPERATOR: Final = Source(name=OPERATOR, state=STATE, port="gpu-operator-metrics", number=8080)
EXPORTER: Final = BY_NAME["dcgm-exporter"]
FROM_EXPORTER: Final = Source(
    name=EXPORTER.daemon_set, state=EXPORTER.state, port="gpu-metrics", number=names.EXPORTER_PORT
)
CONTAINER_PORT: Final = "metrics"
"""The name of the exporter's port in its pods."""
USER: Final = ("pod", "namespace", "container")
"""Labels that say who uses a GPU; a ServiceMonitor gives targets labels of the same names."""
FROM_NODES: Final = Source(
    name=NODE_STATUS.daemon_set, state=NODE_STATUS.state, port="node-status", number=names.NODE_STATUS_PORT
)


def operator_objects(scene: Scene) -> list[Object]:
    """The operator's own metrics: a Service always; the rest when the policy wants a ServiceMonitor."""
    service = _service(scene, FROM_OPERATOR, FROM_OPERATOR.labels)
    monitor = _operator_monitor(scene)
    if monitor is None or not monitor.enabled:
        return [service]
    return [
        service,
        *_monitor(scene, FROM_OPERATOR, monitor),
        *_rules(scene, FROM_OPERATOR, str(Group.OPERATOR), (Group.OPERATOR,), monitor),
    ]


def node_status_objects(scene: Scene) -> list[Object]:
    """The nodes' validation metrics: for as long as the exporter runs."""
    told = _operator_monitor(scene)
    # Which Prometheus is to find them is said once, for the operator's own.
    labels = told.additional_labels if told else {}
    monitors = _monitor(scene, FROM_NODES, ServiceMonitor(enabled=True, additional_labels=labels))
    for monitor in monitors:
        _only_where(scene, NODE_STATUS, monitor)
    return [
        _service(scene, FROM_NODES, _pods(scene, FROM_NODES)),
        *monitors,
        *_rules(scene, FROM_NODES, str(Group.NODES), (Group.NODES,), told),
    ]


def exporter_objects(scene: Scene) -> list[Object]:
    """What GPUs do, for whom and how well they are; and the right to read pods and claims where they are asked for."""
    policy = scene.policy.spec.dcgm_exporter
    service = _service(scene, FROM_EXPORTER, _pods(scene, FROM_EXPORTER))
    _adapt(service["spec"], role_env(EXPORTER.role, scene), policy.service)
    told = policy.service_monitor or ServiceMonitor()
    scrape = scene.settings.monitoring.scrape
    kind = POD_MONITORS if scrape.kind == POD else SERVICE_MONITORS
    monitors = _monitor(scene, FROM_EXPORTER, told, kind) if told.enabled else []
    for monitor in monitors:
        endpoint = monitor["spec"]["endpoints"][0]
        endpoint |= scrape.endpoint
        _relabel(scene, endpoint, told)
        _only_where(scene, EXPORTER, monitor)
        if kind is POD_MONITORS:
            _of_pods(scene, monitor["spec"])
    return [
        *_pod_rights(scene),
        service,
        *monitors,
        *_rules(scene, FROM_EXPORTER, NAME, OF_EXPORTER, told, records=True),
        *_dashboards(scene),
    ]


def _adapt(spec: Object, env: Mapping[str, str], told: ExporterService | None) -> None:
    """The Service's type, the port on which the exporter has been told to listen, and the port's second name.

    Documents call the port ``metrics``; one port can't have two names, so that the second name has a number of its own.
    """
    (port,) = spec["ports"]
    port["targetPort"] = _listens(env)
    spec["ports"].append({**port, "name": "metrics", "port": names.EXPORTER_SECOND_PORT})
    if told is not None and told.type:
        spec["type"] = told.type
    if told is not None and told.internal_traffic_policy:
        spec["internalTrafficPolicy"] = told.internal_traffic_policy


def _listens(env: Mapping[str, str]) -> int:
    """The exporter's port; the usual one where it will refuse what it was told."""
    found = env.get("DCGM_EXPORTER_LISTEN", "").rpartition(":")[2]
    return int(found) if found.isascii() and found.isdecimal() and 0 < int(found[:6]) < 1 << 16 else names.EXPORTER_PORT


def _relabel(scene: Scene, endpoint: Object, told: ServiceMonitor) -> None:
    """Labels for whose series they are; the policy's own relabelings come last."""
    env = role_env(EXPORTER.role, scene)
    old = "a" in env.get("KGPU_EXPORTER_COMPAT", "").lower().split(",")
    nodes = ("node", "kubernetes_node", *(() if old else ("Hostname",)))  # the oldest names have the last themselves
    steps: list[Object] = [
        {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": label}
        for label in nodes
    ]
    if told.honor_labels:
        steps.append({"action": "labeldrop", "regex": "|".join(USER)})
    else:
        endpoint["metricRelabelings"] = [
            {"action": "replace", "sourceLabels": [f"exported_{label}"], "targetLabel": label} for label in USER
        ]
    endpoint["relabelings"] = [*steps, *endpoint.get("relabelings", ())]


def _of_pods(scene: Scene, spec: Object) -> None:
    """A ServiceMonitor's spec as a PodMonitor's: the same targets under the same job, without the Service."""
    (endpoint,) = spec.pop("endpoints")
    del spec["jobLabel"]
    spec["selector"] = {"matchLabels": _pods(scene, FROM_EXPORTER)}
    endpoint["port"] = CONTAINER_PORT
    steps: list[Object] = [{"action": "replace", "targetLabel": "job", "replacement": FROM_EXPORTER.name}]
    listens = _listens(role_env(EXPORTER.role, scene))
    if listens != names.EXPORTER_PORT:
        place = {"sourceLabels": ["__address__"], "targetLabel": "__address__"}
        steps.append({"action": "replace", **place, "regex": r"(.+):\d+", "replacement": f"$1:{listens}"})
    endpoint["relabelings"] = [*steps, *endpoint["relabelings"]]
    spec["podMetricsEndpoints"] = [endpoint]


def _pod_rights(scene: Scene) -> list[Object]:
    told = scene.policy.spec.dcgm_exporter
    rules: tuple[Object, ...] = POD_METADATA_RULES if told.enable_pod_labels or told.enable_pod_uid else ()
    if role_env(EXPORTER.role, scene).get("KUBERNETES_ENABLE_DRA", "").lower() in {"1", "t", "true"}:
        rules += SLICE_RULES
    if not rules:
        return []
    in_agent = scene.settings.layout is Layout.AGENT
    account = names.AGENT_DAEMON_SET if in_agent else EXPORTER.account
    return cluster_role(scene, f"{EXPORTER.account}-read-pods", EXPORTER.state, account, rules)


def _dashboards(scene: Scene) -> list[Object]:
    told = scene.settings.monitoring
    if not told.dashboards:
        return []
    return [
        scene.made(
            "ConfigMap",
            f"kgpu-dashboard-{board.file}",
            state=EXPORTER.state,
            labels=told.labels,
            annotations=told.annotations,
            data={f"{board.file}.json": board.text()},
        )
        for board in BOARDS
    ]


def _pods(scene: Scene, source: Source) -> dict[str, str]:
    return {"app": names.AGENT_DAEMON_SET} if scene.settings.layout is Layout.AGENT else source.labels


def _only_where(scene: Scene, operand: Operand, monitor: Object) -> None:
    """Agents run on every node, a role only where the node's label says so."""
    if scene.settings.layout is not Layout.AGENT:
        return
    label = f"{names.LABEL_DEPLOY_PREFIX}{operand.deploy}"
    endpoint = monitor["spec"]["endpoints"][0]
    keep = {"action": "keep", "sourceLabels": [f"__meta_kubernetes_node_label_{_sanitized(label)}"], "regex": "true"}
    monitor["spec"]["attachMetadata"] = {"node": True}
    endpoint["relabelings"] = [keep, *endpoint.get("relabelings", ())]


def missing(scene: Scene) -> Advice | None:
    """What is told when a ServiceMonitor is wanted and the cluster has no such kind."""
    monitor = _operator_monitor(scene)
    if monitor is None or not monitor.enabled or has_kind(scene.observed, SERVICE_MONITORS):
        return None
    return Advice(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what="no ServiceMonitor is made for the operator's metrics",
        why=f"the cluster has no {SERVICE_MONITORS.plural}.{SERVICE_MONITORS.group}",
        severity=Severity.WARNING,
        remedy="install the Prometheus operator, or set operator.metrics.serviceMonitor.enabled to false",
        reason="ServiceMonitorUnavailable",
    )


def _operator_monitor(scene: Scene) -> ServiceMonitor | None:
    metrics = scene.policy.spec.operator.metrics
    return metrics.service_monitor if metrics else None


def _service(scene: Scene, source: Source, selector: dict[str, str]) -> Object:
    return scene.made(
        "Service",
        source.name,
        state=source.state,
        labels=source.labels,
        annotations={"prometheus.io/scrape": "true"},
        spec={
            "type": "ClusterIP",
            "selector": selector,
            "ports": [
                {"name": source.port, "port": source.number, "targetPort": source.number, "protocol": "TCP"},
            ],
        },
    )


def _monitor(scene: Scene, source: Source, told: ServiceMonitor, kind: Resource = SERVICE_MONITORS) -> list[Object]:
    if not has_kind(scene.observed, kind):
        return []
    endpoint: dict[str, Any] = {"port": source.port, "path": "/metrics"}
    optional = {"interval": told.interval, "scrapeTimeout": told.scrape_timeout, "honorLabels": told.honor_labels}
    endpoint |= {key: value for key, value in optional.items() if value}
    if told.relabelings:
        endpoint["relabelings"] = [builtins(one) for one in told.relabelings]
    spec = {
        "jobLabel": "app",
        "selector": {"matchLabels": source.labels},
        "namespaceSelector": {"matchNames": [scene.settings.namespace]},
        "endpoints": [endpoint],
    }
    labels = {**told.additional_labels, **source.labels}
    return [scene.made(kind.kind, source.name, state=source.state, labels=labels, spec=spec)]


def _rules(
    scene: Scene,
    source: Source,
    name: str,
    of: tuple[Group, ...],
    monitor: ServiceMonitor | None,
    *,
    records: bool = False,
) -> list[Object]:
    told = scene.settings.monitoring
    if not has_kind(scene.observed, PROMETHEUS_RULES) or not told.rules:
        return []
    found = groups(told.alerts, of=of, records=records)
    if not found:
        return []
    more = monitor.additional_labels if monitor else {}
    labels = {**more, **source.labels}
    return [scene.made("PrometheusRule", name, state=source.state, labels=labels, spec={"groups": found})]


def _sanitized(label: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in label)
