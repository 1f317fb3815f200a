"""The exporter: GPU metrics by user, and how Prometheus and Grafana get them.

Its series get the labels that published queries use: ``node``, ``kubernetes_node`` and ``Hostname`` for the node, and
``pod``, ``namespace`` and ``container`` for the user of the GPU, not the exporter's own pod; ``exported_pod`` and so on
are kept as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ExporterService
from kgpu.formats.crd.core import ServiceMonitor
from kgpu.formats.exporter_flags import WITHOUT
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.kube.kinds import POD_MONITORS, SERVICE_MONITORS
from kgpu.monitoring.boards import BOARDS
from kgpu.monitoring.rules import NAME, OF_EXPORTER
from kgpu.monitoring.scrape import POD
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import device_config_map_cause, role_cause
from kgpu.operator.device_configs import METRICS_KEY, metrics_map, of_node
from kgpu.operator.injection import when
from kgpu.operator.model import ClusterNode, NodeLayout, Object, Policy
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES
from kgpu.operator.objects.monitoring import (
    MetricsEndpoint,
    limit_to_role_nodes,
    monitors_of,
    pod_labels,
    rules_of,
    service_of,
)
from kgpu.operator.objects.rbac import POD_METADATA_RULES, SLICE_RULES, cluster_role
from kgpu.operator.operand_args import role_args
from kgpu.operator.operand_env import role_env
from kgpu.operator.operand_spec import IdleArguments, OperandPod, OperandSpec, Variable

OPERAND: Final = BY_ROLE["exporter"]
SOURCE: Final = MetricsEndpoint(
    name=OPERAND.daemon_set, state=OPERAND.state, port="gpu-metrics", number=names.EXPORTER_PORT
)
CONTAINER_PORT: Final = "metrics"
"""The name of the exporter's port in its pods."""
USER: Final = ("pod", "namespace", "container")
"""Labels that say who uses a GPU; a ServiceMonitor gives targets labels of the same names."""
COUNTERS: Final = "DCGM_EXPORTER_CONFIGMAP_DATA"
COUNTERS_FLAGS: Final = ("configmap-data", "m")
"""The exporter's flags with the variable's value, without dashes."""
JOBS_DIR: Final = "/var/lib/dcgm-exporter/job-mapping"


def _allowed_labels(scene: Scene) -> str | None:
    settings = scene.policy.spec.dcgm_exporter
    return ",".join(settings.pod_label_allowlist_regex) or None if settings.enable_pod_labels else None


def _jobs(scene: Scene) -> str | None:
    """The host's job mapping folder as its path in pods, None if it is off."""
    job_mapping = scene.policy.spec.dcgm_exporter.hpc_job_mapping
    return names.HOST_ROOT + (job_mapping.directory or JOBS_DIR) if job_mapping and job_mapping.enabled else None


def _counters(scene: Scene) -> str | None:
    """The counters' ConfigMap, None for the default set. It is followed through the API server, without restarts."""
    config = scene.policy.spec.dcgm_exporter.config
    return f"{scene.settings.namespace}:{config.name}" if config and config.name else None


def _config_maps(scene: Scene) -> tuple[str, ...]:
    """The ConfigMaps of the operator's namespace that the policy's fields, ``env`` or ``args`` name for counters."""
    args = role_args(SPEC, scene.policy)
    named = [role_env(SPEC, scene).get(COUNTERS, "")]
    for word, following in pairwise((*args, "")):
        flag, equals, value = word.partition("=")
        if flag.lstrip("-") in COUNTERS_FLAGS and flag.startswith("-"):
            named.append(value if equals else following)
    places = (text.partition(":") for text in named)
    return tuple(dict.fromkeys(name for place, _, name in places if place == scene.settings.namespace and name))


def _host_pid(policy: Policy) -> bool:
    """Whether pods see the host's processes, without which the driver does not report who uses a GPU."""
    host_pid = policy.spec.dcgm_exporter.host_pid
    return True if host_pid is None else host_pid


def _idle_args(args: Sequence[str]) -> Iterator[IdleArguments]:
    by_name = {name.lstrip("-"): row for row in WITHOUT for name in row.flags}
    by_reason: dict[str, list[str]] = {}
    for word in args:
        row = by_name.get(word.lstrip("-").partition("=")[0]) if word.startswith("-") else None
        if row is not None:
            by_reason.setdefault(row.idle, []).append(row.flag)
    for why, flags in by_reason.items():
        yield IdleArguments(tuple(dict.fromkeys(flags)), why, "remove them from args")


def _metrics(scene: Scene) -> list[Object]:
    """The objects for the metrics, with the permission to read pods and claims if their labels are wanted."""
    policy = scene.policy.spec.dcgm_exporter
    service = service_of(scene, SOURCE, pod_labels(scene, SOURCE))
    _adapt(service["spec"], role_env(SPEC, scene), policy.service)
    service_monitor = policy.service_monitor or ServiceMonitor()
    scrape = scene.settings.monitoring.scrape
    kind = POD_MONITORS if scrape.kind == POD else SERVICE_MONITORS
    monitors = monitors_of(scene, SOURCE, service_monitor, kind) if service_monitor.enabled else []
    for monitor in monitors:
        endpoint = monitor["spec"]["endpoints"][0]
        endpoint |= scrape.endpoint
        _relabel(scene, endpoint, service_monitor)
        limit_to_role_nodes(scene, OPERAND, monitor)
        if kind is POD_MONITORS:
            _of_pods(scene, monitor["spec"])
    return [
        *_pod_rights(scene),
        service,
        *monitors,
        *rules_of(scene, SOURCE, NAME, OF_EXPORTER, service_monitor, records=True),
        *_dashboards(scene),
    ]


