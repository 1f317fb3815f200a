"""The agent layout: the DaemonSet ``kgpu-agent`` on the nodes whose label says that it belongs there; and the ConfigMap
that tells agents, and the finder on all other nodes, what to do.

Everything that differs per policy is in the ConfigMap, which the agents follow through the API server; so the pods
restart only for a new image, other paths on the host, or pod settings of ``spec.daemonsets``. The ServiceAccount and
its rights are the chart's, but for those that not every cluster needs.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.plain import mapping
from kgpu.formats import agent_config as agent_format
from kgpu.formats import names
from kgpu.operator.model import NodeLayout, Object
from kgpu.operator.objects import shape
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import CUDA_RESOURCES, affinity, agent_container, host_access
from kgpu.operator.objects.rbac import features
from kgpu.operator.rendering.agent_settings import agent_config

STATE: Final = "kgpu-agent"
CONTAINER: Final = "agent"

METRICS_PORT: Final[Object] = {"name": "metrics", "containerPort": names.EXPORTER_PORT, "protocol": "TCP"}


def settings(scene: Scene) -> list[Object]:
    """The ConfigMap, in both layouts, and what agents need for what it tells them: before the pods that look for it,
    and also when no new pods can be made.
    """
    config = agent_config(scene.policy, scene.settings, scene.observed)
    rights = features(scene, STATE, names.AGENT_DAEMON_SET) if scene.settings.layout is NodeLayout.AGENT else []
    return [
        *rights,
        scene.new_object(
            "ConfigMap",
            names.AGENT_CONFIG_MAP,
            state=STATE,
            labels={"app": names.AGENT_DAEMON_SET},
            data={names.AGENT_CONFIG_KEY: agent_format.encode(config)},
        ),
    ]


def objects(scene: Scene) -> list[Object]:
    """The DaemonSet. Raises ConfigError for what no pod could be made from."""
    return [_daemon_set(scene)]


def _daemon_set(scene: Scene) -> Object:
    daemonsets = scene.policy.spec.daemonsets
    paths = shape.paths(scene.policy)
    app = {"app": names.AGENT_DAEMON_SET}
    volumes, mounts = host_access(paths)
    spec = shape.pod_spec(daemonsets, account=names.AGENT_DAEMON_SET)
    spec["tolerations"] = shape.tolerations(daemonsets, shape.GPU_TOLERATION, shape.CONTROL_PLANE_TOLERATION)
    spec |= {
        **_where(scene),
        "hostPID": True,  # the container engine is told by a signal to read its config
        "containers": [
            agent_container(
                scene,
                name=CONTAINER,
                args=[],
                env=[],
                mounts=mounts,
                readiness="/healthz",
                resources=CUDA_RESOURCES,
                ports=(METRICS_PORT,),
            )
        ],
        "volumes": volumes,
    }
    if scene.settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in scene.settings.image_pull_secrets]
    return shape.daemon_set(scene, names.AGENT_DAEMON_SET, state=STATE, app=app, spec=spec)


def _where(scene: Scene) -> Object:
    """The nodes that the operator has labelled. Agents that have run everywhere stay until that is so of all of theirs,
    since none may go from a node on which it is needed.
    """
    selector = {"nodeSelector": {names.OS_LABEL: "linux"}}
    observed = scene.observed
    live = mapping(mapping(mapping(observed.daemon_sets.get(names.AGENT_DAEMON_SET)).get("spec")).get("template"))
    if live and "affinity" not in mapping(live.get("spec")) and observed.unmarked:
        return selector
    return selector | affinity("Exists")
