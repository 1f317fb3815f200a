"""What is to be installed, for ``kgpu preflight``: the operator's own rules for images, applied before it runs.

From the ClusterPolicy and the NVIDIADrivers that are there, else from the chart's defaults; ``--values`` and
``--driver-version`` stand above either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, text
from kgpu.doctor.preflight import operators
from kgpu.doctor.preflight.model import DriverChoice, Intent
from kgpu.formats import names
from kgpu.formats.releases import RELEASES

if TYPE_CHECKING:
    from kgpu.doctor.snapshot import Snapshot
    from kgpu.operator.model import ClusterNode, NvidiaDriver
    from kgpu.operator.objects.common import Scene
    from kgpu.operator.objects.driver_settings import DriverSettings

DEFAULTS: Final[Mapping[str, Any]] = {
    "operator": {},
    "daemonsets": {},
    "driver": {
        "enabled": True,
        "repository": "nvcr.io/nvidia",
        "image": "driver",
        "version": RELEASES[-1].components["driver"],
        "kernelModuleType": "auto",
        "usePrecompiled": False,
    },
    "toolkit": {"enabled": True},
    "cdi": {"enabled": True, "nriPluginEnabled": False},
}
"""The chart's values, as far as a preflight asks for them; a test holds them to the chart's."""
_SIDES: Final[Mapping[str, str]] = {
    "GDS_IMAGE": "nvcr.io/nvidia/cloud-native/nvidia-fs:2.29.4",
    "GDRCOPY_IMAGE": "nvcr.io/nvidia/cloud-native/gdrdrv:v2.6",
}
"""What the chart names besides the driver, for a ClusterPolicy that leaves that to it."""
_SECTIONS: Final = ("driver", "toolkit", "cdi", "gds", "gdrcopy")
"""What of the chart's values becomes the section of that name of the ClusterPolicy."""


def intent_of(snapshot: Snapshot, *, namespace: str, values: Mapping[str, Any], version: str) -> Intent:
    """Each node's driver. Raises ConfigError for a ClusterPolicy or values that can't be read."""
    from kgpu.operator import drivers, projections
    from kgpu.operator.active_policy import choose_policy
    from kgpu.operator.model import ObservedCluster, OperatorSettings
    from kgpu.operator.nodes import read_node
    from kgpu.operator.objects.common import Scene

    nodes = tuple(read_node(node.data) for node in snapshot.nodes.values())
    documents = {obj.name: obj.data for obj in snapshot.all("ClusterPolicy")}
    policies = tuple(projections.policy(dict(one))["value"] for one in documents.values())
    chosen = choose_policy(ObservedCluster(policies=policies, nodes=nodes)).policy
    above = _above(values, version)
    source = f"ClusterPolicy {chosen.name}" if chosen is not None else "the chart's defaults"
    source += " with --values" if values else ""
    source += f", driver {version}" if version else ""
    spec = mapping(documents[chosen.name].get("spec")) if chosen is not None else DEFAULTS
    name = chosen.name if chosen is not None else "cluster-policy"
    wanted = {"kind": "ClusterPolicy", "metadata": {"name": name}, "spec": _merged(spec, above)}
    policy = projections.policy(wanted)["value"]
    if policy.problem is not None:
        raise ConfigError(policy.problem.statement, "a ClusterPolicy that can be read", policy.problem.remedy)
    place = namespace or _namespace(snapshot)
    cdi = policy.spec.cdi
    observed = ObservedCluster(policies=(policy,), nodes=nodes)
    below = {} if operators.is_installed(snapshot) else _SIDES
    settings = OperatorSettings(namespace=place, image="", images={**below, **operators.images(snapshot)})
    scene = Scene(policy=policy, settings=settings, observed=observed)
    by_crd = bool(policy.spec.driver.use_nvidia_driver_crd)
    owned = tuple(projections.driver(dict(one.data))["value"] for one in snapshot.all("NVIDIADriver") if by_crd)
    owners = drivers.assign(owned, nodes).owner or {}
    by_name = {one.name: one for one in owned}
    choices = {
        node.name: _choice(scene, node, by_name.get(owners.get(node.name, "")), source=source, by_crd=by_crd)
        for node in nodes
    }
    return Intent(
        source=source,
        namespace=place,
        drivers=choices,
        cdi=cdi is None or cdi.enabled is not False,
        nri=cdi is not None and bool(cdi.nri_plugin_enabled),
        toolkit=policy.spec.toolkit.enabled is not False,
        by_objects=by_crd,
        policy=wanted,
    )


def _above(values: Mapping[str, Any], version: str) -> dict[str, Any]:
    above = {section: dict(mapping(values.get(section))) for section in _SECTIONS if section in values}
    crd = mapping(mapping(above.get("driver")).get("nvidiaDriverCRD"))
    if "enabled" in crd:
        above["driver"]["useNvidiaDriverCRD"] = crd["enabled"]
    above.get("driver", {}).pop("nvidiaDriverCRD", None)
    if version:
        above.setdefault("driver", {})["version"] = version
    return above


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays values over each other: maps by key, everything else whole."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _namespace(snapshot: Snapshot) -> str:
    """Where kgpu or the replaced operator is, else where the chart is installed as a rule."""
    for policy in snapshot.all("ClusterPolicy"):
        if place := policy.text("status.namespace"):
            return place
    for deployment in snapshot.all("Deployment"):
        if deployment.labels.get(names.NAME_LABEL) == names.KGPU:
            return deployment.namespace
    return names.GPU_OPERATOR_NAMESPACE


def _choice(scene: Scene, node: ClusterNode, driver: NvidiaDriver | None, *, source: str, by_crd: bool) -> DriverChoice:
    """The node's driver; by NVIDIADrivers alone where these are in force."""
    from kgpu.base.advice import Advice
    from kgpu.operator.nodes import os_tag

    spec = scene.policy.spec.driver
    tag = os_tag(node)
    if spec.enabled is False or (by_crd and driver is None):
        return DriverChoice(owner=source, enabled=False, os_tag=tag)
    owner = f"NVIDIADriver {driver.name}" if driver is not None else source
    version = text((driver.spec.version if driver is not None else spec.version) or "")
    try:
        settings = _settings(scene, driver)
        image = _image(settings, node, tag)
    except ConfigError as error:
        return DriverChoice(owner=owner, version=version, os_tag=tag, problem=Advice.from_error(error))
    return DriverChoice(
        owner=owner, version=version, image=image, os_tag=tag, precompiled=settings.precompiled,
        module_type=settings.module_type,
    )  # fmt: skip


def _settings(scene: Scene, driver: NvidiaDriver | None) -> DriverSettings:
    from kgpu.operator.objects import driver_settings

    return driver_settings.of_policy(scene) if driver is None else driver_settings.of_driver(scene, driver)


def _image(settings: DriverSettings, node: ClusterNode, tag: str) -> str:
    """As the driver's pod would have it; "" where the node's system or kernel is not known. Raises ConfigError."""
    from kgpu.operator.objects import images

    if not tag or (settings.precompiled and not node.kernel):
        return ""
    if settings.precompiled:
        return images.precompiled(settings.what, settings.driver.image, node.kernel, tag)
    return images.for_system(settings.driver.image, tag)
