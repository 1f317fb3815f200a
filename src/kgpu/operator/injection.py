"""How containers get their GPUs by the policy; and variables whose values depend on it or on another section."""

from __future__ import annotations

from collections.abc import Callable

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.operator.objects.common import Scene
from kgpu.operator.operand_spec import Value
from kgpu.operator.vendors import VENDORS


def cdi_on(spec: ClusterPolicySpec) -> bool:
    """CDI is on unless it is switched off."""
    return spec.cdi is None or spec.cdi.enabled


def nri_on(spec: ClusterPolicySpec) -> bool:
    """The NRI plugin is off unless it is switched on."""
    return spec.cdi is not None and spec.cdi.nri_plugin_enabled


def with_cdi(value: str, otherwise: str | None = None) -> Value:
    """``value`` while CDI is on, ``otherwise`` while it is off (None: no variable). It is off on nodes whose containers
    need device nodes alone: nothing there sees to it that the container engine knows CDI.
    """
    return lambda scene: value if cdi_on(scene.policy.spec) and not VENDORS[scene.vendor].nodes_suffice else otherwise


def when(on: Callable[[ClusterPolicySpec], object]) -> Value:
    """``true`` where ``on`` holds, else no variable."""
    return lambda scene: "true" if on(scene.policy.spec) else None


def mig_strategy(scene: Scene) -> str | None:
    """The policy's MIG strategy, None where it names none."""
    mig = scene.policy.spec.mig
    return (mig.strategy if mig else None) or None


def by_operations(scene: Scene) -> str | None:
    """``true`` where the operator makes an operation of a change of GPUs, so that the pods in the way are evicted."""
    return "true" if scene.settings.operations else None
