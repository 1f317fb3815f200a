"""How containers get their GPUs, as the policy says it; and values that follow from it or from another section."""

from __future__ import annotations

from collections.abc import Callable

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.operator.objects.common import Scene
from kgpu.operator.operand_spec import Value


def cdi_on(spec: ClusterPolicySpec) -> bool:
    """CDI is on unless it is switched off."""
    return spec.cdi is None or spec.cdi.enabled


def nri_on(spec: ClusterPolicySpec) -> bool:
    """The NRI plugin is off unless it is switched on."""
    return spec.cdi is not None and spec.cdi.nri_plugin_enabled


def with_cdi(value: str, otherwise: str | None = None) -> Value:
    """One value while CDI is on, and another one or none while it is off."""
    return lambda scene: value if cdi_on(scene.policy.spec) else otherwise


def when(on: Callable[[ClusterPolicySpec], object]) -> Value:
    """``true``, or nothing."""
    return lambda scene: "true" if on(scene.policy.spec) else None


def mig_strategy(scene: Scene) -> str | None:
    """The policy's, None where it names none."""
    mig = scene.policy.spec.mig
    return (mig.strategy if mig else None) or None
