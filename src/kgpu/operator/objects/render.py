"""All objects of one policy: which parts there are, in which order, and what an error in one of them costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.formats.operands import BY_NAME, OPERANDS, Operand
from kgpu.operator.model import Layout, Object, Observed, Policy, Settings
from kgpu.operator.objects import agent, driver, finder, ignored, monitoring, operands, runtime_classes
from kgpu.operator.objects.common import KINDS, Rendered, Scene
from kgpu.operator.objects.enabled import is_enabled
from kgpu.operator.objects.env import check_role

AGENT: Final = "agent"
"""The name under which an error of the agent's DaemonSet is told."""

METRICS: Final[dict[str, Callable[[Scene], list[Object]]]] = {
    monitoring.NODE_STATUS.name: monitoring.node_status_objects,
    monitoring.EXPORTER.name: monitoring.exporter_objects,
}
"""What belongs to the metrics of an operand, by its name."""

POD_SECURITY: Final = ("enforce", "audit", "warn")


def render(policy: Policy, settings: Settings, observed: Observed) -> Rendered:
    """What there should be in the cluster for this policy; never raises for what policy and cluster contain."""
    scene = Scene(policy, settings, observed)
    objects: list[Object] = []
    errors: dict[str, UserError] = {}
    keep: set[str] = set()
    for name, state, part in _parts(scene):
        try:
            objects += part()
        except UserError as error:
            keep.add(state)
            if str(error) != str(errors.get(AGENT)):  # what agent and finder share is said once
                errors[name] = error
    if _drivers_wanted(scene) and driver.leftovers(scene, objects):
        keep.add(driver.STATE)
    return Rendered(objects=tuple(objects), errors=errors, keep=frozenset(keep), decisions=tuple(_decisions(scene)))


def _parts(scene: Scene) -> Iterator[tuple[str, str, Callable[[], list[Object]]]]:
    """Name for errors, state, and what makes the objects, in the order in which they are applied."""
    policy, settings, observed = scene.policy, scene.settings, scene.observed
    yield "namespace", "", partial(namespace, scene)
    yield "pre-requisites", runtime_classes.STATE, partial(runtime_classes.objects, scene)
    yield "operator-metrics", monitoring.STATE, partial(monitoring.operator_objects, scene)
    yield AGENT, agent.STATE, partial(agent.settings, scene)
    if settings.layout is Layout.AGENT:
        yield AGENT, agent.STATE, partial(agent.objects, scene)
    for operand in OPERANDS:
        if not is_enabled(operand, policy, settings):
            continue
        if operand.name == driver.OPERAND.name:
            yield operand.name, operand.state, partial(driver.of_policy, scene)
        elif _has_pods(scene, operand):
            yield operand.name, operand.state, partial(operands.objects, scene, operand)
        elif operand.role:
            yield operand.name, operand.state, partial(_checked, scene, operand)
        if operand.name in METRICS:
            yield f"{operand.name}-metrics", operand.state, partial(METRICS[operand.name], scene)
    if _uses_driver_objects(scene):
        yield driver.OPERAND.name, driver.STATE, partial(driver.shared, scene)
        for one in observed.drivers:
            if not one.deleting:
                yield f"NVIDIADriver/{one.name}", driver.STATE, partial(driver.of_driver, scene, one)


def _has_pods(scene: Scene, operand: Operand) -> bool:
    """Whether the operand has a DaemonSet of its own."""
    if operand.daemon_set == names.FINDER_DAEMON_SET:
        return finder.is_needed(scene)
    return bool(operand.role) and scene.settings.layout is Layout.OPERANDS and not operand.within


def _checked(scene: Scene, operand: Operand) -> list[Object]:
    """No object: what the agents are told of the operand is in their ConfigMap. Raises ConfigError for bad settings."""
    check_role(operand.role, scene)
    return []


def _uses_driver_objects(scene: Scene) -> bool:
    told = scene.policy.spec.driver
    return bool(told.use_nvidia_driver_crd) and told.enabled is not False and bool(scene.observed.drivers)


def _drivers_wanted(scene: Scene) -> bool:
    wanted = is_enabled(BY_NAME["driver"], scene.policy, scene.settings)
    return wanted or _uses_driver_objects(scene)


def namespace(scene: Scene) -> list[Object]:
    """Nothing but the labels that let privileged pods into the operator's own namespace, when the policy wants that.

    It has neither owner nor the operator's state label: it is never deleted, only its labels are taken back.
    """
    psa = scene.policy.spec.psa
    if psa is None or not psa.enabled:
        return []
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in POD_SECURITY}
    metadata = {"name": scene.settings.namespace, "labels": labels}
    return [{"apiVersion": KINDS["Namespace"].api_version, "kind": "Namespace", "metadata": metadata}]


def _decisions(scene: Scene) -> Iterator[Advice]:
    for operand in OPERANDS:
        if is_enabled(operand, scene.policy, scene.settings):
            told = operands.ignored_image(scene, operand)
            if told is not None:
                yield told
    yield from ignored.ignored(scene)
    if (absent := monitoring.missing(scene)) is not None:
        yield absent
    waiting: tuple[str, ...] = ()
    if is_enabled(driver.OPERAND, scene.policy, scene.settings):
        waiting = driver.policy_pools(scene).unlabelled
    for node in waiting:
        yield Advice(
            subject=f"Node/{node}",
            what="no driver is installed on this node yet",
            why="the labels that say which operating system it has are missing",
            severity=Severity.INFO,
            remedy=f"wait for {names.NFD_OS_ID}; with nfd.enabled=false run a discovery that writes it",
            reason="SystemUnknown",
        )
