"""Works out what a container gets for its device ids, per strategy. Pure: it never touches the hardware.

The table of strategies is the replaced program's. Several strategies add up; volume-mounts overrides the
``NVIDIA_VISIBLE_DEVICES`` of envvar. A device that is known to be broken is refused: the kubelet asks for one only in a
race, and a refused pod is replaced while a pod on a dead GPU hangs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from kgpu.base.errors import KubeletError
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices, PluginDevice, PluginResource
from kgpu.formats import mps_folders, names
from kgpu.formats.plugin_config import SharingKind
from kgpu.hw.vendor import GivenDevice, Vendor
from kgpu.kubelet.model import ContainerAllocation, DeviceNode, Mount

IMEX_NODE = "/dev/nvidia-caps-imex-channels/channel{}"


class AllocationError(KubeletError):
    """The kubelet's request can't be met; the pod's status shows the text."""


def allocate(
    resource: PluginResource,
    ids: Sequence[str],
    settings: PluginSettings,
    host: HostDevices,
    *,
    unhealthy: Mapping[str, str],
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> ContainerAllocation:
    """The answer for one container. ``unhealthy`` maps device ids to the reason. Raises AllocationError."""
    devices = _requested(resource, ids, unhealthy)
    parts = _Parts(settings, host, resource.vendor)
    shown = list(dict.fromkeys(shown_name(device, settings) for device in devices))
    if resource.vendor.environment is not None:
        parts.envs |= resource.vendor.environment(_given(devices), whole_node=_is_whole(resource, devices))
    for strategy in names_in_order(settings.list_strategies):
        _STRATEGIES[strategy](parts, shown, new_id)
    for flag, variable in (
        (settings.gdrcopy_enabled, names.ENV_GDRCOPY),
        (settings.gds_enabled, names.ENV_GDS),
        (settings.mofed_enabled, names.ENV_MOFED),
    ):
        if flag:
            parts.envs[variable] = "enabled"
    if (settings.pass_device_specs or resource.vendor.nodes_suffice) and not settings.only_cdi:
        _device_specs(parts, devices)
        _host_files(parts)
    if resource.sharing is SharingKind.MPS and any(device.is_replica for device in devices):
        _mps(parts, resource)
    return ContainerAllocation(
        envs=parts.envs,
        mounts=tuple(parts.mounts),
        devices=tuple(parts.nodes),
        annotations=parts.annotations,
        cdi_devices=tuple(parts.cdi),
    )


def _given(devices: Sequence[PluginDevice]) -> list[GivenDevice]:
    units = dict.fromkeys(device.unit for device in devices)
    return [
        GivenDevice(uuid=unit.uuid, minor=unit.minor, module_id=unit.module_id, device_nodes=unit.device_nodes)
        for unit in units
    ]


def _is_whole(resource: PluginResource, devices: Sequence[PluginDevice]) -> bool:
    return {device.unit for device in devices} == {device.unit for device in resource.devices}


class _Parts:
    def __init__(self, settings: PluginSettings, host: HostDevices, vendor: Vendor) -> None:
        self.settings = settings
        self.host = host
        self.vendor = vendor
        self.envs: dict[str, str] = {}
        self.mounts: list[Mount] = []
        self.nodes: list[DeviceNode] = []
        self.annotations: dict[str, str] = {}
        self.cdi: list[str] = []

    @property
    def channels(self) -> list[int]:
        """The requested IMEX channels that exist."""
        return [channel for channel in self.settings.imex_channel_ids if channel in self.host.imex_channels]


def names_in_order(strategies: Sequence[str]) -> list[str]:
    """The chosen strategies in the order in which they override each other, whatever order they were given in."""
    return [strategy for strategy in _STRATEGIES if strategy in strategies]


def _requested(resource: PluginResource, ids: Sequence[str], unhealthy: Mapping[str, str]) -> list[PluginDevice]:
    known = resource.by_id
    prefix = f'invalid allocation request for "{resource.name}": invalid request: '
    for wanted in ids:
        if wanted not in known:
            raise AllocationError(
                f"{prefix}unknown device: {wanted}",
                f"one of the {len(known)} devices that {resource.name} has now",
                "delete the pod: its replacement gets a device that exists",
            )
    if resource.refuses_many and len(ids) > 1 and any(known[wanted].is_replica for wanted in ids):
        raise AllocationError(
            f"{prefix}maximum request size for shared resources is 1; found {len(ids)}",
            "a request for one share, because more shares of a device give no more of it",
            f"request {resource.name}: 1, or set failRequestsGreaterThanOne: false",
        )
    for wanted in ids:
        if reason := unhealthy.get(wanted):
            raise AllocationError(
                f"{prefix}device {wanted} is unhealthy: {reason}",
                "a healthy device",
                "delete the pod: its replacement gets a healthy device, if there is one",
            )
    return [known[wanted] for wanted in dict.fromkeys(ids)]


def shown_name(device: PluginDevice, settings: PluginSettings) -> str:
    """The device's name in a container and in a CDI spec."""
    return device.unit.index if settings.id_strategy == "index" else device.unit.uuid


def _envvar(parts: _Parts, shown: list[str], _new_id: Callable[[], str]) -> None:
    if parts.vendor.visible_devices and parts.vendor.environment is None:
        parts.envs[parts.vendor.visible_devices] = ",".join(shown)
    if parts.channels:
        parts.envs[names.ENV_IMEX_CHANNELS] = ",".join(map(str, parts.channels))


def _volume_mounts(parts: _Parts, shown: list[str], _new_id: Callable[[], str]) -> None:
    if not parts.vendor.visible_devices or parts.vendor.environment is not None:  # nothing would look at them
        return
    parts.envs[parts.vendor.visible_devices] = names.VOLUME_MOUNTS_DIR
    wanted = [*shown, *(f"imex/{channel}" for channel in parts.channels)]
    parts.mounts += [
        Mount(container_path=f"{names.VOLUME_MOUNTS_DIR}/{name}", host_path="/dev/null") for name in wanted
    ]


def cdi_names(shown: Sequence[str], settings: PluginSettings, host: HostDevices, vendor: Vendor) -> list[str]:
    """Qualified CDI names of the devices, and of what every container gets."""
    wanted = [("gpu", name) for name in shown]
    wanted += [("imex-channel", str(channel)) for channel in settings.imex_channel_ids if channel in host.imex_channels]
    wanted += [
        (kind, "all")
        for kind, on in (
            ("gds", settings.gds_enabled and host.gds),
            ("mofed", settings.mofed_enabled and host.mofed),
            ("gdrcopy", settings.gdrcopy_enabled and host.gdrcopy),
        )
        if on
    ]
    return [f"{vendor.cdi_vendor}/{kind}={name}" for kind, name in wanted]


def _cdi_annotations(parts: _Parts, shown: list[str], new_id: Callable[[], str]) -> None:
    key = f"{parts.settings.cdi_annotation_prefix}{parts.vendor.name}-device-plugin_{new_id()}"
    parts.annotations[key] = ",".join(cdi_names(shown, parts.settings, parts.host, parts.vendor))


def _cdi_cri(parts: _Parts, shown: list[str], _new_id: Callable[[], str]) -> None:
    parts.cdi += cdi_names(shown, parts.settings, parts.host, parts.vendor)


_STRATEGIES: Mapping[str, Callable[[_Parts, list[str], Callable[[], str]], None]] = {
    "envvar": _envvar,
    "volume-mounts": _volume_mounts,
    "cdi-annotations": _cdi_annotations,
    "cdi-cri": _cdi_cri,
}


def _device_specs(parts: _Parts, devices: Sequence[PluginDevice]) -> None:
    root = parts.settings.host_dev_root.rstrip("/")
    # Where nodes are all that a container needs, the driver has made them, whether or not this process sees /dev.
    seen = parts.vendor.control_nodes if parts.vendor.nodes_suffice else parts.host.control_nodes
    paths = [
        *(path for path in parts.vendor.control_nodes if path in seen),
        *(path for device in devices for path in device.unit.device_nodes),
        *(IMEX_NODE.format(channel) for channel in parts.channels),
    ]
    parts.nodes += [
        DeviceNode(container_path=path, host_path=root + path, permissions="rw") for path in dict.fromkeys(paths)
    ]


def _host_files(parts: _Parts) -> None:
    root = parts.settings.driver_root.rstrip("/")
    parts.mounts += [
        Mount(container_path=path, host_path=root + path, read_only=True)
        for path in parts.vendor.host_files
        if path in parts.host.files
    ]


def _mps(parts: _Parts, resource: PluginResource) -> None:
    pipe = mps_folders.pipe_folder(mps_folders.MPS_CONTAINER_ROOT, resource.name)
    root = parts.settings.mps_root
    parts.envs[names.ENV_MPS_PIPE_DIRECTORY] = pipe
    parts.mounts += [
        Mount(container_path=pipe, host_path=mps_folders.pipe_folder(root, resource.name)),
        Mount(container_path="/dev/shm", host_path=mps_folders.shm_folder(root)),  # noqa: S108 - the path in the container
    ]
