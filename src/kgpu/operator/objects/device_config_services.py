"""A Service for each of AMD's DeviceConfigs: the metrics of its nodes under the name that AMD's operator gives them.

Agents of all nodes are pods of one DaemonSet, which no selector tells apart by their nodes. So the Service has none,
and EndpointSlices name the pods. Its port is the DeviceConfig's; all agents serve metrics on one, which the
ClusterPolicy's Service, its monitors and ``kgpu top`` ask. A DeviceConfig whose name makes no Service's gets none, and
that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.operands import BY_NAME
from kgpu.kube.kinds import ENDPOINT_SLICES
from kgpu.operator.device_configs import in_use
from kgpu.operator.labels import TRUE, deploy
from kgpu.operator.model import AgentPod, DeviceConfig, Object, ObservedCluster, OperatorSettings
from kgpu.operator.objects.common import Scene, owner_reference

STATE: Final = "state-device-config-metrics"
PORT: Final = "metrics"
MOST: Final = 1000
"""Endpoints of a slice, which the API server takes at most."""
_EXPORTER: Final = BY_NAME["dcgm-exporter"]
_LEGAL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def service_name(config: DeviceConfig) -> str:
    """As AMD's operator calls it; "" where no Service can be called so."""
    name = f"{config.name}-metrics-exporter"
    return name if _LEGAL.fullmatch(name) else ""


def services(scene: Scene, listens: int) -> list[Object]:
    """The Services, without a selector; ``listens`` is the port of the agents' metrics."""
    return [
        _service(scene, config, listens)
        for config in _exporting(scene.observed, scene.settings)
        if service_name(config)
    ]


def endpoint_slices(observed: ObservedCluster, settings: OperatorSettings, listens: int) -> tuple[Object, ...]:
    """The agents behind each Service, by the addresses of their pods."""
    return tuple(
        made
        for config in _exporting(observed, settings)
        if service_name(config)
        for made in _slices(config, _pods(config, observed), settings.namespace, listens)
    )


def advice(scene: Scene) -> Iterator[Advice]:
    """Which DeviceConfigs have no Service."""
    for config in _exporting(scene.observed, scene.settings):
        if not service_name(config):
            yield Advice(
                subject=f"DeviceConfig/{config.key}",
                what=f"DeviceConfig {config.key}: there is no Service for its metrics",
                why=f"no Service can be called {config.name}-metrics-exporter",
                severity=Severity.WARNING,
                remedy="give it a name of at most 46 small letters, digits and dashes, which begins with a letter",
                reason="ServiceNotMade",
            )


def _exporting(observed: ObservedCluster, settings: OperatorSettings) -> list[DeviceConfig]:
    if not settings.device_configs:
        return []
    return [config for config in in_use(observed, settings) if config.spec.metrics_exporter.enable]


def _service(scene: Scene, config: DeviceConfig, listens: int) -> Object:
    exporter = config.spec.metrics_exporter
    port: Object = {"name": PORT, "port": exporter.port or listens, "targetPort": listens, "protocol": "TCP"}
    kind = exporter.service_type or "ClusterIP"
    if kind == "NodePort" and exporter.node_port:
        port["nodePort"] = exporter.node_port
    return scene.new_object(
        "Service",
        service_name(config),
        state=STATE,
        owner=config,
        labels={"app": service_name(config)},
        annotations=exporter.service_annotations,
        spec={"type": kind, "ports": [port]},
    )


def _pods(config: DeviceConfig, observed: ObservedCluster) -> dict[str, AgentPod]:
    """The agents on its nodes on which the exporter is to run, by node."""
    label = deploy(_EXPORTER.deploy)
    wanted = {
        node.name for node in observed.nodes if node.device_config == config.name and node.labels.get(label) == TRUE
    }
    return {node: pod for node, pod in sorted(observed.agents.items()) if node in wanted}


def _slices(config: DeviceConfig, pods: Mapping[str, AgentPod], namespace: str, listens: int) -> Iterator[Object]:
    for family, ends in (("IPv4", _of_family(pods, six=False)), ("IPv6", _of_family(pods, six=True))):
        for number, begin in enumerate(range(0, len(ends), MOST)):
            yield {
                "apiVersion": ENDPOINT_SLICES.api_version,
                "kind": ENDPOINT_SLICES.kind,
                "metadata": {
                    "name": f"{service_name(config)}-{family.lower()}-{number}",
                    "namespace": namespace,
                    "labels": {
                        names.SERVICE_NAME_LABEL: service_name(config),
                        names.SLICE_MANAGER_LABEL: names.OPERATOR_FIELD_MANAGER,
                    },
                    "ownerReferences": [owner_reference(config)],
                },
                "addressType": family,
                "endpoints": ends[begin : begin + MOST],
                "ports": [{"name": PORT, "port": listens, "protocol": "TCP"}],
            }


def _of_family(pods: Mapping[str, AgentPod], *, six: bool) -> list[Object]:
    return [
        {"addresses": [pod.address], "conditions": {"ready": pod.ready}, "nodeName": node}
        for node, pod in pods.items()
        if (":" in pod.address) is six
    ]
