"""How Prometheus finds kgpu's metrics: Services, and monitors and rules if the cluster has those kinds.

Names of Services and ports are the replaced operator's. Specifics of an operand's metrics are in its module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.formats.operands import Operand
from kgpu.kube.kinds import PROMETHEUS_RULES, SERVICE_MONITORS
from kgpu.kube.port import Resource
from kgpu.monitoring.model import RuleGroup
from kgpu.monitoring.rules import groups
from kgpu.operator.model import NodeLayout, Object
from kgpu.operator.objects.common import Scene, has_kind, manifest_of

STATE: Final = "state-operator-metrics"
OPERATOR: Final = "gpu-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """Metrics that some pods serve on one port; ``name`` is also the label ``app`` of the objects."""

    name: str
    state: str
    port: str
    number: int

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the Service, by which a ServiceMonitor finds it."""
        return {"app": self.name}


FROM_OPERATOR: Final = MetricsEndpoint(name=OPERATOR, state=STATE, port="gpu-operator-metrics", number=8080)

_OF_OPERATOR: Final = (RuleGroup.OPERATOR, RuleGroup.OPERATIONS)
"""The groups that watch what the operator says."""


def operator_objects(scene: Scene) -> list[Object]:
    """The objects for the operator's own metrics: always a Service, and the rest if the policy wants a
    ServiceMonitor.
    """
    service = service_of(scene, FROM_OPERATOR, FROM_OPERATOR.labels)
    monitor = wanted_monitor(scene)
    if monitor is None or not monitor.enabled:
        return [service]
    rule_groups = _OF_OPERATOR if scene.observed.openshift is None else (*_OF_OPERATOR, RuleGroup.OPENSHIFT)
    return [
        service,
        *monitors_of(scene, FROM_OPERATOR, monitor),
        *rules_of(scene, FROM_OPERATOR, str(RuleGroup.OPERATOR), rule_groups, monitor),
    ]


def pod_labels(scene: Scene, source: MetricsEndpoint) -> dict[str, str]:
    """The labels of the pods that serve the metrics."""
    return {"app": names.AGENT_DAEMON_SET} if scene.settings.layout is NodeLayout.AGENT else source.labels


def limit_to_role_nodes(scene: Scene, operand: Operand, monitor: Object) -> None:
    """In the agent layout, scrape only nodes whose label says that the operand's role runs there."""
    if scene.settings.layout is not NodeLayout.AGENT:
        return
    label = f"{names.LABEL_DEPLOY_PREFIX}{operand.deploy}"
    endpoint = monitor["spec"]["endpoints"][0]
    keep = {"action": "keep", "sourceLabels": [f"__meta_kubernetes_node_label_{_sanitized(label)}"], "regex": "true"}
    monitor["spec"]["attachMetadata"] = {"node": True}
    endpoint["relabelings"] = [keep, *endpoint.get("relabelings", ())]


def missing(scene: Scene) -> Advice | None:
    """The advice if a ServiceMonitor is wanted and the cluster lacks the kind, else None."""
    monitor = wanted_monitor(scene)
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


def wanted_monitor(scene: Scene) -> ServiceMonitor | None:
    """The policy's settings for the operator's own ServiceMonitor, None without any."""
    metrics = scene.policy.spec.operator.metrics
    return metrics.service_monitor if metrics else None


def service_of(scene: Scene, source: MetricsEndpoint, selector: dict[str, str]) -> Object:
    """The Service of an endpoint."""
    return scene.new_object(
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


def monitors_of(
    scene: Scene, source: MetricsEndpoint, monitor: ServiceMonitor, kind: Resource = SERVICE_MONITORS
) -> list[Object]:
    """The endpoint's ServiceMonitor, or another kind of monitor; empty if the cluster lacks the kind."""
    if not has_kind(scene.observed, kind):
        return []
    endpoint: dict[str, Any] = {"port": source.port, "path": "/metrics"}
    optional = {
        "interval": monitor.interval,
        "scrapeTimeout": monitor.scrape_timeout,
        "honorLabels": monitor.honor_labels,
    }
    endpoint |= {key: value for key, value in optional.items() if value}
    if monitor.relabelings:
        endpoint["relabelings"] = [manifest_of(relabeling) for relabeling in monitor.relabelings]
    spec = {
        "jobLabel": "app",
        "selector": {"matchLabels": source.labels},
        "namespaceSelector": {"matchNames": [scene.settings.namespace]},
        "endpoints": [endpoint],
    }
    labels = {**monitor.additional_labels, **source.labels}
    return [scene.new_object(kind.kind, source.name, state=source.state, labels=labels, spec=spec)]


def rules_of(
    scene: Scene,
    source: MetricsEndpoint,
    name: str,
    of: tuple[RuleGroup, ...],
    monitor: ServiceMonitor | None,
    *,
    records: bool = False,
) -> list[Object]:
    """The endpoint's PrometheusRule; empty if it is not wanted or the cluster lacks the kind."""
    settings = scene.settings.monitoring
    if not has_kind(scene.observed, PROMETHEUS_RULES) or not settings.rules:
        return []
    rule_groups = groups(settings.alerts, of=of, records=records)
    if not rule_groups:
        return []
    more = monitor.additional_labels if monitor else {}
    labels = {**more, **source.labels}
    return [scene.new_object("PrometheusRule", name, state=source.state, labels=labels, spec={"groups": rule_groups})]


def _sanitized(label: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in label)
