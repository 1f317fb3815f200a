"""How Prometheus finds kgpu's metrics: Services, and ServiceMonitors and alert rules where the cluster has those kinds.

Names of Services, ports and alerts are the replaced operator's; OpenShift's own alerts have no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.decision import Decision, Severity
from kgpu.formats import names
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.kube.kinds import PROMETHEUS_RULES, SERVICE_MONITORS
from kgpu.operator.model import Layout, Object
from kgpu.operator.objects.common import Scene, builtins, has_kind
from kgpu.operator.tables import BY_NAME

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
FROM_NODES: Final = Source(
    name=NODE_STATUS.daemon_set, state=NODE_STATUS.state, port="node-status", number=names.NODE_STATUS_PORT
)

# (alert, expression, for, severity, summary, what to do)
OPERATOR_ALERTS: Final = (
    ("GPUOperatorReconciliationFailed", "gpu_operator_reconciliation_status != 1", "1h", "warning",
     "The GPU operator could not bring the cluster into the wanted state for an hour",
     "kgpu status, or the conditions of the ClusterPolicy, say which operand on which node is not ready and why"),
    ("GPUOperatorReconciliationFailedNfdLabelsMissing",
     "gpu_operator_reconciliation_status != 1 and gpu_operator_reconciliation_has_nfd_labels == 0", "30m", "warning",
     "No node has feature labels, so that no GPU is found",
     "See that the chart's value nfd.enabled is true, or that node feature discovery works"),
    ("GPUOperatorDriverAutoUpgradeFailures", "gpu_operator_nodes_upgrades_failed > 0", "30m", "warning",
     "The driver upgrade has failed on {{ $value }} nodes",
     "Look at the Events of nodes with the label nvidia.com/gpu-driver-upgrade-state=upgrade-failed"),
)  # fmt: skip
_READY: Final = "gpu_operator_node_{}_ready == 0"
NODE_ALERTS: Final = tuple(
    (f"GPUOperatorNodeDeployment{word}Failed", expression, "30m", "warning",
     f"GPUs of node {{{{ $labels.node }}}} are not usable: {summary}",
     "The condition kgpu.dev/Validated of the Node says what failed, what was expected and what to do")
    for word, expression, summary in (
        ("", "gpu_operator_node_plugin_ready == 0", "they are not offered to pods"),
        ("Driver", _READY.format("driver"), "the driver is not ready"),
        ("Toolkit", _READY.format("toolkit"), "the container toolkit is not ready"),
        ("Cuda", _READY.format("cuda"), "no CUDA program has run"),
    )
)  # fmt: skip


def operator_objects(scene: Scene) -> list[Object]:
    """The operator's own metrics: a Service always; the rest when the policy wants a ServiceMonitor."""
    service = _service(scene, FROM_OPERATOR, FROM_OPERATOR.labels)
    monitor = _operator_monitor(scene)
    if monitor is None or not monitor.enabled:
        return [service]
    return [
        service,
        *_monitor(scene, FROM_OPERATOR, monitor),
        *_rules(scene, FROM_OPERATOR, "nvidia-gpu-operator-metrics", OPERATOR_ALERTS),
    ]


def node_status_objects(scene: Scene) -> list[Object]:
    """The nodes' validation metrics: for as long as the exporter runs."""
    in_agent = scene.settings.layout is Layout.AGENT
    pods = {"app": names.AGENT_DAEMON_SET} if in_agent else FROM_NODES.labels
    told = _operator_monitor(scene)
    # Which Prometheus is to find them is said once, for the operator's own.
    labels = told.additional_labels if told else {}
    monitors = _monitor(scene, FROM_NODES, ServiceMonitor(enabled=True, additional_labels=labels))
    for monitor in monitors if in_agent else ():
        # Agents run on every node, this role only where the label says so.
        label = f"{names.LABEL_DEPLOY_PREFIX}{NODE_STATUS.deploy}"
        monitor["spec"]["attachMetadata"] = {"node": True}
        monitor["spec"]["endpoints"][0]["relabelings"] = [
            {"action": "keep", "sourceLabels": [f"__meta_kubernetes_node_label_{_sanitized(label)}"], "regex": "true"}
        ]
    return [
        _service(scene, FROM_NODES, pods),
        *monitors,
        *_rules(scene, FROM_NODES, f"{FROM_NODES.name}-alerts", NODE_ALERTS),
    ]


def missing(scene: Scene) -> Decision | None:
    """What is told when a ServiceMonitor is wanted and the cluster has no such kind."""
    monitor = _operator_monitor(scene)
    if monitor is None or not monitor.enabled or has_kind(scene.observed, SERVICE_MONITORS):
        return None
    return Decision(
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


def _monitor(scene: Scene, source: Source, told: ServiceMonitor) -> list[Object]:
    if not has_kind(scene.observed, SERVICE_MONITORS):
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
    return [scene.made("ServiceMonitor", source.name, state=source.state, labels=labels, spec=spec)]


def _rules(scene: Scene, source: Source, name: str, rows: tuple[Any, ...]) -> list[Object]:
    if not has_kind(scene.observed, PROMETHEUS_RULES):
        return []
    monitor = _operator_monitor(scene)
    alerts = [
        {
            "alert": alert,
            "expr": expression,
            "for": lasting,
            "labels": {"severity": severity},
            "annotations": {"summary": summary, "description": todo},
        }
        for alert, expression, lasting, severity, summary, todo in rows
    ]
    more = monitor.additional_labels if monitor else {}
    spec = {"groups": [{"name": name, "rules": alerts}]}
    return [scene.made("PrometheusRule", name, state=source.state, labels={**more, **source.labels}, spec=spec)]


def _sanitized(label: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in label)
