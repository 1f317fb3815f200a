"""What GPUs are used for: an operator setting, for which the policy has no section."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.model import NodeLayout, Object
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES
from kgpu.operator.objects.monitoring import (
    MetricsEndpoint,
    limit_to_role_nodes,
    monitors_of,
    pod_labels,
    service_of,
    wanted_monitor,
)
from kgpu.operator.objects.rbac import POD_METADATA_RULES, SLICE_RULES, cluster_role
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable
from kgpu.operator.operands.deviceplugin import config_maps

OPERAND: Final = BY_ROLE["usage"]


AGENTS: Final = MetricsEndpoint(name=OPERAND.daemon_set, state=OPERAND.state, port="usage", number=names.USAGE_PORT)
HISTORY: Final = MetricsEndpoint(
    name=names.USAGE_DEPLOYMENT, state=OPERAND.state, port="usage", number=names.USAGE_PORT
)
_OF_HOLDERS: Final = {"action": "labeldrop", "regex": "namespace|pod|container"}
_NODE: Final = {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}


def _metrics(scene: Scene) -> list[Object]:
    """Services and monitors of the agents and of the history, where there is one: the chart's own Deployment.

    Whose GPUs a figure is about is in its own labels; where it is about nobody, the scraped pod's must not stand there.
    """
    wanted = wanted_monitor(scene)
    found: list[Object] = []
    for source, selector, relabelings in (
        (AGENTS, pod_labels(scene, AGENTS), [_NODE, _OF_HOLDERS]),
        (HISTORY, HISTORY.labels, [_OF_HOLDERS]),
    ):
        found.append(service_of(scene, source, selector))
        if wanted is None or not wanted.enabled:
            continue
        monitor = ServiceMonitor(enabled=True, honor_labels=True, additional_labels=wanted.additional_labels)
        for made in monitors_of(scene, source, monitor):
            made["spec"]["endpoints"][0]["relabelings"] = list(relabelings)
            if source is AGENTS:
                limit_to_role_nodes(scene, OPERAND, made)
            found.append(made)
    return found


def _rights(scene: Scene) -> list[Object]:
    """What says whose a GPU is: uids, owners and labels of pods, and which GPUs claims have."""
    in_agent = scene.settings.layout is NodeLayout.AGENT
    account = names.AGENT_DAEMON_SET if in_agent else OPERAND.account
    rules = (*POD_METADATA_RULES, *(SLICE_RULES if scene.settings.dra else ()))
    return cluster_role(scene, f"{OPERAND.account}-read-pods", OPERAND.state, account, rules)


SPEC: Final = OperandSpec(
    operand=OPERAND,
    enabled=lambda _, settings: settings.usage,
    env=(
        Variable(names.ENV_METRICS_PORT, str(names.USAGE_PORT)),
        Variable(names.ENV_CLAIMS_SHOWN, lambda scene: "true" if scene.settings.dra else None),
        Variable(names.ENV_USAGE_LABELS, lambda scene: ",".join(scene.settings.usage_labels) or None),
    ),
    pod=OperandPod(
        container="kgpu-gpu-usage",
        volumes=DRIVER_VOLUMES,
        port=("usage", names.USAGE_PORT),
        host_pid=lambda _: True,
    ),
    config_maps=config_maps,
    shared=_rights,
    metrics=_metrics,
    why_off=lambda _: "switched off by the Helm value usage.enabled",
)
