"""The node status exporter: the validator's results as metrics."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.formats.operands import BY_ROLE
from kgpu.monitoring.model import RuleGroup
from kgpu.operator.model import Object
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.monitoring import (
    MetricsEndpoint,
    limit_to_role_nodes,
    monitors_of,
    pod_labels,
    rules_of,
    service_of,
    wanted_monitor,
)
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable

OPERAND: Final = BY_ROLE["node-status"]
SOURCE: Final = MetricsEndpoint(
    name=OPERAND.daemon_set, state=OPERAND.state, port="node-status", number=names.NODE_STATUS_PORT
)


def _metrics(scene: Scene) -> list[Object]:
    """The objects for the nodes' validation metrics."""
    operator_monitor = wanted_monitor(scene)
    # The labels that select the Prometheus are set once, for the operator's own monitor.
    labels = operator_monitor.additional_labels if operator_monitor else {}
    monitors = monitors_of(scene, SOURCE, ServiceMonitor(enabled=True, additional_labels=labels))
    for monitor in monitors:
        limit_to_role_nodes(scene, OPERAND, monitor)
    return [
        service_of(scene, SOURCE, pod_labels(scene, SOURCE)),
        *monitors,
        *rules_of(scene, SOURCE, str(RuleGroup.NODES), (RuleGroup.NODES,), operator_monitor),
    ]


SPEC: Final = OperandSpec(
    operand=OPERAND,
    env=(Variable(names.ENV_METRICS_PORT, str(names.NODE_STATUS_PORT)),),
    instead_of_args="there is nothing to set instead",
    pod=OperandPod(
        container="nvidia-node-status-exporter",
        volumes=("host-root", "run-nvidia", "driver-install-dir", "state"),
        port=("node-status", names.NODE_STATUS_PORT),
    ),
    metrics=_metrics,
)
