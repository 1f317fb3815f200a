"""The agent layout: the DaemonSet ``kgpu-agent`` on the nodes with the agent's label, and the ConfigMap that tells the
agents, and the finder on all other nodes, what to do.

Everything that depends on the policy is in the ConfigMap, which the agents follow through the API server. So the pods
restart only for a new image, other host paths, or pod settings of ``spec.daemonsets``. The chart contains the
ServiceAccount and its permissions, except for those that not every cluster needs.
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
from kgpu.operator.objects.rbac import configs, features
from kgpu.operator.operands import OF_ROLE
from kgpu.operator.rendering.agent_settings import agent_config, maps_of_device_configs

STATE: Final = "kgpu-agent"
CONTAINER: Final = "agent"

METRICS_PORT: Final[Object] = {"name": "metrics", "containerPort": names.EXPORTER_PORT, "protocol": "TCP"}


def settings(scene: Scene) -> list[Object]:
    """The agents' ConfigMap, in both layouts, with the permissions that it requires. It is applied before the pods that
    read it, and also if no pods can be rendered.
    """
    config = agent_config(scene.policy, scene.settings, scene.observed)
    return [
        *(_rights(scene) if scene.settings.layout is NodeLayout.AGENT else ()),
        scene.new_object(
            "ConfigMap",
            names.AGENT_CONFIG_MAP,
            state=STATE,
            labels={"app": names.AGENT_DAEMON_SET},
            data={names.AGENT_CONFIG_KEY: agent_format.encode(config)},
        ),
    ]


def _rights(scene: Scene) -> list[Object]:
    """The agent's permissions that depend on the cluster and the policy."""
    enabled = (spec for spec in OF_ROLE.values() if spec.is_enabled(scene.policy, scene.settings))
    named = dict.fromkeys(name for spec in enabled for name in spec.config_maps(scene))
    named |= dict.fromkeys(maps_of_device_configs(scene))
    account = names.AGENT_DAEMON_SET
    return [*features(scene, STATE, account), *configs(scene, STATE, account, tuple(named))]


def objects(scene: Scene) -> list[Object]:
    """The DaemonSet. Raises ConfigError for settings that no pod can have."""
    return [_daemon_set(scene)]


def _daemon_set(scene: Scene) -> Object:
    daemonsets = scene.policy.spec.daemonsets
    paths = shape.paths(scene.policy)
    app = {"app": names.AGENT_DAEMON_SET}
    volumes, mounts = host_access(paths, claims=scene.settings.dra)
    spec = shape.pod_spec(daemonsets, account=names.AGENT_DAEMON_SET)
    spec["tolerations"] = shape.tolerations(daemonsets, *shape.ON_EVERY_NODE)
    spec |= {
        **_where(scene),
        "hostPID": True,  # a signal makes the container engine reload its config
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
    """Select the nodes that the operator has labelled. A DaemonSet that runs on all nodes keeps doing so until every
    node that needs an agent has the label, so that no needed agent is removed.
    """
    selector = {"nodeSelector": {names.OS_LABEL: "linux"}}
    observed = scene.observed
    live = mapping(mapping(mapping(observed.daemon_sets.get(names.AGENT_DAEMON_SET)).get("spec")).get("template"))
    if live and "affinity" not in mapping(live.get("spec")) and observed.unmarked:
        return selector
    return selector | affinity("Exists")
