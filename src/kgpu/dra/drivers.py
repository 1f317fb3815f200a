"""What each vendor's DRA driver is: its name, how its devices are published, and its words. One record for each.

Everything else in this package is alike for all of them and asks the record. The opaque parameters that a driver takes
are in ``kgpu.formats.dra_parameters``, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.dra import amd, gaudi, nvidia_gpus
from kgpu.dra.gates import GATES, HEALTH_CHECK, DraGates
from kgpu.dra.model import DeviceTaintEffect, DraTaint, GpuDevices, PublishRules, TaintWords
from kgpu.formats import names
from kgpu.formats.dra_parameters import GPU, MIG
from kgpu.hw.port import Accelerator, Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCdi:
    """The CDI kind ``vendor/cls`` of claims' devices, and variables that each of their containers gets."""

    vendor: str
    cls: str
    env: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind's name."""
        return f"{self.vendor}/{self.cls}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraDriver:
    """One vendor's driver. ``published`` makes the devices of an accelerator, and ``place`` says by what their names
    differ from another's. ``types`` are what a whole accelerator and a part of one are called in the metrics.
    ``healthy`` is the attribute that says whether a device is fit for work, "" for none. ``divides``: its slices are
    made for claims, and parameters say how its devices are shared. ``gates`` are the feature gates that do something.
    """

    name: str
    published: Callable[[Inventory, Accelerator, PublishRules], GpuDevices]
    place: Callable[[Accelerator], str]
    types: tuple[str, str]
    cdi: ClaimCdi
    taints: TaintWords
    healthy: str = ""
    divides: bool = False
    gates: frozenset[str] = frozenset({HEALTH_CHECK})


def _minor(gpu: Accelerator) -> str:
    return f"minor number {gpu.minor}"


DRIVERS: Final[Mapping[str, DraDriver]] = {
    names.NVIDIA: DraDriver(
        name=names.DRA_GPU_DRIVER,
        published=nvidia_gpus.published,
        place=_minor,
        types=(GPU, MIG),
        # NVIDIA's runtime is not to add devices of its own.
        cdi=ClaimCdi(vendor="k8s.gpu.nvidia.com", cls="claim", env=(f"{names.ENV_VISIBLE_DEVICES}=void",)),
        taints=TaintWords(unmonitored=names.DRA_TAINT_UNMONITORED, gone=names.DRA_TAINT_LOST),
        divides=True,
        gates=frozenset(gate.name for gate in GATES),
    ),
    names.AMD: DraDriver(
        name=names.DRA_AMD_DRIVER,
        published=amd.published,
        place=amd.place,
        types=(amd.WHOLE, amd.PART),
        cdi=ClaimCdi(vendor="k8s.gpu.amd.com", cls="gpu"),
        taints=TaintWords(unmonitored=names.DRA_AMD_TAINT_UNMONITORED, gone=names.DRA_AMD_TAINT_LOST),
    ),
    names.GAUDI: DraDriver(
        name=names.DRA_GAUDI_DRIVER,
        published=gaudi.published,
        place=lambda gpu: f"PCI address {gpu.pci_bus_id}",
        types=(names.GAUDI, names.GAUDI),
        cdi=ClaimCdi(vendor="intel.com", cls="gaudi"),
        taints=TaintWords(
            unmonitored=names.DRA_GAUDI_TAINT_UNMONITORED,
            critical=DraTaint(names.DRA_GAUDI_TAINT, DeviceTaintEffect.NO_EXECUTE, "CriticalError"),
        ),
        healthy=gaudi.HEALTHY,
    ),
}
"""By vendor; one that is not here publishes nothing."""


def driver_of(vendor: str) -> DraDriver:
    """A vendor's driver. Raises ConfigError."""
    if vendor not in DRIVERS:
        raise ConfigError(
            f'kgpu has no DRA driver for vendor "{vendor}"', f"one of: {', '.join(DRIVERS)}",
            "use the device plugin, which offers its devices as resources",
        )  # fmt: skip
    return DRIVERS[vendor]


def unused_gates(driver: DraDriver, gates: DraGates) -> tuple[str, ...]:
    """The gates that were turned on and change nothing with this driver: they are about another vendor's devices."""
    return tuple(sorted(gates.given_on - driver.gates))
