"""The settings of a driver DaemonSet, whichever resource asks for it: ClusterPolicy's ``driver`` or an NVIDIADriver.

The two have different names for the same settings; only this module knows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.crd.common import ComputeResources, EnvImage, EnvVar, Named, Probe, Rdma, SideContainer
from kgpu.operator.model import NvidiaDriver, Object, OperatorSettings
from kgpu.operator.objects import images, shape
from kgpu.operator.objects.common import Owner, Scene, manifest_of
from kgpu.operator.objects.variables import check_names
from kgpu.operator.vendors import GPU_TOLERATION

MANAGER_ENV: Final = "DRIVER_MANAGER_IMAGE"
DELAY: Final = 60
"""Seconds before the first startup probe; a driver that has to be compiled takes longer than that."""

PRECOMPILED_DELAY: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverImage:
    """An image in the pod with its container's settings; ``image`` lacks the operating system's suffix."""

    image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """All settings of a driver. ``what`` is the section's path for messages.

    ``default_manager`` is True if no image of the driver manager is named, ``own_manager`` if it is kgpu's own. Names
    of ConfigMaps and Secrets are "" if not given. ``token`` is True if the licence has a client token.
    """

    owner: Owner
    what: str
    driver_type: str = "gpu"
    precompiled: bool = False
    module_type: str = "auto"
    driver: DriverImage
    manager: DriverImage
    default_manager: bool = False
    own_manager: bool = False
    gds: DriverImage | None = None
    gdrcopy: DriverImage | None = None
    rdma: bool = False
    host_mofed: bool = False
    secret_env: str = ""
    resources: ComputeResources | None = None
    host_network: bool = False
    startup_delay: int = DELAY
    startup: Probe | None = None
    liveness: Probe | None = None
    readiness: Probe | None = None
    repositories: str = ""
    certificates: str = ""
    topology: str = ""
    module_config: str = ""
    license_secret: str = ""
    license_map: str = ""
    token: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    priority_class: str = shape.PRIORITY_CLASS
    security_context: Object | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: Object | None = None


def of_policy(scene: Scene) -> DriverSettings:
    """The settings of ClusterPolicy's ``driver``. Raises ConfigError."""
    spec, defaults = scene.policy.spec, scene.settings.images
    driver, daemonsets = spec.driver, spec.daemonsets
    manager = driver.manager or EnvImage()
    licensing = driver.licensing_config
    settings = DriverSettings(
        owner=scene.policy,
        what="driver",
        precompiled=bool(driver.use_precompiled),
        module_type=driver.kernel_module_type,
        driver=_part(images.policy_image("driver", driver, "DRIVER_IMAGE", defaults), driver, driver.args),
        manager=_manager("driver.manager", manager, scene.settings),
        default_manager=not images.names_image(manager),
        own_manager=_is_own(manager, scene.settings),
        gds=_side("gds", spec.gds, "GDS_IMAGE", defaults),
        gdrcopy=_side("gdrcopy", spec.gdrcopy, "GDRCOPY_IMAGE", defaults),
        secret_env=driver.secret_env or "",
        resources=driver.resources,
        host_network=bool(driver.host_network),
        startup=driver.startup_probe,
        liveness=driver.liveness_probe,
        readiness=driver.readiness_probe,
        repositories=(driver.repo_config.config_map_name if driver.repo_config else None) or "",
        certificates=_named(driver.cert_config),
        topology=(driver.virtual_topology.config if driver.virtual_topology else None) or "",
        module_config=_named(driver.kernel_module_config),
        license_secret=(licensing.secret_name if licensing else None) or "",
        license_map=(licensing.config_map_name if licensing else None) or "",
        token=bool(licensing and licensing.nls_enabled),
        labels=shape.pod_labels(daemonsets, {}),
        annotations=shape.pod_annotations(daemonsets),
        tolerations=tuple(shape.tolerations(daemonsets)),
        priority_class=daemonsets.priority_class_name or shape.PRIORITY_CLASS,
        security_context=manifest_of(daemonsets.pod_security_context) if daemonsets.pod_security_context else None,
        rdma=_on(driver.rdma),
        host_mofed=_on(driver.rdma) and bool(driver.rdma and driver.rdma.use_host_mofed),
    )
    return _agreed(scene, settings)


