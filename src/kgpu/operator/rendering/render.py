"""Renders all objects of one policy: which parts there are, in which order, and what an error in one of
them affects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.errors import UserError
from kgpu.formats.operands import OPERANDS
from kgpu.operator.model import NodeLayout, Object, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.objects import device_config_services, driver, monitoring, openshift, toolkit_state
from kgpu.operator.objects.common import KINDS, Rendered, Scene
from kgpu.operator.operand_env import check_env
from kgpu.operator.operand_spec import OperandSpec
from kgpu.operator.operands import SPECS, exporter, is_enabled
from kgpu.operator.rendering import agent, ignored, operand_pods, runtime_classes
from kgpu.operator.rendering.allocations import allocations

AGENT: Final = "agent"
"""The name under which an error in the agent's DaemonSet is reported."""

POD_SECURITY: Final = ("enforce", "audit", "warn")


def render(policy: Policy, settings: OperatorSettings, observed: ObservedCluster) -> Rendered:
    """Render the objects that should exist for this policy; never raises, whatever policy and cluster contain."""
    scene = Scene(policy, settings, observed)
    objects: list[Object] = []
    errors: dict[str, UserError] = {}
    keep: set[str] = set()
    for name, state, part in _parts(scene):
        try:
            objects += part()
        except UserError as error:
            keep.add(state)
            if str(error) != str(errors.get(AGENT)):  # an error that agent and finder share is reported once
                errors[name] = error
    if _drivers_wanted(scene) and driver.leftovers(scene, objects):
        keep.add(driver.STATE)
    return Rendered(objects=tuple(objects), errors=errors, keep=frozenset(keep), advice=tuple(_advice(scene)))


def _parts(scene: Scene) -> Iterator[tuple[str, str, Callable[[], list[Object]]]]:
    """The name for errors, the state and the function that makes the objects, in the order of application."""
    policy, settings, observed = scene.policy, scene.settings, scene.observed
    yield "namespace", "", partial(namespace, scene)
    yield "pre-requisites", runtime_classes.STATE, partial(runtime_classes.objects, scene)
    yield "operator-metrics", monitoring.STATE, partial(monitoring.operator_objects, scene)
    yield AGENT, agent.STATE, partial(agent.settings, scene)
    if settings.layout is NodeLayout.AGENT:
        yield AGENT, agent.STATE, partial(agent.objects, scene)
    for spec in SPECS.values():
        if spec.is_enabled(policy, settings):
            yield from _of_operand(scene, spec)
    if settings.layout is NodeLayout.AGENT:
        services = partial(device_config_services.services, scene, exporter.listens(scene))
        yield "device-config-metrics", device_config_services.STATE, services
    if _uses_driver_objects(scene):
        yield driver.OPERAND.name, driver.STATE, partial(driver.shared, scene)
        for nvidia_driver in observed.drivers:
            if not nvidia_driver.deleting:
                yield (
                    f"NVIDIADriver/{nvidia_driver.name}",
                    driver.STATE,
                    partial(driver.of_driver, scene, nvidia_driver),
                )


def _of_operand(scene: Scene, spec: OperandSpec) -> Iterator[tuple[str, str, Callable[[], list[Object]]]]:
    operand, pod = spec.operand, spec.pod
    yield operand.name, operand.state, partial(spec.shared, scene)
    if spec.made_by is not None:
        yield operand.name, operand.state, partial(spec.made_by, scene)
    elif pod is not None and _has_pods(scene, spec):
        yield operand.name, operand.state, partial(operand_pods.objects, scene, spec, pod)
    else:
        yield operand.name, operand.state, partial(_checked, scene, spec)
    if spec.metrics is not None:
        yield f"{operand.name}-metrics", operand.state, partial(spec.metrics, scene)


def _has_pods(scene: Scene, spec: OperandSpec) -> bool:
    """Whether the operand has a DaemonSet of its own."""
    return spec.has_pods(scene) if spec.has_pods else scene.settings.layout is NodeLayout.OPERANDS


def _checked(scene: Scene, spec: OperandSpec) -> list[Object]:
    """No objects, as the agents' ConfigMap has the operand's settings. Raises ConfigError for invalid settings."""
    check_env(spec, scene)
    return []


def _uses_driver_objects(scene: Scene) -> bool:
    settings = scene.policy.spec.driver
    return bool(settings.use_nvidia_driver_crd) and settings.enabled is not False and bool(scene.observed.drivers)


def _drivers_wanted(scene: Scene) -> bool:
    wanted = is_enabled(driver.OPERAND, scene.policy, scene.settings)
    return wanted or _uses_driver_objects(scene)


def namespace(scene: Scene) -> list[Object]:
    """The labels of the operator's own namespace: those that allow privileged pods there, if the policy wants that, and
    on OpenShift the one for which the cluster's Prometheus looks there for metrics.

    The object has neither owner nor state label, so the namespace is never deleted; only the labels are removed again.
    """
    psa = scene.policy.spec.psa
    labels: dict[str, str] = {}
    if psa is not None and psa.enabled:
        labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in POD_SECURITY}
    if scene.observed.openshift is not None:
        labels[openshift.MONITORING_LABEL] = "true"
    if not labels:
        return []
    metadata = {"name": scene.settings.namespace, "labels": labels}
    return [{"apiVersion": KINDS["Namespace"].api_version, "kind": "Namespace", "metadata": metadata}]


def _advice(scene: Scene) -> Iterator[Advice]:
    images = (
        operand_pods.ignored_image(scene, operand)
        for operand in OPERANDS
        if is_enabled(operand, scene.policy, scene.settings)
    )
    yield from dict.fromkeys(advice for advice in images if advice is not None)  # two operands may share a section
    yield from ignored.ignored(scene)
    yield from allocations(scene)
    yield from toolkit_state.advice(scene)
    yield from device_config_services.advice(scene)
    if (absent := monitoring.missing(scene)) is not None:
        yield absent
    for spec in SPECS.values():
        if spec.is_enabled(scene.policy, scene.settings):
            yield from spec.advice(scene)
