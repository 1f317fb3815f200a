"""What the device plugin offers: hardware units, the devices made of them, and the resources that these form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.formats.names import NVIDIA, NVIDIA_DOMAIN
from kgpu.formats.plugin_config import SharingKind
from kgpu.hw.port import Accelerator
from kgpu.hw.vendor import Vendor, vendor_of

REPLICA_SEPARATOR = "::"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUnit:
    """One GPU or one MIG device as hardware. ``vendor`` is a name of ``kgpu.hw.vendor``.

    ``index`` is ``3`` or ``3:1``; ``profile`` is "" for a whole GPU, and where GPUs are
    parted by modes; ``mode`` is then such as ``cpx_nps4``. ``device_nodes`` are the paths that a container
    sees, ``minor`` and ``module_id`` are the accelerator's. ``gpu_instance`` and ``compute_instance`` are None for a
    whole GPU.
    """

    uuid: str
    index: str
    gpu_uuid: str
    gpu_index: int
    vendor: str = NVIDIA
    model: str = ""
    profile: str = ""
    mode: str = ""
    numa_node: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    compute_capability: tuple[int, int] | None = None
    minor: int = 0
    module_id: int | None = None
    device_nodes: tuple[str, ...] = ()

    @property
    def is_mig(self) -> bool:
        """True for a MIG device."""
        return bool(self.profile)


def slices_of(gpu: Accelerator) -> list[GpuUnit]:
    """The units of an accelerator's slices."""
    return [
        GpuUnit(
            uuid=part.uuid,
            index=part.index,
            gpu_uuid=gpu.uuid,
            gpu_index=gpu.index,
            vendor=gpu.vendor,
            model=gpu.name,
            profile=part.profile,
            numa_node=gpu.numa_node,
            gpu_instance=part.gpu_instance,
            compute_instance=part.compute_instance,
            compute_capability=gpu.compute_capability,
            device_nodes=part.device_nodes,
        )
        for part in gpu.partitions
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDevice:
    """One schedulable device: a unit, or one of its replicas (``id`` is then ``<uuid>::<n>``)."""

    id: str
    unit: GpuUnit

    @property
    def is_replica(self) -> bool:
        """True for one of several shares of its unit."""
        return REPLICA_SEPARATOR in self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginResource:
    """One resource as the kubelet sees it, with devices ordered by GPU, MIG device and replica."""

    name: str
    devices: tuple[PluginDevice, ...] = ()
    sharing: SharingKind | None = None
    refuses_many: bool = False
    by_id: Mapping[str, PluginDevice] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {device.id: device for device in self.devices})

    @property
    def vendor(self) -> Vendor:
        """The vendor of its devices, which are all of one vendor."""
        return vendor_of(self.devices[0].unit.vendor)

    @property
    def endpoint(self) -> str:
        """The socket's file name: ``nvidia-<name>.sock``, or ``<domain>_<name>.sock`` for other domains than
        nvidia.com.

        Domains have no underscore, so ``nvidia/gpu`` can't take the socket of ``nvidia.com/gpu``.
        """
        domain, _, name = self.name.partition("/")
        return f"nvidia-{name}.sock" if domain == NVIDIA_DOMAIN else f"{domain}_{name}.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRefusal:
    """What is asked to be shared, a resource or a device, and is offered unshared; ``reason`` is an Event's."""

    subject: str
    reason: str
    error: ConfigError

    @property
    def advice(self) -> Advice:
        return Advice.from_error(self.error, subject=self.subject, reason=self.reason, severity=Severity.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """What to offer, advice on how that came about, and what of the sharing that is asked for can't be."""

    resources: tuple[PluginResource, ...] = ()
    advice: tuple[Advice, ...] = field(default=(), compare=False)
    refused: tuple[SharingRefusal, ...] = field(default=(), compare=False)

    def resource(self, name: str) -> PluginResource | None:
        """The resource called ``name``, None if there is none."""
        return next((resource for resource in self.resources if resource.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevices:
    """What this node's /dev offers besides the GPUs' own nodes; paths as a container sees them. ``control_nodes`` are
    those of every vendor, ``files`` the settings of the host that a vendor's containers read. ``mps_daemons`` are the
    resources for which an MPS control daemon listens, ``mps_shares`` the clients that it has limits for, by resource
    and UUID, where the daemon says so.
    """

    control_nodes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    mps_daemons: frozenset[str] = frozenset()
    mps_shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