def of_driver(scene: Scene, driver: NvidiaDriver) -> DriverSettings:
    """The settings of an NVIDIADriver. Raises ConfigError."""
    spec, defaults = driver.spec, scene.settings.images
    what = f"NVIDIADriver {driver.name}"
    if spec.driver_type == "vgpu-host-manager":
        raise ConfigError(
            f"{what} asks for the host driver of virtual GPUs",
            "driverType gpu or vgpu: kgpu has no vGPU manager",
            "remove the NVIDIADriver, or let its nodes be run by NVIDIA's operator",
        )
    manager = spec.manager or EnvImage()
    licensing = spec.licensing_config
    image = images.pool_image(what, repository=spec.repository or "", image=spec.image, version=spec.version or "")
    return _agreed(
        scene,
        DriverSettings(
            owner=driver,
            what=what,
            driver_type=spec.driver_type,
            precompiled=bool(spec.use_precompiled),
            module_type=spec.kernel_module_type,
            driver=DriverImage(
                image=image,
                pull_policy=spec.image_pull_policy or "IfNotPresent",
                pull_secrets=spec.image_pull_secrets,
                args=spec.args,
                env=spec.env,
            ),
            manager=_manager(f"{what} manager", manager, scene.settings),
            default_manager=not images.names_image(manager),
            own_manager=_is_own(manager, scene.settings),
            gds=_side(f"{what} gds", spec.gds, "GDS_IMAGE", defaults),
            gdrcopy=_side(f"{what} gdrcopy", spec.gdrcopy, "GDRCOPY_IMAGE", defaults),
            secret_env=spec.secret_env or "",
            resources=spec.resources,
            host_network=bool(spec.host_network),
            startup_delay=PRECOMPILED_DELAY if spec.use_precompiled else DELAY,
            startup=spec.startup_probe,
            liveness=spec.liveness_probe,
            readiness=spec.readiness_probe,
            repositories=_named(spec.repo_config),
            certificates=_named(spec.cert_config),
            topology=_named(spec.virtual_topology_config),
            module_config=_named(spec.kernel_module_config),
            license_secret=(licensing.secret_name if licensing else None) or "",
            license_map=(licensing.name if licensing else None) or "",
            token=licensing is not None and licensing.nls_enabled is not False,
            labels=shape.own_labels(spec.labels),
            annotations=shape.own_labels(spec.annotations),
            tolerations=(GPU_TOLERATION, *(manifest_of(toleration) for toleration in spec.tolerations)),
            priority_class=spec.priority_class_name or shape.PRIORITY_CLASS,
            security_context=manifest_of(spec.pod_security_context) if spec.pod_security_context else None,
            node_selector={**spec.node_selector, names.LABEL_DRIVER_OWNER: driver.name},
            node_affinity=manifest_of(spec.node_affinity) if spec.node_affinity else None,
            rdma=_on(spec.rdma),
            host_mofed=_on(spec.rdma) and bool(spec.rdma and spec.rdma.use_host_mofed),
        ),
    )


def _is_own(block: EnvImage, settings: OperatorSettings) -> bool:
    """Whether kgpu's own program makes room for a new driver: no other image is named, or one of kgpu's."""
    return images.is_own(block) or not (images.names_image(block) or settings.images.get(MANAGER_ENV))


def _manager(what: str, block: EnvImage, settings: OperatorSettings) -> DriverImage:
    if images.names_image(block) or settings.images.get(MANAGER_ENV):
        return _part(images.policy_image(what, block, MANAGER_ENV, settings.images), block)
    return DriverImage(
        image=settings.image,
        pull_policy=block.image_pull_policy or settings.image_pull_policy,
        pull_secrets=block.image_pull_secrets or settings.image_pull_secrets,
        env=block.env,
    )


def _part(image: str, block: EnvImage, args: tuple[str, ...] = ()) -> DriverImage:
    return DriverImage(
        image=image,
        pull_policy=block.image_pull_policy or "IfNotPresent",
        pull_secrets=block.image_pull_secrets,
        args=args,
        env=block.env,
    )


def _side(what: str, block: SideContainer | None, env_name: str, defaults: Mapping[str, str]) -> DriverImage | None:
    if block is None or not block.enabled:
        return None
    return _part(images.policy_image(what, block, env_name, defaults), block, block.args)


def _on(block: Rdma | None) -> bool:
    return bool(block and block.enabled)


def _named(block: Named | None) -> str:
    return (block.name if block else None) or ""


def _agreed(scene: Scene, settings: DriverSettings) -> DriverSettings:
    inner = "" if settings.what == "driver" else f"{settings.what} "
    for path, part in (
        (f"{inner or 'driver.'}env", settings.driver),
        (f"{inner or 'driver.'}manager.env", settings.manager),
        (f"{inner}gds.env", settings.gds),
        (f"{inner}gdrcopy.env", settings.gdrcopy),
    ):
        check_names(path, part.env if part else (), scene)
    sides = [name for name, part in (("gds", settings.gds), ("gdrcopy", settings.gdrcopy)) if part]
    if settings.precompiled and sides:
        raise ConfigError(
            f"{settings.what}: {' and '.join(sides)} with precompiled drivers",
            "drivers compiled on the node: the modules are built against their sources",
            f"set usePrecompiled: false, or disable {' and '.join(sides)}",
        )
    return settings