def _adapt(spec: Object, env: Mapping[str, str], service: ExporterService | None) -> None:
    """Set the Service's type, the port on which the exporter listens, and a second port.

    Published guides call the port ``metrics``. A port can't have two names, so a second port has that name.
    """
    (port,) = spec["ports"]
    port["targetPort"] = _listens(env)
    spec["ports"].append({**port, "name": "metrics", "port": names.EXPORTER_SECOND_PORT})
    if service is not None and service.type:
        spec["type"] = service.type
    if service is not None and service.internal_traffic_policy:
        spec["internalTrafficPolicy"] = service.internal_traffic_policy


def listens(scene: Scene) -> int:
    """The port on which the exporter serves metrics in this scene."""
    return _listens(role_env(SPEC, scene))


def _listens(env: Mapping[str, str]) -> int:
    """The exporter's port; the default for a value that it will refuse."""
    port = env.get("DCGM_EXPORTER_LISTEN", "").rpartition(":")[2]
    return int(port) if port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16 else names.EXPORTER_PORT


def _relabel(scene: Scene, endpoint: Object, service_monitor: ServiceMonitor) -> None:
    """Add labels for the node and the user of the GPU; the policy's own relabelings come last."""
    env = role_env(SPEC, scene)
    old = "a" in env.get("KGPU_EXPORTER_COMPAT", "").lower().split(",")
    nodes = (
        "node",
        "kubernetes_node",
        *(() if old else ("Hostname",)),
    )  # the oldest series have Hostname
    steps: list[Object] = [
        {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": label}
        for label in nodes
    ]
    if service_monitor.honor_labels:
        steps.append({"action": "labeldrop", "regex": "|".join(USER)})
    else:
        endpoint["metricRelabelings"] = [
            {"action": "replace", "sourceLabels": [f"exported_{label}"], "targetLabel": label} for label in USER
        ]
    endpoint["relabelings"] = [*steps, *endpoint.get("relabelings", ())]


def _of_pods(scene: Scene, spec: Object) -> None:
    """Turn a ServiceMonitor's spec into a PodMonitor's: the same targets and job, without the Service."""
    (endpoint,) = spec.pop("endpoints")
    del spec["jobLabel"]
    spec["selector"] = {"matchLabels": pod_labels(scene, SOURCE)}
    endpoint["port"] = CONTAINER_PORT
    steps: list[Object] = [{"action": "replace", "targetLabel": "job", "replacement": SOURCE.name}]
    number = listens(scene)
    if number != names.EXPORTER_PORT:
        place = {"sourceLabels": ["__address__"], "targetLabel": "__address__"}
        steps.append({"action": "replace", **place, "regex": r"(.+):\d+", "replacement": f"$1:{number}"})
    endpoint["relabelings"] = [*steps, *endpoint["relabelings"]]
    spec["podMetricsEndpoints"] = [endpoint]


def _pod_rights(scene: Scene) -> list[Object]:
    settings = scene.policy.spec.dcgm_exporter
    rules: tuple[Object, ...] = POD_METADATA_RULES if settings.enable_pod_labels or settings.enable_pod_uid else ()
    if role_env(SPEC, scene).get(names.ENV_CLAIMS_SHOWN, "").lower() in {"1", "t", "true"}:
        rules += SLICE_RULES
    if not rules:
        return []
    in_agent = scene.settings.layout is NodeLayout.AGENT
    account = names.AGENT_DAEMON_SET if in_agent else OPERAND.account
    return cluster_role(scene, f"{OPERAND.account}-read-pods", OPERAND.state, account, rules)


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    """Where the ConfigMap that the node's DeviceConfig names is not there, the exporter has its usual settings."""
    config = of_node(view.observed, view.settings, node)
    cause = role_cause(view, operand, node)
    if cause is not None or config is None:
        return cause
    return device_config_map_cause(view, config, "metricsExporter", metrics_map(config), METRICS_KEY)


def _dashboards(scene: Scene) -> list[Object]:
    settings = scene.settings.monitoring
    if not settings.dashboards:
        return []
    return [
        scene.new_object(
            "ConfigMap",
            f"kgpu-dashboard-{board.file}",
            state=OPERAND.state,
            labels=settings.labels,
            annotations=settings.annotations,
            data={f"{board.file}.json": board.text()},
        )
        for board in BOARDS
    ]


SPEC: Final = OperandSpec(
    operand=OPERAND,
    env=(
        Variable("DCGM_EXPORTER_LISTEN", f":{names.EXPORTER_PORT}"),
        Variable("DCGM_EXPORTER_KUBERNETES", "true"),
        Variable("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", when(lambda spec: spec.dcgm_exporter.enable_pod_labels)),
        Variable("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", when(lambda spec: spec.dcgm_exporter.enable_pod_uid)),
        Variable("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", _allowed_labels),
        Variable("DCGM_HPC_JOB_MAPPING_DIR", _jobs),
        Variable(COUNTERS, _counters),
    ),
    idle_args=_idle_args,
    pod=OperandPod(
        container="nvidia-dcgm-exporter",
        volumes=DRIVER_VOLUMES,
        port=(CONTAINER_PORT, names.EXPORTER_PORT),
        host_pid=_host_pid,
        annotations=lambda policy: policy.spec.dcgm_exporter.annotations,
    ),
    config_maps=_config_maps,
    check=_check,
    metrics=_metrics,
)
