"""The DRA driver, on nodes that hand out their GPUs by claims: an operator setting, without a section in the policy."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.allocation import serves_claims
from kgpu.operator.causes import CauseView
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRA_FOLDERS, DRA_SOCKETS, DRIVER_VOLUMES, NODE_STATE
from kgpu.operator.objects.rbac import NODES, rule
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable

OPERAND: Final = BY_ROLE["dra"]
API: Final = "resource.k8s.io"
MAX_SAID: Final = 300
# The driver applies its slices, which creates or patches them, and reads the claims that the kubelet asks for.
CLAIM_RULES: Final = (
    rule(API, "resourceslices", "get list watch create patch delete"),
    rule(API, "resourceclaims", "get"),
)


def _folder(name: str) -> Variable:
    """A folder of the kubelet, which calls the driver by this path: where it is elsewhere, so it is in the pod."""

    def path(scene: Scene) -> str | None:
        paths = scene.policy.spec.host_paths
        root = posixpath.normpath((paths.kubelet_root_dir if paths else "") or names.KUBELET_ROOT)
        return None if root == names.KUBELET_ROOT else f"{root}/{name}"

    variable = {"plugins": "KUBELET_PLUGINS_DIRECTORY_PATH", "plugins_registry": "KUBELET_REGISTRAR_DIRECTORY_PATH"}
    return Variable(variable[name], path)


def _why_off(view: CauseView) -> str:
    if view.settings.dra and not serves_claims(view.observed):
        return f"the API server has no {API}; every node hands out its GPUs by the device plugin"
    return "switched off by the Helm value dra.enabled"


def _without(scene: Scene) -> Iterator[Advice]:
    """What drivers do without because of feature gates, as their agents say behind the number of devices."""
    found = dict.fromkeys(
        without
        for node in scene.observed.nodes
        if node.report is not None and (role := node.report.roles.get(OPERAND.role)) is not None
        if role.state == "running" and (without := role.reason.partition("; ")[2])
    )
    for without in found:
        yield Advice(
            subject=f"ClusterPolicy/{scene.policy.name}",
            what=f"the API server drops a part of what DRA drivers publish: {one_line(without, MAX_SAID)}",
            why="feature gates of it are off",
            severity=Severity.WARNING,
            remedy="turn them on for the API server and the scheduler, then restart the pods of the driver",
            reason="FeatureGatesOff",
        )


SPEC: Final = OperandSpec(
    operand=OPERAND,
    enabled=lambda _, settings: settings.dra,
    per_node=True,
    lingers=True,
    env=(
        Variable("FEATURE_GATES", lambda scene: scene.settings.dra_gates or None),
        _folder("plugins"),
        _folder("plugins_registry"),
    ),
    pod=OperandPod(
        container="kgpu-dra-driver",
        volumes=(*DRIVER_VOLUMES, "cdi", NODE_STATE, *DRA_FOLDERS, DRA_SOCKETS),
        env=(Variable(names.ENV_WAIT_FOR_VALIDATION, names.VALIDATIONS_DIR),),
        host_pid=lambda _: True,  # MPS daemons of claims know their clients by these
    ),
    rules=lambda scene: (NODES, *(CLAIM_RULES if scene.settings.dra else ())),
    wanted=lambda view: view.settings.dra and serves_claims(view.observed),
    why_off=_why_off,
    advice=_without,
)
