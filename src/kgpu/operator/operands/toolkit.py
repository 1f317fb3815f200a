"""The toolkit: CDI specs, and container engines that inject devices with them."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.injection import nri_on, when, with_cdi
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES, NODE_STATE
from kgpu.operator.objects.rbac import NODES, PODS_READ
from kgpu.operator.objects.variables import valid_env
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Rules, Variable


def _runtime_name(scene: Scene) -> str | None:
    name = scene.policy.spec.operator.runtime_class
    return name if name and name != names.RUNTIME_CLASS else None


def _no_links(scene: Scene) -> str | None:
    """The variable that switches off device links; it is in the driver check's section, as NVIDIA's validator makes
    them.
    """
    validator = scene.policy.spec.validator
    check = validator.driver if validator is not None else None
    return valid_env(check.env, scene).get(names.ENV_NO_DEVICE_LINKS) if check is not None else None


def _rules(scene: Scene) -> Rules:
    """Permissions; the NRI plugin also reads pods, as only the API server knows a pod's service account."""
    return (NODES, PODS_READ) if nri_on(scene.policy.spec) else (NODES,)


SPEC: Final = OperandSpec(
    operand=BY_ROLE["toolkit"],
    env=(
        Variable("ROOT", lambda scene: scene.policy.spec.toolkit.install_dir),
        Variable("CDI_ENABLED", with_cdi("true")),
        Variable("NVIDIA_RUNTIME_SET_AS_DEFAULT", with_cdi("false")),
        Variable("NVIDIA_CONTAINER_RUNTIME_MODE", with_cdi("cdi")),
        Variable("CRIO_CONFIG_MODE", with_cdi("config")),
        Variable(names.ENV_NRI_ENABLED, when(nri_on)),
        Variable("NVIDIA_RUNTIME_NAME", _runtime_name),
        Variable(names.ENV_NO_DEVICE_LINKS, _no_links),
    ),
    instead_of_args="settings of the toolkit go into toolkit.env",
    pod=OperandPod(
        container="nvidia-container-toolkit-ctr",
        volumes=(*DRIVER_VOLUMES, "cdi", NODE_STATE, "engines"),
        host_pid=lambda _: True,
    ),
    rules=_rules,
)
